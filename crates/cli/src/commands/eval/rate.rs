//! `tsumugi eval rate`: open-loop load at a fixed rate, over many files or parts of them.
//!
//! [`eval::rate::generator`] makes the load; here are its options, the devices that they name and the output.

mod device;
mod report;

use crate::load::{self, Mode};
use clap::Args;
use device::{DeviceSpec, Queue};
use eval::rate::generator::{self, Parameters};
use eval::units::parse_bytes;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

#[derive(Clone, Debug, Args)]
pub(super) struct RateArgs {
    /// Target of the load: files or block devices, `null` (does nothing), `memory:SIZE`,
    /// `nvme://ADDRESS:PORT/NQN` or `iscsi://ADDRESS:PORT/TARGET/LUN` (by libiscsi)
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<DeviceSpec>,
    /// Requests per second of all jobs together [default: a closed loop with --iodepth-max requests in
    /// flight per job]
    #[arg(long, value_name = "IOPS", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    rate: Option<u64>,
    /// Kind of load; `randrw` is half reads
    #[arg(long, value_enum, default_value_t = Mode::Randread)]
    rw: Mode,
    /// Size of a request
    #[arg(long, value_name = "BYTES", default_value = "8KiB", value_parser = parse_bytes)]
    bs: u64,
    /// Requests per batch: they are due, and submitted, together
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    batch: u32,
    /// Logical units: equal parts of the devices, which requests visit in turn [default: one per
    /// device]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    units: Option<u32>,
    /// Threads, each with a ring of its own
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    numjobs: u32,
    /// Maximum number of requests in flight per job; more are late
    #[arg(long, value_name = "N", default_value_t = 1024,
          value_parser = clap::value_parser!(u32).range(1..=65536))]
    iodepth_max: u32,
    /// Through the block layer, with a queue of each device: `direct` (each job its own) or `elevator`
    /// (one for all jobs, sorted and merged behind a lock, as for rotating disks) [default: requests
    /// on files go straight to the kernel]
    #[arg(long, value_enum)]
    queue: Option<Queue>,
    /// Seconds to measure
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    runtime: f64,
    /// Seconds of load before the measurement
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    ramp_time: f64,
    /// Seed of offsets
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Lateness allowed for a batch so that one wake-up and system call serve several, which saves CPU
    /// time [default: 50 if a job's batches are due at least twice in that time, else 0]
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    slack_us: Option<u64>,
    /// Microseconds to spin for completions before sleeping, or auto: only while that is cheaper than a wake-up
    #[arg(long, value_name = "US|auto", default_value_t)]
    poll_us: reactor::Spin,
    /// CPUs to pin the jobs to, in turn, e.g. 0,1
    #[arg(long, value_name = "CPU,…", value_delimiter = ',')]
    cpus: Vec<usize>,
    /// Use the page cache
    #[arg(long)]
    buffered: bool,
    /// Allow writing: the content of these files is lost
    #[arg(long)]
    overwrite: bool,
    /// Confirm writes: to a block device by its serial number, to a namespace by a name of it, to a
    /// logical unit by its target's name
    #[arg(long, value_name = "NAME")]
    destroy: Option<String>,
    /// Network namespace for the sockets of nvme:// devices, e.g. /run/netns/node1
    #[arg(long, value_name = "PATH")]
    network_namespace: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl RateArgs {
    fn parameters(&self) -> anyhow::Result<Parameters> {
        Ok(Parameters {
            rate: self.rate,
            pattern: self.rw.pattern(),
            request_bytes: self.bs,
            batch: self.batch,
            units: self.units,
            jobs: self.numjobs,
            depth_max: self.iodepth_max,
            runtime: load::seconds("runtime", self.runtime)?,
            ramp: load::seconds("ramp-time", self.ramp_time)?,
            seed: self.seed,
            slack: self.slack_us.map(Duration::from_micros),
            spin: self.poll_us,
            cpus: self.cpus.clone(),
        })
    }
}

/// Runs the load.
pub(super) fn run(args: &RateArgs) -> anyhow::Result<ExitCode> {
    let is_interrupted = load::interrupted()?;
    let parameters = args.parameters()?;
    let devices: anyhow::Result<Vec<_>> =
        args.devices.iter().map(|spec| device::open(spec, args)).collect();
    let summary = generator::run(parameters, devices?, &is_interrupted)?;
    if args.json {
        println!("{}", serde_json::to_string(&summary)?);
    } else {
        report::print(&summary, args.iodepth_max);
    }
    Ok(ExitCode::SUCCESS)
}
