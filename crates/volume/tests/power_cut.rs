//! Power cuts at random moments, and damaged metadata.
//!
//! The device loses any writes that no flush covers, or any of their blocks.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use block::{Backing, Device, Event, Log, MemoryBacking, Survival};
use common::{BLOCK, CLUSTER, Random, assert_sound, dirty_memory, read, run, seeds, write};
use reactor::Buffer;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use volume::Pool;

const SIZE: u64 = 4 << 20;
const VOLUME_BLOCKS: u64 = 12 * CLUSTER / BLOCK;

type Content = BTreeMap<String, Vec<u64>>;

/// An operation: positions in the log before and after it, and the contents after it.
struct Done {
    start: usize,
    end: usize,
    is_durable: bool,
    after: Content,
}

struct Scene {
    log: Log,
    pool: Pool,
    devices: BTreeMap<String, Rc<dyn Device>>,
    content: Content,
    done: Vec<Done>,
    random: Random,
    next: u64,
}

impl Scene {
    async fn new(memory: MemoryBacking, random: Random) -> Self {
        let log = Log::new(Arc::new(memory));
        let pool = Pool::open(Arc::new(log.clone())).await.unwrap();
        let mut content = Content::new();
        for volume in pool.list() {
            let device = pool.volume(&volume.name).unwrap().attach();
            content.insert(volume.name, read(&device, 0, volume.size / BLOCK).await);
        }
        let first = Done { start: 0, end: 0, is_durable: true, after: content.clone() };
        let devices = BTreeMap::new();
        Self { log, pool, devices, content, done: vec![first], random, next: 1 }
    }

    /// Returns a random name and whether it is a snapshot's.
    fn pick(&mut self) -> Option<String> {
        let count = self.content.len() as u64;
        if count == 0 {
            return None;
        }
        let at = self.random.below(count) as usize;
        self.content.keys().nth(at).cloned()
    }

    fn device(&mut self, name: &str) -> Rc<dyn Device> {
        let pool = &self.pool;
        let attach = || pool.volume(name).unwrap().attach();
        Rc::clone(self.devices.entry(name.into()).or_insert_with(attach))
    }

    async fn io(&mut self, name: &str) {
        let device = self.device(name);
        let start = self.random.below(VOLUME_BLOCKS);
        let len = (1 + self.random.below(20)).min(VOLUME_BLOCKS - start);
        let blocks = self.content.get_mut(name).unwrap();
        let range = start as usize..(start + len) as usize;
        if self.random.below(4) > 0 {
            let values: Vec<u64> = (self.next..self.next + len).collect();
            self.next += len;
            match write(&device, start, &values).await {
                Ok(()) => blocks[range].copy_from_slice(&values),
                Err(block::Error::NoSpace { .. }) => {
                    let now = read(&device, start, len).await;
                    blocks[range].copy_from_slice(&now);
                }
                Err(error) => panic!("{error}"),
            }
        } else {
            // Discards whole clusters.
            let per = CLUSTER / BLOCK;
            let first = start / per * per;
            device.discard(first * BLOCK, CLUSTER).await.unwrap();
            blocks[first as usize..(first + per) as usize].fill(0);
        }
    }

    /// Runs a random operation. Returns whether everything is durable after it.
    async fn act(&mut self) -> bool {
        let name = self.pick();
        match (self.random.below(100), name) {
            (0..75, Some(name)) if !name.starts_with('s') => {
                self.io(&name).await;
                false
            }
            (75..88, Some(name)) => {
                self.device(&name).flush().await.unwrap();
                true
            }
            (88..92, Some(name)) if self.content.len() < 5 => {
                let copy = format!("s{}", self.next);
                self.next += 1;
                self.pool.snapshot(&name, &copy).await.unwrap();
                let content = self.content[&name].clone();
                self.content.insert(copy, content);
                true
            }
            (92..95, Some(name)) if self.content.len() < 5 && name.starts_with('s') => {
                let copy = format!("c{}", self.next);
                self.next += 1;
                self.pool.clone_snapshot(&name, &copy).await.unwrap();
                let content = self.content[&name].clone();
                self.content.insert(copy, content);
                true
            }
            (95..99, Some(name)) => {
                self.devices.remove(&name);
                self.pool.remove(&name).await.unwrap();
                self.content.remove(&name);
                true
            }
            (_, _) if self.content.len() < 2 => {
                let name = format!("v{}", self.next);
                self.next += 1;
                self.pool.create(&name, VOLUME_BLOCKS * BLOCK).await.unwrap();
                self.content.insert(name, vec![0; VOLUME_BLOCKS as usize]);
                true
            }
            _ => false,
        }
    }

