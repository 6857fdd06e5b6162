//! Reservations (base 8.1.22): types, the data of their four commands, and the notification log
//! page.

use crate::{Error, U16, U32, U64};

/// Reservation type, RTYPE (base figure 459).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReservationType {
    /// 1h: only the holder writes.
    WriteExclusive,
    /// 2h: only the holder reads and writes.
    ExclusiveAccess,
    /// 3h: only registrants write; one of them holds it.
    WriteExclusiveRegistrantsOnly,
    /// 4h: only registrants read and write; one of them holds it.
    ExclusiveAccessRegistrantsOnly,
    /// 5h: only registrants write; all of them hold it.
    WriteExclusiveAllRegistrants,
    /// 6h: only registrants read and write; all of them hold it.
    ExclusiveAccessAllRegistrants,
}

impl ReservationType {
    /// All types, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::WriteExclusive,
        Self::ExclusiveAccess,
        Self::WriteExclusiveRegistrantsOnly,
        Self::ExclusiveAccessRegistrantsOnly,
        Self::WriteExclusiveAllRegistrants,
        Self::ExclusiveAccessAllRegistrants,
    ];

    /// Returns the type with this number.
    ///
    /// # Errors
    /// [`Error::InvalidField`] `rtype` for 0 and for numbers above 6.
    pub fn from_u8(value: u8) -> Result<Self, Error> {
        let index = usize::from(value).checked_sub(1);
        let known = index.and_then(|index| Self::ALL.get(index)).copied();
        known.ok_or(Error::InvalidField { field: "rtype", value: u64::from(value) })
    }

    /// Returns the type's number, 1 to 6.
    pub const fn to_u8(self) -> u8 {
        self as u8 + 1
    }

    /// Whether every registrant is a holder.
    pub const fn is_all_registrants(self) -> bool {
        matches!(self, Self::WriteExclusiveAllRegistrants | Self::ExclusiveAccessAllRegistrants)
    }

    /// Whether registrants that do not hold the reservation have the holder's rights.
    pub const fn is_for_registrants(self) -> bool {
        !matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }

    /// Whether hosts without rights may not even read.
    pub const fn is_exclusive_access(self) -> bool {
        matches!(
            self,
            Self::ExclusiveAccess
                | Self::ExclusiveAccessRegistrantsOnly
                | Self::ExclusiveAccessAllRegistrants
        )
    }
}

/// RESCAP of Identify Namespace (NVM figure 114).
pub mod rescap {
    /// Reservations and registrations can survive a power loss.
    pub const PERSIST: u8 = 1;
    /// All six types.
    pub const ALL_TYPES: u8 = 0x7e;
    /// IEKEY works as defined since version 1.3 of the specification.
    pub const IGNORE_EXISTING_KEY: u8 = 1 << 7;
}

/// The feature Reservation Notification Mask (base 5.1.25.1.31): a set bit suppresses notices.
pub mod notification_mask {
    /// Registration Preempted.
    pub const REGISTRATION_PREEMPTED: u32 = 1 << 1;
    /// Reservation Released.
    pub const RESERVATION_RELEASED: u32 = 1 << 2;
    /// Reservation Preempted.
    pub const RESERVATION_PREEMPTED: u32 = 1 << 3;
    /// All of them.
    pub const ALL: u32 = REGISTRATION_PREEMPTED | RESERVATION_RELEASED | RESERVATION_PREEMPTED;
}

/// The event that a reservation notification reports (base figure 265).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReservationNotice {
    /// 1h: another host removed this host's registration.
    RegistrationPreempted,
    /// 2h: the reservation that gave this registrant its rights was released.
    ReservationReleased,
    /// 3h: another host cleared all registrations and the reservation.
    ReservationPreempted,
}

impl ReservationNotice {
    /// Returns RNLPT, the number in the log page.
    pub const fn to_u8(self) -> u8 {
        self as u8 + 1
    }

    /// Returns the bit of the feature that suppresses it.
    pub const fn mask(self) -> u32 {
        1 << self.to_u8()
    }
}

wire_struct! {
    /// Data of Reservation Register (base figure 465).
    pub struct RegisterKeys[16] {
        /// Current reservation key.
        pub crkey: U64,
        /// New reservation key.
        pub nrkey: U64,
    }
}

wire_struct! {
    /// Data of Reservation Acquire (base figure 460).
    pub struct AcquireKeys[16] {
        /// Current reservation key.
        pub crkey: U64,
        /// Key of the registrants to preempt.
        pub prkey: U64,
    }
}

wire_struct! {
    /// Data of Reservation Release (base figure 469).
    pub struct ReleaseKeys[8] {
        /// Current reservation key.
        pub crkey: U64,
    }
}

wire_struct! {
    /// Start of the extended reservation status (base figure 473); [`RegisteredController`]s
    /// follow.
    pub struct ReservationStatus[64] {
        /// GEN: counts commands that changed registrations.
        pub generation: U32,
        /// Reservation type; 0: there is no reservation.
        pub rtype: u8,
        /// Number of the structures that follow, including those that were cut off.
        pub regctl: U16,
        /// Reserved.
        pub rsvd7: [u8; 2],
        /// Persist through power loss state: 1 if registrations survive.
        pub ptpls: u8,
        /// Reserved.
        pub rsvd10: [u8; 54],
    }
}

wire_struct! {
    /// Registered controller, extended (base figure 475).
    pub struct RegisteredController[64] {
        /// Controller; 0xffff in the dynamic controller model.
        pub cntlid: U16,
        /// Bit 0: the controller's host holds the reservation.
        pub rcsts: u8,
        /// Reserved.
        pub rsvd3: [u8; 5],
        /// Reservation key.
        pub rkey: U64,
        /// Host identifier.
        pub hostid: [u8; 16],
        /// Reserved.
        pub rsvd32: [u8; 32],
    }
}

wire_struct! {
    /// Reservation notification log page (base figure 265).
    pub struct ReservationNotification[64] {
        /// Counts the controller's notifications from 1; 0: the page is empty.
        pub lpc: U64,
        /// Type, see [`ReservationNotice`]; 0: the page is empty.
        pub rnlpt: u8,
        /// Further pages that are available, 255 for that many or more.
        pub nalp: u8,
        /// Reserved.
        pub rsvd10: [u8; 2],
        /// The namespace.
        pub nsid: U32,
        /// Reserved.
        pub rsvd16: [u8; 48],
    }
}
