//! Starting the programs of a job and waiting until they report that they are ready.
//!
//! Their output goes to a log in the job's directory, and their reports are read from it: a pipe
//! would end with `up`, while the programs continue.

use super::job::JobDir;
use super::process::{DIRECTORY, MARK, Process};
use super::stop::Stop;
use crate::engine::insisted;
use anyhow::{Context, bail};
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Pause between two looks at the log, as a fraction of the time waited so far, with its limits.
/// Otherwise hundreds of nodes that start on one machine would keep it busy with looking.
const LOOK_PART: u32 = 8;
const LOOK_EVERY: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));
/// Number of lines of a log that an error shows.
const TAIL_LINES: usize = 12;
/// Bytes at the end of a log to search for them.
const TAIL_BYTES: usize = 4096;

/// The commands that outlive the `up` that starts them.
const SERVICES: [&str; 3] = ["keep", "meta", "node"];

/// Closes files that a service of a job has inherited from the caller of `up`, which may wait for
/// the end of a pipe, or hold a lock through an open file. Must run before anything else.
pub(crate) fn drop_inherited() {
    let command = std::env::args_os().nth(1);
    let is_service = command.is_some_and(|command| SERVICES.iter().any(|name| command == *name));
    if is_service
        && std::env::var_os(MARK).is_some()
        && let Err(error) = reactor::close_inherited()
    {
        eprintln!("tsumugi: cannot close inherited files: {error}");
    }
}

/// A started program.
#[derive(Debug)]
pub(crate) struct Service {
    name: String,
    log: PathBuf,
    /// Length of the log before this start.
    before: usize,
    child: Child,
    /// Its process.
    pub(crate) process: Process,
}

impl Service {
    /// Starts this program with other arguments, in a process group of its own, so that only `up`
    /// receives Ctrl-C and everything ends in order. `engine` is the engine that the job requires,
    /// unless this process requires another.
    pub(crate) fn start(
        dir: &JobDir,
        id: &str,
        engine: Option<&str>,
        name: &str,
        arguments: &[&std::ffi::OsStr],
    ) -> anyhow::Result<Service> {
        let log = dir.join(&format!("{name}.log"));
        let mut options = OpenOptions::new();
        options.create(true).append(true).mode(0o600);
        let output =
            options.open(&log).with_context(|| format!("cannot open {}", log.display()))?;
        let errors = output.try_clone().context("cannot share the log")?;
        let before = output.metadata().context("cannot examine the log")?.len() as usize;
        // Independent of the file's present name, and of directories that this user cannot search.
        let program = Path::new("/proc/self/exe");
        let mut command = Command::new(program);
        if let (Some(engine), None) = (engine, insisted()) {
            command.env(reactor::engine::choice::VARIABLE, engine);
        }
        let child = command
            .arg0("tsumugi")
            .args(arguments)
            .env(MARK, id)
            .env(DIRECTORY, dir.path())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let process = Process::of(child.id().cast_signed()).context("cannot look into /proc")?;
        Ok(Service { name: name.into(), log, before, child, process })
    }

    /// Waits for a line that starts with `prefix`. Returns the rest of the line.
    pub(crate) fn wait_for(
        &mut self,
        prefix: &str,
        deadline: Instant,
        stop: &Stop,
    ) -> anyhow::Result<String> {
        let start = Instant::now();
        loop {
            stop.check()?;
            // Looks for the end first: then the log has everything that the program printed before
            // it.
            let ended = self.child.try_wait().context("cannot wait for a program")?;
            let log = std::fs::read(&self.log).unwrap_or_default();
            let log = String::from_utf8_lossy(log.get(self.before..).unwrap_or_default());
            let whole_lines = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            for line in whole_lines {
                if let Some(rest) = line.strip_prefix(prefix) {
                    return Ok(rest.trim().into());
                }
            }
            if let Some(status) = ended {
                bail!(
                    "{} ended with {status}; its log ({}) ends with:\n{}",
                    self.name,
                    self.log.display(),
                    tail(&self.log)
                );
            }
            if Instant::now() >= deadline {
                bail!(
                    "{} is not ready in time; its log ({}) ends with:\n{}",
                    self.name,
                    self.log.display(),
                    tail(&self.log)
                );
            }
            let (least, most) = LOOK_EVERY;
            std::thread::sleep((start.elapsed() / LOOK_PART).clamp(least, most));
        }
    }
}

/// Returns the last error in the end of a log.
pub(crate) fn last_error(log: &Path) -> Option<String> {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text[text.len().saturating_sub(TAIL_BYTES)..]).into_owned();
    let is_error =
        |line: &&str| ["ERROR", "panicked at", "tsumugi: "].iter().any(|mark| line.contains(mark));
    text.lines().rfind(is_error).map(|line| line.trim().into())
}

/// Returns the last lines of a log, indented.
pub(crate) fn tail(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text[text.len().saturating_sub(TAIL_BYTES)..]).into_owned();
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    if lines.is_empty() {
        return format!("    (nothing; {})", log.display());
    }
    let last = &lines[lines.len().saturating_sub(TAIL_LINES)..];
    last.iter().map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n")
}
