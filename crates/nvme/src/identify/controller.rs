//! Identify controller (base 5.1.13.2.1) and its part for the NVM command set.

use crate::{Error, NQN_FIELD_BYTES, Nqn, U16, U32, U64};

wire_struct! {
    /// Power state descriptor (base figure 314).
    pub struct PowerState[32] {
        /// MP: maximum power.
        pub mp: U16,
        /// Reserved.
        pub rsvd2: u8,
        /// MXPS in bit 0: MP is in 0.0001 W, else 0.01 W; NOPS in bit 1: not operational.
        pub flags: u8,
        /// ENLAT: entry latency in microseconds.
        pub enlat: U32,
        /// EXLAT: exit latency in microseconds.
        pub exlat: U32,
        /// RRT: relative read throughput.
        pub rrt: u8,
        /// RRL: relative read latency.
        pub rrl: u8,
        /// RWT: relative write throughput.
        pub rwt: u8,
        /// RWL: relative write latency.
        pub rwl: u8,
        /// IDLP: idle power.
        pub idlp: U16,
        /// IPS: idle power scale.
        pub ips: u8,
        /// Reserved.
        pub rsvd19: u8,
        /// ACTP: active power.
        pub actp: U16,
        /// APW and APS: active power workload and scale.
        pub apws: u8,
        /// Reserved.
        pub rsvd23: [u8; 9],
    }
}

