//! The output of a queue pair: headers gathered in one buffer, payload by reference.
//!
//! Headers, and payloads that are too small for a vector element of their own, are appended to an
//! open buffer; other payloads are kept as shared views. When the driver asks for output, the
//! buffer is frozen and everything becomes a short list of chunks for one vectored send.

use nvme::tcp::{DataDigest, Encoder, HEADER_BYTES_MAX, PduError};
use nvme::{CommandId, SubmissionQueueEntry, TransferTag};
use reactor::{Buffer, Chunk, Shared};
use std::collections::VecDeque;
use std::ops::Range;

/// Maximum number of chunks of one send; the kernel accepts 1024.
pub const SEND_CHUNKS_MAX: usize = 512;
/// Size of a header buffer: about 200 command capsules.
const HEADER_BUFFER_BYTES: usize = 16 * 1024;
/// Payloads up to this size are copied beside their header.
const COPIED_BYTES_MAX: usize = 1024;

/// The output that waits to be sent; see the module's description.
#[derive(Debug)]
pub(super) struct Outbox {
    open: Option<Buffer>,
    pieces: VecDeque<Piece>,
}

#[derive(Debug)]
enum Piece {
    /// A range of the open header buffer.
    Open(Range<usize>),
    /// A view of a frozen header buffer or of a payload.
    Shared(Shared),
}

impl Outbox {
    pub(super) fn new() -> Self {
        Self { open: None, pieces: VecDeque::with_capacity(64) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.pieces.clear();
        self.open = None;
    }

    /// Calls `write` to put up to `bytes_max` bytes at the end of the open buffer.
    fn append(&mut self, bytes_max: usize, write: impl FnOnce(&mut [u8]) -> usize) {
        if self.open.as_ref().is_none_or(|open| open.len() + bytes_max > open.capacity()) {
            self.seal();
            self.open = Some(Buffer::with_capacity(HEADER_BUFFER_BYTES));
        }
        let Some(open) = &mut self.open else { return };
        let start = open.len();
        open.set_len(start + bytes_max);
        let end = start + write(&mut open[start..]);
        open.set_len(end);
        match self.pieces.back_mut() {
            Some(Piece::Open(range)) if range.end == start => range.end = end,
            _ => self.pieces.push_back(Piece::Open(start..end)),
        }
    }

    /// Freezes the open buffer and makes its pieces views of it.
    fn seal(&mut self) {
        let Some(open) = self.open.take() else { return };
        let shared = open.freeze();
        for piece in &mut self.pieces {
            if let Piece::Open(range) = piece {
                *piece = Piece::Shared(shared.slice(range.clone()));
            }
        }
    }

    pub(super) fn push_bytes(&mut self, bytes: &[u8]) {
        self.append(bytes.len(), |out| {
            out.copy_from_slice(bytes);
            bytes.len()
        });
    }

    fn push_payload(&mut self, encoder: Encoder, payload: Shared) {
        let digest = encoder.has_data_digest.then(|| {
            let mut digest = DataDigest::new();
            digest.update(&payload);
            digest.to_wire()
        });
        if payload.len() <= COPIED_BYTES_MAX {
            self.push_bytes(&payload);
        } else {
            self.pieces.push_back(Piece::Shared(payload));
        }
        if let Some(digest) = digest {
            self.push_bytes(&digest);
        }
    }

    /// Appends a command, with its data in the capsule if there is any.
    pub(super) fn push_capsule(
        &mut self,
        encoder: Encoder,
        sqe: &SubmissionQueueEntry,
        payload: Option<&Shared>,
    ) {
        let data_bytes = payload.map_or(0, |payload| payload.len() as u32);
        self.append(HEADER_BYTES_MAX, |out| {
            // Cannot fail: there is room, and the alignment was checked with ICResp.
            encoder.capsule_cmd(out, sqe, data_bytes).unwrap_or(0)
        });
        if let Some(payload) = payload {
            self.push_payload(encoder, payload.clone());
        }
    }

    /// Appends the data that one R2T requested, in PDUs of at most `maxh2cdata_bytes`.
    pub(super) fn push_data(
        &mut self,
        encoder: Encoder,
        cid: CommandId,
        ttag: TransferTag,
        payload: &Shared,
        range: Range<u32>,
        maxh2cdata_bytes: u32,
    ) {
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min(start.saturating_add(maxh2cdata_bytes.max(1)));
            let is_last = end == range.end;
            self.append(HEADER_BYTES_MAX, |out| {
                encoder.h2c_data(out, cid, ttag, start, end - start, is_last).unwrap_or(0)
            });
            self.push_payload(encoder, payload.slice(start as usize..end as usize));
            start = end;
        }
    }

    /// Appends a terminate request that names the controller's violation. The connection ends after
    /// it.
    pub(super) fn push_term_request(&mut self, error: &PduError) {
        self.append(HEADER_BYTES_MAX, |out| Encoder::h2c_term_req(out, error, &[]).unwrap_or(0));
    }

    /// Moves up to [`SEND_CHUNKS_MAX`] chunks into `chunks`.
    pub(super) fn drain_into(&mut self, chunks: &mut Vec<Chunk>) {
        if self.pieces.len() == 1
            && let Some(Piece::Open(range)) = self.pieces.front()
            && let Some(open) = self.open.take()
        {
            chunks.push(Chunk::Buffer(open, range.clone()));
            self.pieces.clear();
            return;
        }
        self.seal();
        let count = self.pieces.len().min(SEND_CHUNKS_MAX);
        chunks.extend(self.pieces.drain(..count).map(|piece| match piece {
            Piece::Shared(shared) => Chunk::Shared(shared),
            Piece::Open(_) => unreachable!("the open buffer was sealed"),
        }));
    }
}

impl super::QueuePair {
    /// Returns whether there is something to send.
    pub fn has_output(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Moves waiting output into `chunks`, in order, at most [`SEND_CHUNKS_MAX`] of them.
    pub fn transmit(&mut self, chunks: &mut Vec<Chunk>) {
        if self.has_output() {
            self.outbox.drain_into(chunks);
        }
    }
}
