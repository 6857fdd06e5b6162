//! Operations as they end, for one who looks at a time.
//!
//! While nobody looks this costs a load for each operation. Each thread keeps what ended in a list of its own; what
//! does not fit before the next look is dropped and counted.

use crate::family::Family;
use crate::slow::Ended;
use crate::snapshot::Wait;
use crate::thread::blocks;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Operations of one thread that are kept between two looks.
const KEPT: usize = 16 << 10;

/// The errno of an operation that was given up (`ECANCELED`).
pub(crate) const GIVEN_UP: i32 = 125;

static IS_ON: AtomicBool = AtomicBool::new(false);

/// Whether somebody looks.
pub(crate) fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// An operation that ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) ended: Ended,
    pub(crate) bytes: u64,
    pub(crate) errno: i32,
    pub(crate) is_inner: bool,
}

#[derive(Debug, Default)]
struct List {
    records: Vec<Record>,
    dropped: u64,
}

/// What a thread keeps between two looks.
#[derive(Debug, Default)]
pub(crate) struct Events(Mutex<List>);

impl Events {
    pub(crate) fn add(&self, record: Record) {
        let mut list = self.lock();
        if list.records.len() < KEPT {
            list.records.push(record);
        } else {
            list.dropped += 1;
        }
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An operation, as a trace shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When it began, in nanoseconds since the machine has booted.
    pub started_ns: u64,
    /// How long it took.
    pub ns: u64,
    /// Its family.
    pub family: Family,
    /// Its name.
    pub name: String,
    /// Its subject; 0 if it has none.
    pub subject: u64,
    /// The thread that it was for, as the kernel names it to FUSE; 0 if that is not known.
    pub pid: u32,
    /// Data that it carried.
    pub bytes: u64,
    /// Its error; 0 if it went well.
    pub errno: i32,
    /// It was a wait of another operation, which ends later.
    pub is_inner: bool,
    /// Its longest wait.
    pub longest: Option<Wait>,
}

/// Events since the last look.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// In the order of their ends, as far as threads agree on the time.
    pub events: Vec<Event>,
    /// Events that did not fit.
    pub dropped: u64,
}

/// While it lives, operations are kept for it.
#[derive(Debug)]
pub struct Tracer(());

impl Tracer {
    /// Begins; `None` if somebody else looks.
    pub fn begin() -> Option<Tracer> {
        if IS_ON.swap(true, Ordering::Relaxed) {
            return None;
        }
        let tracer = Tracer(());
        // What the last one has left.
        let _ = tracer.look();
        Some(tracer)
    }

    /// Takes what has ended since the last look.
    pub fn look(&self) -> Look {
        let mut look = Look::default();
        for block in blocks() {
            let list = std::mem::take(&mut *block.events.lock());
            look.dropped += list.dropped;
            look.events.extend(list.records.iter().filter_map(|record| {
                let ended = record.ended;
                let point = block.point(ended.code)?;
                Some(Event {
                    started_ns: ended.at_ns.saturating_sub(ended.ns),
                    ns: ended.ns,
                    family: point.family,
                    name: point.name.into(),
                    subject: ended.subject,
                    pid: ended.pid,
                    bytes: record.bytes,
                    errno: record.errno,
                    is_inner: record.is_inner,
                    longest: ended.longest.and_then(|longest| Wait::of(&block, longest)),
                })
            }));
        }
        look.events.sort_by_key(|event| event.started_ns + event.ns);
        look
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        IS_ON.store(false, Ordering::Relaxed);
    }
}
