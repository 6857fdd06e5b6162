//! Creating small files on a Tsumugi mount, many at a time.
//!
//! When a process sets [`FILES_XATTR`] of a directory, the mount creates complete files in it, with
//! data and attributes. For dozens of files this is one request and one call to the metadata
//! service, instead of a dozen requests and three calls for each. All files of a group appear, or
//! none. If the mount refuses a group, for example because a name exists already, its files are
//! copied one by one, which also finds the reason.

use super::file::{Copier, mode_for_owner, open_source};
use super::task::Task;
use super::{Tally, xattrs};
use anyhow::{Context, anyhow};
use protocol::files::{FIELDS_MAX_BYTES, FILES_XATTR, NEW_FILES_MAX, NewFile, encode};
use protocol::inline::{Bytes, INLINE_MAX_BYTES};
use protocol::{Timestamp, XATTR_VALUE_MAX_BYTES};
use rustix::fs::{XattrFlags, lsetxattr};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Maximum bytes of an encoded group besides its files.
const HEAD_BYTES: usize = 8;

/// The tasks that one worker copies next.
#[derive(Debug, Default)]
pub(crate) struct Group {
    /// The tasks; if there are several, small files of one directory.
    pub(crate) tasks: Vec<Task>,
    /// The device number of the Tsumugi mount that accepts them together.
    pub(crate) mount: Option<u64>,
    bytes: usize,
}

/// Returns the bytes that a small file takes in a group; `None` for other tasks.
fn bytes_in_group(task: &Task) -> Option<usize> {
    let name = task.target.file_name()?;
    let is_small = task.data.is_file() && task.data.len() <= INLINE_MAX_BYTES;
    is_small.then(|| FIELDS_MAX_BYTES + name.len() + task.data.len() as usize)
}

impl Group {
    /// Adds a task with the mount of its copy, if it has one. Returns the group to copy first, or
    /// `None` if the task joined the group.
    pub(crate) fn add(&mut self, task: Task, mount: Option<u64>) -> Option<Group> {
        let bytes = mount.and_then(|_| bytes_in_group(&task));
        let joins = |bytes: usize| {
            let last = self.tasks.last();
            self.mount == mount
                && last.is_some_and(|last| last.target.parent() == task.target.parent())
                && self.tasks.len() < NEW_FILES_MAX
                && self.bytes + bytes + HEAD_BYTES <= XATTR_VALUE_MAX_BYTES
        };
        if let Some(bytes) = bytes.filter(|bytes| joins(*bytes)) {
            self.bytes += bytes;
            self.tasks.push(task);
            return None;
        }
        let mount = mount.filter(|_| bytes.is_some());
        let next = Group { tasks: vec![task], mount, bytes: bytes.unwrap_or(0) };
        Some(std::mem::replace(self, next)).filter(|group| !group.tasks.is_empty())
    }
}

/// Mounts on which groups were created, each with a directory there.
#[derive(Debug, Default)]
pub(crate) struct Made(Mutex<BTreeMap<u64, PathBuf>>);

impl Made {
    fn note(&self, mount: u64, directory: &Path) {
        if let Ok(mut made) = self.0.lock() {
            made.entry(mount).or_insert_with(|| directory.to_path_buf());
        }
    }

    /// Makes all groups durable.
    pub(crate) fn sync(&self, tally: &Tally) {
        let made = self.0.lock().map(|made| made.clone()).unwrap_or_default();
        for directory in made.into_values() {
            if let Err(error) = File::open(&directory).and_then(|file| file.sync_all()) {
                tally.failed(&directory, &anyhow!(error).context("cannot make the copies durable"));
            }
        }
    }
}

impl Copier {
    /// Copies a group at once. Returns the tasks to copy one by one.
    pub(crate) fn copy_together(&self, group: Group, made: &Made, tally: &Tally) -> Vec<Task> {
        let Some(mount) = group.mount else { return group.tasks };
        let (mut read, mut left) = (Vec::new(), Vec::new());
        for task in group.tasks {
            match self.read_small(&task) {
                Some(file) => read.push((task, file)),
                None => left.push(task),
            }
        }
        let (tasks, files): (Vec<Task>, Vec<NewFile>) = read.into_iter().unzip();
        let directory = tasks.first().and_then(|task| task.target.parent()).map(Path::to_path_buf);
        if directory.as_ref().is_none_or(|directory| make(directory, &files).is_err()) {
            left.extend(tasks);
            return left;
        }
        if let Some(directory) = &directory {
            made.note(mount, directory);
        }
        for (task, file) in tasks.iter().zip(&files) {
            tally.add_bytes(file.bytes.0.len() as u64);
            match self.verify(task, file, tally) {
                Ok(()) => tally.file_done(),
                Err(error) => tally.failed(&task.source, &error),
            }
        }
        left
    }

