//! The memory of WRITEs that came through `/dev/fuse` and are not answered yet.
//!
//! The receiver cannot choose the next request, so it needs room for the largest one. A WRITE may
//! wait for long, for space or for a device that does not answer. If each kept the buffer that it
//! was received into, few small WRITEs would use up the bound on memory, and the session would
//! receive nothing more, not even the unlock or the read of another caller. So the first WRITEs keep
//! their buffers, which costs no copy. The data of further ones is copied to memory of its own
//! size, and these copies have a bound in bytes.

use std::cell::Cell;
use std::rc::Rc;

use reactor::Buffer;

use super::{Connection, FileSystem, SessionOptions};

/// Counts the memory of WRITEs in flight.
#[derive(Debug)]
pub(super) struct WriteRoom {
    /// WRITEs that keep the buffer that they were received into.
    buffers: Cell<usize>,
    copied_bytes: Cell<usize>,
    buffers_max: usize,
    copied_bytes_max: usize,
}

impl WriteRoom {
    pub(super) fn new(options: &SessionOptions) -> WriteRoom {
        WriteRoom {
            buffers: Cell::new(0),
            copied_bytes: Cell::new(0),
            buffers_max: options.writes_in_flight_max,
            copied_bytes_max: options.copied_write_bytes_max,
        }
    }

    /// Returns whether one more WRITE may be received. Copies exceed their bound by less than one
    /// WRITE.
    pub(super) fn is_left(&self) -> bool {
        self.buffers.get() < self.buffers_max || self.copied_bytes.get() < self.copied_bytes_max
    }

    /// Counts a WRITE with this number of bytes. Returns whether its data must be copied.
    fn enter(&self, bytes: usize) -> bool {
        let is_copied = self.buffers.get() >= self.buffers_max;
        if is_copied {
            self.copied_bytes.set(self.copied_bytes.get() + bytes);
        } else {
            self.buffers.set(self.buffers.get() + 1);
        }
        is_copied
    }

    /// Counts the end of a WRITE that was counted as a copy of this many bytes, or as a buffer.
    fn leave(&self, copied_bytes: Option<usize>) {
        match copied_bytes {
            Some(bytes) => self.copied_bytes.set(self.copied_bytes.get() - bytes),
            None => self.buffers.set(self.buffers.get() - 1),
        }
    }
}

/// The data of a received WRITE.
pub(crate) struct Kept<F: FileSystem> {
    /// The data, for the request.
    pub(crate) data: Buffer,
    /// The buffer that it was received into, if it is free again.
    pub(crate) free: Option<Buffer>,
    /// To be dropped when the request is answered.
    pub(crate) held: Held<F>,
}

/// The memory of a WRITE in flight.
pub(crate) struct Held<F: FileSystem> {
    connection: Rc<Connection<F>>,
    copied_bytes: Option<usize>,
}

impl<F: FileSystem> Connection<F> {
    /// Keeps the data of a received WRITE until it is answered.
    pub(crate) fn keep_write(self: &Rc<Self>, data: Buffer) -> Kept<F> {
        let bytes = data.len();
        let is_copied = self.write_room.enter(bytes);
        let copied_bytes = is_copied.then_some(bytes);
        let held = Held { connection: Rc::clone(self), copied_bytes };
        if is_copied {
            Kept { data: Buffer::copy_from(&data), free: Some(data), held }
        } else {
            Kept { data, free: None, held }
        }
    }
}

impl<F: FileSystem> Drop for Held<F> {
    fn drop(&mut self) {
        self.connection.write_room.leave(self.copied_bytes);
        self.connection.wake_receivers();
    }
}
