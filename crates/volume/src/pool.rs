//! Formatting, opening, checking and listing of a pool.

use crate::commit;
use crate::device::VolumeBacking;
use crate::error::Error;
use crate::layout::{Layout, PAGE_BYTES, SUPERBLOCKS};
use crate::page::{self, Kind, Pointer};
use crate::shared::Shared;
use crate::superblock::{Flaw, Superblock};
use crate::walk::{Loaded, Report, walk};
use block::{Backing, Device};
use reactor::Buffer;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use uuid::Uuid;

/// An open pool; clones refer to the same one. The device must have no other user; a
/// [`FileBacking`](block::FileBacking) ensures this with its lock.
///
/// All asynchronous functions need a reactor. When they return, their changes are durable.
#[derive(Clone, Debug)]
pub struct Pool {
    pub(crate) shared: Arc<Shared>,
    warnings: Vec<String>,
}

/// A pool without a claim on it: it does not keep the pool open.
#[derive(Clone, Debug)]
pub struct WeakPool(Weak<Shared>);

impl WeakPool {
    /// Returns the pool, if it is still open.
    pub fn upgrade(&self) -> Option<Pool> {
        self.0.upgrade().map(|shared| Pool { shared, warnings: Vec::new() })
    }
}

/// A volume in the result of [`Pool::list`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: Uuid,
    /// Size in bytes.
    pub size: u64,
    /// Whether it is a snapshot, which is read-only.
    pub is_snapshot: bool,
    /// The volume that it was copied from, if that still exists.
    pub origin: Option<String>,
    /// Bytes of its mapped clusters.
    pub mapped: u64,
    /// Bytes of the clusters that no other volume has: the space that its removal frees.
    pub own: u64,
}

/// The space of a pool, in bytes unless stated otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The pool's UUID.
    pub uuid: Uuid,
    /// Its layout.
    pub layout: Layout,
    /// Size of all clusters.
    pub size: u64,
    /// Size of the free clusters.
    pub free: u64,
    /// Number of map and volume pages in use.
    pub pages: u32,
    /// Largest number of map and volume pages.
    pub pages_max: u32,
}

