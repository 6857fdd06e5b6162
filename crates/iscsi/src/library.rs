//! The functions of libiscsi that are used, loaded on demand.
//!
//! Their types are those of `iscsi.h` and `scsi-lowlevel.h`. Structures are opaque, except for the
//! head of one that has not changed since 2012.

use crate::Error;
use libc::{c_char, c_int, c_void};
use std::fmt;
use std::sync::Arc;

/// The library's file names with their interface versions.
const NAMES: [&str; 2] = ["libiscsi.so.7", "libiscsi.so.9"];

/// A session's state.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Context {
    _opaque: [u8; 0],
}

/// A command: the head of `struct scsi_task` (scsi-lowlevel.h), which is the same in both interface
/// versions. The library makes and frees it.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Task {
    status: c_int,
    cdb_size: c_int,
    direction: c_int,
    expected_bytes: c_int,
    cdb: [u8; 16],
    /// 0: the target moved as many bytes as were expected.
    pub(crate) residual_status: c_int,
    /// Number of bytes that were not moved, or could not be.
    pub(crate) residual_bytes: usize,
}

/// The head of the answer to READ CAPACITY (16).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capacity {
    pub(crate) last_block: u64,
    pub(crate) block_size: u32,
}

/// Context, SCSI status, task, and the pointer that was given with the command.
pub(crate) type Callback = unsafe extern "C" fn(*mut Context, c_int, *mut c_void, *mut c_void);

/// READ (16): context, unit, block, bytes, block size, protection, DPO, FUA, the same for caches,
/// group, callback, its argument.
type Read16 = unsafe extern "C" fn(
    *mut Context,
    c_int,
    u64,
    u32,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    Callback,
    *mut c_void,
) -> *mut Task;

/// WRITE (16): the same, with the data before the number of bytes.
type Write16 = unsafe extern "C" fn(
    *mut Context,
    c_int,
    u64,
    *mut u8,
    u32,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    Callback,
    *mut c_void,
) -> *mut Task;

/// SYNCHRONIZE CACHE (16): context, unit, block, blocks, sync NV, immediate, callback.
type SynchronizeCache16 = unsafe extern "C" fn(
    *mut Context,
    c_int,
    u64,
    u32,
    c_int,
    c_int,
    Callback,
    *mut c_void,
) -> *mut Task;

macro_rules! library {
    ($($name:ident: $kind:ty = $symbol:literal,)*) => {
        /// libiscsi, loaded.
        pub struct Library {
            $(pub(crate) $name: $kind,)*
            /// Keeps the functions loaded.
            _loaded: libloading::Library,
        }

        impl Library {
            fn of(library: libloading::Library) -> Result<Self, libloading::Error> {
                $(
                    // SAFETY: the symbol is a function of this type in every version with this
                    // interface; the pointer is used only while the library is loaded.
                    let $name = *unsafe { library.get::<$kind>($symbol)? };
                )*
                Ok(Self { $($name,)* _loaded: library })
            }
        }
    };
}

library! {
    create_context: unsafe extern "C" fn(*const c_char) -> *mut Context = c"iscsi_create_context",
    destroy_context: unsafe extern "C" fn(*mut Context) -> c_int = c"iscsi_destroy_context",
    set_target: unsafe extern "C" fn(*mut Context, *const c_char) -> c_int = c"iscsi_set_targetname",
    set_session_type: unsafe extern "C" fn(*mut Context, c_int) -> c_int
        = c"iscsi_set_session_type",
    set_header_digest: unsafe extern "C" fn(*mut Context, c_int) -> c_int
        = c"iscsi_set_header_digest",
    set_no_reconnect: unsafe extern "C" fn(*mut Context, c_int) = c"iscsi_set_noautoreconnect",
    set_timeout: unsafe extern "C" fn(*mut Context, c_int) -> c_int = c"iscsi_set_timeout",
    connect: unsafe extern "C" fn(*mut Context, *const c_char, c_int) -> c_int
        = c"iscsi_full_connect_sync",
    logout: unsafe extern "C" fn(*mut Context) -> c_int = c"iscsi_logout_sync",
    error: unsafe extern "C" fn(*mut Context) -> *const c_char = c"iscsi_get_error",
    socket: unsafe extern "C" fn(*mut Context) -> c_int = c"iscsi_get_fd",
    wanted: unsafe extern "C" fn(*mut Context) -> c_int = c"iscsi_which_events",
    serve: unsafe extern "C" fn(*mut Context, c_int) -> c_int = c"iscsi_service",
    read_capacity: unsafe extern "C" fn(*mut Context, c_int) -> *mut Task
        = c"iscsi_readcapacity16_sync",
    answer: unsafe extern "C" fn(*mut Task) -> *mut c_void = c"scsi_datain_unmarshall",
    read: Read16 = c"iscsi_read16_task",
    write: Write16 = c"iscsi_write16_task",
    flush: SynchronizeCache16 = c"iscsi_synchronizecache16_task",
    set_segments: unsafe extern "C" fn(*mut Task, *mut libc::iovec, c_int)
        = c"scsi_task_set_iov_in",
    free_task: unsafe extern "C" fn(*mut Task) = c"scsi_free_scsi_task",
}

impl Library {
    /// Loads the library.
    ///
    /// # Errors
    /// [`Error::Library`] if it is not installed, or lacks a function.
    pub fn load() -> Result<Arc<Self>, Error> {
        let mut why = None;
        for name in NAMES {
            // SAFETY: libiscsi's code that runs at loading accesses nothing of ours.
            match unsafe { libloading::Library::new(name) } {
                Ok(library) => {
                    let functions = Self::of(library);
                    return functions
                        .map(Arc::new)
                        .map_err(|error| Error::Library(error.to_string()));
                }
                Err(error) => why = why.or_else(|| Some(error.to_string())),
            }
        }
        Err(Error::Library(why.unwrap_or_default()))
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").finish_non_exhaustive()
    }
}
