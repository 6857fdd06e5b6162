//! Measures the cost of counting an operation: nanoseconds of CPU time for a plain one, and for one
//! with a wait inside.
//!
//! `cargo run --release -p tsumugi-metrics --example cost`

use metrics::{Family, Point};
use std::hint::black_box;
use std::time::Duration;

const OUTER: Point = Point::new(Family::Fuse, 15, "READ");
const INNER: Point = Point::new(Family::Client, 0, "read_local");
/// Operations in a round.
const OPERATIONS: u32 = 1_000_000;
/// Rounds; the fastest is the least disturbed.
const ROUNDS: u32 = 7;

fn cpu_time() -> Duration {
    reactor::usage::of_process(std::process::id()).unwrap_or_default()
}

fn fastest(mut work: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let begun = cpu_time();
        (0..OPERATIONS).for_each(|_| work());
        let taken = cpu_time().saturating_sub(begun);
        best = best.min(taken.as_nanos() as f64 / f64::from(OPERATIONS));
    }
    best
}

fn main() {
    let clock = fastest(|| {
        black_box(reactor::time::now());
    });
    let plain = fastest(|| {
        let mut operation = metrics::start(OUTER, black_box(7));
        operation.carried(4096);
        operation.end(0);
    });
    let with_wait = fastest(|| {
        let operation = metrics::start(OUTER, black_box(7));
        let inside = operation.enter();
        metrics::start(INNER, black_box(1)).end(0);
        drop(inside);
        operation.end(0);
    });
    println!(
        "a reading of the clock {clock:.0} ns, an operation {plain:.0} ns, with a wait {with_wait:.0} ns"
    );
}
