//! Commands to the volumes of a pool, and changes of the list of volumes.

use super::model::{Block, Change, Volume};
use super::{BLOCK_BYTES, BLOCKS_PER_CLUSTER, CLUSTER_BYTES, Shared, open};
use crate::random::Random;
use block::{Backing, Device};
use reactor::{Buffer, Chunk};
use std::ops::Range;
use std::rc::Rc;
use volume::{Error, Pool};

/// Tasks that read and write.
const WORKERS: usize = 3;
const VOLUMES_MAX: usize = 4;
const CLUSTERS_MAX: u64 = 4;
/// Commands of a worker, and changes of the list, of a process that is not killed.
const COMMANDS: u64 = 20;
const CHANGES: u64 = 8;

/// Opens the pool and uses it until the process ends.
pub(super) async fn endless(model: Shared, mut random: Random) {
    let pool = open(&model).await;
    use_pool(&model, &pool, &mut random, u64::MAX).await;
}

/// Opens the pool, uses it for a while, and returns it.
pub(super) async fn some(model: Shared, random: &mut Random) -> Pool {
    let pool = open(&model).await;
    use_pool(&model, &pool, random, COMMANDS).await;
    pool
}

async fn use_pool(model: &Shared, pool: &Pool, random: &mut Random, commands: u64) {
    let mut tasks = Vec::new();
    for _ in 0..WORKERS {
        let (model, pool, mut random) =
            (Rc::clone(model), pool.clone(), Random::new(random.next()));
        tasks.push(reactor::spawn(async move {
            for _ in 0..commands {
                command(&model, &pool, &mut random).await;
            }
        }));
    }
    let changes = if commands == u64::MAX { commands } else { CHANGES };
    for _ in 0..changes {
        change(model, pool, random).await;
    }
    for task in tasks {
        task.await.expect("a worker");
    }
}

/// Returns bytes that consist of blocks with these values.
fn bytes_of(values: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(values.len() * BLOCK_BYTES);
    for value in values {
        bytes.extend_from_slice(&value.to_le_bytes().repeat(BLOCK_BYTES / 8));
    }
    bytes
}

/// Returns the values of blocks.
///
/// # Panics
/// If a block does not have one value.
pub(super) fn values_of(bytes: &[u8]) -> Vec<u64> {
    let of = |block: &[u8]| {
        assert!(block[8..] == block[..BLOCK_BYTES - 8], "a block has several values");
        u64::from_le_bytes(block[..8].try_into().expect("8 bytes"))
    };
    bytes.chunks(BLOCK_BYTES).map(of).collect()
}

/// Returns a volume that may be used, and a range of its blocks, usually a short one.
fn choose(model: &Shared, random: &mut Random) -> Option<(String, Range<usize>)> {
    let model = model.borrow();
    let open: Vec<_> = model.volumes.iter().filter(|(_, volume)| !volume.is_closed).collect();
    if open.is_empty() {
        return None;
    }
    let (name, volume) = *random.of(&open);
    // Usually in the first two clusters, where commands meet.
    let blocks = volume.blocks.len();
    let reach = if random.chance(70) { blocks.min(2 * BLOCKS_PER_CLUSTER) } else { blocks };
    let mut start = random.below(reach as u64) as usize;
    let mut count = random.between(1, *random.clone().of(&[3, 3, 40])) as usize;
    if random.chance(25) {
        start -= start % BLOCKS_PER_CLUSTER;
        count = count.next_multiple_of(BLOCKS_PER_CLUSTER);
    }
    Some((name.clone(), start..(start + count).min(blocks)))
}

/// Runs a command of a worker.
async fn command(model: &Shared, pool: &Pool, random: &mut Random) {
    let Some((name, range)) = choose(model, random) else {
        return reactor::time::sleep(std::time::Duration::from_millis(1)).await;
    };
    let device = pool.volume(&name).expect("a volume of the model").attach();
    model.borrow_mut().volumes.get_mut(&name).expect("a volume").users += 1;
    match random.below(100) {
        0..50 => write(model, &name, &device, range, random).await,
        50..70 => clear(model, &name, &device, range, random).await,
        70..90 => read(model, &name, &device, range).await,
        _ => {
            let start = model.borrow_mut().tick();
            device.flush().await.expect("the device works");
            model.borrow_mut().flushed(start);
        }
    }
    drop(device);
    model.borrow_mut().volumes.get_mut(&name).expect("a volume").users -= 1;
}

async fn read(model: &Shared, name: &str, device: &Rc<dyn Device>, range: Range<usize>) {
    let start = model.borrow_mut().tick();
    let read = device.read((range.start * BLOCK_BYTES) as u64, range.len() * BLOCK_BYTES).await;
    let bytes = read.expect("a read").to_bytes().into_owned();
    model.borrow_mut().found(name, start, range.start, &values_of(&bytes));
}

async fn write(
    model: &Shared,
    name: &str,
    device: &Rc<dyn Device>,
    range: Range<usize>,
    random: &mut Random,
) {
    // Values differ in all writes.
    let first = random.next() >> 8;
    let values: Vec<u64> = (first..).take(range.len()).collect();
    let chunk = |values: &[u64]| Chunk::from(Buffer::copy_from(&bytes_of(values)));
    let offset = (range.start * BLOCK_BYTES) as u64;
    let start = model.borrow_mut().begin(name, range.start, &values);
    let ended = if random.chance(50) {
        device.write(offset, chunk(&values)).await
    } else {
        let (head, tail) = values.split_at(values.len() / 2);
        device.write_chunks(offset, vec![chunk(head), chunk(tail)]).await
    };
    ended_as_must(model, name, start, ended);
}

