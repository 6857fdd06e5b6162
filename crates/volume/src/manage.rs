//! Creating, removing, resizing and copying volumes.

use crate::error::Error;
use crate::layout::{CLUSTERS_MAX, VOLUMES_MAX};
use crate::map::{Entry, Map};
use crate::page::{Record, is_name};
use crate::pool::Pool;
use crate::shared::Shared;
use crate::state::{Key, State, Volume, no_pages};
use block::Access;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Weak};
use uuid::Uuid;

/// The exclusive right to change the list of volumes.
struct Managing(Arc<Shared>);

impl Managing {
    async fn of(pool: &Pool) -> Self {
        let free = |state: &mut State| (!state.is_managing).then(|| state.is_managing = true);
        pool.shared.until(free).await;
        Self(Arc::clone(&pool.shared))
    }
}

impl Drop for Managing {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_managing = false;
        state.wake();
    }
}

/// A volume whose writes wait if they change its table. If this is dropped before it is thawed, the
/// pool fails, because a copy of a cluster could miss a write that is still in flight.
struct Frozen<'a> {
    shared: &'a Shared,
    id: u64,
    is_over: bool,
}

impl Frozen<'_> {
    /// Lets the waiting writes continue.
    fn thaw(mut self) {
        self.is_over = true;
        self.shared.lock().volume(self.id).is_frozen = false;
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if !self.is_over {
            let source = Arc::new(io::Error::other("writes of a volume did not end"));
            let error = block::Error::Io { access: Access::Write, offset: 0, len: 0, source };
            self.shared.fail(&mut state, error);
        }
        state.wake();
    }
}

/// The kind of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copy {
    Snapshot,
    Clone,
}

impl Pool {
    /// Makes a volume of `size` bytes, a multiple of the cluster size. It reads as zeros and uses
    /// no space.
    ///
    /// # Errors
    /// [`Error::Name`], [`Error::Exists`], [`Error::Size`], [`Error::Full`], [`Error::Device`].
    pub async fn create(&self, name: &str, size: u64) -> Result<(), Error> {
        let _managing = Managing::of(self).await;
        let clusters = self.clusters_of(size)?;
        {
            let mut state = self.shared.lock();
            let id = state.next_id;
            let record = Record {
                name: name.into(),
                uuid: random_uuid(),
                clusters,
                is_snapshot: false,
                family: id,
                origin: 0,
                mapped: 0,
            };
            state.add(record)?;
            self.shared.changed(&mut state);
        }
        self.flush().await
    }

    /// Removes a volume, snapshot or clone, and frees the clusters that no other volume has.
    ///
    /// # Errors
    /// [`Error::NoSuchVolume`], [`Error::InUse`], [`Error::Device`].
    pub async fn remove(&self, name: &str) -> Result<(), Error> {
        let _managing = Managing::of(self).await;
        {
            let mut state = self.shared.lock();
            let id = state.find_closed(name)?;
            self.take_away(&mut state, id);
        }
        self.flush().await
    }

    /// Changes a volume's size to `size` bytes, a multiple of the cluster size. Data behind the new
    /// end is lost, and reads as zeros if the volume grows again. A volume in use can only grow;
    /// its users see the former size until they open it again
    /// ([`Backing::resized`](block::Backing::resized)).
    ///
    /// # Errors
    /// [`Error::NoSuchVolume`], [`Error::InUse`], [`Error::IsSnapshot`], [`Error::Size`],
    /// [`Error::Device`].
    pub async fn resize(&self, name: &str, size: u64) -> Result<(), Error> {
        let _managing = Managing::of(self).await;
        let clusters = self.clusters_of(size)?;
        {
            let mut state = self.shared.lock();
            let id = state.find(name)?;
            let Record { is_snapshot, clusters: present, .. } = state.volume(id).record;
            if is_snapshot {
                return Err(Error::IsSnapshot(name.into()));
            }
            if clusters < present {
                state.find_closed(name)?;
            }
            let map = Arc::clone(&state.volume(id).map);
            let cut: Vec<(u32, Entry)> = map.all().filter(|(at, _)| *at >= clusters).collect();
            let change = self.shared.changed(&mut state);
            for (at, entry) in cut {
                state.set(id, at, Entry::UNMAPPED)?;
                if let Some(place) = entry.cluster() {
                    self.shared.retire(&mut state, place, change);
                }
            }
            let resized = if clusters >= present {
                map.grown(clusters)
            } else {
                let shorter = Map::new(clusters);
                map.all().for_each(|(at, entry)| shorter.set(at, entry));
                shorter
            };
            let volume = state.volume(id);
            volume.map = Arc::new(resized);
            volume.record.clusters = clusters;
            state.dirty.insert(Key::Record(id));
        }
        self.flush().await
    }

    /// Makes a read-only copy of the present volume, which may be in use. The snapshot contains
    /// every write that was acknowledged before the call, and no write that begins after the call
    /// returns.
    ///
    /// # Errors
    /// [`Error::NoSuchVolume`], [`Error::Name`], [`Error::Exists`], [`Error::Full`],
    /// [`Error::Device`]; [`Error::Busy`] if writes in flight do not end within half a minute; the
    /// pool then fails.
    pub async fn snapshot(&self, source: &str, name: &str) -> Result<(), Error> {
        self.copy(source, name, Copy::Snapshot).await
    }

