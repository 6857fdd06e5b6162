//! Keeping a CPU busy for a moment, so that the scheduler moves nothing to it.
//!
//! A thread that has just bound itself to its caller's CPU loses the caller with the next answer:
//! the kernel wakes a task on the CPU that it used before, if that one is idle (`recent_used_cpu` in
//! `select_idle_sibling`, `kernel/sched/fair.c`). The CPU that the thread has left is idle, and the
//! caller often comes from there. A caller that is woken once beside the thread stays there.

use super::only;
use crate::time::monotonic_ns;
use rustix::thread::sched_setaffinity;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// How long a CPU is kept busy: a few requests of the caller.
const HOLD: Duration = Duration::from_micros(100);
/// Mean time between two holds, so that they take at most a tenth of one CPU for long.
const EACH_NS: u64 = 1_000_000;
/// How much of this time may be saved up: it often takes several moves until a caller stays.
const SAVED_NS: u64 = 20 * EACH_NS;
/// No CPU is waiting to be held.
const NONE: u32 = u32::MAX;

/// The CPU to hold next.
static WANTED: AtomicU32 = AtomicU32::new(NONE);
/// When a hold may begin again, in nanoseconds of the monotonic clock.
static NEXT_NS: AtomicU64 = AtomicU64::new(0);
/// The process's thread that holds CPUs; `None` if it cannot be started.
static HOLDER: OnceLock<Option<Thread>> = OnceLock::new();

/// Keeps `cpu` busy for 100 us from now on, unless CPUs were held too often lately. Does not wait.
/// For the CPU that a caller, or the thread that serves it, has just left.
pub fn hold(cpu: u16) {
    let now_ns = monotonic_ns();
    let least_ns = now_ns.saturating_sub(SAVED_NS);
    let may = |next_ns: u64| (next_ns <= now_ns).then_some(next_ns.max(least_ns) + EACH_NS);
    if NEXT_NS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, may).is_err() {
        return;
    }
    let holder = HOLDER.get_or_init(|| {
        let started = std::thread::Builder::new().name("cpu-hold".into()).spawn(serve).ok()?;
        Some(started.thread().clone())
    });
    if let Some(holder) = holder {
        WANTED.store(cpu.into(), Ordering::Release);
        holder.unpark();
    }
}

fn serve() {
    loop {
        let wanted = WANTED.swap(NONE, Ordering::Acquire);
        let Some(set) = u16::try_from(wanted).ok().and_then(only) else {
            std::thread::park();
            continue;
        };
        if sched_setaffinity(None, &set).is_ok() {
            let start = Instant::now();
            while start.elapsed() < HOLD {
                std::hint::spin_loop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::{Pid, sched_getaffinity};

    /// Goal: one thread of the process goes to the CPUs that are to be held.
    #[test]
    fn a_thread_holds_the_cpu() {
        let home = sched_getaffinity(None).unwrap();
        for cpu in (0..64).filter(|&cpu| home.is_set(usize::from(cpu))) {
            NEXT_NS.store(0, Ordering::Relaxed);
            hold(cpu);
            let holder = || {
                let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
                let mut holders = tasks.filter(|task| {
                    std::fs::read(task.path().join("comm")).is_ok_and(|name| name == b"cpu-hold\n")
                });
                let name = holders.next()?.file_name();
                assert!(holders.next().is_none(), "one thread for the process");
                Pid::from_raw(name.to_str()?.parse().ok()?)
            };
            while holder().and_then(|pid| sched_getaffinity(Some(pid)).ok()) != only(cpu) {
                std::thread::yield_now();
            }
        }
    }
}
