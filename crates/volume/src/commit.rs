//! Commits, which make metadata durable.
//!
//! A commit writes all changed pages to free slots and flushes the device. That makes the pages
//! durable, and the acknowledged data of the clusters that they name. Then it writes both copies of
//! the next superblock, and flushes again. After a power cut either the old or the new superblock
//! is valid, and the pages of both exist.
//!
//! One commit runs at a time, for all flushes that wait. After a failure, or if its thread ends
//! during a commit, the state of the device is unknown: every later commit and flush fails until
//! the pool is opened again.

use crate::layout::{Layout, PAGE_BYTES};
use crate::page::{self, Encoded, Kind, Pointer};
use crate::shared::Shared;
use crate::state::{Key, State};
use crate::superblock::{self, Superblock};
use block::{Access, Device, IoFuture};
use reactor::Buffer;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

/// Largest number of page writes in flight.
const WRITES_MAX: usize = 64;

/// The writes of a commit.
struct Job {
    pages: Vec<(u32, Vec<u8>)>,
    superblock: Superblock,
    /// All changes up to this one are durable after the commit.
    change: u64,
    /// Slots that are free after the commit.
    released: Vec<u32>,
}

/// The action of a flush.
enum Turn {
    /// It commits.
    Own,
    /// Another flush has committed all changes.
    Over,
    Failed(block::Error),
}

/// The right to commit. If it is dropped before the commit ends, the pool fails.
struct Committing {
    shared: Arc<Shared>,
    result: Option<Result<(), block::Error>>,
}

impl Drop for Committing {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_committing = false;
        match self.result.take() {
            Some(Ok(())) => {}
            Some(Err(error)) => self.shared.fail(&mut state, error),
            None => self.shared.fail(&mut state, aborted()),
        }
        state.wake();
    }
}

fn aborted() -> block::Error {
    let source = io::Error::other("a commit of the pool's metadata was not finished");
    block::Error::Io { access: Access::Flush, offset: 0, len: 0, source: Arc::new(source) }
}

/// Makes all acknowledged data and metadata durable.
///
/// # Errors
/// If the device fails, or a commit or flush failed before.
pub(crate) async fn flush(
    shared: &Arc<Shared>,
    device: &Rc<dyn Device>,
) -> Result<(), block::Error> {
    let want = shared.changes();
    let turn = shared.until(|state| {
        if let Some(error) = &state.failure {
            return Some(Turn::Failed(error.clone()));
        }
        if shared.durable() >= want {
            return Some(Turn::Over);
        }
        if state.is_committing {
            return None;
        }
        state.is_committing = true;
        Some(Turn::Own)
    });
    match turn.await {
        Turn::Failed(error) => Err(error),
        // The other commit may have flushed the device before the last writes in place.
        Turn::Over => device.flush().await,
        Turn::Own => {
            let committing = Committing { shared: Arc::clone(shared), result: None };
            // A separate task, which continues if the caller is dropped.
            let task = reactor::spawn(run(committing, Rc::clone(device)));
            task.await.unwrap_or_else(|_| Err(aborted()))
        }
    }
}

async fn run(mut committing: Committing, device: Rc<dyn Device>) -> Result<(), block::Error> {
    let shared = Arc::clone(&committing.shared);
    let job = {
        let mut state = shared.lock();
        build(&shared, &mut state)
    };
    let result = write(&shared.layout, &*device, &job).await;
    if result.is_ok() {
        let mut state = shared.lock();
        state.pages.free(job.released);
        shared.set_durable(&mut state, job.change);
    }
    committing.result = Some(result.clone());
    result
}

/// Encodes all changed pages and enters their pointers.
fn build(shared: &Shared, state: &mut State) -> Job {
    let generation = state.generation + 1;
    state.generation = generation;
    let mut pages = Vec::new();
    let mut place = |state: &mut State, encoded: Encoded| {
        let slot = state.pages.take_slot();
        pages.push((slot, encoded.bytes));
        Pointer { slot, crc: encoded.crc }
    };
    for key in std::mem::take(&mut state.dirty) {
        let (Key::Record(id) | Key::Map(id, _)) = key;
        // The page may have been removed meanwhile.
        let Some(volume) = state.volumes.get(&id) else { continue };
        let (position, encoded) = match key {
            Key::Record(_) => {
                (volume.position, page::encode_record(generation, id, &volume.record))
            }
            Key::Map(_, part) => {
                let Some((position, _)) = volume.parts.get(&part) else { continue };
                let entries = volume.map.stored(part);
                (*position, page::encode_map(generation, id, part as u32, &entries))
            }
        };
        let pointer = place(state, encoded);
        state.pages.point(position, pointer);
    }
    for index in std::mem::take(&mut state.pages.dirty_indexes) {
        let pointers = state.pages.of_index(index);
        let pointer = if pointers.iter().all(|pointer| pointer.is_none()) {
            Pointer::NONE
        } else {
            let encoded = page::encode_pointers(Kind::Index, generation, index as u32, pointers);
            place(state, encoded)
        };
        state.pages.point_index(index, pointer);
    }
    let root = page::encode_pointers(Kind::Root, generation, 0, &state.pages.indexes);
    let root = place(state, root);
    state.pages.point_root(root);
    let superblock = Superblock {
        generation,
        uuid: shared.uuid,
        layout: shared.layout,
        root,
        next_id: state.next_id,
        pages: state.pages.live(),
        volumes: state.volumes.len() as u32,
        mapped: state.volumes.values().map(|volume| u64::from(volume.record.mapped)).sum(),
    };
    let released = state.pages.take_released();
    Job { pages, superblock, change: shared.changes(), released }
}

async fn write(layout: &Layout, device: &dyn Device, job: &Job) -> Result<(), block::Error> {
    let mut writes: VecDeque<IoFuture<()>> = VecDeque::new();
    for (slot, bytes) in &job.pages {
        if writes.len() == WRITES_MAX
            && let Some(write) = writes.pop_front()
        {
            write.await?;
        }
        let buffer = Buffer::copy_from(bytes);
        writes.push_back(device.write(layout.slot_offset(*slot), buffer.into()));
    }
    for write in writes {
        write.await?;
    }
    if !reactor::mutant!("volume-data-unflushed") {
        device.flush().await?;
    }
    write_superblock(device, &job.superblock).await?;
    if reactor::mutant!("volume-superblock-unflushed") {
        return Ok(());
    }
    device.flush().await
}

/// Writes both copies of a superblock.
pub(crate) async fn write_superblock(
    device: &dyn Device,
    superblock: &Superblock,
) -> Result<(), block::Error> {
    let bytes = superblock.encode();
    let writes = superblock::places(superblock.generation)
        .map(|page| device.write(page * PAGE_BYTES as u64, Buffer::copy_from(&bytes).into()));
    for write in writes {
        write.await?;
    }
    Ok(())
}
