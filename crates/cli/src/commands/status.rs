//! `tsumugi status`: shows a job's nodes, space and health.
//!
//! It works when parts of the job are dead: it always prints what this machine knows, and adds what
//! the metadata service knows if that answers.

use crate::deploy::find::{self, FoundJob};
use crate::deploy::job::FindArgs;
use crate::deploy::mounts::Condition;
use crate::deploy::remote;
use crate::deploy::size::human;
use crate::deploy::slurm;
use crate::deploy::status::{KeeperStatus, Life, NodeStatus, ScrubStatus, Status};
use crate::deploy::users;
use crate::observe::show;
use crate::output::{plain, print_json, relay};
use anyhow::bail;
use clap::Args;
use std::ffi::OsString;
use std::process::ExitCode;

/// Number of findings of a scrub to print.
const FOUND_MAX: usize = 10;
/// Number of slow operations to print.
const SLOW_MAX: usize = 5;
/// Operations that have run for longer are printed.
const LONG_NS: u64 = 1_000_000_000;

/// Show a job's nodes, space and health.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
    tsumugi status                        the job of this shell, see --job
    tsumugi status 4711 --json            job 4711, for programs

A node is running, DEAD, not started, or UNREACHABLE (its machine does not answer). A mount is mounted, \
not mounted, DEAD (its node is gone; calls get ENOTCONN) or SILENT (it does not answer). `tsumugi \
restart` starts dead processes again.

Exit codes:
    0  all is well
    1  there is no such job, or its state cannot be read
    2  wrong usage
    3  something is dead or offline; the rest is shown")]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    find: FindArgs,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Finds the job, or, on a node of a Slurm job that has only its own part of the job, that part.
fn find_job(find: &FindArgs) -> anyhow::Result<FoundJob> {
    let found = find::job(find)?;
    if let FoundJob::Own(dir) = &found
        && !dir.path().exists()
        && let Some(node) = slurm::node_here()
    {
        let mut of_node = find.clone();
        of_node.job = find.job.of(format!("{}.{node}", dir.job()));
        if let FoundJob::Own(part) = find::job(&of_node)?
            && part.path().exists()
        {
            return Ok(FoundJob::Own(part));
        }
    }
    Ok(found)
}

/// Runs `tsumugi status`.
pub(crate) fn run(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let dir = match find_job(&args.find)? {
        FoundJob::Own(dir) => dir,
        FoundJob::OfUser(user, name) => {
            let mut words: Vec<OsString> = vec!["status".into(), "--job".into(), name.job.into()];
            words.extend(["--dir".into(), name.base.into_os_string()]);
            words.extend(args.json.then(|| "--json".into()));
            return Ok(relay(&user.run(&words, users::REMOTE_GRACE)?));
        }
    };
    if !dir.path().exists() {
        bail!("there is no job {} (looked in {})", dir.job(), find::looked_in(&args.find));
    }
    let status = remote::status(&dir)?;
    if args.json {
        print_json(&serde_json::to_value(&status)?)?;
    } else {
        print(&status);
    }
    Ok(if status.is_well() { ExitCode::SUCCESS } else { ExitCode::from(3) })
}

