//! From an upper directory to the options of its last mount.
//!
//! Every user that may write to the upper directory can set any attribute. So the attribute only
//! shows where to look. The record there must belong to this upper directory and be written by the
//! calling user (in a directory and a file that no other user may write to). Otherwise a superuser
//! that completes another user's union would copy from any place that this user chose.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use super::codec::{Identity, Record, WorkPath};
use super::{open, read_open, work_path_of};
use crate::error::UnionError;
use crate::layers::OWN;
use crate::options::Options;
use crate::sys;

/// Returns the options of an upper directory's union: those of its last mount, and over them what
/// is `given`.
///
/// # Errors
/// If a part of the union cannot be found, or is another one.
pub(crate) fn find(upper: &Path, given: &[u8]) -> Result<Options, UnionError> {
    let mut asked = Options::default();
    asked.add(given)?;
    let failed = |reason| UnionError::Record { upper: upper.into(), reason };
    let directory =
        open_directory(CWD, upper).map_err(|errno| UnionError::layer("upperdir", upper, errno))?;
    if asked.upper.is_some() {
        return Err(failed("it is named twice".into()));
    }
    if asked.work.is_some() && !asked.lower.is_empty() {
        asked.upper = Some(upper.into());
        return Ok(asked);
    }
    let (work, record) = match &asked.work {
        Some(work) => (work.clone(), read_from(CWD, work, directory.as_fd()).map_err(failed)?),
        None => find_work(upper, directory.as_fd()).map_err(failed)?,
    };
    let mut options = Options::parse(&record.options)?;
    if asked.lower.is_empty() {
        check_layers(&options, &record.lower).map_err(failed)?;
    } else {
        (options.lower, options.data_only_count) = (Vec::new(), 0);
    }
    options.add(given)?;
    (options.upper, options.work) = (Some(upper.into()), Some(work));
    Ok(options)
}

fn open_directory(at: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(at, path, flags, Mode::empty())
}

/// Returns the work directory that an upper directory names, whether or not there is a record in
/// it.
pub(crate) fn work_of(upper_path: &Path, upper: BorrowedFd<'_>) -> Result<PathBuf, String> {
    let work_path =
        work_path_of(upper).map_err(|errno| format!("its attributes cannot be read: {errno}"))?;
    let work_path = work_path.ok_or("no union has recorded there where its work directory is")?;
    let work_path = WorkPath::decode(&work_path)
        .ok_or("the attribute that names its work directory is malformed")?;
    let relative = upper_path.join(&work_path.relative);
    let is_work = |path: &PathBuf| path.join(OWN).is_dir();
    let found = [relative, work_path.absolute.clone()].into_iter().find(is_work);
    let found = found.ok_or_else(|| {
        format!("its work directory was {}, and is not there", work_path.absolute.display())
    })?;
    Ok(found.canonicalize().unwrap_or(found))
}

/// Checks the record in a work directory and the attribute of the upper one.
pub(crate) fn check_record(upper: BorrowedFd<'_>, work: &Path) -> Result<(), String> {
    read_from(CWD, work, upper)?;
    let work_path =
        work_path_of(upper).map_err(|errno| format!("its attributes cannot be read: {errno}"))?;
    let work_path =
        work_path.ok_or("the upper directory's attribute does not name its work directory")?;
    WorkPath::decode(&work_path)
        .ok_or("the attribute that names its work directory is malformed")?;
    Ok(())
}

/// Returns the work directory that the upper directory names, and the record in it.
fn find_work(upper_path: &Path, upper: BorrowedFd<'_>) -> Result<(PathBuf, Record), String> {
    let work_path =
        work_path_of(upper).map_err(|errno| format!("its attributes cannot be read: {errno}"))?;
    let work_path = work_path
        .ok_or("no union of this program has recorded there where its work directory is")?;
    let work_path = WorkPath::decode(&work_path)
        .ok_or("the attribute that names its work directory is malformed")?;
    // Where both were moved together, and where the upper directory alone was.
    let relative = match read_from(upper, &work_path.relative, upper) {
        Ok(record) => {
            let work = upper_path.join(&work_path.relative);
            return Ok((work.canonicalize().unwrap_or(work), record));
        }
        Err(reason) => reason,
    };
    match read_from(CWD, &work_path.absolute, upper) {
        Ok(record) => Ok((work_path.absolute, record)),
        Err(absolute) => Err(format!(
            "its work directory was {} ({absolute}) and {} from there ({relative})",
            work_path.absolute.display(),
            work_path.relative.display()
        )),
    }
}

/// Returns the record in a work directory, if it belongs to this upper directory and to the caller.
fn read_from(at: BorrowedFd<'_>, work: &Path, upper: BorrowedFd<'_>) -> Result<Record, String> {
    let directory = open_directory(at, work).map_err(|errno| errno.to_string())?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let none = |errno| format!("no record of a union there: {errno}");
    let own = sys::open_below(directory.as_fd(), OWN.as_bytes(), flags).map_err(none)?;
    let file = open(own.as_fd()).map_err(none)?;
    for object in [own.as_fd(), file.as_fd()] {
        let stat = sys::stat_at(object, b"").map_err(none)?;
        let user = rustix::process::geteuid().as_raw();
        if stat.uid != user {
            return Err(format!(
                "the record there is user {}'s, whose word user {user} does not take",
                stat.uid
            ));
        }
        if stat.mode & 0o022 != 0 {
            return Err("others may write to the record there".into());
        }
    }
    let bytes = read_open(&file).map_err(none)?;
    let record = Record::decode(&bytes).map_err(|reason| format!("the record there: {reason}"))?;
    let found = Identity::of(upper).map_err(|errno| errno.to_string())?;
    if !record.upper.is_of(&found) {
        return Err(
            "the record there is of another upper directory (this one is a copy of it?)".into()
        );
    }
    Ok(record)
}

/// Refuses lower layers that are gone, and others in their places.
fn check_layers(options: &Options, known: &[Identity]) -> Result<(), String> {
    if options.lower.len() != known.len() {
        return Err("the record names more layers than it knows".into());
    }
    for (path, known) in options.lower.iter().zip(known) {
        let failed = |errno| format!("its lower layer {} cannot be used: {errno}", path.display());
        let directory = open_directory(CWD, path).or_else(|errno| match errno {
            // To be searched, not to be listed.
            Errno::ACCESS => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                rustix::fs::open(path, flags, Mode::empty())
            }
            errno => Err(errno),
        });
        let directory = directory.map_err(failed)?;
        let found = Identity::of(directory.as_fd()).map_err(failed)?;
        if !known.is_of(&found) {
            return Err(format!(
                "{} is not the directory that was its lower layer (inode {} now, {} then)",
                path.display(),
                found.inode,
                known.inode
            ));
        }
    }
    Ok(())
}
