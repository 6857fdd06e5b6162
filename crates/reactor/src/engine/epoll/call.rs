//! Operations as system calls that are tried without blocking on the reactor's thread.

use crate::engine::file_call::FileCall;
use crate::operation::Operation;
use crate::slots::Slot;
use std::io;
use std::net::Shutdown;
use std::os::fd::RawFd;

/// The condition for another attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interest {
    Read,
    Write,
    /// Any event.
    Any,
}

/// The result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    /// The result: not negative, or a negated errno.
    Done(i32),
    /// As `Done`; the descriptor has no more data until it becomes ready again.
    Drained(i32),
    Wait(Interest),
}

/// A system call on a descriptor that reports readiness. Memory that it names belongs to the
/// operation's slot.
#[derive(Clone, Copy)]
pub(super) enum StreamCall {
    Accept {
        address: *mut libc::sockaddr,
        len: *mut libc::socklen_t,
    },
    Connect {
        address: *const libc::sockaddr,
        len: libc::socklen_t,
    },
    /// The connection is being made.
    Connecting,
    Receive {
        message: *mut libc::msghdr,
        bytes: usize,
    },
    Send {
        message: *const libc::msghdr,
    },
    Shutdown(libc::c_int),
    Read {
        vectors: *const libc::iovec,
        count: usize,
    },
    Write {
        vectors: *const libc::iovec,
        count: usize,
    },
    Poll(u32),
}

/// The form in which the engine executes an operation.
#[derive(Clone, Copy)]
pub(super) enum Call {
    Stream(StreamCall),
    /// A call that may block.
    File(FileCall),
    /// An operation that the engine does not have.
    Refused(i32),
}

/// Returns the call for the operation in `slot`, with pointers into the slot. A file has no
/// readiness.
pub(super) fn build(slot: &mut Slot, is_file: bool) -> Call {
    let fd = slot.handle.as_ref().expect("a pending slot has a handle").raw_fd();
    let arguments = &mut slot.arguments;
    let operation = slot.operation.as_ref().expect("a pending slot has an operation");
    let stream = match operation {
        Operation::Accept => {
            arguments.address_len = size_of::<libc::sockaddr_storage>() as u32;
            let address = (&raw mut arguments.address).cast();
            StreamCall::Accept { address, len: &raw mut arguments.address_len }
        }
        Operation::Connect(address) => {
            arguments.set_address(*address);
            let address = (&raw const arguments.address).cast();
            StreamCall::Connect { address, len: arguments.address_len }
        }
        Operation::Receive(segments) => {
            arguments.set_segments(segments);
            arguments.set_message();
            let bytes = arguments.vectors.iter().map(|vector| vector.iov_len).sum();
            StreamCall::Receive { message: &raw mut arguments.message, bytes }
        }
        Operation::Send { chunks, skip } => {
            arguments.set_chunks(chunks, *skip);
            arguments.set_message();
            StreamCall::Send { message: &raw const arguments.message }
        }
        Operation::Shutdown(how) => StreamCall::Shutdown(match how {
            Shutdown::Read => libc::SHUT_RD,
            Shutdown::Write => libc::SHUT_WR,
            Shutdown::Both => libc::SHUT_RDWR,
        }),
        Operation::Read { segments, offset } => {
            arguments.set_segments(segments);
            let (vectors, count) = (arguments.vectors.as_ptr(), arguments.vectors.len());
            if is_file {
                return Call::File(FileCall::Read { fd, vectors, count, offset: *offset });
            }
            StreamCall::Read { vectors, count }
        }
        Operation::Write { chunks, offset, skip } => {
            arguments.set_chunks(chunks, *skip);
            return write(fd, &arguments.vectors, *offset, *skip, is_file);
        }
        Operation::WriteOne { chunk, offset, skip } => {
            arguments.set_chunks(std::slice::from_ref(chunk), *skip);
            return write(fd, &arguments.vectors, *offset, *skip, is_file);
        }
        Operation::Sync { data } => return Call::File(FileCall::Sync { fd, data: *data }),
        Operation::WriteBack => return Call::File(FileCall::WriteBack { fd }),
        Operation::Allocate { mode, offset, len } => {
            let (mode, offset, len) = (*mode, *offset, *len);
            return Call::File(FileCall::Allocate { fd, mode, offset, len });
        }
        Operation::Poll(events) => StreamCall::Poll(*events),
        Operation::Command(_) => return Call::Refused(-libc::EOPNOTSUPP),
    };
    Call::Stream(stream)
}

fn write(fd: RawFd, vectors: &[libc::iovec], offset: u64, skip: usize, is_file: bool) -> Call {
    let (vectors, count) = (vectors.as_ptr(), vectors.len());
    if !is_file {
        return Call::Stream(StreamCall::Write { vectors, count });
    }
    // `u64::MAX` (the current position) does not change.
    let offset = if offset == u64::MAX { offset } else { offset + skip as u64 };
    Call::File(FileCall::Write { fd, vectors, count, offset })
}

fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Returns the result of a call, repeated while a signal interrupts it; or an errno.
fn retried(mut call: impl FnMut() -> isize) -> Result<i32, i32> {
    loop {
        let result = call();
        if result >= 0 {
            // The kernel moves less than 2 GiB at a time.
            return Ok(result as i32);
        }
        match last_errno() {
            libc::EINTR => {}
            errno => return Err(errno),
        }
    }
}