wire_struct! {
    /// Identify controller data structure (base figure 313).
    pub struct IdentifyController[4096] {
        /// PCI vendor identifier.
        pub vid: U16,
        /// PCI subsystem vendor identifier.
        pub ssvid: U16,
        /// Serial number, ASCII, padded with spaces.
        pub sn: [u8; 20],
        /// Model number, ASCII, padded with spaces.
        pub mn: [u8; 40],
        /// Firmware revision, ASCII, padded with spaces.
        pub fr: [u8; 8],
        /// Recommended arbitration burst.
        pub rab: u8,
        /// IEEE OUI of the vendor, lowest byte first.
        pub ieee: [u8; 3],
        /// Multi-path I/O: bit 0 several ports, 1 several controllers, 2 SR-IOV, 3 ANA.
        pub cmic: u8,
        /// Maximum data transfer size: 2^n pages of CAP.MPSMIN; 0 is no limit.
        pub mdts: u8,
        /// Controller identifier.
        pub cntlid: U16,
        /// Version.
        pub ver: U32,
        /// RTD3 resume latency in microseconds.
        pub rtd3r: U32,
        /// RTD3 entry latency in microseconds.
        pub rtd3e: U32,
        /// Optional asynchronous events, bits as in the feature's, see
        /// [`AsyncEventConfig`](crate::feature::AsyncEventConfig).
        pub oaes: U32,
        /// Controller attributes, see the `CTRATT_` constants.
        pub ctratt: U32,
        /// Read recovery levels supported.
        pub rrls: U16,
        /// Boot partition capabilities.
        pub bpcap: u8,
        /// Reserved.
        pub rsvd103: u8,
        /// NVM subsystem shutdown latency in microseconds.
        pub nssl: U32,
        /// Reserved.
        pub rsvd108: [u8; 2],
        /// Power loss signaling information.
        pub plsi: u8,
        /// Controller type: 1 I/O, 2 discovery, 3 administrative.
        pub cntrltype: u8,
        /// FRU identifier.
        pub fguid: [u8; 16],
        /// Command retry delay time 1 in units of 100 ms.
        pub crdt1: U16,
        /// Command retry delay time 2 in units of 100 ms.
        pub crdt2: U16,
        /// Command retry delay time 3 in units of 100 ms.
        pub crdt3: U16,
        /// Controller reachability capabilities.
        pub crcap: u8,
        /// Controller instance uniquifier.
        pub ciu: u8,
        /// Controller instance random number.
        pub cirn: U64,
        /// Reserved.
        pub rsvd144: [u8; 109],
        /// NVM subsystem report (NVMe-MI).
        pub nvmsr: u8,
        /// VPD write cycle information (NVMe-MI).
        pub vwci: u8,
        /// Management endpoint capabilities (NVMe-MI).
        pub mec: u8,
        /// Optional admin commands.
        pub oacs: U16,
        /// Abort command limit, 0's based.
        pub acl: u8,
        /// Asynchronous event request limit, 0's based.
        pub aerl: u8,
        /// Firmware updates: slots in bits 3:1, bit 0 slot 1 is read only.
        pub frmw: u8,
        /// Log page attributes: bit 0 SMART per namespace, 1 commands and effects, 2 extended data
        /// (offsets), 5 supported log pages.
        pub lpa: u8,
        /// Error log page entries, 0's based.
        pub elpe: u8,
        /// Number of power states, 0's based.
        pub npss: u8,
        /// Admin vendor specific command configuration.
        pub avscc: u8,
        /// Autonomous power state transition attributes.
        pub apsta: u8,
        /// Warning composite temperature threshold in kelvins.
        pub wctemp: U16,
        /// Critical composite temperature threshold in kelvins.
        pub cctemp: U16,
        /// Maximum time for firmware activation in units of 100 ms.
        pub mtfa: U16,
        /// Host memory buffer preferred size in units of 4 KiB.
        pub hmpre: U32,
        /// Host memory buffer minimum size in units of 4 KiB.
        pub hmmin: U32,
        /// Total capacity in bytes.
        pub tnvmcap: [u8; 16],
        /// Unallocated capacity in bytes.
        pub unvmcap: [u8; 16],
        /// Replay protected memory block support.
        pub rpmbs: U32,
        /// Extended device self-test time in minutes.
        pub edstt: U16,
        /// Device self-test options.
        pub dsto: u8,
        /// Firmware update granularity in units of 4 KiB.
        pub fwug: u8,
        /// Keep alive granularity in units of 100 ms; 0 is no keep alive.
        pub kas: U16,
        /// Host controlled thermal management attributes.
        pub hctma: U16,
        /// Minimum thermal management temperature.
        pub mntmt: U16,
        /// Maximum thermal management temperature.
        pub mxtmt: U16,
        /// Sanitize capabilities.
        pub sanicap: U32,
        /// Host memory buffer minimum descriptor entry size.
        pub hmminds: U32,
        /// Host memory maximum descriptor entries.
        pub hmmaxd: U16,
        /// NVM set identifier maximum.
        pub nsetidmax: U16,
        /// Endurance group identifier maximum.
        pub endgidmax: U16,
        /// ANA transition time in seconds.
        pub anatt: u8,
        /// ANA capabilities: bits 0 to 4 the states reported, 6 group of a namespace is fixed, 7
        /// ANAGRPID may be set at creation.
        pub anacap: u8,
        /// ANA group identifier maximum.
        pub anagrpmax: U32,
        /// Number of ANA group identifiers.
        pub nanagrpid: U32,
        /// Persistent event log size in units of 64 KiB.
        pub pels: U32,
        /// Domain identifier.
        pub domainid: U16,
        /// Key per I/O capabilities.
        pub kpioc: u8,
        /// Reserved.
        pub rsvd359: u8,
        /// Maximum processing time for firmware activation without reset in units of 100 ms.
        pub mptfawr: U16,
        /// Reserved.
        pub rsvd362: [u8; 6],
        /// Maximum endurance group capacity in bytes.
        pub megcap: [u8; 16],
        /// Temperature threshold hysteresis attributes.
        pub tmpthha: u8,
        /// Reserved.
        pub rsvd385: u8,
        /// Command quiesce time in milliseconds.
        pub cqt: U16,
        /// Reserved.
        pub rsvd388: [u8; 124],
        /// Submission queue entry size: minimum in bits 3:0, maximum in 7:4, powers of two.
        pub sqes: u8,
        /// Completion queue entry size: minimum in bits 3:0, maximum in 7:4, powers of two.
        pub cqes: u8,
        /// Largest number of outstanding commands per queue; not 0 over fabrics.
        pub maxcmd: U16,
        /// Number of namespaces: the largest valid NSID.
        pub nn: U32,
        /// Optional NVM commands, see the `ONCS_` constants.
        pub oncs: U16,
        /// Fused operations; bit 0 Compare and Write.
        pub fuses: U16,
        /// Format NVM attributes.
        pub fna: u8,
        /// Volatile write cache: bit 0 present; bits 2:1: 11b Flush takes the broadcast NSID, 10b
        /// it does not.
        pub vwc: u8,
        /// Atomic write unit normal in blocks, 0's based.
        pub awun: U16,
        /// Atomic write unit power fail in blocks, 0's based.
        pub awupf: U16,
        /// I/O command set vendor specific command configuration.
        pub icsvscc: u8,
        /// Namespace write protection capabilities.
        pub nwpc: u8,
        /// Atomic compare and write unit in blocks, 0's based.
        pub acwu: U16,
        /// Copy descriptor formats supported.
        pub cdfs: U16,
        /// SGL support, see the `SGLS_` constants.
        pub sgls: U32,
        /// Maximum number of allowed namespaces; 0: NN.
        pub mnan: U32,
        /// Maximum domain namespace attachments.
        pub maxdna: [u8; 16],
        /// Maximum I/O controller namespace attachments.
        pub maxcna: U32,
        /// Reserved, and fields of optional functions.
        pub rsvd564: [u8; 204],
        /// NQN of the subsystem, NUL-padded.
        pub subnqn: [u8; NQN_FIELD_BYTES],
        /// Reserved.
        pub rsvd1024: [u8; 768],
        /// I/O queue command capsule size in units of 16 bytes, at least 4; fabrics only.
        pub ioccsz: U32,
        /// I/O queue response capsule size in units of 16 bytes, at least 1; fabrics only.
        pub iorcsz: U32,
        /// In-capsule data offset in units of 16 bytes from the end of the command; fabrics only.
        pub icdoff: U16,
        /// Fabrics controller attributes: bit 0 is set if the controller model is *not* dynamic.
        pub fcatt: u8,
        /// Maximum SGL data block descriptors in a capsule; 0 is no limit. Over TCP 1.
        pub msdbd: u8,
        /// Optional fabrics commands; bit 0 Disconnect.
        pub ofcs: U16,
        /// Discovery controller type; for discovery controllers: 1 direct, 2 central.
        pub dctype: u8,
        /// Reserved.
        pub rsvd1807: [u8; 241],
        /// Power states.
        pub psd: [PowerState; 32],
        /// Vendor specific.
        pub vs: [u8; 1024],
    }
}

