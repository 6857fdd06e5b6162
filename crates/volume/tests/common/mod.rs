//! Helpers for the tests.
#![allow(dead_code, reason = "each test uses a part")]

use block::{Backing, Device, MemoryBacking};
use reactor::{Buffer, Config, Runtime};
use std::rc::Rc;
use std::sync::Arc;
use volume::Pool;

pub(crate) const BLOCK: u64 = 4096;
pub(crate) const CLUSTER: u64 = 64 << 10;

/// A splitmix64 sequence.
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

pub(crate) fn run<F: Future>(future: F) -> F::Output {
    Runtime::new(&Config::default()).unwrap().block_on(future)
}

/// Returns the seeds to run: `SEEDS` of them, or `default`.
pub(crate) fn seeds(default: u64) -> std::ops::Range<u64> {
    let count = std::env::var("SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let first = std::env::var("SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    first..first + count
}

/// Returns memory with random content, like a used disk.
pub(crate) async fn dirty_memory(size: u64) -> MemoryBacking {
    let memory = MemoryBacking::new(size, BLOCK as u32).unwrap();
    let garbage = Buffer::copy_from(&vec![0xa5; size as usize]);
    memory.attach().write(0, garbage.into()).await.unwrap();
    memory
}

pub(crate) async fn pool(size: u64) -> (MemoryBacking, Pool) {
    let memory = dirty_memory(size).await;
    Pool::format(&memory, CLUSTER as u32).await.unwrap();
    let pool = Pool::open(Arc::new(memory.clone())).await.unwrap();
    (memory, pool)
}

/// Returns a block filled with `stamp`.
pub(crate) fn block(stamp: u64) -> Vec<u8> {
    stamp.to_le_bytes().repeat(BLOCK as usize / 8)
}

/// Returns the stamps of blocks; each block must be filled with one.
pub(crate) fn stamps(bytes: &[u8]) -> Vec<u64> {
    let of = |block: &[u8]| {
        let stamp = u64::from_le_bytes(block[..8].try_into().unwrap());
        assert!(block.chunks(8).all(|word| word == stamp.to_le_bytes()), "a block is torn");
        stamp
    };
    bytes.chunks(BLOCK as usize).map(of).collect()
}

pub(crate) async fn read(device: &Rc<dyn Device>, first: u64, count: u64) -> Vec<u64> {
    let chunk = device.read(first * BLOCK, (count * BLOCK) as usize).await.unwrap();
    stamps(&chunk.to_bytes())
}

pub(crate) async fn write(
    device: &Rc<dyn Device>,
    first: u64,
    values: &[u64],
) -> Result<(), block::Error> {
    let bytes: Vec<u8> = values.iter().flat_map(|stamp| block(*stamp)).collect();
    device.write(first * BLOCK, Buffer::copy_from(&bytes).into()).await
}

/// Checks that the pool has no findings.
pub(crate) async fn assert_sound(backing: &dyn Backing) {
    let report = Pool::check(backing).await.unwrap();
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
}
