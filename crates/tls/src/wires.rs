//! The functions through which the library reads and writes bytes, on memory instead of a socket.
//!
//! The library calls them only inside its own functions, and only [`Wired`] calls these, with
//! `input` lent for the duration of the call. The library's bytes to send are collected in
//! `output`.
#![allow(unsafe_code, reason = "the library's callbacks are C functions; see SAFETY notes")]

use crate::error::Error;
use crate::library::library;
use libc::{c_int, c_void};
use s2n_tls::connection::Connection;
use std::ptr::{self, NonNull};

/// The two ends.
struct Wires {
    /// The bytes that are lent to the library and not taken yet; null outside of [`Wired::with`].
    input: *const u8,
    input_bytes: usize,
    output: Vec<u8>,
}

/// A connection of the library with its wires.
pub(crate) struct Wired {
    // First, because fields are dropped in this order: the connection holds a pointer to the wires.
    connection: Connection,
    wires: Owned,
}

/// The wires on the heap, by a pointer that the library has too (a `Box` would claim to be the only
/// one).
struct Owned(NonNull<Wires>);

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: `Wired::new` made it from a box; the connection, its last user, has been dropped
        // before.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

// SAFETY: the raw pointer of `Wires` is null except while `Wired::with` runs, which has the only
// `&mut Wired`; the library's connection can be sent to another thread.
unsafe impl Send for Wired {}

impl Wired {
    pub(crate) fn new(mut connection: Connection) -> Result<Self, Error> {
        let wires = Wires { input: ptr::null(), input_bytes: 0, output: Vec::new() };
        let wires = Owned(NonNull::from(Box::leak(Box::new(wires))));
        let context: *mut c_void = wires.0.as_ptr().cast();
        let fail = |error: s2n_tls::error::Error| library(&error);
        connection.set_receive_callback(Some(receive)).map_err(fail)?;
        connection.set_send_callback(Some(send)).map_err(fail)?;
        // SAFETY: the wires live as long as the connection, see the order of the fields, and stay
        // where they are.
        unsafe {
            connection.set_receive_context(context).map_err(fail)?;
            connection.set_send_context(context).map_err(fail)?;
        }
        Ok(Self { connection, wires })
    }

    /// Calls the library. It reads from the front of `input`, which is advanced.
    pub(crate) fn with<T>(
        &mut self,
        input: &mut &[u8],
        call: impl FnOnce(&mut Connection) -> T,
    ) -> T {
        let wires = self.wires.0.as_ptr();
        // SAFETY: `&mut self` is held and no callback runs now, so there is no other reference.
        unsafe {
            (*wires).input = input.as_ptr();
            (*wires).input_bytes = input.len();
        }
        let result = call(&mut self.connection);
        // SAFETY: as above.
        let left = unsafe {
            (*wires).input = ptr::null();
            std::mem::take(&mut (*wires).input_bytes)
        };
        *input = &input[input.len() - left..];
        result
    }

    /// Returns the connection, for calls that read and write no bytes.
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Returns the bytes to send.
    pub(crate) fn output(&mut self) -> &mut Vec<u8> {
        // SAFETY: `&mut self` is held as long as the reference lives; no callback runs before it
        // ends.
        unsafe { &mut (*self.wires.0.as_ptr()).output }
    }
}

/// Makes the library try again later.
fn would_block() -> c_int {
    // SAFETY: the C library gives the address of this thread's `errno`.
    unsafe { *libc::__errno_location() = libc::EWOULDBLOCK };
    -1
}

/// Gives received bytes to the library.
unsafe extern "C" fn receive(context: *mut c_void, bytes: *mut u8, count: u32) -> c_int {
    // SAFETY: the context is the pointer from `Wired::new`, and is alive. The library calls this
    // only inside `Wired::with`, which holds no reference to it during the call.
    let wires = unsafe { &mut *context.cast::<Wires>() };
    let count = wires.input_bytes.min(count as usize).min(c_int::MAX as usize);
    if count == 0 {
        return would_block();
    }
    // SAFETY: `input` points to `input_bytes` bytes, lent for the duration of `Wired::with`; the
    // library's buffer has space for the requested bytes, and does not overlap them.
    unsafe {
        ptr::copy_nonoverlapping(wires.input, bytes, count);
        wires.input = wires.input.add(count);
    }
    wires.input_bytes -= count;
    count as c_int
}

/// Takes the bytes that the library sends, always all of them.
unsafe extern "C" fn send(context: *mut c_void, bytes: *const u8, count: u32) -> c_int {
    let count = count.min(c_int::MAX as u32);
    if count == 0 {
        return 0;
    }
    // SAFETY: as in `receive`; the bytes are valid for the duration of this call.
    let (wires, bytes) = unsafe {
        (&mut *context.cast::<Wires>(), std::slice::from_raw_parts(bytes, count as usize))
    };
    wires.output.extend_from_slice(bytes);
    count as c_int
}
