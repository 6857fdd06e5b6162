//! The keys of a job: one is random, all others are derived from it (HKDF-SHA-384, RFC 5869). Each
//! derivation has its own label, so that no key serves two purposes and none reveals another.
//!
//! | key | derived with | known to | for |
//! | --- | --- | --- | --- |
//! | job key | – | the metadata service, the head node's job directory | deriving |
//! | node key | "node", the node's name | the metadata service, the node | the node's agent and mount |
//! | tool key | "tools" | the metadata service, the head node | `status`, `down`, `cp` |
//! | data key | "data", a session at a node | the metadata service, the session, the node | the session's NVMe/TCP |

use crate::key::{Hash, KeyError, Psk};
use hkdf::Hkdf;
use sha2::Sha384;
use std::fmt;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Bytes of a job's key.
const JOB_KEY_BYTES: usize = 32;

/// Bytes of a key that is derived: those of the hash function.
const KEY_BYTES: usize = 48;

/// Bytes of the tag that identifies the job of a key.
const TAG_BYTES: usize = 8;

/// The start of all identities of this form.
const FORM: &str = "tsumugi1";

/// Longest name of a node in an identity, in bytes.
const NAME_BYTES_MAX: usize = 512;

/// The key of a job. Neither printing nor comparing it reveals it.
#[derive(Clone)]
pub struct JobKey(Zeroizing<[u8; JOB_KEY_BYTES]>);

/// The holder of a key that was derived from a job's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Holder {
    /// The node of this name: its agent and its mount.
    Node(String),
    /// Tools of the job's owner.
    Tools,
}

/// The purpose of a data key: the connections of one session to the targets of one node. Each part
/// that could recur (a session's number after a store was recreated, an epoch, a name) is combined
/// with one that does not.
#[derive(Clone, Copy, Debug)]
pub struct DataKeyUse<'a> {
    /// Identity of the file system.
    pub file_system: [u8; 16],
    /// Number of the session.
    pub session: u64,
    /// Epoch of its admissions.
    pub epoch: u64,
    /// Its host identifier.
    pub host: [u8; 16],
    /// Name of the target's node.
    pub node: &'a str,
}

impl JobKey {
    /// Makes a new random key.
    pub fn generate() -> Self {
        let mut bytes = Zeroizing::new([0; JOB_KEY_BYTES]);
        reactor::random::fill(&mut bytes[..]);
        Self(bytes)
    }

    /// Parses 64 hexadecimal digits, without the white space around them.
    ///
    /// # Errors
    /// [`KeyError::Form`], [`KeyError::Zeros`].
    pub fn from_hex(text: &str) -> Result<Self, KeyError> {
        let bytes = from_hex(text.trim()).ok_or(KeyError::Form)?;
        let bytes: [u8; JOB_KEY_BYTES] = bytes[..].try_into().map_err(|_| KeyError::Form)?;
        if bytes == [0; JOB_KEY_BYTES] {
            return Err(KeyError::Zeros);
        }
        Ok(Self(Zeroizing::new(bytes)))
    }

    /// Returns the key as 64 hexadecimal digits. Store them only where no other user can read them.
    pub fn to_hex(&self) -> Zeroizing<String> {
        to_hex(&self.0[..])
    }

    /// Derives `bytes` under a label and a name.
    fn derive(&self, label: &str, name: &str, bytes: usize) -> Zeroizing<Vec<u8>> {
        self.derive_of(label, &[name.as_bytes()], bytes)
    }

    /// Derives `bytes` under a label and parts. All parts except the last have a fixed length.
    fn derive_of(&self, label: &str, parts: &[&[u8]], bytes: usize) -> Zeroizing<Vec<u8>> {
        let hkdf = Hkdf::<Sha384>::new(Some(b"tsumugi job key 1"), &self.0[..]);
        let mut key = Zeroizing::new(vec![0; bytes]);
        // The label has no zero byte, so the parts begin after the first one.
        let mut info: Vec<&[u8]> = vec![label.as_bytes(), &[0]];
        info.extend_from_slice(parts);
        hkdf.expand_multi_info(&info, &mut key).expect("HKDF gives up to 255 hashes");
        key
    }

