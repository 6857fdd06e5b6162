//! What volumes may contain: for each block, the writes that may have come last.

use std::collections::BTreeMap;

/// A write of a block, or a discard, which writes 0.
#[derive(Clone, Copy, Debug)]
struct Write {
    value: u64,
    start: u64,
    /// When it ended, if it has.
    end: Option<u64>,
    /// It has succeeded.
    is_sure: bool,
}

/// A block of a volume.
#[derive(Clone, Debug)]
pub(super) struct Block {
    /// Possible values before all writes.
    base: Vec<u64>,
    writes: Vec<Write>,
}

impl Block {
    pub(super) fn of(value: u64) -> Block {
        Block { base: vec![value], writes: Vec::new() }
    }

    /// Returns the values that no successful write has certainly replaced, of those that ended
    /// before `before`.
    pub(super) fn values(&self, before: u64) -> Vec<u64> {
        let settled = |write: &&Write| write.is_sure && write.end.is_some_and(|end| end < before);
        let last = self.writes.iter().filter(settled).map(|write| write.start).max();
        let is_left = |end: Option<u64>| last.is_none_or(|last| end.is_none_or(|end| end > last));
        let base = self.base.iter().filter(|_| last.is_none()).copied();
        base.chain(self.writes.iter().filter(|it| is_left(it.end)).map(|it| it.value)).collect()
    }

    /// The block certainly has this value and no write is under way.
    pub(super) fn pin(&mut self, value: u64) {
        *self = Block::of(value);
    }

    /// Forgets writes; before the next one the block has one of their values.
    fn settle(&mut self, before: u64) {
        *self = Block { base: self.values(before), writes: Vec::new() };
    }
}

/// A volume.
#[derive(Clone, Debug)]
pub(super) struct Volume {
    pub(super) is_snapshot: bool,
    pub(super) blocks: Vec<Block>,
    /// Commands under way.
    pub(super) users: usize,
    /// No command may begin.
    pub(super) is_closed: bool,
}

impl Volume {
    pub(super) fn new(blocks: Vec<Block>, is_snapshot: bool) -> Volume {
        Volume { is_snapshot, blocks, users: 0, is_closed: false }
    }
}

/// A change of the list of volumes that is under way.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Create(String, usize),
    Remove(String),
    Resize(String, usize),
    /// A copy of a volume to another name, a snapshot or a clone.
    Copy {
        from: String,
        to: String,
        is_snapshot: bool,
    },
    /// A volume that may exist.
    Exists(String, Volume),
}

/// All volumes of a pool.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) volumes: BTreeMap<String, Volume>,
    /// The change under way, with its start.
    pub(super) change: Option<(Change, u64)>,
    now: u64,
    /// What ended before this time survives a power cut.
    durable: u64,
    pub(super) violations: Vec<String>,
}

impl Model {
    /// Returns the next moment.
    pub(super) fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// Notes that a write of values from `first` on has begun. Returns its start.
    pub(super) fn begin(&mut self, name: &str, first: usize, values: &[u64]) -> u64 {
        let start = self.tick();
        let volume = self.volumes.get_mut(name).expect("a volume");
        for (block, value) in volume.blocks[first..].iter_mut().zip(values) {
            block.writes.push(Write { value: *value, start, end: None, is_sure: false });
        }
        start
    }

    /// Notes that the write that began at `start` has ended.
    pub(super) fn end(&mut self, name: &str, start: u64, is_sure: bool) {
        let now = self.tick();
        let volume = self.volumes.get_mut(name).expect("a volume");
        let writes = volume.blocks.iter_mut().flat_map(|block| &mut block.writes);
        for write in writes.filter(|write| write.start == start) {
            (write.end, write.is_sure) = (Some(now), is_sure);
        }
    }

    /// Notes that the write that began at `start` was refused and changes nothing.
    pub(super) fn refused(&mut self, name: &str, start: u64) {
        let volume = self.volumes.get_mut(name).expect("a volume");
        for block in &mut volume.blocks {
            block.writes.retain(|write| write.start != start);
        }
    }

    /// Notes that all that ended before `start` is durable.
    pub(super) fn flushed(&mut self, start: u64) {
        self.durable = self.durable.max(start);
    }

    /// Compares what a read that began at `start` found from a block on.
    pub(super) fn found(&mut self, name: &str, start: u64, first: usize, values: &[u64]) {
        let volume = self.volumes.get_mut(name).expect("a volume");
        for (at, (block, value)) in volume.blocks[first..].iter_mut().zip(values).enumerate() {
            let allowed = block.values(start);
            if !allowed.contains(value) {
                let at = first + at;
                let text = format!(
                    "block {at} of {name} is {value}, not one of {allowed:?}: read from {start} on, {block:?}"
                );
                self.violations.push(text);
            }
            if volume.is_snapshot {
                // It never changes.
                block.pin(*value);
            }
        }
    }

    /// Returns the blocks of a copy that was begun at `start`.
    pub(super) fn copy_of(&self, from: &str, start: u64) -> Vec<Block> {
        let mut blocks = self.volumes[from].blocks.clone();
        for block in &mut blocks {
            block.settle(start);
        }
        blocks
    }

    /// Notes that the pool's process has ended, so that only what is durable is certain.
    pub(super) fn cut(&mut self) {
        self.now += 1;
        if let Some((Change::Copy { from, to, is_snapshot }, start)) = self.change.clone() {
            let volume = Volume::new(self.copy_of(&from, start), is_snapshot);
            self.change = Some((Change::Exists(to, volume), start));
        }
        let durable = self.durable;
        for volume in self.volumes.values_mut() {
            (volume.users, volume.is_closed) = (0, false);
            volume.blocks.iter_mut().for_each(|block| block.settle(durable));
        }
    }

    /// Takes over from a pool that has been opened whether the last change was made: `sizes` are
    /// the volumes with their blocks.
    pub(super) fn opened(&mut self, sizes: &BTreeMap<String, usize>) {
        match self.change.take().map(|(change, _)| change) {
            Some(Change::Create(name, blocks)) if sizes.contains_key(&name) => {
                self.volumes.insert(name, Volume::new(vec![Block::of(0); blocks], false));
            }
            Some(Change::Remove(name)) if !sizes.contains_key(&name) => {
                self.volumes.remove(&name);
            }
            Some(Change::Resize(name, blocks)) if sizes.get(&name) == Some(&blocks) => {
                let volume = self.volumes.get_mut(&name).expect("a volume");
                volume.blocks.resize(blocks, Block::of(0));
            }
            Some(Change::Exists(name, volume)) if sizes.contains_key(&name) => {
                self.volumes.insert(name, volume);
            }
            _ => {}
        }
        self.durable = self.tick();
    }

    /// Compares the volumes of a pool, with their blocks, with these.
    pub(super) fn has(&mut self, sizes: &BTreeMap<String, usize>) {
        let known = self.volumes.iter().map(|(name, it)| (name.clone(), it.blocks.len()));
        let known: BTreeMap<String, usize> = known.collect();
        if known != *sizes {
            self.violations.push(format!("the pool has {sizes:?}, not {known:?}"));
        }
    }
}
