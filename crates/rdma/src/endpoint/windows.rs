//! Memory that is lent to the peer, each part through a memory window of its own.
//!
//! A window is bound to a part of registered memory, in the queue before the message that names its
//! key. The key differs from the window's last one, and works on this queue pair alone. When the
//! peer has answered, the window is invalidated: by the peer's message, or by a work request. Until
//! then the endpoint owns the memory. So a peer that keeps a key reaches no memory that this side
//! has taken back.

use super::{BIND, Endpoint, INVALIDATE, Remote, identifier};
use crate::abi::{
    ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE, IbvMw, IbvSendBindMw, IbvSendWr, IbvSge, IbvWc,
    MW_TYPE_2, SEND_SIGNALED, WC_KERNEL_WITH_INV, WC_WITH_INV, WR_BIND_MW, WR_LOCAL_INV,
};
use crate::memory::{Keys, element, register, registered};
use reactor::{Buffer, Chunk, Shared};
use smallvec::SmallVec;
use std::io;
use std::ops::Range;

/// The bits of a window's key that its owner chooses.
const KEY_OWN_BITS: u32 = 0xff;

/// The result of [`Endpoint::take_back`].
#[derive(Debug)]
pub enum Returned {
    /// The peer has no access, and this was the buffer that it could write.
    Now(Option<Buffer>),
    /// [`Completion::Returned`](super::Completion::Returned) follows.
    Later,
}

/// Memory that the peer may access.
pub(super) enum Lent {
    /// It may read this.
    Source { _held: Chunk },
    /// It may write this.
    Sink(Buffer),
}

impl Lent {
    /// Returns the buffer that the peer could write.
    pub(super) fn into_sink(self) -> Option<Buffer> {
        match self {
            Self::Source { .. } => None,
            Self::Sink(buffer) => Some(buffer),
        }
    }
}

/// A window, and the memory that it covers now.
struct Window {
    raw: *mut IbvMw,
    key: u32,
    lent: Option<Lent>,
}

/// The windows of a connection, by the number under which memory is lent.
#[derive(Default)]
pub(super) struct Windows {
    table: Vec<Option<Window>>,
    /// The windows that covered memory at the end of the connection, with the buffers that the peer
    /// could write.
    left: Vec<(usize, Option<Buffer>)>,
}

impl Windows {
    fn get_mut(&mut self, slot: usize) -> Option<&mut Window> {
        self.table.get_mut(slot).and_then(Option::as_mut)
    }

    /// Returns the key that a received message has invalidated.
    ///
    /// soft-RoCE passes the kernel's flag on (`IB_WC_WITH_INVALIDATE` of `ib_verbs.h`), which verbs.h
    /// uses for checksums of other kinds of queue pairs. So that flag counts if the key is that of
    /// lent memory. It must not be missed: soft-RoCE of Linux 6.12 crashes when a window is
    /// invalidated twice.
    pub(super) fn invalidated_by(&self, completion: &IbvWc) -> Option<u32> {
        let (flags, key) = (completion.wc_flags, completion.invalidated_rkey);
        let is_lent = || {
            let mut windows = self.table.iter().flatten();
            windows.any(|window| window.key == key && window.lent.is_some())
        };
        let is_certain = flags & WC_WITH_INV != 0;
        (is_certain || flags & WC_KERNEL_WITH_INV != 0 && is_lent()).then_some(key)
    }

    /// Takes the memory of a window whose key is invalid now; [`None`] if it covers none.
    pub(super) fn invalidated(&mut self, slot: usize) -> Option<Lent> {
        self.get_mut(slot)?.lent.take()
    }

    /// Frees all windows, which ends all access through them.
    pub(super) fn end(&mut self) {
        for (slot, window) in self.table.drain(..).enumerate() {
            let Some(window) = window else { continue };
            // SAFETY: the window is freed once, and its context is open.
            let free = unsafe { (*(*window.raw).context).ops.dealloc_mw };
            // SAFETY: as above.
            let errno = free.map_or(libc::EOPNOTSUPP, |free| unsafe { free(window.raw) });
            if errno != 0 {
                tracing::warn!(errno, "a memory window cannot be freed");
            }
            self.left.extend(window.lent.map(|lent| (slot, lent.into_sink())));
        }
    }
}

