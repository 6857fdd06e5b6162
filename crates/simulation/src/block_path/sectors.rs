//! What may be in each sector of a worker's part of the device.
//!
//! Sectors, not blocks, as a loss of power keeps or loses each by itself. A write that failed may
//! have been carried out, or may be later: its number stays possible for good. One that succeeded
//! replaces all but those; what it replaced is possible again if power is lost before a flush.

/// What a disk writes whole, in bytes.
pub(super) const SECTOR_BYTES: usize = 512;

/// The number of a write; 0 stands for zeros.
pub(super) type Write = u64;

/// One sector.
#[derive(Clone, Debug, Default)]
struct Sector {
    /// One of these it holds, if the device lost nothing.
    now: Vec<Write>,
    /// One of these it held when it was last flushed.
    flushed: Vec<Write>,
    /// These it may have held since.
    since: Vec<Write>,
    /// Failed writes, which may come at any time.
    late: Vec<Write>,
}

/// All sectors of a part.
#[derive(Debug)]
pub(super) struct Sectors {
    sectors: Vec<Sector>,
    next: Write,
}

impl Sectors {
    /// A part of zeros.
    pub(super) fn new(bytes: u64) -> Sectors {
        let zeros = Sector { now: vec![0], flushed: vec![0], ..Sector::default() };
        let sectors = vec![zeros; bytes as usize / SECTOR_BYTES];
        Sectors { sectors, next: 1 }
    }

    /// The number of a new write.
    pub(super) fn number(&mut self) -> Write {
        self.next += 1;
        self.next - 1
    }

    /// A write of so many bytes has ended.
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

    /// A flush has ended that was asked for when nothing was under way.
    pub(super) fn flushed(&mut self) {
        for sector in &mut self.sectors {
            sector.flushed.clone_from(&sector.now);
            sector.since.clear();
        }
    }

    /// The device lost power: any of what was written since the last flush.
    pub(super) fn lost_power(&mut self) {
        for sector in &mut self.sectors {
            sector.now.append(&mut sector.since);
            sector.now.extend_from_slice(&sector.flushed);
            // What is there now is durable, whatever it is.
            sector.flushed.clone_from(&sector.now);
        }
    }

    /// What is wrong with bytes that were read. Unless power was lost meanwhile, what a sector is
    /// found to hold it goes on to hold.
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

/// The bytes of a write at a place, which is counted in sectors of the part.
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
