//! The output of a queue pair: headers gathered in place, data by reference.
//!
//! Headers and responses are written one after the other into a small staging area, which becomes
//! one chunk when data follows. So a batch of small responses costs one I/O vector entry.

use nvme::Error;
use reactor::{Chunk, Inline};

/// Bytes to be sent, in order.
#[derive(Debug)]
pub(crate) struct Output {
    chunks: Vec<Chunk>,
    staged: [u8; Inline::CAPACITY],
    staged_bytes: usize,
    bytes: usize,
    /// Reserved buffer memory that is free after these bytes were sent.
    reserved_bytes: usize,
}

impl Output {
    pub(crate) fn new() -> Self {
        Self {
            chunks: Vec::new(),
            staged: [0; Inline::CAPACITY],
            staged_bytes: 0,
            bytes: 0,
            reserved_bytes: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Returns the number of waiting bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Calls `encode` to write a header, which must have at most 128 bytes.
    pub(crate) fn header(
        &mut self,
        encode: impl Fn(&mut [u8]) -> Result<usize, Error>,
    ) -> Result<(), Error> {
        let mut result = encode(&mut self.staged[self.staged_bytes..]);
        if self.staged_bytes > 0 && matches!(result, Err(Error::BufferTooSmall { .. })) {
            self.flush_staged();
            result = encode(&mut self.staged);
        }
        let bytes = result?;
        self.staged_bytes += bytes;
        self.bytes += bytes;
        assert!(
            self.staged_bytes <= Inline::CAPACITY && self.bytes >= self.staged_bytes,
            "{} bytes of headers are staged, of {} to be sent",
            self.staged_bytes,
            self.bytes
        );
        Ok(())
    }

    /// Appends data; `reserved_bytes` of buffer memory are free after it was sent.
    pub(crate) fn data(&mut self, chunk: Chunk, reserved_bytes: usize) {
        self.flush_staged();
        self.bytes += chunk.len();
        self.reserved_bytes += reserved_bytes;
        self.chunks.push(chunk);
    }

    /// Takes everything. `spare` is an empty list whose memory is used next. The second part of the
    /// result is the reserved memory that is free after the send.
    pub(crate) fn take(&mut self, spare: Vec<Chunk>) -> (Vec<Chunk>, usize) {
        debug_assert!(spare.is_empty(), "the spare list is for its memory only");
        self.flush_staged();
        let chunks = std::mem::replace(&mut self.chunks, spare);
        let bytes: usize = chunks.iter().map(Chunk::len).sum();
        assert_eq!(
            bytes,
            self.bytes,
            "{} chunks do not have the counted number of bytes",
            chunks.len()
        );
        self.bytes = 0;
        (chunks, std::mem::take(&mut self.reserved_bytes))
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        self.chunks.clear();
        self.staged_bytes = 0;
        self.bytes = 0;
        self.reserved_bytes = 0;
    }

    fn flush_staged(&mut self) {
        if let Some(inline) = Inline::new(&self.staged[..self.staged_bytes])
            && self.staged_bytes > 0
        {
            self.chunks.push(Chunk::Inline(inline));
        }
        self.staged_bytes = 0;
    }
}
