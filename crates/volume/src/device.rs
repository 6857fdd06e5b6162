//! A volume as a block device.

use crate::commit;
use crate::lane::Entrance;
use crate::map::{Map, Range};
use crate::shared::Shared;
use crate::slow::{self, Pieces, Work};
use block::{
    Access, Backing, Device, DiscardEffect, Error, Geometry, Incarnation, IoFuture, Watch,
};
use reactor::{Buffer, Chunk, Segments};
use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use uuid::Uuid;

/// A use of a volume. While one exists, the volume is neither removed nor shrunk.
#[derive(Debug, Default)]
pub(crate) struct Usage;

/// A volume in use, with its size when it was opened.
#[derive(Debug)]
pub(crate) struct Opened {
    /// Shared by all users of the volume, whatever its size was when they opened it.
    pub(crate) usage: Arc<Usage>,
    pub(crate) id: u64,
    pub(crate) uuid: Uuid,
    pub(crate) clusters: u32,
    pub(crate) is_snapshot: bool,
    pub(crate) map: Arc<Map>,
}

/// An open volume, which threads can share.
#[derive(Clone)]
pub struct VolumeBacking {
    shared: Arc<Shared>,
    volume: Arc<Opened>,
}

impl VolumeBacking {
    /// Opens the volume with this number, if it exists.
    pub(crate) fn open(shared: &Arc<Shared>, id: u64) -> Option<Self> {
        let mut state = shared.lock();
        let volume = state.volumes.get_mut(&id)?;
        let known = volume.opened.upgrade();
        let known = known.filter(|it| it.clusters == volume.record.clusters);
        let opened = known.unwrap_or_else(|| {
            Arc::new(Opened {
                usage: volume.usage.upgrade().unwrap_or_default(),
                id,
                uuid: volume.record.uuid,
                clusters: volume.record.clusters,
                is_snapshot: volume.record.is_snapshot,
                map: Arc::clone(&volume.map),
            })
        });
        volume.opened = Arc::downgrade(&opened);
        volume.usage = Arc::downgrade(&opened.usage);
        drop(state);
        Some(Self { shared: Arc::clone(shared), volume: opened })
    }

    /// Returns its UUID.
    pub fn uuid(&self) -> Uuid {
        self.volume.uuid
    }
}

impl fmt::Debug for VolumeBacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VolumeBacking").field("volume", &self.volume).finish_non_exhaustive()
    }
}

fn geometry(shared: &Shared, volume: &Opened) -> Geometry {
    let block_size = shared.inner.geometry().block_size;
    let size = u64::from(volume.clusters) * u64::from(shared.layout.cluster_bytes);
    Geometry {
        block_size,
        blocks: size / u64::from(block_size),
        discard: DiscardEffect::Zeroes,
        // Changes of the table are durable only after a flush.
        has_volatile_cache: true,
    }
}

impl Backing for VolumeBacking {
    fn geometry(&self) -> Geometry {
        geometry(&self.shared, &self.volume)
    }

    /// Returns the volume with its present size; it may have grown since this one was opened.
    fn resized(&self, size: u64) -> Result<Arc<dyn Backing>, Error> {
        let now = Self::open(&self.shared, self.volume.id);
        let now = now.filter(|it| it.geometry().size() == size).ok_or(Error::Geometry {
            what: "device size",
            value: size,
            expected: "is not that of the volume: resize the volume first",
        })?;
        Ok(Arc::new(now))
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation(self.shared.incarnation.0 ^ self.volume.uuid.as_u128())
    }

    /// Whether it is a snapshot.
    fn is_read_only(&self) -> bool {
        self.volume.is_snapshot
    }

    fn attach(&self) -> Rc<dyn Device> {
        let parts = Parts {
            inner: self.shared.inner.attach(),
            entrance: self.shared.entrance(),
            shared: Arc::clone(&self.shared),
            volume: Arc::clone(&self.volume),
            geometry: self.geometry(),
            cluster_shift: self.shared.layout.cluster_bytes.trailing_zeros(),
        };
        Rc::new(VolumeDevice(Rc::new(parts)))
    }
}

