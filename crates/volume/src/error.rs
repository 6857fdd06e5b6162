//! Errors of pools.

/// The reason why an operation on a pool failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] block::Error),
    /// There is no pool on the device.
    #[error("this is not a pool: format it with `tsumugi volume format`")]
    NotAPool,
    /// A pool of another version of this program.
    #[error("the pool has format version {found}; this program reads version {known}")]
    Version {
        /// Version on the device.
        found: u32,
        /// Version of this program.
        known: u32,
    },
    /// The metadata are damaged.
    #[error(
        "the pool is damaged: {first} ({count} findings; `tsumugi volume check` lists them); \
         nothing was changed"
    )]
    Damaged {
        /// The first finding.
        first: String,
        /// Number of findings.
        count: usize,
    },
    /// A cluster size that is not supported.
    #[error("cluster size {0} is not a power of two from 64 KiB to 1 MiB")]
    ClusterSize(u64),
    /// A device that is too small or too large for a pool.
    #[error("a device of {size} bytes {problem}")]
    PoolSize {
        /// Bytes of the device.
        size: u64,
        /// What is wrong with that.
        problem: &'static str,
    },
    /// The device's blocks are larger than a metadata page.
    #[error("blocks of {0} bytes are not supported: a pool needs blocks of 512 to 4096 bytes")]
    BlockSize(u32),
    /// A name that a volume cannot have.
    #[error(
        "{0:?} is not a volume's name: use 1 to 64 letters, digits, '.', '_' or '-', the first of \
         them a letter or digit"
    )]
    Name(String),
    /// A size that a volume cannot have.
    #[error("{size} bytes is not a volume's size: give a multiple of {cluster} bytes, up to {max}")]
    Size {
        /// Requested size in bytes.
        size: u64,
        /// The pool's cluster size in bytes.
        cluster: u32,
        /// Largest size in bytes.
        max: u64,
    },
    /// There is no such volume.
    #[error("the pool has no volume {0}; `tsumugi volume list` shows all")]
    NoSuchVolume(String),
    /// The name is taken.
    #[error("the pool already has a volume {0}")]
    Exists(String),
    /// The volume is open.
    #[error("volume {0} is in use")]
    InUse(String),
    /// Only snapshots can be cloned, because a volume can change.
    #[error("{0} is not a snapshot: make a snapshot of it first, and clone that")]
    NotASnapshot(String),
    /// A snapshot cannot be changed.
    #[error("{0} is a snapshot, which never changes: make a clone of it, and change that")]
    IsSnapshot(String),
    /// A limit of the pool is reached.
    #[error("the pool is full: it has {what}")]
    Full {
        /// The limit that the pool has reached.
        what: String,
    },
    /// Earlier commands do not end.
    #[error("reads or writes of this volume do not end: the device does not answer")]
    Busy,
}
