//! The possible contents of each sector of a worker's part of the device.
//!
//! The unit is the sector, not the block, because a loss of power keeps or loses each sector
//! separately. A failed write may have been executed, or may still be executed later, so its number
//! stays possible for good. A successful write replaces all others; what it replaced becomes
//! possible again if power is lost before a flush.

/// Bytes that a disk writes as a whole.
pub(super) const SECTOR_BYTES: usize = 512;

/// The number of a write; 0 stands for zeros.
pub(super) type Write = u64;

/// One sector.
#[derive(Clone, Debug, Default)]
struct Sector {
    /// The sector holds one of these if the device has lost nothing.
    now: Vec<Write>,
    /// The sector held one of these at the last flush.
    flushed: Vec<Write>,
    /// The sector may have held these since the last flush.
    since: Vec<Write>,
    /// Failed writes, which may still be executed at any time.
    late: Vec<Write>,
}

/// All sectors of a part.
#[derive(Debug)]
pub(super) struct Sectors {
    sectors: Vec<Sector>,
    next: Write,
}

impl Sectors {
    /// Returns a part of zeros.
    pub(super) fn new(bytes: u64) -> Sectors {
        let zeros = Sector { now: vec![0], flushed: vec![0], ..Sector::default() };
        let sectors = vec![zeros; bytes as usize / SECTOR_BYTES];
        Sectors { sectors, next: 1 }
    }

    /// Returns the number of a new write.
    pub(super) fn number(&mut self) -> Write {
        self.next += 1;
        self.next - 1
    }

    /// Records the end of a write.
    pub(super) fn wrote(&mut self, at: u64, bytes: u64, number: Write, is_done: bool) {
        for sector in self.range(at, bytes) {
            if is_done {
                sector.since.append(&mut sector.now);
                sector.now.push(number);
            } else {
                sector.late.push(number);
            }
        }
    }

    /// Records the end of a flush that began when no write was under way.
    pub(super) fn flushed(&mut self) {
        for sector in &mut self.sectors {
            sector.flushed.clone_from(&sector.now);
            sector.since.clear();
        }
    }

    /// Records a loss of power: each write since the last flush may be lost.
    pub(super) fn lost_power(&mut self) {
        for sector in &mut self.sectors {
            sector.now.append(&mut sector.since);
            sector.now.extend_from_slice(&sector.flushed);
            // The present content is durable, but unknown.
            sector.flushed.clone_from(&sector.now);
        }
    }

    /// Returns what is wrong with bytes that were read. Unless power was lost during the read, the
    /// content that a sector was seen to have becomes its only possible one.
    pub(super) fn check(&mut self, at: u64, bytes: &[u8], is_stable: bool) -> Option<String> {
        let first = at as usize / SECTOR_BYTES;
        for (index, found) in bytes.chunks(SECTOR_BYTES).enumerate() {
            let sector = &mut self.sectors[first + index];
            let place = (first + index) as u64;
            let may_be = |write: &&Write| *found == content(**write, place)[..];
            let Some(&write) = sector.now.iter().chain(&sector.late).find(may_be) else {
                let head = &found[..16];
                return Some(format!("sector {place} begins with {head:?}, may be {sector:?}"));
            };
            if is_stable && !sector.late.contains(&write) {
                sector.now = vec![write];
            }
        }
        None
    }

    fn range(&mut self, at: u64, bytes: u64) -> &mut [Sector] {
        let first = at as usize / SECTOR_BYTES;
        &mut self.sectors[first..first + bytes as usize / SECTOR_BYTES]
    }
}

/// Returns the bytes of a write at a place, which is counted in sectors of the part.
pub(super) fn content(write: Write, place: u64) -> [u8; SECTOR_BYTES] {
    let mut bytes = [0; SECTOR_BYTES];
    if write > 0 {
        for (index, word) in bytes.chunks_exact_mut(16).enumerate() {
            word[..8].copy_from_slice(&write.to_le_bytes());
            word[8..].copy_from_slice(&(place << 8 | index as u64).to_le_bytes());
        }
    }
    bytes
}
