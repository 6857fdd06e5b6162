//! Log pages (base 5.1.12.1).

mod discovery;
mod health;

pub use discovery::{
    DISCOVERY_HEADER_BYTES, DiscoveryEntry, DiscoveryHeader, address_family, security_type,
    subsystem_type, transport_requirements, transport_type,
};
pub use health::{ErrorEntry, FirmwareSlots, SmartHealth};

use crate::identify::NamespaceList;
use crate::{U16, U32, U64};

/// LID values (base figure 202).
pub mod lid {
    /// Supported log pages, see [`super::SupportedPages`].
    pub const SUPPORTED_PAGES: u8 = 0x00;
    /// Error information, see [`super::ErrorEntry`].
    pub const ERROR: u8 = 0x01;
    /// SMART / health information, see [`super::SmartHealth`].
    pub const SMART_HEALTH: u8 = 0x02;
    /// Firmware slot information, see [`super::FirmwareSlots`].
    pub const FIRMWARE_SLOTS: u8 = 0x03;
    /// Changed attached namespace list, see [`super::ChangedNamespaces`].
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    /// Commands supported and effects, see [`super::CommandEffects`].
    pub const COMMAND_EFFECTS: u8 = 0x05;
    /// Asymmetric namespace access, see [`super::AnaHeader`].
    pub const ANA: u8 = 0x0c;
    /// Feature identifiers supported and effects, see [`super::FeatureEffects`].
    pub const FEATURE_EFFECTS: u8 = 0x12;
    /// NVMe-MI commands supported and effects.
    pub const MANAGEMENT_EFFECTS: u8 = 0x13;
    /// Discovery, see [`super::DiscoveryHeader`].
    pub const DISCOVERY: u8 = 0x70;
    /// Reservation notification, see
    /// [`ReservationNotification`](crate::reservation::ReservationNotification).
    pub const RESERVATION_NOTIFICATION: u8 = 0x80;
}

/// Changed attached namespace list (base 5.1.12.1.5): a namespace list. A first entry of
/// `0xffff_ffff` stands for more than 1024 changes.
pub type ChangedNamespaces = NamespaceList;

wire_struct! {
    /// Supported log pages (base figure 204): bit 0 of entry n is set if page n is supported.
    pub struct SupportedPages[1024] {
        /// One entry per log page.
        pub lids: [U32; 256],
    }
}

impl SupportedPages {
    /// Returns a page that lists these pages as supported.
    pub fn new(pages: &[u8]) -> Self {
        let mut this = Self::default();
        for page in pages {
            this.lids[usize::from(*page)] = U32::new(1);
        }
        this
    }

    /// Whether this page is supported.
    pub fn has(&self, page: u8) -> bool {
        self.lids[usize::from(page)].get() & 1 != 0
    }
}

wire_struct! {
    /// Commands supported and effects (base figures 210 and 211).
    pub struct CommandEffects[4096] {
        /// Admin commands, by opcode.
        pub acs: [U32; 256],
        /// I/O commands, by opcode.
        pub iocs: [U32; 256],
        /// Reserved.
        pub rsvd2048: [u8; 2048],
    }
}

impl CommandEffects {
    /// CSUPP: the command is supported.
    pub const SUPPORTED: u32 = 1;
    /// LBCC: the command may change the contents of logical blocks.
    pub const LOGICAL_BLOCK_CONTENT_CHANGE: u32 = 1 << 1;
    /// NCC: the command may change the capability of a namespace.
    pub const NAMESPACE_CAPABILITY_CHANGE: u32 = 1 << 2;
    /// NIC: the command may change the set of namespaces.
    pub const NAMESPACE_INVENTORY_CHANGE: u32 = 1 << 3;
    /// CCC: the command may change the controller's capabilities.
    pub const CONTROLLER_CAPABILITY_CHANGE: u32 = 1 << 4;
    /// CSP: the command acts on a namespace.
    pub const SCOPE_NAMESPACE: u32 = 1 << 20;
    /// CSP: the command acts on the controller.
    pub const SCOPE_CONTROLLER: u32 = 1 << 21;
}

wire_struct! {
    /// Feature identifiers supported and effects (base figures 255 and 256).
    pub struct FeatureEffects[1024] {
        /// One entry per feature identifier.
        pub fids: [U32; 256],
    }
}

impl FeatureEffects {
    /// FSUPP: the feature is supported.
    pub const SUPPORTED: u32 = 1;
    /// NCC: setting it may change the capability of a namespace.
    pub const NAMESPACE_CAPABILITY_CHANGE: u32 = 1 << 2;
    /// FSP: the feature belongs to a namespace.
    pub const SCOPE_NAMESPACE: u32 = 1 << 20;
    /// FSP: the feature belongs to the controller.
    pub const SCOPE_CONTROLLER: u32 = 1 << 21;
}

/// ANA state (base figure 218).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AnaState {
    /// 01h: the best path.
    Optimized,
    /// 02h: usable, but another path is better.
    NonOptimized,
    /// 03h: currently not accessible through this controller.
    Inaccessible,
    /// 04h: permanently not accessible through this controller.
    PersistentLoss,
    /// 0Fh: changing between states.
    Change,
}

impl AnaState {
    /// All states.
    pub const ALL: [Self; 5] = [
        Self::Optimized,
        Self::NonOptimized,
        Self::Inaccessible,
        Self::PersistentLoss,
        Self::Change,
    ];

    /// Returns the state with this number, if there is one; the upper half byte is reserved.
    pub const fn from_u8(value: u8) -> Option<Self> {
        Some(match value & 0xf {
            0x01 => Self::Optimized,
            0x02 => Self::NonOptimized,
            0x03 => Self::Inaccessible,
            0x04 => Self::PersistentLoss,
            0x0f => Self::Change,
            _ => return None,
        })
    }

    /// Returns the state with this name in the Linux target's spelling, if there is one.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Returns its name in the Linux target's spelling.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Optimized => "optimized",
            Self::NonOptimized => "non-optimized",
            Self::Inaccessible => "inaccessible",
            Self::PersistentLoss => "persistent-loss",
            Self::Change => "change",
        }
    }

    /// Returns the state's number.
    pub const fn to_u8(self) -> u8 {
        match self {
            Self::Optimized => 0x01,
            Self::NonOptimized => 0x02,
            Self::Inaccessible => 0x03,
            Self::PersistentLoss => 0x04,
            Self::Change => 0x0f,
        }
    }
}

wire_struct! {
    /// Header of the ANA log page (base figure 217), followed by the groups.
    pub struct AnaHeader[16] {
        /// Change count.
        pub chgcnt: U64,
        /// Number of group descriptors.
        pub ngrps: U16,
        /// Reserved.
        pub rsvd10: [u8; 6],
    }
}

wire_struct! {
    /// ANA group descriptor (base figure 218), followed by `nnsid` namespace identifiers.
    pub struct AnaGroup[32] {
        /// Group identifier; not 0.
        pub agid: U32,
        /// Number of namespace identifiers that follow.
        pub nnsid: U32,
        /// Change count of the group.
        pub chgcnt: U64,
        /// State in bits 3:0, see [`AnaState`].
        pub state: u8,
        /// Reserved.
        pub rsvd17: [u8; 15],
    }
}

impl AnaGroup {
    /// Returns the state, if it is not reserved.
    pub const fn ana_state(&self) -> Option<AnaState> {
        AnaState::from_u8(self.state)
    }
}
