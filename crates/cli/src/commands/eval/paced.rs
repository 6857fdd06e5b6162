//! A device of known speed, as a file through FUSE: what experiments are proven on.
//!
//! It reads as zeros and drops writes. Operations are served one after the other by a clock of its
//! own: each takes its bytes by the rate, times a factor drawn from 1 ± spread, from the moment when
//! the one before was due (not when it was answered). If the load could not run for a while, what it
//! missed is made up for, up to [`CREDIT`]. So its speed under a load that always has operations under
//! way is the rate exactly, however late this process or the load is woken, and its noise is known
//! too. A load's first operations find the credit of the time before: its ramp is not to be counted.

use anyhow::Context;
use clap::Args;
use eval::random::Random;
use fuse::{
    Attributes, DirectoryBuffer, DirectoryEntry, Entry, Errno, FileSystem, FileSystemStatistics,
    FileType, MountOptions, Negotiated, NodeId, OpenFlags, Opened, Operation, Request, Response,
    Session, SessionOptions, Unmounter,
};
use ring::{Region, Runtime, time};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

const FILE: NodeId = NodeId(2);
const FILE_NAME: &str = "device";
/// How much idle time is made up for.
const CREDIT: Duration = Duration::from_millis(150);
const BLOCK_BYTES: u32 = 4096;
const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Size and owner never change.
const VALID: Duration = Duration::from_hours(1);

