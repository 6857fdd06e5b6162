//! A queue pair with its completion queue and the descriptor that announces completions.

use crate::Error;
use crate::abi::{
    IbvCompChannel, IbvCq, IbvQp, IbvQpCap, IbvQpInitAttr, IbvRecvWr, IbvSendWr, IbvWc, QPT_RC,
    RdmaCmId,
};
use crate::device::Device;
use reactor::{Handle, Op};
use std::io;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::ptr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// Number of completions that are taken at once.
const BATCH: usize = 16;

/// Sizes of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Messages that can be received before the first one is taken.
    pub receives: u32,
    /// Own work requests that can be outstanding; at least 2.
    pub sends: u32,
}

pub(crate) struct Queue {
    device: Arc<Device>,
    /// The connection's identifier, which owns the queue pair.
    id: *mut RdmaCmId,
    pair: *mut IbvQp,
    completions: *mut IbvCq,
    channel: *mut IbvCompChannel,
    /// A copy of the channel's descriptor.
    announced: Handle,
    waiting: Option<Op<io::Result<u32>>>,
    is_armed: bool,
    events_unacknowledged: u32,
    taken: [IbvWc; BATCH],
    next: usize,
    count: usize,
}

impl Queue {
    /// Makes a queue pair for a connection.
    ///
    /// # Safety
    /// The identifier must be of this device and have no queue pair. It must outlive this queue.
    pub(crate) unsafe fn new(
        device: &Arc<Device>,
        id: *mut RdmaCmId,
        sizes: Sizes,
    ) -> Result<Self, Error> {
        let library = &device.library;
        // SAFETY: the device's context is open.
        let channel = unsafe { (library.create_comp_channel)(device.context) };
        if channel.is_null() {
            return Err(device.failed("make a completion channel", io::Error::last_os_error()));
        }
        let announced = copy_of(channel).inspect_err(|_| {
            // SAFETY: the channel was just made.
            unsafe { (library.destroy_comp_channel)(channel) };
        });
        let announced =
            announced.map_err(|error| device.failed("watch a completion channel", error))?;
        let mut queue = Self {
            device: Arc::clone(device),
            id,
            pair: ptr::null_mut(),
            completions: ptr::null_mut(),
            channel,
            announced,
            waiting: None,
            is_armed: false,
            events_unacknowledged: 0,
            taken: [IbvWc::default(); BATCH],
            next: 0,
            count: 0,
        };
        // At least as many as the queues hold: an overrun completion queue is lost, with the
        // connection.
        let entries = (sizes.receives + sizes.sends) as i32;
        // SAFETY: context and channel are open; dropping `queue` destroys everything made here.
        queue.completions =
            unsafe { (library.create_cq)(device.context, entries, ptr::null_mut(), channel, 0) };
        if queue.completions.is_null() {
            return Err(device.failed("make a completion queue", io::Error::last_os_error()));
        }
        let mut wanted = IbvQpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: queue.completions,
            recv_cq: queue.completions,
            srq: ptr::null_mut(),
            cap: IbvQpCap {
                max_send_wr: sizes.sends,
                max_recv_wr: sizes.receives,
                max_send_sge: 2,
                max_recv_sge: 2,
                max_inline_data: 0,
            },
            qp_type: QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: the identifier is of this device, as guaranteed by the caller.
        if unsafe { (library.create_qp)(id, device.domain, &raw mut wanted) } != 0 {
            return Err(device.failed("make a queue pair", io::Error::last_os_error()));
        }
        // SAFETY: the identifier is alive and has a queue pair now.
        queue.pair = unsafe { (*id).qp };
        Ok(queue)
    }

    /// Posts a list of receives.
    ///
    /// # Safety
    /// The list must end with null, and its memory must stay until its completions or the end of
    /// the queue.
    pub(crate) unsafe fn post_receives(&mut self, first: *mut IbvRecvWr) -> io::Result<()> {
        let mut bad = ptr::null_mut();
        // SAFETY: queue pair and context are alive; the caller guarantees a valid list.
        let errno =
            unsafe { ((*self.device.context).ops.post_recv)(self.pair, first, &raw mut bad) };
        result_of(errno)
    }

    /// Posts a list of sends.
    ///
    /// # Safety
    /// As for [`Self::post_receives`].
    pub(crate) unsafe fn post_sends(&mut self, first: *mut IbvSendWr) -> io::Result<()> {
        let mut bad = ptr::null_mut();
        // SAFETY: as above.
        let errno =
            unsafe { ((*self.device.context).ops.post_send)(self.pair, first, &raw mut bad) };
        result_of(errno)
    }

