//! Checksums of device blocks: CRC-32C, computed by the writer's client and checked by the
//! reader's.
//!
//! A sum belongs to its block and not to an extent, see `docs/checksums.md`. Sums are encoded as
//! plain bytes, four for each: a varint would take five.

use crate::ids::DeviceId;
use crate::inline::Bytes;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Most sums in one message.
pub const SUMS_PER_MESSAGE_MAX: usize = 64 << 10;

/// Returns the CRC-32C of bytes.
pub fn checksum(bytes: &[u8]) -> u32 {
    // The CRC has 32 bits, in a wider type.
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The sums of some blocks, in the order of the blocks; at most [`SUMS_PER_MESSAGE_MAX`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums(pub Vec<u32>);

impl Sums {
    /// Returns the sums of all blocks of some data.
    ///
    /// # Panics
    /// If the data does not consist of whole blocks.
    pub fn of_blocks(bytes: &[u8], block_size: usize) -> Sums {
        assert!(
            bytes.len().is_multiple_of(block_size),
            "{} bytes are not whole blocks",
            bytes.len()
        );
        Sums(bytes.chunks(block_size).map(checksum).collect())
    }
}

impl Serialize for Sums {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes: Vec<u8> = self.0.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        serializer.serialize_bytes(&bytes)
    }
}

impl<'de> Deserialize<'de> for Sums {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Sums, D::Error> {
        let Bytes(bytes) = Bytes::deserialize(deserializer)?;
        let (sums, rest) = bytes.as_chunks();
        if !rest.is_empty() {
            return Err(D::Error::custom("a sum has four bytes"));
        }
        if sums.len() > SUMS_PER_MESSAGE_MAX {
            return Err(D::Error::custom("more sums than a message may have"));
        }
        Ok(Sums(sums.iter().map(|sum| u32::from_le_bytes(*sum)).collect()))
    }
}

/// The sums of adjacent blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SumRun {
    /// The device.
    pub device: DeviceId,
    /// The first block, counted from the device's start.
    pub block: u64,
    /// One sum for each block.
    pub sums: Sums,
}

/// The sums of any blocks; at most [`SUMS_PER_MESSAGE_MAX`]. A block that is in no run has no sum.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<SumRun>", into = "Vec<SumRun>")]
pub struct BlockSums(Vec<SumRun>);

impl BlockSums {
    /// Adds the sum of a block.
    pub fn push(&mut self, device: DeviceId, block: u64, sum: u32) {
        match self.0.last_mut() {
            Some(last)
                if last.device == device
                    && last.block.checked_add(last.sums.0.len() as u64) == Some(block) =>
            {
                last.sums.0.push(sum);
            }
            _ => self.0.push(SumRun { device, block, sums: Sums(vec![sum]) }),
        }
    }

    /// Returns their number.
    pub fn count(&self) -> usize {
        self.0.iter().map(|run| run.sums.0.len()).sum()
    }

    /// Returns all sums with their blocks.
    pub fn each(&self) -> impl Iterator<Item = (DeviceId, u64, u32)> + '_ {
        self.0.iter().flat_map(|run| {
            let blocks = run.block..;
            blocks.zip(&run.sums.0).map(|(block, sum)| (run.device, block, *sum))
        })
    }
}

impl From<BlockSums> for Vec<SumRun> {
    fn from(sums: BlockSums) -> Vec<SumRun> {
        sums.0
    }
}

impl TryFrom<Vec<SumRun>> for BlockSums {
    type Error = &'static str;

    fn try_from(runs: Vec<SumRun>) -> Result<BlockSums, &'static str> {
        let reaches_too_far =
            |run: &SumRun| run.block.checked_add(run.sums.0.len() as u64).is_none();
        if runs.iter().any(reaches_too_far) {
            return Err("sums are of blocks past all devices");
        }
        let sums = BlockSums(runs);
        if sums.count() > SUMS_PER_MESSAGE_MAX {
            return Err("more sums than a message may have");
        }
        Ok(sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Goal: the checksum equals the one that RFC 3720 has for 32 bytes of zeros.
    #[test]
    fn checksums_are_those_of_iscsi() {
        assert_eq!(checksum(&[0; 32]), 0x8a91_36aa);
        assert_eq!(Sums::of_blocks(&[0; 64], 32), Sums(vec![0x8a91_36aa; 2]));
    }

    /// Goal: a sum takes four bytes, and the most of a message fit into a frame beside the rest.
    #[test]
    fn sums_are_small() {
        let mut sums = BlockSums::default();
        (0..256).for_each(|block| sums.push(DeviceId(3), 70_000 + block, u32::MAX));
        assert!(postcard::to_stdvec(&sums).unwrap().len() <= 1024 + 8);
        const { assert!(SUMS_PER_MESSAGE_MAX * 4 <= crate::frame::BODY_MAX_BYTES / 4) };
    }

    /// Goal: lists that are too long, cut off or name impossible blocks are refused.
    #[test]
    fn hostile_sums_are_refused() {
        let too_many = Sums(vec![0; SUMS_PER_MESSAGE_MAX + 1]);
        let encoded = postcard::to_stdvec(&too_many).unwrap();
        assert!(postcard::from_bytes::<Sums>(&encoded).is_err());
        let odd = postcard::to_stdvec(&Bytes(vec![1, 2, 3])).unwrap();
        assert!(postcard::from_bytes::<Sums>(&odd).is_err());
        let run = |block, count| SumRun { device: DeviceId(1), block, sums: Sums(vec![0; count]) };
        let half = SUMS_PER_MESSAGE_MAX / 2;
        for (runs, is_good) in [
            (vec![run(0, half), run(u64::from(u32::MAX), half)], true),
            (vec![run(0, half), run(0, half), run(0, 1)], false),
            (vec![run(u64::MAX, 1)], false),
        ] {
            let encoded = postcard::to_stdvec(&runs).unwrap();
            assert_eq!(postcard::from_bytes::<BlockSums>(&encoded).is_ok(), is_good);
        }
    }

    proptest! {
        /// Goal: encoding loses nothing, and neither does joining neighbours.
        #[test]
        fn encoding_is_invertible(
            blocks in prop::collection::vec((0u32..2, 0u64..6, any::<u32>()), 0..40),
        ) {
            let mut sums = BlockSums::default();
            let blocks: Vec<_> =
                blocks.into_iter().map(|(device, block, sum)| (DeviceId(device), block, sum)).collect();
            for (device, block, sum) in &blocks {
                sums.push(*device, *block, *sum);
            }
            prop_assert_eq!(sums.each().collect::<Vec<_>>(), blocks);
            let encoded = postcard::to_stdvec(&sums).unwrap();
            prop_assert_eq!(postcard::from_bytes::<BlockSums>(&encoded).unwrap(), sums);
        }
    }
}