/// A thread's view of a volume.
pub(crate) struct Parts {
    pub(crate) inner: Rc<dyn Device>,
    pub(crate) entrance: Rc<Entrance>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) volume: Arc<Opened>,
    geometry: Geometry,
    pub(crate) cluster_shift: u32,
}

impl Parts {
    /// Returns the place of a range of at least one byte in the pool.
    #[inline]
    pub(crate) fn range(&self, offset: u64, len: u64, is_write: bool) -> Mapping {
        let shift = self.cluster_shift;
        let (first, last) = ((offset >> shift) as u32, ((offset + len - 1) >> shift) as u32);
        match self.volume.map.range(first, last, is_write) {
            Range::Whole(cluster) => {
                let within = offset & ((1 << shift) - 1);
                Mapping::At(self.shared.layout.cluster_offset(cluster) + within)
            }
            Range::Hole => Mapping::Hole,
            Range::Mixed => Mapping::Mixed,
        }
    }
}

/// The place of a range of a volume in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mapping {
    /// One piece, at this byte of the pool's device.
    At(u64),
    /// Not mapped; the range reads as zeros.
    Hole,
    /// Several pieces.
    Mixed,
}

/// A thread's device.
struct VolumeDevice(Rc<Parts>);

impl VolumeDevice {
    fn check(&self, access: Access, offset: u64, len: u64) -> Result<(), Error> {
        self.0.geometry.check(access, offset, len)?;
        let is_change = !matches!(access, Access::Read | Access::Flush);
        if is_change && self.0.volume.is_snapshot {
            return Err(Error::ReadOnly { access, offset, len });
        }
        Ok(())
    }

    /// Runs a command of the slow path as a task, which continues if the caller is dropped.
    fn slowly<T: 'static, F>(
        &self,
        (access, offset, len): (Access, u64, u64),
        run: impl FnOnce(Work) -> F,
    ) -> IoFuture<T>
    where
        F: Future<Output = Result<T, Error>> + 'static,
    {
        let task = reactor::spawn(run(Work { parts: Rc::clone(&self.0), access, offset, len }));
        IoFuture::boxed(async move {
            task.await.unwrap_or_else(|_| {
                let source = Arc::new(io::Error::from(io::ErrorKind::Interrupted));
                Err(Error::Io { access, offset, len, source })
            })
        })
    }

    /// Writes the content of `chunks`: with `straight` if the range is one piece and all of it is
    /// the volume's own.
    fn write_with<C>(
        &self,
        (offset, len): (u64, u64),
        chunks: C,
        straight: impl FnOnce(&dyn Device, u64, C) -> IoFuture<()>,
        pieces: impl FnOnce(C) -> Pieces,
    ) -> IoFuture<()> {
        let what = (Access::Write, offset, len);
        let checked = self.check(Access::Write, offset, len);
        if checked.is_err() || len == 0 {
            return IoFuture::ready(checked);
        }
        let Parts { inner, entrance, .. } = &*self.0;
        let token = entrance.enter();
        if let Mapping::At(place) = self.0.range(offset, len, true) {
            return straight(&**inner, place, chunks).watched(entrance, token);
        }
        entrance.ended(token);
        let pieces = pieces(chunks);
        self.slowly(what, |work| slow::write(work, pieces))
    }
}