    /// Reads a file that can be created in a group; `None` for others, and after an error.
    fn read_small(&self, task: &Task) -> Option<NewFile> {
        let name = task.target.file_name()?.as_bytes().to_vec();
        let (file, data) = open_source(&task.source).ok()?;
        let mut bytes = Vec::with_capacity(data.len().min(INLINE_MAX_BYTES) as usize + 1);
        file.take(INLINE_MAX_BYTES + 1).read_to_end(&mut bytes).ok()?;
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let is_plain = !self.xattrs || !xattrs::may_have_any(&task.source);
        (bytes.len() as u64 <= INLINE_MAX_BYTES && is_plain).then(|| NewFile {
            name,
            // The mount gives it the caller's group, or that of the directory, which is not the
            // source's if the caller's is not.
            mode: mode_for_owner(&data, (uid.as_raw(), gid.as_raw()), uid.is_root()) as u16,
            uid: data.uid(),
            gid: data.gid(),
            atime: Timestamp::from_parts(data.atime(), data.atime_nsec() as u32),
            mtime: Timestamp::from_parts(data.mtime(), data.mtime_nsec() as u32),
            bytes: Bytes(bytes),
            // The mount's client computes it.
            sum: None,
        })
    }

    /// Reads the copy back, if requested; removes a copy that differs.
    fn verify(&self, task: &Task, file: &NewFile, tally: &Tally) -> anyhow::Result<()> {
        if !self.checksum {
            return Ok(());
        }
        let copy = std::fs::read(&task.target).context("cannot read the copy back")?;
        if copy != file.bytes.0 {
            let _ = std::fs::remove_file(&task.target);
            return Err(anyhow!("{} differs from it after writing", task.target.display()));
        }
        tally.file_verified();
        Ok(())
    }
}

fn make(directory: &Path, files: &[NewFile]) -> anyhow::Result<()> {
    let value = encode(files)?;
    Ok(lsetxattr(directory, FILES_XATTR, &value, XattrFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(target: &str, bytes: usize) -> Task {
        let source = tempfile::NamedTempFile::new().unwrap();
        source.as_file().set_len(bytes as u64).unwrap();
        let data = source.as_file().metadata().unwrap();
        Task { source: source.path().into(), target: target.into(), data }
    }

    /// Goal: small files of one directory of a mount go together until the value would be too long;
    /// all other tasks go alone, in order.
    #[test]
    fn small_files_of_a_directory_go_together() {
        let mut group = Group::default();
        let add = |group: &mut Group, target, bytes, mount| {
            let before = group.add(task(target, bytes), mount);
            before.map(|before| (before.tasks.len(), before.mount))
        };
        assert_eq!(add(&mut group, "d/a", 10, Some(1)), None);
        assert_eq!(add(&mut group, "d/b", 16 << 10, Some(1)), None);
        assert_eq!(add(&mut group, "e/a", 10, Some(1)), Some((2, Some(1))), "another directory");
        assert_eq!(add(&mut group, "e/b", 10, Some(2)), Some((1, Some(1))), "another mount");
        assert_eq!(add(&mut group, "e/c", (16 << 10) + 1, Some(2)), Some((1, Some(2))), "large");
        assert_eq!(add(&mut group, "e/d", 10, None), Some((1, None)), "no mount");
        assert_eq!(add(&mut group, "e/e", 10, None), Some((1, None)));
        for number in 0..3 {
            let before = add(&mut group, "f/a", 16 << 10, Some(1));
            assert_eq!(before, (number == 0).then_some((1, None)));
        }
        assert_eq!(add(&mut group, "f/b", 16 << 10, Some(1)), Some((3, Some(1))), "too many bytes");
    }
}
