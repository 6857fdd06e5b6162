//! The NVMe/RDMA transport: the private data of the connection manager's exchange, and keyed
//! descriptors.
//!
//! The adapter does everything else of this transport: capsules are messages, and RDMA READ and
//! RDMA WRITE move data from and to the memory in the command's keyed descriptor.

use crate::sgl::SglDescriptor;
use crate::{Error, QueueId, U16, U32};
use std::fmt;

/// Record format of all private data.
pub const RECORD_FORMAT: u16 = 0;
/// Longest data of a keyed descriptor: its length has 24 bits.
pub const KEYED_BYTES_MAX: u32 = (1 << 24) - 1;

wire_struct! {
    /// Private data of a request for a connection (RDMA figure 4).
    pub struct ConnectRequest[32] {
        /// Record format, 0.
        pub recfmt: U16,
        /// Queue that the connection is for.
        pub qid: U16,
        /// Entries of the host's receive queue.
        pub hrqsize: U16,
        /// Entries of the host's send queue, counted from 0.
        pub hsqsize: U16,
        /// Controller that an I/O queue belongs to.
        pub cntlid: U16,
        /// Reserved.
        pub rsvd10: [u8; 22],
    }
}

wire_struct! {
    /// Private data of an accepted connection (RDMA figure 5).
    pub struct ConnectAccept[32] {
        /// Record format, 0.
        pub recfmt: U16,
        /// Entries of the controller's receive queue.
        pub crqsize: U16,
        /// Reserved.
        pub rsvd4: [u8; 28],
    }
}

wire_struct! {
    /// Private data of a refused connection (RDMA figure 6).
    pub struct ConnectReject[4] {
        /// Record format, 0.
        pub recfmt: U16,
        /// Reason, see [`RejectStatus`].
        pub sts: U16,
    }
}

/// The reason for refusing a connection (RDMA figure 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum RejectStatus {
    /// The private data is too short.
    InvalidLength = 1,
    /// The record format of the private data is unknown.
    InvalidRecordFormat = 2,
    /// The queue identifier is not allowed.
    InvalidQueueId = 3,
    /// The host's send queue has too many entries, or too few.
    InvalidHostSendQueueSize = 4,
    /// The host's receive queue has too few entries.
    InvalidHostReceiveQueueSize = 5,
    /// There are no resources for the connection.
    NoResources = 6,
    /// The host serves no RDMA READ.
    InvalidInboundReads = 7,
    /// The host requests more RDMA READ than possible.
    InvalidOutboundReads = 8,
    /// The controller identifier is not allowed.
    InvalidControllerId = 9,
}

impl RejectStatus {
    /// Returns the status with this number.
    pub fn new(number: u16) -> Option<Self> {
        Some(match number {
            1 => Self::InvalidLength,
            2 => Self::InvalidRecordFormat,
            3 => Self::InvalidQueueId,
            4 => Self::InvalidHostSendQueueSize,
            5 => Self::InvalidHostReceiveQueueSize,
            6 => Self::NoResources,
            7 => Self::InvalidInboundReads,
            8 => Self::InvalidOutboundReads,
            9 => Self::InvalidControllerId,
            _ => return None,
        })
    }
}

impl fmt::Display for RejectStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::InvalidLength => "Invalid Private Data Length",
            Self::InvalidRecordFormat => "Invalid RECFMT",
            Self::InvalidQueueId => "Invalid Queue ID",
            Self::InvalidHostSendQueueSize => "Invalid HSQSIZE",
            Self::InvalidHostReceiveQueueSize => "Invalid HRQSIZE",
            Self::NoResources => "No Resources",
            Self::InvalidInboundReads => "Invalid IRD",
            Self::InvalidOutboundReads => "Invalid ORD",
            Self::InvalidControllerId => "Invalid CNTLID",
        };
        write!(f, "{name} (status {})", *self as u16)
    }
}

impl ConnectReject {
    /// Returns a refusal.
    pub fn new(status: RejectStatus) -> Self {
        Self { recfmt: U16::new(RECORD_FORMAT), sts: U16::new(status as u16) }
    }

    /// Returns the reason, if the number is known.
    pub fn status(&self) -> Option<RejectStatus> {
        RejectStatus::new(self.sts.get())
    }
}

impl ConnectReject {
    /// Unpacks the private data of a refusal, to which the transport may have appended zeros;
    /// [`None`] if it is too short or of another format, or the reason's number is unknown.
    pub fn decode(bytes: &[u8]) -> Option<RejectStatus> {
        let reject = Self::from_prefix(bytes).ok()?;
        (reject.recfmt.get() == RECORD_FORMAT).then(|| reject.status()).flatten()
    }
}

