//! The storage that a node would use: does it exist, has it space, is it fast?

use super::machine::is_exchangeable;
use super::{Finding, Level};
use crate::deploy::site::devices::{self, Chosen};
use crate::deploy::site::{Site, host_name};
use crate::deploy::size::human;
use crate::print::words;
use rustix::fs::{Mode, OFlags, statfs};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes that the measurement writes.
const MEASURED_BYTES: usize = 64 << 20;
/// Bytes of one write of the measurement.
const PIECE_BYTES: usize = 1 << 20;
/// Number of small synchronous writes of the measurement.
const SYNCS: usize = 16;
/// Alignment of memory for direct I/O.
const ALIGNMENT: usize = 4096;
/// A slower device is not an SSD.
const MIB_PER_S_MIN: f64 = 200.0;
/// An SSD makes a write durable in less time.
const SYNC_MAX: Duration = Duration::from_millis(10);

/// Names of file systems by their magic numbers (statfs(2)), and whether their data is in memory.
const KINDS: [(i64, &str, Where); 9] = [
    (0x0102_1994, "tmpfs", Where::Memory),
    (0x8584_58f6, "ramfs", Where::Memory),
    (0x6969, "NFS", Where::Network),
    (0x0bd0_0bd0, "Lustre", Where::Network),
    (0x4750_4653, "GPFS", Where::Network),
    (0x1983_0326, "BeeGFS", Where::Network),
    (0xff53_4d42, "CIFS", Where::Network),
    (0x6573_5546, "FUSE", Where::Network),
    (0x794c_7630, "overlayfs", Where::Layered),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    Memory,
    Network,
    Layered,
}

/// The storage that a node of this machine would get.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeStorage {
    /// `--device`.
    pub(crate) patterns: Vec<String>,
    /// `--device-dir`.
    pub(crate) directory: Option<PathBuf>,
    /// `--size`.
    pub(crate) size: u64,
}

/// Checks the storage.
pub(super) fn look(storage: &NodeStorage, measure: bool) -> Vec<Finding> {
    match choose(storage) {
        Ok(Chosen::File { directory, size }) => look_at_directory(&directory, size, measure),
        Ok(Chosen::Existing { path }) => look_at_device(&path, measure),
        Ok(Chosen::Memory { .. }) => Vec::new(),
        Err(error) => {
            let fix = "name another --device or --device-dir, or correct the site's devices";
            vec![Finding::bad("storage", Level::Missing, words(&error), fix)]
        }
    }
}

fn choose(storage: &NodeStorage) -> anyhow::Result<Chosen> {
    let site = Site::read()?;
    let given = site.node(&host_name());
    match (&storage.directory, storage.patterns.as_slice()) {
        (Some(directory), _) => {
            Ok(Chosen::File { directory: std::path::absolute(directory)?, size: storage.size })
        }
        (None, []) => match given.filter(|entry| !entry.devices.is_empty()) {
            Some(entry) => devices::first_free(&entry.devices, storage.size, entry.destroy, &[]),
            None => Ok(Chosen::File { directory: "/var/tmp".into(), size: storage.size }),
        },
        (None, patterns) => devices::first_free(patterns, storage.size, false, &[]),
    }
}

fn look_at_directory(directory: &Path, size: u64, measure: bool) -> Vec<Finding> {
    if let Some(why) = is_exchangeable(directory) {
        return vec![Finding::bad("storage", Level::Unsafe, why, "name another --device-dir")];
    }
    let mut all = Vec::new();
    // A missing directory would be created in the directory above.
    let there = directory.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    match statfs(there) {
        Ok(data) => {
            let free = data.f_bavail.saturating_mul(data.f_bsize.cast_unsigned());
            all.push(space(there, free, size));
            all.push(kind(there, data.f_type));
        }
        Err(error) => {
            let found = format!("{}: {error}", there.display());
            let fix = "name another --device-dir";
            return vec![Finding::bad("storage", Level::Missing, found, fix)];
        }
    }
    if measure {
        let result = tempfile_in(there).and_then(|file| measure_file(&file));
        all.push(speed(&there.display().to_string(), result));
    }
    all
}

fn space(directory: &Path, free: u64, size: u64) -> Finding {
    let found = format!("{} has {} free", directory.display(), human(free));
    if free >= size {
        return Finding::ok("space", found);
    }
    let found = format!("{found}, a node's backing file takes {}", human(size));
    Finding::bad("space", Level::Missing, found, "free some, or choose a smaller --size")
}

