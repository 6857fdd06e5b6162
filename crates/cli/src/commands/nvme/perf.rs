//! `perf`: puts load on a namespace and measures it.
//!
//! Each job is a thread with a reactor, a controller and queue pairs of its own, and `iodepth`
//! tasks that keep one request each in flight. Latency runs from the creation of a request until
//! its task continues. A task creates its next request at once, so one clock reading serves both.

mod job;
mod report;

use super::args::{ConnectArgs, NamespaceArgs, check_destroy};
use super::foreign::OutputArgs;
use super::paths::PathArgs;
use crate::load::{self, Mode};
use anyhow::bail;
use clap::Args;
use eval::threads;
use eval::units::parse_bytes;
use job::{Job, Region};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Pause between two checks for the end of the run.
const WATCH_PERIOD: Duration = Duration::from_millis(20);

#[derive(Clone, Debug, Args)]
pub(crate) struct PerfArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    paths: PathArgs,
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// Kind of load; --rwmixread sets the mix of `randrw`
    #[arg(long, visible_alias = "readwrite", value_enum, default_value_t = Mode::Randread)]
    rw: Mode,
    /// Percent of reads for --rw randrw
    #[arg(long, value_name = "PERCENT", default_value_t = 50,
          value_parser = clap::value_parser!(u8).range(0..=100))]
    rwmixread: u8,
    /// Bytes of a request
    #[arg(long, visible_alias = "blocksize", value_name = "BYTES", default_value = "4k",
          value_parser = parse_bytes)]
    bs: u64,
    /// Number of requests in flight per job
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=4095))]
    iodepth: u16,
    /// Number of jobs: threads with their own controllers
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    numjobs: u16,
    /// Seconds to measure
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    runtime: f64,
    /// Seconds of load before the measurement
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    ramp_time: f64,
    /// Bytes of the namespace to use, from its start [default: all]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    size: Option<u64>,
    /// Write a pattern that depends on offset and --seed and read it back at the end; reads must
    /// find that pattern
    #[arg(long)]
    verify: bool,
    /// Seed of offsets and pattern
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Microseconds to spin for completions before sleeping, or auto: only while that is cheaper
    /// than a wake-up
    #[arg(long, value_name = "US|auto", default_value_t)]
    poll_us: reactor::Spin,
    /// CPUs to pin the jobs to, in turn, e.g. 1,2
    #[arg(long, value_name = "CPU,…", value_delimiter = ',')]
    cpus: Vec<usize>,
    /// Confirm writes by a name of the namespace (UUID, NGUID, EUI64) or the controller's serial
    /// number
    #[arg(long, value_name = "NAME")]
    destroy: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
    /// With --json, print a histogram: pairs of a latency in ns, with two significant digits, and a
    /// number of requests
    #[arg(long)]
    histogram: bool,
}

/// Runs the load.
pub(crate) fn run(mut args: PerfArgs) -> anyhow::Result<()> {
    let is_json = args.output.is_json()?;
    if args.histogram && !is_json {
        anyhow::bail!("--histogram needs --json");
    }
    args.connect.raise_queue_size(args.iodepth);
    let region = region(&args)?;
    let is_interrupted = load::interrupted()?;
    let control = Arc::new(job::Control::new(args.numjobs));
    let mut handles = Vec::new();
    for index in 0..args.numjobs {
        let job = Job {
            index: u64::from(index),
            args: args.clone(),
            region: region.clone(),
            control: Arc::clone(&control),
        };
        let config = reactor::Config { spin: args.poll_us, ..reactor::Config::default() };
        let name = format!("perf-{index}");
        handles.push(reactor::thread::spawn(&name, &config, move || job::run(job))?);
    }
    let measured = watch(&args, &control, &is_interrupted)?;
    let results = threads::join(handles)?;
    report::print(&args, &measured, results)
}

/// Examines the namespace once and checks that the load is possible.
fn region(args: &PerfArgs) -> anyhow::Result<Region> {
    super::block_on(async {
        let (controller, namespace) =
            super::paths::open(&args.connect, &args.paths, &args.namespace).await?;
        if args.rw.writes() {
            check_destroy(args.destroy.as_deref(), &namespace)?;
        }
        let geometry = namespace.geometry();
        let block = u64::from(geometry.block_size);
        if args.bs == 0 || !args.bs.is_multiple_of(block) || args.bs > 1 << 30 {
            bail!("--bs must be a multiple of the block size, {block}, and at most 1G");
        }
        let size = args.size.unwrap_or(geometry.size()).min(geometry.size());
        let requests = size / args.bs;
        if requests < u64::from(args.numjobs) {
            bail!("{size} bytes are too few for {} job(s) of {} bytes", args.numjobs, args.bs);
        }
        let nsid = namespace.nsid();
        controller.disconnect().await?;
        Ok(Region { nsid, requests })
    })
}

/// The duration and results of the run as a whole.
pub(crate) struct Measured {
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: f64,
    /// Requests per second, for whole seconds only.
    pub(crate) series: Vec<u64>,
    pub(crate) is_interrupted: bool,
}

/// Starts the measurement when all jobs are connected and warm, and ends it.
fn watch(
    args: &PerfArgs,
    control: &job::Control,
    is_interrupted: &AtomicBool,
) -> anyhow::Result<Measured> {
    let (ramp, runtime) =
        (load::seconds("ramp-time", args.ramp_time)?, load::seconds("runtime", args.runtime)?);
    let is_over = || is_interrupted.load(Ordering::Relaxed) || control.is_stopping();
    let wait = |duration: Duration| {
        let start = reactor::time::now();
        while !is_over() && start.elapsed() < duration {
            std::thread::sleep(WATCH_PERIOD.min(duration.saturating_sub(start.elapsed())));
        }
    };
    while !is_over() && control.connected() < u64::from(args.numjobs) {
        std::thread::sleep(Duration::from_millis(1));
    }
    wait(ramp);
    let (start, cpu_start) = (reactor::time::now(), threads::cpu_seconds());
    control.measure();
    let mut series = Vec::new();
    let mut counted = 0;
    while !is_over() && start.elapsed() < runtime {
        let next = Duration::from_secs(series.len() as u64 + 1);
        wait(next.min(runtime).saturating_sub(start.elapsed()));
        if !is_over() && start.elapsed() >= next {
            let done = control.done();
            series.push(done - counted);
            counted = done;
        }
    }
    let (took, cpu) = (start.elapsed().as_secs_f64(), threads::cpu_seconds() - cpu_start);
    control.stop();
    let is_interrupted = is_interrupted.load(Ordering::Relaxed);
    Ok(Measured { seconds: took, cpu_seconds: cpu, series, is_interrupted })
}
