//! Keeping a job's logs when it is taken down.
//!
//! The logs are in the job's directory, which is removed. They are opened before, and copied when
//! everything has ended, so they contain the services' last messages.

use super::job::JobDir;
use super::place;
use anyhow::Context;
use std::fs::{File, OpenOptions};
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

    /// Copies the logs into a directory, which is created if it is missing, with the names
    /// JOB.PART.log. Returns their number.
    pub(crate) fn keep(self, job: &str, to: &Path) -> anyhow::Result<usize> {
        std::fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
        let count = self.0.len();
        for (name, mut log) in self.0 {
            let path = to.join(format!("{job}.{name}"));
            let mut options = OpenOptions::new();
            options.create(true).write(true).truncate(true).mode(0o600);
            options
                .open(&path)
                .and_then(|mut kept| std::io::copy(&mut log, &mut kept))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(count)
    }
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
}
