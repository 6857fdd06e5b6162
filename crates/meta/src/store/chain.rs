//! The chain of commits: each batch carries its number and a digest over all batches so far.
//!
//! The embedded engine takes a damaged frame of its journal for the torn end of a crash, and drops
//! it with all later frames. So each of our batches has one more record, the [`Head`] of the chain.
//! A missing, changed or misplaced batch breaks the chain, and [`super::watermark`] records the
//! length of the chain outside of the journal.

use xxhash_rust::xxh3::Xxh3Default;

/// Key of the head's record. No other record begins with this tag.
pub(super) const KEY: [u8; 1] = [0x02];

/// Version of the record's form.
const VERSION: u8 = 1;

/// Bytes of an encoded head.
pub(super) const ENCODED_BYTES: usize = 49;

/// The newest commit of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Number of the commit; the first is 1, and 0 stands for an empty chain.
    pub sequence: u64,
    /// Digest over the previous digest and the commit's writes.
    pub digest: u128,
    /// The engine's own number for the commit is this, or slightly more if the engine has used
    /// numbers for itself meanwhile.
    pub(super) engine: u64,
    /// The same number of the previous commit.
    pub(super) engine_before: u64,
    /// Wall-clock time of the commit, in nanoseconds since 1970. For people only.
    pub time_ns: u64,
}

impl Head {
    /// Returns the head after a commit of these writes.
    pub(super) fn next<'a>(
        &self,
        writes: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>,
        engine: u64,
        time_ns: u64,
    ) -> Head {
        let mut hasher = Xxh3Default::new();
        hasher.update(&self.digest.to_le_bytes());
        let numbers = [self.sequence + 1, engine, self.engine, time_ns];
        for number in numbers {
            hasher.update(&number.to_le_bytes());
        }
        for (key, value) in writes {
            hasher.update(&(key.len() as u64).to_le_bytes());
            hasher.update(key);
            // One more than the length, so that a removal differs from an empty value.
            hasher.update(&value.map_or(0, |value| value.len() as u64 + 1).to_le_bytes());
            hasher.update(value.unwrap_or_default());
        }
        let digest = hasher.digest128();
        Head { sequence: self.sequence + 1, digest, engine, engine_before: self.engine, time_ns }
    }

    /// Returns the bytes of a head.
    pub(super) fn encode(&self) -> [u8; ENCODED_BYTES] {
        let mut bytes = [0; ENCODED_BYTES];
        bytes[0] = VERSION;
        bytes[1..9].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[9..25].copy_from_slice(&self.digest.to_le_bytes());
        bytes[25..33].copy_from_slice(&self.engine.to_le_bytes());
        bytes[33..41].copy_from_slice(&self.engine_before.to_le_bytes());
        bytes[41..49].copy_from_slice(&self.time_ns.to_le_bytes());
        bytes
    }

    /// Returns the head in these bytes, if they are one.
    pub(super) fn decode(bytes: &[u8]) -> Option<Head> {
        let bytes: &[u8; ENCODED_BYTES] = bytes.try_into().ok()?;
        if bytes[0] != VERSION {
            return None;
        }
        let number = |at: usize| {
            let bytes = bytes.get(at..at + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        Some(Head {
            sequence: number(1)?,
            digest: u128::from_le_bytes(bytes[9..25].try_into().ok()?),
            engine: number(25)?,
            engine_before: number(33)?,
            time_ns: number(41)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Writes<'a> = &'a [(&'a [u8], Option<&'a [u8]>)];

    /// Goal: a head is decoded as it was encoded, and every change of a batch changes the digest.
    #[test]
    fn heads_differ_between_batches() {
        let next = |head: Head, writes: Writes<'_>| head.next(writes.iter().copied(), 7, 8);
        let first = next(Head::default(), &[(b"key", Some(b"value"))]);
        assert_eq!(Head::decode(&first.encode()), Some(first));
        assert_eq!(Head::decode(&first.encode()[1..]), None);
        let others: [Writes<'_>; 5] = [
            &[],
            &[(b"keyv", Some(b"alue"))],
            &[(b"key", None)],
            &[(b"key", Some(b""))],
            &[(b"key", Some(b"value")), (b"", None)],
        ];
        for writes in others {
            assert_ne!(next(Head::default(), writes).digest, first.digest, "{writes:?}");
        }
        assert_ne!(next(first, &[(b"key", Some(b"value"))]).digest, first.digest);
    }
}
