//! A contradiction between records, as a sentence.

use crate::store::Error;
use protocol::{DeviceId, InodeId};

/// What a contradiction concerns, which decides its possible cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Area {
    /// A record that makes no sense on its own.
    #[default]
    Record,
    /// Commits that are missing from the store.
    Commits,
    /// Names and inodes.
    Tree,
    /// The content of files: extents, inline bytes, extended attributes.
    Data,
    /// Blocks: live, free, leased, resting.
    Space,
    /// Stored counts of other records.
    Counts,
    /// Data on devices that does not match its checksum.
    Damage,
    /// Data that could not be read.
    Unread,
}

/// All areas.
const AREAS: [Area; 8] = [
    Area::Record,
    Area::Commits,
    Area::Tree,
    Area::Data,
    Area::Space,
    Area::Counts,
    Area::Damage,
    Area::Unread,
];

impl Area {
    /// Returns the area with a name.
    pub fn of_name(name: &str) -> Option<Area> {
        AREAS.into_iter().find(|area| area.name() == name)
    }

    /// Returns the area's name.
    pub fn name(self) -> &'static str {
        match self {
            Area::Record => "record",
            Area::Commits => "commits",
            Area::Tree => "tree",
            Area::Data => "data",
            Area::Space => "space",
            Area::Counts => "counts",
            Area::Damage => "damage",
            Area::Unread => "unread",
        }
    }

    /// Returns the possible cost of such a contradiction, as a sentence.
    pub fn meaning(self) -> &'static str {
        match self {
            Area::Record => "the record cannot be used; calls that need it fail with EIO",
            Area::Commits => {
                "changes that were acknowledged are gone; the service refuses to start"
            }
            Area::Tree => {
                "a file may be unreachable under its name, or its directory not removable"
            }
            Area::Data => "reads of the file may lack data, or fail with EIO",
            Area::Space => {
                "space is lost if too few blocks are free, and data may be overwritten if too many are"
            }
            Area::Counts => {
                "stat shows wrong numbers, and the file's space may be freed late or never"
            }
            Area::Damage => {
                "the device holds other bytes than were written, and reads of them fail with EIO; \
                 restore the file, or delete it"
            }
            Area::Unread => {
                "whether this data is damaged is not known; reads of it may fail with EIO"
            }
        }
    }
}

/// A contradiction between stored records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The area that it concerns.
    pub area: Area,
    /// The inode that it concerns, if any.
    pub inode: Option<InodeId>,
    /// A path of that inode, if it has one; only [`super::store::check`] looks for it.
    pub path: Option<String>,
    /// The block that it concerns, if any.
    pub block: Option<(DeviceId, u64)>,
    /// The sentence that describes it.
    pub what: String,
}

impl Finding {
    /// Creates a finding that concerns an inode.
    pub(super) fn of(area: Area, inode: InodeId, what: String) -> Finding {
        Finding { inode: Some(inode), ..Finding::general(area, what) }
    }

    /// Creates the finding for a record that cannot be read.
    pub(crate) fn of_record(error: &Error) -> Finding {
        Finding::general(Area::Record, error.to_string())
    }

    /// Creates a finding that concerns no inode.
    pub fn general(area: Area, what: String) -> Finding {
        Finding { area, inode: None, path: None, block: None, what }
    }
}
