//! Asynchronous events (base 5.1.2): dword 0 of the completion of an Asynchronous Event Request.

use crate::log_page::lid;

/// An event and the log page with its details.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AsyncEvent {
    /// AET: event type, 3 bits, see the `TYPE_` constants.
    pub event_type: u8,
    /// AEI: event information, 8 bits; its meaning depends on the type.
    pub info: u8,
    /// LID: log page to read. Reading it also enables the report of the next event of this type.
    pub log_page: u8,
}

impl AsyncEvent {
    /// Error status.
    pub const TYPE_ERROR: u8 = 0;
    /// SMART / health status.
    pub const TYPE_SMART: u8 = 1;
    /// Notice.
    pub const TYPE_NOTICE: u8 = 2;
    /// Immediate.
    pub const TYPE_IMMEDIATE: u8 = 3;
    /// I/O command specific status (reservations).
    pub const TYPE_IO_COMMAND: u8 = 6;
    /// Vendor specific.
    pub const TYPE_VENDOR: u8 = 7;

    /// A temperature is at a threshold or beyond it.
    pub const TEMPERATURE_THRESHOLD: Self =
        Self { event_type: Self::TYPE_SMART, info: 0x01, log_page: lid::SMART_HEALTH };
    /// The attributes of a namespace, or the list of active namespaces, changed.
    pub const NAMESPACE_ATTRIBUTES_CHANGED: Self =
        Self { event_type: Self::TYPE_NOTICE, info: 0x00, log_page: lid::CHANGED_NAMESPACES };
    /// A reservation notification is available.
    pub const RESERVATION_LOG_AVAILABLE: Self = Self {
        event_type: Self::TYPE_IO_COMMAND,
        info: 0,
        log_page: lid::RESERVATION_NOTIFICATION,
    };
    /// ANA states changed.
    pub const ANA_CHANGED: Self =
        Self { event_type: Self::TYPE_NOTICE, info: 0x03, log_page: lid::ANA };
    /// The discovery log page changed.
    pub const DISCOVERY_CHANGED: Self =
        Self { event_type: Self::TYPE_NOTICE, info: 0xf0, log_page: lid::DISCOVERY };

    /// Unpacks dword 0.
    pub const fn from_dword(dword0: u32) -> Self {
        Self {
            event_type: (dword0 & 7) as u8,
            info: (dword0 >> 8) as u8,
            log_page: (dword0 >> 16) as u8,
        }
    }

    /// Packs dword 0; excess bits of the type are dropped.
    pub const fn to_dword(self) -> u32 {
        (self.event_type & 7) as u32 | ((self.info as u32) << 8) | ((self.log_page as u32) << 16)
    }
}
