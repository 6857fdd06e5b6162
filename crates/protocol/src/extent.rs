//! Extents: the mapping of a file's bytes to bytes of allocations.
//!
//! Extents are byte-granular and have no alignment: a record of 47 008 bytes is one extent. Strided
//! jobs make very many that differ only by a constant step, so a list of extents is *packed* into
//! runs when it is stored or sent; in memory it is always plain.

use crate::ids::{AllocationId, DeviceId};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest extent, in bytes: an allocation's largest size.
pub const EXTENT_MAX_BYTES: u64 = 1 << 20;

/// Most extents in one message.
pub const EXTENTS_PER_MESSAGE_MAX: usize = 4096;

/// The location of an extent's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The allocation.
    pub allocation: AllocationId,
    /// Offset in it, in bytes.
    pub at: u32,
}

impl Place {
    /// Returns the location that stands for bytes lost with the power of a device. They read as EIO
    /// until they are overwritten or cut off.
    pub fn lost(device: DeviceId) -> Place {
        let allocation = AllocationId { device: DeviceId::LOST, block: u64::from(device.0) };
        Place { allocation, at: 0 }
    }

    /// Returns the device that lost the bytes, if they are lost.
    pub fn lost_with(&self) -> Option<DeviceId> {
        let is_lost = self.allocation.device == DeviceId::LOST;
        is_lost.then_some(DeviceId(self.allocation.block as u32))
    }
}

/// A run of a file's bytes within one allocation. Bytes that no extent covers read as zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Extent {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Number of bytes; at least 1, at most [`EXTENT_MAX_BYTES`].
    pub length: u32,
    /// The location of the bytes.
    pub place: Place,
}

impl Extent {
    /// Returns one past the last byte in the file.
    pub fn end(&self) -> u64 {
        self.offset + u64::from(self.length)
    }

    /// Returns the part of this extent within `start..end`, if any.
    pub fn clip(&self, start: u64, end: u64) -> Option<Extent> {
        let from = self.offset.max(start);
        let to = self.end().min(end);
        if from >= to {
            return None;
        }
        let skipped = (from - self.offset) as u32;
        let place = Place { allocation: self.place.allocation, at: self.place.at + skipped };
        Some(Extent { offset: from, length: (to - from) as u32, place })
    }

    /// Returns whether `next` continues this extent both in the file and in the allocation.
    pub fn continues_in(&self, next: &Extent) -> bool {
        self.end() == next.offset
            && self.place.allocation == next.place.allocation
            && u64::from(self.place.at) + u64::from(self.length) == u64::from(next.place.at)
    }
}

/// A list of extents that is packed into runs when it is encoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtentList(pub Vec<Extent>);

/// One extent, or `count` extents of equal length, `stride` apart in the file, back to back in the
/// allocation.
#[derive(Serialize, Deserialize)]
enum Packed {
    One(Extent),
    Run { first: Extent, stride: u64, count: u32 },
}

/// Returns the step from `a` to `b`, if `b` can follow `a` in a run.
fn step(a: &Extent, b: &Extent) -> Option<u64> {
    let follows = a.length == b.length
        && a.place.allocation == b.place.allocation
        && a.place.at.checked_add(a.length) == Some(b.place.at);
    if follows { b.offset.checked_sub(a.offset) } else { None }
}

fn pack(extents: &[Extent]) -> Vec<Packed> {
    let mut packed = Vec::new();
    let mut rest = extents;
    while let Some(first) = rest.first() {
        let mut count = 1;
        let mut stride = 0;
        while let Some(next) = rest.get(count) {
            match step(&rest[count - 1], next) {
                Some(s) if count == 1 || s == stride => stride = s,
                _ => break,
            }
            count += 1;
        }
        // A run of two costs as much as two extents.
        if count >= 3 {
            packed.push(Packed::Run { first: *first, stride, count: count as u32 });
        } else {
            count = 1;
            packed.push(Packed::One(*first));
        }
        rest = &rest[count..];
    }
    packed
}

