//! The two functions by which the library asks for bytes and gives bytes, on memory instead of a socket.
//!
//! The library calls them only inside its own functions, which [`Wired`] alone calls: with `input` lent for the
//! time of the call. What the library wants to send gathers in `output`.
#![allow(unsafe_code, reason = "the library's callbacks are C functions; see SAFETY notes")]

use crate::error::Error;
use crate::server::library;
use libc::{c_int, c_void};
use s2n_tls::connection::Connection;
use std::ptr::{self, NonNull};

/// The two ends.
struct Wires {
    /// What is lent to the library and not taken yet; null outside of [`Wired::with`].
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

/// The wires on the heap, by the pointer that the library has too (a `Box` would claim that nobody else has one).
struct Owned(NonNull<Wires>);

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: `Wired::new` made it of a box; the connection, which was dropped before, has used it last.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

// SAFETY: the raw pointer of `Wires` is null but while `Wired::with` runs, which has the one `&mut Wired`; the
// library's connection can be sent to another thread.
unsafe impl Send for Wired {}

impl Wired {
    pub(crate) fn new(mut connection: Connection) -> Result<Self, Error> {
        let wires = Wires { input: ptr::null(), input_bytes: 0, output: Vec::new() };
        let wires = Owned(NonNull::from(Box::leak(Box::new(wires))));
        let context: *mut c_void = wires.0.as_ptr().cast();
        let fail = |error: s2n_tls::error::Error| library(&error);
        connection.set_receive_callback(Some(receive)).map_err(fail)?;
        connection.set_send_callback(Some(send)).map_err(fail)?;
        // SAFETY: the wires live as long as the connection, see the order of the fields, and stay where they are.
        unsafe {
            connection.set_receive_context(context).map_err(fail)?;
            connection.set_send_context(context).map_err(fail)?;
        }
        Ok(Self { connection, wires })
    }

    /// Calls the library; what it asks for comes from the front of `input`, from which it is taken.
    pub(crate) fn with<T>(
        &mut self,
        input: &mut &[u8],
        call: impl FnOnce(&mut Connection) -> T,
    ) -> T {
        let wires = self.wires.0.as_ptr();
        // SAFETY: `&mut self` is held, and no callback runs now: nobody else has a reference.
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

    /// The connection, for what needs no bytes.
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// What is to be sent.
    pub(crate) fn output(&mut self) -> &mut Vec<u8> {
        // SAFETY: `&mut self` is held as long as the reference lives; no callback runs before it ends.
        unsafe { &mut (*self.wires.0.as_ptr()).output }
    }
}

/// Tells the library to ask again.
fn would_block() -> c_int {
    // SAFETY: the C library gives the address of this thread's `errno`.
    unsafe { *libc::__errno_location() = libc::EWOULDBLOCK };
    -1
}

/// Gives the library bytes that came.
unsafe extern "C" fn receive(context: *mut c_void, bytes: *mut u8, count: u32) -> c_int {
    // SAFETY: the context is what `Wired::new` gave, and lives. The library calls this only inside `Wired::with`,
    // which holds no reference to it during the call.
    let wires = unsafe { &mut *context.cast::<Wires>() };
    let count = wires.input_bytes.min(count as usize).min(c_int::MAX as usize);
    if count == 0 {
        return would_block();
    }
    // SAFETY: `input` points to `input_bytes` bytes, lent for the time of `Wired::with`; the library's buffer has
    // room for what it asked for, and is not ours.
    unsafe {
        ptr::copy_nonoverlapping(wires.input, bytes, count);
        wires.input = wires.input.add(count);
    }
    wires.input_bytes -= count;
    count as c_int
}

/// Takes bytes that the library sends; all of them, always.
unsafe extern "C" fn send(context: *mut c_void, bytes: *const u8, count: u32) -> c_int {
    let count = count.min(c_int::MAX as u32);
    if count == 0 {
        return 0;
    }
    // SAFETY: as in `receive`; the bytes are the library's for the time of this call.
    let (wires, bytes) = unsafe {
        (&mut *context.cast::<Wires>(), std::slice::from_raw_parts(bytes, count as usize))
    };
    wires.output.extend_from_slice(bytes);
    count as c_int
}
