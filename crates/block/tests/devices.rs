//! Compares devices with a model in plain memory, and tests the guarantees of the layers.
#![allow(missing_docs, clippy::unwrap_used)]

use block::{
    Backing, Device, DiscardEffect, Error, Event, Fault, FaultPlan, FileBacking, FileOptions, Fill,
    Incarnation, Log, MemoryBacking, Survival, create,
};
use proptest::prelude::*;
use reactor::{Buffer, Chunk, Config, Runtime, Segment};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 64;
const SIZE: u64 = BLOCK * BLOCKS;

fn run<F: Future>(future: F) -> F::Output {
    Runtime::new(&Config::default()).unwrap().block_on(future)
}

#[derive(Clone, Debug)]
enum Command {
    Read(u64, u64),
    ReadInto(u64, u64, usize),
    Write(u64, u64, u8),
    WriteChunks(u64, Vec<u64>, u8),
    WriteZeroes(u64, u64),
    Discard(u64, u64),
    Flush,
}

fn command() -> impl Strategy<Value = Command> {
    let range = (0..BLOCKS).prop_flat_map(|start| (Just(start), 0..=(BLOCKS - start).min(9)));
    let lens = prop::collection::vec(1..3_u64, 1..4);
    prop_oneof![
        3 => range.clone().prop_map(|(start, len)| Command::Read(start, len)),
        2 => range.clone().prop_flat_map(|(start, len)| (Just((start, len)), 0..600_usize))
            .prop_map(|((start, len), shift)| Command::ReadInto(start, len, shift)),
        4 => (range.clone(), any::<u8>())
            .prop_map(|((start, len), seed)| Command::Write(start, len, seed)),
        2 => (0..BLOCKS - 9, lens, any::<u8>()).prop_map(|(s, l, b)| Command::WriteChunks(s, l, b)),
        1 => range.clone().prop_map(|(start, len)| Command::WriteZeroes(start, len)),
        1 => range.prop_map(|(start, len)| Command::Discard(start, len)),
        1 => Just(Command::Flush),
    ]
}

/// Returns distinguishable bytes for one write.
fn pattern(len: u64, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i / 7) as u8 ^ seed).collect()
}

async fn apply(device: &dyn Device, model: &mut [u8], command: &Command) {
    let part = |start: u64, len: u64| (start * BLOCK) as usize..((start + len) * BLOCK) as usize;
    match command {
        Command::Read(start, len) => {
            let chunk = device.read(start * BLOCK, (len * BLOCK) as usize).await.unwrap();
            assert!(chunk.to_bytes() == &model[part(*start, *len)]);
        }
        Command::ReadInto(start, len, shift) => {
            let bytes = (len * BLOCK) as usize;
            // Every second one in two aligned halves, the others at any place.
            let shift = if shift % 2 == 0 { 0 } else { *shift };
            let first = (bytes / 2 / 4096 * 4096 + shift).min(bytes);
            let segments = [(first, shift), (bytes - first, 0)].map(|(len, start)| {
                Segment::Buffer(Buffer::with_capacity(start + len), start..start + len)
            });
            let segments =
                device.read_into(start * BLOCK, segments.into_iter().collect()).await.unwrap();
            let buffers = segments.into_iter().map(|segment| segment.into_buffer().unwrap());
            let starts = [shift, 0].into_iter();
            let got: Vec<u8> = buffers
                .zip(starts)
                .flat_map(|(b, start)| b.get(start..).unwrap_or(&[]).to_vec())
                .collect();
            assert!(got == model[part(*start, *len)]);
        }
        Command::Write(start, len, seed) => {
            let bytes = pattern(len * BLOCK, *seed);
            let skip = usize::from(seed % 2) * 72;
            let buffer = Buffer::copy_from(&[&vec![0; skip], &bytes[..]].concat());
            let chunk = Chunk::from(buffer).slice(skip..);
            device.write(start * BLOCK, chunk).await.unwrap();
            model[part(*start, *len)].copy_from_slice(&bytes);
        }
        Command::WriteChunks(start, lens, seed) => {
            let len = lens.iter().sum::<u64>();
            let bytes = pattern(len * BLOCK, *seed);
            let mut rest = &bytes[..];
            let mut chunks = Vec::new();
            for len in lens {
                let (piece, tail) = rest.split_at((len * BLOCK) as usize);
                // Odd seeds: memory that direct I/O does not accept.
                let skip = usize::from(seed % 2) * 24;
                let buffer = Buffer::copy_from(&[&vec![0; skip], piece].concat());
                chunks.push(Chunk::from(buffer.freeze().slice(skip..)));
                rest = tail;
            }
            device.write_chunks(start * BLOCK, chunks).await.unwrap();
            model[part(*start, len)].copy_from_slice(&bytes);
        }
        Command::WriteZeroes(start, len) => {
            device.write_zeroes(start * BLOCK, len * BLOCK).await.unwrap();
            model[part(*start, *len)].fill(0);
        }
        Command::Discard(start, len) => {
            device.discard(start * BLOCK, len * BLOCK).await.unwrap();
            if device.geometry().discard == DiscardEffect::Zeroes {
                model[part(*start, *len)].fill(0);
            }
        }
        Command::Flush => device.flush().await.unwrap(),
    }
}

