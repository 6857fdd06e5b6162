//! `tsumugi eval rate`: open-loop load at a fixed rate, over many files or parts of them.
//!
//! Without a rate the loop is closed: as many requests as `--iodepth-max` allows are always under way.
//!
//! Requests are due at times that follow from the rate alone, in batches of `--batch`; each batch is
//! one submission (one system call, on a file). A request that is late is not put off: it is sent as
//! soon as possible, and its latency counts from when it was due. Each job is a thread with a ring of
//! its own that sleeps until the next batch is due or something completes; nothing spins unless
//! `--poll-us` says so. So CPU time per request is the storage stack's, and what the generator itself
//! takes is what the device `null` takes, which does nothing at all.
//!
//! On files, block devices and nothing the loop is a plain one ([`straight`]); devices behind a network,
//! memory and the queues of our block layer take a task for each request ([`futures`]), which costs some
//! CPU time more. What is to be compared has to go the same way.

mod device;
mod futures;
mod job;
mod report;
mod schedule;
mod straight;
mod times;

use crate::load::{self, Mode};
use anyhow::{bail, ensure};
use clap::Args;
use device::{DeviceSpec, Queue, Source};
use eval::units::parse_bytes;
use job::{Control, Job, Load};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often the end is looked for.
const WATCH_PERIOD: Duration = Duration::from_millis(100);
/// How late a batch may be for a wake-up that serves several: the kernel's own timer slack, which ours is
/// otherwise too fine for.
const SLACK: Duration = Duration::from_micros(50);
/// From when all jobs are ready until the first request is due.
const START_DELAY: Duration = Duration::from_millis(5);

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
    /// How late a batch may be for the sake of fewer wake-ups. Where batches are further apart there is
    /// nothing to gain.
    fn slack(&self) -> Duration {
        let Some(rate) = self.rate else { return Duration::ZERO };
        let per_job = u64::from(self.batch) * u64::from(self.numjobs);
        let period = Duration::from_nanos(per_job * 1_000_000_000 / rate);
        let default = if period * 2 <= SLACK { SLACK } else { Duration::ZERO };
        self.slack_us.map_or(default, Duration::from_micros)
    }
}

/// Runs the load.
pub(super) fn run(args: &RateArgs) -> anyhow::Result<ExitCode> {
    let is_interrupted = load::interrupted()?;
    let load = Arc::new(load_of(args)?);
    let control = Arc::new(Control::new(args.numjobs));
    let config = reactor::Config {
        entries: args.batch.max(256),
        spin: args.poll_us,
        ..reactor::Config::default()
    };
    let mut handles = Vec::new();
    for index in 0..args.numjobs {
        let job = Job { index, load: Arc::clone(&load), control: Arc::clone(&control) };
        let name = format!("rate-{index}");
        handles.push(reactor::thread::spawn(&name, &config, move || job::run(job))?);
    }
    let measured = watch(args, &control, &is_interrupted)?;
    let results = load::join(handles)?;
    report::print(args, load.straight.is_some(), &measured, results)?;
    Ok(ExitCode::SUCCESS)
}

/// Opens the devices and checks that the load is possible.
fn load_of(args: &RateArgs) -> anyhow::Result<Load> {
    let sources: anyhow::Result<Vec<Source>> =
        args.devices.iter().map(|spec| Source::open(spec, args)).collect();
    let sources = sources?;
    let count = sources.len() as u32;
    let units = args.units.unwrap_or(count);
    ensure!(units >= count, "--units {units} is less than one for each of {count} devices");
    let mut parts = Vec::new();
    for index in 0..units {
        // Units of a device are spread over the turn, so that neighbours in time are on others.
        let device = (index % count) as usize;
        let of_device = units / count + u32::from(index % count < units % count);
        let geometry = sources[device].geometry();
        let block = u64::from(geometry.block_size);
        if args.bs == 0 || !args.bs.is_multiple_of(block) || args.bs > 1 << 30 {
            bail!("--bs has to be a multiple of the block size, {block}, and at most 1GiB");
        }
        let requests = geometry.size() / u64::from(of_device) / args.bs;
        ensure!(
            requests > 0,
            "{} is too small for {of_device} units of {} bytes",
            args.devices[device],
            args.bs
        );
        let start = u64::from(index / count) * requests * args.bs;
        parts.push(job::Unit { device, start, requests });
    }
    // All of them or none: one loop makes them all. Spinning is the reactor's.
    let can_be = args.poll_us.is_never();
    let straight = sources.iter().map(|it| it.straight().filter(|_| can_be)).collect();
    Ok(Load { args: args.clone(), straight, sources, units: parts })
}

/// What the run as a whole took.
struct Measured {
    seconds: f64,
    cpu_seconds: f64,
    /// Requests that completed in it.
    ios: u64,
    /// By the second, whole seconds only.
    series: Vec<u64>,
    is_interrupted: bool,
}

/// Has all jobs begin together, and measures.
fn watch(
    args: &RateArgs,
    control: &Control,
    is_interrupted: &AtomicBool,
) -> anyhow::Result<Measured> {
    let (ramp, runtime) =
        (load::seconds("ramp-time", args.ramp_time)?, load::seconds("runtime", args.runtime)?);
    let is_over = || is_interrupted.load(Ordering::Relaxed) || control.is_stopping();
    let wait_until = |moment: reactor::time::Instant| {
        while !is_over() && reactor::time::now() < moment {
            std::thread::sleep(WATCH_PERIOD.min(moment.since(reactor::time::now())));
        }
    };
    while !is_over() && control.ready() < args.numjobs {
        std::thread::sleep(Duration::from_millis(1));
    }
    let begin = reactor::time::now() + START_DELAY;
    let (start, end) = (begin + ramp, begin + ramp + runtime);
    control.begin(begin, start, end);
    wait_until(start);
    let (done_before, cpu_before, from) =
        (control.done(), load::cpu_seconds(), reactor::time::now());
    let mut series = Vec::new();
    let mut counted = done_before;
    loop {
        let next = from + Duration::from_secs(series.len() as u64 + 1);
        wait_until(next.min(end));
        if is_over() || next > end {
            break;
        }
        let done = control.done();
        series.push(done - counted);
        counted = done;
    }
    wait_until(end);
    let (done, cpu, to) = (control.done(), load::cpu_seconds(), reactor::time::now());
    if is_over() {
        control.stop();
    }
    Ok(Measured {
        seconds: to.since(from).as_secs_f64(),
        cpu_seconds: cpu - cpu_before,
        ios: done - done_before,
        series,
        is_interrupted: is_interrupted.load(Ordering::Relaxed),
    })
}
