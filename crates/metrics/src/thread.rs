//! The memory that each thread writes, and the list of all threads.

use crate::cells::Cells;
use crate::family::{Family, Point};
use crate::slots::{SLOTS, Slot, SlotId};
use crate::slow::Slowest;
use crate::trace::Events;
use reactor::relay::{self, State};
use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Most operations of a family.
const OPERATIONS: usize = 256;

/// The counts of a family's operations, by index; each is made when it is first used.
type Table = Box<[OnceLock<Box<Cells>>]>;

/// The memory that one thread writes.
#[derive(Debug)]
pub(crate) struct Block {
    families: [OnceLock<Table>; Family::ALL.len()],
    slots: Box<[Slot]>,
    pub(crate) slowest: Slowest,
    pub(crate) events: Events,
}

impl Block {
    fn new(slots: usize) -> Block {
        Block {
            families: [const { OnceLock::new() }; Family::ALL.len()],
            slots: (0..slots).map(|_| Slot::default()).collect(),
            slowest: Slowest::default(),
            events: Events::default(),
        }
    }

    /// Returns the counts of an operation.
    pub(crate) fn cells(&self, point: Point) -> &Cells {
        let family = self.families[point.family as usize]
            .get_or_init(|| (0..OPERATIONS).map(|_| OnceLock::new()).collect());
        family[usize::from(point.index)].get_or_init(|| Box::new(Cells::new(point.name)))
    }

    /// Returns all operations that were counted.
    pub(crate) fn counted(&self) -> impl Iterator<Item = (Family, u8, &Cells)> {
        Family::ALL.into_iter().flat_map(|family| {
            let cells = self.families[family as usize].get().into_iter().flatten().enumerate();
            cells.filter_map(move |(index, cells)| Some((family, index as u8, &**cells.get()?)))
        })
    }

    /// Returns the name of an operation by its code.
    pub(crate) fn point(&self, code: u32) -> Option<Point> {
        let (family, index) = Point::of_code(code)?;
        let cells = self.families[family as usize].get()?[usize::from(index)].get()?;
        Some(Point { family, index, name: cells.name })
    }

    /// Returns the slots of running operations.
    pub(crate) fn running(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter(|slot| slot.code.load(Relaxed) != 0)
    }

    /// Returns a slot, if it still belongs to the same operation.
    pub(crate) fn slot(&self, slot_id: SlotId) -> Option<&Slot> {
        let slot = &self.slots[slot_id.index as usize];
        (slot.generation.load(Relaxed) == slot_id.generation).then_some(slot)
    }
}

/// The blocks of all threads, and the sum of those that have ended.
struct Registry {
    living: Vec<Arc<Block>>,
    ended: Option<Arc<Block>>,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry { living: Vec::new(), ended: None });

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the blocks of all threads.
pub(crate) fn blocks() -> Vec<Arc<Block>> {
    let registry = registry();
    registry.living.iter().chain(&registry.ended).cloned().collect()
}

/// A thread's side of its block.
#[derive(Debug)]
pub(crate) struct Local {
    pub(crate) block: Arc<Block>,
    /// The operation that is polled.
    pub(crate) current: Cell<Option<SlotId>>,
    free: RefCell<Vec<u32>>,
}

impl Local {
    fn new() -> Local {
        let block = Arc::new(Block::new(SLOTS));
        registry().living.push(Arc::clone(&block));
        let free = RefCell::new((0..SLOTS as u32).rev().collect());
        Local { block, current: Cell::new(None), free }
    }

    /// Takes a slot, if one is free.
    pub(crate) fn take_slot(&self) -> Option<u32> {
        self.free.borrow_mut().pop()
    }

    /// Returns the slot of this index.
    pub(crate) fn slot_at(&self, index: u32) -> &Slot {
        &self.block.slots[index as usize]
    }

    /// Frees a slot.
    pub(crate) fn free_slot(&self, index: u32) {
        self.slot_at(index).code.store(0, Relaxed);
        self.free.borrow_mut().push(index);
    }
}

impl Drop for Local {
    /// Adds the counts of the ending thread to those of earlier ones, so that they stay.
    fn drop(&mut self) {
        let mut registry = registry();
        registry.living.retain(|block| !Arc::ptr_eq(block, &self.block));
        let ended = registry.ended.get_or_insert_with(|| Arc::new(Block::new(0)));
        for (family, index, cells) in self.block.counted() {
            ended.cells(Point { family, index, name: cells.name }).merge(cells);
        }
        for slow in self.block.slowest.since_minute(reactor::time::boot_time()) {
            ended.slowest.keep(slow);
        }
    }
}

thread_local! {
    static LOCAL: State<Local> = const { State::new(Local::new) };
}

/// Runs `f` with this thread's side; `None` while the thread ends.
pub(crate) fn with_local<T>(f: impl FnOnce(&Local) -> T) -> Option<T> {
    relay::with(&LOCAL, f)
}

/// Lets the runners of this thread's reactor count as part of this thread: a
/// [`Share`](relay::Share).
pub fn share() -> Box<dyn FnOnce() + Send> {
    relay::share(&LOCAL)
}
