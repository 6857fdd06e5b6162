//! The process that takes the kernel's target down when the one that set it up has ended, however it ended.
//!
//! It holds a lock on the journal and waits for the end of its standard input, whose other end only the
//! first process has. Signals from terminals do not reach it, as it has a session of its own.

use super::configfs;
use crate::commands::target::identity;
use anyhow::{Context, bail, ensure};
use clap::Args;
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

/// Where the journals are: gone with a reboot, as the objects that they name.
const DIRECTORY: &str = "/run/tsumugi-target";
/// What a keeper says when it holds the journal.
const READY: &str = "ready\n";

/// `tsumugi target-keeper`.
#[derive(Debug, Args)]
pub(crate) struct KeeperArgs {
    /// The journal of what has to be removed
    journal: PathBuf,
}

/// Runs `tsumugi target-keeper`: removes what the journal names when standard input ends.
pub(crate) fn run(args: &KeeperArgs) -> anyhow::Result<ExitCode> {
    let journal = File::open(&args.journal)
        .with_context(|| format!("cannot open {}", args.journal.display()))?;
    ensure!(try_lock(&journal)?, "{} is another keeper's", args.journal.display());
    // Only a kill that nothing survives ends it earlier; the next start removes what stays then.
    for signal in [
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGHUP,
        signal_hook::consts::SIGPIPE,
    ] {
        signal_hook::flag::register(signal, std::sync::Arc::default())?;
    }
    print!("{READY}");
    std::io::stdout().flush()?;
    let mut rest = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut rest);
    finish(&args.journal)?;
    Ok(ExitCode::SUCCESS)
}

/// Removes what a journal names, and then the journal.
fn finish(journal: &Path) -> anyhow::Result<()> {
    configfs::remove(journal)?;
    fs::remove_file(journal).with_context(|| format!("cannot remove {}", journal.display()))
}

/// Locks a journal; false if another process has.
fn try_lock(journal: &File) -> anyhow::Result<bool> {
    match flock(journal, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error).context("cannot lock a journal"),
    }
}

/// Removes what targets left whose keepers are gone, too.
///
/// # Errors
/// What cannot be removed.
pub(super) fn remove_leftovers() -> anyhow::Result<()> {
    let entries = match fs::read_dir(DIRECTORY) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("cannot list {DIRECTORY}")),
    };
    for entry in entries {
        let path = entry.with_context(|| format!("cannot list {DIRECTORY}"))?.path();
        // Another may have removed it meanwhile.
        let Ok(file) = File::open(&path) else { continue };
        if try_lock(&file)? {
            eprintln!("tsumugi: removing what a target left that was killed ({})", path.display());
            finish(&path)?;
        }
    }
    Ok(())
}

/// The keeper, from the other process's side.
pub(super) struct Keeper {
    child: Child,
    journal: PathBuf,
}

impl Keeper {
    /// Makes a journal, and starts the process that keeps it.
    pub(super) fn start() -> anyhow::Result<Self> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(DIRECTORY).with_context(|| format!("cannot make {DIRECTORY}"))?;
        let name = format!("{}-{}", std::process::id(), identity::random().simple());
        let journal = Path::new(DIRECTORY).join(name);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        options.open(&journal).with_context(|| format!("cannot make {}", journal.display()))?;
        let started = spawn(&journal);
        if started.is_err() {
            let _ = fs::remove_file(&journal);
        }
        Ok(Self { child: started?, journal })
    }

    /// Where it is noted what has to be removed.
    pub(super) fn journal(&self) -> anyhow::Result<File> {
        let file = OpenOptions::new().append(true).open(&self.journal);
        file.with_context(|| format!("cannot open {}", self.journal.display()))
    }

    /// Has everything removed.
    ///
    /// # Errors
    /// If something stays: then the journal does, too.
    pub(super) fn end(mut self) -> anyhow::Result<()> {
        drop(self.child.stdin.take());
        let status = self.child.wait().context("cannot wait for the target's keeper")?;
        if status.success() {
            return Ok(());
        }
        // It may have been killed.
        if self.journal.exists() {
            finish(&self.journal)?;
        }
        Ok(())
    }
}

/// Starts the process, and waits until it holds the journal.
fn spawn(journal: &Path) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    command.arg("target-keeper").arg(journal).stdin(Stdio::piped()).stdout(Stdio::piped());
    // A group of its own: Ctrl-C and what kills a group are for the first process.
    command.process_group(0);
    let mut child = command.spawn().context("cannot start the target's keeper")?;
    let mut line = String::new();
    let answered =
        child.stdout.take().is_some_and(|out| BufReader::new(out).read_line(&mut line).is_ok());
    if answered && line == READY {
        return Ok(child);
    }
    let _ = child.kill();
    let status = child.wait();
    bail!("the target's keeper does not start ({status:?})")
}
