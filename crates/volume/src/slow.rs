//! Commands that change a volume's table, or access several places of the pool.
//!
//! A task that changes a cluster of a volume holds a *claim* on it; others wait. Writes on the fast
//! path need no claim: they see the cluster as the volume's own, and only a snapshot can change
//! that; it waits for them. No command waits for anything while it is counted in its lane, because
//! reuse of clusters waits for lanes.

use crate::commit;
use crate::device::{Mapping, Parts};
use crate::map::Entry;
use crate::shared::Shared;
use block::{Access, Error, IoFuture, Watch};
use reactor::{Buffer, Chunk};
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

/// Number of clusters that are cleared before other tasks of the thread run.
const CLUSTERS_PER_TURN: u32 = 1024;

/// A command and its thread's view of the volume.
pub(crate) struct Work {
    pub(crate) parts: Rc<Parts>,
    pub(crate) access: Access,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// Bytes to write, which can be taken in parts.
#[derive(Debug)]
pub(crate) struct Pieces(Vec<reactor::Shared>);

impl Pieces {
    pub(crate) fn new(chunks: Vec<Chunk>) -> Self {
        Self(chunks.into_iter().map(Chunk::into_shared).collect())
    }

    pub(crate) fn of(chunk: Chunk) -> Self {
        Self(vec![chunk.into_shared()])
    }

    /// Returns zeros; the buffer has at most the largest cluster's length.
    fn zeroes(len: usize) -> Self {
        static ZEROES: OnceLock<reactor::Shared> = OnceLock::new();
        let all = ZEROES
            .get_or_init(|| Buffer::zeroed(crate::layout::CLUSTER_BYTES_MAX as usize).freeze());
        Self(vec![all.slice(..len)])
    }

    fn slice(&self, range: Range<usize>) -> Vec<Chunk> {
        let (mut start, mut chunks) = (0, Vec::new());
        for piece in &self.0 {
            let end = start + piece.len();
            let (from, to) = (range.start.max(start), range.end.min(end));
            if from < to {
                chunks.push(Chunk::from(piece.slice(from - start..to - start)));
            }
            start = end;
        }
        chunks
    }
}

/// The exclusive right to change a cluster of a volume.
struct Claim {
    shared: Arc<Shared>,
    key: (u64, u32),
}

impl Claim {
    /// Waits for the claim. Fails if the pool has failed.
    async fn of(parts: &Parts, cluster: u32) -> Result<Self, Error> {
        let key = (parts.volume.id, cluster);
        let claimed = parts.shared.until(|state| {
            if let Some(error) = &state.failure {
                return Some(Err(error.clone()));
            }
            let is_free = !state.volume(key.0).is_frozen && !state.claims.contains(&key);
            is_free.then(|| {
                state.claims.insert(key);
                Ok(())
            })
        });
        claimed.await?;
        Ok(Self { shared: Arc::clone(&parts.shared), key })
    }
}

impl Parts {
    /// Waits for a snapshot that may have shared a claimed cluster just now. Writes by other threads
    /// that saw it as the volume's own end before the volume thaws; only then the cluster has their
    /// bytes and may be copied.
    async fn until_thawed(&self) -> Result<(), Error> {
        let thawed = self.shared.until(|state| match &state.failure {
            Some(error) => Some(Err(error.clone())),
            None => (!state.volume(self.volume.id).is_frozen).then_some(Ok(())),
        });
        thawed.await
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.claims.remove(&self.key);
        state.wake();
    }
}

impl Work {
    fn no_space(&self) -> Error {
        Error::NoSpace { access: self.access, offset: self.offset, len: self.len }
    }

    /// Returns the part of the command in the cluster of `at`: the cluster and the bytes in it.
    fn step(&self, at: u64) -> (u32, Range<usize>) {
        let shift = self.parts.cluster_shift;
        let (cluster, size) = (at >> shift, 1_u64 << shift);
        let end = (self.offset + self.len - (cluster << shift)).min(size);
        (cluster as u32, (at & (size - 1)) as usize..end as usize)
    }

