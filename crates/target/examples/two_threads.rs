//! Measures the cost of sharing between two threads: nanoseconds per command for its reference
//! counts and its counters, with one thread and with two, with counts that all threads share and
//! with a count for each thread (as in the target).
//!
//! `cargo run --release -p tsumugi-target --example two_threads`

#![allow(clippy::unwrap_used, reason = "a measurement ends where it fails")]

use block::{Backing, Device, MemoryBacking};
use nvme::{HostId, Nsid};
use reactor::{Config, File, OpenOptions, Runtime, Segment, Segments};
use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::time::Duration;
use target::{AdmissionMode, Admissions, LocalAccess, Namespace};

/// Number of commands of a round.
const COMMANDS: u32 = 300_000;
/// Number of rounds; the fastest is the least disturbed.
const ROUNDS: u32 = 9;
const BLOCK: usize = 512;

/// Returns the nanoseconds per command of the fastest round. Each of the threads runs the closure
/// that `make` returns.
fn fastest<W: FnMut()>(threads: usize, make: &(impl Fn() -> W + Sync)) -> f64 {
    let barrier = Barrier::new(threads);
    let thread = || {
        let mut runtime = Runtime::new(&Config::default()).unwrap();
        runtime.block_on(async {
            let mut work = make();
            let mut best = Duration::MAX;
            for _ in 0..ROUNDS {
                barrier.wait();
                let begun = reactor::time::now();
                (0..COMMANDS).for_each(|_| work());
                best = best.min(begun.elapsed());
            }
            best.as_nanos() as f64 / f64::from(COMMANDS)
        })
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(thread)).collect();
        all.into_iter().map(|one| one.join().unwrap()).fold(0.0, f64::max)
    })
}

fn report<W: FnMut()>(name: &str, make: impl Fn() -> W + Sync) {
    let (one, two) = (fastest(1, &make), fastest(2, &make));
    println!(
        "{name:44} {one:6.1} ns with one thread, {two:6.1} ns with two: {:.1} times",
        two / one
    );
}

/// Returns a block of memory to read into.
fn room() -> Segments {
    let buffer = reactor::Buffer::with_capacity(BLOCK);
    [Segment::Buffer(buffer, 0..BLOCK)].into_iter().collect()
}

/// Reads a block repeatedly; the device has completed when the method returns.
fn reads(device: std::rc::Rc<dyn Device>) -> impl FnMut() {
    move || drop(black_box(device.read_into(0, room())))
}

fn main() {
    let memory = MemoryBacking::new(1 << 20, BLOCK as u32).unwrap();
    report("view of memory, one count for all threads", || {
        let region = memory.region().clone();
        move || drop(black_box(region.slice(0, BLOCK)))
    });
    report("view of memory, a count for each thread", || {
        let region = memory.region().apart();
        move || drop(black_box(region.slice(0, BLOCK)))
    });
    let file = File::open("/dev/null", OpenOptions::READ).unwrap();
    report("handle of a file, one count for all threads", || {
        let handle = file.handle().clone();
        move || drop(black_box(handle.clone()))
    });
    report("handle of a file, a count for each thread", || {
        let handle = file.handle().apart();
        move || drop(black_box(handle.clone()))
    });
    let namespace = Namespace::new(Nsid(1), [1; 16], Arc::new(memory.clone()), false);
    let namespace = Arc::new(namespace);
    let admissions = Admissions::new(AdmissionMode::AnyHost);
    let access = LocalAccess::new(&admissions, &namespace, HostId([1; 16]));
    report("a read of 512 bytes", || reads(memory.attach()));
    report("the same, admitted and counted", || reads(access.attach()));
    assert!(namespace.counts().commands > u64::from(COMMANDS));
}
