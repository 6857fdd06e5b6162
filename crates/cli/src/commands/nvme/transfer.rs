//! `read` and `write`: bytes between a namespace and a file or pipe.

use super::args::{ConnectArgs, NamespaceArgs, check_destroy};
use super::paths::{self, PathArgs};
use anyhow::{Context, bail};
use clap::Args;
use eval::units::parse_bytes;
use reactor::Buffer;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;

/// Bytes to transfer at a time.
const PIECE_BYTES: usize = 4 << 20;

#[derive(Debug, Args)]
pub(crate) struct ReadArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    paths: PathArgs,
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// Start offset in bytes
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_bytes)]
    offset: u64,
    /// Number of bytes to read [default: to the end]
    #[arg(long, visible_alias = "data-size", value_name = "BYTES", value_parser = parse_bytes)]
    size: Option<u64>,
    /// File to write to [default: standard output]
    #[arg(short = 'd', long, value_name = "FILE")]
    data_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct WriteArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    paths: PathArgs,
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// Start offset in bytes
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_bytes)]
    offset: u64,
    /// File to read from [default: standard input]
    #[arg(short = 'd', long, value_name = "FILE")]
    data_file: Option<PathBuf>,
    /// Confirm by a name of the namespace (UUID, NGUID, EUI64) or the controller's serial number
    #[arg(long, value_name = "NAME")]
    destroy: Option<String>,
}

/// Reads whole blocks around the range and outputs the range.
pub(crate) async fn read(args: ReadArgs) -> anyhow::Result<()> {
    let (controllers, namespace) = paths::open(&args.connect, &args.paths, &args.namespace).await?;
    let geometry = namespace.geometry();
    let Some(rest) = geometry.size().checked_sub(args.offset) else {
        bail!("--offset {} is past the end at {}", args.offset, geometry.size());
    };
    let size = args.size.unwrap_or(rest);
    if size > rest {
        bail!("--size {size}: only {rest} bytes follow offset {}", args.offset);
    }
    let mut output: Box<dyn Write> = match &args.data_file {
        Some(path) => Box::new(
            File::create(path).with_context(|| format!("cannot create {}", path.display()))?,
        ),
        None => Box::new(io::stdout().lock()),
    };
    let block = u64::from(geometry.block_size);
    let mut at = args.offset;
    let end = args.offset + size;
    while at < end {
        let start = at / block * block;
        let len = (end.next_multiple_of(block) - start).min(PIECE_BYTES as u64) as usize;
        let mut buffer = Buffer::with_capacity(len);
        buffer.set_len(len);
        let buffer = namespace.read(start, buffer).await?;
        let until = end.min(start + len as u64);
        match output.write_all(&buffer[(at - start) as usize..(until - start) as usize]) {
            // The reader needs no more data.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                return controllers.disconnect().await;
            }
            written => written?,
        }
        at = until;
    }
    output.flush()?;
    controllers.disconnect().await?;
    Ok(())
}

/// Fills as much of `bytes` as the input has.
fn read_full(input: &mut dyn Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < bytes.len() {
        match input.read(&mut bytes[done..]) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Writes the input. If it ends within a block, the block keeps its other bytes.
pub(crate) async fn write(args: WriteArgs) -> anyhow::Result<()> {
    let (controllers, namespace) = paths::open(&args.connect, &args.paths, &args.namespace).await?;
    check_destroy(args.destroy.as_deref(), &namespace)?;
    let geometry = namespace.geometry();
    let block = geometry.block_size as usize;
    if !args.offset.is_multiple_of(block as u64) {
        bail!("--offset must be a multiple of the block size, {block}");
    }
    let mut input: Box<dyn Read> = match &args.data_file {
        Some(path) => {
            Box::new(File::open(path).with_context(|| format!("cannot open {}", path.display()))?)
        }
        None => Box::new(io::stdin().lock()),
    };
    let mut at = args.offset;
    loop {
        let mut buffer = Buffer::zeroed(PIECE_BYTES.next_multiple_of(block));
        let len = read_full(&mut input, &mut buffer)?;
        if len == 0 {
            break;
        }
        let whole = len.next_multiple_of(block);
        if whole != len {
            let last = at + (whole - block) as u64;
            let kept = namespace.read(last, Buffer::zeroed(block)).await?;
            buffer[len..whole].copy_from_slice(&kept[block - (whole - len)..]);
        }
        buffer.truncate(whole);
        namespace.write(at, buffer.freeze()).await?;
        at += whole as u64;
        if whole != len {
            break;
        }
    }
    namespace.flush().await?;
    controllers.disconnect().await?;
    Ok(())
}
