//! A trace of operations as they end, for one reader at a time.
//!
//! Without a reader this costs a load for each operation. Each thread keeps the operations that
//! ended in a list of its own. Operations that do not fit before the next read are dropped and
//! counted.

use crate::family::Family;
use crate::slow::Ended;
use crate::snapshot::Wait;
use crate::thread::blocks;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most operations of one thread that are kept between two reads.
const KEPT: usize = 16 << 10;

/// The errno of an operation that was given up (`ECANCELED`).
pub(crate) const GIVEN_UP: i32 = 125;

static IS_ON: AtomicBool = AtomicBool::new(false);

/// Returns whether there is a reader.
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

/// The operations that a thread keeps between two reads.
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

/// An operation in a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Its start, in nanoseconds since the boot of the machine.
    pub started_ns: u64,
    /// Its duration in nanoseconds.
    pub ns: u64,
    /// Its family.
    pub family: Family,
    /// Its name.
    pub name: String,
    /// Its subject; 0 if it has none.
    pub subject: u64,
    /// The thread that it was for, by the kernel's number in FUSE; 0 if that is not known.
    pub pid: u32,
    /// Bytes of data that it carried.
    pub bytes: u64,
    /// Its error; 0 for success.
    pub errno: i32,
    /// Whether it was a wait of another operation, which ends later.
    pub is_inner: bool,
    /// Its longest wait.
    pub longest: Option<Wait>,
}

/// The events since the last read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// The events in the order of their ends, as far as threads agree on the time.
    pub events: Vec<Event>,
    /// Number of events that did not fit.
    pub dropped: u64,
}

/// The reader of a trace: operations are kept while it lives.
#[derive(Debug)]
pub struct Tracer(());

impl Tracer {
    /// Starts a trace; `None` if there is another reader.
    pub fn begin() -> Option<Tracer> {
        if IS_ON.swap(true, Ordering::Relaxed) {
            return None;
        }
        let tracer = Tracer(());
        // Drops what the previous reader has left.
        let _ = tracer.look();
        Some(tracer)
    }

    /// Returns the operations that have ended since the last read.
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