fn print(status: &Status) {
    let state = if status.ready { "ready" } else { "not ready" };
    let owner = status.owner.as_ref().map_or(String::new(), |owner| format!(" for {owner}"));
    println!("job {}{owner} ({state}) in {}", status.job, status.dir.display());
    if let Some(meta) = &status.meta {
        let address = meta.address.map_or("-".into(), |address| address.to_string());
        println!("metadata service {address}: {}", life(meta.state, meta.pid));
        println!("  store {}", meta.store.display());
        print_engine(meta.engine.as_deref(), meta.engine_reason.as_deref(), "  ");
    }
    if let Some(note) = &status.note {
        println!("  {note}");
    }
    if let Some(trouble) = &status.trouble {
        println!("  {trouble}");
    }
    println!("nodes");
    for node in &status.nodes {
        print_node(node);
    }
    print_devices(status);
    println!(
        "data between nodes travels over {}: {}",
        status.fabric.transport,
        plain(&status.fabric.reason)
    );
    print_encryption(status);
    if let Some(space) = &status.space {
        println!(
            "space {} free of {}, {} inodes ({} live, {} dead, {} reserved)",
            human(space.free_bytes),
            human(space.total_bytes),
            space.inodes,
            human(space.live_bytes),
            human(space.dead_bytes),
            human(space.reserved_bytes)
        );
    }
    if let Some(keeper) = &status.keeper {
        print_keeper(keeper);
    }
    print_notes(status);
    if let Some(scrub) = &status.scrub {
        print_scrub(scrub);
    }
    print_slow(status);
    for session in &status.sessions {
        println!(
            "session {} on {}, silent for {} ms",
            session.session, session.node, session.silent_ms
        );
    }
    for file in &status.files_hit {
        println!("file hit: {} (device {})", file.path, file.device);
    }
    if let Some(trouble) = &status.files_hit_trouble {
        let known = if status.files_hit.is_empty() { "unknown" } else { "more are unknown" };
        println!("files hit: {known}: {trouble}");
    }
}

fn print_keeper(keeper: &KeeperStatus) {
    let life = if keeper.alive { "alive" } else { "DEAD" };
    let dead =
        if keeper.restarts_dead { "starts again what dies" } else { "leaves dead what dies" };
    println!("keeper {life} (process {}), {dead}", keeper.pid);
    if let Some(owner) = keeper.owner_pid {
        println!("  the job goes when process {owner} ends");
    }
    if let Some(job) = keeper.owner_slurm_job {
        println!("  the job goes when Slurm job {job} or its step ends");
    }
    if let Some(left) = keeper.lease_left_seconds {
        println!("  the job goes in {left} s unless its lease is renewed");
    }
    for death in &keeper.record.restarts {
        println!("  started again: {}: {}", death.part, death.cause);
    }
    for death in &keeper.record.given_up {
        println!("  STAYS DEAD after three deaths in a minute: {}: {}", death.part, death.cause);
    }
}

/// Prints what processes report as wrong, for example data without its checksum.
fn print_notes(status: &Status) {
    for node in &status.nodes {
        for note in node.activity.iter().flat_map(|activity| &activity.notes) {
            println!("{}: {}", node.name, plain(note));
        }
    }
}

/// Prints the progress of the last scrub, and its findings.
fn print_scrub(scrub: &ScrubStatus) {
    let ScrubStatus { running, record } = scrub;
    let read = human(record.tally.read_bytes);
    let state = match (running, record.ended, &record.failure) {
        (true, _, _) => {
            let pid = record.process.pid;
            format!("runs (process {pid}), {read} of {} read", human(record.live_bytes))
        }
        (false, _, Some(failure)) => format!("stopped after {read}: {failure}"),
        (false, Some(_), None) => format!("has ended, {read} read"),
        (false, None, None) => format!("died after {read}"),
    };
    let found = match record.findings_count {
        0 => "nothing was found".to_owned(),
        1 => "DAMAGED DATA: 1 finding".to_owned(),
        count => format!("DAMAGED DATA: {count} findings"),
    };
    println!("scrub {state}; {found}");
    for found in record.findings.iter().take(FOUND_MAX) {
        println!("  {}: {}", found.path.as_deref().unwrap_or("-"), found.finding);
    }
    if record.findings.len() > FOUND_MAX {
        println!("  and more: see `tsumugi status --json`");
    }
}

