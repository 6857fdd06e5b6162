//! `tsumugi run`: a job's file system for one command.

use super::up;
use crate::deploy::job::JobDir;
use crate::deploy::options::UpArgs;
use crate::deploy::process::Process;
use crate::deploy::remote;
use crate::deploy::stop::{Stop, Stopped};
use crate::print::words;
use crate::signals;
use crate::staging::{self, Options, Tally};
use anyhow::{Context, bail};
use clap::Args;
use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::Duration;

/// Time for nodes to commit and end before they are killed.
const DOWN_WITHIN: Duration = Duration::from_secs(30);
/// Threads that stage.
const THREADS: usize = 8;

/// Exit code: `run` itself failed, not the command.
const OWN_FAILURE: u8 = 125;
/// Exit code: the command cannot be executed.
const NOT_EXECUTABLE: u8 = 126;
/// Exit code: there is no such command.
const NOT_FOUND: u8 = 127;
/// Added to the number of the signal that killed the command.
const SIGNALLED: i32 = 128;

/// Create a job's file system, run a command on it, and take it down again.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    up: UpArgs,
    /// Copy SRC to DST in the file system before the command; may be repeated
    #[arg(long, value_name = "SRC:DST", value_parser = parse_staging)]
    stage_in: Vec<Staging>,
    /// Copy SRC of the file system to DST if the command succeeds; may be repeated
    #[arg(long, value_name = "SRC:DST", value_parser = parse_staging)]
    stage_out: Vec<Staging>,
    /// Copy results out even if the command fails or a signal ends it
    #[arg(long, requires = "stage_out")]
    stage_out_always: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// What `--help` shows after the options.
const HELP: &str = "\
Examples:
    tsumugi run --local 2 -- sh -c 'cd $TSUMUGI_MOUNT && make -j8'
    tsumugi run --nodes node1,node2 --stage-in inputs:/ --stage-out results:. -- ./job

The command finds the job's name in $TSUMUGI_JOB and the mount of the first node in \
$TSUMUGI_MOUNT. Paths in the file system are relative to that mount. Without --job the job's name \
is run-PID. `run` forwards signals to the command, but not \
SIGHUP if nohup started it. At the end the file system is always taken \
down, even after kill -9.

Exit codes: that of the command, 128 plus the number of a signal that killed it, or
    125  the file system could not be created, staging failed or was stopped by a signal, or something \
is left, which the output names; but if the command failed, its own code
    126  the command cannot be executed
    127  there is no such command
    130  stopped by Ctrl-C or a signal before the command started
    2    wrong usage";

/// What to copy, and its destination.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Staging {
    from: PathBuf,
    to: PathBuf,
}

fn parse_staging(text: &str) -> Result<Staging, String> {
    match text.split_once(':') {
        Some((from, to)) if !from.is_empty() && !to.is_empty() => {
            Ok(Staging { from: from.into(), to: to.into() })
        }
        _ => Err("two paths with a colon between them are needed, as SRC:DST".into()),
    }
}

/// How the command ended.
struct Ended {
    code: u8,
    is_success: bool,
}

/// Runs `tsumugi run`.
pub(crate) fn run(mut args: RunArgs) -> anyhow::Result<ExitCode> {
    crate::confine::keep_files_private();
    args.up.owner_pid = Some(std::process::id().cast_signed());
    if args.up.job.job.is_none() {
        args.up.job.job = Some(format!("run-{}", std::process::id()));
    }
    let stop = Stop::on_signals()?;
    let code = match drive(&args, &stop) {
        Ok(code) => code,
        Err(error) if error.is::<Stopped>() => {
            eprintln!("tsumugi: {error}; undone");
            130
        }
        Err(error) => {
            eprintln!("tsumugi: {}", words(&error));
            OWN_FAILURE
        }
    };
    Ok(ExitCode::from(code))
}

fn drive(args: &RunArgs, stop: &Stop) -> anyhow::Result<u8> {
    let dir = args.up.job.dir()?;
    let outcome = up::make(&args.up, &dir, stop)?;
    let first = outcome.nodes.first().context("the job has no nodes")?;
    eprintln!(
        "tsumugi: job {}: {} nodes ready in {:.2} s, mount {}",
        dir.job(),
        outcome.nodes.len(),
        outcome.ready.as_secs_f64(),
        first.mount.display()
    );
    let result = with_job(args, &dir, &first.mount, stop);
    let is_gone = take_down(&dir);
    match result {
        Ok(ended) if ended.is_success && !is_gone => Ok(OWN_FAILURE),
        Ok(ended) => Ok(ended.code),
        Err(error) => Err(error),
    }
}

fn with_job(args: &RunArgs, dir: &JobDir, mount: &Path, stop: &Stop) -> anyhow::Result<Ended> {
    for staging in &args.stage_in {
        stage(&staging.from, &inside(mount, &staging.to), stop)?;
    }
    let ended = execute(args, dir, mount, stop)?;
    if !ended.is_success && !args.stage_out_always {
        return Ok(ended);
    }
    // The pool is taken down afterwards, so a failure must not keep the others from being copied.
    let mut is_whole = true;
    for staging in &args.stage_out {
        if let Err(error) = stage(&inside(mount, &staging.from), &staging.to, stop) {
            let from = staging.from.display();
            eprintln!("tsumugi: not all of {from} is staged out: {}", words(&error));
            is_whole = false;
        }
    }
    // A script that sees only one number needs the command's own failure more.
    let code = if ended.is_success && !is_whole { OWN_FAILURE } else { ended.code };
    Ok(Ended { code, ..ended })
}

