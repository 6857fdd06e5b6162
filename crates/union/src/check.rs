//! A check of the state of a union that is not mounted: its journal, its marks, its partial files
//! and waiting copies, with an explanation of each finding. It writes nothing.
//!
//! It does not look at lower files; `partial_files` compares them with the journal.

mod files;
mod work;

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::error::UnionError;
use crate::journal::{self, Directory, Inspection, Journal};
use crate::layers::{DirectoryLock, OWN};
use crate::record;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Something is not what was written: data or its protection is lost.
    Damage,
    /// A killed server or a loss of power left it; the next mount puts it in order.
    Leftover,
}

/// A difference from the state that a union leaves when it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The file concerned: of the union, if it begins at the upper directory, or of the work
    /// directory.
    pub path: PathBuf,
    /// What was found, as a sentence.
    pub what: String,
    /// What it means, and what to do.
    pub advice: String,
}

/// The result of a check.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The work directory.
    pub work: PathBuf,
    /// Partial files.
    pub files: usize,
    /// Bytes of them in the journal, all of which were read.
    pub stored_bytes: u64,
    /// What was found, damage first.
    pub findings: Vec<Finding>,
}

/// A check under way.
struct Check<'a> {
    upper_path: &'a Path,
    upper: OwnedFd,
    work_path: PathBuf,
    work: OwnedFd,
    findings: Vec<Finding>,
}

/// Checks the union of an upper directory, which must not be mounted. The work directory is the one
/// that the last mount recorded, unless it is given. Waits up to ten seconds for a process that is
/// about to end.
///
/// # Errors
/// If the directories are in use, or cannot be found or read.
pub fn check_union(upper_path: &Path, work: Option<&Path>) -> Result<Checked, UnionError> {
    let upper =
        open(upper_path).map_err(|errno| UnionError::layer("upperdir", upper_path, errno))?;
    let failed = |reason| UnionError::Check { upper: upper_path.into(), reason };
    let work_path = match work {
        Some(work) => work.to_path_buf(),
        None => record::work_of(upper_path, upper.as_fd())
            .map_err(|reason| failed(format!("{reason} (give it: --work WORKDIR)")))?,
    };
    let work = open(&work_path).map_err(|errno| UnionError::layer("workdir", &work_path, errno))?;
    let _locks = [
        DirectoryLock::take(upper_path, upper.as_fd())?,
        DirectoryLock::take(&work_path, work.as_fd())?,
    ];
    if !work_path.join(OWN).is_dir() {
        let reason = format!("{} has no directory {OWN}: no union used it", work_path.display());
        return Err(failed(reason));
    }
    let mut check = Check { upper_path, upper, work_path, work, findings: Vec::new() };
    let inspection = check.inspect()?;
    let read = |errno: Errno| failed(format!("reading its directories: {errno}"));
    check.journal(&inspection);
    check.files(&inspection).map_err(read)?;
    check.record(&inspection);
    check.work_directory(&inspection).map_err(read)?;
    let Check { work_path, mut findings, .. } = check;
    findings.sort_by_key(|finding| finding.severity != Severity::Damage);
    let stored_bytes = inspection.files.iter().map(|file| file.stored_bytes).sum();
    Ok(Checked { work: work_path, files: inspection.files.len(), stored_bytes, findings })
}

fn open(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

impl Check<'_> {
    fn add(&mut self, severity: Severity, path: PathBuf, what: String, advice: &str) {
        self.findings.push(Finding { severity, path, what, advice: advice.into() });
    }

    /// Returns a path in the union's own part of the work directory.
    fn own(&self, name: &str) -> PathBuf {
        self.work_path.join(OWN).join(name)
    }

    /// Reads the journal.
    fn inspect(&self) -> Result<Inspection, UnionError> {
        let failed = |source| UnionError::Journal { path: self.work_path.clone(), source };
        let work = self.work.try_clone().map_err(|source| UnionError::Layer {
            what: "workdir",
            path: self.work_path.clone(),
            source,
        })?;
        match Directory::inspect(work).map_err(failed)? {
            Some(store) => Journal::inspect(store, journal::Options::default()).map_err(failed),
            None => Err(UnionError::layer("workdir", &self.work_path, Errno::NOENT)),
        }
    }

    /// Adds findings about the journal itself.
    fn journal(&mut self, inspection: &Inspection) {
        for damage in inspection.damage() {
            let path = self.work_path.join(OWN);
            self.add(
                Severity::Damage,
                path,
                format!("durable records of the journal are missing: {damage}"),
                "A mount is refused. Restore upper and work directory from a backup. With -o accept_damage the \
                 union can be mounted nevertheless: files that the records may have changed give errors, and \
                 files of which only they told show as the lower layer has them",
            );
        }
        if inspection.has_damaged_mark() {
            let path = self.own(Inspection::marks_name());
            let what = "one of the two marks that say how far the journal is durable is destroyed";
            self.add(
                Severity::Damage,
                path,
                what.into(),
                "The journal itself is whole as far as the other mark says. The next mounts write the mark anew",
            );
        }
        for segment in &inspection.leftovers {
            let path = self.own(&format!("{segment}.log"));
            let what = "a segment of the journal that is not needed any more was not removed";
            self.add(Severity::Leftover, path, what.into(), "The next mount removes it");
        }
    }

    /// Checks the record by which commands find the union.
    fn record(&mut self, inspection: &Inspection) {
        // Without partial files nothing needs it; then a union mounted once may have none yet.
        if inspection.files.is_empty() {
            return;
        }
        if let Err(reason) = record::check_record(self.upper.as_fd(), &self.work_path) {
            let path = self.own("union");
            self.add(
                Severity::Damage,
                path,
                format!("the record of the union's layers cannot be used: {reason}"),
                "Give the options of the mount to `tsumugi union status` and `complete` (-o …); the next mount \
                 writes the record anew",
            );
        }
    }
}
