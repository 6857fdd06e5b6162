//! The engine of current kernels: one io_uring per thread.
//!
//! If the kernel has them, the ring is made with `SINGLE_ISSUER`, `DEFER_TASKRUN` and
//! `COOP_TASKRUN`: completions are processed when this thread asks for them and never interrupt it.
//! With `TASKRUN_FLAG` a spinning thread sees in its own memory that completions wait. If the
//! submission queue is full, entries are submitted at once; entries that the kernel does not accept
//! then wait in a backlog.

mod entry;
pub(crate) mod setup;

use super::{Reaped, kick};
use crate::runtime::Config;
use crate::slots::Slot;
use io_uring::squeue::Entry128;
use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue, types};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// `user_data` of entries with a meaningless completion.
const IGNORED: u64 = u64::MAX;
/// `user_data` of the eventfd's read.
const KICK: u64 = u64::MAX - 1;

enum Ring {
    Normal(IoUring),
    Wide(IoUring<Entry128, cqueue::Entry>),
}

pub(crate) struct Uring {
    ring: Ring,
    /// Entries that the kernel has not accepted yet.
    backlog: VecDeque<Entry128>,
    kick: Arc<OwnedFd>,
    /// The destination of the eventfd's count; boxed for a stable address.
    kick_count: Box<u64>,
    kick_armed: bool,
    /// The runtime ends: the eventfd is not read any more.
    is_closing: bool,
    /// System calls by the number of entries that they submitted.
    submissions: Vec<u64>,
}

fn user_data(key: u32, generation: u32) -> u64 {
    // The top bit stays clear, which distinguishes operations from `IGNORED` and `KICK`.
    u64::from(generation & (u32::MAX >> 1)) << 32 | u64::from(key)
}

impl Uring {
    /// Makes a ring with room for `config.entries` submissions per loop turn; other threads end its
    /// sleep by `kick`.
    pub(crate) fn new(config: &Config, kick: Arc<OwnedFd>) -> io::Result<Self> {
        let entries = config.entries.next_power_of_two().clamp(8, 32_768);
        let ring = if config.sqe128 && setup::has_wide_entries() {
            Ring::Wide(setup::build(IoUring::builder(), entries)?)
        } else {
            Ring::Normal(setup::build(IoUring::builder(), entries)?)
        };
        if config.blocking_max > 0 {
            // The bound is for regular files; 0 leaves the bound for other files unchanged.
            let mut most = [config.blocking_max, 0];
            let bounded = match &ring {
                Ring::Normal(ring) => ring.submitter().register_iowq_max_workers(&mut most),
                Ring::Wide(ring) => ring.submitter().register_iowq_max_workers(&mut most),
            };
            // Linux before 5.15 has only its own bound.
            bounded.or_else(|error| match error.raw_os_error() {
                Some(libc::EINVAL) => Ok(()),
                _ => Err(error),
            })?;
        }
        Ok(Self {
            ring,
            backlog: VecDeque::new(),
            kick,
            kick_count: Box::new(0),
            kick_armed: false,
            is_closing: false,
            submissions: Vec::new(),
        })
    }

    /// Queues the operation in `slot`.
    pub(crate) fn start(&mut self, key: u32, slot: &mut Slot) {
        let entry = entry::build(slot);
        self.push(entry, user_data(key, slot.generation));
    }

    /// Asks the kernel to cancel an operation.
    pub(crate) fn cancel(&mut self, key: u32, generation: u32) {
        let entry = opcode::AsyncCancel::new(user_data(key, generation)).build();
        self.push(entry::Built::Normal(entry), IGNORED);
    }

    /// Starts a read of the eventfd, so that a kick completes an operation.
    fn arm_kick(&mut self) {
        if self.kick_armed || self.is_closing {
            return;
        }
        self.kick_armed = true;
        let fd = types::Fd(self.kick.as_raw_fd());
        let memory = std::ptr::from_mut(&mut *self.kick_count).cast();
        self.push(entry::Built::Normal(opcode::Read::new(fd, memory, 8).build()), KICK);
    }

    /// Makes no further read of the eventfd and ends the present one. Returns false once there is
    /// none.
    pub(crate) fn close_kick(&mut self) -> bool {
        if !self.is_closing {
            self.is_closing = true;
            kick(&self.kick);
        }
        self.kick_armed
    }

    fn push(&mut self, entry: entry::Built, user_data: u64) {
        // SAFETY (both pushes): memory that the entry points to is owned by a slot, which stays
        // untouched until the operation completes, or by `self`, which outlives the ring.
        match (&mut self.ring, entry) {
            (Ring::Normal(ring), entry::Built::Normal(entry)) if self.backlog.is_empty() => {
                let entry = entry.user_data(user_data);
                // SAFETY: see above.
                if unsafe { ring.submission().push(&entry) }.is_err() {
                    self.backlog.push_back(entry.into());
                    self.flush_backlog();
                }
            }
            (_, entry) => {
                self.backlog.push_back(entry.into_wide().user_data(user_data));
                self.flush_backlog();
            }
        }
    }

