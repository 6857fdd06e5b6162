//! The layout of a pool's device.
//!
//! From the start: four superblocks of a page each (A, B, copy of A, copy of B), places (*slots*)
//! for metadata pages, then clusters of data, which begin at a multiple of the cluster size. All
//! offsets follow from the device's size and the cluster size.

use crate::error::Error;

/// Bytes of a metadata page.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Entries of a map page: clusters of a volume.
pub(crate) const ENTRIES: usize = 1016;
/// Pointers of a root or index page.
pub(crate) const POINTERS: usize = 508;
/// Pages of superblocks.
pub(crate) const SUPERBLOCKS: u64 = 4;

/// Default cluster size in bytes.
pub const CLUSTER_BYTES_DEFAULT: u32 = 256 << 10;
/// Smallest cluster size in bytes.
pub const CLUSTER_BYTES_MIN: u32 = 64 << 10;
/// Largest cluster size in bytes.
pub const CLUSTER_BYTES_MAX: u32 = 1 << 20;
/// Largest number of clusters of a pool, and of a volume.
pub const CLUSTERS_MAX: u32 = 1 << 27;
/// Largest number of volumes of a pool, including snapshots and clones.
pub const VOLUMES_MAX: usize = 1024;

/// Largest number of map and volume pages: the number that one root page can name.
const POSITIONS_MAX: u64 = (POINTERS * POINTERS) as u64;
/// A pool has space for this many times the map pages that name each of its clusters once, because
/// snapshots and thin volumes need more.
const MAPS_OF_POOL: u64 = 8;
/// Least number of such pages, for small pools.
const POSITIONS_MIN: u64 = 256;

/// The layout of a pool's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of the device that the pool uses.
    pub size: u64,
    /// Bytes of a cluster, a power of two.
    pub cluster_bytes: u32,
    /// Number of clusters.
    pub clusters: u32,
    /// Largest number of map and volume pages.
    pub positions: u32,
    /// Places for metadata pages.
    pub slots: u32,
    /// Byte offset of the first cluster.
    pub data_start: u64,
}

/// Returns the number of slots for this number of map and volume pages and for the pages that name
/// them. A commit may rewrite all pages while those of the previous commit must stay.
fn slots_for(positions: u64) -> u64 {
    2 * (positions + positions.div_ceil(POINTERS as u64) + 1)
}

fn data_start_for(slots: u64, cluster_bytes: u64) -> u64 {
    ((SUPERBLOCKS + slots) * PAGE_BYTES as u64).next_multiple_of(cluster_bytes)
}

impl Layout {
    /// Returns the layout of a device of `size` bytes.
    ///
    /// # Errors
    /// [`Error::ClusterSize`], [`Error::PoolSize`].
    pub fn new(size: u64, cluster_bytes: u32) -> Result<Self, Error> {
        if !cluster_bytes.is_power_of_two()
            || !(CLUSTER_BYTES_MIN..=CLUSTER_BYTES_MAX).contains(&cluster_bytes)
        {
            return Err(Error::ClusterSize(u64::from(cluster_bytes)));
        }
        let cluster = u64::from(cluster_bytes);
        let clusters = size / cluster;
        if clusters > u64::from(CLUSTERS_MAX) {
            let problem =
                "has more than 134217728 clusters: use larger clusters or a smaller device";
            return Err(Error::PoolSize { size, problem });
        }
        let positions =
            (MAPS_OF_POOL * clusters.div_ceil(ENTRIES as u64) + POSITIONS_MIN).min(POSITIONS_MAX);
        let slots = slots_for(positions);
        let data_start = data_start_for(slots, cluster);
        let clusters = size.saturating_sub(data_start) / cluster;
        if clusters == 0 {
            let problem = "is too small for a pool, which needs at least 4 MiB";
            return Err(Error::PoolSize { size, problem });
        }
        Ok(Self {
            size,
            cluster_bytes,
            clusters: clusters as u32,
            positions: positions as u32,
            slots: slots as u32,
            data_start,
        })
    }

    /// Returns the layout of the same pool on a larger device. The space for metadata keeps its
    /// size.
    ///
    /// # Errors
    /// [`Error::PoolSize`] if the pool would have too many clusters, or the device is smaller.
    pub(crate) fn grown(&self, size: u64) -> Result<Self, Error> {
        // A part of a cluster adds nothing, and a pool that never grew must keep the layout of its
        // size.
        let clusters = size.saturating_sub(self.data_start) / u64::from(self.cluster_bytes);
        if clusters == u64::from(self.clusters) {
            return Ok(*self);
        }
        let problem = match clusters {
            it if it < u64::from(self.clusters) => "is smaller than its pool",
            _ if size / u64::from(self.cluster_bytes) > u64::from(CLUSTERS_MAX) => {
                "has more than 134217728 clusters: a pool has no more"
            }
            _ => return Ok(Self { size, clusters: clusters as u32, ..*self }),
        };
        Err(Error::PoolSize { size, problem })
    }

