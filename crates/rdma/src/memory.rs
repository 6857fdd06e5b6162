//! Registered memory, which the adapter may read and write.
//!
//! Registration pins pages and takes a system call. So the memory of a buffer is registered once,
//! and the registration stays with it while the pool of buffers recycles it. It is only for this
//! machine's adapter: its keys never allow remote access. A peer gets the key of a memory window,
//! which covers one command's part of the memory until the command ends.

use crate::abi::{IbvMr, IbvSge};
use crate::device::Device;
use reactor::{Attachment, Buffer, Chunk, Shared, Sparse};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Limits log lines that strangers can cause.
static UNREGISTERED: Sparse = Sparse::new();

/// The registration of a buffer's memory, attached to that memory.
struct Registration {
    device: Arc<Device>,
    region: *mut IbvMr,
    key: u32,
}

// SAFETY: a memory region belongs to no thread.
unsafe impl Send for Registration {}
// SAFETY: it is not changed.
unsafe impl Sync for Registration {}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: the library made the region, and no work request names it, because work requests
        // own their buffers.
        unsafe { (self.device.library.dereg_mr)(self.region) };
    }
}

/// The keys of registered memory for work requests of this machine's adapter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys {
    /// The local key.
    pub(crate) local: u32,
    /// The memory region, valid while the memory exists and is registered with this device.
    pub(crate) region: *mut IbvMr,
}

impl Registration {
    /// Returns the keys, if an attachment is a registration with this device.
    fn keys(attachment: &Attachment, device: &Arc<Device>) -> Option<Keys> {
        let known = attachment.downcast_ref::<Self>()?;
        Arc::ptr_eq(&known.device, device)
            .then_some(Keys { local: known.key, region: known.region })
    }

    /// Registers memory.
    ///
    /// # Safety
    /// The memory must exist until the registration is dropped.
    unsafe fn new(device: &Arc<Device>, memory: *mut u8, bytes: usize) -> io::Result<Self> {
        let access = device.memory_access();
        // SAFETY: guaranteed by the caller.
        let region =
            unsafe { (device.library.reg_mr)(device.domain, memory.cast(), bytes, access) };
        if region.is_null() {
            let error = io::Error::last_os_error();
            if let Some(suppressed) = UNREGISTERED.pass() {
                tracing::error!(
                    device = device.name(), bytes, %error, suppressed,
                    "memory cannot be registered for RDMA; if locked memory is short, raise the limit (ulimit -l, \
                     LimitMEMLOCK= of systemd)"
                );
            }
            return Err(error);
        }
        // SAFETY: the library has just made it.
        let key = unsafe { (*region).lkey };
        Ok(Self { device: Arc::clone(device), region, key })
    }
}

/// Registers a buffer's memory, unless it is registered already.
pub(crate) fn register(device: &Arc<Device>, buffer: &mut Buffer) -> io::Result<Keys> {
    if let Some(keys) = buffer.attachment().and_then(|it| Registration::keys(it, device)) {
        return Ok(keys);
    }
    let (memory, bytes) = buffer.memory();
    // SAFETY: the memory is the buffer's own and outlives the registration, which is attached to
    // it.
    let registration = unsafe { Registration::new(device, memory, bytes) }?;
    let keys = Keys { local: registration.key, region: registration.region };
    buffer.attach(Arc::new(registration));
    Ok(keys)
}

/// Registers the memory of a shared view, unless it is registered already. Returns [`None`] if it
/// has another attachment, which nothing may replace while the memory is shared.
fn register_shared(device: &Arc<Device>, shared: &Shared) -> io::Result<Option<Keys>> {
    if let Some(attachment) = shared.attachment() {
        return Ok(Registration::keys(attachment, device));
    }
    let (memory, bytes) = shared.memory();
    // SAFETY: the memory outlives the registration, which is attached to it, or dropped at once if
    // another thread was faster.
    let registration = unsafe { Registration::new(device, memory, bytes) }?;
    let attachment = shared.attach(Arc::new(registration));
    Ok(Registration::keys(attachment, device))
}

/// Returns the bytes of a chunk in registered memory, their place, and the memory's keys. Bytes
/// that are neither in a buffer nor in a view of one are copied, which the last value shows.
pub(crate) fn registered(
    device: &Arc<Device>,
    chunk: Chunk,
) -> io::Result<(Chunk, IbvSge, Keys, bool)> {
    if let Chunk::Shared(shared) = &chunk
        && let Some(keys) = register_shared(device, shared)?
    {
        let (addr, length) = (shared.as_ptr().addr() as u64, shared.len() as u32);
        let element = IbvSge { addr, length, lkey: keys.local };
        return Ok((chunk, element, keys, false));
    }
    let bytes = chunk.len();
    let (mut buffer, range, is_copied) = match chunk {
        Chunk::Buffer(buffer, range) => (buffer, range, false),
        other => (other.copy_part(0..bytes), 0..bytes, true),
    };
    let keys = register(device, &mut buffer)?;
    let element = element(&buffer, range.clone(), keys.local);
    Ok((Chunk::Buffer(buffer, range), element, keys, is_copied))
}

/// Returns a work request's element for a range of a buffer's capacity.
pub(crate) fn element(buffer: &Buffer, range: Range<usize>, key: u32) -> IbvSge {
    let (memory, bytes) = buffer.memory();
    assert!(
        range.start <= range.end && range.end <= bytes,
        "{range:?} lies outside of a buffer of {bytes} bytes"
    );
    IbvSge {
        addr: memory.addr() as u64 + range.start as u64,
        length: range.len() as u32,
        lkey: key,
    }
}
