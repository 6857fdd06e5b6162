//! `tsumugi trace`: shows operations of a mount, or of another service of a job, as they end.

use crate::deploy::ask::Service;
use crate::observe::show;
use crate::output::plain;
use anyhow::Context;
use clap::Args;
use metrics::trace::Event;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Show operations as they end, with their times.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
    tsumugi trace /mnt/job                            until Ctrl-C
    tsumugi trace /mnt/job --family fuse              requests of the kernel only
    tsumugi trace /mnt/job --slower 10                operations of 10 ms and more, with their waits
    tsumugi trace /mnt/job --for 5 --json >trace.json one object per line
    tsumugi trace /run/tsumugi/4711/meta-service.sock the metadata service of job 4711

The output shows an operation when it has ended, below its waits, which are indented. Only one \
trace at a time can run on a service. While it runs, each operation of that service costs a little \
more.

Exit codes:
    0  ended as requested
    1  the mount's process does not answer, or another trace is running on it
    2  wrong usage")]
pub(crate) struct TraceArgs {
    /// Path in a mount, or a service's socket
    #[arg(value_name = "MNT")]
    place: PathBuf,
    /// Show only operations of this family
    #[arg(long, value_name = "NAME", value_parser = FAMILIES)]
    family: Option<String>,
    /// Show only operations that took at least MS milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    slower: f64,
    /// End after SECONDS
    #[arg(long = "for", value_name = "SECONDS", value_parser = super::stats::parse_seconds)]
    lasts: Option<Duration>,
    /// End after N operations
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Print JSON, one object per line
    #[arg(long)]
    json: bool,
}

const FAMILIES: [&str; 9] =
    ["fuse", "client", "call", "serve", "recall", "return", "target", "host", "union"];

/// Runs `tsumugi trace`.
pub(crate) fn run(args: &TraceArgs) -> anyhow::Result<ExitCode> {
    let deadline = args.lasts.map(|lasts| Instant::now() + lasts);
    let mut left = args.count.unwrap_or(u64::MAX);
    let mut begun_ns = None;
    for look in Service::at(&args.place)?.trace()? {
        let look = look.context("the service has ended")?;
        if look.dropped > 0 {
            eprintln!(
                "tsumugi: {} operations are missing: there were too many to show",
                look.dropped
            );
        }
        for event in look.events.iter().filter(|event| args.wants(event)) {
            if left == 0 {
                return Ok(ExitCode::SUCCESS);
            }
            left -= 1;
            print(args, event, *begun_ns.get_or_insert(event.started_ns))?;
        }
        if left == 0 || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Ok(ExitCode::SUCCESS);
        }
    }
    anyhow::bail!("the service has ended")
}

impl TraceArgs {
    fn wants(&self, event: &Event) -> bool {
        self.family.as_ref().is_none_or(|family| event.family.name() == family)
            && event.ns as f64 >= self.slower * 1e6
    }
}

fn print(args: &TraceArgs, event: &Event, begun_ns: u64) -> anyhow::Result<()> {
    if args.json {
        println!("{}", plain(&serde_json::to_string(event)?));
        return Ok(());
    }
    let at = event.started_ns.cast_signed().wrapping_sub(begun_ns.cast_signed());
    let indent = if event.is_inner { "  " } else { "" };
    let what = show::subject(event.family, &event.name, event.subject);
    let pid = if event.pid == 0 { String::new() } else { format!(" thread {}", event.pid) };
    let bytes = match event.bytes {
        0 => String::new(),
        bytes => format!(" {}", show::bytes(bytes as f64)),
    };
    let errno = match event.errno {
        0 => String::new(),
        errno => format!(" = {}", std::io::Error::from_raw_os_error(errno)),
    };
    let wait = event.longest.as_ref().map_or(String::new(), |it| format!("; {}", show::wait(it)));
    let (at, took) = (at as f64 / 1e9, show::time(event.ns));
    println!("{at:12.6} {took:>9} {indent}{what}{pid}{bytes}{errno}{wait}");
    Ok(())
}
