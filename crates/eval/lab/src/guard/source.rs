//! Where the bytes of a load lie in the end: the physical devices below a file or a block device.
//!
//! A loop device counts what it is asked for, also when the page cache below it answers; so do the
//! devices of the device mapper (dm) and of software RAID (md) above one. Only the counters of the
//! devices at the bottom show whether a read has reached storage. They are found through sysfs(5):
//! `loop/backing_file`, `slaves/`, and the mount that a backing file lies on.

use super::{DeviceCounters, find_device};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Devices above each other at most: deeper is a circle.
const DEPTH_MAX: u32 = 16;

/// Numbers of a block device: major and minor.
pub type Numbers = (u32, u32);

/// What can be known of whether a load reaches storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The physical devices below it; the sum of their counters is what reached storage.
    Devices(Vec<Numbers>),
    /// Nothing caches before the storage that was asked for: memory, or another machine through a host
    /// in user space.
    Uncached,
    /// Cache and storage cannot be distinguished, for this reason.
    Unknown(String),
}

impl Default for Source {
    fn default() -> Self {
        Self::Unknown("no storage was made".into())
    }
}

impl Source {
    /// The source of a file's data. The path is resolved on this machine, now.
    pub fn of_file(path: &Path) -> Self {
        Machine::this().of_file(path)
    }

    /// The source of a block device's data.
    pub fn of_device(numbers: Numbers) -> Self {
        Machine::this().of_device(numbers)
    }

    /// The sum of the devices' counters; `None` where there are none.
    pub fn counters(&self) -> Option<DeviceCounters> {
        let Self::Devices(devices) = self else { return None };
        let text = fs::read_to_string("/proc/diskstats").ok()?;
        devices.iter().try_fold(DeviceCounters::default(), |sum, (major, minor)| {
            let one = find_device(&text, *major, *minor)?;
            Some(DeviceCounters {
                read_bytes: sum.read_bytes + one.read_bytes,
                written_bytes: sum.written_bytes + one.written_bytes,
            })
        })
    }

    /// Whether several devices share the data: mirrors and parity then move more than the load does.
    pub fn is_spread(&self) -> bool {
        matches!(self, Self::Devices(devices) if devices.len() > 1)
    }

    /// The first of its devices.
    pub fn first_device(&self) -> Option<Numbers> {
        let Self::Devices(devices) = self else { return None };
        devices.first().copied()
    }
}

/// Where a machine describes its devices and mounts.
struct Machine {
    /// `/sys`.
    sys: PathBuf,
    /// `/proc/self/mountinfo`.
    mounts: String,
}

/// A file system that a file lies on.
struct Mount<'a> {
    kind: &'a str,
    source: &'a str,
    options: &'a str,
    point: PathBuf,
}

type Leaves = BTreeSet<Numbers>;

