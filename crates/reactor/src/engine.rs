//! The engines that execute operations on the real machine: `io_uring`, or epoll with a pool of
//! threads.
//!
//! Both give every operation the same meaning. [`uring`] hands all operations to the kernel.
//! [`epoll`] tries operations on sockets, pipes and character devices on the reactor's own thread,
//! without blocking, and waits for readiness if it is missing. Files and block devices have no
//! readiness, so their operations block a thread of a bounded [`pool`].

mod arguments;
pub mod choice;
mod epoll;
pub(crate) mod file_call;
pub(crate) mod pool;
pub(crate) mod uring;

pub(crate) use arguments::Arguments;
pub use choice::{Choice, Kind, choice, insist};

use crate::runtime::Config;
use crate::slots::Slot;
use epoll::Epoll;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use uring::Uring;

/// One completion: key and result.
pub(crate) type Reaped = (u32, i32);

#[allow(clippy::large_enum_variant, reason = "one per thread, and never moved")]
pub(crate) enum Engine {
    Uring(Uring),
    Epoll(Epoll),
}

impl Engine {
    /// Makes the engine that `config` names, or else the process's choice. Also returns the
    /// descriptor with which other threads end its sleep.
    pub(crate) fn new(config: &Config) -> io::Result<(Self, Arc<OwnedFd>)> {
        let flags = rustix::event::EventfdFlags::CLOEXEC;
        let kick = Arc::new(rustix::event::eventfd(0, flags)?);
        let kind = match config.engine {
            Some(kind) => kind,
            None => choice()?.kind,
        };
        let engine = match kind {
            Kind::Uring => Self::Uring(Uring::new(config, Arc::clone(&kick))?),
            Kind::Epoll => Self::Epoll(Epoll::new(config, Arc::clone(&kick))?),
        };
        Ok((engine, kick))
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Uring(_) => Kind::Uring,
            Self::Epoll(_) => Kind::Epoll,
        }
    }

    /// Queues the operation in `slot`.
    pub(crate) fn start(&mut self, key: u32, slot: &mut Slot) {
        match self {
            Self::Uring(uring) => uring.start(key, slot),
            Self::Epoll(epoll) => epoll.start(key, slot),
        }
    }

    /// Cancels an operation as soon as possible; it still completes.
    pub(crate) fn cancel(&mut self, key: u32, generation: u32) {
        match self {
            Self::Uring(uring) => uring.cancel(key, generation),
            Self::Epoll(epoll) => epoll.cancel(key),
        }
    }

    /// Returns whether [`enter`](Self::enter) would do any work.
    pub(crate) fn needs_enter(&mut self) -> bool {
        match self {
            Self::Uring(uring) => uring.needs_enter(),
            Self::Epoll(epoll) => epoll.needs_enter(),
        }
    }

    /// Starts queued operations and processes completions, without waiting.
    pub(crate) fn enter(&mut self) -> io::Result<()> {
        match self {
            Self::Uring(uring) => uring.enter(),
            Self::Epoll(epoll) => epoll.enter(),
        }
    }

    /// Starts queued operations and sleeps until something completes or `timeout` has passed.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Uring(uring) => uring.wait(timeout),
            Self::Epoll(epoll) => epoll.wait(timeout),
        }
    }

    /// Moves all completions to `reaped`.
    pub(crate) fn reap(&mut self, reaped: &mut Vec<Reaped>) {
        match self {
            Self::Uring(uring) => uring.reap(reaped),
            Self::Epoll(epoll) => epoll.reap(reaped),
        }
    }

    /// Closes the engine at the end of the runtime. Returns true while the kernel may still write
    /// into the engine's own memory.
    pub(crate) fn close(&mut self) -> bool {
        match self {
            Self::Uring(uring) => uring.close_kick(),
            Self::Epoll(_) => false,
        }
    }

    /// Returns the histogram of batch sizes so far: for each number of operations, the number of
    /// system calls that started it.
    pub(crate) fn submissions(&self) -> Vec<(usize, u64)> {
        match self {
            Self::Uring(uring) => uring.submissions(),
            Self::Epoll(epoll) => epoll.submissions(),
        }
    }
}

/// Ends the sleep of a reactor, from any thread.
pub(crate) fn kick(fd: &OwnedFd) {
    // An eventfd that is full already wakes its reader anyway.
    let _ = rustix::io::write(fd, &1_u64.to_le_bytes());
}

/// Returns the engines that work here, for tests that run over each.
#[cfg(test)]
pub(crate) fn usable() -> impl Iterator<Item = Kind> + Clone {
    Kind::ALL.into_iter().filter(|&kind| kind != Kind::Uring || uring::setup::level().is_ok())
}