fn outcome(result: Result<i32, i32>, interest: Interest) -> Attempt {
    match result {
        Ok(code) => Attempt::Done(code),
        Err(libc::EAGAIN) => Attempt::Wait(interest),
        Err(errno) => Attempt::Done(-errno),
    }
}

impl StreamCall {
    /// Returns whether the descriptor must be non-blocking so that an attempt does not block.
    pub(super) fn needs_nonblocking(&self) -> bool {
        match self {
            Self::Accept { .. }
            | Self::Connect { .. }
            | Self::Connecting
            | Self::Read { .. }
            | Self::Write { .. } => true,
            Self::Receive { .. } | Self::Send { .. } | Self::Shutdown(_) | Self::Poll(_) => false,
        }
    }

    /// Returns the condition for an attempt; `None` if it never waits, or checks by itself.
    pub(super) fn interest(&self) -> Option<Interest> {
        match self {
            Self::Accept { .. } | Self::Receive { .. } | Self::Read { .. } => Some(Interest::Read),
            Self::Send { .. } | Self::Write { .. } => Some(Interest::Write),
            Self::Connect { .. } | Self::Connecting | Self::Shutdown(_) | Self::Poll(_) => None,
        }
    }

    /// Tries the call once, without blocking.
    ///
    /// # Safety
    /// Memory that the call names is valid: its slot is in use. The descriptor is open, and
    /// non-blocking if [`needs_nonblocking`](Self::needs_nonblocking) requires it.
    pub(super) unsafe fn attempt(&mut self, fd: RawFd) -> Attempt {
        match *self {
            Self::Accept { address, len } => {
                // SAFETY: by the caller's promise.
                let accept =
                    || unsafe { libc::accept4(fd, address, len, libc::SOCK_CLOEXEC) as isize };
                outcome(retried(accept), Interest::Read)
            }
            Self::Connect { address, len } => {
                // SAFETY: by the caller's promise.
                let result = unsafe { libc::connect(fd, address, len) };
                match if result == 0 { 0 } else { last_errno() } {
                    0 => Attempt::Done(0),
                    // A connect that a signal interrupts continues by itself.
                    libc::EINPROGRESS | libc::EINTR => {
                        *self = Self::Connecting;
                        Attempt::Wait(Interest::Any)
                    }
                    errno => Attempt::Done(-errno),
                }
            }
            Self::Connecting => connected(fd),
            Self::Receive { message, bytes } => {
                // SAFETY: by the caller's promise.
                let result = retried(|| unsafe { receive(fd, message) });
                match result {
                    // Fewer bytes than there is room for: the socket is empty.
                    Ok(count) if count > 0 && (count as usize) < bytes => Attempt::Drained(count),
                    result => outcome(result, Interest::Read),
                }
            }
            Self::Send { message } => {
                let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
                // SAFETY: by the caller's promise.
                outcome(retried(|| unsafe { libc::sendmsg(fd, message, flags) }), Interest::Write)
            }
            Self::Shutdown(how) => {
                // SAFETY: the call takes no pointers.
                let shutdown = || unsafe { libc::shutdown(fd, how) as isize };
                outcome(retried(shutdown), Interest::Any)
            }
            Self::Read { vectors, count } => {
                // SAFETY: by the caller's promise.
                let read = || unsafe { libc::readv(fd, vectors, count as libc::c_int) };
                outcome(retried(read), Interest::Read)
            }
            Self::Write { vectors, count } => {
                // SAFETY: by the caller's promise.
                let write = || unsafe { libc::writev(fd, vectors, count as libc::c_int) };
                outcome(retried(write), Interest::Write)
            }
            Self::Poll(events) => match poll(fd, events as libc::c_short) {
                0 => Attempt::Wait(Interest::Any),
                code => Attempt::Done(code),
            },
        }
    }
}

/// # Safety
/// The message names valid memory.
unsafe fn receive(fd: RawFd, message: *mut libc::msghdr) -> isize {
    // SAFETY: by the caller's promise, also below.
    unsafe {
        if (*message).msg_iovlen == 1 {
            let vector = *(*message).msg_iov;
            return libc::recv(fd, vector.iov_base, vector.iov_len, libc::MSG_DONTWAIT);
        }
        libc::recvmsg(fd, message, libc::MSG_DONTWAIT)
    }
}

/// Returns those of these events that are present, with errors and hang-ups; 0 for none, or a
/// negated errno.
fn poll(fd: RawFd, events: libc::c_short) -> i32 {
    let mut one = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: the call reads and writes the one struct behind the pointer.
    match retried(|| unsafe { libc::poll(&raw mut one, 1, 0) as isize }) {
        Ok(_) if one.revents & libc::POLLNVAL != 0 => -libc::EBADF,
        Ok(_) => i32::from(one.revents),
        Err(errno) => -errno,
    }
}

/// Returns the result of a connect in progress.
fn connected(fd: RawFd) -> Attempt {
    match poll(fd, libc::POLLOUT) {
        0 => return Attempt::Wait(Interest::Any),
        errno if errno < 0 => return Attempt::Done(errno),
        _ => {}
    }
    let mut errno: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    let (level, name, value) = (libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut errno).cast());
    // SAFETY: the option is an int, and `len` is its size.
    match unsafe { libc::getsockopt(fd, level, name, value, &raw mut len) } {
        0 => Attempt::Done(-errno),
        _ => Attempt::Done(-last_errno()),
    }
}