async fn clear(
    model: &Shared,
    name: &str,
    device: &Rc<dyn Device>,
    range: Range<usize>,
    random: &mut Random,
) {
    let start = model.borrow_mut().begin(name, range.start, &vec![0; range.len()]);
    let (offset, len) = ((range.start * BLOCK_BYTES) as u64, (range.len() * BLOCK_BYTES) as u64);
    let ended = if random.chance(50) {
        device.discard(offset, len).await
    } else {
        device.write_zeroes(offset, len).await
    };
    ended_as_must(model, name, start, ended);
}

/// Notes the end of a change of data. Without space it may have been made in part.
fn ended_as_must(model: &Shared, name: &str, start: u64, ended: Result<(), block::Error>) {
    let mut model = model.borrow_mut();
    let is_snapshot = model.volumes[name].is_snapshot;
    match ended {
        Ok(()) if !is_snapshot => model.end(name, start, true),
        Err(block::Error::NoSpace { .. }) if !is_snapshot => model.end(name, start, false),
        Err(block::Error::ReadOnly { .. }) if is_snapshot => model.refused(name, start),
        other => {
            let text = format!("a change of {name} (a snapshot: {is_snapshot}) ended as {other:?}");
            model.violations.push(text);
            model.end(name, start, false);
        }
    }
}

/// Changes the list of volumes.
async fn change(model: &Shared, pool: &Pool, random: &mut Random) {
    let names: Vec<String> = model.borrow().volumes.keys().cloned().collect();
    let new = format!("v{}", model.borrow_mut().tick());
    let clusters = random.between(1, CLUSTERS_MAX) as usize;
    if names.len() < 2 {
        return create(model, pool, new, clusters).await;
    }
    let name = random.of(&names).clone();
    match random.below(100) {
        0..15 if names.len() < VOLUMES_MAX => create(model, pool, new, clusters).await,
        15..60 if names.len() < VOLUMES_MAX => {
            copy(model, pool, name, new, random.chance(60)).await;
        }
        15..75 => remove(model, pool, name).await,
        _ => resize(model, pool, name, clusters).await,
    }
}

async fn create(model: &Shared, pool: &Pool, name: String, clusters: usize) {
    let blocks = clusters * BLOCKS_PER_CLUSTER;
    let start = begin(model, Change::Create(name.clone(), blocks));
    pool.create(&name, (clusters * CLUSTER_BYTES) as u64).await.expect("a new volume");
    let mut model = model.borrow_mut();
    model.change = None;
    model.flushed(start);
    model.volumes.insert(name, Volume::new(vec![Block::of(0); blocks], false));
}

/// Notes that a change begins. Returns the moment.
fn begin(model: &Shared, change: Change) -> u64 {
    let mut model = model.borrow_mut();
    let start = model.tick();
    model.change = Some((change, start));
    start
}

async fn copy(model: &Shared, pool: &Pool, from: String, to: String, is_snapshot: bool) {
    let is_of_snapshot = model.borrow().volumes[&from].is_snapshot;
    let start = begin(model, Change::Copy { from: from.clone(), to: to.clone(), is_snapshot });
    let made = if is_snapshot {
        pool.snapshot(&from, &to).await
    } else {
        pool.clone_snapshot(&from, &to).await
    };
    let mut model = model.borrow_mut();
    model.change = None;
    match made {
        Ok(()) if is_snapshot || is_of_snapshot => {
            model.flushed(start);
            let blocks = model.copy_of(&from, start);
            model.volumes.insert(to, Volume::new(blocks, is_snapshot));
        }
        Err(Error::NotASnapshot(_)) if !is_snapshot && !is_of_snapshot => {}
        other => model.violations.push(format!("a copy of {from} ended as {other:?}")),
    }
}

async fn remove(model: &Shared, pool: &Pool, name: String) {
    let is_used = model.borrow().volumes[&name].users > 0;
    model.borrow_mut().volumes.get_mut(&name).expect("a volume").is_closed = true;
    let start = begin(model, Change::Remove(name.clone()));
    let removed = pool.remove(&name).await;
    let mut model = model.borrow_mut();
    model.change = None;
    match removed {
        Ok(()) if !is_used => {
            model.flushed(start);
            model.volumes.remove(&name);
        }
        Err(Error::InUse(_)) if is_used => {
            model.volumes.get_mut(&name).expect("a volume").is_closed = false;
        }
        other => model.violations.push(format!("a removal (in use: {is_used}) ended as {other:?}")),
    }
}

async fn resize(model: &Shared, pool: &Pool, name: String, clusters: usize) {
    let blocks = clusters * BLOCKS_PER_CLUSTER;
    let (is_snapshot, is_refused) = {
        let mut model = model.borrow_mut();
        let volume = model.volumes.get_mut(&name).expect("a volume");
        volume.is_closed = blocks < volume.blocks.len();
        (volume.is_snapshot, volume.is_closed && volume.users > 0)
    };
    let start = begin(model, Change::Resize(name.clone(), blocks));
    let resized = pool.resize(&name, (clusters * CLUSTER_BYTES) as u64).await;
    let mut model = model.borrow_mut();
    model.change = None;
    let volume = model.volumes.get_mut(&name).expect("a volume");
    volume.is_closed = false;
    match resized {
        Ok(()) if !is_snapshot && !is_refused => {
            volume.blocks.resize(blocks, Block::of(0));
            model.flushed(start);
        }
        Err(Error::IsSnapshot(_)) if is_snapshot => {}
        Err(Error::InUse(_)) if is_refused => {}
        other => model.violations.push(format!("a resize of {name} ended as {other:?}")),
    }
}