impl Machine {
    fn this() -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Self { sys: "/sys".into(), mounts }
    }

    fn of_file(&self, path: &Path) -> Source {
        if let Ok(real) = path.canonicalize()
            && self.mount_of(&real).is_some_and(|it| matches!(it.kind, "tmpfs" | "ramfs"))
        {
            return Source::Uncached;
        }
        source_of(|leaves| self.file(path, leaves, 0))
    }

    fn of_device(&self, numbers: Numbers) -> Source {
        source_of(|leaves| self.device(numbers, leaves, 0))
    }

    /// Adds what lies below a regular file or a device file.
    fn file(&self, path: &Path, leaves: &mut Leaves, depth: u32) -> Result<(), String> {
        let real = path.canonicalize();
        let found = real.and_then(|real| fs::metadata(&real).map(|metadata| (real, metadata)));
        let (real, metadata) = found.map_err(|error| format!("{}: {error}", path.display()))?;
        if metadata.file_type().is_block_device() {
            return self.device(numbers(metadata.rdev()), leaves, depth);
        }
        let (major, minor) = numbers(metadata.dev());
        if major != 0 {
            return self.device((major, minor), leaves, depth);
        }
        // Several file systems have device numbers of their own making.
        let mount = self.mount_of(&real).ok_or("its mount is not in /proc/self/mountinfo")?;
        match mount.kind {
            "btrfs" => self.btrfs(&mount, leaves, depth),
            "overlay" => {
                let upper = mount.options.split(',').find_map(|it| it.strip_prefix("upperdir="));
                let upper = upper.ok_or("it lies on an overlay without an upper directory")?;
                self.file(Path::new(upper), leaves, depth + 1)
            }
            kind => Err(format!(
                "{} lies on {kind}, which has no block device of this machine",
                real.display()
            )),
        }
    }

    /// Adds all devices of a btrfs: the mount names one of them only.
    fn btrfs(&self, mount: &Mount<'_>, leaves: &mut Leaves, depth: u32) -> Result<(), String> {
        let metadata = fs::metadata(mount.source);
        let first = metadata.map_err(|error| format!("{}: {error}", mount.source))?;
        let name = Path::new(mount.source).canonicalize().ok();
        let name = name.as_deref().and_then(Path::file_name).unwrap_or_default();
        let file_systems = fs::read_dir(self.sys.join("fs/btrfs"));
        let devices = file_systems
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path().join("devices"))
            .find(|devices| devices.join(name).exists());
        let Some(devices) = devices else {
            return self.device(numbers(first.rdev()), leaves, depth + 1);
        };
        for device in entries(&devices)? {
            self.device(numbers_of(&device)?, leaves, depth + 1)?;
        }
        Ok(())
    }

    /// Adds the physical devices below a block device, itself if it is one.
    fn device(&self, numbers: Numbers, leaves: &mut Leaves, depth: u32) -> Result<(), String> {
        let (major, minor) = numbers;
        if depth > DEPTH_MAX {
            return Err(format!("more than {DEPTH_MAX} devices lie above each other"));
        }
        let link = self.sys.join(format!("dev/block/{major}:{minor}"));
        let device = link.canonicalize().map_err(|_| {
            format!("the kernel shows no block device {major}:{minor} below {}", self.sys.display())
        })?;
        // A partition has counters, but its disk tells what it is made of.
        let disk = if device.join("partition").exists() {
            device.parent().unwrap_or(&device).to_path_buf()
        } else {
            device.clone()
        };
        let name = disk.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Ok(backing) = fs::read_to_string(disk.join("loop/backing_file")) {
            let backing = backing.trim_end_matches('\n');
            return self
                .file(Path::new(backing), leaves, depth + 1)
                .map_err(|why| format!("below {name}: {why}"));
        }
        let slaves = entries(&disk.join("slaves")).unwrap_or_default();
        for slave in &slaves {
            self.device(numbers_of(slave)?, leaves, depth + 1)?;
        }
        if !slaves.is_empty() {
            return Ok(());
        }
        if ["loop", "dm-", "md"].iter().any(|kind| name.starts_with(kind)) {
            return Err(format!("{name} shows nothing that it lies on"));
        }
        leaves.insert(numbers);
        Ok(())
    }

    /// The mount that a path without symbolic links lies on: of those that hold it the deepest, and the
    /// last of those in one place.
    fn mount_of(&self, path: &Path) -> Option<Mount<'_>> {
        let all = self.mounts.lines().filter_map(Mount::parse);
        all.filter(|it| path.starts_with(&it.point)).max_by_key(|it| it.point.as_os_str().len())
    }
}

impl<'a> Mount<'a> {
    /// A line of mountinfo; see `proc_pid_mountinfo(5)`.
    fn parse(line: &'a str) -> Option<Self> {
        let (own, rest) = line.split_once(" - ")?;
        let mut rest = rest.splitn(3, ' ');
        let (kind, source, options) = (rest.next()?, rest.next()?, rest.next()?);
        Some(Self { kind, source, options, point: unescaped(own.split(' ').nth(4)?).into() })
    }
}

/// A path of mountinfo, in which blanks, tabs, line ends and backslashes are written in octal.
pub(crate) fn unescaped(text: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(text.to_string(), |text, (code, plain)| text.replace(code, plain))
}

fn source_of(collect: impl FnOnce(&mut Leaves) -> Result<(), String>) -> Source {
    let mut leaves = Leaves::new();
    match collect(&mut leaves) {
        Ok(()) if super::has_counters(&leaves) => Source::Devices(leaves.into_iter().collect()),
        Ok(()) => Source::Unknown("the kernel does not count what its devices move".into()),
        Err(why) => Source::Unknown(why),
    }
}

/// The numbers of a device, by its directory in sysfs.
fn numbers_of(directory: &Path) -> Result<Numbers, String> {
    let text = fs::read_to_string(directory.join("dev")).unwrap_or_default();
    let parsed = text.trim().split_once(':').map(|(a, b)| (a.parse(), b.parse()));
    match parsed {
        Some((Ok(major), Ok(minor))) => Ok((major, minor)),
        _ => Err(format!("{} has no device numbers", directory.display())),
    }
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let read =
        fs::read_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    Ok(read.flatten().map(|entry| entry.path()).collect())
}

fn numbers(device: u64) -> Numbers {
    (rustix::fs::major(device), rustix::fs::minor(device))
}

#[cfg(test)]
mod tests;
