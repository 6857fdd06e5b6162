//! CPU time of a cgroup, of version 2 or 1.
//!
//! Version 2: `usage_usec` of `cpu.stat`; version 1: `cpuacct.usage`, in nanoseconds. Both are the scheduler's
//! own times. The root of version 2 is left out: it reports the sum of `/proc/stat`, samples of the whole
//! machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A cgroup whose CPU time is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cgroup {
    /// Version 2, with the path of its `cpu.stat`.
    V2(PathBuf),
    /// Version 1, with the path of its `cpuacct.usage`.
    V1(PathBuf),
}

impl Cgroup {
    /// The cgroup that this process, and so its children, is in.
    pub fn of_this_process() -> Option<Self> {
        Self::of_process(std::process::id())
    }

    /// The cgroup that a process is in.
    pub fn of_process(pid: u32) -> Option<Self> {
        let found = groups_of(pid).into_iter().filter(|it| !is_root(it));
        found.map(|(group, _)| group).find(|group| group.used().is_some())
    }

    /// The file that is read.
    pub fn path(&self) -> &Path {
        match self {
            Self::V2(path) | Self::V1(path) => path,
        }
    }

    /// CPU time so far.
    pub fn used(&self) -> Option<Duration> {
        let text = fs::read_to_string(self.path()).ok()?;
        match self {
            Self::V2(_) => {
                let line = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
                Some(Duration::from_micros(line.trim().parse().ok()?))
            }
            Self::V1(_) => Some(Duration::from_nanos(text.trim().parse().ok()?)),
        }
    }

    /// For people.
    pub fn label(&self) -> String {
        let version = if matches!(self, Self::V2(_)) { 2 } else { 1 };
        format!("version {version}, {}", self.path().display())
    }
}

/// Whether it is the root of version 2.
fn is_root((group, path): &(Cgroup, String)) -> bool {
    matches!(group, Cgroup::V2(_)) && path == "/"
}

/// The groups of a process, the root of version 2 too, with their paths in their hierarchies; of both
/// versions, version 2 first.
pub(super) fn groups_of(pid: u32) -> Vec<(Cgroup, String)> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    find(&groups, &mounts)
}

/// The same from a process's `/proc/PID/cgroup` and a `mountinfo`.
fn find(groups: &str, mounts: &str) -> Vec<(Cgroup, String)> {
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let path = path.to_string();
        if number == "0" && controllers.is_empty() {
            let file = |it: PathBuf| (Cgroup::V2(it.join("cpu.stat")), path.clone());
            found.extend(mounted(mounts, "cgroup2", None, &path).map(file));
        } else if controllers.split(',').any(|name| name == "cpuacct") {
            let file = |it: PathBuf| (Cgroup::V1(it.join("cpuacct.usage")), path.clone());
            found.extend(mounted(mounts, "cgroup", Some("cpuacct"), &path).map(file));
        }
    }
    // The root of version 2 is left out by who counts; that of version 1 counts all tasks.
    found.sort_by_key(|(group, _)| matches!(group, Cgroup::V1(_)));
    found
}

/// The directory of a group where its hierarchy is mounted.
fn mounted(mounts: &str, kind: &str, option: Option<&str>, group: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let root = before.split(' ').nth(3)?;
        let place = before.split(' ').nth(4)?;
        let mut fields = after.split(' ');
        let is_it = fields.next() == Some(kind)
            && option.is_none_or(|option| {
                fields.nth(1).is_some_and(|it| it.split(',').any(|it| it == option))
            });
        // What is mounted may be a group below the hierarchy's root, as in a container.
        let inside = if root == "/" { Some(group) } else { group.strip_prefix(root) };
        let inside = inside.filter(|_| is_it)?;
        Some(Path::new(place).join(inside.trim_start_matches('/')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const V2: &str = "29 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1: &str = "30 29 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      31 29 0:28 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct\n";

    /// Goal: groups are found in version 2, 1 and both, also where a container sees only its part; the
    /// root of version 2 is none.
    #[test]
    fn groups_are_found() {
        let path = |groups: &str, mounts: &str| {
            let found = find(groups, mounts).into_iter().find(|it| !is_root(it));
            found.map(|(it, _)| it.path().display().to_string())
        };
        let file = |text: &str| Some(text.to_string());
        assert_eq!(
            path("0::/user.slice/a.scope\n", V2),
            file("/sys/fs/cgroup/user.slice/a.scope/cpu.stat")
        );
        assert_eq!(path("0::/\n", V2), None);
        let one = "3:cpuset:/\n2:cpuacct:/job/7\n1:cpu:/\n0::/\n";
        assert_eq!(path(one, V1), file("/sys/fs/cgroup/cpuacct/job/7/cpuacct.usage"));
        assert_eq!(
            path("4:cpu,cpuacct:/x\n", "1 2 3:4 / /c rw - cgroup n rw,cpu,cpuacct\n"),
            file("/c/x/cpuacct.usage")
        );
        let both = format!("{V1}32 29 0:29 / /sys/fs/cgroup/unified rw - cgroup2 n rw\n");
        assert_eq!(path("2:cpuacct:/\n0::/a\n", &both), file("/sys/fs/cgroup/unified/a/cpu.stat"));
        let part = "5 4 0:26 /docker/ab /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        assert_eq!(path("0::/docker/ab/inner\n", part), file("/sys/fs/cgroup/inner/cpu.stat"));
        assert_eq!(path("0::/elsewhere\n", part), None);
    }

    /// Goal: both versions are read in their units.
    #[test]
    fn times_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = directory.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let two = write("cpu.stat", "usage_usec 1500000\nuser_usec 1\nsystem_usec 2\n");
        assert_eq!(Cgroup::V2(two).used(), Some(Duration::from_millis(1500)));
        let one = write("cpuacct.usage", "866681318481\n");
        assert_eq!(Cgroup::V1(one).used(), Some(Duration::from_nanos(866_681_318_481)));
        let other = write("other", "nr_periods 0\n");
        assert_eq!(Cgroup::V2(other).used(), None);
    }
}
