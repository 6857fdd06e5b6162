//! Registered memory, which the adapter may read and write.
//!
//! Registration pins pages and takes a system call. So the memory of a buffer is registered once,
//! and the registration stays with it while the pool of buffers recycles it. It is only for this
//! machine's adapter: no key is ever given to a peer, and none would allow remote access.

use crate::abi::{ACCESS_LOCAL_WRITE, IbvMr, IbvSge};
use crate::device::Device;
use reactor::{Buffer, Chunk, Sparse};
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

/// Registers a buffer's memory, unless it is registered already. Returns the local key.
pub(crate) fn register(device: &Arc<Device>, buffer: &mut Buffer) -> io::Result<u32> {
    let known = buffer.attachment().and_then(|it| it.downcast_ref::<Registration>());
    if let Some(known) = known
        && Arc::ptr_eq(&known.device, device)
    {
        return Ok(known.key);
    }
    let (memory, bytes) = buffer.memory();
    // SAFETY: the memory is the buffer's own and outlives the registration, which is attached to
    // it.
    let region =
        unsafe { (device.library.reg_mr)(device.domain, memory.cast(), bytes, ACCESS_LOCAL_WRITE) };
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
    buffer.attach(Arc::new(Registration { device: Arc::clone(device), region, key }));
    Ok(key)
}

/// Returns a buffer in registered memory with the bytes of a chunk, and their place. A chunk that
/// is not a buffer is copied.
pub(crate) fn registered(device: &Arc<Device>, chunk: Chunk) -> io::Result<(Buffer, IbvSge, bool)> {
    let bytes = chunk.len();
    let (mut buffer, range, is_copied) = match chunk {
        Chunk::Buffer(buffer, range) => (buffer, range, false),
        other => (other.copy_part(0..bytes), 0..bytes, true),
    };
    let key = register(device, &mut buffer)?;
    let element = element(&buffer, range, key);
    Ok((buffer, element, is_copied))
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
