//! The memory of a command's data.

use reactor::{Buffer, Shared};
use std::cell::RefCell;
use std::rc::Rc;

/// The transfer of a command.
#[derive(Debug, Default)]
pub enum Data {
    /// Nothing.
    #[default]
    None,
    /// These bytes to the controller; at least one.
    Write(Shared),
    /// Bytes from the controller into this memory.
    Read(Destination),
}

impl Data {
    /// Returns the number of bytes to transfer.
    pub fn len(&self) -> u32 {
        match self {
            Self::None => 0,
            Self::Write(bytes) => bytes.len() as u32,
            Self::Read(destination) => destination.len_bytes,
        }
    }

    /// Returns whether nothing is transferred.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the memory is there. It is missing if a connection ended in a way that the
    /// kernel never returned it.
    pub fn is_intact(&self) -> bool {
        match self {
            Self::Read(Destination { memory: Memory::Own(buffer), .. }) => buffer.is_some(),
            Self::Read(Destination { memory: Memory::Part(cell), .. }) => cell.borrow().is_some(),
            _ => true,
        }
    }

    /// Returns the buffer of a read that owns it.
    pub fn into_buffer(self) -> Option<Buffer> {
        match self {
            Self::Read(Destination { memory: Memory::Own(buffer), .. }) => buffer,
            _ => None,
        }
    }
}

/// The destination of one command's data: a whole buffer, or a part of a buffer that several
/// commands of the same thread fill together. In the latter case code that handles bytes takes the
/// buffer out of the shared cell meanwhile.
#[derive(Debug)]
pub struct Destination {
    memory: Memory,
    offset_bytes: usize,
    len_bytes: u32,
}

#[derive(Debug)]
enum Memory {
    Own(Option<Buffer>),
    Part(Rc<RefCell<Option<Buffer>>>),
}

impl Destination {
    /// Returns a destination for all visible bytes of `buffer`.
    pub fn whole(buffer: Buffer) -> Self {
        let len_bytes = buffer.len() as u32;
        Self { memory: Memory::Own(Some(buffer)), offset_bytes: 0, len_bytes }
    }

    /// Returns a destination for `len_bytes` from `offset_bytes` on of the shared buffer's visible
    /// bytes.
    pub fn part(buffer: Rc<RefCell<Option<Buffer>>>, offset_bytes: usize, len_bytes: u32) -> Self {
        Self { memory: Memory::Part(buffer), offset_bytes, len_bytes }
    }

    /// Takes the buffer out; [`Self::put_back`] returns it.
    pub(super) fn take(&mut self) -> Option<Buffer> {
        match &mut self.memory {
            Memory::Own(buffer) => buffer.take(),
            Memory::Part(cell) => cell.borrow_mut().take(),
        }
    }

    pub(super) fn put_back(&mut self, buffer: Buffer) {
        match &mut self.memory {
            Memory::Own(own) => *own = Some(buffer),
            Memory::Part(cell) => *cell.borrow_mut() = Some(buffer),
        }
    }

    /// Returns the position in the buffer of byte `offset_bytes` of the command's data.
    pub(super) fn position(&self, offset_bytes: u32) -> usize {
        self.offset_bytes + offset_bytes as usize
    }

    /// Copies `bytes` to `offset_bytes` of the command's data. Returns false if the buffer is
    /// missing or too short, which is a fault of its creator.
    pub(super) fn fill(&mut self, offset_bytes: u32, bytes: &[u8]) -> bool {
        let start = self.position(offset_bytes);
        let Some(mut buffer) = self.take() else { return false };
        let place = buffer.get_mut(start..start + bytes.len());
        let is_filled = place.is_some();
        if let Some(place) = place {
            place.copy_from_slice(bytes);
        }
        self.put_back(buffer);
        is_filled
    }
}