async fn follows_model(device: Rc<dyn Device>, commands: &[Command]) {
    let mut model = vec![0; SIZE as usize];
    for command in commands {
        apply(&*device, &mut model, command).await;
    }
    apply(&*device, &mut model, &Command::Read(0, BLOCKS)).await;
}

fn options(preallocated: bool) -> FileOptions {
    let incarnation = Incarnation::random();
    FileOptions { block_size: None, direct: true, preallocated, incarnation }
}

fn sparse_file(path: &Path) {
    std::fs::File::create(path).unwrap().set_len(SIZE).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None,
        ..ProptestConfig::default() })]

    /// Goal: a memory device behaves like an array of bytes.
    #[test]
    fn memory_follows_model(commands in prop::collection::vec(command(), 1..40)) {
        let backing = MemoryBacking::new(SIZE, BLOCK as u32).unwrap();
        run(follows_model(backing.attach(), &commands));
    }

    /// Goal: a file under O_DIRECT behaves like an array of bytes, punched or preallocated, and
    /// through the log and fault layers too.
    #[test]
    fn file_follows_model(
        commands in prop::collection::vec(command(), 1..40),
        preallocated: bool,
    ) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("device");
        sparse_file(&path);
        let backing = FileBacking::open(&path, &options(preallocated)).unwrap();
        let log = Log::new(Arc::new(backing));
        let layers = Fault::new(Arc::new(log.clone()), 1, FaultPlan::default());
        run(follows_model(layers.attach(), &commands));
        // All writes together must give exactly the device's bytes. (Discards are not recorded.)
        if preallocated {
            let mut image = vec![0; SIZE as usize];
            log.replay(usize::MAX, &mut image, |_, _, _| Survival::Whole);
            prop_assert!(image == std::fs::read(&path).unwrap());
        }
    }

    /// Goal: after any power cut the log's image contains everything that a flush covered, and
    /// every block is from some write or the old one.
    #[test]
    fn log_keeps_what_was_flushed(
        commands in prop::collection::vec(command(), 1..30),
        cut in 0.0..1.0_f64,
        seed: u64,
    ) {
        let log = Log::new(Arc::new(MemoryBacking::new(SIZE, BLOCK as u32).unwrap()));
        run(follows_model(log.attach(), &commands));
        let events = log.events();
        let prefix = (cut * events.len() as f64) as usize;
        let mut image = vec![0; SIZE as usize];
        let mut random = seed;
        log.replay(prefix, &mut image, |_, _, len| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let blocks = len / BLOCK as usize;
            Survival::Torn((0..blocks).map(|i| random >> (i % 60) & 1 == 1).collect())
        });
        // Commands ran one after the other, so the last flush before the cut covers everything
        // before it.
        let flushed = events[..prefix].iter().rposition(|e| matches!(e, Event::Flushed { .. }));
        let mut model = vec![0; SIZE as usize];
        let mut later = vec![Vec::new(); BLOCKS as usize];
        for (index, event) in events[..prefix].iter().enumerate() {
            let Event::Write { offset, data, .. } = event else { continue };
            for (i, block) in data.chunks(BLOCK as usize).enumerate() {
                let start = *offset as usize + i * BLOCK as usize;
                if flushed.is_some_and(|flushed| index < flushed) {
                    model[start..start + block.len()].copy_from_slice(block);
                    later[start / BLOCK as usize].clear();
                } else {
                    later[start / BLOCK as usize].push(block.to_vec());
                }
            }
        }
        for (number, block) in image.chunks(BLOCK as usize).enumerate() {
            let start = number * BLOCK as usize;
            let is_flushed = block == &model[start..start + BLOCK as usize];
            prop_assert!(is_flushed || later[number].iter().any(|write| write == block));
        }
    }
}