/// Prints the slowest operations of the last minute, of all processes, and operations that have run
/// for long.
fn print_slow(status: &Status) {
    let nodes = status.nodes.iter().map(|node| (node.name.as_str(), node.activity.as_ref()));
    let meta = status.meta.iter().map(|meta| ("meta", meta.activity.as_ref()));
    let parts: Vec<_> =
        nodes.chain(meta).filter_map(|(name, activity)| Some((name, activity?))).collect();
    let mut slow: Vec<_> =
        parts.iter().flat_map(|(name, it)| it.slow.iter().map(move |one| (name, one))).collect();
    slow.sort_by_key(|(_, one)| std::cmp::Reverse(one.ns));
    if !slow.is_empty() {
        println!("slowest operations of the last minute");
    }
    for (name, one) in slow.iter().take(SLOW_MAX) {
        println!("  {name:8} {}", show::slow(one));
    }
    for (name, activity) in &parts {
        let long = activity.running.iter().filter(|one| !one.is_inner && one.ns >= LONG_NS);
        for one in long.take(SLOW_MAX) {
            println!("  {name:8} runs: {}", show::running(one));
        }
    }
}

fn print_node(node: &NodeStatus) {
    if node.state == Life::Unreachable {
        let host = node.host.as_deref().unwrap_or("its machine");
        println!("  {}  UNREACHABLE: {host} does not answer", node.name);
        return;
    }
    let target = node.target.map_or("-".into(), |address| address.to_string());
    let mount = match node.mount_state {
        Condition::Mounted => "mounted",
        Condition::NotMounted => "not mounted",
        Condition::Dead => "DEAD mount: calls get ENOTCONN",
        Condition::Silent => "SILENT mount: it does not answer",
        Condition::Unknown => "not known",
    };
    println!(
        "  {}  {}  target {target}  {} ({mount})",
        node.name,
        life(node.state, node.pid),
        node.mount.display()
    );
    if let Some(transport) = &node.transport {
        let reason = node.transport_reason.as_deref().unwrap_or("-");
        println!("      FUSE transport {transport}: {reason}");
    }
    print_engine(node.engine.as_deref(), node.engine_reason.as_deref(), "      ");
}

fn print_engine(engine: Option<&str>, reason: Option<&str>, indent: &str) {
    if let Some(engine) = engine {
        println!("{indent}engine {engine}: {}", reason.unwrap_or("-"));
    }
}

fn print_devices(status: &Status) {
    if status.devices.is_empty() {
        return;
    }
    println!(
        "{:16} {:>9} {:>10} {:>11} {:>13} {:>14} {:>7}",
        "device of",
        "size",
        "read local",
        "read remote",
        "written local",
        "written remote",
        "refused"
    );
    for device in &status.devices {
        println!(
            "{:>3} {:12} {:>9} {:>10} {:>11} {:>13} {:>14} {:>7}{}",
            device.device,
            device.node,
            human(device.size_bytes),
            human(device.read_local_bytes),
            human(device.read_remote_bytes),
            human(device.written_local_bytes),
            human(device.written_remote_bytes),
            device.refused,
            if device.online { "" } else { "  OFFLINE" }
        );
    }
}

/// Prints whether data between nodes is encrypted, and which devices do not encrypt it.
fn print_encryption(status: &Status) {
    let plain: Vec<_> =
        status.devices.iter().filter(|device| device.encrypted == Some(false)).collect();
    if let Some(first) = plain.first() {
        let some = if plain.len() < status.devices.len() { ", at least of " } else { ": " };
        let more = if plain.len() > 1 { " and others" } else { "" };
        println!("data between nodes is NOT ENCRYPTED (--plain-data){some}{}{more}", first.node);
    } else if status.devices.iter().any(|device| device.encrypted == Some(true)) {
        println!("data between nodes is encrypted (TLS 1.3)");
    }
}

fn life(state: Life, pid: Option<i32>) -> String {
    let pid = pid.map_or("-".into(), |pid| pid.to_string());
    match state {
        Life::Running => format!("alive (process {pid})"),
        Life::Dead => format!("DEAD (was process {pid})"),
        Life::NotStarted => "not started".into(),
        Life::Unreachable => "UNREACHABLE".into(),
    }
}
