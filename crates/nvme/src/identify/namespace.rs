//! Identify namespace (NVM 4.1.5.1), its command set independent and specific parts, namespace
//! lists and namespace identification descriptors (base 5.1.13.2).

use super::IDENTIFY_BYTES;
use crate::{Error, Nsid, U16, U32, U64};

wire_struct! {
    /// LBA format (NVM figure 116).
    pub struct LbaFormat[4] {
        /// Metadata bytes per block.
        pub ms: U16,
        /// Block of 2^n bytes; 0: the format does not exist.
        pub lbads: u8,
        /// Relative performance in bits 1:0: 0 is best.
        pub rp: u8,
    }
}

wire_struct! {
    /// Identify namespace data structure of the NVM command set (NVM figure 114).
    pub struct IdentifyNamespace[4096] {
        /// Namespace size in blocks.
        pub nsze: U64,
        /// Namespace capacity: the largest number of blocks that may be allocated.
        pub ncap: U64,
        /// Namespace utilization: the number of blocks allocated now.
        pub nuse: U64,
        /// Namespace features, see the `NSFEAT_` constants.
        pub nsfeat: u8,
        /// Number of LBA formats, 0's based.
        pub nlbaf: u8,
        /// Formatted LBA size: the format in bits 3:0 and 6:5, metadata at the end in bit 4.
        pub flbas: u8,
        /// Metadata capabilities.
        pub mc: u8,
        /// End-to-end data protection capabilities.
        pub dpc: u8,
        /// End-to-end data protection settings.
        pub dps: u8,
        /// Multi-path and sharing: bit 0, may be attached to several controllers.
        pub nmic: u8,
        /// Reservation capabilities.
        pub rescap: u8,
        /// Format progress indicator.
        pub fpi: u8,
        /// Deallocate features: bits 2:0 content of deallocated blocks (1: zeros), bit 3 Write
        /// Zeroes may deallocate.
        pub dlfeat: u8,
        /// Namespace atomic write unit normal in blocks, 0's based.
        pub nawun: U16,
        /// Namespace atomic write unit power fail in blocks, 0's based.
        pub nawupf: U16,
        /// Namespace atomic compare and write unit in blocks, 0's based.
        pub nacwu: U16,
        /// Namespace atomic boundary size normal in blocks, 0's based.
        pub nabsn: U16,
        /// Namespace atomic boundary offset in blocks.
        pub nabo: U16,
        /// Namespace atomic boundary size power fail in blocks, 0's based.
        pub nabspf: U16,
        /// Namespace optimal I/O boundary in blocks.
        pub noiob: U16,
        /// NVM capacity in bytes.
        pub nvmcap: [u8; 16],
        /// Preferred write granularity in blocks, 0's based.
        pub npwg: U16,
        /// Preferred write alignment in blocks, 0's based.
        pub npwa: U16,
        /// Preferred deallocate granularity in blocks, 0's based.
        pub npdg: U16,
        /// Preferred deallocate alignment in blocks, 0's based.
        pub npda: U16,
        /// Optimal write size in blocks, 0's based.
        pub nows: U16,
        /// Maximum single source range length of Copy in blocks.
        pub mssrl: U16,
        /// Maximum copy length in blocks.
        pub mcl: U32,
        /// Maximum source range count of Copy, 0's based.
        pub msrc: u8,
        /// Key per I/O status.
        pub kpios: u8,
        /// Number of unique attribute LBA formats.
        pub nulbaf: u8,
        /// Reserved.
        pub rsvd83: u8,
        /// Key per I/O data access alignment and granularity.
        pub kpiodaag: U32,
        /// Reserved.
        pub rsvd88: [u8; 4],
        /// ANA group identifier; 0: none.
        pub anagrpid: U32,
        /// Reserved.
        pub rsvd96: [u8; 3],
        /// Namespace attributes: bit 0 write protected.
        pub nsattr: u8,
        /// NVM set identifier.
        pub nvmsetid: U16,
        /// Endurance group identifier.
        pub endgid: U16,
        /// Namespace globally unique identifier, highest byte first; 0: none.
        pub nguid: [u8; 16],
        /// IEEE extended unique identifier, highest byte first; 0: none.
        pub eui64: [u8; 8],
        /// LBA formats.
        pub lbaf: [LbaFormat; 64],
        /// Vendor specific.
        pub vs: [u8; 3712],
    }
}

