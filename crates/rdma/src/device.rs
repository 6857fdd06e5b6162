//! An RDMA device, shared by the connections on it.

use crate::Error;
use crate::abi::{
    ACCESS_LOCAL_WRITE, ACCESS_MW_BIND, DEVICE_MEM_WINDOW_TYPE_2, IbvContext, IbvDeviceAttr, IbvPd,
};
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

/// The use of the memory of connections on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Only the local adapter uses it.
    Local,
    /// Parts of it are lent to peers, each through a memory window.
    Lent,
}

/// A device with the protection domain of all resources that this program makes on it.
pub struct Device {
    pub(crate) library: Arc<Library>,
    pub(crate) context: *mut IbvContext,
    pub(crate) domain: *mut IbvPd,
    name: String,
    attributes: IbvDeviceAttr,
    access: Use,
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
        access: Use,
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
        let has_windows = attributes.device_cap_flags & DEVICE_MEM_WINDOW_TYPE_2 != 0;
        if access == Use::Lent && !has_windows {
            return Err(Error::NoWindows { device: name });
        }
        // SAFETY: the context is open.
        let domain = unsafe { (library.alloc_pd)(context) };
        if domain.is_null() {
            return Err(failed("make a protection domain", io::Error::last_os_error()));
        }
        let library = Arc::clone(library);
        Ok(Arc::new(Self { library, context, domain, name, attributes, access, _held: held }))
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

    /// Returns the largest number of RDMA READ requests of a peer that a queue pair serves at a time.
    pub fn reads_served_max(&self) -> u8 {
        self.attributes.max_qp_rd_atom.clamp(0, 254) as u8
    }

    /// Returns the access flags of registered memory. None of them gives access to a peer.
    pub(crate) fn memory_access(&self) -> libc::c_int {
        match self.access {
            Use::Local => ACCESS_LOCAL_WRITE,
            Use::Lent => ACCESS_LOCAL_WRITE | ACCESS_MW_BIND,
        }
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
    use crate::fake::{Fake, lists_held, windows};

    /// Goal: a device holds librdmacm's list, which keeps its context open, for as long as it
    /// lives. A device with a context that is not in the list is refused, and the list is freed.
    #[test]
    fn a_device_keeps_its_context_open() {
        let (other, fake) = (Fake::new(), Fake::new());
        let device = fake.device();
        assert_eq!(lists_held(), 1);
        // SAFETY: the context is alive, and one of the fake library.
        let refused = unsafe { Device::open(&fake.library, other.context, Use::Local) };
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("hold the context"), "{refused}");
        assert_eq!(lists_held(), 1);
        drop(device);
        assert_eq!(lists_held(), 0);
    }

    /// Goal: a device without memory windows serves connections that lend nothing, and is refused
    /// with its name for others.
    #[test]
    fn lending_needs_windows() {
        let fake = Fake::new();
        windows(false);
        // SAFETY: the context is alive, and one of the fake library.
        let open = |access| unsafe { Device::open(&fake.library, fake.context, access) };
        assert_eq!(open(Use::Local).unwrap().memory_access(), ACCESS_LOCAL_WRITE);
        let refused = open(Use::Lent).unwrap_err().to_string();
        assert!(refused.starts_with("not available: the RDMA device fake"), "{refused}");
        windows(true);
        let flags = ACCESS_LOCAL_WRITE | ACCESS_MW_BIND;
        assert_eq!(open(Use::Lent).unwrap().memory_access(), flags);
    }
}
