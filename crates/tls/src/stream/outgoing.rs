//! Plain text that waits for encryption.

use reactor::Chunk;

/// Plain text that waits for encryption.
#[derive(Debug)]
pub struct Outgoing {
    chunks: Vec<Chunk>,
    /// The first chunk that is not completely encrypted, and the encrypted part of it.
    index: usize,
    offset: usize,
}

impl Outgoing {
    pub(super) fn new(chunks: Vec<Chunk>) -> Self {
        Self { chunks, index: 0, offset: 0 }
    }

    /// Takes the emptied list, for reuse.
    pub(super) fn take_chunks(&mut self) -> Vec<Chunk> {
        self.chunks.clear();
        std::mem::take(&mut self.chunks)
    }

    pub(super) fn is_done(&self) -> bool {
        self.index == self.chunks.len()
    }

    /// Returns the number of bytes that are not encrypted yet, at most `bytes_max`.
    pub(super) fn bytes(&self, bytes_max: usize) -> usize {
        let mut bytes = 0;
        for chunk in &self.chunks[self.index..] {
            bytes += chunk.len();
            if bytes - self.offset >= bytes_max {
                return bytes_max;
            }
        }
        bytes - self.offset
    }

    /// Returns the next bytes in place, if they lie in one chunk that cannot change.
    pub(super) fn lasting(&self, bytes: usize) -> Option<&[u8]> {
        self.chunks[self.index].as_lasting()?.get(self.offset..self.offset + bytes)
    }

    /// Copies the next bytes.
    pub(super) fn copy_out(&self, mut place: &mut [u8]) {
        let mut offset = self.offset;
        for chunk in &self.chunks[self.index..] {
            let (here, behind) = place.split_at_mut(place.len().min(chunk.len() - offset));
            chunk.copy_out(offset, here);
            (place, offset) = (behind, 0);
            if place.is_empty() {
                return;
            }
        }
    }

    /// Skips this number of bytes, and the chunks that end there.
    pub(super) fn advance(&mut self, bytes: usize) {
        self.offset += bytes;
        while let Some(chunk) = self.chunks.get(self.index)
            && self.offset >= chunk.len()
        {
            self.offset -= chunk.len();
            self.index += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use reactor::Buffer;

    proptest! {
        /// Goal: with any chunks, including empty ones, all bytes are encrypted in order, and bytes
        /// taken in place are equal to copied ones.
        #[test]
        fn all_bytes_go_out_in_order(lengths in prop::collection::vec(0usize..600, 0..12),
                                     record_bytes in 1usize..700, piece_bytes in 1usize..2000) {
            let mut next = 0;
            let mut all = Vec::new();
            let mut chunks = Vec::new();
            for length in lengths {
                let bytes: Vec<u8> = (next..next + length).map(|index| (index * 31) as u8).collect();
                next += length;
                all.extend_from_slice(&bytes);
                chunks.push(Chunk::from(Buffer::copy_from(&bytes)));
            }
            let (mut outgoing, mut sent) = (Outgoing::new(chunks), Vec::new());
            outgoing.advance(0);
            while !outgoing.is_done() {
                let mut left = outgoing.bytes(piece_bytes);
                prop_assert_eq!(left, piece_bytes.min(all.len() - sent.len()));
                while left > 0 {
                    let bytes = left.min(record_bytes);
                    let mut copy = vec![0; bytes];
                    outgoing.copy_out(&mut copy);
                    prop_assert!(outgoing.lasting(bytes).is_none_or(|lasting| lasting == copy));
                    sent.extend(copy);
                    outgoing.advance(bytes);
                    left -= bytes;
                }
            }
            prop_assert!(sent == all);
            prop_assert!(outgoing.take_chunks().is_empty());
        }
    }
}
