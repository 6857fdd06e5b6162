//! The names of operations.

use serde::{Deserialize, Serialize};

/// Operations of one kind in one part of the program. Each crate names the operations of its
/// families.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Family {
    /// A request of the kernel, from its receipt to its answer.
    Fuse,
    /// A client's work beside calls: data on devices, near and far, and waits for its own work.
    Client,
    /// A call to the metadata service, as its caller sees it.
    Call,
    /// A call that the metadata service serves.
    Serve,
    /// A recall of rights from clients, as the metadata service sees it.
    Recall,
    /// A return of rights, as a client sees it.
    Return,
    /// An NVMe command that the target carries out.
    Target,
    /// An NVMe command of the host.
    Host,
    /// A union's own work: copy-ups, and making them durable.
    Union,
}

impl Family {
    /// All families.
    pub const ALL: [Family; 9] = [
        Family::Fuse,
        Family::Client,
        Family::Call,
        Family::Serve,
        Family::Recall,
        Family::Return,
        Family::Target,
        Family::Host,
        Family::Union,
    ];

    /// Returns its name, as in labels and output.
    pub const fn name(self) -> &'static str {
        match self {
            Family::Fuse => "fuse",
            Family::Client => "client",
            Family::Call => "call",
            Family::Serve => "serve",
            Family::Recall => "recall",
            Family::Return => "return",
            Family::Target => "target",
            Family::Host => "host",
            Family::Union => "union",
        }
    }

    /// Returns the kind of number that identifies an operation's subject, if it has one.
    pub const fn subject(self) -> &'static str {
        match self {
            Family::Fuse | Family::Call | Family::Serve | Family::Return | Family::Union => "inode",
            Family::Client | Family::Host => "device",
            Family::Recall => "session",
            Family::Target => "namespace",
        }
    }
}

/// The name of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    pub(crate) family: Family,
    pub(crate) index: u8,
    pub(crate) name: &'static str,
}

impl Point {
    /// Names the operation `index` of a family. Each index has one name.
    pub const fn new(family: Family, index: u8, name: &'static str) -> Point {
        Point { family, index, name }
    }

    /// Returns a number for the operation that is never 0.
    pub(crate) const fn code(self) -> u32 {
        (self.family as u32) << 8 | self.index as u32 | 1 << 16
    }

    /// Returns family and index of a [`Point::code`].
    pub(crate) fn of_code(code: u32) -> Option<(Family, u8)> {
        if code == 0 {
            return None;
        }
        let family = Family::ALL.get((code >> 8 & 0xff) as usize)?;
        Some((*family, code as u8))
    }
}
