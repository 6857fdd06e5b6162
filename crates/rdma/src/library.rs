//! The functions of libibverbs and librdmacm that are used, loaded on demand.

use crate::Error;
use crate::abi::{
    IbvCompChannel, IbvContext, IbvCq, IbvDevice, IbvDeviceAttr, IbvMr, IbvPd, IbvQpInitAttr,
    RdmaCmEvent, RdmaCmId, RdmaConnParam, RdmaEventChannel, Text,
};
use libc::{c_int, c_void, sockaddr};
use std::ffi::CStr;
use std::fmt;
use std::sync::Arc;

/// The libraries' file names with their interface versions.
const VERBS: &str = "libibverbs.so.1";
const CM: &str = "librdmacm.so.1";

macro_rules! library {
    ($($name:ident: $kind:ty = $symbol:literal in $library:literal,)*) => {
        /// libibverbs and librdmacm, loaded.
        pub struct Library {
            $(pub(crate) $name: $kind,)*
            /// Keeps the functions loaded.
            _loaded: [libloading::Library; 2],
        }

        impl Library {
            /// Finds the functions in libibverbs, which is the first, and librdmacm.
            fn of(libraries: [libloading::Library; 2]) -> Result<Self, libloading::Error> {
                $(
                    // SAFETY: the symbol is a function of this type in every version with this
                    // interface; the pointer is used only while the library is loaded.
                    let $name = *unsafe { libraries[$library].get::<$kind>($symbol)? };
                )*
                Ok(Self { $($name,)* _loaded: libraries })
            }

            /// Returns a library with functions that all end the program, for tests that replace
            /// those that they call.
            #[cfg(test)]
            pub(crate) fn without_functions() -> Self {
                // Any library would do.
                let this = || libloading::Library::from(libloading::os::unix::Library::this());
                let none: unsafe extern "C" fn() = no_function;
                // SAFETY: a function that takes and returns nothing, with any arguments.
                $(let $name: $kind = unsafe { std::mem::transmute(none) };)*
                Self { $($name,)* _loaded: [this(), this()] }
            }
        }
    };
}

