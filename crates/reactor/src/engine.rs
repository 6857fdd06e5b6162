//! The engines that execute operations on the real machine: `io_uring`, or epoll with a pool of threads.
//!
//! Both have the same meaning for every operation. [`uring`] hands all to the kernel. [`epoll`] tries
//! what acts on sockets, pipes and character devices on the reactor's own thread, without blocking, and
//! waits for readiness where that is missing; operations on files and block devices, which have no readiness,
//! block a thread of a bounded [`pool`].

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
    /// The engine that `config` or else the process's choice names, and the descriptor with which other
    /// threads end its sleep.
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

    /// Gives an operation up as soon as that is possible; it completes all the same.
    pub(crate) fn cancel(&mut self, key: u32, generation: u32) {
        match self {
            Self::Uring(uring) => uring.cancel(key, generation),
            Self::Epoll(epoll) => epoll.cancel(key),
        }
    }

    /// Whether [`enter`](Self::enter) would get anything done.
    pub(crate) fn needs_enter(&mut self) -> bool {
        match self {
            Self::Uring(uring) => uring.needs_enter(),
            Self::Epoll(epoll) => epoll.needs_enter(),
        }
    }

    /// Starts what is queued and works completions off, without waiting.
    pub(crate) fn enter(&mut self) -> io::Result<()> {
        match self {
            Self::Uring(uring) => uring.enter(),
            Self::Epoll(epoll) => epoll.enter(),
        }
    }

    /// Starts what is queued and sleeps until something completes or `timeout` has passed.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Uring(uring) => uring.wait(timeout),
            Self::Epoll(epoll) => epoll.wait(timeout),
        }
    }

    /// Moves all completions that have come to `reaped`.
    pub(crate) fn reap(&mut self, reaped: &mut Vec<Reaped>) {
        match self {
            Self::Uring(uring) => uring.reap(reaped),
            Self::Epoll(epoll) => epoll.reap(reaped),
        }
    }

    /// The runtime ends: true while the kernel may still write into what belongs to the engine itself.
    pub(crate) fn close(&mut self) -> bool {
        match self {
            Self::Uring(uring) => uring.close_kick(),
            Self::Epoll(_) => false,
        }
    }

    /// System calls so far that started something: operations, and how often it were so many.
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

/// The engines that can be had here, for tests that run over each.
#[cfg(test)]
pub(crate) fn usable() -> impl Iterator<Item = Kind> + Clone {
    Kind::ALL.into_iter().filter(|&kind| kind != Kind::Uring || uring::setup::level().is_ok())
}
