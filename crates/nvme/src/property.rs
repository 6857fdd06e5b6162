//! Controller properties (base 3.1.4), which a host accesses with Property Get and Set.

use core::fmt;

/// Offsets of the properties that exist over fabrics (base figure 33).
pub mod offset {
    /// CAP, controller capabilities, 8 bytes.
    pub const CAP: u32 = 0x00;
    /// VS, version, 4 bytes.
    pub const VS: u32 = 0x08;
    /// CC, controller configuration, 4 bytes.
    pub const CC: u32 = 0x14;
    /// CSTS, controller status, 4 bytes.
    pub const CSTS: u32 = 0x1c;
    /// NSSR, NVM subsystem reset, 4 bytes.
    pub const NSSR: u32 = 0x20;
    /// CRTO, controller ready timeouts, 4 bytes.
    pub const CRTO: u32 = 0x68;
}

/// Defines getters and `with_` setters for bit ranges of a property.
macro_rules! bit_fields {
    ($type:ident, $int:ty; $($(#[$meta:meta])* $get:ident, $with:ident: $shift:literal, $bits:literal;)*) => {
        impl $type {
            $(
                $(#[$meta])*
                pub const fn $get(self) -> $int {
                    (self.0 >> $shift) & ((1 << $bits) - 1)
                }

                #[doc = concat!("The same property with another `", stringify!($get), "`; excess bits are dropped.")]
                pub const fn $with(self, value: $int) -> Self {
                    let mask = ((1 << $bits) - 1) << $shift;
                    Self((self.0 & !mask) | ((value << $shift) & mask))
                }
            )*
        }
    };
}

/// CAP, controller capabilities (base figure 36).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(pub u64);

bit_fields! { Capabilities, u64;
    /// MQES: largest queue in entries, 0's based.
    mqes, with_mqes: 0, 16;
    /// CQR: queues must be contiguous; 1 over fabrics.
    cqr, with_cqr: 16, 1;
    /// AMS: arbitration mechanisms beside round robin.
    ams, with_ams: 17, 2;
    /// TO: longest time to become ready, in units of 500 ms.
    to, with_to: 24, 8;
    /// DSTRD: doorbell stride; 0 over fabrics.
    dstrd, with_dstrd: 32, 4;
    /// NSSRS: subsystem reset is supported.
    nssrs, with_nssrs: 36, 1;
    /// CSS: command sets; bit 0 NVM, bit 6 one or more by CC.CSS 110b, bit 7 admin only.
    css, with_css: 37, 8;
    /// MPSMIN: smallest memory page is 2^(12 + n) bytes.
    mpsmin, with_mpsmin: 48, 4;
    /// MPSMAX: largest memory page is 2^(12 + n) bytes.
    mpsmax, with_mpsmax: 52, 4;
    /// CRMS: ready modes; bit 0 with media, bit 1 independent of media.
    crms, with_crms: 59, 2;
}

impl Capabilities {
    /// Returns the largest queue in entries.
    pub const fn queue_entries_max(self) -> u32 {
        self.mqes() as u32 + 1
    }

    /// Returns the longest time to become ready.
    pub const fn ready_timeout_ms(self) -> u32 {
        self.to() as u32 * 500
    }
}

/// VS, version (base figure 37).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32);

impl Version {
    /// Version 1.4.
    pub const V1_4: Self = Self::new(1, 4, 0);
    /// Version 2.0.
    pub const V2_0: Self = Self::new(2, 0, 0);
    /// Version 2.1.
    pub const V2_1: Self = Self::new(2, 1, 0);

    /// Returns a version from its numbers.
    pub const fn new(major: u16, minor: u8, tertiary: u8) -> Self {
        Self(((major as u32) << 16) | ((minor as u32) << 8) | tertiary as u32)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0 >> 16, (self.0 >> 8) & 0xff, self.0 & 0xff)
    }
}

/// CC, controller configuration (base figure 41).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Configuration(pub u32);

bit_fields! { Configuration, u32;
    /// EN: the controller shall process commands.
    en, with_en: 0, 1;
    /// CSS: command set selected; 000b NVM, 110b all supported.
    css, with_css: 4, 3;
    /// MPS: memory page is 2^(12 + n) bytes.
    mps, with_mps: 7, 4;
    /// AMS: arbitration mechanism.
    ams, with_ams: 11, 3;
    /// SHN: shutdown notification; 00b none, 01b normal, 10b abrupt.
    shn, with_shn: 14, 2;
    /// IOSQES: I/O submission queue entry of 2^n bytes; 6.
    iosqes, with_iosqes: 16, 4;
    /// IOCQES: I/O completion queue entry of 2^n bytes; 4.
    iocqes, with_iocqes: 20, 4;
    /// CRIME: become ready independent of media.
    crime, with_crime: 24, 1;
}

impl Configuration {
    /// The value that a host writes to enable a controller: EN, entries of 64 and 16 bytes, pages
    /// of 4 KiB.
    pub const ENABLE: Self = Self(1 | (6 << 16) | (4 << 20));

    /// Whether EN is set.
    pub const fn is_enabled(self) -> bool {
        self.en() == 1
    }

    /// Whether a shutdown, normal or abrupt, is requested.
    pub const fn is_shutdown(self) -> bool {
        self.shn() == 1 || self.shn() == 2
    }
}

/// Progress of a shutdown, CSTS.SHST (base figure 42).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownStatus {
    /// 00b: none requested.
    Normal,
    /// 01b: under way.
    Occurring,
    /// 10b: done.
    Complete,
    /// 11b: reserved.
    Reserved,
}

/// CSTS, controller status (base figure 42).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControllerStatus(pub u32);

bit_fields! { ControllerStatus, u32;
    /// RDY: the controller processes commands.
    rdy, with_rdy: 0, 1;
    /// CFS: fatal error.
    cfs, with_cfs: 1, 1;
    /// SHST: progress of a shutdown.
    shst, with_shst: 2, 2;
    /// NSSRO: a subsystem reset occurred.
    nssro, with_nssro: 4, 1;
    /// PP: processing is paused.
    pp, with_pp: 5, 1;
}

impl ControllerStatus {
    /// Whether RDY is set.
    pub const fn is_ready(self) -> bool {
        self.rdy() == 1
    }

    /// Whether the controller has a fatal error.
    pub const fn is_fatal(self) -> bool {
        self.cfs() == 1
    }

    /// Returns the progress of a shutdown.
    pub const fn shutdown(self) -> ShutdownStatus {
        match self.shst() {
            0 => ShutdownStatus::Normal,
            1 => ShutdownStatus::Occurring,
            2 => ShutdownStatus::Complete,
            _ => ShutdownStatus::Reserved,
        }
    }
}