impl Endpoint {
    /// Lets the peer read these bytes until [`Self::take_back`]. `slot` is a number under which
    /// nothing is lent. The next message may contain the result.
    ///
    /// # Errors
    /// If the memory cannot be registered, or the device has no window left.
    pub fn lend_source(&mut self, slot: usize, bytes: Shared) -> io::Result<Remote> {
        self.ensure_window(slot)?;
        let (chunk, place, keys, is_copied) = registered(&self.device, Chunk::Shared(bytes))?;
        self.counts.copies += u64::from(is_copied);
        let lent = Lent::Source { _held: chunk };
        Ok(self.bind(slot, lent, place, keys, ACCESS_REMOTE_READ))
    }

    /// Lets the peer write this range of a buffer's capacity, as [`Self::lend_source`] does for
    /// reads.
    ///
    /// # Errors
    /// As for [`Self::lend_source`]; the buffer comes back.
    pub fn lend_sink(
        &mut self,
        slot: usize,
        mut buffer: Buffer,
        range: Range<usize>,
    ) -> Result<Remote, (io::Error, Buffer)> {
        let window = self.ensure_window(slot);
        match window.and_then(|()| register(&self.device, &mut buffer)) {
            Ok(keys) => {
                let place = element(&buffer, range, keys.local);
                Ok(self.bind(slot, Lent::Sink(buffer), place, keys, ACCESS_REMOTE_WRITE))
            }
            Err(error) => Err((error, buffer)),
        }
    }

    /// Ends the peer's access to what was lent, if anything was. `invalidated` is the key that the
    /// peer's answer has invalidated.
    ///
    /// # Errors
    /// If the peer has invalidated another key.
    pub fn take_back(
        &mut self,
        slot: usize,
        invalidated: Option<u32>,
    ) -> Result<Returned, &'static str> {
        const FOREIGN: &str = "the peer invalidated the key of another command";
        let window = self.windows.get_mut(slot).filter(|window| window.lent.is_some());
        let Some(window) = window else {
            return if invalidated.is_none() { Ok(Returned::Now(None)) } else { Err(FOREIGN) };
        };
        match invalidated {
            Some(key) if key == window.key => {
                Ok(Returned::Now(self.windows.invalidated(slot).and_then(Lent::into_sink)))
            }
            Some(_) => Err(FOREIGN),
            None => {
                let id = identifier(INVALIDATE, slot as u32);
                let mut request = IbvSendWr::new(id, WR_LOCAL_INV, SEND_SIGNALED);
                request.invalidate_rkey = window.key;
                self.gathered.push_back((request, SmallVec::new()));
                Ok(Returned::Later)
            }
        }
    }

    /// Takes what was lent when the connection was [closed](Self::close): the numbers, and the
    /// buffers that the peer could write.
    pub fn take_left(&mut self) -> Vec<(usize, Option<Buffer>)> {
        std::mem::take(&mut self.windows.left)
    }

    /// Makes the window of this number, unless there is one.
    fn ensure_window(&mut self, slot: usize) -> io::Result<()> {
        let table = &mut self.windows.table;
        if table.len() <= slot {
            table.resize_with(slot + 1, || None);
        }
        if table[slot].is_some() {
            return Ok(());
        }
        // SAFETY: the device's context is open.
        let make = unsafe { (*self.device.context).ops.alloc_mw };
        let make = make.ok_or_else(|| io::Error::from_raw_os_error(libc::EOPNOTSUPP))?;
        // SAFETY: the domain exists.
        let raw = unsafe { make(self.device.domain, MW_TYPE_2) };
        if raw.is_null() {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the library has just made it.
        let key = unsafe { (*raw).rkey };
        table[slot] = Some(Window { raw, key, lent: None });
        Ok(())
    }

    /// Requests the binding of a window to a place in registered memory.
    fn bind(&mut self, slot: usize, lent: Lent, place: IbvSge, keys: Keys, access: i32) -> Remote {
        let window = self.windows.get_mut(slot).expect("the caller has made it");
        assert!(window.lent.is_none(), "window {slot} covers memory already");
        window.key = next_key(window.key);
        window.lent = Some(lent);
        let mut request = IbvSendWr::new(identifier(BIND, slot as u32), WR_BIND_MW, 0);
        request.bind_mw = IbvSendBindMw {
            mw: window.raw,
            rkey: window.key,
            mr: keys.region,
            addr: place.addr,
            length: u64::from(place.length),
            mw_access_flags: access as u32,
        };
        let remote = Remote { address: place.addr, length: place.length, key: window.key };
        self.gathered.push_back((request, SmallVec::new()));
        self.bound += 1;
        self.counts.transfers += 1;
        remote
    }
}

/// Returns the key of a window's next binding (`ibv_inc_rkey`).
fn next_key(key: u32) -> u32 {
    key & !KEY_OWN_BITS | key.wrapping_add(1) & KEY_OWN_BITS
}