fn unpack(packed: &[Packed]) -> Result<Vec<Extent>, &'static str> {
    let mut extents = Vec::new();
    for item in packed {
        let (first, stride, count) = match item {
            Packed::One(extent) => (*extent, 0, 1),
            Packed::Run { first, stride, count } => (*first, *stride, *count),
        };
        if extents.len() + count as usize > EXTENTS_PER_MESSAGE_MAX {
            return Err("more extents than a list may have");
        }
        if first.length == 0 || u64::from(first.length) > EXTENT_MAX_BYTES {
            return Err("extent length is out of range");
        }
        for i in 0..count {
            let offset = u64::from(i).checked_mul(stride).and_then(|o| o.checked_add(first.offset));
            let at = i.checked_mul(first.length).and_then(|a| a.checked_add(first.place.at));
            let (Some(offset), Some(at)) = (offset, at) else {
                return Err("extent run overflows");
            };
            let in_file = offset
                .checked_add(u64::from(first.length))
                .is_some_and(|end| end <= crate::FILE_SIZE_MAX_BYTES);
            let in_allocation = u64::from(at) + u64::from(first.length) <= EXTENT_MAX_BYTES;
            if !in_file || !in_allocation {
                return Err("extent reaches past the end of a file or allocation");
            }
            let place = Place { allocation: first.place.allocation, at };
            extents.push(Extent { offset, length: first.length, place });
        }
    }
    Ok(extents)
}

impl Serialize for ExtentList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        pack(&self.0).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ExtentList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ExtentList, D::Error> {
        let packed = Vec::<Packed>::deserialize(deserializer)?;
        unpack(&packed).map(ExtentList).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn extent(offset: u64, length: u32, block: u64, at: u32) -> Extent {
        let allocation = AllocationId { device: DeviceId(1), block };
        Extent { offset, length, place: Place { allocation, at } }
    }

    /// Goal: a strided job's list takes a few dozen bytes, not a few dozen per record.
    #[test]
    fn strided_records_pack_into_one_run() {
        let records = (0..22).map(|i| extent(u64::from(i) * 94016, 47008, 7, i * 47008)).collect();
        let bytes = postcard::to_stdvec(&ExtentList(records)).unwrap();
        assert!(bytes.len() < 24, "{} bytes", bytes.len());
    }

    /// Goal: hostile runs are refused, not expanded.
    #[test]
    fn overlong_runs_are_refused() {
        let bad = vec![Packed::Run { first: extent(0, 1, 0, 0), stride: 1, count: u32::MAX }];
        let bytes = postcard::to_stdvec(&bad).unwrap();
        assert!(postcard::from_bytes::<ExtentList>(&bytes).is_err());
    }

    proptest! {
        /// Goal: packing loses nothing.
        #[test]
        fn packing_is_invertible(steps in prop::collection::vec((0u64..3, 1u32..4, 0u64..2), 0..60)) {
            let mut list = Vec::new();
            let (mut offset, mut at) = (0, 0);
            for (gap, length, block) in steps {
                offset += gap * 10;
                list.push(extent(offset, length, block, at));
                offset += u64::from(length);
                at += length;
            }
            let list = ExtentList(list);
            let bytes = postcard::to_stdvec(&list).unwrap();
            prop_assert_eq!(postcard::from_bytes::<ExtentList>(&bytes).unwrap(), list);
        }

        /// Goal: clipping keeps bytes and places in step.
        #[test]
        fn clip_keeps_places(start in 0u64..200, end in 0u64..200) {
            let whole = extent(50, 100, 3, 1000);
            match whole.clip(start, end) {
                Some(part) => {
                    prop_assert!(part.offset >= start.max(50) && part.end() <= end.min(150));
                    prop_assert_eq!(part.offset - 50, u64::from(part.place.at) - 1000);
                }
                None => prop_assert!(start.max(50) >= end.min(150)),
            }
        }
    }
}