impl IdentifyNamespace {
    /// NSFEAT: thin provisioning; NUSE counts allocated blocks.
    pub const NSFEAT_THIN_PROVISIONING: u8 = 1;
    /// NSFEAT: NAWUN, NAWUPF and NACWU are valid.
    pub const NSFEAT_ATOMIC_UNITS: u8 = 1 << 1;
    /// NSFEAT: reads of deallocated blocks may fail.
    pub const NSFEAT_DEALLOCATED_ERROR: u8 = 1 << 2;
    /// NSFEAT: NGUID and EUI64 are never used again.
    pub const NSFEAT_UNIQUE_IDS: u8 = 1 << 3;
    /// NSFEAT: NPWG, NPWA, NPDG, NPDA and NOWS are valid.
    pub const NSFEAT_OPTIMAL_PERFORMANCE: u8 = 1 << 4;
    /// NMIC: the namespace may be attached to several controllers.
    pub const NMIC_SHARED: u8 = 1;
    /// DLFEAT: deallocated blocks read as zeros.
    pub const DLFEAT_READS_ZERO: u8 = 1;
    /// DLFEAT: Write Zeroes with DEAC deallocates.
    pub const DLFEAT_WRITE_ZEROES_DEALLOCATES: u8 = 1 << 3;

    /// Returns a namespace with one LBA format and no metadata.
    ///
    /// Fails with [`Error::InvalidField`] `lbads` if the block is smaller than 512 bytes or larger
    /// than 2^63.
    pub fn new(blocks: u64, block_shift: u8) -> Result<Self, Error> {
        if !(9..64).contains(&block_shift) {
            return Err(Error::InvalidField { field: "lbads", value: u64::from(block_shift) });
        }
        let mut this = Self {
            nsze: U64::new(blocks),
            ncap: U64::new(blocks),
            nuse: U64::new(blocks),
            ..Self::default()
        };
        this.lbaf[0].lbads = block_shift;
        Ok(this)
    }

    /// The mark before the incarnation in a Tsumugi target's vendor specific bytes.
    const INCARNATION_MARK: [u8; 16] = *b"tsumugi incarn 1";

    /// Returns the incarnation that a Tsumugi target reports in the vendor specific bytes. It
    /// changes whenever unflushed writes may have been lost. [`None`] from other targets.
    pub fn incarnation(&self) -> Option<u128> {
        let value = self.vs.strip_prefix(&Self::INCARNATION_MARK)?;
        value.first_chunk::<16>().map(|bytes| u128::from_le_bytes(*bytes))
    }

    /// Writes the incarnation to the vendor specific bytes.
    pub fn set_incarnation(&mut self, incarnation: u128) {
        self.vs[..16].copy_from_slice(&Self::INCARNATION_MARK);
        self.vs[16..32].copy_from_slice(&incarnation.to_le_bytes());
    }

    /// Returns the LBA format of the namespace.
    pub fn format(&self) -> LbaFormat {
        let low = self.flbas & 0xf;
        // The upper bits of the index are defined only if there are more than 16 formats.
        let high = if self.nlbaf > 15 { (self.flbas >> 5) & 3 } else { 0 };
        self.lbaf[usize::from(low | (high << 4))]
    }

