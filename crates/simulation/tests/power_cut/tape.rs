//! A record of the actions of the metadata store and the devices, from which the state at any
//! moment can be rebuilt.

use block::{Backing, Log, MemoryBacking, Survival};
use meta::store::{Batch, Error, MemoryStore, Pair, Scan, Store, Syncer};
use std::sync::{Arc, Mutex};

/// The device's block.
pub(crate) const BLOCK_BYTES: u32 = 4096;
/// The content of blocks that were never written.
pub(crate) const JUNK: u8 = 0xee;

/// Random choices that a seed repeats.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        // Splitmix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit.max(1)
    }
}

/// One event of the store, and the positions of the devices' records at that time.
struct Event {
    what: What,
    devices: Vec<usize>,
}

enum What {
    Commit(Batch),
    /// A sync ended that covers this number of commits.
    Synced(usize),
}

#[derive(Default)]
struct Events {
    events: Vec<Event>,
    commits: usize,
}

/// All events; clones share them.
#[derive(Clone)]
pub(crate) struct Tape {
    store: MemoryStore,
    device_bytes: u64,
    pub(crate) devices: Vec<Log>,
    events: Arc<Mutex<Events>>,
}

/// The state after a power loss.
pub(crate) struct Left {
    pub(crate) store: MemoryStore,
    pub(crate) images: Vec<Vec<u8>>,
}

impl Tape {
    pub(crate) fn new(devices: usize, device_bytes: u64) -> Tape {
        let memory = || MemoryBacking::new(device_bytes, BLOCK_BYTES).unwrap();
        let devices = (0..devices).map(|_| Log::new(Arc::new(memory()))).collect();
        Tape { store: MemoryStore::new(), device_bytes, devices, events: Arc::default() }
    }

    /// Returns the present moment: the number of events of the store.
    pub(crate) fn now(&self) -> usize {
        self.events.lock().unwrap().events.len()
    }

    /// Returns how often the store was synced.
    pub(crate) fn syncs(&self) -> usize {
        let events = self.events.lock().unwrap();
        events.events.iter().filter(|event| matches!(event.what, What::Synced(_))).count()
    }

    fn note(&self, what: What) {
        let devices = self.devices.iter().map(Log::len).collect();
        let mut events = self.events.lock().unwrap();
        events.commits += usize::from(matches!(what, What::Commit(_)));
        events.events.push(Event { what, devices });
    }

    /// Returns the state when some machines lose power at a moment: `None` is the store's machine,
    /// a number that of a device.
    pub(crate) fn cut(
        &self,
        moment: usize,
        is_off: impl Fn(Option<usize>) -> bool,
        random: &mut Random,
    ) -> Left {
        let events = self.events.lock().unwrap();
        let (before, after) = events.events.split_at(moment);
        let mut batches = Vec::new();
        let mut synced = 0;
        for event in before {
            match &event.what {
                What::Commit(batch) => batches.push(batch.clone()),
                What::Synced(count) => synced = *count,
            }
        }
        if is_off(None) {
            let kept = synced + random.below((batches.len() - synced) as u64 + 1) as usize;
            batches.truncate(kept);
        }
        let mut store = MemoryStore::new();
        for batch in batches {
            store.commit(&batch).unwrap();
        }
        store.sync().unwrap();
        let images = self.devices.iter().enumerate().map(|(index, device)| {
            let least = before.last().map_or(0, |event| event.devices[index]);
            let most = after.first().map_or(device.len(), |event| event.devices[index]);
            let prefix = least + random.below((most - least) as u64 + 1) as usize;
            let mut image = vec![JUNK; self.device_bytes as usize];
            device.replay(prefix, &mut image, |_, _, length| match random.below(3) {
                _ if !is_off(Some(index)) => Survival::Whole,
                0 => Survival::Whole,
                1 => Survival::Lost,
                _ => {
                    let blocks = length.div_ceil(BLOCK_BYTES as usize);
                    Survival::Torn((0..blocks).map(|_| random.below(2) == 0).collect())
                }
            });
            image
        });
        let images = images.collect();
        Left { store, images }
    }
}

impl Store for Tape {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.store.get(key)
    }

    fn scan(&self, scan: Scan<'_>) -> Result<Vec<Pair>, Error> {
        self.store.scan(scan)
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), Error> {
        self.store.commit(batch)?;
        self.note(What::Commit(batch.clone()));
        Ok(())
    }

    fn syncer(&self) -> Box<dyn Syncer> {
        Box::new(self.clone())
    }
}

impl Syncer for Tape {
    fn sync(&self) -> Result<(), Error> {
        let commits = self.events.lock().unwrap().commits;
        self.note(What::Synced(commits));
        Ok(())
    }
}

/// Fills a device with an image.
pub(crate) async fn device_of(image: Vec<u8>) -> Arc<dyn Backing> {
    let backing = MemoryBacking::new(image.len() as u64, BLOCK_BYTES).unwrap();
    let chunk = reactor::Chunk::Shared(reactor::Buffer::copy_from(&image).freeze());
    Backing::attach(&backing).write(0, chunk).await.unwrap();
    Arc::new(backing)
}