    /// Derives the key of a session's connections to a node's targets.
    pub fn data_key(&self, of: &DataKeyUse<'_>) -> Zeroizing<Vec<u8>> {
        let (session, epoch) = (of.session.to_le_bytes(), of.epoch.to_le_bytes());
        let parts: [&[u8]; 5] = [&of.file_system, &session, &epoch, &of.host, of.node.as_bytes()];
        self.derive_of("data", &parts, KEY_BYTES)
    }

    /// Returns eight bytes in hexadecimal digits that identify the job of a key, and reveal nothing
    /// about the key.
    fn tag(&self) -> String {
        to_hex(&self.derive("tag", "", TAG_BYTES)).to_string()
    }

    /// Returns the key of one holder, with its identity.
    ///
    /// # Errors
    /// [`KeyError::Identity`] if a node's name is empty or overlong.
    pub fn of(&self, holder: &Holder) -> Result<Psk, KeyError> {
        let (role, name) = match holder {
            Holder::Node(name) if name.is_empty() || name.len() > NAME_BYTES_MAX => {
                return Err(KeyError::Identity(name.len()));
            }
            Holder::Node(name) => ("node", name.as_str()),
            Holder::Tools => ("tools", ""),
        };
        let identity = format!("{FORM}/{}/{role}/{name}", self.tag());
        Psk::new(identity.as_bytes(), self.derive(role, name, KEY_BYTES), Hash::Sha384)
    }

    /// Returns the key with this identity, if it is one of this job's.
    pub fn find(&self, identity: &[u8]) -> Option<Psk> {
        let psk = self.of(&Holder::of(identity)?).ok()?;
        (psk.identity() == identity).then_some(psk)
    }
}

impl Holder {
    /// Returns the holder of the key with this identity; none if it is not one of a job.
    pub fn of(identity: &[u8]) -> Option<Self> {
        let mut parts = std::str::from_utf8(identity).ok()?.splitn(4, '/');
        let (form, _tag) = (parts.next()?, parts.next()?);
        match (form == FORM, parts.next()?, parts.next()?) {
            (true, "node", name) => Some(Self::Node(name.into())),
            (true, "tools", "") => Some(Self::Tools),
            _ => None,
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(name) => write!(f, "node {name}"),
            Self::Tools => f.write_str("the job's tools"),
        }
    }
}

impl fmt::Debug for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobKey(..)")
    }
}

impl PartialEq for JobKey {
    fn eq(&self, other: &Self) -> bool {
        bool::from(self.0.ct_eq(&other.0[..]))
    }
}

impl Eq for JobKey {}

impl Psk {
    /// Returns a derived key as a line for its holder's file: identity and key, separated by one
    /// blank.
    pub fn to_line(&self) -> Zeroizing<String> {
        let key = to_hex(self.key());
        Zeroizing::new(format!("{} {}", String::from_utf8_lossy(self.identity()), key.as_str()))
    }

    /// Parses the result of [`Psk::to_line`], without white space around it.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn from_line(line: &str) -> Result<Self, KeyError> {
        let (identity, key) = line.trim().rsplit_once(' ').ok_or(KeyError::Form)?;
        let key = from_hex(key).filter(|key| key.len() == KEY_BYTES).ok_or(KeyError::Form)?;
        if Holder::of(identity.as_bytes()).is_none() {
            return Err(KeyError::Form);
        }
        Self::new(identity.as_bytes(), key, Hash::Sha384)
    }
}

fn to_hex(bytes: &[u8]) -> Zeroizing<String> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    // Allocated with its final size, so that growing leaves no copy behind.
    let mut text = Zeroizing::new(String::with_capacity(2 * bytes.len()));
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