impl Device for VolumeDevice {
    fn geometry(&self) -> Geometry {
        self.0.geometry
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation(self.0.shared.incarnation.0 ^ self.0.volume.uuid.as_u128())
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Chunk> {
        let checked = self.check(Access::Read, offset, len as u64);
        if checked.is_err() || len == 0 {
            return IoFuture::ready(checked.map(|()| Buffer::with_capacity(0).into()));
        }
        let Parts { inner, entrance, .. } = &*self.0;
        let token = entrance.enter();
        match self.0.range(offset, len as u64, false) {
            // A view of the device's memory could show another volume's bytes later, so the data is
            // copied.
            Mapping::At(place) => inner.read(place, len).lasting().watched(entrance, token),
            Mapping::Hole => {
                entrance.ended(token);
                IoFuture::ready(Ok(Buffer::zeroed(len).into()))
            }
            Mapping::Mixed => {
                entrance.ended(token);
                self.slowly((Access::Read, offset, len as u64), slow::read)
            }
        }
    }

    fn read_into(&self, offset: u64, mut segments: Segments) -> IoFuture<Segments> {
        let len: usize = segments.iter().map(reactor::Segment::len).sum();
        let checked = self.check(Access::Read, offset, len as u64);
        if checked.is_err() || len == 0 {
            return IoFuture::ready(checked.map(|()| segments));
        }
        let Parts { inner, entrance, .. } = &*self.0;
        let token = entrance.enter();
        if let Mapping::At(place) = self.0.range(offset, len as u64, false) {
            return inner.read_into(place, segments).watched(entrance, token);
        }
        entrance.ended(token);
        let read = self.read(offset, len);
        IoFuture::boxed(async move {
            let chunk = read.await?;
            reactor::scatter(&chunk, &mut segments);
            Ok(segments)
        })
    }

    fn write(&self, offset: u64, chunk: Chunk) -> IoFuture<()> {
        let range = (offset, chunk.len() as u64);
        self.write_with(range, chunk, |it, at, chunk| it.write(at, chunk), Pieces::of)
    }

    fn write_chunks(&self, offset: u64, chunks: Vec<Chunk>) -> IoFuture<()> {
        let range = (offset, chunks.iter().map(Chunk::len).sum::<usize>() as u64);
        self.write_with(range, chunks, |it, at, chunks| it.write_chunks(at, chunks), Pieces::new)
    }

    fn flush(&self) -> IoFuture<()> {
        let Parts { inner, shared, .. } = &*self.0;
        if shared.is_clean() {
            return inner.flush();
        }
        let (shared, inner) = (Arc::clone(shared), Rc::clone(inner));
        IoFuture::boxed(async move { commit::flush(&shared, &inner).await })
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        let checked = self.check(Access::Discard, offset, len);
        if checked.is_err() || len == 0 {
            return IoFuture::ready(checked);
        }
        self.slowly((Access::Discard, offset, len), slow::clear)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> IoFuture<()> {
        let checked = self.check(Access::WriteZeroes, offset, len);
        if checked.is_err() || len == 0 {
            return IoFuture::ready(checked);
        }
        self.slowly((Access::WriteZeroes, offset, len), slow::clear)
    }
}

#[cfg(test)]
mod tests {
    use crate::Pool;
    use block::{Backing, MemoryBacking};
    use reactor::{Buffer, Config, Runtime};
    use std::sync::Arc;

    const CLUSTER: u64 = 64 << 10;

    /// Goal: reads, and writes to clusters of the volume's own, take no lock: they continue while
    /// it is held. (Taking it again on one thread would panic or never end.)
    #[test]
    fn the_fast_path_takes_no_lock() {
        Runtime::new(&Config::default()).unwrap().block_on(async {
            let memory = MemoryBacking::new(8 << 20, 4096).unwrap();
            Pool::format(&memory, CLUSTER as u32).await.unwrap();
            let pool = Pool::open(Arc::new(memory)).await.unwrap();
            pool.create("a", 4 * CLUSTER).await.unwrap();
            let device = pool.volume("a").unwrap().attach();
            let bytes = Buffer::copy_from(&vec![7; 2 * CLUSTER as usize]);
            device.write(0, bytes.into()).await.unwrap();
            device.flush().await.unwrap();
            // A command starts when the method is called; the memory device executes it
            // immediately.
            let locked = pool.shared.lock();
            let bytes = Buffer::copy_from(&[9; 8192]);
            let write = device.write(CLUSTER - 4096, bytes.into());
            let read = device.read(CLUSTER - 8192, 16384);
            let hole = device.read(3 * CLUSTER, 4096);
            let flush = device.flush();
            drop(locked);
            write.await.unwrap();
            flush.await.unwrap();
            let want = [vec![7; 4096], vec![9; 8192], vec![7; 4096]].concat();
            assert!(*read.await.unwrap().to_bytes() == want);
            assert!(*hole.await.unwrap().to_bytes() == [0; 4096]);
        });
    }
}
