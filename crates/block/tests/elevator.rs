//! Compares the elevator with no queue on a device with seek costs, and tests it between threads.
#![allow(missing_docs, clippy::unwrap_used)]

use block::{
    Access, Backing, Device, Elevator, ElevatorOptions, Error, Fault, FaultPlan, Geometry,
    Incarnation, IoFuture, MemoryBacking,
};
use reactor::sim::{SimConfig, Simulation};
use reactor::time::{Instant, now, sleep_until};
use reactor::{Buffer, Chunk, Config, Segments};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const BLOCK: u64 = 4096;
const SIZE: u64 = 64 << 20;

/// A disk with one head that serves requests in their order of arrival. Each command costs the
/// seek, up to 8 ms over the whole disk, half a millisecond of rotation unless it continues where
/// the last one ended, and 10 ns per byte.
#[derive(Clone)]
struct Rotating {
    inner: MemoryBacking,
    state: Arc<Mutex<(Instant, u64)>>,
    commands: Arc<AtomicU64>,
    /// Offset of an unreadable block.
    bad: Option<u64>,
}

impl Rotating {
    fn new() -> Self {
        let inner = MemoryBacking::new(SIZE, BLOCK as u32).unwrap();
        let state = Arc::new(Mutex::new((Instant::from_ns(0), 0)));
        Self { inner, state, commands: Arc::default(), bad: None }
    }

    fn done_at(&self, offset: u64, len: u64) -> Instant {
        self.commands.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state.lock().unwrap();
        let (free, head) = *state;
        let way = offset.abs_diff(head) as f64 / SIZE as f64;
        let turn = if offset == head { 0 } else { 500_000 };
        let cost = (way * 8e6) as u64 + turn + 10 * len;
        let done = free.max(now()) + Duration::from_nanos(cost);
        *state = (done, offset + len);
        done
    }
}

impl Backing for Rotating {
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

impl Device for Rotating {
    fn geometry(&self) -> Geometry {
        Device::geometry(&self.inner)
    }

