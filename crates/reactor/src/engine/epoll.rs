//! The engine of kernels without `io_uring`: an epoll instance and a pool of threads for each
//! reactor.
//!
//! Operations are queued and begun together at the end of a loop turn, as with `io_uring`;
//! otherwise an operation that can always continue would keep the others waiting. Operations on a
//! socket, pipe or character device are tried at once, and again when an event says that they may
//! succeed. Operations on files go to the [pool](super::pool), unless the kernel can answer from
//! its cache without blocking (`RWF_NOWAIT`).

mod call;
mod sources;

use super::Reaped;
use super::file_call::{AtOnce, FileCall};
use super::pool::Pool;
use crate::handle::{Descriptor, Handle};
use crate::runtime::Config;
use crate::slots::Slot;
use call::{Attempt, Call, Interest};
use sources::{Sources, control};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Most events of one system call.
const EVENTS_MAX: usize = 256;
/// Most loop turns with enough work that skip the check for events.
const TURNS_WITHOUT_LOOK_MAX: u32 = 4;
/// The data of the eventfd's events: no descriptor has that number.
const KICK: u64 = u64::MAX;

/// The bits of a descriptor's nature.
mod nature {
    pub(super) const KNOWN: u8 = 1;
    /// It does not report readiness.
    pub(super) const FILE: u8 = 2;
    pub(super) const NONBLOCKING: u8 = 4;
    /// Reads, or writes, may be tried without blocking.
    pub(super) const READS_AT_ONCE: u8 = 8;
    pub(super) const WRITES_AT_ONCE: u8 = 16;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PendingState {
    Ended,
    Queued,
    /// Waits for an event.
    Waiting,
    InPool,
}

/// An operation under way.
struct Pending {
    state: PendingState,
    handle: Option<Handle>,
    call: Call,
}

pub(crate) struct Epoll {
    instance: OwnedFd,
    sources: Sources,
    /// Operations by key.
    pending: Vec<Pending>,
    queued: VecDeque<u32>,
    done: Vec<Reaped>,
    /// Operations of a source that are tried again.
    retried: Vec<u32>,
    events: Vec<libc::epoll_event>,
    turns_without_look: u32,
    has_pwait2: bool,
    started: u64,
    pool: Pool<FileCall>,
}

impl Epoll {
    /// Makes an engine; other threads end its sleep by `kick`.
    pub(crate) fn new(config: &Config, kick: Arc<OwnedFd>) -> io::Result<Self> {
        // SAFETY: the call takes no pointers.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        // Edge triggered: each kick is an event, and the count need not be read.
        control(&epoll, libc::EPOLL_CTL_ADD, kick.as_raw_fd(), KICK)?;
        let mut engine = Self {
            instance: epoll,
            sources: Sources::default(),
            pending: Vec::new(),
            queued: VecDeque::new(),
            done: Vec::new(),
            retried: Vec::new(),
            events: vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX],
            turns_without_look: 0,
            has_pwait2: true,
            started: 0,
            pool: Pool::new(config.blocking_max as usize, kick),
        };
        // Linux 5.11 has it, but a seccomp filter may forbid it.
        engine.has_pwait2 = engine.pwait2(Duration::ZERO).is_ok();
        Ok(engine)
    }

    /// Queues the operation in `slot`.
    pub(crate) fn start(&mut self, key: u32, slot: &mut Slot) {
        let handle = slot.handle.clone();
        let bits = handle.as_ref().and_then(Handle::descriptor).map(|it| self.nature_of(it));
        let call = match bits {
            Some(Ok(bits)) => call::build(slot, bits & nature::FILE != 0),
            Some(Err(error)) => Call::Refused(-error.raw_os_error().unwrap_or(libc::EIO)),
            // As with `io_uring`: a simulated object outside of its simulation.
            None => Call::Refused(-libc::EBADF),
        };
        let index = key as usize;
        if index >= self.pending.len() {
            let nothing =
                || Pending { state: PendingState::Ended, handle: None, call: Call::Refused(0) };
            self.pending.resize_with(index + 1, nothing);
        }
        debug_assert_eq!(self.pending[index].state, PendingState::Ended, "a key has one operation");
        self.pending[index] = Pending { state: PendingState::Queued, handle, call };
        self.queued.push_back(key);
        self.started += 1;
    }

