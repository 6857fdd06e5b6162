//! Compares volumes with arrays in memory, under random operations from seeds.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use block::{Backing, Device, MemoryBacking};
use common::{BLOCK, CLUSTER, Random, assert_sound, pool, read, run, seeds, write};
use reactor::{Buffer, Chunk, Segment};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use volume::{Error, Pool};

const BLOCKS_PER_CLUSTER: u64 = CLUSTER / BLOCK;

#[derive(Clone, Debug)]
struct Model {
    is_snapshot: bool,
    blocks: Vec<u64>,
}

struct Scene {
    memory: MemoryBacking,
    pool: Pool,
    models: BTreeMap<String, Model>,
    devices: BTreeMap<String, Rc<dyn Device>>,
    random: Random,
    next: u64,
    full: u64,
}

impl Scene {
    async fn new(seed: u64) -> Self {
        let (memory, pool) = pool(7 << 19).await;
        let (models, devices) = (BTreeMap::new(), BTreeMap::new());
        Self { memory, pool, models, devices, random: Random(seed), next: 1, full: 0 }
    }

    fn name(&mut self) -> Option<String> {
        let count = self.models.len() as u64;
        let at = if count == 0 { return None } else { self.random.below(count) };
        self.models.keys().nth(at as usize).cloned()
    }

    fn device(&mut self, name: &str) -> Rc<dyn Device> {
        let pool = &self.pool;
        let attach = || pool.volume(name).unwrap().attach();
        Rc::clone(self.devices.entry(name.into()).or_insert_with(attach))
    }

    /// Returns a volume's name and a range of its blocks, usually short.
    fn range(&mut self) -> Option<(String, u64, u64)> {
        let name = self.name()?;
        let blocks = self.models[&name].blocks.len() as u64;
        let start = self.random.below(blocks);
        let most = if self.random.below(3) == 0 { 40 } else { 3 };
        let mut len = 1 + self.random.below(most);
        let mut start = start;
        if self.random.below(4) == 0 {
            start -= start % BLOCKS_PER_CLUSTER;
            len = len.next_multiple_of(BLOCKS_PER_CLUSTER);
        }
        Some((name, start, len.min(blocks - start)))
    }

    async fn write(&mut self) {
        let Some((name, start, len)) = self.range() else { return };
        let values: Vec<u64> = (self.next..self.next + len).collect();
        self.next += len;
        let device = self.device(&name);
        let result = if self.random.below(2) == 0 {
            write(&device, start, &values).await
        } else {
            let half = values.len() / 2;
            let chunks = [&values[..half], &values[half..]].map(|part| {
                let bytes: Vec<u8> = part.iter().flat_map(|it| common::block(*it)).collect();
                Chunk::from(Buffer::copy_from(&bytes))
            });
            device.write_chunks(start * BLOCK, chunks.into_iter().collect()).await
        };
        let model = self.models.get_mut(&name).unwrap();
        let range = start as usize..(start + len) as usize;
        match result {
            Ok(()) => {
                assert!(!model.is_snapshot);
                model.blocks[range].copy_from_slice(&values);
            }
            Err(block::Error::ReadOnly { .. }) => assert!(model.is_snapshot),
            Err(block::Error::NoSpace { .. }) => {
                self.full += 1;
                // Some clusters may have been written before the space ran out.
                let now = read(&device, start, len).await;
                for ((known, now), new) in model.blocks[range].iter_mut().zip(now).zip(values) {
                    assert!(now == *known || now == new);
                    *known = now;
                }
            }
            Err(error) => panic!("{error}"),
        }
    }

    async fn clear(&mut self) {
        let Some((name, start, len)) = self.range() else { return };
        let device = self.device(&name);
        let result = if self.random.below(2) == 0 {
            device.discard(start * BLOCK, len * BLOCK).await
        } else {
            device.write_zeroes(start * BLOCK, len * BLOCK).await
        };
        let model = self.models.get_mut(&name).unwrap();
        let range = start as usize..(start + len) as usize;
        match result {
            Ok(()) => model.blocks[range].fill(0),
            Err(block::Error::ReadOnly { .. }) => assert!(model.is_snapshot),
            Err(block::Error::NoSpace { .. }) => {
                let now = read(&device, start, len).await;
                for (known, now) in model.blocks[range].iter_mut().zip(now) {
                    assert!(now == *known || now == 0);
                    *known = now;
                }
            }
            Err(error) => panic!("{error}"),
        }
    }