/// Goal: misaligned and out-of-range accesses are typed errors on every device and reach no back
/// end.
#[test]
fn bad_ranges_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("device");
    sparse_file(&path);
    let file = FileBacking::open(&path, &options(false)).unwrap();
    let memory = MemoryBacking::new(SIZE, BLOCK as u32).unwrap();
    let log = Log::new(Arc::new(memory.clone()));
    run(async {
        for device in [file.attach(), memory.attach(), log.attach()] {
            let odd = device.read(1, 4096).await.unwrap_err();
            assert!(matches!(odd, Error::Unaligned { offset: 1, block_size: 4096, .. }));
            assert_eq!(odd.to_errno(), libc::EINVAL);
            let short = device.write(0, Chunk::copy_from(b"few")).await.unwrap_err();
            assert!(matches!(short, Error::Unaligned { len: 3, .. }));
            let far = device.discard(SIZE, BLOCK).await.unwrap_err();
            assert!(matches!(far, Error::OutOfRange { size: SIZE, .. }));
            let wrapping = device.write_zeroes(u64::MAX - BLOCK + 1, BLOCK).await.unwrap_err();
            assert!(matches!(wrapping, Error::OutOfRange { .. }));
        }
        assert!(log.is_empty());
    });
    assert!(matches!(MemoryBacking::new(SIZE + 1, 4096), Err(Error::Geometry { .. })));
    for block_size in [0, 256, 1000, 128 << 10, 1 << 31] {
        let refused = MemoryBacking::new(1 << 31, block_size).unwrap_err();
        assert!(matches!(refused, Error::Geometry { what: "block size", .. }), "{refused}");
    }
    for block_size in [512, 64 << 10] {
        assert!(MemoryBacking::new(SIZE, block_size).is_ok());
    }
}

/// Goal: incarnations of memory differ at each start; that of a file stays for a boot.
#[test]
fn incarnations_change_when_data_may_be_lost() {
    let one = MemoryBacking::new(SIZE, 512).unwrap();
    let two = MemoryBacking::new(SIZE, 512).unwrap();
    assert_ne!(Backing::incarnation(&one), Backing::incarnation(&two));
    let identity = uuid::Uuid::from_u128(7);
    let boot = Incarnation::of_boot(identity).unwrap();
    assert_eq!(boot, Incarnation::of_boot(identity).unwrap());
    assert_ne!(boot, Incarnation::of_boot(uuid::Uuid::from_u128(8)).unwrap());
}

/// Goal: faults follow plan and seed: the same seed injects the same faults, a torn write leaves
/// whole blocks of new bytes before old ones, and an empty plan injects nothing.
#[test]
fn faults_follow_their_plan() {
    let plan = FaultPlan {
        read_error_ppm: 100_000,
        write_error_ppm: 100_000,
        torn_write_ppm: 300_000,
        flush_error_ppm: 200_000,
        delay_ppm: 100_000,
        delay_max: Duration::from_micros(50),
    };
    let outcome = |seed| {
        let memory = MemoryBacking::new(SIZE, BLOCK as u32).unwrap();
        let fault = Fault::new(Arc::new(memory.clone()), seed, plan);
        let outcomes: Vec<bool> = run(async {
            let device = fault.attach();
            let mut outcomes = Vec::new();
            for seed in 1..=200_u8 {
                let before = memory.attach().read(0, 8 * BLOCK as usize).await.unwrap();
                let before = before.to_bytes().to_vec();
                let bytes = vec![seed; 8 * BLOCK as usize];
                let is_done = device.write(0, Buffer::copy_from(&bytes).into()).await.is_ok();
                let after = memory.attach().read(0, bytes.len()).await.unwrap();
                let after = after.to_bytes();
                let new = after.iter().take_while(|&&b| b == seed).count();
                assert_eq!(new % BLOCK as usize, 0);
                assert!(is_done == (new == bytes.len()) && after[new..] == before[new..]);
                outcomes.push(is_done);
                outcomes.push(device.read(0, 4096).await.is_ok());
                outcomes.push(device.flush().await.is_ok());
            }
            outcomes
        });
        (outcomes, fault.counts())
    };
    let (first, counts) = outcome(42);
    assert_eq!((&first, counts), (&outcome(42).0, outcome(42).1));
    assert_ne!(first, outcome(43).0);
    assert!(counts.errors > 0 && counts.torn_writes > 0 && counts.delays > 0);
}

/// Goal: flushes requested together share a sync, a later one does not join one that has started,
/// and an abandoned one delays no other.
#[test]
fn flushes_are_shared() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("device");
    sparse_file(&path);
    let backing = FileBacking::open(&path, &options(false)).unwrap();
    run(async {
        let device = backing.attach();
        let mut flushes: Vec<_> = (0..10).map(|_| device.flush()).collect();
        drop(flushes.remove(0));
        reactor::yield_now().await;
        assert_eq!(backing.syncs(), 1);
        // The kernel has the first one now, so these two need another.
        let later = [device.flush(), device.flush()];
        for flush in flushes.into_iter().chain(later) {
            flush.await.unwrap();
        }
        assert_eq!(backing.syncs(), 2);
        device.flush().await.unwrap();
        assert_eq!(backing.syncs(), 3);
    });
}

