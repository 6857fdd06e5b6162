//! The options of a union: those of `mount -t overlay` and of fuse-overlayfs, and what mount(8),
//! Podman and fstab pass along.
//!
//! Each option is either carried out, or known to change nothing here, or refused by name: an
//! option that is silently ignored breaks a promise later.

mod keys;
mod split;
#[cfg(test)]
mod tests;
mod text;

use std::path::PathBuf;
use std::time::Duration;

/// Most layers below the upper one, as in the kernel (`OVL_MAX_STACK`).
pub const LOWER_LAYERS_MAX: usize = 500;

/// Which extended attributes hold the overlay's own records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum XattrClass {
    /// `trusted.overlay.*` where they can be written, else `user.overlay.*`.
    #[default]
    Auto,
    /// `user.overlay.*` (option `userxattr`).
    User,
}

/// How renamed directories are handled (`redirect_dir`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RedirectMode {
    /// Renames of merged directories are recorded.
    On,
    /// Records are followed; a rename of a merged directory fails with `EXDEV`.
    #[default]
    Follow,
    /// Records are not even followed.
    NoFollow,
}

/// When copied-up data is made durable (`fsync=`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SyncMode {
    /// Before a copy takes its name in the upper directory.
    #[default]
    Auto,
    /// As `Auto`, and directories and copies of metadata too.
    Strict,
    /// Never, not even when an application requests it (`volatile`).
    Volatile,
}

/// The attribute that keeps owner and mode instead of the inode (`xattr_permissions`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerXattr {
    /// `security.fuseoverlayfs.override_stat` (1), for the privileged.
    Security,
    /// `user.containers.override_stat` (2).
    Containers,
    /// `user.fuseoverlayfs.override_stat`, an older form of it that is kept where it is found.
    FuseOverlayfs,
}

/// One range of an id mapping: ids `disk..disk+count` of the layers are shown as `shown…`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    /// First id on disk.
    pub disk: u32,
    /// What it is shown as.
    pub shown: u32,
    /// Length of the range.
    pub count: u32,
}

/// Which files of lower layers the kernel reads itself (passthrough).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pass {
    /// None.
    Off,
    /// Executable files; in a union without an upper layer, all files.
    #[default]
    Programs,
    /// All: a handle that is open for reading goes on reading the lower file after a copy-up, as on
    /// the kernel's overlayfs.
    Lower,
}

/// When partial files are completed from their lower files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FillMode {
    /// In the background, at idle priority.
    #[default]
    Background,
    /// Only on request.
    Keep,
    /// When the union is unmounted.
    Unmount,
}

/// All options of a union.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Lower layers, the topmost first; at least one.
    pub lower: Vec<PathBuf>,
    /// How many of them, at the end, hold data only (behind `::`).
    pub data_only_count: usize,
    /// The upper directory; none makes the union read-only.
    pub upper: Option<PathBuf>,
    /// The work directory, on the upper's file system.
    pub work: Option<PathBuf>,
    /// Which extended attributes are the overlay's.
    pub xattrs: XattrClass,
    /// Renames of directories.
    pub redirect: RedirectMode,
    /// Keep hard links over a copy-up.
    pub index: bool,
    /// Unique inode numbers over several file systems.
    pub xino: bool,
    /// When to make copies durable.
    pub sync: SyncMode,
    /// Make a whole batch durable by one `syncfs` instead of by its files.
    pub sync_whole_file_system: bool,
    /// Mapping of user ids; empty for none.
    pub uid_map: Vec<IdRange>,
    /// Mapping of group ids; empty for none.
    pub gid_map: Vec<IdRange>,
    /// Show all files as this user's.
    pub squash_uid: Option<u32>,
    /// Show all files as this group's.
    pub squash_gid: Option<u32>,
    /// Keep owner and mode in an extended attribute.
    pub owner_xattr: Option<OwnerXattr>,
    /// Show one link for every directory.
    pub static_nlink: bool,
    /// Without POSIX access control lists.
    pub no_acl: bool,
    /// How long the kernel may keep names and attributes.
    pub timeout: Duration,
    /// Let the kernel gather writes.
    pub writeback: bool,
    /// Which files of lower layers the kernel reads itself.
    pub passthrough: Pass,
    /// Mount read-only.
    pub read_only: bool,
    /// Ignore suid bits.
    pub no_suid: bool,
    /// Ignore devices.
    pub no_devices: bool,
    /// Execute nothing.
    pub no_exec: bool,
    /// Keep no access times.
    pub no_atime: bool,
    /// Allow access to other users than the mounting one.
    pub allow_other: bool,
    /// What the mount table shows as source.
    pub source: Option<String>,
    /// Files of a commit, at most.
    pub batch_files_max: usize,
    /// Bytes of a commit, at most.
    pub batch_bytes_max: u64,
    /// How long a copy waits for other copies before it is committed.
    pub batch_time: Duration,
    /// Bytes of a chunk of a partial copy; 0 copies whole files.
    pub chunk_bytes: u32,
    /// When partial copies are completed.
    pub fill: FillMode,
    /// Bytes a second that filling in the background copies, at most; 0 for no bound.
    pub fill_rate_bytes: u64,
    /// The percentage of the upper file system that filling leaves free.
    pub fill_free_percent: u8,
    /// Use a journal of partial copies whose durable records are missing.
    pub accept_damage: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            lower: Vec::new(),
            data_only_count: 0,
            upper: None,
            work: None,
            xattrs: XattrClass::Auto,
            redirect: RedirectMode::Follow,
            index: false,
            xino: true,
            sync: SyncMode::Auto,
            sync_whole_file_system: false,
            uid_map: Vec::new(),
            gid_map: Vec::new(),
            squash_uid: None,
            squash_gid: None,
            owner_xattr: None,
            static_nlink: false,
            no_acl: false,
            timeout: Duration::from_hours(24),
            writeback: false,
            passthrough: Pass::default(),
            read_only: false,
            no_suid: false,
            no_devices: false,
            no_exec: false,
            no_atime: false,
            allow_other: false,
            source: None,
            batch_files_max: 50,
            batch_bytes_max: 32 << 20,
            batch_time: Duration::from_millis(50),
            chunk_bytes: 64 << 10,
            fill: FillMode::Background,
            fill_rate_bytes: 256 << 20,
            fill_free_percent: 10,
            accept_damage: false,
        }
    }
}