impl ConnectAccept {
    /// Unpacks the private data of an acceptance, and returns the entries of the controller's
    /// receive queue.
    ///
    /// # Errors
    /// [`Error::Truncated`] or [`Error::InvalidField`].
    pub fn decode(bytes: &[u8]) -> Result<u16, Error> {
        let accept = Self::from_prefix(bytes)?;
        let (format, entries) = (accept.recfmt.get(), accept.crqsize.get());
        if format != RECORD_FORMAT {
            return Err(Error::InvalidField { field: "recfmt", value: u64::from(format) });
        }
        if entries == 0 {
            return Err(Error::InvalidField { field: "crqsize", value: 0 });
        }
        Ok(entries)
    }

    /// Returns an acceptance with this number of receive queue entries.
    pub fn new(receive_entries: u16) -> Self {
        Self {
            recfmt: U16::new(RECORD_FORMAT),
            crqsize: U16::new(receive_entries),
            ..Self::default()
        }
    }
}

impl ConnectRequest {
    /// Returns a request for a queue of `entries` entries (at least 2).
    pub fn new(queue: QueueId, entries: u16, controller: u16) -> Self {
        Self {
            recfmt: U16::new(RECORD_FORMAT),
            qid: U16::new(queue.0),
            hrqsize: U16::new(entries),
            hsqsize: U16::new(entries - 1),
            cntlid: U16::new(controller),
            ..Self::default()
        }
    }

    /// Checks private data: `entries_max` returns the largest submission queue for the queue
    /// identifier in it. Returns the request and the number of entries of its submission queue.
    ///
    /// # Errors
    /// The status for the refusal.
    pub fn check(
        bytes: &[u8],
        entries_max: impl Fn(QueueId) -> u16,
    ) -> Result<(&Self, u16), RejectStatus> {
        let request = Self::from_prefix(bytes).map_err(|_| RejectStatus::InvalidLength)?;
        if request.recfmt.get() != RECORD_FORMAT {
            return Err(RejectStatus::InvalidRecordFormat);
        }
        let queue = QueueId(request.qid.get());
        let entries = request.hsqsize.get().checked_add(1);
        let entries = entries.filter(|entries| (2..=entries_max(queue)).contains(entries));
        let entries = entries.ok_or(RejectStatus::InvalidHostSendQueueSize)?;
        // Each outstanding command has a response.
        if request.hrqsize.get() < request.hsqsize.get() {
            return Err(RejectStatus::InvalidHostReceiveQueueSize);
        }
        Ok((request, entries))
    }
}

/// Memory of the host that contains a command's data, or receives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyedSgl {
    /// Address in the host's memory.
    pub address: u64,
    /// Bytes.
    pub length_bytes: u32,
    /// The host's key for that memory.
    pub key: u32,
    /// The response has to invalidate the key.
    pub invalidates: bool,
}

/// Identifier of a keyed data block descriptor, with the sub types address and invalidate key.
const ID_KEYED: u8 = 0x40;
const ID_KEYED_INVALIDATE: u8 = 0x4f;

impl SglDescriptor {
    /// Returns a keyed descriptor of no data, which commands without data have over RDMA.
    pub fn keyed_null() -> Self {
        Self { id: ID_KEYED, ..Self::default() }
    }
}

impl KeyedSgl {
    /// Unpacks a descriptor (base figure 122); [`None`] if it is of another type.
    pub fn decode(descriptor: &SglDescriptor) -> Option<Self> {
        if !matches!(descriptor.id, ID_KEYED | ID_KEYED_INVALIDATE) {
            return None;
        }
        // The four bytes after the address contain three bytes of length and the lowest byte of the
        // key.
        let mixed = descriptor.length.get();
        let [first, second, third] = descriptor.rsvd12.map(u32::from);
        Some(Self {
            address: descriptor.addr.get(),
            length_bytes: mixed & KEYED_BYTES_MAX,
            key: mixed >> 24 | first << 8 | second << 16 | third << 24,
            invalidates: descriptor.id == ID_KEYED_INVALIDATE,
        })
    }

