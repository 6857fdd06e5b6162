//! Thin volumes, snapshots and clones on one file or block device, the *pool*.
//!
//! *Layout*: superblocks, a region of metadata pages, clusters of data ([`Layout`]). A volume is a
//! table from its clusters to the pool's. A snapshot is a copy of the table. Both then name the
//! same clusters, and a write to such a *shared* cluster first copies it to another one (copy on
//! write).
//!
//! *The fast path takes no lock*. The tables of open volumes are in memory as atomic words. A read,
//! or a write to clusters of the volume's own, loads one word for each cluster and goes to the
//! pool's device with another offset. It is counted in memory of its own thread ([`lane`]), so that
//! the slow path can detect when earlier commands no longer access a cluster.
//!
//! *Metadata are never overwritten*. A commit writes changed pages to free slots, flushes, then
//! writes the superblock that names them and flushes again ([`commit`]). Each page is named with
//! its checksum by the page above, so an old page cannot be mistaken for a new one. The first flush
//! also covers the data of the clusters that the pages name. A cluster is free again only when the
//! commit that dropped it is durable and no earlier command can access it.
//!
//! *Nothing is stored twice*. Reference counts and free clusters are computed from the tables when
//! the pool is opened. Opening and checking use the same walk ([`walk`]).

mod clusters;
mod commit;
mod device;
mod error;
mod lane;
mod layout;
mod manage;
mod map;
mod page;
mod pages;
mod pool;
mod shared;
mod slow;
mod state;
mod superblock;
mod walk;

pub use device::VolumeBacking;
pub use error::Error;
pub use layout::{
    CLUSTER_BYTES_DEFAULT, CLUSTER_BYTES_MAX, CLUSTER_BYTES_MIN, CLUSTERS_MAX, Layout, VOLUMES_MAX,
};
pub use page::NAME_BYTES_MAX;
pub use pool::{Pool, Usage, VolumeInfo, WeakPool, has_content, has_pool};
pub use walk::{Finding, Report};