/// Goal: threads attach to one backing and see each other's completed writes.
#[test]
fn threads_share_a_backing() {
    let memory: Arc<dyn Backing> = Arc::new(MemoryBacking::new(SIZE, 4096).unwrap());
    let threads: Vec<_> = (0..3_u64)
        .map(|thread| {
            let memory = Arc::clone(&memory);
            reactor::thread::spawn("writer", &Config::default(), move || async move {
                let device = memory.attach();
                let bytes = Buffer::copy_from(&pattern(BLOCK, thread as u8));
                device.write(thread * BLOCK, bytes.into()).await.unwrap();
            })
            .unwrap()
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    run(async {
        for thread in 0..3_u64 {
            let chunk = memory.attach().read(thread * BLOCK, BLOCK as usize).await.unwrap();
            assert!(chunk.to_bytes() == pattern(BLOCK, thread as u8));
        }
    });
}

/// Goal: a created file device behaves the same in the simulation. After power loss it contains
/// everything that was flushed, and each block of a later write is old or new.
#[test]
fn simulated_files_lose_only_what_was_not_flushed() {
    let mut partial = 0;
    for seed in 0..40 {
        let config = reactor::sim::SimConfig { tear_bytes: BLOCK as usize, ..Default::default() };
        let mut simulation = reactor::sim::Simulation::with_config(seed, config);
        let node = simulation.node("node");
        let new_blocks = simulation
            .run(async move {
                let first = node.spawn(async {
                    create("/device", SIZE, true, Fill::Written, |_| {}).await.unwrap();
                    let device = FileBacking::open("/device", &options(true)).unwrap().attach();
                    let commands =
                        [Command::Write(0, 9, 7), Command::Flush, Command::Discard(0, 9)];
                    follows_model(Rc::clone(&device), &commands).await;
                    // In flight when the power goes.
                    let bytes = Buffer::copy_from(&pattern(9 * BLOCK, 8));
                    device.write(0, bytes.into()).await.unwrap();
                    let _ = device.write(20 * BLOCK, Buffer::zeroed(4096).into()).await;
                });
                first.await.unwrap();
                node.lose_power();
                let second = node.spawn(async {
                    // The lock of the old life is released.
                    let device = FileBacking::open("/device", &options(true)).unwrap().attach();
                    device.read(0, 9 * BLOCK as usize).await.unwrap().to_bytes().to_vec()
                });
                let got = second.await.unwrap();
                let (old, new) = (pattern(9 * BLOCK, 7), pattern(9 * BLOCK, 8));
                let blocks = (0..9).map(|i| i * BLOCK as usize..(i + 1) * BLOCK as usize);
                blocks
                    .filter(|block| {
                        let is_new = got[block.clone()] == new[block.clone()];
                        assert!(is_new || got[block.clone()] == old[block.clone()]);
                        is_new
                    })
                    .count()
            })
            .unwrap();
        partial += usize::from(new_blocks > 0 && new_blocks < 9);
    }
    assert!(partial > 3, "{partial} torn");
}

/// Goal: commands of one device do not write to reference counters of other threads' devices.
#[test]
fn devices_count_references_apart() {
    run(async {
        let memory = MemoryBacking::new(1 << 20, 512).unwrap();
        let devices = [memory.attach(), memory.attach()];
        let before = memory.region().references();
        let mut views = Vec::new();
        for device in &devices {
            for at in 0..20 {
                views.push(device.read(at * 512, 512).await.unwrap());
            }
        }
        assert_eq!(memory.region().references(), before);
        drop((devices, memory));
        assert!(views.iter().all(|view| view.to_bytes().iter().all(|byte| *byte == 0)));
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        let options = FileOptions {
            block_size: Some(512),
            direct: false,
            preallocated: false,
            incarnation: Incarnation::random(),
        };
        let file = FileBacking::open(&path, &options).unwrap();
        let devices = [file.attach(), file.attach()];
        let before = file.file().handle().references();
        let reads: Vec<_> = devices
            .iter()
            .flat_map(|device| (0..20).map(move |at| device.read(at * 512, 512)))
            .collect();
        assert_eq!(file.file().handle().references(), before, "while 40 reads are under way");
        for read in reads {
            assert_eq!(read.await.unwrap().to_bytes()[0], 7);
        }
    });
}
