//! Keeping a job's logs when it is taken down.
//!
//! The logs are in the job's directory, which is removed. They are opened before, and copied when
//! everything has ended, so they contain the services' last messages.

use super::job::JobDir;
use super::place::{self, Trust};
use anyhow::Context;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The open logs of a job's services on this machine.
#[derive(Debug)]
pub(crate) struct Logs(Vec<(String, File)>);

impl Logs {
    /// Opens the logs; none for a job without a directory.
    pub(crate) fn open(dir: &JobDir) -> anyhow::Result<Logs> {
        let entries = match std::fs::read_dir(dir.path()) {
            Ok(entries) => entries,
            Err(error) if place::is_absent(&error) => return Ok(Logs(Vec::new())),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", dir.path().display()));
            }
        };
        let mut logs = Vec::new();
        for entry in entries.flatten() {
            let path = entry.path();
            if path.extension().is_none_or(|extension| extension != "log") {
                continue;
            }
            let file =
                File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
            logs.push((entry.file_name().to_string_lossy().into_owned(), file));
        }
        Ok(Logs(logs))
    }

    /// Creates the directory for the logs if it is missing.
    ///
    /// # Errors
    /// If it cannot be used, or another user could put a link to any file there.
    pub(crate) fn make_directory(to: &Path) -> anyhow::Result<()> {
        let is_root = rustix::process::geteuid().is_root();
        let trust = if is_root { Trust::Own } else { Trust::Chosen };
        place::make_directories(to, 0o700, trust)
            .with_context(|| format!("cannot keep the logs in {} (--keep-logs)", to.display()))
    }

    /// Copies the logs into a [directory](Logs::make_directory), with the names JOB.PART.log, in the
    /// place of earlier ones. Returns their number.
    pub(crate) fn keep(self, job: &str, to: &Path) -> anyhow::Result<usize> {
        Logs::make_directory(to)?;
        let count = self.0.len();
        for (name, log) in self.0 {
            let path = to.join(format!("{job}.{name}"));
            copy(log, &path).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(count)
    }
}

/// Writes a new file and renames it, so that what is there under either name, a link perhaps, is
/// never written to.
fn copy(mut log: File, path: &Path) -> io::Result<()> {
    let beside = path.with_added_extension("new");
    match std::fs::remove_file(&beside) {
        Err(error) if !place::is_absent(&error) => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    let mut kept = options.create_new(true).write(true).mode(0o600).open(&beside)?;
    io::copy(&mut log, &mut kept)?;
    std::fs::rename(&beside, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: kept logs contain what is written to them after they were opened, although their
    /// directory is removed.
    #[test]
    fn logs_outlive_their_directory() {
        let base = tempfile::tempdir().unwrap();
        let dir = JobDir::new(Some("j"), Some(base.path())).unwrap();
        let kept = base.path().join("kept/here");
        assert_eq!(Logs::open(&dir).unwrap().keep("j", &kept).unwrap(), 0);
        dir.create().unwrap();
        std::fs::write(dir.join("node1.log"), "began\n").unwrap();
        std::fs::write(dir.join("secret"), "x").unwrap();
        let logs = Logs::open(&dir).unwrap();
        std::fs::write(dir.join("node1.log"), "began\nended\n").unwrap();
        std::fs::remove_dir_all(dir.path()).unwrap();
        assert_eq!(logs.keep("j", &kept).unwrap(), 1);
        assert_eq!(std::fs::read(kept.join("j.node1.log")).unwrap(), b"began\nended\n");
        assert_eq!(std::fs::read_dir(&kept).unwrap().count(), 1);
    }

    /// Goal: a file that a link in the directory names is not overwritten; in another user's
    /// directory root keeps nothing at all.
    #[test]
    fn links_are_not_written_through() {
        let base = tempfile::tempdir().unwrap();
        let dir = JobDir::new(Some("j"), Some(base.path())).unwrap();
        dir.create().unwrap();
        std::fs::write(dir.join("meta.log"), "said\n").unwrap();
        let (kept, victim) = (base.path().join("kept"), base.path().join("victim"));
        std::fs::create_dir(&kept).unwrap();
        std::fs::write(&victim, "precious").unwrap();
        for name in ["j.meta.log", "j.meta.log.new"] {
            std::os::unix::fs::symlink(&victim, kept.join(name)).unwrap();
        }
        Logs::open(&dir).unwrap().keep("j", &kept).unwrap();
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
        assert_eq!(std::fs::read(kept.join("j.meta.log")).unwrap(), b"said\n");
        assert!(!kept.join("j.meta.log").is_symlink());
        if !rustix::process::geteuid().is_root() {
            return;
        }
        std::os::unix::fs::chown(&kept, Some(4711), None).unwrap();
        std::fs::remove_file(kept.join("j.meta.log")).unwrap();
        std::os::unix::fs::symlink(&victim, kept.join("j.meta.log")).unwrap();
        let refused = Logs::open(&dir).unwrap().keep("j", &kept).unwrap_err();
        assert!(format!("{refused:#}").contains("another user"), "{refused:#}");
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
    }
}
