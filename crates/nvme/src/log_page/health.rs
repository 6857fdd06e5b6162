//! Error information, SMART / health information and firmware slots (base 5.1.12.1.2 to .4).

use crate::{Nsid, U16, U32, U64, U128};

wire_struct! {
    /// One entry of the error information log page (base figure 205); a count of 0 ends the page.
    pub struct ErrorEntry[64] {
        /// Error count: unique, ascending; 0 is an invalid entry.
        pub ecnt: U64,
        /// Submission queue of the command; 0xffff if there is none.
        pub sqid: U16,
        /// Identifier of the command; 0xffff if there is none.
        pub cid: U16,
        /// Status field with the phase tag in bit 0, as in the completion.
        pub sf: U16,
        /// Parameter error location: byte in bits 7:0, bit in 10:8; 0xffff if there is none.
        pub pel: U16,
        /// First logical block with the error.
        pub lba: U64,
        /// Namespace.
        pub nsid: U32,
        /// Vendor specific information available.
        pub vsia: u8,
        /// Transport type.
        pub trtype: u8,
        /// Command set indicator.
        pub csi: u8,
        /// Opcode, if the version of the entry has it.
        pub opc: u8,
        /// Command specific information.
        pub csinfo: U64,
        /// Transport type specific information.
        pub ttsi: U16,
        /// Reserved.
        pub rsvd42: [u8; 21],
        /// Log page version.
        pub lpver: u8,
    }
}

wire_struct! {
    /// SMART / health information (base figure 206).
    pub struct SmartHealth[512] {
        /// Critical warning, see the `WARNING_` constants.
        pub cw: u8,
        /// Composite temperature in kelvins.
        pub ctemp: U16,
        /// Available spare in percent.
        pub avsp: u8,
        /// Available spare threshold in percent.
        pub avspt: u8,
        /// Percentage used.
        pub pused: u8,
        /// Endurance group critical warning summary.
        pub egcws: u8,
        /// Reserved.
        pub rsvd7: [u8; 25],
        /// Data units read: thousands of 512 bytes, rounded up.
        pub dur: U128,
        /// Data units written: thousands of 512 bytes, rounded up.
        pub duw: U128,
        /// Host read commands.
        pub hrc: U128,
        /// Host write commands.
        pub hwc: U128,
        /// Controller busy time in minutes.
        pub cbt: U128,
        /// Power cycles.
        pub pwrc: U128,
        /// Power on hours.
        pub poh: U128,
        /// Unexpected power losses.
        pub upl: U128,
        /// Media and data integrity errors.
        pub mdie: U128,
        /// Number of error information log entries over the controller's life.
        pub neile: U128,
        /// Warning composite temperature time in minutes.
        pub wctt: U32,
        /// Critical composite temperature time in minutes.
        pub cctt: U32,
        /// Temperature sensors in kelvins; 0: not implemented.
        pub tsen: [U16; 8],
        /// Transitions to thermal management temperature 1.
        pub tmttc1: U32,
        /// Transitions to thermal management temperature 2.
        pub tmttc2: U32,
        /// Seconds of thermal management temperature 1.
        pub tttmt1: U32,
        /// Seconds of thermal management temperature 2.
        pub tttmt2: U32,
        /// Reserved.
        pub rsvd232: [u8; 280],
    }
}

impl SmartHealth {
    /// CW: available spare is below the threshold.
    pub const WARNING_SPARE: u8 = 1;
    /// CW: temperature is out of range.
    pub const WARNING_TEMPERATURE: u8 = 1 << 1;
    /// CW: reliability is degraded.
    pub const WARNING_RELIABILITY: u8 = 1 << 2;
    /// CW: all media are read only.
    pub const WARNING_READ_ONLY: u8 = 1 << 3;
    /// CW: the volatile memory backup failed.
    pub const WARNING_VOLATILE_BACKUP: u8 = 1 << 4;

    /// Returns the number of data units (thousands of 512 bytes, rounded up) for a number of bytes.
    pub const fn data_units(bytes: u128) -> u128 {
        bytes.div_ceil(512_000)
    }
}

impl ErrorEntry {
    /// Returns the namespace that the error belongs to.
    pub fn namespace_id(&self) -> Nsid {
        Nsid(self.nsid.get())
    }
}

wire_struct! {
    /// Firmware slot information (base figure 208).
    pub struct FirmwareSlots[512] {
        /// Active firmware: slot in use in bits 2:0, slot after the next reset in 6:4.
        pub afi: u8,
        /// Reserved.
        pub rsvd1: [u8; 7],
        /// Firmware revision in each slot, ASCII; zeros: none.
        pub frs: [[u8; 8]; 7],
        /// Reserved.
        pub rsvd64: [u8; 448],
    }
}

impl FirmwareSlots {
    /// Returns a page with one revision, active in slot 1; `revision` is as in Identify controller.
    pub fn single(revision: [u8; 8]) -> Self {
        let mut this = Self { afi: 1, ..Self::default() };
        this.frs[0] = revision;
        this
    }
}
