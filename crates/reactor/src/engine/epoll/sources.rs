//! The descriptors that an epoll instance knows.
//!
//! A descriptor is registered once, at the first operation that may have to wait, for all events
//! and edge triggered; the kernel forgets it when it is closed. An entry with a closed descriptor
//! is replaced when the number is used again. While operations wait, their slots keep the
//! descriptor open.

use super::call::Interest;
use crate::handle::Descriptor;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

const EVENTS: libc::c_int =
    libc::EPOLLIN | libc::EPOLLPRI | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
const READ_EVENTS: libc::c_int = libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR;
const WRITE_EVENTS: libc::c_int = libc::EPOLLOUT | libc::EPOLLHUP | libc::EPOLLERR;
const END_EVENTS: libc::c_int = libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR;

/// A registered descriptor.
#[derive(Default)]
pub(super) struct Source {
    /// The descriptor's identifier; 0 for none.
    id: u64,
    may_read: bool,
    may_write: bool,
    /// The peer sends no more, or the connection is over: a read always returns, if only with the
    /// end.
    has_ended: bool,
    /// Operations that wait, oldest first.
    pub(super) waiting: Vec<u32>,
}

impl Source {
    /// Returns whether an attempt may succeed, according to the events.
    pub(super) fn may(&self, interest: Interest) -> bool {
        match interest {
            Interest::Read => self.may_read,
            Interest::Write => self.may_write,
            Interest::Any => true,
        }
    }

    /// Records that an attempt has found nothing.
    pub(super) fn exhaust(&mut self, interest: Interest) {
        match interest {
            Interest::Read => self.may_read = false,
            Interest::Write => self.may_write = false,
            Interest::Any => {}
        }
    }

    /// Records that an attempt has found less than it had room for.
    pub(super) fn drain(&mut self) {
        self.may_read = self.has_ended;
    }

    pub(super) fn note(&mut self, events: u32) {
        let events = events as libc::c_int;
        self.may_read |= events & READ_EVENTS != 0;
        self.may_write |= events & WRITE_EVENTS != 0;
        self.has_ended |= events & END_EVENTS != 0;
    }
}

/// All sources, by the descriptor's number.
#[derive(Default)]
pub(super) struct Sources(Vec<Source>);

impl Sources {
    /// Returns the source of a registered descriptor.
    pub(super) fn get(&mut self, descriptor: &Descriptor) -> Option<&mut Source> {
        let source = self.0.get_mut(descriptor.fd.as_raw_fd() as usize)?;
        (source.id == descriptor.id).then_some(source)
    }

    /// Returns the source of an event, unless its descriptor was closed meanwhile.
    pub(super) fn of_event(&mut self, data: u64) -> Option<&mut Source> {
        let source = self.0.get_mut(data as u32 as usize)?;
        (source.id as u32 == (data >> 32) as u32).then_some(source)
    }

    /// Registers a descriptor unless it is registered.
    ///
    /// # Errors
    /// Errors of `epoll_ctl`: `EPERM` for a descriptor that is always ready.
    pub(super) fn register(&mut self, epoll: &OwnedFd, descriptor: &Descriptor) -> io::Result<()> {
        let (fd, id) = (descriptor.fd.as_raw_fd(), descriptor.id);
        let index = fd as usize;
        if self.0.get(index).is_some_and(|source| source.id == id) {
            return Ok(());
        }
        let data = (id << 32) | fd as u64;
        match control(epoll, libc::EPOLL_CTL_ADD, fd, data) {
            // A descriptor of this number was closed, another of the same file is open, and this is
            // a third: the kernel kept the first.
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                control(epoll, libc::EPOLL_CTL_MOD, fd, data)?;
            }
            result => result?,
        }
        if index >= self.0.len() {
            self.0.resize_with(index + 1, Source::default);
        }
        let source = &mut self.0[index];
        debug_assert!(source.waiting.is_empty(), "a waiting operation keeps the descriptor open");
        (source.id, source.has_ended) = (id, false);
        (source.may_read, source.may_write) = (true, true);
        Ok(())
    }
}

pub(super) fn control(
    epoll: &OwnedFd,
    operation: libc::c_int,
    fd: RawFd,
    data: u64,
) -> io::Result<()> {
    let mut event = libc::epoll_event { events: EVENTS as u32, u64: data };
    // SAFETY: the call reads the struct behind the pointer.
    match unsafe { libc::epoll_ctl(epoll.as_raw_fd(), operation, fd, &raw mut event) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