    fn incarnation(&self) -> Incarnation {
        Device::incarnation(&self.inner)
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Chunk> {
        let (done, read) = (self.done_at(offset, len as u64), self.inner.read(offset, len));
        let is_bad = self.bad.is_some_and(|bad| (offset..offset + len as u64).contains(&bad));
        IoFuture::boxed(async move {
            sleep_until(done).await;
            if is_bad {
                let source = Arc::new(std::io::Error::from_raw_os_error(libc::EIO));
                return Err(Error::Io { access: Access::Read, offset, len: len as u64, source });
            }
            read.await
        })
    }

    fn read_into(&self, offset: u64, segments: Segments) -> IoFuture<Segments> {
        self.inner.read_into(offset, segments)
    }

    fn write(&self, offset: u64, chunk: Chunk) -> IoFuture<()> {
        self.write_chunks(offset, vec![chunk])
    }

    fn write_chunks(&self, offset: u64, chunks: Vec<Chunk>) -> IoFuture<()> {
        let len = chunks.iter().map(Chunk::len).sum::<usize>() as u64;
        let (done, write) = (self.done_at(offset, len), self.inner.write_chunks(offset, chunks));
        IoFuture::boxed(async move {
            sleep_until(done).await;
            write.await
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

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Returns the simulated time of `tasks` tasks with 50 reads each; `next` returns the block of a
/// task's n-th read.
fn time_of(device: Rc<dyn Device>, tasks: u64, next: fn(u64, u64) -> u64) -> Duration {
    // Tasks run in the order in which they become ready, as on a real thread.
    let config = SimConfig { shuffle: false, ..SimConfig::default() };
    let mut simulation = Simulation::with_config(1, config);
    let ended = simulation.run(async move {
        let tasks: Vec<_> = (0..tasks)
            .map(|task| {
                let device = Rc::clone(&device);
                reactor::spawn(async move {
                    for n in 0..50 {
                        let offset = next(task, n) % (SIZE / BLOCK) * BLOCK;
                        device.read(offset, BLOCK as usize).await.unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    ended.unwrap();
    simulation.elapsed()
}

fn both(next: fn(u64, u64) -> u64) -> (Duration, Duration, u64, u64) {
    let disk = Rotating::new();
    let direct = time_of(disk.attach(), 32, next);
    let commands = disk.commands.swap(0, Ordering::Relaxed);
    let options = ElevatorOptions { depth_max: 1, ..ElevatorOptions::default() };
    let disk = Rotating::new();
    let elevator = Elevator::new(Arc::new(disk.clone()), options);
    let sorted = time_of(elevator.attach(), 32, next);
    (direct, sorted, commands, disk.commands.load(Ordering::Relaxed))
}

/// Goal: if seeks are expensive, sorting is much faster than no queue: 32 readers of random places
/// take less than half of the time, and most reads of 32 readers of neighbouring blocks are merged.
#[test]
fn the_elevator_beats_direct_where_seeking_costs() {
    let scattered = |task: u64, n: u64| {
        let mut state = task << 32 | n;
        random(&mut state);
        random(&mut state)
    };
    let (direct, sorted, commands, _) = both(scattered);
    assert_eq!(commands, 32 * 50);
    assert!(2 * sorted < direct, "{sorted:?} against {direct:?}");
    // Readers that advance through the disk side by side, the last one in front.
    let (direct, sorted, commands, merged) = both(|task, n| n * 97 * 32 + 31 - task);
    assert_eq!(commands, 32 * 50);
    assert!(merged <= 50 * 3, "{merged}");
    assert!(4 * sorted < direct, "{sorted:?} against {direct:?}");
}

/// Goal: four threads write and read through one queue, each all over the device in blocks of its
/// own. They read back what they wrote, and neighbours of different threads are merged without
/// confusion.
#[test]
fn threads_share_a_queue() {
    let memory = MemoryBacking::new(SIZE, BLOCK as u32).unwrap();
    let options = ElevatorOptions { depth_max: 2, ..ElevatorOptions::default() };
    let elevator = Elevator::new(Arc::new(memory), options);
    let handles: Vec<_> = (0..4_u64)
        .map(|thread| {
            let elevator = elevator.clone();
            reactor::thread::spawn("elevator", &Config::default(), move || load(elevator, thread))
                .unwrap()
        })
        .collect();
    for handle in handles {
        handle.join().unwrap();
    }
    assert!(elevator.merges() > 0);
}

async fn load(elevator: Elevator, thread: u64) {
    let device = elevator.attach();
    let offset = |n: u64| (n * 4 + thread) * BLOCK;
    let bytes = |n: u64| vec![(n * 7 + thread * 31) as u8; BLOCK as usize];
    for group in 0..40 {
        let numbers = || (0..16).map(|n| group * 16 + n);
        let writes: Vec<_> = numbers()
            .map(|n| device.write(offset(n), Buffer::copy_from(&bytes(n)).into()))
            .collect();
        for write in writes {
            write.await.unwrap();
        }
        let reads: Vec<_> = numbers().map(|n| device.read(offset(n), BLOCK as usize)).collect();
        for (n, read) in numbers().zip(reads) {
            assert!(read.await.unwrap().to_bytes() == bytes(n));
        }
    }
    // Both halves of a pair of neighbours are then in one request.
    let pair = [device.read(0, BLOCK as usize), device.read(BLOCK, BLOCK as usize)];
    for read in pair {
        read.await.unwrap();
    }
}

/// Goal: a thread that ends with requests at the device does not take the requests of others with
/// it.
#[test]
fn a_thread_that_goes_away_leaves_the_queue_usable() {
    let disk = MemoryBacking::new(SIZE, BLOCK as u32).unwrap();
    let slow = FaultPlan {
        delay_ppm: 1_000_000,
        delay_max: Duration::from_millis(20),
        ..FaultPlan::default()
    };
    let options = ElevatorOptions { depth_max: 1, ..ElevatorOptions::default() };
    let elevator = Elevator::new(Arc::new(Fault::new(Arc::new(disk), 1, slow)), options);
    for round in 0..20 {
        let away = elevator.clone();
        let leaving = reactor::thread::spawn("leaving", &Config::default(), move || async move {
            let device = away.attach();
            let reads: Vec<_> =
                (0..4).map(|n| device.read(n * 8 * BLOCK, BLOCK as usize)).collect();
            reactor::time::sleep(Duration::from_millis(round % 5)).await;
            drop(reads);
        })
        .unwrap();
        let stay = elevator.clone();
        let staying = reactor::thread::spawn("staying", &Config::default(), move || async move {
            let device = stay.attach();
            let mut given_up = 0;
            for n in 0..4 {
                // Reads that the other thread had dispatched for us are lost with it, and return an
                // error.
                match device.read((n * 8 + 1) * BLOCK, BLOCK as usize).await {
                    Ok(_) => {}
                    Err(Error::Io { .. }) => given_up += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            given_up
        })
        .unwrap();
        leaving.join().unwrap();
        assert!(staying.join().unwrap() < 4);
    }
}

/// Goal: of merged reads only the one that touches the bad block fails.
#[test]
fn a_bad_block_fails_its_own_read_only() {
    let disk = Rotating { bad: Some(2 * BLOCK), ..Rotating::new() };
    let elevator = Elevator::new(Arc::new(disk.clone()), ElevatorOptions::default());
    let ended = Simulation::new(1).run(async {
        let device = elevator.attach();
        let reads: Vec<_> = (0..4).map(|n| device.read(n * BLOCK, BLOCK as usize)).collect();
        for (n, read) in reads.into_iter().enumerate() {
            assert_eq!(read.await.is_err(), n == 2, "{n}");
        }
    });
    ended.unwrap();
    // One read for all four, then each separately.
    assert_eq!((elevator.merges(), disk.commands.load(Ordering::Relaxed)), (3, 5));
}