fn from_hex(text: &str) -> Option<Zeroizing<Vec<u8>>> {
    if !text.len().is_multiple_of(2) {
        return None;
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(text.len() / 2));
    for pair in text.as_bytes().chunks(2) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        bytes.push((high << 4 | low) as u8);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> JobKey {
        JobKey::from_hex(&"0123456789abcdef".repeat(4)).unwrap()
    }

    fn node(name: &str) -> Holder {
        Holder::Node(name.into())
    }

    /// Goal: keys follow RFC 5869 (computed independently by Python's hmac), so that a later
    /// version derives the same ones.
    #[test]
    fn known_keys_are_derived() {
        let line = key().of(&node("node1")).unwrap().to_line();
        assert_eq!(
            line.as_str(),
            concat!(
                "tsumugi1/96b5c6fd933f7498/node/node1 ",
                "a0b607d855179a337f23273daac4a60981588e3e7255d200",
                "d29aa458f0fa5d8e941ed2bc0a9317e403c100176bee4112"
            )
        );
        let line = key().of(&Holder::Tools).unwrap().to_line();
        assert_eq!(
            line.as_str(),
            concat!(
                "tsumugi1/96b5c6fd933f7498/tools/ ",
                "ad10f52c99f5d99b46f00faa14e5d456f09d84d422a17990",
                "75107e8f7a866f1cba5e1f0037a66ef53c78035cffe2838c"
            )
        );
    }

    /// Goal: no two holders, and no two jobs, have the same key or identity, and an identity finds
    /// only its own key.
    #[test]
    fn each_holder_has_a_key_of_its_own() {
        let (one, other) = (key(), JobKey::generate());
        let holders = [node("node1"), node("node2"), node("tools"), node("a/b"), Holder::Tools];
        for (i, holder) in holders.iter().enumerate() {
            let psk = one.of(holder).unwrap();
            assert_eq!(one.find(psk.identity()), Some(psk.clone()));
            assert_eq!(Holder::of(psk.identity()).as_ref(), Some(holder));
            assert_eq!(other.find(psk.identity()), None, "another job's identity");
            assert_ne!(other.of(holder).unwrap().key(), psk.key());
            for another in &holders[..i] {
                assert_ne!(one.of(another).unwrap().key(), psk.key());
            }
        }
        for wrong in ["", "tsumugi1", "tsumugi1//node/", "tsumugi1/x/tools/y", "tsumugi2/x/tools/"]
        {
            assert_eq!(one.find(wrong.as_bytes()), None, "{wrong:?}");
        }
        assert_eq!(one.find(b"tsumugi1/\xff/tools/"), None);
        assert!(one.of(&node("")).is_err() && one.of(&node(&"x".repeat(600))).is_err());
    }

    /// Goal: a data key differs as soon as any part of its purpose differs, and no node's key is
    /// equal to one.
    #[test]
    fn each_session_has_a_data_key_at_each_node() {
        let job = key();
        let first =
            DataKeyUse { file_system: [1; 16], session: 2, epoch: 3, host: [4; 16], node: "node1" };
        let others = [
            DataKeyUse { file_system: [2; 16], ..first },
            DataKeyUse { session: 3, ..first },
            DataKeyUse { epoch: 4, ..first },
            DataKeyUse { host: [5; 16], ..first },
            DataKeyUse { node: "node2", ..first },
            DataKeyUse { node: "", ..first },
        ];
        assert_eq!(*job.data_key(&first), *job.data_key(&first));
        for other in &others {
            assert_ne!(*job.data_key(&first), *job.data_key(other), "{other:?}");
        }
        assert_ne!(*job.data_key(&first), *JobKey::generate().data_key(&first));
        assert_ne!(*job.data_key(&first), job.of(&node("node1")).unwrap().key());
    }

    /// Goal: keys can be written to a file and read back, and damaged ones are refused without
    /// printing them.
    #[test]
    fn files_are_read_back() {
        let job = JobKey::generate();
        assert_eq!(JobKey::from_hex(&format!("{}\n", job.to_hex().as_str())).unwrap(), job);
        let psk = job.of(&node("a b")).unwrap();
        let line = psk.to_line();
        assert_eq!(Psk::from_line(&format!("{}\n", line.as_str())).unwrap(), psk);
        assert_eq!(Psk::from_line(&line[..line.len() - 2]), Err(KeyError::Form));
        assert_eq!(Psk::from_line(&line.replace("tsumugi1", "x")), Err(KeyError::Form));
        assert_eq!(JobKey::from_hex(&"0".repeat(64)), Err(KeyError::Zeros));
        assert_eq!(JobKey::from_hex("zz"), Err(KeyError::Form));
        assert_eq!(JobKey::from_hex(&"é".repeat(32)), Err(KeyError::Form));
        let shown = format!("{job:?} {psk:?}");
        assert!(!shown.contains(&line[line.len() - 8..]), "{shown}");
    }
}