#[derive(Clone, Debug, Args)]
pub(super) struct PacedArgs {
    /// Directory to mount at; the file in it is called `device`
    directory: PathBuf,
    /// Bytes of the device
    #[arg(long, value_name = "BYTES")]
    size: u64,
    /// Bytes that it serves per second
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    rate: u64,
    /// Each operation takes its time times a factor drawn from 1 ± this
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    spread: f64,
    /// Seed of those factors
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// The device.
struct Paced {
    args: PacedArgs,
    zeros: Region,
    random: RefCell<Random>,
    /// When what is under way is done.
    free_at: Cell<time::Instant>,
}

/// Serves the device until SIGINT, SIGTERM or umount.
pub(super) fn run(args: &PacedArgs) -> anyhow::Result<ExitCode> {
    anyhow::ensure!((0.0..1.0).contains(&args.spread), "--spread lies between 0 and 1");
    let config = ring::Config { sqe128: true, ..ring::Config::default() };
    Runtime::new(&config)?.block_on(serve(args.clone()))?;
    Ok(ExitCode::SUCCESS)
}

async fn serve(args: PacedArgs) -> anyhow::Result<()> {
    let mount_options = MountOptions { fs_name: "tsumugi-paced".into(), ..MountOptions::default() };
    let options = SessionOptions { max_write_bytes: REQUEST_BYTES_MAX, ..Default::default() };
    let session = Session::mount(&args.directory, &mount_options, options)
        .with_context(|| format!("cannot mount at {}", args.directory.display()))?;
    unmount_on_signals(session.unmounter())?;
    let paced = Paced {
        zeros: Region::new(REQUEST_BYTES_MAX as usize)?,
        random: RefCell::new(Random::new(args.seed)),
        free_at: Cell::new(time::now()),
        args,
    };
    session.run(Rc::new(paced)).await.context("serving the mount ended")
}

/// Unmounts on another thread than the one that serves, which the unmount may wait for.
fn unmount_on_signals(unmounter: Unmounter) -> anyhow::Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])
        .context("cannot watch for signals")?;
    let wait = move || {
        for _signal in signals.forever() {
            if let Err(error) = unmounter.unmount() {
                eprintln!("tsumugi: {error}");
            }
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(wait)
        .context("cannot start a thread for signals")?;
    Ok(())
}

impl Paced {
    /// Waits for as long as an operation of this size takes after those before it.
    async fn serve(&self, bytes: u64) {
        let factor = 1.0 + self.args.spread * (2.0 * self.random.borrow_mut().uniform() - 1.0);
        let seconds = bytes as f64 / self.args.rate as f64 * factor;
        let oldest = time::now() - CREDIT;
        let begin = self.free_at.get().max(oldest);
        let done = begin + Duration::from_secs_f64(seconds);
        self.free_at.set(done);
        time::sleep_until(done).await;
    }

    fn attributes(&self, node: NodeId) -> Attributes {
        let is_file = node == FILE;
        let size = if is_file { self.args.size } else { 0 };
        Attributes {
            inode: node.0,
            size,
            blocks: size / 512,
            mode: if is_file { libc::S_IFREG | 0o600 } else { libc::S_IFDIR | 0o700 },
            nlink: 1,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            block_size: BLOCK_BYTES,
            ..Attributes::default()
        }
    }

    fn at_once(&self, node: NodeId, operation: &Operation) -> Response {
        match operation {
            Operation::Lookup { name } if name.as_bytes() == FILE_NAME.as_bytes() => {
                Response::Entry(Entry {
                    node: FILE,
                    generation: 0,
                    entry_valid: VALID,
                    attributes_valid: VALID,
                    attributes: self.attributes(FILE),
                })
            }
            Operation::Lookup { .. } => Errno::NOENT.into(),
            // A device has a size of its own.
            Operation::SetAttributes(set) if set.size.is_some() => Errno::PERM.into(),
            Operation::GetAttributes { .. } | Operation::SetAttributes(_) => {
                Response::Attributes { attributes: self.attributes(node), valid: VALID }
            }
            Operation::Open { .. } => Response::Opened(Opened {
                flags: OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES,
                ..Opened::default()
            }),
            Operation::OpenDirectory { .. } => Response::Opened(Opened::default()),
            Operation::ReadDirectory(list) => {
                let mut directory = DirectoryBuffer::new(list.size);
                let entry = DirectoryEntry {
                    inode: FILE.0,
                    offset: 1,
                    kind: FileType::Regular,
                    name: FILE_NAME.as_bytes(),
                };
                if list.offset == 0 && !directory.push(&entry) {
                    return Errno::INVAL.into();
                }
                Response::Directory(directory)
            }
            Operation::StatFs => Response::Statistics(FileSystemStatistics {
                blocks: self.args.size / u64::from(BLOCK_BYTES),
                block_size: BLOCK_BYTES,
                fragment_size: BLOCK_BYTES,
                name_length_max: 255,
                ..FileSystemStatistics::default()
            }),
            Operation::Fsync { .. }
            | Operation::Flush { .. }
            | Operation::Release(_)
            | Operation::ReleaseDirectory(_) => Response::Done,
            _ => Errno::NOSYS.into(),
        }
    }
}

impl FileSystem for Paced {
    /// Now the file can be used: says so.
    fn init(&self, _: &Negotiated) {
        let how = format!(
            "a device of known speed: {} bytes per second, each operation ± {:.0} %",
            self.args.rate,
            100.0 * self.args.spread
        );
        let file = self.args.directory.join(FILE_NAME);
        println!("{}", serde_json::json!({ "file": file, "how": how }));
    }

    async fn handle(self: Rc<Self>, request: Request) -> Response {
        match &request.operation {
            Operation::Read(read) => {
                let left = self.args.size.saturating_sub(read.offset);
                let size = left.min(read.size.into()) as usize;
                self.serve(size as u64).await;
                match &read.destination {
                    // The ring's own area may hold data of an earlier write; nobody looks at it.
                    Some(destination) => Response::chunk(destination.range(0, size)),
                    None => Response::chunk(self.zeros.slice(0, size.min(self.zeros.len()))),
                }
            }
            Operation::Write(write) => {
                let bytes = write.data.len();
                self.serve(bytes as u64).await;
                Response::Written(bytes as u32)
            }
            operation => self.at_once(request.node, operation),
        }
    }
}
