//! Commands that overlap in time: copies, discards, snapshots, threads.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use block::{Backing, Device, Fault, FaultPlan, Geometry, Incarnation, IoFuture, MemoryBacking};
use common::{BLOCK, CLUSTER, Random, assert_sound, pool, read, run, write};
use reactor::time::sleep;
use reactor::{Chunk, Segments};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use volume::Pool;

const PER: u64 = CLUSTER / BLOCK;
const A_WHILE: Duration = Duration::from_millis(30);

/// A backing with writes that wait while it is closed, and change the device only when it opens.
#[derive(Clone)]
struct Gate {
    inner: MemoryBacking,
    /// Number of writes that will wait.
    closed: Arc<AtomicUsize>,
    is_open: Arc<AtomicBool>,
}

impl Gate {
    fn new(inner: MemoryBacking) -> Self {
        Self { inner, closed: Arc::default(), is_open: Arc::new(AtomicBool::new(true)) }
    }

    /// Makes the next write wait.
    fn hold_next(&self) {
        self.is_open.store(false, Ordering::SeqCst);
        self.closed.store(1, Ordering::SeqCst);
    }

    fn open(&self) {
        self.is_open.store(true, Ordering::SeqCst);
    }
}

impl Backing for Gate {
    fn geometry(&self) -> Geometry {
        Backing::geometry(&self.inner)
    }

    fn incarnation(&self) -> Incarnation {
        Backing::incarnation(&self.inner)
    }

    fn attach(&self) -> Rc<dyn Device> {
        Rc::new(self.clone())
    }
}

impl Device for Gate {
    fn geometry(&self) -> Geometry {
        Backing::geometry(&self.inner)
    }