    /// Returns the next completion, if there is one.
    pub(crate) fn take(&mut self) -> io::Result<Option<IbvWc>> {
        if self.next == self.count {
            let (ops, first) = (self.device.context, self.taken.as_mut_ptr());
            // SAFETY: the completion queue is alive, and there is space for this number.
            let count = unsafe { ((*ops).ops.poll_cq)(self.completions, BATCH as i32, first) };
            if count < 0 {
                return Err(io::Error::other("the completion queue cannot be read"));
            }
            (self.next, self.count) = (0, (count as usize).min(BATCH));
        }
        if self.next == self.count {
            return Ok(None);
        }
        self.next += 1;
        Ok(Some(self.taken[self.next - 1]))
    }

    /// Waits until there may be completions. Call it when [`Self::take`] has returned none. Counts
    /// wake-ups in `wakeups`.
    pub(crate) fn poll_announced(
        &mut self,
        cx: &mut Context<'_>,
        wakeups: &mut u64,
    ) -> Poll<io::Result<()>> {
        if !self.is_armed {
            // SAFETY: the completion queue is alive.
            let errno = unsafe { ((*self.device.context).ops.req_notify_cq)(self.completions, 0) };
            result_of(errno)?;
            self.is_armed = true;
            // Earlier completions are not announced.
            return Poll::Ready(Ok(()));
        }
        let announced = &self.announced;
        let waiting = self.waiting.get_or_insert_with(|| announced.poll_readable());
        let polled = ready!(Pin::new(waiting).poll(cx));
        self.waiting = None;
        polled?;
        *wakeups += 1;
        let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is open, and its descriptor does not block.
        while unsafe {
            (self.device.library.get_cq_event)(self.channel, &raw mut queue, &raw mut context)
        } == 0
        {
            self.events_unacknowledged += 1;
            self.is_armed = false;
        }
        Poll::Ready(none_left(io::Error::last_os_error()))
    }

    /// Ends the queue pair. Afterwards the adapter accesses none of its memory.
    pub(crate) fn end(&mut self) {
        let library = &self.device.library;
        self.waiting = None;
        if !self.pair.is_null() {
            // SAFETY: the identifier is alive, as guaranteed in `new`, and owns this queue pair.
            unsafe { (library.destroy_qp)(self.id) };
            self.pair = ptr::null_mut();
        }
        if !self.completions.is_null() {
            // SAFETY: no queue pair uses it any more, and all its events are acknowledged.
            unsafe {
                if self.events_unacknowledged > 0 {
                    (library.ack_cq_events)(self.completions, self.events_unacknowledged);
                }
                (library.destroy_cq)(self.completions);
            }
            self.completions = ptr::null_mut();
        }
        if !self.channel.is_null() {
            // SAFETY: no completion queue uses it any more.
            unsafe { (library.destroy_comp_channel)(self.channel) };
            self.channel = ptr::null_mut();
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.end();
    }
}

/// Makes the channel's descriptor non-blocking, and returns a copy for the reactor.
fn copy_of(channel: *mut IbvCompChannel) -> io::Result<Handle> {
    // SAFETY: the channel is open.
    watched(unsafe { (*channel).fd })
}

/// Makes a library's descriptor non-blocking, and returns a copy for the reactor.
pub(crate) fn watched(fd: libc::c_int) -> io::Result<Handle> {
    // SAFETY: the descriptor is open: the callers have just got it.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: as above.
    if flags < 0 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above; the borrow ends here.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    Ok(Handle::from_fd(borrowed.try_clone_to_owned()?))
}

/// Returns an error of an event channel, unless it only means that there is no event.
pub(crate) fn none_left(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
        _ => Err(error),
    }
}

fn result_of(errno: libc::c_int) -> io::Result<()> {
    if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno.abs())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a channel without an event and a failed channel are distinguished.
    #[test]
    fn failing_channels_are_no_empty_ones() {
        for errno in [libc::EAGAIN, libc::EINTR] {
            assert!(none_left(io::Error::from_raw_os_error(errno)).is_ok(), "{errno}");
        }
        for errno in [libc::EIO, libc::ENODEV, libc::EBADF] {
            let failed = none_left(io::Error::from_raw_os_error(errno));
            assert_eq!(failed.unwrap_err().raw_os_error(), Some(errno));
        }
    }
}