library! {
    get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut IbvDevice
        = c"ibv_get_device_list" in 0,
    free_device_list: unsafe extern "C" fn(*mut *mut IbvDevice) = c"ibv_free_device_list" in 0,
    query_device: unsafe extern "C" fn(*mut IbvContext, *mut IbvDeviceAttr) -> c_int
        = c"ibv_query_device" in 0,
    device_name: unsafe extern "C" fn(*mut IbvDevice) -> Text
        = c"ibv_get_device_name" in 0,
    alloc_pd: unsafe extern "C" fn(*mut IbvContext) -> *mut IbvPd = c"ibv_alloc_pd" in 0,
    dealloc_pd: unsafe extern "C" fn(*mut IbvPd) -> c_int = c"ibv_dealloc_pd" in 0,
    reg_mr: unsafe extern "C" fn(*mut IbvPd, *mut c_void, usize, c_int) -> *mut IbvMr
        = c"ibv_reg_mr" in 0,
    dereg_mr: unsafe extern "C" fn(*mut IbvMr) -> c_int = c"ibv_dereg_mr" in 0,
    create_comp_channel: unsafe extern "C" fn(*mut IbvContext) -> *mut IbvCompChannel
        = c"ibv_create_comp_channel" in 0,
    destroy_comp_channel: unsafe extern "C" fn(*mut IbvCompChannel) -> c_int
        = c"ibv_destroy_comp_channel" in 0,
    create_cq: unsafe extern "C" fn(
        *mut IbvContext,
        c_int,
        *mut c_void,
        *mut IbvCompChannel,
        c_int,
    ) -> *mut IbvCq = c"ibv_create_cq" in 0,
    destroy_cq: unsafe extern "C" fn(*mut IbvCq) -> c_int = c"ibv_destroy_cq" in 0,
    get_cq_event: unsafe extern "C" fn(
        *mut IbvCompChannel,
        *mut *mut IbvCq,
        *mut *mut c_void,
    ) -> c_int = c"ibv_get_cq_event" in 0,
    ack_cq_events: unsafe extern "C" fn(*mut IbvCq, libc::c_uint)
        = c"ibv_ack_cq_events" in 0,
    wc_status_str: unsafe extern "C" fn(c_int) -> Text = c"ibv_wc_status_str" in 0,
    create_event_channel: unsafe extern "C" fn() -> *mut RdmaEventChannel
        = c"rdma_create_event_channel" in 1,
    destroy_event_channel: unsafe extern "C" fn(*mut RdmaEventChannel)
        = c"rdma_destroy_event_channel" in 1,
    get_cm_event: unsafe extern "C" fn(*mut RdmaEventChannel, *mut *mut RdmaCmEvent) -> c_int
        = c"rdma_get_cm_event" in 1,
    ack_cm_event: unsafe extern "C" fn(*mut RdmaCmEvent) -> c_int = c"rdma_ack_cm_event" in 1,
    event_str: unsafe extern "C" fn(c_int) -> Text = c"rdma_event_str" in 1,
    create_id: unsafe extern "C" fn(
        *mut RdmaEventChannel,
        *mut *mut RdmaCmId,
        *mut c_void,
        c_int,
    ) -> c_int = c"rdma_create_id" in 1,
    destroy_id: unsafe extern "C" fn(*mut RdmaCmId) -> c_int = c"rdma_destroy_id" in 1,
    bind_addr: unsafe extern "C" fn(*mut RdmaCmId, *mut sockaddr) -> c_int
        = c"rdma_bind_addr" in 1,
    listen: unsafe extern "C" fn(*mut RdmaCmId, c_int) -> c_int = c"rdma_listen" in 1,
    resolve_addr: unsafe extern "C" fn(*mut RdmaCmId, *mut sockaddr, *mut sockaddr, c_int) -> c_int
        = c"rdma_resolve_addr" in 1,
    resolve_route: unsafe extern "C" fn(*mut RdmaCmId, c_int) -> c_int
        = c"rdma_resolve_route" in 1,
    connect: unsafe extern "C" fn(*mut RdmaCmId, *mut RdmaConnParam) -> c_int
        = c"rdma_connect" in 1,
    create_qp: unsafe extern "C" fn(*mut RdmaCmId, *mut IbvPd, *mut IbvQpInitAttr) -> c_int
        = c"rdma_create_qp" in 1,
    destroy_qp: unsafe extern "C" fn(*mut RdmaCmId) = c"rdma_destroy_qp" in 1,
    accept: unsafe extern "C" fn(*mut RdmaCmId, *mut RdmaConnParam) -> c_int
        = c"rdma_accept" in 1,
    reject: unsafe extern "C" fn(*mut RdmaCmId, *const c_void, u8) -> c_int
        = c"rdma_reject" in 1,
    disconnect: unsafe extern "C" fn(*mut RdmaCmId) -> c_int = c"rdma_disconnect" in 1,
    get_devices: unsafe extern "C" fn(*mut c_int) -> *mut *mut IbvContext
        = c"rdma_get_devices" in 1,
    free_devices: unsafe extern "C" fn(*mut *mut IbvContext) = c"rdma_free_devices" in 1,
}

#[cfg(test)]
unsafe extern "C" fn no_function() {
    std::process::abort();
}

impl Library {
    /// Loads both libraries.
    ///
    /// # Errors
    /// [`Error::Library`] if one is not installed or lacks a function.
    pub fn load() -> Result<Arc<Self>, Error> {
        // A statically linked program cannot load libraries; its C library reports that in its own
        // way.
        let open = |name: &str| {
            // SAFETY: the libraries' code that runs at loading accesses nothing of ours.
            unsafe { libloading::Library::new(name) }.map_err(|error| words(&error))
        };
        let (verbs, cm) = (open(VERBS), open(CM));
        let (verbs, cm) = match (verbs, cm) {
            (Ok(verbs), Ok(cm)) => (verbs, cm),
            (Err(error), _) | (_, Err(error)) => return Err(Error::Library(error)),
        };
        Self::of([verbs, cm]).map(Arc::new).map_err(|error| Error::Library(words(&error)))
    }

    /// Returns the library's text for the status of a work request.
    pub(crate) fn status_text(&self, status: c_int) -> String {
        // SAFETY: the function accepts every number.
        unsafe { text((self.wc_status_str)(status)) }
    }

    /// Returns the library's name for an event of a connection.
    pub(crate) fn event_text(&self, event: c_int) -> String {
        // SAFETY: the function accepts every number.
        unsafe { text((self.event_str)(event)) }
    }

    /// Returns the name of a device.
    ///
    /// # Safety
    /// The context must be open.
    pub(crate) unsafe fn name_of(&self, context: *mut IbvContext) -> String {
        // SAFETY: guaranteed by the caller.
        unsafe { text((self.device_name)((*context).device)) }
    }
}

/// Returns the dynamic loader's message; the error's own text names only the function that failed.
fn words(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}

/// # Safety
/// The text must be null or end with a zero.
unsafe fn text(text: Text) -> String {
    if text.is_null() {
        return "?".to_owned();
    }
    // SAFETY: guaranteed by the caller.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").finish_non_exhaustive()
    }
}