/// Returns a path below the mount. The given path may begin with a slash.
fn inside(mount: &Path, path: &Path) -> PathBuf {
    mount.join(path.strip_prefix("/").unwrap_or(path))
}

fn stage(from: &Path, to: &Path, stop: &Stop) -> anyhow::Result<()> {
    let pairs = staging::pairs(&[from.to_path_buf()], to)?;
    let options = Options { threads: THREADS, checksum: false, recursive: true, xattrs: true };
    let tally = Tally::default();
    staging::copy(&pairs, &options, &tally, stop);
    stop.check()?;
    let summary = tally.summary();
    for failure in &summary.errors {
        eprintln!("tsumugi: {}: {}", failure.path, failure.error);
    }
    if summary.failures > 0 {
        bail!("{} of {} could not be copied to {}", summary.failures, from.display(), to.display());
    }
    Ok(())
}

/// Runs the command and forwards signals to it.
fn execute(args: &RunArgs, dir: &JobDir, mount: &Path, stop: &Stop) -> anyhow::Result<Ended> {
    stop.check()?;
    let (program, arguments) = args.command.split_first().context("there is no command")?;
    let mut all = vec![SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];
    // The command inherits that it is ignored, as from nohup(1).
    if !signals::is_ignored(SIGHUP)? {
        all.push(SIGHUP);
    }
    let mut signals =
        signal_hook::iterator::Signals::new(all).context("cannot watch for signals")?;
    let mut command = Command::new(program);
    command.args(arguments).env("TSUMUGI_JOB", dir.job()).env("TSUMUGI_MOUNT", mount);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            eprintln!("tsumugi: cannot run {}: {error}", program.display());
            let is_absent = error.kind() == io::ErrorKind::NotFound;
            let code = if is_absent { NOT_FOUND } else { NOT_EXECUTABLE };
            return Ok(Ended { code, is_success: false });
        }
    };
    let handle = signals.handle();
    let process = identify(&mut child)?;
    let status = std::thread::scope(|scope| {
        scope.spawn(move || signals.forever().for_each(|signal| hand_on(signal, process)));
        let status = wait(&mut child);
        handle.close();
        status
    });
    // Signals that came meanwhile were for the command.
    stop.forget();
    let status = status.context("cannot wait for the command")?;
    Ok(Ended { code: code_of(status), is_success: status.success() })
}

/// Returns the command's process. Without it no signal could be forwarded: then the command is ended,
/// because its file system goes.
fn identify(child: &mut Child) -> anyhow::Result<Process> {
    Process::of(child.id().cast_signed()).map_err(|error| {
        let _ = child.kill();
        let _ = wait(child);
        anyhow::Error::new(error).context("cannot find the command in /proc")
    })
}

/// Forwards a signal to the command, unless it comes from a terminal, which sends its signals to
/// the command too: both are in one process group.
fn hand_on(signal: i32, process: Process) {
    let is_terminals = matches!(signal, SIGINT | SIGQUIT) && is_in_foreground();
    if !is_terminals && let Some(signal) = Signal::from_named_raw(signal) {
        process.signal(signal);
    }
}

/// Returns whether a terminal sends its signals to this process group (`proc_pid_stat(5)`, fields 5
/// and 8).
fn is_in_foreground() -> bool {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
    let mut fields = fields.split_ascii_whitespace().skip(2);
    let (group, foreground) = (fields.next(), fields.nth(2));
    group.is_some() && group == foreground
}

fn wait(child: &mut Child) -> io::Result<ExitStatus> {
    loop {
        match child.wait() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| SIGNALLED + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(OWN_FAILURE)
}

/// Takes the job down. Returns whether nothing is left.
fn take_down(dir: &JobDir) -> bool {
    match remote::down(dir, DOWN_WITHIN, None) {
        Ok(report) => {
            for name in &report.killed {
                eprintln!("tsumugi: killed {name}");
            }
            for left in &report.left {
                eprintln!("tsumugi: left behind: {left}");
            }
            report.left.is_empty()
        }
        Err(error) => {
            eprintln!("tsumugi: left behind {}: {}", dir.path().display(), words(&error));
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alone;

    /// Goal: a command that cannot be found in `/proc` does not go on without its file system.
    #[test]
    fn a_lost_command_is_ended() {
        alone::run("commands::run::tests::loses_its_command");
    }

    #[test]
    #[ignore = "a part of another test"]
    fn loses_its_command() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(alone::without_descriptors(|| identify(&mut child)).is_err());
        let ended = child.try_wait().unwrap().expect("it has ended");
        assert_eq!(ended.signal(), Some(Signal::KILL.as_raw()));
    }

    /// Goal: two paths are separated at the first colon, and paths inside stay inside the mount.
    #[test]
    fn staging_names_two_paths() {
        let staging = parse_staging("in:/a:b").unwrap();
        assert_eq!((staging.from, staging.to), ("in".into(), "/a:b".into()));
        for bad in ["", "a", ":b", "a:"] {
            assert!(parse_staging(bad).is_err(), "{bad:?}");
        }
        assert_eq!(inside(Path::new("/m"), Path::new("/a/b")), Path::new("/m/a/b"));
        assert_eq!(inside(Path::new("/m"), Path::new("a")), Path::new("/m/a"));
    }
}