    async fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            let start = self.log.len();
            let is_durable = self.act().await;
            let end = self.log.len();
            let after = self.content.clone();
            self.done.push(Done { start, end, is_durable, after });
        }
    }

    /// Returns the contents that a cut after `prefix` events may leave: the last durable ones, and
    /// those of each later operation that had begun.
    fn allowed(&self, prefix: usize) -> Vec<&Content> {
        let last =
            self.done.iter().rposition(|done| done.is_durable && done.end <= prefix).unwrap();
        let begun = self.done[last + 1..].iter().take_while(|done| done.start < prefix);
        let all: Vec<&Content> =
            std::iter::once(&self.done[last]).chain(begun).map(|done| &done.after).collect();
        all
    }
}

/// Checks that each block of each volume has an allowed content, and that snapshots are whole.
async fn verify(pool: &Pool, allowed: &[&Content]) {
    let names: Vec<String> = pool.list().into_iter().map(|volume| volume.name).collect();
    let is_allowed = allowed.iter().any(|content| content.keys().eq(names.iter()));
    assert!(is_allowed, "volumes {names:?}");
    for name in names {
        let device = pool.volume(&name).unwrap().attach();
        let now = read(&device, 0, VOLUME_BLOCKS).await;
        let known: Vec<&Vec<u64>> =
            allowed.iter().filter_map(|content| content.get(&name)).collect();
        for (at, now) in now.iter().enumerate() {
            let is_known = known.iter().any(|blocks| blocks[at] == *now);
            assert!(is_known, "block {at} of {name} is {now}");
        }
        if name.starts_with('s') {
            assert!(known.iter().any(|blocks| **blocks == now), "snapshot {name}");
        }
    }
}

async fn image_of(memory: &MemoryBacking) -> Vec<u8> {
    memory.attach().read(0, SIZE as usize).await.unwrap().to_bytes().into_owned()
}

async fn memory_of(image: &[u8]) -> MemoryBacking {
    let memory = MemoryBacking::new(SIZE, BLOCK as u32).unwrap();
    memory.attach().write(0, Buffer::copy_from(image).into()).await.unwrap();
    memory
}

fn survival(random: &mut Random, len: usize) -> Survival {
    match random.below(3) {
        0 => Survival::Lost,
        1 => Survival::Whole,
        _ => Survival::Torn((0..len as u64 / BLOCK).map(|_| random.below(2) == 0).collect()),
    }
}

/// Goal: after a power cut at any moment the pool is sound, all flushed data is there, snapshots
/// are unchanged, and each block has the content of one of its writes. Then everything continues,
/// up to the next cut.
#[test]
fn flushed_data_survive_power_cuts() {
    for seed in seeds(8) {
        println!("seed {seed}");
        run(async {
            let mut random = Random(seed);
            let mut memory = dirty_memory(SIZE).await;
            Pool::format(&memory, CLUSTER as u32).await.unwrap();
            for round in 0..4 {
                let before = image_of(&memory).await;
                let mut scene = Scene::new(memory, Random(seed * 100 + round)).await;
                scene.next += round * 1_000_000;
                scene.run(60).await;
                for cut in 0..12 {
                    let prefix = random.below(scene.log.len() as u64 + 1) as usize;
                    let mut image = before.clone();
                    // The cuts include one that loses everything, and one that loses nothing.
                    scene.log.replay(prefix, &mut image, |_, _, len| match cut {
                        0 => Survival::Lost,
                        1 => Survival::Whole,
                        _ => survival(&mut random, len),
                    });
                    let left = memory_of(&image).await;
                    assert_sound(&left).await;
                    let pool = Pool::open(Arc::new(left)).await.unwrap();
                    verify(&pool, &scene.allowed(prefix)).await;
                }
                let prefix = random.below(scene.log.len() as u64 + 1) as usize;
                let mut image = before;
                scene.log.replay(prefix, &mut image, |_, _, len| survival(&mut random, len));
                memory = memory_of(&image).await;
            }
        });
    }
}