impl IdentifyController {
    /// CMIC: the subsystem may have several ports.
    pub const CMIC_MULTI_PORT: u8 = 1;
    /// CMIC: the subsystem may have several controllers.
    pub const CMIC_MULTI_CONTROLLER: u8 = 1 << 1;
    /// CMIC: ANA is reported.
    pub const CMIC_ANA: u8 = 1 << 3;
    /// OAES and the feature: namespace attribute notices.
    pub const OAES_NAMESPACE_ATTRIBUTES: u32 = 1 << 8;
    /// OAES and the feature: ANA change notices.
    pub const OAES_ANA_CHANGE: u32 = 1 << 11;
    /// OAES and the feature: discovery log page change notices.
    pub const OAES_DISCOVERY_CHANGE: u32 = 1 << 31;
    /// CTRATT: 128-bit host identifiers; mandatory over fabrics.
    pub const CTRATT_HOST_ID_128: u32 = 1;
    /// CTRATT: traffic based keep alive.
    pub const CTRATT_TRAFFIC_BASED_KEEP_ALIVE: u32 = 1 << 6;
    /// CTRATT: extended LBA formats.
    pub const CTRATT_EXTENDED_LBA_FORMATS: u32 = 1 << 15;
    /// CNTRLTYPE: I/O controller.
    pub const TYPE_IO: u8 = 1;
    /// CNTRLTYPE: discovery controller.
    pub const TYPE_DISCOVERY: u8 = 2;
    /// CNTRLTYPE: administrative controller.
    pub const TYPE_ADMINISTRATIVE: u8 = 3;
    /// OACS: namespace management and attachment.
    pub const OACS_NAMESPACE_MANAGEMENT: u16 = 1 << 3;
    /// LPA: SMART / health information per namespace.
    pub const LPA_SMART_PER_NAMESPACE: u8 = 1;
    /// LPA: commands supported and effects.
    pub const LPA_COMMAND_EFFECTS: u8 = 1 << 1;
    /// LPA: extended data for Get Log Page (offset and 32-bit length).
    pub const LPA_EXTENDED_DATA: u8 = 1 << 2;
    /// LPA: the supported log pages page and features supported page exist.
    pub const LPA_SUPPORTED_PAGES: u8 = 1 << 5;
    /// ONCS: Compare.
    pub const ONCS_COMPARE: u16 = 1;
    /// ONCS: Write Uncorrectable.
    pub const ONCS_WRITE_UNCORRECTABLE: u16 = 1 << 1;
    /// ONCS: Dataset Management.
    pub const ONCS_DATASET_MANAGEMENT: u16 = 1 << 2;
    /// ONCS: Write Zeroes.
    pub const ONCS_WRITE_ZEROES: u16 = 1 << 3;
    /// ONCS: the Save and Select fields of Set and Get Features.
    pub const ONCS_SAVE_AND_SELECT: u16 = 1 << 4;
    /// ONCS: reservations.
    pub const ONCS_RESERVATIONS: u16 = 1 << 5;
    /// ONCS: the Timestamp feature.
    pub const ONCS_TIMESTAMP: u16 = 1 << 6;
    /// ONCS: Verify.
    pub const ONCS_VERIFY: u16 = 1 << 7;
    /// ONCS: Copy.
    pub const ONCS_COPY: u16 = 1 << 8;
    /// FUSES: Compare and Write.
    pub const FUSES_COMPARE_AND_WRITE: u16 = 1;
    /// CDFS: copy descriptor format 0, ranges of the same namespace.
    pub const CDFS_FORMAT_0: u16 = 1;
    /// VWC: a volatile write cache is present.
    pub const VWC_PRESENT: u8 = 1;
    /// VWC: Flush with the broadcast NSID flushes all namespaces.
    pub const VWC_FLUSH_BROADCAST: u8 = 3 << 1;
    /// VWC: Flush with the broadcast NSID is not supported.
    pub const VWC_FLUSH_NO_BROADCAST: u8 = 2 << 1;
    /// SGLS: SGLs are supported without alignment.
    pub const SGLS_SUPPORTED: u32 = 1;
    /// SGLS: keyed data block descriptors.
    pub const SGLS_KEYED: u32 = 1 << 2;
    /// SGLS: SGLs longer than the data are accepted.
    pub const SGLS_OVERSIZE: u32 = 1 << 18;
    /// SGLS: the address of a data block descriptor may be an offset (in-capsule data).
    pub const SGLS_OFFSET: u32 = 1 << 20;
    /// SGLS: transport data block descriptors.
    pub const SGLS_TRANSPORT: u32 = 1 << 21;