    /// Moves waiting entries into the submission queue, submitting as often as that helps.
    fn flush_backlog(&mut self) {
        while let Some(entry) = self.backlog.front() {
            // SAFETY: as in `push`.
            let pushed = unsafe {
                match &mut self.ring {
                    Ring::Normal(ring) => ring.submission().push(entry::narrow(entry)).is_ok(),
                    Ring::Wide(ring) => ring.submission().push(entry).is_ok(),
                }
            };
            if pushed {
                self.backlog.pop_front();
            } else if !matches!(self.submit(), Ok(n) if n > 0) {
                return;
            }
        }
    }

    /// Returns the histogram of batch sizes so far: for each number of entries, the number of
    /// system calls that submitted it.
    pub(crate) fn submissions(&self) -> Vec<(usize, u64)> {
        let counts = self.submissions.iter().copied().enumerate();
        counts.filter(|(_, count)| *count > 0).collect()
    }

    fn count_submission(&mut self) {
        let entries = match &mut self.ring {
            Ring::Normal(ring) => ring.submission().len(),
            Ring::Wide(ring) => ring.submission().len(),
        };
        if entries > 0 {
            if entries >= self.submissions.len() {
                self.submissions.resize(entries + 1, 0);
            }
            self.submissions[entries] += 1;
        }
    }

    fn submit(&mut self) -> io::Result<usize> {
        self.count_submission();
        match &self.ring {
            Ring::Normal(ring) => ring.submit(),
            Ring::Wide(ring) => ring.submit(),
        }
    }

    /// Returns whether a system call would do any work: entries to submit or completions to
    /// process.
    pub(crate) fn needs_enter(&mut self) -> bool {
        fn needs<E: squeue::EntryMarker>(queue: &squeue::SubmissionQueue<'_, E>) -> bool {
            !queue.is_empty() || queue.taskrun() || queue.cq_overflow()
        }
        !self.backlog.is_empty()
            || match &mut self.ring {
                Ring::Normal(ring) => needs(&ring.submission()),
                Ring::Wide(ring) => needs(&ring.submission()),
            }
    }

    /// Submits everything and processes completions, without waiting.
    pub(crate) fn enter(&mut self) -> io::Result<()> {
        self.flush_backlog();
        self.count_submission();
        let result = match &self.ring {
            Ring::Normal(ring) => enter_now(ring),
            Ring::Wide(ring) => enter_now(ring),
        };
        tolerate(result)
    }

    /// Submits everything and sleeps until something completes or `timeout` has passed.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.arm_kick();
        self.flush_backlog();
        self.count_submission();
        let result = match timeout {
            None => match &self.ring {
                Ring::Normal(ring) => ring.submit_and_wait(1),
                Ring::Wide(ring) => ring.submit_and_wait(1),
            },
            Some(timeout) => {
                let time = Timespec::from(timeout);
                let arguments = SubmitArgs::new().timespec(&time);
                match &self.ring {
                    Ring::Normal(ring) => ring.submitter().submit_with_args(1, &arguments),
                    Ring::Wide(ring) => ring.submitter().submit_with_args(1, &arguments),
                }
            }
        };
        tolerate(result)
    }

    /// Moves all completions to `reaped`.
    pub(crate) fn reap(&mut self, reaped: &mut Vec<Reaped>) {
        let completions = match &mut self.ring {
            Ring::Normal(ring) => ring.completion(),
            Ring::Wide(ring) => ring.completion(),
        };
        for completion in completions {
            match completion.user_data() {
                IGNORED => {}
                KICK => self.kick_armed = false,
                data => reaped.push((data as u32, completion.result())),
            }
        }
    }
}

fn enter_now<S: squeue::EntryMarker>(ring: &IoUring<S, cqueue::Entry>) -> io::Result<usize> {
    // SAFETY: the shared queue is only read, and this thread is the only one that uses the ring.
    let to_submit = unsafe { ring.submission_shared() }.len() as u32;
    let flags = EnterFlags::GETEVENTS.bits();
    // SAFETY: the entries were pushed with valid arguments; no extra argument is given.
    unsafe { ring.submitter().enter::<libc::sigset_t>(to_submit, 0, flags, None) }
}

/// Converts results that mean "continue" to success: a signal, a passed timeout, or a full
/// completion queue, which is reaped next.
pub(crate) fn tolerate(result: io::Result<usize>) -> io::Result<()> {
    match result {
        Ok(_) => Ok(()),
        Err(error) => match error.raw_os_error() {
            Some(libc::EINTR | libc::ETIME | libc::EBUSY | libc::EAGAIN) => Ok(()),
            _ => Err(error),
        },
    }
}