    /// Makes a writable volume from a snapshot.
    ///
    /// # Errors
    /// As [`Self::snapshot`], and [`Error::NotASnapshot`].
    pub async fn clone_snapshot(&self, source: &str, name: &str) -> Result<(), Error> {
        self.copy(source, name, Copy::Clone).await
    }

    async fn copy(&self, source: &str, name: &str, kind: Copy) -> Result<(), Error> {
        let (pool, source, name) = (self.clone(), source.to_owned(), name.to_owned());
        // A separate task, which continues if the caller is dropped.
        let task = reactor::spawn(async move { pool.copy_now(&source, &name, kind).await });
        task.await.unwrap_or(Err(Error::Busy))
    }

    async fn copy_now(&self, source: &str, name: &str, kind: Copy) -> Result<(), Error> {
        let _managing = Managing::of(self).await;
        let shared = &*self.shared;
        let id = {
            let mut state = shared.lock();
            let id = state.find(source)?;
            state.share(id, name, kind)?;
            shared.changed(&mut state);
            state.volume(id).is_frozen = true;
            id
        };
        let frozen = Frozen { shared, id, is_over: false };
        // Writes that saw the clusters as unshared must end before a later write copies one of
        // them.
        if !reactor::mutant!("volume-snapshot-hurries") {
            shared.quiet().await?;
        }
        frozen.thaw();
        self.flush().await
    }

    /// Removes a volume from the tables.
    fn take_away(&self, state: &mut State, id: u64) {
        let change = self.shared.changed(state);
        let Some(volume) = state.volumes.remove(&id) else { return };
        state.pages.release_position(volume.position);
        for (position, _) in volume.parts.values() {
            state.pages.release_position(*position);
        }
        for place in volume.map.all().filter_map(|(_, entry)| entry.cluster()) {
            self.shared.retire(state, place, change);
        }
    }

    fn clusters_of(&self, size: u64) -> Result<u32, Error> {
        let layout = &self.shared.layout;
        let cluster = layout.cluster_bytes;
        let wrong = Error::Size { size, cluster, max: layout.volume_bytes_max() };
        let clusters = size / u64::from(cluster);
        let is_size = size.is_multiple_of(u64::from(cluster))
            && (1..=u64::from(CLUSTERS_MAX)).contains(&clusters);
        if is_size { Ok(clusters as u32) } else { Err(wrong) }
    }
}

impl State {
    /// Returns the volume with this name, if it is not in use.
    fn find_closed(&mut self, name: &str) -> Result<u64, Error> {
        let id = self.find(name)?;
        if self.volume(id).usage.strong_count() > 0 {
            return Err(Error::InUse(name.into()));
        }
        Ok(id)
    }

    /// Adds a volume without mapped clusters.
    fn add(&mut self, record: Record) -> Result<u64, Error> {
        self.check_new(&record.name)?;
        let position = self.pages.take_position().ok_or_else(no_pages)?;
        let id = self.next_id;
        self.next_id += 1;
        let volume = Volume {
            map: Arc::new(Map::new(record.clusters)),
            record,
            position,
            parts: BTreeMap::new(),
            is_frozen: false,
            opened: Weak::new(),
            usage: Weak::new(),
        };
        self.volumes.insert(id, volume);
        self.dirty.insert(Key::Record(id));
        Ok(id)
    }

    fn check_new(&self, name: &str) -> Result<(), Error> {
        if !is_name(name) {
            return Err(Error::Name(name.into()));
        }
        if self.find(name).is_ok() {
            return Err(Error::Exists(name.into()));
        }
        if self.volumes.len() == VOLUMES_MAX {
            let what = format!("{VOLUMES_MAX} volumes, which is the most; remove one");
            return Err(Error::Full { what });
        }
        Ok(())
    }

    /// Adds a volume that has all clusters of another one, and marks them as shared.
    fn share(&mut self, source: u64, name: &str, kind: Copy) -> Result<(), Error> {
        let volume = self.volume(source);
        let Record { clusters, family, is_snapshot, .. } = volume.record;
        if kind == Copy::Clone && !is_snapshot {
            return Err(Error::NotASnapshot(volume.record.name.clone()));
        }
        let (map, parts) = (Arc::clone(&volume.map), volume.parts.len());
        self.check_new(name)?;
        // Everything that can fail comes before the first change.
        if self.pages.free_positions() < parts + 1 {
            return Err(no_pages());
        }
        let places = || map.all().filter_map(|(at, entry)| Some((at, entry.cluster()?)));
        if !places().all(|(_, place)| self.clusters.can_share(place)) {
            let what = "too many references to one cluster; try again when commands in flight have \
                        ended";
            return Err(Error::Full { what: what.into() });
        }
        let record = Record {
            name: name.into(),
            uuid: random_uuid(),
            clusters,
            is_snapshot: kind == Copy::Snapshot,
            family,
            origin: source,
            mapped: 0,
        };
        let copy = self.add(record)?;
        for (at, place) in places() {
            self.clusters.share(place);
            map.set(at, Entry::shared(place));
            self.set(copy, at, Entry::shared(place))?;
        }
        Ok(())
    }
}

fn random_uuid() -> Uuid {
    let mut bytes = [0; 16];
    reactor::random::fill(&mut bytes);
    uuid::Builder::from_random_bytes(bytes).into_uuid()
}