/// Whether a device has a pool, even a damaged one.
///
/// # Errors
/// If the device cannot be read.
pub async fn has_pool(backing: &dyn Backing) -> Result<bool, Error> {
    let device = backing.attach();
    if device.geometry().size() < SUPERBLOCKS * PAGE_BYTES as u64
        || device.geometry().block_size as usize > PAGE_BYTES
    {
        return Ok(false);
    }
    for page in 0..SUPERBLOCKS {
        let chunk = device.read(page * PAGE_BYTES as u64, PAGE_BYTES).await?;
        if Superblock::decode(&chunk.to_bytes()) != Err(Flaw::Magic) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Bytes that [`has_content`] reads, at the beginning of a device, and at most how many at a time.
const HEAD_BYTES: u64 = 1 << 20;
const HEAD_STEP_BYTES: usize = 64 << 10;

/// Returns whether a device holds something: its first MiB has a byte that is not zero. File systems,
/// partition tables and images of disks begin there.
///
/// # Errors
/// [`Error::Device`].
pub async fn has_content(backing: &dyn Backing) -> Result<bool, Error> {
    let device = backing.attach();
    let geometry = device.geometry();
    let end = geometry.size().min(HEAD_BYTES);
    let step = (geometry.block_size as usize).max(HEAD_STEP_BYTES);
    let mut offset = 0;
    while offset < end {
        let len = step.min((end - offset) as usize);
        if device.read(offset, len).await?.to_bytes().iter().any(|&byte| byte != 0) {
            return Ok(true);
        }
        offset += len as u64;
    }
    Ok(false)
}

impl Pool {
    /// Makes a pool without volumes; all data on the device is lost. If this does not complete, the
    /// device has no pool.
    ///
    /// # Errors
    /// [`Error::ClusterSize`], [`Error::PoolSize`], [`Error::BlockSize`], [`Error::Device`].
    pub async fn format(backing: &dyn Backing, cluster_bytes: u32) -> Result<Layout, Error> {
        let device = backing.attach();
        let geometry = device.geometry();
        if geometry.block_size as usize > PAGE_BYTES {
            return Err(Error::BlockSize(geometry.block_size));
        }
        let layout = Layout::new(geometry.size(), cluster_bytes)?;
        // Allocates the space for metadata now, because a sparse file could lack it later.
        device.write_zeroes(0, layout.data_start).await?;
        device.flush().await?;
        let pointers = vec![Pointer::NONE; layout.indexes()];
        let root = page::encode_pointers(Kind::Root, 0, 0, &pointers);
        let pointer = Pointer { slot: 1, crc: root.crc };
        device.write(layout.slot_offset(1), Buffer::copy_from(&root.bytes).into()).await?;
        device.flush().await?;
        let mut bytes = [0; 16];
        reactor::random::fill(&mut bytes);
        let superblock = Superblock {
            generation: 0,
            uuid: uuid::Builder::from_random_bytes(bytes).into_uuid(),
            layout,
            root: pointer,
            next_id: 1,
            pages: 0,
            volumes: 0,
            mapped: 0,
        };
        commit::write_superblock(&*device, &superblock).await?;
        commit::write_superblock(&*device, &Superblock { generation: 1, ..superblock }).await?;
        device.flush().await?;
        Ok(layout)
    }

    /// Opens a pool.
    ///
    /// # Errors
    /// [`Error::NotAPool`], [`Error::Version`], [`Error::Damaged`], [`Error::BlockSize`],
    /// [`Error::Device`].
    pub async fn open(backing: Arc<dyn Backing>) -> Result<Self, Error> {
        let device = backing.attach();
        // A process that died within a commit may have left the newest superblock in a cache alone. Without
        // this flush a loss of power could bring the one before back, after its space was used again.
        device.flush().await?;
        let (report, loaded) = walk(&*device).await?;
        drop(device);
        let damaged = |first: &str| Error::Damaged { first: first.into(), count: report.count };
        if let Some(finding) = report.fatal() {
            return Err(damaged(&finding.text));
        }
        let Some(Loaded { superblock, state }) = loaded else {
            return Err(damaged("its metadata cannot be read"));
        };
        let Superblock { layout, uuid, .. } = superblock;
        let shared = Arc::new(Shared::new(backing, layout, uuid, state));
        let warnings = report.findings.into_iter().map(|finding| finding.text).collect();
        Ok(Self { shared, warnings })
    }

    /// Reads all metadata and compares them with each other; changes nothing.
    ///
    /// # Errors
    /// [`Error::NotAPool`], [`Error::Version`], [`Error::BlockSize`], [`Error::Device`]; damage is
    /// in the report.
    pub async fn check(backing: &dyn Backing) -> Result<Report, Error> {
        Ok(walk(&*backing.attach()).await?.0)
    }

    /// Returns the damage found at the opening that a second copy repairs.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns the space in use.
    pub fn usage(&self) -> Usage {
        let state = self.shared.lock();
        let layout = self.shared.layout;
        let bytes = |clusters: u32| u64::from(clusters) * u64::from(layout.cluster_bytes);
        Usage {
            uuid: self.shared.uuid,
            layout,
            size: bytes(layout.clusters),
            free: bytes(state.clusters.free()),
            pages: state.pages.live(),
            pages_max: layout.positions,
        }
    }

    /// Returns all volumes, ordered by their names.
    pub fn list(&self) -> Vec<VolumeInfo> {
        let state = self.shared.lock();
        let cluster = u64::from(self.shared.layout.cluster_bytes);
        let info = |volume: &crate::state::Volume| {
            let record = &volume.record;
            let places = volume.map.all().filter_map(|(_, entry)| entry.cluster());
            let own = places.filter(|place| state.clusters.references(*place) == 1).count() as u64;
            VolumeInfo {
                name: record.name.clone(),
                uuid: record.uuid,
                size: u64::from(record.clusters) * cluster,
                is_snapshot: record.is_snapshot,
                origin: state.volumes.get(&record.origin).map(|it| it.record.name.clone()),
                mapped: u64::from(record.mapped) * cluster,
                own: own * cluster,
            }
        };
        let mut volumes: Vec<VolumeInfo> = state.volumes.values().map(info).collect();
        volumes.sort_by(|one, other| one.name.cmp(&other.name));
        volumes
    }

    /// Opens a volume; it may have several users.
    ///
    /// # Errors
    /// [`Error::NoSuchVolume`].
    pub fn volume(&self, name: &str) -> Result<VolumeBacking, Error> {
        let id = self.shared.lock().find(name)?;
        VolumeBacking::open(&self.shared, id).ok_or_else(|| Error::NoSuchVolume(name.into()))
    }

    /// Makes all data of all volumes durable.
    ///
    /// # Errors
    /// If the device fails, or has failed before.
    pub async fn flush(&self) -> Result<(), Error> {
        Ok(commit::flush(&self.shared, &self.device()).await?)
    }

    /// Makes all data durable and drops the pool. It stays open as long as volumes are.
    ///
    /// # Errors
    /// As [`Self::flush`].
    pub async fn close(self) -> Result<(), Error> {
        self.flush().await
    }

    /// Makes the pool use the whole device, which has become larger. The pool must not be open. The
    /// space for metadata keeps its size. Returns the layouts before and after.
    ///
    /// # Errors
    /// As [`Self::open`]; [`Error::PoolSize`] if there are too many clusters for one pool.
    pub async fn grow(backing: &dyn Backing) -> Result<(Layout, Layout), Error> {
        let device = backing.attach();
        let (report, loaded) = walk(&*device).await?;
        let first = report.findings.first();
        let Some(Loaded { superblock, .. }) = loaded.filter(|_| first.is_none()) else {
            let first = first.map_or("its metadata cannot be read", |it| it.text.as_str());
            return Err(Error::Damaged { first: first.into(), count: report.count });
        };
        let before = superblock.layout;
        let layout = before.grown(device.geometry().size())?;
        if layout.clusters == before.clusters {
            return Ok((before, before));
        }
        // After a power cut either generation may be the latest, so both are written.
        for generation in [superblock.generation + 1, superblock.generation + 2] {
            let superblock = Superblock { generation, layout, ..superblock };
            commit::write_superblock(&*device, &superblock).await?;
            device.flush().await?;
        }
        Ok((before, layout))
    }

    /// Returns a reference to the pool that does not keep it open.
    pub fn downgrade(&self) -> WeakPool {
        WeakPool(Arc::downgrade(&self.shared))
    }

    pub(crate) fn device(&self) -> Rc<dyn Device> {
        self.shared.inner.attach()
    }
}
