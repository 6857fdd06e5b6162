//! A pool of volumes on a disk that loses power.
//!
//! Writers, and changes of the list of volumes, overlap in time, and a process that dies or loses
//! power is followed by the next. Each block must have a value that was written last, or may have
//! been; what was flushed must be there; snapshots never change; all space is free at the end.
//! Then bits of the metadata flip: the pool must be refused, or be as it was.

mod load;
mod model;

use crate::random::Random;
use block::{Backing, FileBacking, FileOptions, Incarnation};
use model::Model;
use reactor::sim::{DiskPace, SimConfig, Simulation};
use reactor::time::sleep;
use reactor::{Buffer, File, OpenOptions};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use volume::Pool;

const DEVICE_PATH: &str = "/device";
/// Little more than the metadata, so that clusters are soon used again.
const DEVICE_BYTES: usize = 7 << 19;
const BLOCK_BYTES: usize = 4096;
const CLUSTER_BYTES: usize = volume::CLUSTER_BYTES_MIN as usize;
const BLOCKS_PER_CLUSTER: usize = CLUSTER_BYTES / BLOCK_BYTES;
/// Processes that are killed or lose power.
const CUTS: u64 = 2;
/// Flipped bits.
const FLIPS: u64 = 2;
/// Limit of virtual time; no run needs that long.
const TIME_MAX: Duration = Duration::from_hours(1);

type Shared = Rc<RefCell<Model>>;

/// Runs a seed; returns its trace and what is wrong. It panics where a pool cannot be opened.
pub(super) fn run(seed: u64) -> (u64, Vec<String>) {
    let seed = seed ^ 0x766f_6c75_6d65_7300;
    let mut random = Random::new(seed);
    let config = SimConfig { time_max: TIME_MAX, tear_bytes: BLOCK_BYTES, ..SimConfig::default() };
    let mut simulation = Simulation::with_config(seed, config);
    let machine = simulation.node("pool");
    // Some writes take longer than whole commits.
    let (quick, slow) = (Duration::from_micros(20), Duration::from_millis(20));
    let write = (quick, *random.of(&[slow / 20, slow]));
    machine.set_disk_pace(Some(DiskPace {
        read: (quick, quick * 5),
        write,
        sync: (quick, slow / 20),
    }));
    let model = Shared::default();
    let shared = Rc::clone(&model);
    let ended = simulation.run(async move {
        machine.spawn(format()).await.expect("the pool is formatted");
        for _ in 0..CUTS {
            let choices = Random::new(random.next());
            let _process = machine.spawn(load::endless(Rc::clone(&shared), choices));
            sleep(Duration::from_millis(random.between(1, 200))).await;
            if random.chance(30) {
                machine.kill();
                // A kernel unlocks the files of a dead process after its last write has ended.
                sleep(slow * 2).await;
            } else {
                machine.lose_power();
            }
            shared.borrow_mut().cut();
        }
        let choices = Random::new(random.next());
        let last = machine.spawn(finish(shared, choices));
        last.await
    });
    let mut violations = std::mem::take(&mut model.borrow_mut().violations);
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(_)) => violations.push("the pool's process has ended".to_owned()),
        Err(stalled) => violations.push(stalled.to_string()),
    }
    violations.truncate(20);
    (simulation.trace_hash(), violations)
}

/// Makes a pool on a used disk.
async fn format() {
    let options = OpenOptions { create: true, ..OpenOptions::READ_WRITE };
    let file = File::open(DEVICE_PATH, options).expect("a new file");
    let used = Buffer::copy_from(&vec![0xa5; DEVICE_BYTES]);
    file.write_at(used.freeze(), 0).await.0.expect("a write");
    Pool::format(&device(), CLUSTER_BYTES as u32).await.expect("a new pool");
}

fn device() -> FileBacking {
    let options = FileOptions {
        block_size: Some(BLOCK_BYTES as u32),
        direct: true,
        preallocated: true,
        incarnation: Incarnation(1),
    };
    FileBacking::open(DEVICE_PATH, &options).expect("the device opens")
}

