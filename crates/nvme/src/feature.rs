//! Features (base 5.1.25): values of Set Features and Get Features.

/// FID values (base figure 385).
pub mod fid {
    /// Arbitration.
    pub const ARBITRATION: u8 = 0x01;
    /// Power management.
    pub const POWER_MANAGEMENT: u8 = 0x02;
    /// Temperature threshold.
    pub const TEMPERATURE_THRESHOLD: u8 = 0x04;
    /// Error recovery.
    pub const ERROR_RECOVERY: u8 = 0x05;
    /// Volatile write cache: bit 0 of dword 11 enables it.
    pub const VOLATILE_WRITE_CACHE: u8 = 0x06;
    /// Number of queues, see [`super::QueueCounts`].
    pub const NUMBER_OF_QUEUES: u8 = 0x07;
    /// Interrupt coalescing; not over fabrics.
    pub const INTERRUPT_COALESCING: u8 = 0x08;
    /// Interrupt vector configuration; not over fabrics.
    pub const INTERRUPT_VECTOR: u8 = 0x09;
    /// Write atomicity normal.
    pub const WRITE_ATOMICITY: u8 = 0x0a;
    /// Asynchronous event configuration, see [`super::AsyncEventConfig`].
    pub const ASYNC_EVENT_CONFIG: u8 = 0x0b;
    /// Timestamp.
    pub const TIMESTAMP: u8 = 0x0e;
    /// Keep alive timer: dword 11 is the timeout in milliseconds.
    pub const KEEP_ALIVE_TIMER: u8 = 0x0f;
    /// Host behavior support; data of 512 bytes.
    pub const HOST_BEHAVIOR: u8 = 0x16;
    /// Host identifier; data of 16 bytes if bit 0 of dword 11 (EXHID) is set.
    pub const HOST_ID: u8 = 0x81;
    /// Reservation notification mask.
    pub const RESERVATION_NOTIFICATION_MASK: u8 = 0x82;
    /// Reservation persistence.
    pub const RESERVATION_PERSISTENCE: u8 = 0x83;
    /// Namespace write protection configuration.
    pub const WRITE_PROTECTION: u8 = 0x84;
}

/// Number of queues (base 5.1.25.1.5): requested in dword 11 of Set Features, allocated in dword 0
/// of its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCounts {
    /// I/O submission queues, 1 to 65536 (NSQR or NSQA, + 1).
    pub submission: u32,
    /// I/O completion queues, 1 to 65536 (NCQR or NCQA, + 1).
    pub completion: u32,
}

impl QueueCounts {
    /// Returns the same count for both kinds.
    pub const fn pairs(count: u32) -> Self {
        Self { submission: count, completion: count }
    }

    /// Unpacks the dword.
    pub const fn from_dword(dword: u32) -> Self {
        Self { submission: (dword & 0xffff) + 1, completion: (dword >> 16) + 1 }
    }

    /// Packs the dword. Counts are limited to 1 to 65536, because 0 has no encoding.
    pub fn to_dword(self) -> u32 {
        let zero_based = |count: u32| count.clamp(1, 1 << 16) - 1;
        zero_based(self.submission) | (zero_based(self.completion) << 16)
    }
}

/// Asynchronous event configuration (base figure 392): which events are reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AsyncEventConfig(pub u32);

impl AsyncEventConfig {
    /// The critical warnings of SMART / health, bits 7:0.
    pub const SMART_WARNINGS: u32 = 0xff;
    /// The critical warning that a temperature is out of range.
    pub const TEMPERATURE_WARNING: u32 = 1 << 1;
    /// Namespace attribute notices.
    pub const NAMESPACE_ATTRIBUTES: u32 = 1 << 8;
    /// Firmware activation notices.
    pub const FIRMWARE_ACTIVATION: u32 = 1 << 9;
    /// Asymmetric namespace access change notices.
    pub const ANA_CHANGE: u32 = 1 << 11;
    /// Discovery log page change notices.
    pub const DISCOVERY_CHANGE: u32 = 1 << 31;

    /// Whether all of these bits are set.
    pub const fn has(self, bits: u32) -> bool {
        self.0 & bits == bits
    }
}