    /// Returns the name of the subsystem; fails if the field is not a valid name.
    pub fn subsystem_nqn(&self) -> Result<Nqn, Error> {
        Nqn::from_field(&self.subnqn)
    }

    /// Returns the serial number without padding; invalid UTF-8 is replaced.
    pub fn serial(&self) -> String {
        ascii_of(&self.sn)
    }

    /// Returns the model number without padding; invalid UTF-8 is replaced.
    pub fn model(&self) -> String {
        ascii_of(&self.mn)
    }

    /// Returns the firmware revision without padding; invalid UTF-8 is replaced.
    pub fn firmware(&self) -> String {
        ascii_of(&self.fr)
    }

    /// Sets the serial number, cut to the size of the field.
    pub fn set_serial(&mut self, serial: &str) {
        put_ascii(&mut self.sn, serial);
    }

    /// Sets the model number, cut to the size of the field.
    pub fn set_model(&mut self, model: &str) {
        put_ascii(&mut self.mn, model);
    }

    /// Sets the firmware revision, cut to the size of the field.
    pub fn set_firmware(&mut self, firmware: &str) {
        put_ascii(&mut self.fr, firmware);
    }

    /// Returns the largest number of bytes that one command may transfer, with pages of 2^(12 +
    /// `mpsmin`) bytes; [`None`] without a limit or if it is above 2^63.
    pub fn transfer_bytes_max(&self, mpsmin: u64) -> Option<u64> {
        if self.mdts == 0 {
            return None;
        }
        let shift = u64::from(self.mdts) + 12 + mpsmin;
        if shift > 63 { None } else { Some(1 << shift) }
    }

    /// Returns the number of bytes of in-capsule data in I/O commands: IOCCSZ without the command
    /// itself and ICDOFF.
    pub fn in_capsule_data_bytes(&self) -> u64 {
        (u64::from(self.ioccsz.get()) * 16)
            .saturating_sub(64)
            .saturating_sub(u64::from(self.icdoff.get()) * 16)
    }
}

fn ascii_of(field: &[u8]) -> String {
    String::from_utf8_lossy(field).trim_matches(|c| c == ' ' || c == '\0').to_owned()
}

/// Fills a field of printable ASCII, padding with spaces (base 1.6); other characters become `?`.
fn put_ascii(field: &mut [u8], text: &str) {
    let printable = text.chars().map(|c| if (' '..='~').contains(&c) { c as u8 } else { b'?' });
    for (slot, byte) in field.iter_mut().zip(printable.chain(core::iter::repeat(b' '))) {
        *slot = byte;
    }
}

wire_struct! {
    /// I/O command set specific identify controller of the NVM command set (NVM figure 121), CNS
    /// 06h: limits of commands without data; 0 is no limit.
    pub struct IdentifyControllerNvm[4096] {
        /// Verify size limit: 2^n pages of CAP.MPSMIN.
        pub vsl: u8,
        /// Write Zeroes size limit: 2^n pages of CAP.MPSMIN.
        pub wzsl: u8,
        /// Write Uncorrectable size limit: 2^n pages of CAP.MPSMIN.
        pub wusl: u8,
        /// Dataset management ranges limit.
        pub dmrl: u8,
        /// Dataset management range size limit in blocks.
        pub dmrsl: U32,
        /// Dataset management size limit in blocks.
        pub dmsl: U64,
        /// Reserved, and fields of optional functions.
        pub rsvd16: [u8; 4080],
    }
}
