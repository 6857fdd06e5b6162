//! Tests of the counts and of their display.

use crate::histogram::{self, BUCKETS, Histogram};
use crate::trace::Tracer;
use crate::{Counts, Family, Operation, Point, Running, Snapshot, snapshot, start, start_at};
use proptest::prelude::*;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const OPEN: Point = Point::new(Family::Fuse, 14, "OPEN");
const READ: Point = Point::new(Family::Fuse, 15, "READ");
const CALL: Point = Point::new(Family::Call, 3, "lookup");
const NEAR: Point = Point::new(Family::Client, 1, "read_local");

/// Takes the turn of a test: counts are those of the process, so tests run one at a time.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn done_since(before: &Snapshot, point: Point) -> Option<Counts> {
    let done = snapshot().operations_since(before);
    done.into_iter().find(|it| it.family == point.family && it.name == point.name)
}

/// Returns an operation that began `ago`.
fn begun(point: Point, subject: u64, ago: Duration) -> Operation {
    start_at(point, subject, 42, reactor::time::now() - ago)
}

fn running(of: &Snapshot, point: Point) -> Vec<Running> {
    let own = |it: &&Running| it.family == point.family && it.name == point.name;
    of.running.iter().filter(own).cloned().collect()
}

proptest! {
    /// Goal: each latency is below the end of its bucket, and not below the end of the previous
    /// bucket; no bucket is wider than a quarter of its latencies.
    #[test]
    fn buckets_hold_their_latencies(ns in 256_u64..1 << 36) {
        let bucket = histogram::bucket(ns);
        prop_assert!(ns < histogram::end_ns(bucket));
        let begin = if bucket == 0 { 256 } else { histogram::end_ns(bucket - 1) };
        prop_assert!(ns >= begin);
        prop_assert!((histogram::end_ns(bucket) - begin) * 4 <= ns.next_power_of_two());
    }
}

#[test]
fn buckets_have_ends() {
    assert_eq!(histogram::bucket(0), 0);
    assert_eq!(histogram::bucket(u64::MAX), BUCKETS - 1);
    assert_eq!(histogram::bucket((1 << 36) - 1), BUCKETS - 2);
}

#[test]
fn quantiles_are_those_of_the_latencies() {
    let mut all = Histogram::default();
    for (ns, count) in [(1000, 90), (1_000_000, 9), (50_000_000, 1)] {
        all.add(&Histogram(vec![(histogram::bucket(ns) as u8, count)]));
    }
    assert_eq!(all.count(), 100);
    let near = |ns: u64, wanted: u64| ns >= wanted && ns * 4 <= wanted * 5;
    assert!(near(all.quantile_ns(0.5), 1000));
    assert!(near(all.quantile_ns(0.99), 1_000_000));
    assert!(near(all.quantile_ns(1.0), 50_000_000));
    assert_eq!(Histogram::default().quantile_ns(0.5), 0);
    // The form for Prometheus loses none, and each is below its bound.
    let powers = all.powers();
    assert_eq!(powers.iter().map(|(_, n)| n).sum::<u64>(), 100);
    let below =
        |bound: f64| powers.iter().filter(|(b, _)| *b <= bound).map(|(_, n)| n).sum::<u64>();
    assert_eq!((below(0.000_001_1), below(0.002), below(0.1)), (90, 99, 100));
}

/// Goal: the counts of threads are added up, and stay when the threads have ended.
#[test]
fn threads_are_added_up() {
    let _turn = turn();
    let before = snapshot();
    let work = || {
        for _ in 0..1000 {
            let mut read = start(READ, 7);
            read.carried(4096);
            read.end(0);
        }
        start(READ, 7).end(5);
        drop(start(READ, 7));
    };
    let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(work)).collect();
    for thread in threads {
        thread.join().unwrap();
    }
    work();
    let done = done_since(&before, READ).unwrap();
    assert_eq!((done.count(), done.errors, done.bytes), (5 * 1002, 10, 5 * 1000 * 4096));
}

