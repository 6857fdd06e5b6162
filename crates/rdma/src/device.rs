//! An RDMA device, shared by the connections on it.

use crate::Error;
use crate::abi::{IbvContext, IbvDeviceAttr, IbvPd};
use crate::library::Library;
use std::fmt;
use std::io;
use std::ptr;
use std::sync::Arc;

/// librdmacm's list of open devices. While the list exists, their contexts stay open: librdmacm
/// counts their users, and closes a removed device's context when its last identifier is destroyed.
struct Held {
    library: Arc<Library>,
    list: *mut *mut IbvContext,
}

impl Held {
    fn get(library: &Arc<Library>) -> io::Result<Self> {
        // SAFETY: the function accepts null for the count; the end of the list is marked as well.
        let list = unsafe { (library.get_devices)(ptr::null_mut()) };
        if list.is_null() {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { library: Arc::clone(library), list })
    }

    fn has(&self, context: *mut IbvContext) -> bool {
        // SAFETY: the library's list ends with null, and belongs to us until it is freed.
        let contexts = (0..).map(|index| unsafe { *self.list.add(index) });
        contexts.take_while(|it| !it.is_null()).any(|it| it == context)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: the list is the library's, and is not used afterwards.
        unsafe { (self.library.free_devices)(self.list) };
    }
}

/// A device with the protection domain of all resources that this program makes on it.
pub struct Device {
    pub(crate) library: Arc<Library>,
    pub(crate) context: *mut IbvContext,
    pub(crate) domain: *mut IbvPd,
    name: String,
    attributes: IbvDeviceAttr,
    /// Dropped after the domain.
    _held: Held,
}

// SAFETY: every thread may use the context, the domain and the list (libibverbs and librdmacm are
// thread-safe), and this crate does not change them.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Opens the device of an open context.
    ///
    /// # Safety
    /// librdmacm must have opened the context, and keep it open during this call, because an
    /// identifier uses it.
    pub(crate) unsafe fn open(
        library: &Arc<Library>,
        context: *mut IbvContext,
    ) -> Result<Arc<Self>, Error> {
        // SAFETY: guaranteed by the caller.
        let name = unsafe { library.name_of(context) };
        let failed = |action, source| Error::Resource { action, device: name.clone(), source };
        let held = Held::get(library).map_err(|error| failed("hold the context", error))?;
        if !held.has(context) {
            let error = io::Error::other("librdmacm does not list it");
            return Err(failed("hold the context", error));
        }
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
        let library = Arc::clone(library);
        Ok(Arc::new(Self { library, context, domain, name, attributes, _held: held }))
    }

    /// Returns the device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the largest number of work requests in one of a queue pair's queues.
    pub fn work_requests_max(&self) -> u32 {
        self.attributes.max_qp_wr.max(0) as u32
    }

    /// Returns the largest number of entries of a completion queue.
    pub fn completions_max(&self) -> u32 {
        self.attributes.max_cqe.max(0) as u32
    }

    /// Returns the largest number of outstanding RDMA READ requests of a queue pair.
    pub fn reads_max(&self) -> u8 {
        self.attributes.max_qp_init_rd_atom.clamp(0, 254) as u8
    }

    /// Returns an error of a resource of this device.
    pub(crate) fn failed(&self, action: &'static str, source: io::Error) -> Error {
        Error::Resource { action, device: self.name.clone(), source }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: everything in the domain holds this device, and has been dropped.
        unsafe { (self.library.dealloc_pd)(self.domain) };
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Fake, lists_held};

    /// Goal: a device holds librdmacm's list, which keeps its context open, for as long as it
    /// lives. A device with a context that is not in the list is refused, and the list is freed.
    #[test]
    fn a_device_keeps_its_context_open() {
        let (other, fake) = (Fake::new(), Fake::new());
        let device = fake.device();
        assert_eq!(lists_held(), 1);
        // SAFETY: the context is alive, and one of the fake library.
        let refused = unsafe { Device::open(&fake.library, other.context) };
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("hold the context"), "{refused}");
        assert_eq!(lists_held(), 1);
        drop(device);
        assert_eq!(lists_held(), 0);
    }
}
