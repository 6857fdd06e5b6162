//! CPU time of processes, as the scheduler counts it: in nanoseconds, not in ticks.

use std::io;
use std::time::Duration;

/// Returns the CPU time of all children of this process that have ended and were waited for, and of
/// their own such children. Exact to a microsecond.
///
/// # Errors
/// Errors of `getrusage`.
pub fn of_children() -> io::Result<Duration> {
    // SAFETY: `rusage` is a struct of numbers, for which zeros are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes the struct behind the pointer.
    if unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let time = |it: libc::timeval| {
        Duration::from_secs(it.tv_sec as u64) + Duration::from_micros(it.tv_usec as u64)
    };
    // The kernel divides the exact sum between the two by ticks, so only the sum is exact.
    Ok(time(usage.ru_utime) + time(usage.ru_stime))
}

/// Returns the CPU time of all threads of a process so far, including ended ones. Works also for a
/// kernel thread, and for a process that has ended and was not waited for. No right is needed for
/// other users' processes.
///
/// # Errors
/// `ESRCH` or `EINVAL` if there is no such process.
pub fn of_process(pid: u32) -> io::Result<Duration> {
    let mut clock: libc::clockid_t = 0;
    // SAFETY: the call writes the number behind the pointer.
    let code = unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &raw mut clock) };
    if code != 0 {
        return Err(io::Error::from_raw_os_error(code));
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes the struct behind the pointer.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::time::{ClockId, clock_gettime};

    /// Goal: a process's time matches its own clock, including threads that have ended; a process
    /// that does not exist has none.
    #[test]
    fn processes_have_their_time() {
        let own = || {
            let time = clock_gettime(ClockId::ProcessCPUTime);
            Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
        };
        let burn = || {
            let begun = clock_gettime(ClockId::ThreadCPUTime);
            let end = begun.tv_sec * 1_000_000_000 + begun.tv_nsec + 20_000_000;
            loop {
                let now = clock_gettime(ClockId::ThreadCPUTime);
                if now.tv_sec * 1_000_000_000 + now.tv_nsec >= end {
                    break;
                }
            }
        };
        let first = of_process(std::process::id()).unwrap();
        std::thread::spawn(burn).join().unwrap();
        let (before, reported, after) = (own(), of_process(std::process::id()).unwrap(), own());
        assert!(reported >= first + Duration::from_millis(20), "{first:?} {reported:?}");
        assert!(before <= reported && reported <= after, "{before:?} {reported:?} {after:?}");
        // Above the highest number that the kernel assigns (PID_MAX_LIMIT).
        assert!(of_process((1 << 22) + 1).is_err());
    }

    /// Goal: the CPU time of a child counts once it was waited for, together with its own children.
    #[test]
    fn children_count_when_they_were_waited_for() {
        let before = of_children().unwrap();
        let loops = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done";
        let script = format!("({loops}) & wait; {loops}");
        let mut child = std::process::Command::new("sh").args(["-c", &script]).spawn().unwrap();
        child.wait().unwrap();
        let used = of_children().unwrap().checked_sub(before).unwrap();
        assert!(used > Duration::from_millis(2), "{used:?}");
    }
}
