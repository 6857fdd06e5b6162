//! The amount of memory that this process may still allocate.
//!
//! Linux promises more memory than exists, and kills a process when it cannot keep the promise. So
//! a large reservation checks first: the machine, and each control group from the process's own up
//! to the root, in version 1 and 2. Page cache counts as free, because the kernel releases it.

use std::path::{Path, PathBuf};

/// The available bytes, and the limit that determines them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) bytes: u64,
    pub(crate) limit: String,
}

impl Room {
    /// Returns the least of all limits; [`None`] if none can be read.
    pub(crate) fn now() -> Option<Self> {
        Self::below(Path::new("/proc"), Path::new("/sys/fs/cgroup"))
    }

    fn below(proc: &Path, cgroups: &Path) -> Option<Self> {
        let machine = available(proc).map(|bytes| Self { bytes, limit: "this machine".into() });
        let text = std::fs::read_to_string(proc.join("self/cgroup")).unwrap_or_default();
        let groups = text.lines().flat_map(|line| groups_of(line, cgroups));
        groups.filter_map(|group| group.room()).chain(machine).min_by_key(|room| room.bytes)
    }
}

fn available(proc: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(proc.join("meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// A control group of the memory controller.
struct Group {
    dir: PathBuf,
    is_version_2: bool,
}

/// Returns the memory groups in a line of `/proc/self/cgroup`: the process's own and those above.
/// In a container the line may contain the machine's path, while the container sees only its last
/// components.
fn groups_of(line: &str, cgroups: &Path) -> Vec<Group> {
    let mut fields = line.splitn(3, ':');
    let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
    else {
        return Vec::new();
    };
    let is_version_2 = controllers.is_empty();
    let root = match controllers.split(',').any(|it| it == "memory") {
        true => cgroups.join("memory"),
        false if is_version_2 => cgroups.to_owned(),
        false => return Vec::new(),
    };
    let path = Path::new(path.trim_start_matches('/'));
    path.ancestors().map(|path| Group { dir: root.join(path), is_version_2 }).collect()
}

impl Group {
    fn room(&self) -> Option<Room> {
        let read = |name: &str| std::fs::read_to_string(self.dir.join(name)).ok();
        let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
        let (limit, usage, cache) = if self.is_version_2 {
            ("memory.max", "memory.current", ["active_file", "inactive_file"])
        } else {
            let cache = ["total_active_file", "total_inactive_file"];
            ("memory.limit_in_bytes", "memory.usage_in_bytes", cache)
        };
        // "max" of version 2 is not a number; version 1 has one near 2^63 if there is no limit.
        let max = number(limit).filter(|&max| max < 1 << 62)?;
        let stat = read("memory.stat").unwrap_or_default();
        let cached: u64 = stat
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter(|(name, _)| cache.contains(name))
            .filter_map(|(_, value)| value.trim().parse::<u64>().ok())
            .sum();
        let used = number(usage)?.saturating_sub(cached);
        let limit = format!("{} ({max} bytes)", self.dir.join(limit).display());
        Some(Room { bytes: max.saturating_sub(used), limit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the tightest limit counts, of the machine or of any group above the process, in both
    /// versions of control groups; page cache counts as free.
    #[test]
    fn the_tightest_limit_counts() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let room = || Room::below(&dir.path().join("proc"), &dir.path().join("cg"));
        assert_eq!(room(), None);
        put("proc/meminfo", "MemTotal:  9000 kB\nMemAvailable:     8000 kB\n");
        assert_eq!(room(), Some(Room { bytes: 8000 << 10, limit: "this machine".into() }));
        put("proc/self/cgroup", "4:cpu,cpuacct:/x\n3:memory:/job/step\n0::/other\n");
        put("cg/memory/job/memory.limit_in_bytes", "4194304\n");
        put("cg/memory/job/memory.usage_in_bytes", "3145728\n");
        assert_eq!(room().unwrap().bytes, 1 << 20);
        put("cg/memory/job/memory.stat", "cache 5\ntotal_inactive_file 1048576\n");
        assert_eq!(room().unwrap().bytes, 2 << 20);
        put("cg/memory/job/step/memory.limit_in_bytes", "9223372036854771712\n");
        put("cg/memory/job/step/memory.usage_in_bytes", "3145728\n");
        assert_eq!(room().unwrap().bytes, 2 << 20, "no limit of its own");
        put("cg/other/memory.max", "max\n");
        put("cg/other/memory.current", "1\n");
        put("cg/memory.max", "1048577\n");
        put("cg/memory.current", "1\n");
        let room = room().unwrap();
        assert_eq!(room.bytes, 1 << 20);
        assert!(room.limit.ends_with("cg/memory.max (1048577 bytes)"), "{}", room.limit);
    }
}
