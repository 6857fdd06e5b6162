//! Scatter gather list descriptors (base 4.3.2) that NVMe/TCP uses.
//!
//! Over TCP a command has exactly one descriptor, in the command itself: in-capsule data at an
//! offset ([`Sgl::InCapsule`]), or data that the transport moves in data PDUs ([`Sgl::Transport`]).
//! A host cannot address the controller's memory.

use crate::{Error, U32, U64};

wire_struct! {
    /// SGL descriptor (base figures 117 to 124).
    pub struct SglDescriptor[16] {
        /// Address or offset in bytes.
        pub addr: U64,
        /// Length in bytes.
        pub length: U32,
        /// Reserved.
        pub rsvd12: [u8; 3],
        /// SGL identifier: type in bits 7:4, sub type in bits 3:0.
        pub id: u8,
    }
}

/// Identifier of a data block descriptor with the offset sub type.
const ID_DATA_BLOCK_OFFSET: u8 = 0x01;
/// Identifier of a data block descriptor with the address sub type.
const ID_DATA_BLOCK_ADDRESS: u8 = 0x00;
/// Identifier of a transport data block descriptor with the transport sub type Ah.
const ID_TRANSPORT: u8 = 0x5a;

/// The meaning of a descriptor of an NVMe/TCP command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sgl {
    /// No data: a descriptor of zero length.
    None,
    /// Data block descriptor, offset sub type: the data is in the capsule.
    InCapsule {
        /// Bytes from the start of the in-capsule data area.
        offset_bytes: u64,
        /// Length of the data in bytes; not 0.
        length_bytes: u32,
    },
    /// Transport data block descriptor: the data is moved by data PDUs.
    Transport {
        /// Length of the data in bytes; not 0.
        length_bytes: u32,
    },
}

impl Sgl {
    /// Returns the number of bytes that the command transfers.
    pub const fn length_bytes(self) -> u32 {
        match self {
            Self::None => 0,
            Self::InCapsule { length_bytes, .. } | Self::Transport { length_bytes } => length_bytes,
        }
    }
}

impl SglDescriptor {
    /// Returns a data block descriptor for `length_bytes` of in-capsule data from `offset_bytes`
    /// on.
    pub fn in_capsule(offset_bytes: u64, length_bytes: u32) -> Self {
        Self {
            addr: U64::new(offset_bytes),
            length: U32::new(length_bytes),
            rsvd12: [0; 3],
            id: ID_DATA_BLOCK_OFFSET,
        }
    }

    /// Returns a transport data block descriptor for `length_bytes`.
    pub fn transport(length_bytes: u32) -> Self {
        Self { addr: U64::new(0), length: U32::new(length_bytes), rsvd12: [0; 3], id: ID_TRANSPORT }
    }

    /// Unpacks the descriptor.
    ///
    /// A zero length means no data in any type of descriptor, because hosts leave the field cleared
    /// (an address descriptor of length 0) or set a transport descriptor of length 0. Fails with
    /// [`Error::InvalidField`] `sgl1.id` on any other kind of descriptor; the command then
    /// completes with [`Status::SGL_TYPE_INVALID`](crate::Status::SGL_TYPE_INVALID).
    pub fn decode(&self) -> Result<Sgl, Error> {
        let length_bytes = self.length.get();
        match self.id {
            ID_DATA_BLOCK_OFFSET | ID_TRANSPORT | ID_DATA_BLOCK_ADDRESS if length_bytes == 0 => {
                Ok(Sgl::None)
            }
            ID_DATA_BLOCK_OFFSET => {
                Ok(Sgl::InCapsule { offset_bytes: self.addr.get(), length_bytes })
            }
            ID_TRANSPORT => Ok(Sgl::Transport { length_bytes }),
            id => Err(Error::InvalidField { field: "sgl1.id", value: u64::from(id) }),
        }
    }
}

impl From<Sgl> for SglDescriptor {
    fn from(sgl: Sgl) -> Self {
        match sgl {
            Sgl::None => Self::transport(0),
            Sgl::InCapsule { offset_bytes, length_bytes } => {
                Self::in_capsule(offset_bytes, length_bytes)
            }
            Sgl::Transport { length_bytes } => Self::transport(length_bytes),
        }
    }
}