/// Goal: a running operation is shown with its current wait, an ended one with its longest wait;
/// waits are not themselves among the slow operations.
#[test]
fn slow_operations_know_their_reason() {
    let _turn = turn();
    let second = Duration::from_secs(1);
    let open = begun(OPEN, 77, 9 * second);
    let inside = open.enter();
    let call = begun(CALL, 78, 8 * second);
    let seen = snapshot();
    let one = running(&seen, OPEN).pop().unwrap();
    assert_eq!((one.subject, one.pid, one.is_inner), (77, 42, false));
    let wait = one.waits_for.unwrap();
    assert_eq!((wait.family, wait.name.as_str(), wait.subject), (Family::Call, "lookup", 78));
    assert!(one.ns >= 9_000_000_000 && (8_000_000_000..one.ns).contains(&wait.ns));
    assert!(running(&seen, CALL).pop().unwrap().is_inner);
    call.end(0);
    assert_eq!(running(&snapshot(), OPEN).pop().unwrap().waits_for, None);
    start(NEAR, 1).end(0);
    drop(inside);
    // It is not polled, so the new operation is not a wait of it.
    let apart = start(CALL, 79);
    open.end(0);
    apart.end(0);
    let seen = snapshot();
    let slow = seen.slow.iter().find(|it| it.subject == 77).unwrap();
    let longest = slow.longest.clone().unwrap();
    assert_eq!((longest.family, longest.name.as_str()), (Family::Call, "lookup"));
    assert!((8_000_000_000..slow.ns).contains(&longest.ns));
    assert!(seen.slow.iter().all(|it| it.subject != 78), "{:?}", seen.slow);
    assert!(running(&seen, OPEN).is_empty() && running(&seen, CALL).is_empty());
}

/// Goal: the slowest of a minute are shown even among many faster ones; older ones are not.
#[test]
fn the_slowest_of_a_minute_are_kept() {
    let _turn = turn();
    std::thread::spawn(|| {
        for ms in 1..500 {
            begun(READ, 500 + ms, Duration::from_secs(100) + Duration::from_millis(ms)).end(0);
        }
        let seen = snapshot();
        let long = |it: &&crate::Slow| it.ns >= 100_000_000_000;
        let mut subjects: Vec<_> = seen.slow.iter().filter(long).map(|it| it.subject).collect();
        subjects.truncate(8);
        assert_eq!(subjects, (992..1000).rev().collect::<Vec<_>>());
    })
    .join()
    .unwrap();
    let ended = crate::slow::Ended {
        code: READ.code(),
        subject: 1,
        pid: 0,
        at_ns: 200 << 30,
        ns: 1,
        longest: None,
    };
    let slowest = crate::slow::Slowest::default();
    slowest.keep(ended);
    assert_eq!(slowest.since_minute(210 << 30), [ended]);
    assert_eq!(slowest.since_minute(270 << 30), []);
}

/// Goal: a wait that outlives its operation is not counted for the next operation in the same slot.
#[test]
fn late_waits_are_not_counted_for_the_next() {
    let _turn = turn();
    let first = start(OPEN, 1);
    let inside = first.enter();
    let late = begun(CALL, 5, Duration::from_secs(1));
    drop(inside);
    first.end(0);
    let second = start(OPEN, 2);
    late.end(0);
    let seen = snapshot();
    assert_eq!(running(&seen, OPEN).len(), 1);
    second.end(0);
    assert!(snapshot().slow.iter().all(|it| it.subject != 2 || it.longest.is_none()));
}

/// Goal: operations beyond the number of slots are still counted.
#[test]
fn operations_without_a_slot_are_counted() {
    let _turn = turn();
    let before = snapshot();
    let many: Vec<_> = (0..2000).map(|n| start(NEAR, n)).collect();
    assert_eq!(running(&snapshot(), NEAR).len(), crate::slots::SLOTS);
    drop(many);
    assert_eq!(done_since(&before, NEAR).unwrap().count(), 2000);
    assert!(running(&snapshot(), NEAR).is_empty());
}

#[test]
fn one_looks_at_operations_as_they_end() {
    let _turn = turn();
    start(OPEN, 1).end(0);
    let tracer = Tracer::begin().unwrap();
    assert!(Tracer::begin().is_none());
    let begun = reactor::time::now() - Duration::from_millis(1);
    let open = start_at(OPEN, 3, 9, begun);
    let inside = open.enter();
    start(CALL, 4).end(2);
    drop(inside);
    open.end(0);
    let look = tracer.look();
    let short: Vec<_> = look
        .events
        .iter()
        .map(|it| (it.name.as_str(), it.subject, it.errno, it.is_inner))
        .collect();
    assert_eq!(short, [("lookup", 4, 2, true), ("OPEN", 3, 0, false)]);
    assert_eq!((look.events[1].pid, look.events[1].started_ns), (9, begun.as_ns()));
    assert!(tracer.look().events.is_empty());
    drop(tracer);
    start(OPEN, 1).end(0);
    assert!(Tracer::begin().unwrap().look().events.is_empty());
}
