//! Threads that run only when no other thread needs the CPU.

use std::io;

/// `IOPRIO_WHO_PROCESS` of `linux/ioprio.h`; with 0 for "who" it means the calling thread.
const WHO_THREAD: libc::c_int = 1;
/// `IOPRIO_CLASS_IDLE`, in its position above the level (`IOPRIO_CLASS_SHIFT`).
const CLASS_IDLE: libc::c_int = 3 << 13;

/// Puts the calling thread behind all others. The scheduler runs it when a processor is free
/// (`SCHED_IDLE`). Its reads and write-back come after all others if the device has an I/O
/// scheduler with priorities (the class "idle" of `ioprio_set(2)`).
///
/// # Errors
/// Errors of the kernel; every process may lower its own threads. Does nothing in a simulation.
pub fn yield_to_all() -> io::Result<()> {
    if super::with_sim() {
        return Ok(());
    }
    // SAFETY: `sched_param` is a struct of numbers, for which zeros are valid.
    let param: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the call reads the struct behind the pointer, and 0 is the calling thread.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const param) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call takes no pointers.
    if unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_THREAD, 0, CLASS_IDLE) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: the kernel reports the calling thread as idle, and no other.
    #[test]
    fn the_calling_thread_becomes_idle() {
        // SAFETY: the call takes no pointers.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let before = policy();
        let idle = std::thread::spawn(move || {
            yield_to_all().unwrap();
            policy()
        });
        assert_eq!(idle.join().unwrap(), libc::SCHED_IDLE);
        assert_eq!(policy(), before);
    }
}
