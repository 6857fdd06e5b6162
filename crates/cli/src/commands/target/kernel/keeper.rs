//! The process that takes the kernel's target down when the process that set it up has ended, for
//! any reason.
//!
//! It holds a lock on the journal and waits for the end of its standard input; only the first
//! process has the other end. Signals from terminals do not reach it, because it has a session of
//! its own.

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

/// The directory of the journals. A reboot removes it, and the objects in the journals too.
const DIRECTORY: &str = "/run/tsumugi-target";
/// The keeper's report that it holds the journal.
const READY: &str = "ready\n";

/// `tsumugi target-keeper`.
#[derive(Debug, Args)]
pub(crate) struct KeeperArgs {
    /// The journal of the objects to remove
    journal: PathBuf,
}

/// Runs `tsumugi target-keeper`: removes the objects in the journal when standard input ends.
pub(crate) fn run(args: &KeeperArgs) -> anyhow::Result<ExitCode> {
    let journal = File::open(&args.journal)
        .with_context(|| format!("cannot open {}", args.journal.display()))?;
    ensure!(try_lock(&journal)?, "{} is another keeper's", args.journal.display());
    // Only SIGKILL ends the keeper earlier; the next start then removes the rest.
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

/// Removes the objects in a journal, and then the journal.
fn finish(journal: &Path) -> anyhow::Result<()> {
    configfs::remove(journal)?;
    fs::remove_file(journal).with_context(|| format!("cannot remove {}", journal.display()))
}

/// Locks a journal. Returns false if another process has the lock.
fn try_lock(journal: &File) -> anyhow::Result<bool> {
    match flock(journal, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error).context("cannot lock a journal"),
    }
}

/// Removes the objects of targets whose keepers have ended, too.
///
/// # Errors
/// The objects that cannot be removed.
pub(super) fn remove_leftovers() -> anyhow::Result<()> {
    let entries = match fs::read_dir(DIRECTORY) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("cannot list {DIRECTORY}")),
    };
    for entry in entries {
        let path = entry.with_context(|| format!("cannot list {DIRECTORY}"))?.path();
        // Another process may have removed it meanwhile.
        let Ok(file) = File::open(&path) else { continue };
        if try_lock(&file)? {
            eprintln!(
                "tsumugi: removing what a target left, which was killed ({})",
                path.display()
            );
            finish(&path)?;
        }
    }
    Ok(())
}

/// The keeper, as the first process sees it.
pub(super) struct Keeper {
    child: Child,
    journal: PathBuf,
}

impl Keeper {
    /// Creates a journal, and starts its keeper.
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

    /// Opens the journal.
    pub(super) fn journal(&self) -> anyhow::Result<File> {
        let file = OpenOptions::new().append(true).open(&self.journal);
        file.with_context(|| format!("cannot open {}", self.journal.display()))
    }

    /// Removes all objects.
    ///
    /// # Errors
    /// If an object stays; the journal then stays, too.
    pub(super) fn end(mut self) -> anyhow::Result<()> {
        drop(self.child.stdin.take());
        let status = self.child.wait().context("cannot wait for the target's keeper")?;
        if status.success() {
            return Ok(());
        }
        // The keeper may have been killed.
        if self.journal.exists() {
            finish(&self.journal)?;
        }
        Ok(())
    }
}

/// Starts the keeper, and waits until it holds the journal.
fn spawn(journal: &Path) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    command.arg("target-keeper").arg(journal).stdin(Stdio::piped()).stdout(Stdio::piped());
    // A group of its own: Ctrl-C, and signals to the group, are for the first process.
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
