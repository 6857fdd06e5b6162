//! Following a lone caller over `/dev/fuse`.
//!
//! The thread that serves runs best on the CPU of its caller ([`reactor::affinity`]). A request
//! over `/dev/fuse` shows only the caller's thread. Its CPU costs a look into `/proc`, so this
//! module looks only at a thread that has sent many requests in a row, and again from time to time.

use std::cell::Cell;
use std::rc::Rc;

use reactor::affinity::Follower;

use crate::mount::{Cpus, Mounter};

/// Requests in a row of one thread after which its CPU is looked up, and after which it is looked
/// up again.
const FIRST: u32 = 16;
const AGAIN: u32 = 256;

/// The threads that send requests, and the thread that serves them.
pub(crate) struct Callers {
    cpus: Cpus,
    follower: Rc<Follower>,
    /// The thread of the last request, and how many it has sent in a row.
    thread: Cell<u32>,
    row: Cell<u32>,
    /// The thread's CPU, if it was looked up.
    cpu: Cell<Option<u16>>,
    /// Whether an answer is awaited.
    is_asked: Cell<bool>,
}

impl Callers {
    pub(crate) fn new(mounter: Option<&Mounter>) -> Self {
        Self {
            cpus: mounter.map_or(Cpus::Own, Mounter::cpus),
            follower: Follower::new(),
            thread: Cell::new(0),
            row: Cell::new(0),
            cpu: Cell::new(None),
            is_asked: Cell::new(false),
        }
    }

    /// Notes a request of a thread; 0 is the kernel. It is prompt if it needs little CPU time.
    pub(crate) fn note(&self, thread: u32, is_prompt: bool) {
        if thread == 0 {
            return;
        }
        if self.is_asked.get() {
            self.take_answer();
        }
        if self.thread.replace(thread) != thread {
            self.row.set(0);
            self.cpu.set(None);
            return self.follower.stray();
        }
        let row = self.row.get().wrapping_add(1);
        self.row.set(row);
        if row == FIRST || row.is_multiple_of(AGAIN) {
            let cpu = self.cpus.ask(thread);
            self.is_asked.set(cpu.is_none());
            self.cpu.set(cpu.or(self.cpu.get()));
        }
        if let Some(cpu) = self.cpu.get() {
            self.follower.note(cpu, is_prompt);
        }
    }

    fn take_answer(&self) {
        while let Some((thread, cpu)) = self.cpus.answer() {
            self.is_asked.set(false);
            if thread == self.thread.get() {
                self.cpu.set(Some(cpu));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::{gettid, sched_getaffinity};

    fn allowed() -> u32 {
        sched_getaffinity(None).expect("readable").count()
    }

    /// Goal: the thread follows one caller whose CPU is known, and no longer if callers alternate.
    #[test]
    fn a_lone_thread_is_followed() {
        let mut runtime = reactor::Runtime::new(&reactor::Config::default()).expect("a runtime");
        runtime.block_on(async {
            let free = allowed();
            let callers = Callers::new(None);
            let own = gettid().as_raw_nonzero().get().cast_unsigned();
            (0..FIRST).for_each(|_| callers.note(own, true));
            assert_eq!(allowed(), free, "its CPU was not looked up yet");
            (0..2 * FIRST).for_each(|_| callers.note(own, true));
            assert_eq!(allowed(), 1);
            (0..FIRST).for_each(|_| callers.note(0, true));
            assert_eq!(allowed(), 1, "requests of the kernel do not count");
            (0..FIRST).for_each(|turn| callers.note(own + turn % 2, true));
            assert_eq!(allowed(), free);
        });
    }

    /// Goal: without a place to ask, the thread stays free.
    #[test]
    fn an_unknown_cpu_is_not_followed() {
        let mut runtime = reactor::Runtime::new(&reactor::Config::default()).expect("a runtime");
        runtime.block_on(async {
            let free = allowed();
            let callers = Callers { cpus: Cpus::Unknown, ..Callers::new(None) };
            (0..4 * FIRST).for_each(|_| callers.note(7, true));
            assert_eq!(allowed(), free);
        });
    }
}