    /// Returns the nature of a descriptor, determined at its first operation.
    fn nature_of(&mut self, descriptor: &Descriptor) -> io::Result<u8> {
        let known = descriptor.nature.load(Ordering::Relaxed);
        if known != 0 {
            return Ok(known);
        }
        let bits = nature::KNOWN | self.look_at(descriptor)?;
        descriptor.nature.fetch_or(bits, Ordering::Relaxed);
        Ok(bits)
    }

    fn look_at(&mut self, descriptor: &Descriptor) -> io::Result<u8> {
        use rustix::fs::{FileType, OFlags};
        match FileType::from_raw_mode(rustix::fs::fstat(&descriptor.fd)?.st_mode) {
            FileType::RegularFile | FileType::BlockDevice => {
                // Direct I/O waits for the device even with `RWF_NOWAIT`.
                let is_direct = rustix::fs::fcntl_getfl(&descriptor.fd)?.contains(OFlags::DIRECT);
                let at_once = nature::READS_AT_ONCE | nature::WRITES_AT_ONCE;
                Ok(nature::FILE | if is_direct { 0 } else { at_once })
            }
            FileType::Directory | FileType::Symlink => Ok(nature::FILE),
            FileType::Fifo | FileType::Socket | FileType::CharacterDevice | FileType::Unknown => {
                match self.sources.register(&self.instance, descriptor) {
                    Ok(()) => Ok(0),
                    Err(error) if error.raw_os_error() == Some(libc::EPERM) => Ok(nature::FILE),
                    Err(error) => Err(error),
                }
            }
        }
    }

    /// Cancels an operation, unless it has ended or a thread is running it.
    pub(crate) fn cancel(&mut self, key: u32) {
        let pending = &self.pending[key as usize];
        match pending.state {
            PendingState::Ended => return,
            PendingState::Queued => self.queued.retain(|&other| other != key),
            PendingState::Waiting => {
                let descriptor = pending.handle.as_ref().and_then(Handle::descriptor);
                if let Some(source) = descriptor.and_then(|it| self.sources.get(it)) {
                    source.waiting.retain(|&other| other != key);
                }
            }
            PendingState::InPool => {
                if !self.pool.cancel(key) {
                    return;
                }
            }
        }
        self.complete(key, -libc::ECANCELED);
    }

    fn complete(&mut self, key: u32, code: i32) {
        self.pending[key as usize].state = PendingState::Ended;
        self.done.push((key, code));
    }

