//! Mappings of owners between the disk and the mount.

use crate::options::{IdRange, Options};

/// What an id without a mapping is shown as (`/proc/sys/fs/overflowuid`'s default).
const OVERFLOW_ID: u32 = 65_534;

/// Returns the id to show for one on disk.
fn shown(map: &[IdRange], squash: Option<u32>, id: u32) -> u32 {
    if let Some(id) = squash {
        return id;
    }
    if map.is_empty() {
        return id;
    }
    let found = map.iter().find(|range| id >= range.disk && id - range.disk < range.count);
    found.map_or(OVERFLOW_ID, |range| range.shown + (id - range.disk))
}

/// Returns the id to put on disk for one that was given.
fn on_disk(map: &[IdRange], id: u32) -> u32 {
    if map.is_empty() {
        return id;
    }
    let found = map.iter().find(|range| id >= range.shown && id - range.shown < range.count);
    found.map_or(OVERFLOW_ID, |range| range.disk + (id - range.shown))
}

impl Options {
    pub(crate) fn shown_uid(&self, uid: u32) -> u32 {
        shown(&self.uid_map, self.squash_uid, uid)
    }

    pub(crate) fn shown_gid(&self, gid: u32) -> u32 {
        shown(&self.gid_map, self.squash_gid, gid)
    }

    pub(crate) fn disk_uid(&self, uid: u32) -> u32 {
        on_disk(&self.uid_map, uid)
    }

    pub(crate) fn disk_gid(&self, gid: u32) -> u32 {
        on_disk(&self.gid_map, gid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an owner that a mapping shows is written back as the original; other owners map to the
    /// overflow id.
    #[test]
    fn mappings_invert() {
        let range = |disk, shown, count| IdRange { disk, shown, count };
        let map = [range(0, 1000, 1), range(1, 100_000, 65_536)];
        for id in [0, 1, 500, 65_536] {
            assert_eq!(on_disk(&map, shown(&map, None, id)), id);
        }
        assert_eq!(shown(&map, None, 65_537), OVERFLOW_ID);
        assert_eq!(shown(&[], None, 7), 7);
        assert_eq!(shown(&map, Some(3), 7), 3);
    }
}