    /// Returns the place and length of the longest range from `at` on that is one piece. Without
    /// one, returns the part in the cluster of `at`.
    fn stretch(&self, at: u64, is_write: bool) -> (Mapping, u64) {
        let (shift, end) = (self.parts.cluster_shift, self.offset + self.len);
        let upto = |clusters: u64| (((at >> shift) + clusters) << shift).min(end) - at;
        let mut clusters = 1;
        let mut place = self.parts.range(at, upto(1), is_write);
        while place != Mapping::Mixed && at + upto(clusters) < end {
            let longer = self.parts.range(at, upto(clusters + 1), is_write);
            if longer != place {
                break;
            }
            place = longer;
            clusters += 1;
        }
        (place, upto(clusters))
    }
}

/// Reads a range in several pieces.
pub(crate) async fn read(work: Work) -> Result<Chunk, Error> {
    let Parts { inner, entrance, .. } = &*work.parts;
    let token = entrance.enter();
    let mut reads: Vec<(u64, Option<IoFuture<Chunk>>)> = Vec::new();
    let mut at = work.offset;
    while at < work.offset + work.len {
        let (place, len) = work.stretch(at, false);
        let read = match place {
            Mapping::At(place) => Some(inner.read(place, len as usize)),
            Mapping::Hole | Mapping::Mixed => None,
        };
        reads.push((len, read));
        at += len;
    }
    let mut buffer = Buffer::with_capacity(work.len as usize);
    let mut result = Ok(());
    for (len, read) in reads {
        let start = buffer.len();
        let Some(read) = read else {
            buffer.set_len(start + len as usize);
            buffer[start..].fill(0);
            continue;
        };
        // All reads must end before the command does.
        match read.await {
            Ok(chunk) => buffer.extend_from_chunk(&chunk, 0..len as usize),
            Err(error) => result = result.and(Err(error)),
        }
    }
    entrance.ended(token);
    result.map(|()| buffer.into())
}

/// Writes a range with at least one cluster that is not the volume's own.
pub(crate) async fn write(work: Work, pieces: Pieces) -> Result<(), Error> {
    let Parts { inner, entrance, .. } = &*work.parts;
    let mut at = work.offset;
    while at < work.offset + work.len {
        let start = (at - work.offset) as usize;
        let token = entrance.enter();
        if let (Mapping::At(place), len) = work.stretch(at, true) {
            let data = pieces.slice(start..start + len as usize);
            let result = inner.write_chunks(place, data).await;
            entrance.ended(token);
            result?;
            at += len;
            continue;
        }
        entrance.ended(token);
        let (cluster, range) = work.step(at);
        let data = pieces.slice(start..start + range.len());
        at += range.len() as u64;
        write_cluster(&work, cluster, range, data).await?;
    }
    Ok(())
}

/// Makes a range read as zeros, and drops the clusters that lie completely in it.
pub(crate) async fn clear(work: Work) -> Result<(), Error> {
    let parts = &*work.parts;
    let mut at = work.offset;
    while at < work.offset + work.len {
        let (cluster, range) = work.step(at);
        let here = at;
        at += range.len() as u64;
        if cluster.is_multiple_of(CLUSTERS_PER_TURN) {
            reactor::yield_now().await;
        }
        if parts.volume.map.entry(cluster).cluster().is_none() {
            continue;
        }
        if range.len() == 1 << parts.cluster_shift {
            let claim = Claim::of(parts, cluster).await?;
            replace(parts, cluster, Entry::UNMAPPED).map_err(|_| work.no_space())?;
            drop(claim);
            continue;
        }
        let token = parts.entrance.enter();
        if let Mapping::At(place) = parts.range(here, range.len() as u64, true) {
            let result = parts.inner.write_zeroes(place, range.len() as u64).await;
            parts.entrance.ended(token);
            result?;
        } else {
            parts.entrance.ended(token);
            let zeroes = Pieces::zeroes(range.len()).slice(0..range.len());
            write_cluster(&work, cluster, range, zeroes).await?;
        }
    }
    Ok(())
}

/// Writes a part of a cluster that is unmapped or shared.
async fn write_cluster(
    work: &Work,
    cluster: u32,
    range: Range<usize>,
    data: Vec<Chunk>,
) -> Result<(), Error> {
    let parts = &*work.parts;
    let claim = Claim::of(parts, cluster).await?;
    let token = parts.entrance.enter();
    if let Some(place) = own(parts, cluster) {
        let result = parts.inner.write_chunks(place + range.start as u64, data).await;
        parts.entrance.ended(token);
        return result;
    }
    parts.entrance.ended(token);
    parts.until_thawed().await?;
    let new = allocate(work).await?;
    let old = parts.volume.map.entry(cluster).cluster();
    let result = match fill(parts, (old, new), range, data).await {
        Ok(()) => replace(parts, cluster, Entry::own(new)).map_err(|_| work.no_space()),
        Err(error) => Err(error),
    };
    if result.is_err() {
        let mut state = parts.shared.lock();
        state.clusters.give_back(new);
        state.wake();
    }
    drop(claim);
    result
}

/// Returns the offset of a cluster if it is the volume's own. A shared cluster becomes the volume's
/// own when no other volume has it any more.
fn own(parts: &Parts, cluster: u32) -> Option<u64> {
    let entry = parts.volume.map.entry(cluster);
    let place = entry.cluster()?;
    if entry.is_shared() {
        let mut state = parts.shared.lock();
        parts.shared.reclaim(&mut state);
        if state.clusters.references(place) > 1 {
            return None;
        }
        parts.volume.map.set(cluster, Entry::own(place));
    }
    Some(parts.shared.layout.cluster_offset(place))
}

/// Writes a whole new cluster: the new bytes, with the old bytes or zeros around them.
async fn fill(
    parts: &Parts,
    (old, new): (Option<u32>, u32),
    range: Range<usize>,
    data: Vec<Chunk>,
) -> Result<(), Error> {
    let (layout, size) = (&parts.shared.layout, 1_usize << parts.cluster_shift);
    let around = match old {
        _ if range.len() == size => Pieces(Vec::new()),
        Some(old) => {
            // A shared cluster does not change, and this volume's reference keeps it.
            let chunk = parts.inner.read(layout.cluster_offset(old), size).await?;
            Pieces::new(vec![chunk])
        }
        None if reactor::mutant!("volume-tail-unwritten") => {
            let place = layout.cluster_offset(new) + range.start as u64;
            return parts.inner.write_chunks(place, data).await;
        }
        None => Pieces::zeroes(size),
    };
    let mut chunks = around.slice(0..range.start);
    chunks.extend(data);
    chunks.extend(around.slice(range.end..size));
    parts.inner.write_chunks(layout.cluster_offset(new), chunks).await
}

/// Changes an entry of the table, and drops the former cluster. The caller has the claim.
fn replace(parts: &Parts, cluster: u32, entry: Entry) -> Result<(), crate::Error> {
    let mut state = parts.shared.lock();
    let old = parts.volume.map.entry(cluster).cluster();
    if old.is_none() && entry.cluster().is_none() {
        return Ok(());
    }
    state.set(parts.volume.id, cluster, entry)?;
    let change = parts.shared.changed(&mut state);
    if let Some(old) = old {
        parts.shared.retire(&mut state, old, change);
    }
    Ok(())
}

/// Allocates a free cluster. If there is none, it first frees clusters that volumes have dropped.
async fn allocate(work: &Work) -> Result<u32, Error> {
    let Parts { shared, inner, .. } = &*work.parts;
    loop {
        {
            let mut state = shared.lock();
            if let Some(error) = &state.failure {
                return Err(error.clone());
            }
            shared.reclaim(&mut state);
            if let Some(cluster) = state.clusters.allocate() {
                return Ok(cluster);
            }
            if !state.clusters.has_retired() {
                return Err(work.no_space());
            }
        }
        commit::flush(shared, inner).await?;
        shared.quiet().await.map_err(|_| work.no_space())?;
    }
}
