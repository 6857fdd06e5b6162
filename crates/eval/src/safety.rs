//! What keeps an experiment from costing anybody data.
//!
//! Files are made only in a directory that was made for the experiment, by us and by nobody else; it
//! is removed at the end, and nothing else is. Block devices are written to only with consent that
//! names the device by its serial number, and even then not while anything uses it.

use crate::error::Error;
use rustix::fs::{Mode, OFlags};
use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// How much at the start of a device has to be zeros for it to count as unused.
const SIGNATURE_BYTES: u64 = 1 << 20;

/// A directory that was made for the experiment.
#[derive(Debug)]
pub struct OwnDirectory {
    path: PathBuf,
    is_kept: bool,
}

impl OwnDirectory {
    /// Makes one below `parent`.
    pub fn make(parent: &Path) -> Result<Self, Error> {
        let parent = parent.canonicalize().map_err(Error::io("cannot use", parent))?;
        let process = std::process::id();
        for number in 0..10_000_u32 {
            let path = parent.join(format!("tsumugi-eval-{process}-{number}"));
            // Fails if it exists: never somebody else's directory.
            match rustix::fs::mkdir(&path, Mode::RWXU) {
                Ok(()) => return Ok(Self { path, is_kept: false }),
                Err(rustix::io::Errno::EXIST) => {}
                Err(errno) => return Err(Error::io("cannot make", &path)(errno.into())),
            }
        }
        Err(Error::Refused(format!("{} is full of leftovers of ours", parent.display())))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it with what is in it; refuses while anything is mounted below, whose files are not
    /// ours.
    pub fn remove(mut self) -> Result<(), Error> {
        self.is_kept = true;
        remove(&self.path)
    }
}

impl Drop for OwnDirectory {
    fn drop(&mut self) {
        if !self.is_kept && remove(&self.path).is_err() {
            eprintln!("left behind: {}", self.path.display());
        }
    }
}

fn remove(path: &Path) -> Result<(), Error> {
    let mounted = mounts_below(path)?;
    if let Some(mount) = mounted.first() {
        return Err(Error::Refused(format!("{} is still mounted", mount.display())));
    }
    fs::remove_dir_all(path).map_err(Error::io("cannot remove", path))
}

/// What is mounted at or below a directory, innermost first.
pub fn mounts_below(path: &Path) -> Result<Vec<PathBuf>, Error> {
    let table = Path::new("/proc/self/mountinfo");
    let text = fs::read_to_string(table).map_err(Error::io("cannot read", table))?;
    let mut mounts: Vec<PathBuf> = text
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(|field| PathBuf::from(field.replace("\\040", " ")))
        .filter(|mount| mount.starts_with(path))
        .collect();
    mounts.reverse();
    Ok(mounts)
}

/// Refuses a block device for writing, unless it is unused and `destroy` is its serial number.
///
/// With the serial number given, old contents (a file system, a partition table) may be lost; a
/// device that is in use is refused all the same.
pub fn check_device_for_writing(path: &Path, destroy: Option<&str>) -> Result<(), Error> {
    let refused = |why: String| Err(Error::Refused(format!("{}: {why}", path.display())));
    let metadata = fs::metadata(path).map_err(Error::io("cannot use", path))?;
    if !metadata.file_type().is_block_device() {
        return refused("is no block device".into());
    }
    let sys = sys_directory(metadata.rdev());
    let serial = serial(&sys);
    if sys.join("partition").exists() {
        return refused("is a partition; name a whole device".into());
    }
    let holders = fs::read_dir(sys.join("holders")).map(Iterator::count).unwrap_or_default();
    if holders > 0 {
        return refused("is in use by another device (RAID, LVM, encryption)".into());
    }
    // The kernel itself refuses exclusive use of what is mounted or used as swap.
    let flags = OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
    if let Err(errno) = rustix::fs::open(path, flags, Mode::empty()) {
        return refused(format!("is in use or cannot be opened: {errno}"));
    }
    let consent = match (&serial, destroy) {
        (Some(serial), Some(given)) => serial == given.trim(),
        _ => false,
    };
    if consent {
        return Ok(());
    }
    let how = match &serial {
        Some(serial) => format!("say destroy = {serial:?} in the experiment file to lose it"),
        None => "it has no serial number, so there is no way to consent".into(),
    };
    if destroy.is_some() {
        return refused(format!("destroy does not name this device; {how}"));
    }
    let partitions = partitions(&sys)?;
    if partitions > 0 {
        return refused(format!("has {partitions} partitions; {how}"));
    }
    if has_signature(path)? {
        return refused(format!("is not empty: {how}"));
    }
    refused(format!("writing needs consent: {how}"))
}

fn sys_directory(device: u64) -> PathBuf {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    PathBuf::from(format!("/sys/dev/block/{major}:{minor}"))
}

/// The serial number of a device, as the kernel knows it.
pub fn serial(sys: &Path) -> Option<String> {
    let read = |name: &str| fs::read_to_string(sys.join(name)).ok();
    let found = ["serial", "device/serial", "device/wwid"].iter().find_map(|name| read(name))?;
    let found = found.trim();
    (!found.is_empty()).then(|| found.to_string())
}

fn partitions(sys: &Path) -> Result<usize, Error> {
    let entries = fs::read_dir(sys).map_err(Error::io("cannot read", sys))?;
    Ok(entries.flatten().filter(|entry| entry.path().join("partition").exists()).count())
}

/// Whether anything but zeros lies at the start: every file system, partition table, RAID and
/// encryption header that is looked for by blkid lies in the first MiB or has a copy there.
fn has_signature(path: &Path) -> Result<bool, Error> {
    let file = fs::File::open(path).map_err(Error::io("cannot read", path))?;
    let mut bytes = Vec::new();
    file.take(SIGNATURE_BYTES).read_to_end(&mut bytes).map_err(Error::io("cannot read", path))?;
    Ok(bytes.iter().any(|byte| *byte != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: own directories are new, hold nothing of others, and go with their contents.
    #[test]
    fn own_directories_come_and_go() {
        let parent = tempfile::tempdir().unwrap();
        let (first, second) = (
            OwnDirectory::make(parent.path()).unwrap(),
            OwnDirectory::make(parent.path()).unwrap(),
        );
        assert_ne!(first.path(), second.path());
        fs::create_dir(first.path().join("sub")).unwrap();
        fs::write(first.path().join("sub/file"), b"x").unwrap();
        let beside = parent.path().join("beside");
        fs::write(&beside, b"not ours").unwrap();
        first.remove().unwrap();
        drop(second);
        let left: Vec<_> = fs::read_dir(parent.path()).unwrap().flatten().collect();
        assert_eq!(left.len(), 1);
        assert!(beside.exists());
        assert!(OwnDirectory::make(&parent.path().join("missing")).is_err());
    }

    /// Goal: what is no block device, and the machine's own disks, are refused for writing.
    #[test]
    fn devices_in_use_are_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let refused = check_device_for_writing(file.path(), Some("x"));
        assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let root = table.lines().find(|line| line.split(' ').nth(1) == Some("/")).unwrap();
        let device = Path::new(root.split(' ').next().unwrap());
        if !device.exists() {
            println!("skipped: the root file system is on no block device that is seen here");
            return;
        }
        let serial = serial(&sys_directory(fs::metadata(device).unwrap().rdev()));
        let refused = check_device_for_writing(device, serial.as_deref());
        assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
    }
}
