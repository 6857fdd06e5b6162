//! `tsumugi check`: checks the metadata of a pool, from the tree to free space, and with `--data`
//! all data against its checksums. The service of a running pool checks a snapshot of its store;
//! this command itself reads the store and devices of a stopped pool.

mod repair;
mod stopped;

use super::scrub;
use crate::deploy::job::JobDir;
use crate::deploy::scrub_record::json_of;
use crate::deploy::state::State;
use crate::print::words;
use crate::scrub::Progress;
use crate::scrub::reader::Look;
use ::meta::check::store::check;
use ::meta::check::{Area, Finding};
use anyhow::{Context, bail};
use clap::Args;
use protocol::admin::{Answer, Call, Contradiction};
use reactor::Runtime;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Exit code: the check is incomplete.
const UNCHECKED: u8 = 2;

/// Check a pool, running or stopped: its records, and with --data all of its data.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
    tsumugi check training                 a pool of this machine, running or stopped
    tsumugi check training --data          all of its data, too
    tsumugi check /var/tmp/job.meta        the directory of a stopped store
    tsumugi check /var/tmp/job.meta --repair
    tsumugi check job.meta --data --node node1.toml --node node2.toml
                                           and the devices of stopped nodes

Reads all records and compares them: names with inodes, inodes with extents, extents with used \
blocks, blocks with free space. Changes nothing. A running service checks a snapshot of its store, \
on a thread that yields to its other work, so changes during the check are not findings.

--data also reads all data and compares it with its checksums. Of a running pool it reads over the \
network, as `tsumugi scrub` does without --rate. Of a stopped pool it reads the devices of this \
machine; their nodes must have ended. Each finding names device, block, file and bytes.

--repair rebuilds what it can derive from other records: names, link counts, counts of data, \
states of blocks. Files that lost their names get new ones in /lost+found. A fault in a fact that \
only one record holds stays a finding. Before the first change, the command saves the old records \
in a file beside the store; --undo writes them back. The next start of the service ends all \
sessions.

Exit codes:
    0  nothing was found, or all of it was repaired
    1  findings are printed; unreadable data is a finding
    2  wrong usage, or the check is incomplete; the reason is printed")]
pub(crate) struct CheckArgs {
    /// Directory of a stopped metadata store, or the name of a pool on this machine
    #[arg(value_name = "STORE|JOB")]
    store: PathBuf,
    /// Base of the pools' directories [default: the user's runtime directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Read all data, and compare it with its checksums
    #[arg(long)]
    data: bool,
    /// Configuration of a stopped node whose devices are read; may be repeated [default: those of
    /// the pool's nodes on this machine]
    #[arg(long, value_name = "CONFIG.toml", requires = "data")]
    node: Vec<PathBuf>,
    /// Repair the records of a stopped store where this loses nothing more
    #[arg(long, conflicts_with = "data")]
    repair: bool,
    /// Undo a repair, from the file that the repair left beside the store
    #[arg(long, value_name = "FILE", conflicts_with_all = ["data", "repair"])]
    undo: Option<PathBuf>,
    /// Print JSON: an object per finding
    #[arg(long)]
    json: bool,
}

/// What to check.
enum Subject {
    /// The store of a stopped service, and the configurations of its nodes.
    Stopped { directory: PathBuf, nodes: Vec<PathBuf> },
    /// The pool of a running service.
    Running { dir: JobDir, state: Box<State> },
}

/// The result of a check.
struct Outcome {
    /// What was checked, in words.
    what: String,
    findings: Vec<Finding>,
    /// Number of all findings, if there are more than `findings` holds.
    count: u64,
    /// Why the check is incomplete, if it is.
    unchecked: Option<anyhow::Error>,
}

/// Runs `tsumugi check`.
pub(crate) fn run(args: &CheckArgs) -> ExitCode {
    crate::confine::keep_files_private();
    let outcome = subject(args).and_then(|subject| match subject {
        Subject::Stopped { directory, .. } if args.repair => repair::repair(&directory),
        Subject::Stopped { directory, nodes } => match &args.undo {
            Some(journal) => repair::undo(&directory, journal),
            None => of_stopped(args, &directory, &nodes),
        },
        Subject::Running { dir, .. } if args.repair || args.undo.is_some() => {
            bail!("job {} is running: stop its service before you repair the store", dir.job())
        }
        Subject::Running { dir, state } => of_running(args, &dir, &state),
    });
    match outcome {
        Ok(outcome) => print(args, &outcome),
        Err(error) => not_all(&error),
    }
}

