//! File systems that show one set of files to many containers, each with its own copy to change; and the files
//! at risk in a crash, which always accompany their speed.

use base::messages::Message;

/// How containers get their changeable copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scheme {
    /// The kernel's overlayfs as it is by default, `fsync=auto`.
    Overlay,
    /// The same with `volatile`: it syncs nothing.
    OverlayVolatile,
    /// The kernel's overlayfs on xfs, which copies up by reflink.
    OverlayReflink,
    /// fuse-overlayfs.
    FuseOverlayfs,
    /// Our union, `fill=keep`: stores what is written.
    UnionKeep,
    /// Our union, `fill=background`: and makes files whole.
    UnionBackground,
    /// Our union, `chunk=0`: copies whole files.
    UnionWhole,
    /// A snapshot on btrfs for each container, without an overlay.
    BtrfsSnapshot,
    /// A thin snapshot of the device mapper with ext4 for each container, as Docker's devicemapper.
    ThinSnapshot,
}

/// Which of the files that a container has changed a crash may damage, the original ones included, as
/// the damaged copy hides them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtRisk {
    /// None: each is the old or the new one, complete.
    None,
    /// All of them.
    All,
}

/// What is known of a crash.
#[derive(Clone, Copy, Debug)]
pub struct Risk {
    /// Which files.
    pub files: AtRisk,
    /// What is there afterwards.
    pub after: Message,
    /// From where this is known.
    pub source: &'static str,
}

/// How the crashes were made that the facts are from.
const SHUTDOWN: &str = "measured: ext4 shut down without a flush 6 s after the last write, 200 files, \
                        three seeds, Linux 6.18";
const CUT_TEST: &str = "tested at each change: tests/kernel/cut.sh cuts a disk off below 200 files, 6 s after the last \
                        write (35 s in its long form), Linux 6.12";
const OWN_TEST: &str =
    "tested at each change: tests/system/union-power-cut replays cuts of a logged disk";

/// What the study's modified overlayfs risks, which no released kernel has: a row for the table of risks.
pub const STUDY_BATCHES: Risk = Risk {
    files: AtRisk::All,
    after: Message::AfterBatches,
    source: "measured on a copying loop of the same scheme: 196 of 200, three seeds, otherwise as below",
};

impl Scheme {
    /// All of them, with the names they have in files.
    pub const ALL: [(&'static str, Self); 9] = [
        ("overlay", Self::Overlay),
        ("overlay-volatile", Self::OverlayVolatile),
        ("overlay-reflink", Self::OverlayReflink),
        ("fuse-overlayfs", Self::FuseOverlayfs),
        ("union-keep", Self::UnionKeep),
        ("union-background", Self::UnionBackground),
        ("union-whole", Self::UnionWhole),
        ("btrfs-snapshot", Self::BtrfsSnapshot),
        ("thin-snapshot", Self::ThinSnapshot),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, scheme)| *scheme == self).map_or("", |(name, _)| name)
    }

    /// The file system that it needs below it, on a loop device; else it works where the data is.
    pub fn file_system(self) -> Option<&'static str> {
        match self {
            Self::OverlayReflink => Some("xfs"),
            Self::BtrfsSnapshot => Some("btrfs"),
            _ => None,
        }
    }

    /// Whether it has an upper directory that holds what was copied up.
    pub fn has_upper(self) -> bool {
        !matches!(self, Self::BtrfsSnapshot | Self::ThinSnapshot)
    }

    /// What a crash may cost.
    pub fn risk(self) -> Risk {
        match self {
            Self::Overlay => {
                Risk { files: AtRisk::None, after: Message::AfterOverlay, source: SHUTDOWN }
            }
            Self::OverlayVolatile => {
                Risk { files: AtRisk::All, after: Message::AfterVolatile, source: SHUTDOWN }
            }
            Self::OverlayReflink => Risk {
                files: AtRisk::None,
                after: Message::AfterReflink,
                source: "measured: xfs shut down without a flush 6 and 35 s after the last write, 200 \
                         files, Linux 6.18",
            },
            Self::FuseOverlayfs => {
                Risk { files: AtRisk::All, after: Message::AfterFuse, source: SHUTDOWN }
            }
            Self::UnionKeep | Self::UnionBackground | Self::UnionWhole => {
                Risk { files: AtRisk::None, after: Message::AfterUnion, source: OWN_TEST }
            }
            Self::BtrfsSnapshot => {
                Risk { files: AtRisk::None, after: Message::AfterBtrfs, source: CUT_TEST }
            }
            Self::ThinSnapshot => {
                Risk { files: AtRisk::None, after: Message::AfterThin, source: CUT_TEST }
            }
        }
    }
}

impl Risk {
    /// In a word, to stand beside every speed, behind "at risk: ".
    pub fn short(self) -> &'static str {
        match self.files {
            AtRisk::None => "none",
            AtRisk::All => "all",
        }
    }
}

impl AtRisk {
    /// Whether this is known to risk more than the other.
    pub fn is_worse_than(self, other: Self) -> bool {
        self == Self::All && other == Self::None
    }
}