    /// Returns log2 of the block size in bytes.
    ///
    /// Fails with [`Error::InvalidField`] `lbads` if the format does not exist or its block is
    /// smaller than 512 bytes or larger than 2^63.
    pub fn block_shift(&self) -> Result<u8, Error> {
        let lbads = self.format().lbads;
        if (9..64).contains(&lbads) {
            Ok(lbads)
        } else {
            Err(Error::InvalidField { field: "lbads", value: u64::from(lbads) })
        }
    }
}

wire_struct! {
    /// I/O command set independent identify namespace (base figure 320), CNS 08h.
    pub struct IdentifyNamespaceIndependent[4096] {
        /// Namespace features: bit 3 unique identifiers, 4 rotational, 5 no volatile write cache.
        pub nsfeat: u8,
        /// Multi-path and sharing, as in [`IdentifyNamespace`].
        pub nmic: u8,
        /// Reservation capabilities.
        pub rescap: u8,
        /// Format progress indicator.
        pub fpi: u8,
        /// ANA group identifier; 0: none.
        pub anagrpid: U32,
        /// Namespace attributes: bit 0 write protected.
        pub nsattr: u8,
        /// Reserved.
        pub rsvd9: u8,
        /// NVM set identifier.
        pub nvmsetid: U16,
        /// Endurance group identifier.
        pub endgid: U16,
        /// Namespace status: bit 0 ready.
        pub nstat: u8,
        /// Reserved, and fields of optional functions.
        pub rsvd15: [u8; 4081],
    }
}

impl IdentifyNamespaceIndependent {
    /// NSTAT: the namespace is ready.
    pub const NSTAT_READY: u8 = 1;
    /// NSFEAT: no volatile write cache is present.
    pub const NSFEAT_NO_WRITE_CACHE: u8 = 1 << 5;
    /// NSFEAT: the medium rotates.
    pub const NSFEAT_ROTATIONAL: u8 = 1 << 4;
}

wire_struct! {
    /// I/O command set specific identify namespace of the NVM command set (NVM figure 118), CNS
    /// 05h. All zero describes a namespace without protection information.
    pub struct IdentifyNamespaceNvm[4096] {
        /// Logical block storage tag mask.
        pub lbstm: U64,
        /// Protection information capabilities.
        pub pic: u8,
        /// Protection information format attribute.
        pub pifa: u8,
        /// Reserved.
        pub rsvd10: [u8; 2],
        /// Extended LBA formats.
        pub elbaf: [U32; 64],
        /// Reserved, and fields of optional functions.
        pub rsvd268: [u8; 3828],
    }
}

wire_struct! {
    /// Identify I/O command set data structure (base figure 326), CNS 1Ch: each vector is a
    /// combination of command sets that may be enabled together, bit n for CSI n.
    pub struct IoCommandSets[4096] {
        /// Vectors.
        pub vectors: [U64; 512],
    }
}

impl IoCommandSets {
    /// Returns one combination with only the NVM command set.
    pub fn nvm() -> Self {
        let mut this = Self::default();
        this.vectors[0] = U64::new(1 << super::csi::NVM);
        this
    }
}

wire_struct! {
    /// Namespace list (base figure 138): up to 1024 identifiers in ascending order, then zeros.
    pub struct NamespaceList[4096] {
        /// The identifiers.
        pub nsids: [U32; 1024],
    }
}

impl NamespaceList {
    /// Largest number of identifiers in a list.
    pub const ENTRIES_MAX: usize = 1024;

    /// Returns a list of the first 1024 of `nsids` that are above `after`; these must ascend.
    pub fn new(after: Nsid, nsids: impl IntoIterator<Item = Nsid>) -> Self {
        let mut list = Self::default();
        let above = nsids.into_iter().filter(|nsid| *nsid > after);
        for (slot, nsid) in list.nsids.iter_mut().zip(above) {
            *slot = U32::new(nsid.get());
        }
        list
    }

    /// Returns the identifiers up to the first 0.
    pub fn iter(&self) -> impl Iterator<Item = Nsid> + '_ {
        self.nsids.iter().map(|nsid| Nsid(nsid.get())).take_while(|nsid| nsid.get() != 0)
    }
}

