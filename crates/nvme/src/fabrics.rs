//! Fabrics commands (base 6): Connect, Property Get and Property Set.

use crate::opcode::FabricsType;
use crate::{
    ControllerId, Error, HostId, NQN_FIELD_BYTES, Nqn, QueueId, SubmissionQueueEntry, U16, U32,
};

/// The only format of the Connect command, RECFMT.
pub const CONNECT_RECFMT: u16 = 0;
/// CATTR bit 2: the host asks that SQ flow control be disabled.
const CATTR_DISABLE_SQ_FLOW_CONTROL: u8 = 1 << 2;

/// Dwords of Connect (base 6.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connect {
    /// QID: the queue pair to create; 0 creates a controller.
    pub qid: QueueId,
    /// Entries of the submission queue, 2 to 65536 (SQSIZE + 1; SQSIZE 0 is not allowed).
    pub sq_entries: u32,
    /// CATTR: connect attributes: bits 1:0 priority class, bit 2 flow control, bit 3 delete.
    pub cattr: u8,
    /// KATO: keep alive timeout in milliseconds; 0 is off. For the admin queue only.
    pub keep_alive_ms: u32,
}

impl Connect {
    /// Unpacks the dwords.
    ///
    /// Fails with [`Error::InvalidField`] `recfmt` (answer: Connect Incompatible Format) or
    /// `sqsize` (answer: Connect Invalid Parameters).
    pub fn decode(sqe: &SubmissionQueueEntry) -> Result<Self, Error> {
        let (cdw10, cdw11) = (sqe.cdw10.get(), sqe.cdw11.get());
        let recfmt = cdw10 & 0xffff;
        if recfmt != u32::from(CONNECT_RECFMT) {
            return Err(Error::InvalidField { field: "recfmt", value: u64::from(recfmt) });
        }
        let sqsize = cdw11 & 0xffff;
        if sqsize == 0 {
            return Err(Error::InvalidField { field: "sqsize", value: 0 });
        }
        Ok(Self {
            qid: QueueId((cdw10 >> 16) as u16),
            sq_entries: sqsize + 1,
            cattr: ((cdw11 >> 16) & 0xff) as u8,
            keep_alive_ms: sqe.cdw12.get(),
        })
    }

    /// Encodes the command; its data is a [`ConnectData`].
    ///
    /// Fails with [`Error::InvalidField`] `sqsize` if `sq_entries` is not in 2 to 65536.
    pub fn encode(&self) -> Result<SubmissionQueueEntry, Error> {
        if self.sq_entries < 2 || self.sq_entries > 1 << 16 {
            return Err(Error::InvalidField { field: "sqsize", value: u64::from(self.sq_entries) });
        }
        let mut sqe = SubmissionQueueEntry::fabrics(FabricsType::CONNECT);
        sqe.cdw10 = U32::new(u32::from(CONNECT_RECFMT) | (u32::from(self.qid.get()) << 16));
        sqe.cdw11 = U32::new((self.sq_entries - 1) | (u32::from(self.cattr) << 16));
        sqe.cdw12 = U32::new(self.keep_alive_ms);
        Ok(sqe)
    }

    /// Whether the host asks that SQ flow control be disabled (SQHD is then 0xffff).
    pub const fn is_flow_control_disabled(&self) -> bool {
        self.cattr & CATTR_DISABLE_SQ_FLOW_CONTROL != 0
    }
}

wire_struct! {
    /// Data of Connect (base figure 548).
    pub struct ConnectData[1024] {
        /// Host identifier.
        pub hostid: [u8; 16],
        /// Requested controller: 0xffff any (dynamic model), 0xfffe any (static), otherwise this
        /// one. For I/O queues it is the controller from the admin queue's Connect.
        pub cntlid: U16,
        /// Reserved.
        pub rsvd18: [u8; 238],
        /// NQN of the subsystem, NUL-padded.
        pub subnqn: [u8; NQN_FIELD_BYTES],
        /// NQN of the host, NUL-padded.
        pub hostnqn: [u8; NQN_FIELD_BYTES],
        /// Reserved.
        pub rsvd768: [u8; 256],
    }
}

impl ConnectData {
    /// Returns the data that connects `host` to `subsystem`.
    pub fn new(host_id: HostId, cntlid: ControllerId, subsystem: &Nqn, host: &Nqn) -> Self {
        Self {
            hostid: host_id.0,
            cntlid: U16::new(cntlid.get()),
            subnqn: subsystem.to_field(),
            hostnqn: host.to_field(),
            ..Self::default()
        }
    }

    /// Returns the host identifier.
    pub fn host_id(&self) -> HostId {
        HostId(self.hostid)
    }

    /// Returns the requested controller.
    pub fn controller_id(&self) -> ControllerId {
        ControllerId(self.cntlid.get())
    }

    /// Returns the name of the subsystem.
    pub fn subsystem_nqn(&self) -> Result<Nqn, Error> {
        Nqn::from_field(&self.subnqn)
    }

    /// Returns the name of the host; [`None`] if the field is empty, as some hosts leave it.
    pub fn host_nqn(&self) -> Result<Option<Nqn>, Error> {
        if self.hostnqn[0] == 0 {
            return Ok(None);
        }
        Nqn::from_field(&self.hostnqn).map(Some)
    }
}