    async fn compare(&mut self) {
        let Some((name, start, len)) = self.range() else { return };
        let device = self.device(&name);
        let want = &self.models[&name].blocks[start as usize..(start + len) as usize];
        assert_eq!(read(&device, start, len).await, want, "{name} from {start}");
        let bytes = (len * BLOCK) as usize;
        let segment = Segment::Buffer(Buffer::with_capacity(bytes), 0..bytes);
        let segments = device.read_into(start * BLOCK, [segment].into_iter().collect()).await;
        let buffer = segments.unwrap().pop().unwrap().into_buffer().unwrap();
        assert_eq!(common::stamps(&buffer), want);
    }

    async fn create(&mut self) {
        let (name, clusters) = (format!("v{}", self.next), 1 + self.random.below(20));
        self.next += 1;
        if self.models.len() < 6 {
            self.pool.create(&name, clusters * CLUSTER).await.unwrap();
            let blocks = vec![0; (clusters * BLOCKS_PER_CLUSTER) as usize];
            self.models.insert(name, Model { is_snapshot: false, blocks });
        }
    }

    async fn copy(&mut self) {
        let Some(source) = self.name() else { return };
        if self.models.len() > 10 {
            return;
        }
        let name = format!("c{}", self.next);
        self.next += 1;
        let model = self.models[&source].clone();
        if self.random.below(2) == 0 {
            self.pool.snapshot(&source, &name).await.unwrap();
            self.models.insert(name, Model { is_snapshot: true, ..model });
        } else {
            match self.pool.clone_snapshot(&source, &name).await {
                Ok(()) => {
                    assert!(model.is_snapshot);
                    self.models.insert(name, Model { is_snapshot: false, ..model });
                }
                Err(Error::NotASnapshot(_)) => assert!(!model.is_snapshot),
                Err(error) => panic!("{error}"),
            }
        }
    }

    async fn remove(&mut self) {
        let Some(name) = self.name() else { return };
        if self.devices.contains_key(&name) {
            assert!(matches!(self.pool.remove(&name).await, Err(Error::InUse(_))));
            self.devices.remove(&name);
        }
        self.pool.remove(&name).await.unwrap();
        self.models.remove(&name);
    }

    async fn resize(&mut self) {
        let Some(name) = self.name() else { return };
        self.devices.remove(&name);
        let clusters = 1 + self.random.below(20);
        let model = self.models.get_mut(&name).unwrap();
        match self.pool.resize(&name, clusters * CLUSTER).await {
            Ok(()) => model.blocks.resize((clusters * BLOCKS_PER_CLUSTER) as usize, 0),
            Err(Error::IsSnapshot(_)) => assert!(model.is_snapshot),
            Err(error) => panic!("{error}"),
        }
    }

    async fn reopen(&mut self) {
        self.devices.clear();
        self.pool.flush().await.unwrap();
        assert_sound(&self.memory).await;
        let before = (self.pool.usage(), self.pool.list());
        self.pool = Pool::open(Arc::new(self.memory.clone())).await.unwrap();
        let after = (self.pool.usage(), self.pool.list());
        assert!(after.0.free >= before.0.free && after.0.pages == before.0.pages);
        let named = |list: &[volume::VolumeInfo]| -> Vec<_> {
            list.iter().map(|it| (it.name.clone(), it.uuid, it.size, it.mapped)).collect()
        };
        assert_eq!(named(&after.1), named(&before.1));
    }

    async fn step(&mut self) {
        match self.random.below(100) {
            0..50 => self.write().await,
            50..70 => self.compare().await,
            70..80 => self.clear().await,
            80..84 => self.create().await,
            84..89 => self.copy().await,
            89..92 => self.remove().await,
            92..94 => self.resize().await,
            94..96 => self.reopen().await,
            _ => {
                let Some(name) = self.name() else { return };
                self.device(&name).flush().await.unwrap();
            }
        }
    }

    /// Compares all bytes of all volumes with the model.
    async fn compare_all(&mut self) {
        for (name, model) in self.models.clone() {
            let device = self.device(&name);
            assert_eq!(read(&device, 0, model.blocks.len() as u64).await, model.blocks, "{name}");
        }
    }
}

