//! A layer that injects faults by a seeded plan: errors, delays and torn writes.
//!
//! The devices of all threads share the plan and its generator (behind a lock, because this layer
//! is for tests), so a single-threaded run repeats exactly from its seed.

use crate::device::{Backing, Device, Geometry};
use crate::error::{Access, Error};
use crate::future::IoFuture;
use crate::incarnation::Incarnation;
use reactor::{Chunk, Segments};
use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The probability of each fault, per million commands.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultPlan {
    /// A read fails with `EIO`.
    pub read_error_ppm: u32,
    /// A write, discard or write-zeroes fails with `EIO` and changes nothing.
    pub write_error_ppm: u32,
    /// A write changes only its first blocks and fails with `EIO`.
    pub torn_write_ppm: u32,
    /// A flush fails with `EIO`.
    pub flush_error_ppm: u32,
    /// A command takes longer, by up to `delay_max`.
    pub delay_ppm: u32,
    /// The longest injected delay.
    pub delay_max: Duration,
}

/// Number of injected faults so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Failed commands, without torn writes.
    pub errors: u64,
    /// Torn writes.
    pub torn_writes: u64,
    /// Delayed commands.
    pub delays: u64,
}

struct State {
    plan: FaultPlan,
    counts: FaultCounts,
    seed: u64,
}

impl State {
    /// Returns the next number of a splitmix64 sequence.
    fn next(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn hits(&mut self, ppm: u32) -> bool {
        self.next() % 1_000_000 < u64::from(ppm)
    }
}

/// The faults for one command.
struct Verdict {
    delay: Option<Duration>,
    error: Option<Error>,
    /// Number of bytes to write before failing.
    torn_len: Option<usize>,
}

impl Verdict {
    fn is_clean(&self) -> bool {
        self.delay.is_none() && self.error.is_none() && self.torn_len.is_none()
    }
}

/// A backing that injects faults; clones share plan, seed and counts.
#[derive(Clone)]
pub struct Fault {
    inner: Arc<dyn Backing>,
    state: Arc<Mutex<State>>,
}

impl Fault {
    /// Puts the layer over `inner`.
    pub fn new(inner: Arc<dyn Backing>, seed: u64, plan: FaultPlan) -> Self {
        let state = State { plan, counts: FaultCounts::default(), seed };
        Self { inner, state: Arc::new(Mutex::new(state)) }
    }

    /// Changes the plan from the next command on.
    pub fn set_plan(&self, plan: FaultPlan) {
        self.lock().plan = plan;
    }

    /// Returns the number of injected faults so far.
    pub fn counts(&self) -> FaultCounts {
        self.lock().counts
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn judge(&self, access: Access, offset: u64, len: u64, block_size: u32) -> Verdict {
        let mut state = self.lock();
        let plan = state.plan;
        let mut verdict = Verdict { delay: None, error: None, torn_len: None };
        if state.hits(plan.delay_ppm) {
            let ns = state.next() % (plan.delay_max.as_nanos() as u64).max(1);
            verdict.delay = Some(Duration::from_nanos(ns));
            state.counts.delays += 1;
        }
        let eio = || Error::io(access, offset, len, io::Error::from_raw_os_error(libc::EIO));
        let error_ppm = match access {
            Access::Read => plan.read_error_ppm,
            Access::Flush => plan.flush_error_ppm,
            Access::Write | Access::Discard | Access::WriteZeroes => plan.write_error_ppm,
        };
        if access == Access::Write && state.hits(plan.torn_write_ppm) {
            let blocks = (len / u64::from(block_size)).max(1);
            let kept = state.next() % blocks;
            verdict.torn_len = Some((kept * u64::from(block_size)) as usize);
            verdict.error = Some(eio());
            state.counts.torn_writes += 1;
        } else if state.hits(error_ppm) {
            verdict.error = Some(eio());
            state.counts.errors += 1;
        }
        verdict
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fault").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl Backing for Fault {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn incarnation(&self) -> Incarnation {
        self.inner.incarnation()
    }

    fn attach(&self) -> Rc<dyn Device> {
        Rc::new(FaultDevice { inner: self.inner.attach(), fault: self.clone() })
    }
}

struct FaultDevice {
    inner: Rc<dyn Device>,
    fault: Fault,
}

impl FaultDevice {
    /// Runs a command, unless the verdict makes it fail.
    fn run<T: 'static>(
        &self,
        (access, offset, len): (Access, u64, u64),
        start: impl FnOnce(&dyn Device) -> IoFuture<T> + 'static,
    ) -> IoFuture<T> {
        let block_size = self.inner.geometry().block_size;
        let verdict = self.fault.judge(access, offset, len, block_size);
        if verdict.is_clean() {
            return start(&*self.inner);
        }
        let inner = Rc::clone(&self.inner);
        IoFuture::boxed(async move {
            if let Some(delay) = verdict.delay {
                reactor::time::sleep(delay).await;
            }
            match verdict.error {
                Some(error) => Err(error),
                None => start(&*inner).await,
            }
        })
    }

    fn write_list(&self, offset: u64, chunks: Vec<Chunk>) -> IoFuture<()> {
        let geometry = self.inner.geometry();
        let len = chunks.iter().map(Chunk::len).sum::<usize>() as u64;
        let checked = geometry.check(Access::Write, offset, len);
        if checked.is_err() {
            return IoFuture::ready(checked);
        }
        let verdict = self.fault.judge(Access::Write, offset, len, geometry.block_size);
        if verdict.is_clean() {
            return self.inner.write_chunks(offset, chunks);
        }
        let inner = Rc::clone(&self.inner);
        IoFuture::boxed(async move {
            if let Some(delay) = verdict.delay {
                reactor::time::sleep(delay).await;
            }
            if let Some(len) = verdict.torn_len.filter(|&len| len > 0) {
                inner.write_chunks(offset, shortened(chunks, len)).await?;
            } else if verdict.error.is_none() {
                inner.write_chunks(offset, chunks).await?;
            }
            verdict.error.map_or(Ok(()), Err)
        })
    }
}

/// Returns the first `len` bytes of `chunks`.
fn shortened(chunks: Vec<Chunk>, mut len: usize) -> Vec<Chunk> {
    let mut kept = Vec::new();
    for chunk in chunks {
        let here = len.min(chunk.len());
        if here > 0 {
            kept.push(chunk.slice(..here));
        }
        len -= here;
    }
    kept
}

impl Device for FaultDevice {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn incarnation(&self) -> Incarnation {
        self.inner.incarnation()
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Chunk> {
        self.run((Access::Read, offset, len as u64), move |inner| inner.read(offset, len))
    }

    fn read_into(&self, offset: u64, segments: Segments) -> IoFuture<Segments> {
        let len = segments.iter().map(reactor::Segment::len).sum::<usize>() as u64;
        self.run((Access::Read, offset, len), move |inner| inner.read_into(offset, segments))
    }

    fn write(&self, offset: u64, chunk: Chunk) -> IoFuture<()> {
        self.write_list(offset, vec![chunk])
    }

    fn write_chunks(&self, offset: u64, chunks: Vec<Chunk>) -> IoFuture<()> {
        self.write_list(offset, chunks)
    }

    fn flush(&self) -> IoFuture<()> {
        self.run((Access::Flush, 0, 0), |inner| inner.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.run((Access::Discard, offset, len), move |inner| inner.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.run((Access::WriteZeroes, offset, len), move |inner| inner.write_zeroes(offset, len))
    }
}
