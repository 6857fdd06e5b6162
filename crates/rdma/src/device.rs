//! An RDMA device, as connections on it share it.

use crate::Error;
use crate::abi::{IbvContext, IbvDeviceAttr, IbvPd};
use crate::library::Library;
use std::fmt;
use std::io;
use std::sync::Arc;

/// A device with the protection domain of everything that this program registers and makes on it.
pub struct Device {
    pub(crate) library: Arc<Library>,
    pub(crate) context: *mut IbvContext,
    pub(crate) domain: *mut IbvPd,
    name: String,
    attributes: IbvDeviceAttr,
}

// SAFETY: the context and the domain may be used by every thread (libibverbs is thread-safe), and are not
// changed here.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// The device of an open context.
    ///
    /// # Safety
    /// librdmacm has opened the context; it keeps it open until the process ends.
    pub(crate) unsafe fn open(
        library: &Arc<Library>,
        context: *mut IbvContext,
    ) -> Result<Arc<Self>, Error> {
        // SAFETY: by the caller's promise.
        let name = unsafe { library.name_of(context) };
        let failed = |action, source| Error::Resource { action, device: name.clone(), source };
        let mut attributes = IbvDeviceAttr::zeroed();
        // SAFETY: the context is open, and the structure is as large as the library expects.
        let errno = unsafe { (library.query_device)(context, &raw mut attributes) };
        if errno != 0 {
            return Err(failed("ask for the limits", io::Error::from_raw_os_error(errno.abs())));
        }
        // SAFETY: the context is open.
        let domain = unsafe { (library.alloc_pd)(context) };
        if domain.is_null() {
            return Err(failed("make a protection domain", io::Error::last_os_error()));
        }
        Ok(Arc::new(Self { library: Arc::clone(library), context, domain, name, attributes }))
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Work requests that one of a queue pair's queues can hold.
    pub fn work_requests_max(&self) -> u32 {
        self.attributes.max_qp_wr.max(0) as u32
    }

    /// Entries of a completion queue.
    pub fn completions_max(&self) -> u32 {
        self.attributes.max_cqe.max(0) as u32
    }

    /// RDMA READ requests that a queue pair can have outstanding.
    pub fn reads_max(&self) -> u8 {
        self.attributes.max_qp_init_rd_atom.clamp(0, 254) as u8
    }

    /// An error of a resource of this device.
    pub(crate) fn failed(&self, action: &'static str, source: io::Error) -> Error {
        Error::Resource { action, device: self.name.clone(), source }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: everything in the domain holds this device, and has gone.
        unsafe { (self.library.dealloc_pd)(self.domain) };
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("name", &self.name).finish_non_exhaustive()
    }
}
