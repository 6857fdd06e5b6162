//! `compare`, `compare-and-write`, `verify`, `copy` and `write-uncor`: commands that a block device
//! does not have.

use super::Mismatch;
use super::args::{ConnectArgs, NamespaceArgs, check_destroy};
use super::paths::{self, PathArgs};
use anyhow::{Context, ensure};
use clap::Args;
use eval::units::parse_bytes;
use host::Namespace;
use reactor::{Buffer, Shared};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The namespace and where in it.
#[derive(Debug, Args)]
pub(crate) struct PlaceArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    paths: PathArgs,
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// Start offset in bytes
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_bytes)]
    offset: u64,
}

#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// File to compare with; whole blocks
    #[arg(short = 'd', long, value_name = "FILE")]
    data_file: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct CompareAndWriteArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// File with the expected bytes, as many as are written
    #[arg(long, value_name = "FILE")]
    compare_file: PathBuf,
    /// File to write; whole blocks, at most as many as the target compares and writes at once
    #[arg(short = 'd', long, value_name = "FILE")]
    data_file: PathBuf,
    /// Confirm by a name of the namespace (UUID, NGUID, EUI64) or the controller's serial number
    #[arg(long, value_name = "NAME")]
    destroy: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// Number of bytes to verify [default: to the end]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    size: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct CopyArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// Number of bytes to copy
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    size: u64,
    /// Offset of the destination in bytes; it may overlap the source
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    to: u64,
    /// Confirm by a name of the namespace (UUID, NGUID, EUI64) or the controller's serial number
    #[arg(long, value_name = "NAME")]
    destroy: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct WriteUncorArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// Number of bytes to mark
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    size: u64,
    /// Confirm by a name of the namespace (UUID, NGUID, EUI64) or the controller's serial number
    #[arg(long, value_name = "NAME")]
    destroy: Option<String>,
}

impl PlaceArgs {
    async fn open(&self) -> anyhow::Result<(paths::Controllers, Namespace)> {
        paths::open(&self.connect, &self.paths, &self.namespace).await
    }
}

/// Compares the namespace with a file, piece by piece.
pub(crate) async fn compare(args: CompareArgs) -> anyhow::Result<()> {
    let (controllers, namespace) = args.place.open().await?;
    let mut at = args.place.offset;
    let mut file = open_file(&args.data_file)?;
    loop {
        let piece = read(&mut file, namespace.transfer_bytes_max() as usize)
            .with_context(|| format!("cannot read {}", args.data_file.display()))?;
        if piece.is_empty() {
            break;
        }
        let bytes = piece.len() as u64;
        if !namespace.compare(at, piece).await? {
            let what = format!("they differ from {}", args.data_file.display());
            return Err(Mismatch { offset_bytes: at, bytes, what }.into());
        }
        at += bytes;
    }
    controllers.disconnect().await
}

/// Writes a file if the namespace has the content of another one.
pub(crate) async fn compare_and_write(args: CompareAndWriteArgs) -> anyhow::Result<()> {
    let (controllers, namespace) = args.place.open().await?;
    check_destroy(args.destroy.as_deref(), &namespace)?;
    let most = namespace.transfer_bytes_max() as usize;
    let whole = |path: &Path| -> anyhow::Result<Shared> {
        // One byte more shows a file that is too long.
        let bytes = read(&mut open_file(path)?, most + 1)
            .with_context(|| format!("cannot read {}", path.display()))?;
        ensure!(
            bytes.len() <= most,
            "{} is longer than the {most} bytes that the target transfers in one command",
            path.display()
        );
        Ok(bytes)
    };
    let (expected, bytes) = (whole(&args.compare_file)?, whole(&args.data_file)?);
    let (offset_bytes, len) = (args.place.offset, bytes.len() as u64);
    if !namespace.compare_and_write(offset_bytes, expected, bytes).await? {
        let what = format!("they differ from {}; nothing was written", args.compare_file.display());
        return Err(Mismatch { offset_bytes, bytes: len, what }.into());
    }
    controllers.disconnect().await
}

/// Makes the target read a range without sending it.
pub(crate) async fn verify(args: VerifyArgs) -> anyhow::Result<()> {
    let (controllers, namespace) = args.place.open().await?;
    let rest = namespace.geometry().size().saturating_sub(args.place.offset);
    namespace.verify(args.place.offset, args.size.unwrap_or(rest)).await?;
    controllers.disconnect().await
}

/// Makes the target copy a range.
pub(crate) async fn copy(args: CopyArgs) -> anyhow::Result<()> {
    let (controllers, namespace) = args.place.open().await?;
    check_destroy(args.destroy.as_deref(), &namespace)?;
    namespace.copy(args.place.offset, args.to, args.size).await?;
    namespace.flush().await?;
    controllers.disconnect().await
}

/// Makes reads of a range fail until it is written.
pub(crate) async fn write_uncor(args: WriteUncorArgs) -> anyhow::Result<()> {
    let (controllers, namespace) = args.place.open().await?;
    check_destroy(args.destroy.as_deref(), &namespace)?;
    namespace.write_uncorrectable(args.place.offset, args.size).await?;
    controllers.disconnect().await
}

fn open_file(path: &Path) -> anyhow::Result<File> {
    File::open(path).with_context(|| format!("cannot open {}", path.display()))
}

/// Reads up to `bytes_max` bytes.
fn read(file: &mut File, bytes_max: usize) -> std::io::Result<Shared> {
    let mut bytes = Vec::new();
    file.take(bytes_max as u64).read_to_end(&mut bytes)?;
    Ok(Buffer::copy_from(&bytes).freeze())
}