/// Dword 0 of a successful Connect (base figure 550).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectResult {
    /// CNTLID: the controller that the queue pair belongs to.
    pub cntlid: ControllerId,
    /// AUTHREQ.ATR: in-band authentication must follow.
    pub is_authentication_required: bool,
    /// AUTHREQ.ASCR: authentication with secure channel concatenation must follow.
    pub is_secure_channel_required: bool,
}

impl ConnectResult {
    /// Unpacks dword 0.
    pub const fn from_dword(dword0: u32) -> Self {
        Self {
            cntlid: ControllerId((dword0 & 0xffff) as u16),
            is_authentication_required: dword0 & (1 << 17) != 0,
            is_secure_channel_required: dword0 & (1 << 18) != 0,
        }
    }

    /// Packs dword 0.
    pub const fn to_dword(self) -> u32 {
        self.cntlid.get() as u32
            | ((self.is_authentication_required as u32) << 17)
            | ((self.is_secure_channel_required as u32) << 18)
    }
}

/// Dword 0 of a Connect that failed with Connect Invalid Parameters (base figure 551): the place of
/// the first invalid parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectInvalid {
    /// IATTR 0: at this byte of the submission queue entry.
    Command(u16),
    /// IATTR 1: at this byte of the data.
    Data(u16),
}

impl ConnectInvalid {
    /// QID in the command.
    pub const QID: Self = Self::Command(42);
    /// SQSIZE in the command.
    pub const SQSIZE: Self = Self::Command(44);
    /// CATTR in the command.
    pub const CATTR: Self = Self::Command(46);
    /// KATO in the command.
    pub const KATO: Self = Self::Command(48);
    /// HOSTID in the data.
    pub const HOSTID: Self = Self::Data(0);
    /// CNTLID in the data.
    pub const CNTLID: Self = Self::Data(16);
    /// SUBNQN in the data.
    pub const SUBNQN: Self = Self::Data(256);
    /// HOSTNQN in the data.
    pub const HOSTNQN: Self = Self::Data(512);

    /// Unpacks dword 0.
    pub const fn from_dword(dword0: u32) -> Self {
        let offset = (dword0 & 0xffff) as u16;
        if dword0 & (1 << 16) == 0 { Self::Command(offset) } else { Self::Data(offset) }
    }

    /// Packs dword 0.
    pub const fn to_dword(self) -> u32 {
        match self {
            Self::Command(offset) => offset as u32,
            Self::Data(offset) => offset as u32 | (1 << 16),
        }
    }
}

/// Dwords of Property Get (base 6.4). Dwords 0 and 1 of the completion contain the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PropertyGet {
    /// Offset of the property, see [`crate::property::offset`].
    pub offset: u32,
    /// Whether the property has 8 bytes; otherwise it has 4.
    pub is_8_bytes: bool,
}

impl PropertyGet {
    /// Unpacks the dwords.
    ///
    /// Fails with [`Error::InvalidField`] `attrib` if the size is reserved.
    pub fn decode(sqe: &SubmissionQueueEntry) -> Result<Self, Error> {
        Ok(Self { offset: sqe.cdw11.get(), is_8_bytes: property_size(sqe)? })
    }

    /// Encodes the command.
    pub fn encode(&self) -> SubmissionQueueEntry {
        let mut sqe = SubmissionQueueEntry::fabrics(FabricsType::PROPERTY_GET);
        sqe.cdw10 = U32::new(u32::from(self.is_8_bytes));
        sqe.cdw11 = U32::new(self.offset);
        sqe
    }
}

/// Dwords of Property Set (base 6.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PropertySet {
    /// Offset of the property, see [`crate::property::offset`].
    pub offset: u32,
    /// Whether the property has 8 bytes; otherwise it has 4.
    pub is_8_bytes: bool,
    /// The value; only the low half counts for a 4-byte property.
    pub value: u64,
}

impl PropertySet {
    /// Unpacks the dwords.
    ///
    /// Fails with [`Error::InvalidField`] `attrib` if the size is reserved.
    pub fn decode(sqe: &SubmissionQueueEntry) -> Result<Self, Error> {
        Ok(Self {
            offset: sqe.cdw11.get(),
            is_8_bytes: property_size(sqe)?,
            value: u64::from(sqe.cdw12.get()) | (u64::from(sqe.cdw13.get()) << 32),
        })
    }

    /// Encodes the command.
    pub fn encode(&self) -> SubmissionQueueEntry {
        let mut sqe = SubmissionQueueEntry::fabrics(FabricsType::PROPERTY_SET);
        sqe.cdw10 = U32::new(u32::from(self.is_8_bytes));
        sqe.cdw11 = U32::new(self.offset);
        sqe.cdw12 = U32::new((self.value & 0xffff_ffff) as u32);
        sqe.cdw13 = U32::new((self.value >> 32) as u32);
        sqe
    }
}

fn property_size(sqe: &SubmissionQueueEntry) -> Result<bool, Error> {
    match sqe.cdw10.get() & 7 {
        0 => Ok(false),
        1 => Ok(true),
        size => Err(Error::InvalidField { field: "attrib", value: u64::from(size) }),
    }
}