    fn incarnation(&self) -> Incarnation {
        Backing::incarnation(&self.inner)
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Chunk> {
        self.inner.read(offset, len)
    }

    fn read_into(&self, offset: u64, segments: Segments) -> IoFuture<Segments> {
        self.inner.read_into(offset, segments)
    }

    fn write(&self, offset: u64, chunk: Chunk) -> IoFuture<()> {
        self.write_chunks(offset, vec![chunk])
    }

    fn write_chunks(&self, offset: u64, chunks: Vec<Chunk>) -> IoFuture<()> {
        let take = |count: usize| count.checked_sub(1);
        if self.closed.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_err() {
            return self.inner.write_chunks(offset, chunks);
        }
        let gate = self.clone();
        IoFuture::boxed(async move {
            while !gate.is_open.load(Ordering::SeqCst) {
                sleep(Duration::from_millis(1)).await;
            }
            gate.inner.write_chunks(offset, chunks).await
        })
    }

    fn flush(&self) -> IoFuture<()> {
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.inner.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.inner.write_zeroes(offset, len)
    }
}

async fn gated(size: u64) -> (Gate, Pool) {
    let (memory, pool) = pool(size).await;
    drop(pool);
    let gate = Gate::new(memory);
    let pool = Pool::open(Arc::new(gate.clone())).await.unwrap();
    (gate, pool)
}

/// Starts a task that writes.
fn begin(device: &Rc<dyn Device>, block: u64, stamp: u64) -> reactor::JoinHandle<()> {
    let device = Rc::clone(device);
    reactor::spawn(async move { write(&device, block, &[stamp]).await.unwrap() })
}

/// Goal: a write in flight when a snapshot is taken is also in the copy that a later write makes.
#[test]
fn a_snapshot_waits_for_writes_in_flight() {
    run(async {
        let (gate, pool) = gated(6 << 20).await;
        pool.create("a", 4 * CLUSTER).await.unwrap();
        let device = pool.volume("a").unwrap().attach();
        write(&device, 0, &[1, 2, 3]).await.unwrap();
        gate.hold_next();
        let early = begin(&device, 1, 20);
        reactor::yield_now().await;
        let taker = pool.clone();
        let snapshot = reactor::spawn(async move { taker.snapshot("a", "s").await });
        sleep(A_WHILE).await;
        let late = begin(&device, 2, 30);
        sleep(A_WHILE).await;
        gate.open();
        early.await.unwrap();
        snapshot.await.unwrap().unwrap();
        late.await.unwrap();
        assert_eq!(read(&device, 0, 4).await, [1, 20, 30, 0]);
        let taken = pool.volume("s").unwrap().attach();
        assert_eq!(read(&taken, 0, 4).await, [1, 20, 3, 0]);
        device.flush().await.unwrap();
        assert_sound(&gate.inner).await;
    });
}

/// Goal: of two writes to one shared cluster, or to one unmapped cluster, neither is lost.
#[test]
fn two_writes_to_one_cluster_both_count() {
    run(async {
        let (gate, pool) = gated(6 << 20).await;
        pool.create("a", 4 * CLUSTER).await.unwrap();
        let device = pool.volume("a").unwrap().attach();
        write(&device, 0, &[1, 2, 3]).await.unwrap();
        pool.snapshot("a", "s").await.unwrap();
        for first in [0, PER] {
            gate.hold_next();
            let one = begin(&device, first, 10);
            sleep(A_WHILE).await;
            let two = begin(&device, first + 2, 30);
            sleep(A_WHILE).await;
            gate.open();
            one.await.unwrap();
            two.await.unwrap();
            let middle = if first == 0 { 2 } else { 0 };
            assert_eq!(read(&device, first, 3).await, [10, middle, 30]);
        }
        let taken = pool.volume("s").unwrap().attach();
        assert_eq!(read(&taken, 0, 3).await, [1, 2, 3]);
    });
}

/// Goal: if a cluster is discarded while a write to it is in flight, it is not given to another
/// volume before the write has ended, even if the caller of the write was dropped.
#[test]
fn reuse_waits_for_writes_in_flight() {
    for is_dropped in [false, true] {
        run(async {
            let (gate, pool) = gated(6 << 20).await;
            let clusters = pool.usage().size / CLUSTER;
            pool.create("a", clusters * CLUSTER).await.unwrap();
            pool.create("b", CLUSTER).await.unwrap();
            let [one, other] = ["a", "b"].map(|name| pool.volume(name).unwrap().attach());
            for cluster in 0..clusters {
                write(&one, cluster * PER, &[1]).await.unwrap();
            }
            gate.hold_next();
            let late = begin(&one, 3, 40);
            if is_dropped {
                reactor::yield_now().await;
                // The device's future is dropped in flight.
                late.abort();
            }
            reactor::yield_now().await;
            one.discard(0, CLUSTER).await.unwrap();
            other.flush().await.unwrap();
            let taken = begin(&other, 3, 50);
            sleep(A_WHILE).await;
            assert_eq!(read(&other, 3, 1).await, [0], "it has to wait");
            gate.open();
            taken.await.unwrap();
            sleep(A_WHILE).await;
            assert_eq!(read(&other, 3, 1).await, [50]);
            assert_eq!(read(&one, 3, 1).await, [0]);
            other.flush().await.unwrap();
            assert_sound(&gate.inner).await;
        });
    }
}

/// Reads and writes one thread's blocks of the volume: every third block from `thread` on.
async fn hammer(backing: volume::VolumeBacking, thread: u64, steps: u64, blocks: u64) {
    let device = backing.attach();
    let mut random = Random(thread + 77);
    let mut known = vec![0; (blocks / 3) as usize];
    for step in 1..=steps {
        let at = random.below(blocks / 3);
        let block = at * 3 + thread;
        match random.below(10) {
            0..6 => {
                let stamp = thread << 32 | step;
                write(&device, block, &[stamp]).await.unwrap();
                known[at as usize] = stamp;
            }
            6 => {
                device.write_zeroes(block * BLOCK, BLOCK).await.unwrap();
                known[at as usize] = 0;
            }
            7 if step % 8 == 0 => device.flush().await.unwrap(),
            _ => assert_eq!(read(&device, block, 1).await, [known[at as usize]]),
        }
    }
    for (at, stamp) in known.iter().enumerate() {
        assert_eq!(read(&device, at as u64 * 3 + thread, 1).await, [*stamp], "thread {thread}");
    }
    device.flush().await.unwrap();
}

/// Goal: threads write different blocks of the same clusters while snapshots come and go and others
/// discard. Each thread reads back what it wrote.
#[test]
fn threads_share_a_volume() {
    let plan = FaultPlan {
        delay_ppm: 300_000,
        delay_max: Duration::from_micros(200),
        ..FaultPlan::default()
    };
    let memory = run(async {
        let (memory, pool) = pool(24 << 20).await;
        drop(pool);
        memory
    });
    let fault = Fault::new(Arc::new(memory.clone()), 5, plan);
    run(async {
        let pool = Pool::open(Arc::new(fault)).await.unwrap();
        let blocks = 3 * PER * 8;
        pool.create("a", blocks * BLOCK).await.unwrap();
        pool.create("other", 64 * CLUSTER).await.unwrap();
        let config = reactor::Config::default();
        let mut threads = Vec::new();
        for thread in 0..3 {
            let backing = pool.volume("a").unwrap();
            let start = move || hammer(backing, thread, 600, blocks);
            threads.push(reactor::thread::spawn("hammer", &config, start).unwrap());
        }
        let other = pool.volume("other").unwrap().attach();
        for round in 0..12 {
            write(&other, round * PER, &vec![round + 1; 3 * PER as usize]).await.unwrap();
            pool.snapshot("a", "s").await.unwrap();
            let taken = pool.volume("s").unwrap().attach();
            let first = read(&taken, 0, blocks).await;
            sleep(Duration::from_millis(5)).await;
            assert!(read(&taken, 0, blocks).await == first, "a snapshot does not change");
            drop(taken);
            other.discard(0, 64 * CLUSTER).await.unwrap();
            pool.remove("s").await.unwrap();
        }
        for thread in threads {
            thread.await.unwrap();
        }
        pool.flush().await.unwrap();
        assert_sound(&memory).await;
    });
}

/// Goal: after a failed commit nothing is reported as durable, and durable data is unharmed.
#[test]
fn a_failed_commit_is_sticky() {
    run(async {
        let (memory, pool) = pool(6 << 20).await;
        drop(pool);
        let fault = Fault::new(Arc::new(memory.clone()), 1, FaultPlan::default());
        let pool = Pool::open(Arc::new(fault.clone())).await.unwrap();
        pool.create("a", 4 * CLUSTER).await.unwrap();
        let device = pool.volume("a").unwrap().attach();
        write(&device, 0, &[1]).await.unwrap();
        device.flush().await.unwrap();
        write(&device, PER, &[2]).await.unwrap();
        fault.set_plan(FaultPlan { flush_error_ppm: 1_000_000, ..FaultPlan::default() });
        assert_eq!(device.flush().await.unwrap_err().to_errno(), 5);
        fault.set_plan(FaultPlan::default());
        assert_eq!(device.flush().await.unwrap_err().to_errno(), 5);
        assert!(write(&device, 2 * PER, &[3]).await.is_err());
        assert!(pool.create("b", CLUSTER).await.is_err());
        assert_eq!(read(&device, 0, 1).await, [1]);
        drop((device, pool));
        let pool = Pool::open(Arc::new(memory)).await.unwrap();
        let device = pool.volume("a").unwrap().attach();
        assert_eq!(read(&device, 0, 1).await, [1]);
    });
}

/// Goal: a volume grows while it is in use. Users who opened it before keep its former size and
/// continue. Data written through either device can be read through the other, in old and new
/// clusters, on both paths, and a snapshot covers both. The volume does not shrink, and cannot be
/// removed, while the former device is in use.
#[test]
fn a_volume_grows_in_use() {
    run(async {
        let (memory, pool) = pool(32 << 20).await;
        pool.create("a", 4 * CLUSTER).await.unwrap();
        let former = pool.volume("a").unwrap();
        let old = former.attach();
        write(&old, 0, &[1]).await.unwrap();
        pool.resize("a", 4096 * CLUSTER).await.unwrap();
        assert_eq!(Backing::geometry(&former).size(), 4 * CLUSTER);
        assert!(former.resized(8 * CLUSTER).is_err());
        let grown = former.resized(4096 * CLUSTER).unwrap();
        let new = grown.attach();
        assert_eq!(read(&new, 0, 1).await, [1]);
        // A part of the table that neither had, an existing cluster, and one behind the former end.
        write(&new, PER, &[2]).await.unwrap();
        write(&old, 2 * PER, &[3]).await.unwrap();
        write(&new, 4000 * PER, &[4]).await.unwrap();
        assert_eq!((read(&old, PER, 1).await, read(&new, 2 * PER, 1).await), (vec![2], vec![3]));
        assert!(write(&old, 4 * PER, &[5]).await.is_err());
        pool.snapshot("a", "s").await.unwrap();
        write(&old, PER, &[6]).await.unwrap();
        write(&new, 0, &[7]).await.unwrap();
        assert_eq!((read(&new, PER, 1).await, read(&old, 0, 1).await), (vec![6], vec![7]));
        let snapshot = pool.volume("s").unwrap().attach();
        assert_eq!(
            (read(&snapshot, 0, 1).await, read(&snapshot, PER, 1).await),
            (vec![1], vec![2])
        );
        assert_eq!(read(&snapshot, 4000 * PER, 1).await, [4]);
        drop((new, grown));
        assert!(matches!(pool.resize("a", CLUSTER).await, Err(volume::Error::InUse(_))));
        assert!(matches!(pool.remove("a").await, Err(volume::Error::InUse(_))));
        drop((old, former));
        pool.resize("a", CLUSTER).await.unwrap();
        drop(snapshot);
        pool.close().await.unwrap();
        assert_sound(&memory).await;
    });
}