/// Goal: volumes, snapshots and clones behave like arrays of bytes, also after reopening and in a
/// full pool.
#[test]
fn volumes_follow_the_model() {
    let mut full = 0;
    for seed in seeds(12) {
        println!("seed {seed}");
        full += run(async {
            let mut scene = Scene::new(seed).await;
            for _ in 0..400 {
                scene.step().await;
            }
            scene.compare_all().await;
            scene.reopen().await;
            scene.compare_all().await;
            let names: Vec<String> = scene.models.keys().cloned().collect();
            scene.devices.clear();
            for name in names {
                scene.pool.remove(&name).await.unwrap();
            }
            scene.reopen().await;
            let usage = scene.pool.usage();
            assert_eq!((usage.free, usage.pages), (usage.size, 0), "all is free again");
            scene.full
        });
    }
    assert!(full > 0, "no pool was full");
}

/// Goal: in a full pool only writes that need space fail, and discarded space can be used again.
#[test]
fn a_full_pool_goes_on() {
    run(async {
        let (memory, pool) = pool(6 << 20).await;
        let clusters = pool.usage().size / CLUSTER;
        pool.create("a", (clusters + 1) * CLUSTER).await.unwrap();
        let device = pool.volume("a").unwrap().attach();
        for cluster in 0..clusters {
            write(&device, cluster * BLOCKS_PER_CLUSTER, &[cluster + 1]).await.unwrap();
        }
        let failed = write(&device, clusters * BLOCKS_PER_CLUSTER, &[7]).await;
        assert!(matches!(failed, Err(block::Error::NoSpace { .. })), "{failed:?}");
        assert_eq!(failed.unwrap_err().to_errno(), 28);
        write(&device, 1, &[8]).await.unwrap();
        assert_eq!(read(&device, 0, 2).await, [1, 8]);
        device.discard(CLUSTER, CLUSTER).await.unwrap();
        write(&device, clusters * BLOCKS_PER_CLUSTER, &[9]).await.unwrap();
        assert_eq!(read(&device, BLOCKS_PER_CLUSTER, 2).await, [0, 0]);
        assert_eq!(read(&device, clusters * BLOCKS_PER_CLUSTER, 2).await, [9, 0]);
        device.flush().await.unwrap();
        assert_sound(&memory).await;
    });
}

/// Goal: impossible requests are refused with the reason, and change nothing.
#[test]
fn wrong_requests_are_refused() {
    run(async {
        let (memory, pool) = pool(6 << 20).await;
        pool.create("a", CLUSTER).await.unwrap();
        for name in ["", "-a", ".a", "a/b", "a b", "ä", &"a".repeat(65)] {
            assert!(matches!(pool.create(name, CLUSTER).await, Err(Error::Name(_))), "{name}");
        }
        for size in [0, 1, CLUSTER + 4096, u64::MAX, (1 << 28) * CLUSTER] {
            assert!(matches!(pool.create("b", size).await, Err(Error::Size { .. })), "{size}");
        }
        assert!(matches!(pool.create("a", CLUSTER).await, Err(Error::Exists(_))));
        assert!(matches!(pool.snapshot("x", "s").await, Err(Error::NoSuchVolume(_))));
        assert!(matches!(pool.clone_snapshot("a", "c").await, Err(Error::NotASnapshot(_))));
        pool.snapshot("a", "s").await.unwrap();
        assert!(matches!(pool.resize("s", 2 * CLUSTER).await, Err(Error::IsSnapshot(_))));
        let device = pool.volume("s").unwrap().attach();
        assert!(matches!(device.write_zeroes(0, BLOCK).await, Err(block::Error::ReadOnly { .. })));
        assert!(matches!(device.read(CLUSTER, 4096).await, Err(block::Error::OutOfRange { .. })));
        assert!(matches!(device.read(1, 4096).await, Err(block::Error::Unaligned { .. })));
        assert!(matches!(pool.remove("s").await, Err(Error::InUse(_))));
        assert_eq!(pool.list().len(), 2);
        assert_eq!(pool.list()[1].origin.as_deref(), Some("a"));
        assert_sound(&memory).await;
        let empty = MemoryBacking::new(6 << 20, 4096).unwrap();
        assert!(matches!(Pool::open(Arc::new(empty.clone())).await, Err(Error::NotAPool)));
        assert!(!volume::has_pool(&empty).await.unwrap());
        let wrong = Pool::format(&empty, 96 << 10).await;
        assert!(matches!(wrong, Err(Error::ClusterSize(_))));
    });
}