    /// Packs the descriptor.
    ///
    /// # Errors
    /// [`Error::InvalidField`] for a length of more than 24 bits.
    pub fn encode(&self) -> Result<SglDescriptor, Error> {
        if self.length_bytes > KEYED_BYTES_MAX {
            let value = u64::from(self.length_bytes);
            return Err(Error::InvalidField { field: "sgl1.length", value });
        }
        let [lowest, first, second, third] = U32::new(self.key).to_bytes();
        Ok(SglDescriptor {
            addr: crate::U64::new(self.address),
            length: U32::new(self.length_bytes | u32::from(lowest) << 24),
            rsvd12: [first, second, third],
            id: if self.invalidates { ID_KEYED_INVALIDATE } else { ID_KEYED },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::U64;

    /// Goal: private data has the bytes of the specification (written down from the Linux kernel's
    /// host).
    #[test]
    fn private_data_has_its_bytes() {
        let request = ConnectRequest::new(QueueId(3), 128, 0x1234);
        let mut expected = [0; 32];
        expected[..10].copy_from_slice(&[0, 0, 3, 0, 128, 0, 127, 0, 0x34, 0x12]);
        assert_eq!(request.bytes(), expected);
        let mut expected = [0; 32];
        expected[2] = 32;
        assert_eq!(ConnectAccept::new(32).bytes(), expected);
        let reject = ConnectReject::new(RejectStatus::NoResources);
        assert_eq!(reject.bytes(), [0, 0, 6, 0]);
        assert_eq!(reject.status(), Some(RejectStatus::NoResources));
        assert!((1..=9).all(|it| RejectStatus::new(it).is_some_and(|status| status as u16 == it)));
        assert!(RejectStatus::new(0).is_none() && RejectStatus::new(10).is_none());
    }

    /// Goal: answers come back from their bytes, with appended zeros too; shortened bytes, other
    /// formats and unknown numbers are found.
    #[test]
    fn answers_are_decoded() {
        let mut accept = ConnectAccept::new(128).bytes().to_vec();
        assert_eq!(ConnectAccept::decode(&accept[..31]).ok(), None);
        accept.resize(196, 0);
        assert_eq!(ConnectAccept::decode(&accept).unwrap(), 128);
        assert!(ConnectAccept::decode(ConnectAccept::new(0).bytes()).is_err());
        accept[0] = 1;
        assert!(ConnectAccept::decode(&accept).is_err());
        for number in 0..=300 {
            let mut reject = ConnectReject { sts: U16::new(number), ..Default::default() };
            let status = ConnectReject::decode(&[reject.bytes(), &[0; 144]].concat());
            assert_eq!(status, RejectStatus::new(number));
            assert_eq!(ConnectReject::decode(&reject.bytes()[..3]), None);
            reject.recfmt = U16::new(1);
            assert_eq!(ConnectReject::decode(reject.bytes()), None);
        }
        assert_eq!(RejectStatus::NoResources.to_string(), "No Resources (status 6)");
    }

    /// Goal: each fault of a request gives the status that names it, and any bytes are accepted or
    /// refused.
    #[test]
    fn requests_are_checked() {
        let most = |queue: QueueId| if queue.is_admin() { 32 } else { 128 };
        let check = |qid: u16, hrqsize: u16, hsqsize: u16| {
            let request = ConnectRequest {
                qid: U16::new(qid),
                hrqsize: U16::new(hrqsize),
                hsqsize: U16::new(hsqsize),
                ..ConnectRequest::default()
            };
            ConnectRequest::check(request.bytes(), most).map(|(_, entries)| entries)
        };
        assert_eq!(check(0, 32, 31), Ok(32));
        assert_eq!(check(1, 128, 127), Ok(128));
        assert_eq!(check(0, 33, 32), Err(RejectStatus::InvalidHostSendQueueSize));
        assert_eq!(check(1, 1, 0), Err(RejectStatus::InvalidHostSendQueueSize));
        assert_eq!(check(1, 0xffff, 0xffff), Err(RejectStatus::InvalidHostSendQueueSize));
        assert_eq!(check(1, 126, 127), Err(RejectStatus::InvalidHostReceiveQueueSize));
        let other = ConnectRequest { recfmt: U16::new(1), ..ConnectRequest::default() };
        let status = ConnectRequest::check(other.bytes(), most).unwrap_err();
        assert_eq!(status, RejectStatus::InvalidRecordFormat);
        for length in 0..32 {
            let status = ConnectRequest::check(&[0; 56][..length], most).unwrap_err();
            assert_eq!(status, RejectStatus::InvalidLength);
        }
    }

    /// Goal: a packed keyed descriptor decodes to the same values, no bytes make decoding panic,
    /// and a descriptor of another kind gives none.
    #[test]
    fn keyed_descriptors_come_back() {
        let keyed = KeyedSgl {
            address: 0x1122_3344_5566_7788,
            length_bytes: 0x0a_bcde,
            key: 0x89ab_cdef,
            invalidates: true,
        };
        let packed = keyed.encode().unwrap();
        assert_eq!(packed.bytes()[8..], [0xde, 0xbc, 0x0a, 0xef, 0xcd, 0xab, 0x89, 0x4f]);
        assert_eq!(KeyedSgl::decode(&packed), Some(keyed));
        let longer = KeyedSgl { length_bytes: 1 << 24, ..keyed };
        assert!(longer.encode().is_err());
        let mut state = 1_u64;
        for _ in 0..100_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&U64::new(state).to_bytes());
            bytes[8..].copy_from_slice(&U64::new(state.rotate_left(29)).to_bytes());
            let descriptor = *SglDescriptor::from_prefix(&bytes).unwrap();
            let decoded = KeyedSgl::decode(&descriptor);
            assert_eq!(decoded.is_some(), matches!(bytes[15], 0x40 | 0x4f));
            if let Some(keyed) = decoded {
                assert!(keyed.length_bytes < 1 << 24);
                assert_eq!(keyed.encode().unwrap(), descriptor);
            }
        }
    }
}
