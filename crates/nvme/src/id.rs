//! Newtypes for the identifiers of NVMe, so that they cannot be confused.

use core::fmt;

macro_rules! id {
    ($(#[$meta:meta])* $name:ident, $int:ty, $label:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $int);

        impl $name {
            /// Returns the plain number.
            pub const fn get(self) -> $int {
                self.0
            }
        }

        impl From<$int> for $name {
            fn from(value: $int) -> Self {
                Self(value)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($label, " {}"), self.0)
            }
        }
    };
}

id!(
    /// Namespace identifier (base 3.2.1.2); 0 names none, [`Nsid::BROADCAST`] all.
    Nsid,
    u32,
    "namespace"
);
id!(
    /// Controller identifier, CNTLID (base 3.1.1): unique in a subsystem.
    ControllerId,
    u16,
    "controller"
);
id!(
    /// Command identifier, CID (base figure 92): unique among a queue's outstanding commands.
    CommandId,
    u16,
    "command"
);
id!(
    /// Queue identifier, QID: 0 is the admin queue pair.
    QueueId,
    u16,
    "queue"
);
id!(
    /// Transfer tag, TTAG (TCP 3.6.2.8): identifies the transfer of an R2T; chosen by the
    /// controller.
    TransferTag,
    u16,
    "transfer tag"
);

impl Nsid {
    /// Names all namespaces (base figure 93).
    pub const BROADCAST: Self = Self(u32::MAX);

    /// Whether the value can name one namespace: neither 0 nor above `0xffff_fffd`.
    pub const fn is_valid(self) -> bool {
        self.0 != 0 && self.0 < 0xffff_fffe
    }
}

impl ControllerId {
    /// Largest identifier that a controller may have over fabrics (base figure 312).
    pub const MAX: Self = Self(0xffef);
    /// In Connect: the host accepts any controller of the static model (base figure 548).
    pub const STATIC: Self = Self(0xfffe);
    /// In Connect: the subsystem shall allocate a controller, dynamic model (base figure 548).
    pub const DYNAMIC: Self = Self(0xffff);
}

impl QueueId {
    /// The admin queue pair.
    pub const ADMIN: Self = Self(0);

    /// Whether this is the admin queue pair.
    pub const fn is_admin(self) -> bool {
        self.0 == 0
    }
}

/// Host identifier, HOSTID (base 5.1.25.1.28): 16 bytes that name one host, in UUID byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub [u8; 16]);

impl HostId {
    /// Whether all bytes are 0, which means that no identifier was set.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}