/// Why an option string was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionError {
    /// An unknown option.
    #[error("unknown option {0:?} (see `tsumugi union --help` for the list)")]
    Unknown(String),
    /// An option that has a meaning elsewhere and is not supported here.
    #[error("option {option}: {reason}")]
    Unsupported {
        /// The option.
        option: String,
        /// Why not.
        reason: &'static str,
    },
    /// A value that the option cannot have.
    #[error("option {option}={value:?}: must be {expected}")]
    Value {
        /// The option.
        option: String,
        /// The given value.
        value: String,
        /// The allowed values.
        expected: &'static str,
    },
    /// Options that need, or exclude, others.
    #[error("{0}")]
    Combination(&'static str),
}

impl Options {
    /// Returns whether the union shows other owners than the layers have.
    pub(crate) fn maps_owners(&self) -> bool {
        let has_map = !self.uid_map.is_empty() || !self.gid_map.is_empty();
        has_map || self.squash_uid.is_some() || self.squash_gid.is_some()
    }

    /// Reads an option string, as behind `-o`.
    pub fn parse(text: &[u8]) -> Result<Self, OptionError> {
        let mut options = Self::default();
        options.add(text)?;
        options.check()?;
        Ok(options)
    }

    /// Reads a further option string; later ones override earlier ones.
    pub fn add(&mut self, text: &[u8]) -> Result<(), OptionError> {
        for part in split::at_commas(text) {
            if part.is_empty() {
                continue;
            }
            let (key, value) = match part.iter().position(|&byte| byte == b'=') {
                Some(at) => (&part[..at], Some(&part[at + 1..])),
                None => (part, None),
            };
            keys::set(self, &String::from_utf8_lossy(key), value)?;
        }
        Ok(())
    }

    /// Refuses options that exclude each other.
    pub fn check(&self) -> Result<(), OptionError> {
        let error = |text| Err(OptionError::Combination(text));
        if self.lower.len() == self.data_only_count {
            return error("lowerdir is missing: give it as -o lowerdir=TOP:…:BOTTOM");
        }
        if self.lower.len() > LOWER_LAYERS_MAX {
            return error("lowerdir names more than 500 layers");
        }
        match (&self.upper, &self.work) {
            (Some(_), None) => error("upperdir needs a workdir on the same file system"),
            (None, Some(_)) => error("workdir without upperdir has no meaning"),
            _ if self.xattrs == XattrClass::User && self.redirect == RedirectMode::On => {
                error("redirect_dir=on and userxattr exclude each other, as in the kernel")
            }
            _ if self.index && self.xattrs == XattrClass::User => {
                error("index=on and userxattr exclude each other")
            }
            _ => Ok(()),
        }
    }

    /// Returns whether redirects are followed: never those that ordinary users may write, as in the
    /// kernel.
    pub(crate) fn follows_redirects(&self) -> bool {
        self.redirect != RedirectMode::NoFollow && self.xattrs != XattrClass::User
    }
}

/// Returns whether an option names a layer or the work directory.
fn is_layer_key(key: &str) -> bool {
    matches!(key, "lowerdir" | "upperdir" | "workdir" | "lowerdir+" | "datadir+")
}