fn kind(directory: &Path, magic: i64) -> Finding {
    let known = KINDS.iter().find(|(number, ..)| *number == magic & 0xffff_ffff);
    let shown = directory.display();
    let fix = "name a directory on a local SSD: --device-dir, or devices of the site";
    match known {
        None => Finding::ok("file system", format!("{shown} is on a local disk")),
        Some((_, name, Where::Memory)) => Finding::bad(
            "file system",
            Level::Unsafe,
            format!("{shown} is {name}: data is in memory"),
            fix,
        ),
        Some((_, name, Where::Network)) => Finding::bad(
            "file system",
            Level::Slow,
            format!("{shown} is {name}, no local disk"),
            fix,
        ),
        Some((_, name, Where::Layered)) => Finding::bad(
            "file system",
            Level::Slow,
            format!("{shown} is {name}, a container's own layer"),
            fix,
        ),
    }
}

fn look_at_device(path: &Path, measure: bool) -> Vec<Finding> {
    let mut all = vec![Finding::ok("device", format!("{} is free", path.display()))];
    if measure {
        // Read only: the device may carry data.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECT;
        let file = rustix::fs::open(path, flags, Mode::empty()).map_err(io::Error::from);
        let result = file.map(std::fs::File::from).and_then(|file| {
            let mut memory = Aligned::new();
            let start = Instant::now();
            for piece in 0..MEASURED_BYTES / PIECE_BYTES {
                file.read_exact_at(memory.bytes(), (piece * PIECE_BYTES) as u64)?;
            }
            Ok((start.elapsed(), Duration::ZERO))
        });
        all.push(speed(&path.display().to_string(), result));
    }
    all
}

/// Opens a file without a name, for writes past the page cache.
fn tempfile_in(directory: &Path) -> io::Result<std::fs::File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::DIRECT;
    Ok(rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR)?.into())
}

/// Returns the time to write [`MEASURED_BYTES`], and the median time of a small durable write.
fn measure_file(file: &std::fs::File) -> io::Result<(Duration, Duration)> {
    rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, MEASURED_BYTES as u64)?;
    let mut memory = Aligned::new();
    let start = Instant::now();
    for piece in 0..MEASURED_BYTES / PIECE_BYTES {
        file.write_all_at(memory.bytes(), (piece * PIECE_BYTES) as u64)?;
    }
    file.sync_data()?;
    let stream = start.elapsed();
    let mut times = Vec::new();
    for index in 0..SYNCS {
        let start = Instant::now();
        file.write_all_at(&memory.bytes()[..ALIGNMENT], (index * PIECE_BYTES) as u64)?;
        file.sync_data()?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok((stream, times[SYNCS / 2]))
}

fn speed(shown: &str, result: io::Result<(Duration, Duration)>) -> Finding {
    let fix = "see what else uses it; use another device if it is no SSD";
    let (stream, sync) = match result {
        Ok(times) => times,
        Err(error) => {
            let fix = "name a directory whose file system knows O_DIRECT and fallocate";
            return Finding::bad("speed", Level::Missing, format!("{shown}: {error}"), fix);
        }
    };
    let rate = MEASURED_BYTES as f64 / f64::from(1 << 20) / stream.as_secs_f64();
    let sync_ms = sync.as_secs_f64() * 1e3;
    let found = if sync.is_zero() {
        format!("{shown}: {rate:.0} MiB/s")
    } else {
        format!("{shown}: {rate:.0} MiB/s, a synchronous write takes {sync_ms:.2} ms")
    };
    if rate < MIB_PER_S_MIN || sync > SYNC_MAX {
        return Finding::bad("speed", Level::Slow, found, fix);
    }
    Finding::ok("speed", found)
}

/// A piece of memory that is aligned for direct I/O.
struct Aligned {
    memory: Vec<u8>,
    start: usize,
}

impl Aligned {
    fn new() -> Self {
        // A disk may skip zeros.
        let memory: Vec<u8> =
            (0..PIECE_BYTES + ALIGNMENT).map(|index| (index * 31 % 251) as u8).collect();
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        Self { memory, start }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + PIECE_BYTES]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a missing or slow storage is reported with a fix; a machine's own directory is
    /// measured.
    #[test]
    fn storage_is_looked_at() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let storage = NodeStorage {
            directory: Some(directory.path().into()),
            size: 1,
            ..NodeStorage::default()
        };
        let found = look(&storage, true);
        assert!(found.iter().any(|finding| finding.what == "speed"), "{found:?}");
        let full = look(&NodeStorage { size: u64::MAX, ..storage }, false);
        let space = full.iter().find(|finding| finding.what == "space").unwrap();
        assert_eq!(space.level, Level::Missing);
        assert!(space.fix.is_some());
        let none = NodeStorage { patterns: vec!["/nonexistent".into()], ..NodeStorage::default() };
        assert_eq!(look(&none, false)[0].level, Level::Missing);
        assert_eq!(kind(Path::new("/x"), 0x0102_1994).level, Level::Unsafe);
        assert_eq!(speed("/x", Ok((Duration::from_secs(1), Duration::ZERO))).level, Level::Slow);
        assert_eq!(speed("/x", Ok((Duration::from_millis(50), SYNC_MAX))).level, Level::Ok);
    }
}
