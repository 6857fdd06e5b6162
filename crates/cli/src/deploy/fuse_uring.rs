//! Switching FUSE over `io_uring` on for a machine, and back when the last job that asked for it
//! ends.
//!
//! The switch is a parameter of the kernel's module, so it applies to the machine and not to a
//! mount: only root may change it, `up --fuse-uring` reports the change, and `down` reverts it. One
//! file per job records which jobs ask for it; another keeps the value before the first.

use super::files;
use anyhow::{Context, bail};
use std::fs::File;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The switch.
pub(crate) const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// No job has a name that starts with a dot.
const DIRECTORY: &str = "/run/tsumugi/.fuse-uring";
const BEFORE: &str = "before";

/// Switches it on for a job. Returns a description of the change, if there was one.
///
/// # Errors
/// The reason why it cannot be switched on.
pub(crate) fn ask(id: &str) -> anyhow::Result<Option<String>> {
    if !rustix::process::geteuid().is_root() {
        if is_on(&read()?) {
            return Ok(None);
        }
        bail!(
            "--fuse-uring changes {SWITCH}, which is off, and only root may change it: omit the \
             option, or run this as root"
        );
    }
    let _lock = lock(Path::new(DIRECTORY))?;
    let before = read()?;
    let record = Path::new(DIRECTORY).join(BEFORE);
    if !record.exists() {
        std::fs::write(&record, &before).with_context(|| cannot_write(&record))?;
    }
    let own = own(id);
    File::create(&own).with_context(|| cannot_write(&own))?;
    if is_on(&before) {
        return Ok(None);
    }
    std::fs::write(SWITCH, "Y").with_context(|| cannot_write(Path::new(SWITCH)))?;
    Ok(Some(format!("{SWITCH}: {before} -> Y, for all FUSE file systems of this machine")))
}

/// Ends a job's request. The last job that asked restores the switch.
pub(crate) fn release(id: &str) -> anyhow::Result<()> {
    if !own(id).exists() {
        return Ok(());
    }
    let lock = lock(Path::new(DIRECTORY))?;
    files::remove_file(&own(id))?;
    let directory = Path::new(DIRECTORY);
    let others = std::fs::read_dir(directory)
        .with_context(|| format!("cannot read {DIRECTORY}"))?
        .flatten()
        .any(|entry| entry.file_name() != BEFORE && entry.file_name() != "lock");
    if others {
        return Ok(());
    }
    let record = directory.join(BEFORE);
    let before = std::fs::read_to_string(&record).unwrap_or_default();
    if !before.is_empty() && !is_on(&before) {
        std::fs::write(SWITCH, before.trim()).with_context(|| cannot_write(Path::new(SWITCH)))?;
    }
    files::remove_file(&record)?;
    files::remove_file(&directory.join("lock"))?;
    drop(lock);
    let _ = std::fs::remove_dir(directory);
    let _ = directory.parent().map(std::fs::remove_dir);
    Ok(())
}

fn own(id: &str) -> PathBuf {
    Path::new(DIRECTORY).join(format!("job-{id}"))
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

fn is_on(text: &str) -> bool {
    matches!(text.trim(), "Y" | "1")
}

fn read() -> anyhow::Result<String> {
    match std::fs::read_to_string(SWITCH) {
        Ok(text) => Ok(text.trim().into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => bail!(
            "this kernel has no FUSE over io_uring (Linux 6.14 with CONFIG_FUSE_IO_URING): omit \
             --fuse-uring"
        ),
        Err(error) => Err(error).with_context(|| format!("cannot read {SWITCH}")),
    }
}

/// Takes the lock, for one process at a time; creates its file again if the last job has removed
/// it.
fn lock(directory: &Path) -> anyhow::Result<File> {
    let path = directory.join("lock");
    loop {
        let mut builder = std::fs::DirBuilder::new();
        builder
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let file = match File::create(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| cannot_write(&path)),
        };
        file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
        // The last job may have removed it meanwhile, and a new one may have made another.
        if files::is_same(&file, &path) {
            return Ok(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    /// Goal: one process at a time has the lock, also if its file is made anew. Input: a file that
    /// its holder removes while another waits for it, and a third that makes it again. Expected:
    /// the one that waited waits for the third.
    #[test]
    fn a_lock_that_is_made_anew_has_one_holder() {
        let base = tempfile::tempdir().unwrap();
        let directory = base.path().join("d");
        let first = lock(&directory).unwrap();
        let (sender, locked) = mpsc::channel();
        let place = directory.clone();
        let second = std::thread::spawn(move || sender.send(lock(&place).unwrap()).unwrap());
        // Until it has opened the file and waits, as the kernel's list of locks shows.
        let inode = std::os::unix::fs::MetadataExt::ino(&first.metadata().unwrap());
        let is_waiting = |line: &str| line.contains("->") && line.contains(&format!(":{inode} "));
        while !std::fs::read_to_string("/proc/locks").unwrap().lines().any(is_waiting) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::fs::remove_file(directory.join("lock")).unwrap();
        let third = lock(&directory).unwrap();
        drop(first);
        let early = locked.recv_timeout(Duration::from_millis(300));
        assert!(early.is_err(), "two have the lock");
        drop(third);
        locked.recv().unwrap();
        second.join().unwrap();
    }
}
