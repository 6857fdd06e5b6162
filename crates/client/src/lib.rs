//! The file system as a library: paths, handles, extents, leases, caching.
//!
//! A [`Client`] is one session with the metadata service. It lives on one thread, on `reactor`'s
//! executor, and shares nothing with other threads; whoever wants more cores runs more clients.
//! What it may cache and for how long is decided by rights that the service grants and recalls
//! (`docs/protocol.md`); what it may write is decided by leased space. Data goes straight from here
//! to the devices, near first.
//!
//! | module | what it does |
//! | --- | --- |
//! | `session` | the connection, calls, slots, heart-beats |
//! | `coherence` | applies grants, recalls and invalidations in the order of the stream |
//! | `inode`, `entries` | what is known of one inode; of a directory's names |
//! | `lent` | what a cache outside of this client, the kernel, may use, and taking it back |
//! | `removals` | what may be losing its last name by this client's doing |
//! | `many` | many small files by one call |
//! | `names` | lookup, create, link, unlink, rename, listings, attributes |
//! | `neighbours` | small files that are read before they are asked for |
//! | `holds` | keeping what a walk has found, or found absent, until its caller acts on it |
//! | `files` | open, close, truncate, fallocate, copy, seek |
//! | `dirty`, `write`, `commit` | gathering written bytes, writing them out, committing them |
//! | `compact` | putting files together that were written in small pieces |
//! | `read` | from caches, dirty data and devices to the caller |
//! | `space`, `devices` | leased blocks; how devices are reached |
//! | `sums` | checksums of blocks, and what is found wrong |

mod client;
mod coherence;
mod commit;
mod compact;
mod deferred;
mod devices;
mod dirty;
mod entries;
mod extent_map;
mod failures;
mod files;
mod habit;
mod holds;
mod inline;
mod inode;
mod lent;
mod locks;
mod many;
mod names;
mod neighbours;
mod pages;
mod read;
mod removals;
mod reservation;
mod rounds;
mod session;
mod space;
mod sums;
mod write;

pub use client::{Client, ClientConfig, ClientCounts};
pub use coherence::Change;
pub use compact::CompactCounts;
pub use devices::{DeviceUse, LocalDevices};
pub use files::{COPIED_HERE_BYTES, Handle, OpenMode, SeekTo};
pub use habit::Habit;
pub use holds::{NamesHeld, Pin};
pub use lent::{Lending, LentCounts, LentName};
pub use names::{Listing, Renamed, Setting};
pub use read::{AheadCounts, Scrubbed, WrongPlace};
pub use session::config::SessionConfig;
pub use session::counts::CallCounts;
pub use sums::{ChecksumCounts, ChecksumView, Damage};
