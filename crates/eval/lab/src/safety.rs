//! Checks that protect data from experiments.
//!
//! Block devices are written to only with consent that names the device by its serial number, and even
//! then not while anything uses it. (Files are made only in directories of ours: [`crate::own`].)

use base::Error;
use rustix::fs::{Mode, OFlags};
use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// How much at the start of a device has to be zeros for it to count as unused.
const SIGNATURE_BYTES: u64 = 1 << 20;

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
