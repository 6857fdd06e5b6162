//! The key of a session's connections to a node's targets, on its way from the service to both.
//!
//! It is never stored. The service derives it at each admission; the target and the client keep it
//! in memory as long as the admission and the connection.

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Bytes of a data key.
pub const DATA_KEY_BYTES: usize = 48;

/// A data key. Neither printing nor comparing it reveals its bytes.
#[derive(Clone)]
pub struct DataKey(Zeroizing<Vec<u8>>);

impl DataKey {
    /// Returns the key of these bytes; [`None`] unless there are [`DATA_KEY_BYTES`].
    pub fn new(bytes: Zeroizing<Vec<u8>>) -> Option<Self> {
        (bytes.len() == DATA_KEY_BYTES).then_some(Self(bytes))
    }

    /// Returns its bytes.
    pub fn into_bytes(self) -> Zeroizing<Vec<u8>> {
        self.0
    }
}

impl fmt::Debug for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DataKey(..)")
    }
}

impl PartialEq for DataKey {
    fn eq(&self, other: &Self) -> bool {
        bool::from(self.0.ct_eq(&other.0))
    }
}

impl Eq for DataKey {}

impl Serialize for DataKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

struct DataKeyVisitor;

impl<'de> Visitor<'de> for DataKeyVisitor {
    type Value = DataKey;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a key of {DATA_KEY_BYTES} bytes")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<DataKey, E> {
        let key = DataKey::new(Zeroizing::new(bytes.to_vec()));
        key.ok_or_else(|| E::invalid_length(bytes.len(), &self))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<DataKey, A::Error> {
        // The full size from the start, so that no copy of the bytes is left behind.
        let mut bytes = Zeroizing::new(Vec::with_capacity(DATA_KEY_BYTES));
        while bytes.len() < DATA_KEY_BYTES
            && let Some(byte) = items.next_element()?
        {
            bytes.push(byte);
        }
        let length = bytes.len();
        DataKey::new(bytes).ok_or_else(|| A::Error::invalid_length(length, &self))
    }
}

impl<'de> Deserialize<'de> for DataKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<DataKey, D::Error> {
        deserializer.deserialize_bytes(DataKeyVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a key arrives as it was sent, one of another length does not, and no text shows any of
    /// it.
    #[test]
    fn keys_travel_whole() {
        let key = DataKey::new(Zeroizing::new((100..148).collect())).unwrap();
        let bytes = postcard::to_stdvec(&Some(key.clone())).unwrap();
        assert_eq!(postcard::from_bytes::<Option<DataKey>>(&bytes), Ok(Some(key.clone())));
        for length in [0, 47, 49] {
            assert_eq!(DataKey::new(Zeroizing::new(vec![1; length])), None);
            let bytes = postcard::to_stdvec(&vec![1_u8; length]).unwrap();
            assert!(postcard::from_bytes::<DataKey>(&bytes).is_err(), "{length}");
        }
        assert_eq!(format!("{key:?}"), "DataKey(..)");
    }
}
