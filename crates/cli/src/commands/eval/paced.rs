//! A device of known speed, as a file through FUSE, to test experiments with.
//!
//! It reads as zeros and drops writes. It serves operations one after the other by a clock of its
//! own: each takes its bytes divided by the rate, times a factor drawn from 1 ± spread, from the
//! moment when the previous one was due (not when it was answered). If the load could not run for a
//! while, the device makes up for the lost time, up to [`CREDIT`]. So under a load that always has
//! operations in flight its speed is exactly the rate, however late this process or the load wakes
//! up, and its noise is known too. A load's first operations use the credit of the time before, so
//! a measurement must leave out its ramp.

use crate::one_file::{OneFile, unmount_on_signals};
use anyhow::Context;
use clap::Args;
use eval::statistics::random::Random;
use fuse::{
    FileSystem, MountOptions, Negotiated, Operation, Request, Response, Session, SessionOptions,
};
use reactor::{Region, Runtime, time};
use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

const FILE_NAME: &str = "device";
/// Longest idle time that the device makes up for.
const CREDIT: Duration = Duration::from_millis(150);
const BLOCK_BYTES: u32 = 4096;
const REQUEST_BYTES_MAX: u32 = 1 << 20;

#[derive(Clone, Debug, Args)]
pub(super) struct PacedArgs {
    /// Directory to mount at; the file in it is called `device`
    directory: PathBuf,
    /// Size of the device in bytes
    #[arg(long, value_name = "BYTES")]
    size: u64,
    /// Bytes per second that the device serves
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    rate: u64,
    /// Spread of the time of an operation, which is multiplied by a factor from 1 ± SPREAD
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    spread: f64,
    /// Seed of those factors
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// The device.
struct Paced {
    args: PacedArgs,
    file: OneFile,
    zeros: Region,
    random: RefCell<Random>,
    /// When the operations in flight are done.
    free_at: Cell<time::Instant>,
}

/// Serves the device until SIGINT, SIGTERM or umount.
pub(super) fn run(args: &PacedArgs) -> anyhow::Result<ExitCode> {
    anyhow::ensure!((0.0..1.0).contains(&args.spread), "--spread must be from 0 to below 1");
    let config = reactor::Config { sqe128: true, ..reactor::Config::default() };
    Runtime::new(&config)?.block_on(serve(args.clone()))?;
    Ok(ExitCode::SUCCESS)
}

async fn serve(args: PacedArgs) -> anyhow::Result<()> {
    let mount_options = MountOptions { fs_name: "tsumugi-paced".into(), ..MountOptions::default() };
    let options = SessionOptions { max_write_bytes: REQUEST_BYTES_MAX, ..Default::default() };
    let session = Session::mount(&args.directory, &mount_options, options)
        .with_context(|| format!("cannot mount at {}", args.directory.display()))?;
    unmount_on_signals(session.unmounter())?;
    let file =
        OneFile { name: FILE_NAME, size_bytes: args.size, block_size: BLOCK_BYTES, access: 0o600 };
    let paced = Paced {
        file,
        zeros: Region::new(REQUEST_BYTES_MAX as usize)?,
        random: RefCell::new(Random::new(args.seed)),
        free_at: Cell::new(time::now()),
        args,
    };
    session.run(Rc::new(paced)).await.context("serving the mount ended")
}

impl Paced {
    /// Waits for the duration of an operation of this size, after the operations before it.
    async fn serve(&self, bytes: u64) {
        let factor = 1.0 + self.args.spread * (2.0 * self.random.borrow_mut().uniform() - 1.0);
        let seconds = bytes as f64 / self.args.rate as f64 * factor;
        let oldest = time::now() - CREDIT;
        let begin = self.free_at.get().max(oldest);
        let done = begin + Duration::from_secs_f64(seconds);
        self.free_at.set(done);
        time::sleep_until(done).await;
    }
}

impl FileSystem for Paced {
    /// Reports that the file can be used now.
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
                    // The ring's own area may hold data of an earlier write; no program uses the
                    // content.
                    Some(destination) => Response::chunk(destination.range(0, size)),
                    None => Response::chunk(self.zeros.slice(0, size.min(self.zeros.len()))),
                }
            }
            Operation::Write(write) => {
                let bytes = write.data.len();
                self.serve(bytes as u64).await;
                Response::Written(bytes as u32)
            }
            Operation::Fsync { .. } => Response::Done,
            operation => self.file.answer(request.node, operation),
        }
    }
}
