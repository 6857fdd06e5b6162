//! Processes that an experiment started, found by its token in their environment, and their end.

use super::{OWNER_VARIABLE, Owner, SERVICE_VARIABLE};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs;
use std::time::{Duration, Instant};

/// A process that is proven to be ours. The descriptor names it, even when its number is used again.
#[derive(Debug)]
pub(super) struct Process {
    descriptor: OwnedFd,
    /// Whether others depend on it.
    pub(super) is_service: bool,
}

/// All processes with this token, but this one.
pub(super) fn owned_by(owner: &Owner) -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let others = numbers.filter(|number: &i32| *number as u32 != std::process::id());
    others.filter_map(|number| open(number, owner)).collect()
}

/// The process of this number, if it has the token.
fn open(number: i32, owner: &Owner) -> Option<Process> {
    // Opened before its environment is read: the environment is then this process's, or the read
    // fails as it has ended.
    let descriptor = pidfd_open(Pid::from_raw(number)?, PidfdFlags::empty()).ok()?;
    let environment = fs::read(format!("/proc/{number}/environ")).ok()?;
    let has = |name: &str, value: &str| {
        let wanted = format!("{name}={value}");
        environment.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes())
    };
    let process = Process { is_service: has(SERVICE_VARIABLE, "1"), descriptor };
    (has(OWNER_VARIABLE, &owner.0) && !process.has_ended(Duration::ZERO)).then_some(process)
}

impl Process {
    /// Waits until it has ended, for so long at most.
    fn has_ended(&self, patience: Duration) -> bool {
        let timeout = Timespec::try_from(patience).ok();
        let mut set = [PollFd::new(&self.descriptor, PollFlags::IN)];
        poll(&mut set, timeout.as_ref()).is_ok_and(|ready| ready > 0)
    }
}

/// Ends processes: SIGTERM, and SIGKILL for those that are there after `patience`. Gives how many
/// there are still.
pub(super) fn end(processes: &[Process], patience: Duration) -> usize {
    let begun = Instant::now();
    for signal in [Signal::TERM, Signal::KILL] {
        for process in processes {
            // What has ended already needs no signal.
            let _ = pidfd_send_signal(&process.descriptor, signal);
        }
        let until = if signal == Signal::TERM { patience } else { 2 * patience };
        for process in processes {
            process.has_ended(until.saturating_sub(begun.elapsed()));
        }
        if processes.iter().all(|process| process.has_ended(Duration::ZERO)) {
            return 0;
        }
    }
    processes.iter().filter(|process| !process.has_ended(Duration::ZERO)).count()
}