    /// Whether the pool has grown since it was formatted.
    pub(crate) fn has_grown(&self) -> bool {
        Self::new(self.size, self.cluster_bytes).ok().as_ref() != Some(self)
    }

    /// Whether a pool can have this layout: that of its size, or one that it has grown to.
    pub(crate) fn is_possible(&self) -> bool {
        let Ok(full) = Self::new(self.size, self.cluster_bytes) else { return false };
        let Self { positions, slots, data_start, clusters, .. } = *self;
        let positions = u64::from(positions);
        let known = POSITIONS_MIN + MAPS_OF_POOL..=u64::from(full.positions);
        known.contains(&positions)
            && u64::from(slots) == slots_for(positions)
            && data_start == data_start_for(slots_for(positions), u64::from(self.cluster_bytes))
            && clusters > 0
            && u64::from(clusters)
                == self.size.saturating_sub(data_start) / u64::from(self.cluster_bytes)
    }

    /// Whether the other layout is of the same pool, except that one may have grown.
    pub(crate) fn is_same_but_size(&self, other: &Self) -> bool {
        Self { size: other.size, clusters: other.clusters, ..*self } == *other
    }

    /// Returns the number of index pages.
    pub(crate) fn indexes(&self) -> usize {
        (self.positions as usize).div_ceil(POINTERS)
    }

    /// Returns the byte offset of a slot; slots are counted from 1.
    pub(crate) fn slot_offset(&self, slot: u32) -> u64 {
        assert!((1..=self.slots).contains(&slot), "slot {slot} of {}", self.slots);
        (SUPERBLOCKS + u64::from(slot) - 1) * PAGE_BYTES as u64
    }

    /// Returns the byte offset of a cluster.
    pub(crate) fn cluster_offset(&self, cluster: u32) -> u64 {
        assert!(cluster < self.clusters, "cluster {cluster} of {}", self.clusters);
        self.data_start + u64::from(cluster) * u64::from(self.cluster_bytes)
    }

    /// Returns the largest size of a volume in bytes.
    pub fn volume_bytes_max(&self) -> u64 {
        u64::from(CLUSTERS_MAX) * u64::from(self.cluster_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: parts of a pool do not overlap and lie on the device, for all sizes and clusters.
    #[test]
    fn parts_do_not_overlap() {
        for shift in 16..=20 {
            for size in [5 << 20, (7 << 20) + 4096, 1 << 30, (1 << 40) + 512, 5 << 40] {
                let layout = Layout::new(size, 1 << shift).unwrap();
                assert!(layout.slot_offset(layout.slots) + 4096 <= layout.data_start);
                let end = layout.cluster_offset(layout.clusters - 1) + (1 << shift);
                assert!(end <= size && size - end < 1 << shift);
                assert_eq!(layout.data_start % (1 << shift), 0);
                assert!(layout.indexes() <= POINTERS);
            }
        }
        for (size, cluster) in
            [(1 << 20, 1 << 16), (1 << 30, 3 << 16), (1 << 30, 1 << 21), (0, 1 << 16)]
        {
            assert!(Layout::new(size, cluster).is_err());
        }
        assert!(Layout::new(u64::MAX, 1 << 16).is_err());
    }

    /// Goal: a pool that grew keeps the space for its metadata, and impossible layouts are
    /// detected.
    #[test]
    fn layouts_grow() {
        let small = Layout::new(64 << 20, 1 << 16).unwrap();
        let grown = small.grown(100 << 30).unwrap();
        assert!(grown.clusters > 1_000_000 && grown.data_start == small.data_start);
        assert!(grown.has_grown() && !small.has_grown());
        assert!(grown.is_possible() && small.is_possible() && grown.is_same_but_size(&small));
        let again = grown.grown(200 << 30).unwrap();
        assert!(again.is_possible() && again.is_same_but_size(&small));
        assert_eq!(small.grown((64 << 20) + 4096).unwrap(), small, "less than a cluster");
        assert!(grown.grown(64 << 20).is_err() && small.grown(1 << 60).is_err());
        for wrong in [
            Layout { clusters: grown.clusters + 1, ..grown },
            Layout { data_start: grown.data_start + (1 << 16), ..grown },
            Layout { slots: grown.slots + 2, ..grown },
            Layout { positions: small.positions - 8, ..small },
            Layout { size: 1 << 20, ..small },
        ] {
            assert!(!wrong.is_possible(), "{wrong:?}");
        }
    }
}
