//! The file system as a library: paths, handles, extents, leases, caching.
//!
//! A [`Client`] is one session with the metadata service. It lives on one thread, on `reactor`'s
//! executor, and shares nothing with other threads: a program that wants more cores runs more
//! clients. Rights that the service grants and recalls decide what it may cache, and for how long
//! (`docs/protocol.md`). Leased space decides what it may write. Data goes straight from here to
//! the devices, near first.
//!
//! The modules from the top down; each uses only those after it:
//!
//! | module | content |
//! | --- | --- |
//! | `lifecycle` | start and end of a client, the write-back in the background |
//! | `stream` | answers, recalls and invalidations, in the order of the session's stream |
//! | `ranges`, `compact`, `locks` | truncation, copies and holes; compaction; file locks |
//! | `write`, `read` | the two ways of data |
//! | `open_files`, `names` | open and close; look up, create, rename, list |
//! | `set_attributes`, `commit` | changes that wait for a commit; committing data |
//! | `write_out` | full fills go to their devices |
//! | `device_io`, `leasing` | commands to devices; leased blocks |
//! | `kernel_cache` | names, attributes and pages that the kernel holds |
//! | `opens`, `attributes`, `rights`, `rounds` | what many operations begin with |
//! | `checksums`, `neighbours`, `inline_cache`, `absent_names` | computing checksums, prefetching, two bounds |
//! | `inodes` | the table of inodes |
//! | `client` | the parts of a client |
//! | `inode`, `dirty`, `ahead`, `devices`, `space`, `session`, … | the parts: state |

mod absent_names;
mod ahead;
mod attributes;
mod change;
mod checksums;
mod client;
mod commit;
mod compact;
mod device_io;
mod devices;
mod dirty;
mod extent_map;
mod fetched;
mod handle;
mod inline_cache;
mod inode;
mod inodes;
mod kernel_cache;
mod leasing;
mod lifecycle;
mod locks;
mod names;
mod neighbours;
mod open_files;
mod opens;
mod ranges;
mod read;
mod removals;
mod rights;
mod rounds;
mod session;
mod set_attributes;
mod small_pieces;
mod small_reads;
mod space;
mod stream;
mod sums;
mod write;
mod write_back;
mod write_out;

pub use ahead::memory::AheadCounts;
pub use change::{Change, Dropping};
pub use client::{Client, ClientConfig, ClientCounts};
pub use devices::{DeviceUse, LocalDevices};
pub use handle::{Handle, OpenMode};
pub use inode::habit::Habit;
pub use inode::lent::{Lending, LentCounts, LentName};
pub use names::held::NamesHeld;
pub use names::lookup::Listing;
pub use names::{Renamed, Setting};
pub use opens::Pin;
pub use ranges::{COPIED_HERE_BYTES, SeekTo};
pub use read::scrub::{Scrubbed, WrongPlace};
pub use session::config::SessionConfig;
pub use session::counts::CallCounts;
pub use small_pieces::CompactCounts;
pub use small_reads::BlockCounts;
pub use sums::mismatches::{ChecksumCounts, ChecksumView, Damage};

/// Returns the states of a thread that a client relies on, for [`reactor::relay::allow`].
pub fn thread_states() -> Vec<reactor::relay::Share> {
    vec![metrics::share, rpc::share, host::share]
}
