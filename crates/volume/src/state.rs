//! The state under a pool's lock: volumes, clusters, pages, and waiting tasks.

use crate::clusters::Clusters;
use crate::device::{Opened, Usage};
use crate::error::Error;
use crate::lane::Lane;
use crate::map::{Entry, Map};
use crate::page::Record;
use crate::pages::Pages;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::task::Waker;

/// A page that differs from the durable one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    /// A volume's page.
    Record(u64),
    /// A part of a volume's table.
    Map(u64, usize),
}

/// A volume.
#[derive(Debug)]
pub(crate) struct Volume {
    pub(crate) record: Record,
    pub(crate) map: Arc<Map>,
    pub(crate) position: u32,
    /// For each part of the table with mapped clusters: its position and the number of mapped
    /// clusters.
    pub(crate) parts: BTreeMap<usize, (u32, u32)>,
    /// Whether a snapshot is being made, which waits for earlier writes. Later writes wait for it.
    pub(crate) is_frozen: bool,
    /// The volume as last opened.
    pub(crate) opened: Weak<Opened>,
    /// Its use, whatever its size was when it was opened.
    pub(crate) usage: Weak<Usage>,
}

/// The state under the lock.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) volumes: BTreeMap<u64, Volume>,
    pub(crate) next_id: u64,
    pub(crate) clusters: Clusters,
    pub(crate) pages: Pages,
    pub(crate) generation: u64,
    pub(crate) dirty: BTreeSet<Key>,
    pub(crate) lanes: Vec<Arc<Lane>>,
    /// Clusters of volumes that a command of the slow path is changing.
    pub(crate) claims: BTreeSet<(u64, u32)>,
    pub(crate) is_committing: bool,
    pub(crate) is_managing: bool,
    /// The failure after which nothing can become durable.
    pub(crate) failure: Option<block::Error>,
    pub(crate) waiters: Vec<Waker>,
}

impl State {
    /// Returns a state without commands.
    pub(crate) fn new(
        volumes: BTreeMap<u64, Volume>,
        next_id: u64,
        clusters: Clusters,
        pages: Pages,
        generation: u64,
    ) -> Self {
        Self {
            volumes,
            next_id,
            clusters,
            pages,
            generation,
            dirty: BTreeSet::new(),
            lanes: Vec::new(),
            claims: BTreeSet::new(),
            is_committing: false,
            is_managing: false,
            failure: None,
            waiters: Vec::new(),
        }
    }

    /// Returns the volume with this name.
    ///
    /// # Errors
    /// [`Error::NoSuchVolume`].
    pub(crate) fn find(&self, name: &str) -> Result<u64, Error> {
        let found = self.volumes.iter().find(|(_, volume)| volume.record.name == name);
        found.map(|(id, _)| *id).ok_or_else(|| Error::NoSuchVolume(name.into()))
    }

    /// Returns a volume.
    ///
    /// # Panics
    /// If it does not exist; open volumes are not removed.
    pub(crate) fn volume(&mut self, id: u64) -> &mut Volume {
        self.volumes.get_mut(&id).expect("a volume that is in use stays")
    }

    /// Changes an entry of a volume and the counts that follow from it. The caller changes the
    /// references.
    ///
    /// # Errors
    /// [`Error::Full`] if this needs a map page and none is free; nothing has changed then.
    pub(crate) fn set(&mut self, id: u64, cluster: u32, entry: Entry) -> Result<(), Error> {
        let part = Map::part_of(cluster);
        let volume = self.volumes.get_mut(&id).expect("a volume that is in use stays");
        let was = volume.map.entry(cluster).cluster().is_some();
        let is = entry.cluster().is_some();
        if is && !volume.parts.contains_key(&part) {
            let position = self.pages.take_position().ok_or_else(no_pages)?;
            volume.parts.insert(part, (position, 0));
        }
        if let Some((position, count)) = volume.parts.get_mut(&part) {
            *count = *count + u32::from(is) - u32::from(was);
            volume.record.mapped = volume.record.mapped + u32::from(is) - u32::from(was);
            if *count == 0 {
                self.pages.release_position(*position);
                volume.parts.remove(&part);
            }
        }
        volume.map.set(cluster, entry);
        self.dirty.insert(Key::Record(id));
        self.dirty.insert(Key::Map(id, part));
        Ok(())
    }

    /// Wakes all waiting tasks.
    pub(crate) fn wake(&mut self) {
        self.waiters.drain(..).for_each(Waker::wake);
    }
}

/// Returns the error of a pool without free metadata pages.
pub(crate) fn no_pages() -> Error {
    Error::Full { what: "no free metadata page; remove a snapshot or volume".into() }
}
