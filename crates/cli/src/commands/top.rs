//! `tsumugi top`: shows what a job's nodes do at the moment.

use super::stats::{as_json, parse_seconds};
use crate::deploy::find::{self, FoundJob};
use crate::deploy::job::{FindArgs, JobDir};
use crate::deploy::remote;
use crate::deploy::status::Status;
use crate::observe::show;
use anyhow::bail;
use clap::Args;
use metrics::{Counts, Family, Running, Snapshot};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

/// Number of operations in a frame.
const OPERATIONS_MAX: usize = 15;
/// Number of waits in a frame.
const WAITS_MAX: usize = 10;
/// A frame does not show waits of operations that have run for less.
const WAIT_MIN_NS: u64 = 10_000_000;
/// Moves the cursor to the upper left corner and clears the screen below it.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Show the activity of a job's nodes: operations, latencies, local and remote bytes, waits.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
    tsumugi top                          the job of this shell, until Ctrl-C
    tsumugi top --job 4711 --interval 5
    tsumugi top --once                   one frame, for a log
    tsumugi top --once --json            for programs

A frame shows the operations since the previous frame: for each node the kernel's requests with \
their latencies, calls to the metadata service, local and remote bytes, and running operations; \
then operations of all nodes by their total time; then operations that have run for 10 ms or more, \
with their waits.

Exit codes:
    0  shown
    1  there is no such job, or it does not answer
    2  wrong usage")]
pub(crate) struct TopArgs {
    #[command(flatten)]
    find: FindArgs,
    /// Seconds between two frames
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = parse_seconds)]
    interval: Duration,
    /// Print one frame and end
    #[arg(long)]
    once: bool,
    /// Print JSON, one object per frame
    #[arg(long)]
    json: bool,
}

/// What one process did between two snapshots.
struct Part {
    name: String,
    done: Vec<Counts>,
    now: Snapshot,
    over: Duration,
}

/// Runs `tsumugi top`.
pub(crate) fn run(args: &TopArgs) -> anyhow::Result<ExitCode> {
    let dir = match find::job(&args.find)? {
        FoundJob::Own(dir) => dir,
        FoundJob::OfUser(user, name) => bail!(
            "job {} belongs to {1}: run `tsumugi top` as {1}, or use `tsumugi status`",
            name.job,
            user.name
        ),
    };
    if !dir.path().exists() {
        bail!("there is no job {} (looked in {})", dir.job(), find::looked_in(&args.find));
    }
    let is_live = !args.once && !args.json && std::io::stdout().is_terminal();
    let mut before = look(&dir)?;
    loop {
        std::thread::sleep(args.interval);
        let (status, now) = look(&dir)?;
        let parts = parts(&before.1, &now);
        if args.json {
            println!("{}", serde_json::to_string(&frame(&status, &parts))?);
        } else {
            let text = text(&status, &parts);
            print!("{}{text}", if is_live { CLEAR } else { "" });
        }
        if args.once || crate::print::lost().is_some() {
            return Ok(ExitCode::SUCCESS);
        }
        before = (status, now);
    }
}

/// The snapshots of all processes, by their names.
type Looks = BTreeMap<String, Snapshot>;

fn look(dir: &JobDir) -> anyhow::Result<(Status, Looks)> {
    let mut status = remote::status(dir)?;
    let mut looks = Looks::new();
    for node in &mut status.nodes {
        looks.extend(node.activity.take().map(|activity| (node.name.clone(), activity)));
    }
    let meta = status.meta.as_mut().and_then(|meta| meta.activity.take());
    looks.extend(meta.map(|activity| ("meta".to_owned(), activity)));
    if looks.is_empty() {
        bail!("no process of job {} answers: see `tsumugi status`", dir.job());
    }
    Ok((status, looks))
}

fn parts(before: &Looks, now: &Looks) -> Vec<Part> {
    let mut parts = Vec::new();
    for (name, now) in now {
        // A restarted process has counted less, and began later.
        let Some(before) = before.get(name).filter(|before| before.at_ns < now.at_ns) else {
            continue;
        };
        let over = Duration::from_nanos(now.at_ns - before.at_ns);
        let done = now.operations_since(before);
        parts.push(Part { name: name.clone(), done, now: now.clone(), over });
    }
    parts
}

impl Part {
    /// Returns the sum of all operations of a family.
    fn family(&self, family: Family) -> Counts {
        let mut all = Counts::none(family, "all");
        self.done.iter().filter(|one| one.family == family).for_each(|one| all.add(one));
        all
    }

