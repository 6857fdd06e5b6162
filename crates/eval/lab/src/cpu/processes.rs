//! CPU time of processes, in nanoseconds: of children that ended, of services that stand, and of the
//! threads of the kernel.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

/// In the flags of `/proc/PID/stat`: a thread of the kernel (`PF_KTHREAD`).
const IS_KERNEL: u64 = 0x0020_0000;

/// A process that stands while runs come and go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// What it is, e.g. "target".
    pub name: String,
    /// Its number.
    pub pid: u32,
}

/// Times at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Times {
    pub(super) children: Option<Duration>,
    /// By name; of several of one name the sum.
    pub(super) services: BTreeMap<String, Duration>,
    /// By process number; `None` where no thread of the kernel is seen, as in a PID namespace.
    kernel: Option<BTreeMap<u32, Duration>>,
}

impl Times {
    pub(super) fn now(services: &[Service]) -> Self {
        let mut by_name: BTreeMap<String, Duration> = BTreeMap::new();
        for service in services {
            if let Ok(time) = reactor::usage::of_process(service.pid) {
                *by_name.entry(service.name.clone()).or_default() += time;
            }
        }
        Self {
            children: reactor::usage::of_children().ok(),
            services: by_name,
            kernel: kernel_threads(),
        }
    }

    /// CPU seconds of the threads of the kernel since an earlier look. Those that ended meanwhile are left
    /// out: the kernel's workers live for minutes.
    pub(super) fn kernel_since(&self, earlier: &Self) -> Option<f64> {
        let (now, then) = (self.kernel.as_ref()?, earlier.kernel.as_ref()?);
        let used = now.iter().map(|(pid, time)| {
            // One that was not there before has all of its time from between the looks.
            time.saturating_sub(then.get(pid).copied().unwrap_or_default()).as_secs_f64()
        });
        Some(used.sum())
    }
}

fn kernel_threads() -> Option<BTreeMap<u32, Duration>> {
    let mut times = BTreeMap::new();
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        if is_kernel(&stat)
            && let Ok(time) = reactor::usage::of_process(pid)
        {
            times.insert(pid, time);
        }
    }
    (!times.is_empty()).then_some(times)
}

/// Whether a `/proc/PID/stat` is a thread of the kernel's. The name, in parentheses, may hold anything.
fn is_kernel(stat: &str) -> bool {
    let flags = stat.rsplit_once(')').and_then(|(_, rest)| {
        // state ppid pgrp session tty tpgid flags
        rest.split_ascii_whitespace().nth(6)?.parse::<u64>().ok()
    });
    flags.is_some_and(|flags| flags & IS_KERNEL != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: threads of the kernel are told from processes, whatever these are called.
    #[test]
    fn threads_of_the_kernel_are_told() {
        assert!(is_kernel("2 (kthreadd) S 0 0 0 0 -1 2129984 0 0"));
        assert!(!is_kernel("9 (a) S 2 0 0 0 -1 2129984) S 1 9 9 0 -1 4194560 0 0"));
        assert!(!is_kernel(""));
    }
}