/// Opens the pool after a cut, and compares everything.
async fn open(model: &Shared) -> Pool {
    let backing = device();
    let report = Pool::check(&backing).await.expect("the device works");
    let findings = report.findings.into_iter().map(|it| format!("after a cut: {}", it.text));
    model.borrow_mut().violations.extend(findings);
    let pool = Pool::open(Arc::new(backing)).await.expect("a cut damages nothing");
    model.borrow_mut().opened(&sizes_of(&pool));
    compare(model, &pool).await;
    pool
}

/// Returns all volumes with their blocks.
fn sizes_of(pool: &Pool) -> BTreeMap<String, usize> {
    pool.list().into_iter().map(|it| (it.name, it.size as usize / BLOCK_BYTES)).collect()
}

/// Compares all volumes with the model; nothing is under way.
async fn compare(model: &Shared, pool: &Pool) {
    model.borrow_mut().has(&sizes_of(pool));
    for volume in pool.list() {
        let start = model.borrow_mut().tick();
        let device = pool.volume(&volume.name).expect("a listed volume").attach();
        let read = device.read(0, volume.size as usize).await;
        let values = load::values_of(&read.expect("a read").to_bytes());
        let mut model = model.borrow_mut();
        if model.volumes.get(&volume.name).is_none_or(|it| it.blocks.len() != values.len()) {
            continue;
        }
        model.found(&volume.name, start, 0, &values);
        let blocks = &mut model.volumes.get_mut(&volume.name).expect("a volume").blocks;
        blocks.iter_mut().zip(values).for_each(|(block, value)| block.pin(value));
    }
}

/// Opens the pool for the last time.
async fn finish(model: Shared, mut random: Random) {
    let pool = load::some(Rc::clone(&model), &mut random).await;
    compare(&model, &pool).await;
    pool.close().await.expect("the pool is closed");
    for _ in 0..FLIPS {
        flip(&model, &mut random).await;
    }
    let pool = open(&model).await;
    for volume in pool.list() {
        pool.remove(&volume.name).await.expect("nobody uses it");
    }
    let usage = pool.usage();
    if (usage.free, usage.pages) != (usage.size, 0) {
        model.borrow_mut().violations.push(format!("an empty pool has {usage:?}"));
    }
}

/// Flips a bit of the metadata in use, opens the pool, and flips it back.
async fn flip(model: &Shared, random: &mut Random) {
    let file = File::open(DEVICE_PATH, OpenOptions::READ_WRITE).expect("the device");
    let data_start = volume::Layout::new(DEVICE_BYTES as u64, CLUSTER_BYTES as u32);
    let bytes = data_start.expect("a layout").data_start as usize;
    let (read, buffer) = file.read_at(Buffer::with_capacity(bytes), 0..bytes, 0).await;
    read.expect("the device works");
    let is_used = |page: &usize| {
        buffer[page * BLOCK_BYTES..][..BLOCK_BYTES].iter().any(|it| !matches!(it, 0 | 0xa5))
    };
    let used: Vec<usize> = (0..bytes / BLOCK_BYTES).filter(is_used).collect();
    let page = *random.of(&used) * BLOCK_BYTES;
    let whole = &buffer[page..page + BLOCK_BYTES];
    let mut damaged = whole.to_vec();
    // The first bytes of a page are the most important.
    let reach = *random.of(&[64, 512, BLOCK_BYTES as u64]);
    damaged[random.below(reach) as usize] ^= 1 << random.below(8);
    file.write_at(Buffer::copy_from(&damaged).freeze(), page as u64).await.0.expect("a write");
    let report = Pool::check(&device()).await.expect("the device works");
    match Pool::open(Arc::new(device())).await {
        Ok(pool) => {
            if report.fatal().is_some() {
                model.borrow_mut().violations.push("a pool opens in spite of a finding".to_owned());
            }
            compare(model, &pool).await;
        }
        Err(volume::Error::Damaged { .. }) if report.fatal().is_some() => {}
        Err(error) => model.borrow_mut().violations.push(format!("after a flip: {error}")),
    }
    file.write_at(Buffer::copy_from(whole).freeze(), page as u64).await.0.expect("a write");
}