    /// Returns the bytes per second of these operations.
    fn rate(&self, family: Family, names: [&str; 2]) -> f64 {
        let own = |one: &&Counts| one.family == family && names.contains(&one.name.as_str());
        let bytes: u64 = self.done.iter().filter(own).map(|one| one.bytes).sum();
        bytes as f64 / self.seconds()
    }

    fn local(&self) -> f64 {
        self.rate(Family::Client, ["read_local", "write_local"])
    }

    fn remote(&self) -> f64 {
        self.rate(Family::Client, ["read_remote", "write_remote"])
    }

    fn seconds(&self) -> f64 {
        self.over.as_secs_f64().max(1e-9)
    }

    /// Returns the operations that have run long enough to be shown.
    fn waits(&self) -> impl Iterator<Item = &Running> {
        self.now.running.iter().filter(|one| !one.is_inner && one.ns >= WAIT_MIN_NS)
    }
}

/// Returns the operations of all processes together, sorted by total time, largest first.
fn together(parts: &[Part]) -> Vec<Counts> {
    let mut all: BTreeMap<(Family, &str), Counts> = BTreeMap::new();
    for one in parts.iter().flat_map(|part| &part.done) {
        let sum = all.entry((one.family, &one.name));
        sum.or_insert_with(|| Counts::none(one.family, &one.name)).add(one);
    }
    let mut all: Vec<_> = all.into_values().collect();
    all.sort_by_key(|one| std::cmp::Reverse(one.sum_ns));
    all
}

fn text(status: &Status, parts: &[Part]) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    let seconds = parts.first().map_or(0.0, Part::seconds);
    let _ = writeln!(
        text,
        "job {}: {} of {} nodes answer, {seconds:.1} s",
        status.job,
        parts.iter().filter(|part| part.name != "meta").count(),
        status.nodes.len()
    );
    let _ = writeln!(
        text,
        "{:12} {:>9} {:>9} {:>9} {:>9} {:>12} {:>12} {:>8}",
        "node", "fuse/s", "p50", "p99", "calls/s", "local/s", "remote/s", "running"
    );
    for part in parts {
        let is_meta = part.name == "meta";
        let fuse = part.family(if is_meta { Family::Serve } else { Family::Fuse });
        let calls = part.family(if is_meta { Family::Serve } else { Family::Call });
        let quantile = |share| show::time(fuse.latencies.quantile_ns(share));
        let _ = writeln!(
            text,
            "{:12} {:>9} {:>9} {:>9} {:>9} {:>12} {:>12} {:>8}",
            part.name,
            if is_meta { "-".into() } else { show::number(fuse.count() as f64 / part.seconds()) },
            quantile(0.5),
            quantile(0.99),
            show::number(calls.count() as f64 / part.seconds()),
            show::bytes(part.local()),
            show::bytes(part.remote()),
            part.now.running.iter().filter(|one| !one.is_inner).count()
        );
    }
    for node in status.nodes.iter().filter(|node| !parts.iter().any(|it| it.name == node.name)) {
        let _ = writeln!(text, "{:12} does not answer", node.name);
    }
    let _ = writeln!(text, "\n{}", show::head(true));
    let over = parts.first().map(|part| part.over);
    for one in together(parts).iter().take(OPERATIONS_MAX) {
        let _ = writeln!(text, "{}", show::line(one, over));
    }
    let mut waits: Vec<_> =
        parts.iter().flat_map(|part| part.waits().map(move |one| (&part.name, one))).collect();
    waits.sort_by_key(|(_, one)| std::cmp::Reverse(one.ns));
    if !waits.is_empty() {
        let _ = writeln!(text, "\nwaits");
    }
    for (name, one) in waits.iter().take(WAITS_MAX) {
        let _ = writeln!(text, "  {name}: {}", show::running(one));
    }
    text
}

fn frame(status: &Status, parts: &[Part]) -> serde_json::Value {
    let part = |part: &Part| {
        let fuse = part.family(Family::Fuse);
        json!({ "name": part.name, "seconds": part.seconds(),
            "fuse": as_json(&fuse), "calls": part.family(Family::Call).count(),
            "local_bytes_per_second": part.local(), "remote_bytes_per_second": part.remote(),
            "operations": part.done.iter().map(as_json).collect::<Vec<_>>(),
            "waits": part.waits().collect::<Vec<_>>() })
    };
    let silent = status.nodes.iter().filter(|node| !parts.iter().any(|it| it.name == node.name));
    json!({ "job": status.job, "parts": parts.iter().map(part).collect::<Vec<_>>(),
        "silent": silent.map(|node| &node.name).collect::<Vec<_>>(),
        "operations": together(parts).iter().map(as_json).collect::<Vec<_>>() })
}