/// One namespace identification descriptor (base figure 316).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceDescriptor {
    /// IEEE extended unique identifier, highest byte first.
    Eui64([u8; 8]),
    /// Namespace globally unique identifier, highest byte first.
    Nguid([u8; 16]),
    /// UUID, highest byte first.
    Uuid([u8; 16]),
    /// Command set.
    Csi(u8),
}

const DESCRIPTOR_HEADER_BYTES: usize = 4;

/// Writes a list of descriptors, CNS 03h.
#[derive(Debug)]
pub struct NamespaceDescriptorWriter<'a> {
    out: &'a mut [u8; IDENTIFY_BYTES],
    used_bytes: usize,
}

impl<'a> NamespaceDescriptorWriter<'a> {
    /// Clears `out` and starts an empty list.
    pub fn new(out: &'a mut [u8; IDENTIFY_BYTES]) -> Self {
        out.fill(0);
        Self { out, used_bytes: 0 }
    }

    /// Appends a descriptor.
    ///
    /// Fails with [`Error::BufferTooSmall`] if the list is full.
    pub fn push(&mut self, descriptor: &NamespaceDescriptor) -> Result<(), Error> {
        let (nidt, nid): (u8, &[u8]) = match descriptor {
            NamespaceDescriptor::Eui64(id) => (1, id),
            NamespaceDescriptor::Nguid(id) => (2, id),
            NamespaceDescriptor::Uuid(id) => (3, id),
            NamespaceDescriptor::Csi(id) => (4, core::slice::from_ref(id)),
        };
        let end = self.used_bytes + DESCRIPTOR_HEADER_BYTES + nid.len();
        let slot = self
            .out
            .get_mut(self.used_bytes..end)
            .ok_or(Error::BufferTooSmall { need_bytes: end, have_bytes: IDENTIFY_BYTES })?;
        slot[0] = nidt;
        slot[1] = nid.len() as u8;
        slot[DESCRIPTOR_HEADER_BYTES..].copy_from_slice(nid);
        self.used_bytes = end;
        Ok(())
    }
}

/// Reads a list of descriptors, CNS 03h. It skips descriptors of unknown type. A descriptor that is
/// cut off, or has a wrong length for its type, gives an error and ends the list.
#[derive(Clone, Debug)]
pub struct NamespaceDescriptors<'a> {
    rest: &'a [u8],
}

impl<'a> NamespaceDescriptors<'a> {
    /// Returns the descriptors in the data of Identify.
    pub fn new(data: &'a [u8]) -> Self {
        Self { rest: data }
    }
}

impl Iterator for NamespaceDescriptors<'_> {
    type Item = Result<NamespaceDescriptor, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (&[nidt, nidl, ..], rest) =
                self.rest.split_first_chunk::<DESCRIPTOR_HEADER_BYTES>()?;
            if nidl == 0 {
                return None;
            }
            self.rest = &[];
            let wrong = Error::InvalidField { field: "nidl", value: u64::from(nidl) };
            let Some((nid, rest)) = rest.split_at_checked(usize::from(nidl)) else {
                return Some(Err(wrong));
            };
            let descriptor = match nidt {
                1 => nid.try_into().map(NamespaceDescriptor::Eui64),
                2 => nid.try_into().map(NamespaceDescriptor::Nguid),
                3 => nid.try_into().map(NamespaceDescriptor::Uuid),
                4 => nid.try_into().map(|[csi]: [u8; 1]| NamespaceDescriptor::Csi(csi)),
                _ => {
                    self.rest = rest;
                    continue;
                }
            };
            return Some(match descriptor {
                Ok(descriptor) => {
                    self.rest = rest;
                    Ok(descriptor)
                }
                Err(_) => Err(wrong),
            });
        }
    }
}