/// Goal: a pool whose process died at any moment, also within a commit, is durable as soon as it is open again: a power
/// cut after new writes loses nothing that the pool showed at its opening.
#[test]
fn an_open_pool_is_durable_after_a_kill() {
    for seed in seeds(8) {
        println!("seed {seed}");
        run(async {
            let mut random = Random(seed);
            let memory = dirty_memory(SIZE).await;
            Pool::format(&memory, CLUSTER as u32).await.unwrap();
            let before = image_of(&memory).await;
            let mut first = Scene::new(memory, Random(seed * 100)).await;
            first.run(60).await;
            for kill in 0..12 {
                // A kill loses nothing that was written, but what was not flushed is in a cache alone.
                let killed = random.below(first.log.len() as u64 + 1) as usize;
                let mut image = before.clone();
                first.log.replay(killed, &mut image, |_, _, _| Survival::Whole);
                let mut second = Scene::new(memory_of(&image).await, Random(seed + kill)).await;
                second.next += 1_000_000;
                let opened = second.log.len();
                second.run(20).await;
                let cut = opened + random.below((second.log.len() - opened) as u64 + 1) as usize;
                let is_flushed = has_flush(&second.log, cut);
                let mut image = before.clone();
                first.log.replay(killed, &mut image, |_, _, len| {
                    if is_flushed { Survival::Whole } else { survival(&mut random, len) }
                });
                second.log.replay(cut, &mut image, |_, _, len| survival(&mut random, len));
                let left = memory_of(&image).await;
                assert_sound(&left).await;
                let pool = Pool::open(Arc::new(left)).await.unwrap();
                verify(&pool, &second.allowed(cut)).await;
            }
        });
    }
}

/// Returns whether one of the first events of a log ends a flush.
fn has_flush(log: &Log, prefix: usize) -> bool {
    log.events()[..prefix].iter().any(|event| matches!(event, Event::Flushed { .. }))
}

/// Goal: after a flip of any bit of the metadata, the pool is refused or has the right bytes.
#[test]
fn damage_is_found_or_harmless() {
    let (mut refused, mut opened) = (0, 0);
    for seed in seeds(2) {
        run(async {
            let memory = dirty_memory(SIZE).await;
            let layout = Pool::format(&memory, CLUSTER as u32).await.unwrap();
            let mut scene = Scene::new(memory.clone(), Random(seed)).await;
            scene.run(150).await;
            scene.pool.flush().await.unwrap();
            let content = scene.content.clone();
            let image = image_of(&memory).await;
            let mut random = Random(seed);
            // Places in use: pages that are not zeros.
            let used: Vec<usize> = image[..layout.data_start as usize]
                .chunks(BLOCK as usize)
                .enumerate()
                .filter(|(_, page)| page.iter().any(|byte| *byte != 0))
                .map(|(at, _)| at)
                .collect();
            for _ in 0..120 {
                let page = used[random.below(used.len() as u64) as usize];
                let mut damaged = image.clone();
                // The first bytes of a page are the most important.
                let reach = [64, 512, BLOCK][random.below(3) as usize];
                let at = page * BLOCK as usize + random.below(reach) as usize;
                damaged[at] ^= 1 << random.below(8);
                let memory = memory_of(&damaged).await;
                let report = Pool::check(&memory).await.unwrap();
                match Pool::open(Arc::new(memory)).await {
                    Ok(pool) => {
                        opened += 1;
                        assert!(report.fatal().is_none());
                        verify(&pool, &[&content]).await;
                    }
                    Err(error) => {
                        refused += 1;
                        assert!(matches!(error, volume::Error::Damaged { .. }), "{error}");
                        assert!(report.fatal().is_some());
                    }
                }
            }
        });
    }
    assert!(refused > 0 && opened > 0, "{refused} refused, {opened} opened");
}

