//! Chunks of zeros to write.

use reactor::{Buffer, Chunk, Shared};
use std::sync::OnceLock;

/// Bytes of the shared piece of zeros.
const PIECE_BYTES: u64 = 1 << 20;

/// Largest number of zeros in one write: below the limit of one `writev`.
pub(crate) const WRITE_BYTES_MAX: u64 = 256 * PIECE_BYTES;

/// Returns chunks of `len` zero bytes (at most [`WRITE_BYTES_MAX`]) that all share one piece of
/// memory.
pub(crate) fn chunks(len: u64) -> Vec<Chunk> {
    static PIECE: OnceLock<Shared> = OnceLock::new();
    debug_assert!(len <= WRITE_BYTES_MAX, "bounded by the caller");
    let piece = PIECE.get_or_init(|| Buffer::zeroed(PIECE_BYTES as usize).freeze());
    let whole = (0..len / PIECE_BYTES).map(|_| piece.clone());
    let rest = (len % PIECE_BYTES) as usize;
    whole.chain((rest > 0).then(|| piece.slice(..rest))).map(Chunk::from).collect()
}