    /// Begins the queued operations.
    fn begin(&mut self) {
        while let Some(key) = self.queued.pop_front() {
            let pending = &self.pending[key as usize];
            match pending.call {
                Call::Stream(call) => {
                    let handle = pending.handle.clone();
                    let descriptor = handle.as_ref().and_then(Handle::descriptor);
                    let prepared = descriptor.map_or(Ok(()), |descriptor| {
                        if call.needs_nonblocking() {
                            make_nonblocking(descriptor)?;
                        }
                        self.sources.register(&self.instance, descriptor)
                    });
                    match prepared {
                        Ok(()) => self.attempt(key),
                        // A descriptor without readiness is always ready.
                        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                            self.attempt(key);
                        }
                        Err(error) => {
                            self.complete(key, -error.raw_os_error().unwrap_or(libc::EIO));
                        }
                    }
                }
                Call::File(call) => self.begin_file(key, call),
                Call::Refused(code) => self.complete(key, code),
            }
        }
    }

    /// Runs a file call: here if it does not block, otherwise on the pool.
    fn begin_file(&mut self, key: u32, call: FileCall) {
        let bit = match call {
            FileCall::Read { offset, .. } if offset != u64::MAX => nature::READS_AT_ONCE,
            FileCall::Write { .. } => nature::WRITES_AT_ONCE,
            // A partial read at the current position could not be read again; the others wait.
            FileCall::Read { .. }
            | FileCall::Sync { .. }
            | FileCall::WriteBack { .. }
            | FileCall::Allocate { .. } => 0,
        };
        let pending = &mut self.pending[key as usize];
        let descriptor = pending.handle.as_ref().and_then(Handle::descriptor);
        let known = descriptor.map_or(0, |it| it.nature.load(Ordering::Relaxed));
        if known & bit != 0 {
            match call.run_if_at_once() {
                AtOnce::Done(code) => return self.complete(key, code),
                AtOnce::WouldBlock => {}
                AtOnce::Unknown => {
                    descriptor.map(|it| it.nature.fetch_and(!bit, Ordering::Relaxed));
                }
            }
        }
        pending.state = PendingState::InPool;
        self.pool.push(key, call);
    }

    /// Tries a call that does not block; makes it wait if it cannot continue.
    fn attempt(&mut self, key: u32) {
        let pending = &mut self.pending[key as usize];
        let fd = pending.handle.as_ref().map_or(-1, Handle::raw_fd);
        let descriptor = pending.handle.as_ref().and_then(Handle::descriptor);
        let Call::Stream(call) = &mut pending.call else {
            unreachable!("only streams wait for events")
        };
        let mut source = descriptor.and_then(|it| self.sources.get(it));
        let may = |interest: Interest| source.as_ref().is_none_or(|source| source.may(interest));
        let attempt = match call.interest().filter(|&interest| !may(interest)) {
            Some(interest) => Attempt::Wait(interest),
            // SAFETY: the slot of this key is in use, and its handle keeps the descriptor open; it
            // was made non-blocking where that is needed, see `begin`.
            None => unsafe { call.attempt(fd) },
        };
        match attempt {
            Attempt::Done(code) => self.complete(key, code),
            Attempt::Drained(code) => {
                if let Some(source) = source {
                    source.drain();
                }
                self.complete(key, code);
            }
            Attempt::Wait(interest) => match &mut source {
                Some(source) => {
                    source.exhaust(interest);
                    source.waiting.push(key);
                    pending.state = PendingState::Waiting;
                }
                // Not ready, and no event will report when it is.
                None => self.complete(key, -libc::EAGAIN),
            },
        }
    }

    /// Sleeps until an event, at most for `timeout`.
    fn look(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.turns_without_look = 0;
        let result = match timeout {
            Some(timeout) if !timeout.is_zero() => self.timed(timeout),
            Some(_) => self.epoll_wait(0),
            None => self.epoll_wait(-1),
        };
        let count = match result {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => return Err(error),
        };
        for index in 0..count {
            let event = self.events[index];
            let (data, bits) = (event.u64, event.events);
            if data == KICK {
                continue;
            }
            let Some(source) = self.sources.of_event(data) else { continue };
            source.note(bits);
            std::mem::swap(&mut source.waiting, &mut self.retried);
            let mut retried = std::mem::take(&mut self.retried);
            retried.drain(..).for_each(|key| self.attempt(key));
            self.retried = retried;
        }
        Ok(())
    }

    fn timed(&mut self, timeout: Duration) -> io::Result<usize> {
        if self.has_pwait2 {
            return self.pwait2(timeout);
        }
        // An epoll instance can itself be polled, with the time in nanoseconds.
        let mut one =
            libc::pollfd { fd: self.instance.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let time = timespec(timeout);
        // SAFETY: the call reads and writes the one struct behind the pointer, and reads the time.
        match unsafe { libc::ppoll(&raw mut one, 1, &raw const time, std::ptr::null()) } {
            0 => Ok(0),
            1 => self.epoll_wait(0),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn pwait2(&mut self, timeout: Duration) -> io::Result<usize> {
        let time = timespec(timeout);
        let (events, most) = (self.events.as_mut_ptr(), EVENTS_MAX as libc::c_int);
        let (no_mask, no_size) = (std::ptr::null::<libc::sigset_t>(), 0_usize);
        // SAFETY: there is room for as many events as the call may write, and it reads the time.
        let count = unsafe {
            let (call, fd) = (libc::SYS_epoll_pwait2, self.instance.as_raw_fd());
            libc::syscall(call, fd, events, most, &raw const time, no_mask, no_size)
        };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    fn epoll_wait(&mut self, timeout_ms: libc::c_int) -> io::Result<usize> {
        let (events, most) = (self.events.as_mut_ptr(), EVENTS_MAX as libc::c_int);
        // SAFETY: there is room for as many events as the call may write.
        let count =
            unsafe { libc::epoll_wait(self.instance.as_raw_fd(), events, most, timeout_ms) };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    fn has_done(&self) -> bool {
        !self.done.is_empty() || self.pool.has_done()
    }

    /// Returns whether to leave events for another turn, because there is enough to do.
    fn may_skip_look(&mut self) -> bool {
        self.turns_without_look += 1;
        self.has_done() && self.turns_without_look < TURNS_WITHOUT_LOOK_MAX
    }

    /// As [`Engine::needs_enter`](super::Engine::needs_enter).
    pub(crate) fn needs_enter(&mut self) -> bool {
        if !self.queued.is_empty() {
            return true;
        }
        self.turns_without_look += 1;
        self.turns_without_look >= TURNS_WITHOUT_LOOK_MAX
    }

    /// As [`Engine::enter`](super::Engine::enter).
    pub(crate) fn enter(&mut self) -> io::Result<()> {
        self.begin();
        if self.may_skip_look() { Ok(()) } else { self.look(Some(Duration::ZERO)) }
    }

    /// As [`Engine::wait`](super::Engine::wait).
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.begin();
        if self.may_skip_look() {
            return Ok(());
        }
        if self.has_done() || !self.pool.prepare_sleep() {
            return self.look(Some(Duration::ZERO));
        }
        let result = self.look(timeout);
        self.pool.end_sleep();
        result
    }

    /// As [`Engine::reap`](super::Engine::reap).
    pub(crate) fn reap(&mut self, reaped: &mut Vec<Reaped>) {
        reaped.append(&mut self.done);
        self.pool.take_done(reaped);
        for (key, _) in reaped {
            let pending = &mut self.pending[*key as usize];
            pending.state = PendingState::Ended;
            pending.handle = None;
        }
    }

    /// Returns the number of operations that were started, each by a system call of its own.
    pub(crate) fn submissions(&self) -> Vec<(usize, u64)> {
        if self.started == 0 { Vec::new() } else { vec![(1, self.started)] }
    }
}

fn timespec(time: Duration) -> libc::timespec {
    // A time longer than 68 years counts as for ever.
    let seconds = i32::try_from(time.as_secs()).unwrap_or(i32::MAX);
    libc::timespec { tv_sec: seconds.into(), tv_nsec: time.subsec_nanos().into() }
}

/// Makes a descriptor non-blocking, once.
fn make_nonblocking(descriptor: &Descriptor) -> io::Result<()> {
    if descriptor.nature.load(Ordering::Relaxed) & nature::NONBLOCKING != 0 {
        return Ok(());
    }
    let flags = rustix::fs::fcntl_getfl(&descriptor.fd)?;
    if !flags.contains(rustix::fs::OFlags::NONBLOCK) {
        rustix::fs::fcntl_setfl(&descriptor.fd, flags | rustix::fs::OFlags::NONBLOCK)?;
    }
    descriptor.nature.fetch_or(nature::NONBLOCKING, Ordering::Relaxed);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::monotonic_ns;

    /// Goal: without `epoll_pwait2`, sleeps are as exact, and a kick ends one, even a kick just
    /// before it.
    #[test]
    fn sleeps_end_in_time_on_older_kernels() {
        for has_pwait2 in [true, false] {
            let flags = rustix::event::EventfdFlags::CLOEXEC;
            let kick = Arc::new(rustix::event::eventfd(0, flags).unwrap());
            let mut engine = Epoll::new(&Config::default(), Arc::clone(&kick)).unwrap();
            engine.has_pwait2 &= has_pwait2;
            let mut slept = |time| {
                let begun_ns = monotonic_ns();
                engine.wait(Some(time)).unwrap();
                Duration::from_nanos(monotonic_ns() - begun_ns)
            };
            let time = Duration::from_micros(300);
            let least = (0..20).map(|_| slept(time)).min().unwrap();
            assert!(least >= time && least < Duration::from_millis(2), "{least:?}");
            for _ in 0..3 {
                crate::engine::kick(&kick);
                assert!(slept(Duration::from_secs(10)) < Duration::from_secs(5));
            }
            let again = slept(time);
            assert!(again >= time, "one kick ends one sleep: {again:?}");
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(5));
                    crate::engine::kick(&kick);
                });
                assert!(slept(Duration::from_secs(10)) < Duration::from_secs(5));
            });
        }
    }
}