/// Goal: if the latest superblock is lost, the older one is not mistaken for it.
#[test]
fn a_lost_superblock_is_noticed() {
    run(async {
        let memory = dirty_memory(SIZE).await;
        Pool::format(&memory, CLUSTER as u32).await.unwrap();
        let pool = Pool::open(Arc::new(memory.clone())).await.unwrap();
        pool.create("a", CLUSTER).await.unwrap();
        let image = image_of(&memory).await;
        let page = BLOCK as usize;
        for (places, is_open) in
            [(vec![0], true), (vec![0, 1], true), (vec![0, 2], false), (vec![1, 3], false)]
        {
            let mut damaged = image.clone();
            for place in places {
                damaged[place * page + 30] ^= 1;
            }
            let memory = memory_of(&damaged).await;
            assert!(Pool::check(&memory).await.unwrap().count > 0);
            let opened = Pool::open(Arc::new(memory)).await;
            assert_eq!(opened.is_ok(), is_open);
            if let Ok(pool) = opened {
                assert!(!pool.warnings().is_empty());
                assert_eq!(pool.list().len(), 1);
            }
        }
    });
}

/// Goal: a pool uses a larger device after growing, keeps its content, and survives a power cut
/// meanwhile.
#[test]
fn a_pool_grows() {
    run(async {
        let device = dirty_memory(64 << 20).await;
        let small = device.resized(16 << 20).unwrap();
        Pool::format(&*small, CLUSTER as u32).await.unwrap();
        let pool = Pool::open(Arc::clone(&small)).await.unwrap();
        pool.create("a", 32 << 20).await.unwrap();
        let volume = pool.volume("a").unwrap().attach();
        let mut written = 0;
        while write(&volume, written * CLUSTER / BLOCK, &[written + 1]).await.is_ok() {
            written += 1;
        }
        drop(volume);
        pool.close().await.unwrap();
        let pages = async || {
            let mut pages = Vec::new();
            for page in 0..4 {
                let chunk = device.attach().read(page * 4096, 4096).await.unwrap();
                pages.push(chunk.to_bytes().into_owned());
            }
            pages
        };
        let before = pages().await;
        assert_eq!(Pool::grow(&*small).await.map(|(old, new)| old == new).ok(), Some(true));
        assert_eq!(pages().await, before, "growing by nothing writes nothing");
        let (old, new) = Pool::grow(&device).await.unwrap();
        assert!(new.clusters > 3 * old.clusters && new.data_start == old.data_start);
        let after = pages().await;
        let generation = |page: &Vec<u8>| u64::from_le_bytes(page[16..24].try_into().unwrap());
        let first = (0..2).min_by_key(|page| generation(&after[*page])).unwrap();
        // A cut may keep either of the two pages in flight.
        for (whole, torn) in [(None, first), (Some(first), 1 - first)] {
            for kept in 0..4 {
                for page in 0..4 {
                    let is_new = Some(page % 2) == whole
                        || page % 2 == torn && kept & (1 << (page / 2)) != 0;
                    let bytes = if is_new { &after[page] } else { &before[page] };
                    let raw = device.attach();
                    raw.write(page as u64 * 4096, Buffer::copy_from(bytes).into()).await.unwrap();
                }
                assert_sound(&device).await;
                let pool = Pool::open(Arc::new(device.clone())).await.unwrap();
                let volume = pool.volume("a").unwrap().attach();
                let has_grown = pool.usage().layout == new;
                assert!(has_grown || pool.usage().layout == old);
                assert_eq!(has_grown, whole.is_some() || kept != 0);
                for at in 0..written {
                    assert_eq!(read(&volume, at * CLUSTER / BLOCK, 1).await, [at + 1]);
                }
            }
        }
        Pool::grow(&device).await.unwrap();
        let pool = Pool::open(Arc::new(device.clone())).await.unwrap();
        let volume = pool.volume("a").unwrap().attach();
        for at in 0..(32 << 20) / CLUSTER {
            write(&volume, at * CLUSTER / BLOCK, &[at + 7]).await.unwrap();
        }
        drop(volume);
        pool.close().await.unwrap();
        assert_sound(&device).await;
        assert!(Pool::open(small).await.is_err(), "a device that became smaller is refused");
    });
}
