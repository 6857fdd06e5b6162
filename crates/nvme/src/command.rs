//! Submission queue entries (base 4.1), the 64 bytes of each command.
//!
//! There is one structure for all commands, and one small decoded structure per command
//! ([`ReadWrite`], [`Identify`], …) with `decode` from an entry and `encode` into one. So a queue
//! can handle entries uniformly, and only the code that executes a command knows its dwords.

mod admin;
mod copy;
mod io;
mod reservation;

pub use admin::{Abort, Feature, FeatureSelect, GetLogPage, Identify, SetFeatures};
pub use copy::{Copy, CopyRange};
pub use io::{DatasetManagement, DsmRange, ReadWrite};
pub use reservation::{
    AcquireAction, RegisterAction, ReservationAcquire, ReservationRegister, ReservationRelease,
    ReservationReport,
};

use crate::opcode::{self, AdminOpcode, DataDirection, FabricsType, NvmOpcode};
use crate::{CommandId, Nsid, SglDescriptor, U16, U32, U64};

/// The place of a command in a fused operation (base figure 91, FUSE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fuse {
    /// 00b: the command is not fused.
    None,
    /// 01b: the first command of a fused operation.
    First,
    /// 10b: the second command of a fused operation.
    Second,
    /// 11b.
    Reserved,
}

/// PSDT 01b: the data pointer is an SGL, the only form over fabrics.
const FLAGS_SGL: u8 = 0x40;

wire_struct! {
    /// Submission queue entry (base figure 93; Fabrics commands base figure 96).
    pub struct SubmissionQueueEntry[64] {
        /// Opcode.
        pub opc: u8,
        /// FUSE in bits 1:0, PSDT in bits 7:6 (01b or 10b: SGLs are used).
        pub flags: u8,
        /// Command identifier.
        pub cid: U16,
        /// Namespace identifier; for Fabrics commands FCTYPE in the lowest byte.
        pub nsid: U32,
        /// Command dword 2.
        pub cdw2: U32,
        /// Command dword 3.
        pub cdw3: U32,
        /// Metadata pointer; not used over TCP.
        pub mptr: U64,
        /// Data pointer: SGL descriptor 1.
        pub sgl1: SglDescriptor,
        /// Command dword 10.
        pub cdw10: U32,
        /// Command dword 11.
        pub cdw11: U32,
        /// Command dword 12.
        pub cdw12: U32,
        /// Command dword 13.
        pub cdw13: U32,
        /// Command dword 14.
        pub cdw14: U32,
        /// Command dword 15.
        pub cdw15: U32,
    }
}

impl SubmissionQueueEntry {
    /// Returns a command without data: all dwords 0, an SGL descriptor of length 0, command
    /// identifier 0.
    pub fn new(opcode: u8, nsid: Nsid) -> Self {
        Self {
            opc: opcode,
            flags: FLAGS_SGL,
            nsid: U32::new(nsid.get()),
            sgl1: SglDescriptor::transport(0),
            ..Self::default()
        }
    }

    /// Returns a command for the admin queue.
    pub fn admin(opcode: AdminOpcode, nsid: Nsid) -> Self {
        Self::new(opcode.0, nsid)
    }

    /// Returns a command of the NVM command set.
    pub fn nvm(opcode: NvmOpcode, nsid: Nsid) -> Self {
        Self::new(opcode.0, nsid)
    }

    /// Returns a Fabrics command.
    pub fn fabrics(fctype: FabricsType) -> Self {
        Self::new(opcode::FABRICS, Nsid(u32::from(fctype.0)))
    }

    /// Returns a keep Alive (base 5.1.14).
    pub fn keep_alive() -> Self {
        Self::admin(AdminOpcode::KEEP_ALIVE, Nsid(0))
    }

    /// Returns an asynchronous Event Request (base 5.1.2).
    pub fn async_event_request() -> Self {
        Self::admin(AdminOpcode::ASYNC_EVENT_REQUEST, Nsid(0))
    }

    /// Returns a flush (base 7.2).
    pub fn flush(nsid: Nsid) -> Self {
        Self::nvm(NvmOpcode::FLUSH, nsid)
    }

    /// Returns the same command with another identifier.
    pub fn with_command_id(mut self, cid: CommandId) -> Self {
        self.cid = U16::new(cid.get());
        self
    }

    /// Returns the same command with a data pointer.
    pub fn with_sgl(mut self, sgl: SglDescriptor) -> Self {
        self.sgl1 = sgl;
        self
    }

    /// Returns the identifier that the completion repeats.
    pub fn command_id(&self) -> CommandId {
        CommandId(self.cid.get())
    }

    /// Returns the namespace; meaningless for Fabrics commands.
    pub fn namespace_id(&self) -> Nsid {
        Nsid(self.nsid.get())
    }

    /// Returns the opcode of an admin command.
    pub fn admin_opcode(&self) -> AdminOpcode {
        AdminOpcode(self.opc)
    }

    /// Returns the opcode of an I/O command.
    pub fn nvm_opcode(&self) -> NvmOpcode {
        NvmOpcode(self.opc)
    }

    /// Whether this is a Fabrics command.
    pub fn is_fabrics(&self) -> bool {
        self.opc == opcode::FABRICS
    }

    /// Returns the type of a Fabrics command; meaningful only if [`Self::is_fabrics`].
    pub fn fabrics_type(&self) -> FabricsType {
        FabricsType((self.nsid.get() & 0xff) as u8)
    }

    /// Returns the direction of the command's data, if it has any.
    pub fn data_direction(&self) -> DataDirection {
        DataDirection::of(if self.is_fabrics() { self.fabrics_type().0 } else { self.opc })
    }

    /// Returns the command's place in a fused operation.
    pub fn fuse(&self) -> Fuse {
        match self.flags & 3 {
            0 => Fuse::None,
            1 => Fuse::First,
            2 => Fuse::Second,
            _ => Fuse::Reserved,
        }
    }

    /// Returns the same command at another place in a fused operation.
    pub fn with_fuse(mut self, fuse: Fuse) -> Self {
        let bits = match fuse {
            Fuse::None => 0,
            Fuse::First => 1,
            Fuse::Second => 2,
            Fuse::Reserved => 3,
        };
        self.flags = (self.flags & !3) | bits;
        self
    }

    /// Whether PSDT declares the data pointer as an SGL, as fabrics requires.
    pub fn has_sgl(&self) -> bool {
        matches!(self.flags >> 6, 1 | 2)
    }
}