/// Returns what to check.
fn subject(args: &CheckArgs) -> anyhow::Result<Subject> {
    if args.store.is_dir() {
        return Ok(Subject::Stopped { directory: args.store.clone(), nodes: args.node.clone() });
    }
    let name = args.store.to_str().filter(|name| !name.contains('/'));
    let Some(name) = name else { bail!("there is no directory {}", args.store.display()) };
    let dir = JobDir::new(Some(name), args.dir.as_deref())?;
    let state = State::read(&dir)?;
    let Some(state) = state else {
        bail!("there is no directory {name}, and no job {name} ({})", dir.path().display())
    };
    state.refuse_elsewhere()?;
    if state.living_meta().is_some() {
        if !args.node.is_empty() {
            bail!("job {name} is running, so its data is read over the network: omit --node");
        }
        return Ok(Subject::Running { dir, state: Box::new(state) });
    }
    let of_job = state.nodes.iter().map(|node| dir.join(&format!("{}.toml", node.name)));
    let nodes = if args.node.is_empty() { of_job.collect() } else { args.node.clone() };
    match state.meta {
        Some(meta) => Ok(Subject::Stopped { directory: meta.store, nodes }),
        None => bail!("the metadata service of job {name} is not on this machine"),
    }
}

fn of_stopped(args: &CheckArgs, directory: &Path, nodes: &[PathBuf]) -> anyhow::Result<Outcome> {
    let checked = check(directory).with_context(|| {
        format!(
            "cannot check the metadata store {} (to check a running pool, give the job's name)",
            directory.display()
        )
    })?;
    let commits = checked.commits.map_or(String::new(), |commits| format!(", {commits} commits"));
    let mut what = format!("{}: {} inodes{commits}", directory.display(), checked.inodes);
    let mut findings = checked.findings;
    let is_readable = !findings.iter().any(|finding| finding.area == Area::Commits);
    let mut unchecked = None;
    if args.data && is_readable {
        match stopped::compare(directory, nodes) {
            Ok(data) => {
                what = format!("{what}; {}", data.tally);
                findings.extend(data.findings);
            }
            Err(error) => unchecked = Some(error),
        }
    }
    let count = findings.len() as u64;
    Ok(Outcome { what, findings, count, unchecked })
}

fn of_running(args: &CheckArgs, dir: &JobDir, state: &State) -> anyhow::Result<Outcome> {
    let access = scrub::access(dir, state)?;
    let mut runtime = Runtime::new(&reactor::Config::default())?;
    let answer = runtime.block_on(access.call(&Call::Check))?;
    let (inodes, mut count, found) = match answer {
        Answer::Checked { inodes, count, found } => (inodes, count, found),
        Answer::Refused(reason) => bail!("the metadata service refuses: {reason}"),
        other => bail!("the metadata service answered {other:?}"),
    };
    let mut what = format!("job {}: {inodes} inodes", dir.job());
    let mut findings: Vec<Finding> = found.into_iter().map(finding).collect();
    let mut unchecked = None;
    if args.data {
        let mut progress = Progress::new();
        let mut of_data = Vec::new();
        let watch = |look: Look| {
            of_data.extend(look.found);
            progress.show(look.tally.read_bytes, look.live_bytes, of_data.len() as u64);
            Ok(())
        };
        let tally = runtime.block_on(scrub::read(&access, None, watch));
        progress.end();
        count += of_data.len() as u64;
        findings.extend(of_data);
        match tally {
            Ok(tally) => what = format!("{what}; {}", scrub::done(&tally)),
            Err(error) => unchecked = Some(error),
        }
    }
    Ok(Outcome { what, findings, count, unchecked })
}

/// Converts a finding of the service.
fn finding(contradiction: Contradiction) -> Finding {
    let Contradiction { area, inode, path, what } = contradiction;
    let area = Area::of_name(&area).unwrap_or_default();
    Finding { inode, path, ..Finding::general(area, what) }
}

fn print(args: &CheckArgs, outcome: &Outcome) -> ExitCode {
    let Outcome { what, findings, count, unchecked } = outcome;
    if args.json {
        for finding in findings {
            println!("{}", json_of(finding));
        }
    } else {
        print_words(findings);
        let found = match count {
            0 => "nothing was found".to_owned(),
            1 => "1 finding".to_owned(),
            count => format!("{count} findings"),
        };
        println!("{what}: {found}");
        if findings.iter().any(|finding| !matches!(finding.area, Area::Damage | Area::Unread)) {
            println!(
                "If the service still starts, copy the files out, end the job with `tsumugi down` \
                and create a new one; keep the store for a bug report. `tsumugi check --repair` \
                repairs what it can."
            );
        }
    }
    if let Some(error) = unchecked {
        return not_all(error);
    }
    if *count == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Reports why the check is incomplete.
fn not_all(error: &anyhow::Error) -> ExitCode {
    eprintln!("tsumugi: the check is incomplete: {}", words(error));
    ExitCode::from(UNCHECKED)
}

fn print_words(findings: &[Finding]) {
    let mut last = None;
    for finding in findings {
        let Finding { area, path, what, .. } = finding;
        if last.replace(*area) != Some(*area) {
            println!("{}: {}:", area.name(), area.meaning());
        }
        match path {
            Some(path) => println!("    {path}: {what}"),
            None => println!("    {what}"),
        }
    }
}
