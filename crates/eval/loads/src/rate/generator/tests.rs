//! Tests of schedules, units and whole loads.

use super::load::{Load, Unit};
use super::schedule::Schedule;
use super::*;
use crate::rate::QueuePolicy;
use crate::threads::Spread;
use crate::workload::Pattern;
use block::MemoryBacking;
use reactor::Direction;
use reactor::time::Instant;

const KIB: u64 = 1 << 10;

fn parameters() -> Parameters {
    Parameters {
        rate: Some(1000),
        pattern: Pattern::Read,
        request_bytes: 4 * KIB,
        batch: 1,
        units: None,
        jobs: 1,
        depth_max: 64,
        runtime: Duration::from_millis(50),
        ramp: Duration::ZERO,
        seed: 1,
        slack: None,
        spin: reactor::Spin::default(),
        cpus: Vec::new(),
    }
}

fn memory(kib: u64) -> Storage {
    let backing = MemoryBacking::new(kib * KIB, 512).unwrap();
    Storage { name: format!("memory:{kib}KiB"), source: Source::Backing(Arc::new(backing)) }
}

fn null(queue: Option<QueuePolicy>) -> Storage {
    let source = Source::Null(Null::new(4 * KIB));
    let source = match queue {
        Some(queue) => source.behind(queue),
        None => source,
    };
    Storage { name: "null".into(), source }
}

/// Goal: batches of all jobs are evenly spaced by the rate, and without a rate each is due at once.
#[test]
fn batches_are_evenly_spaced() {
    let parameters = Parameters { batch: 4, jobs: 2, ..parameters() };
    let load = Arc::new(Load::new(parameters.clone(), vec![memory(64)]).unwrap());
    let begin = Instant::from_ns(1_000_000_000);
    let schedule = |load: &Arc<Load>, index| Schedule::new(load, index, Spread::new(1), begin);
    let mut jobs = [schedule(&load, 0), schedule(&load, 1)];
    for batch in 0..10 {
        let due = begin + Duration::from_millis(4 * batch);
        let job = &mut jobs[(batch % 2) as usize];
        assert_eq!(job.due(begin), due, "{batch}");
        job.batch_is_made();
    }
    let closed = Parameters { rate: None, ..parameters };
    let load = Arc::new(Load::new(closed, vec![memory(64)]).unwrap());
    assert_eq!(schedule(&load, 1).due(begin), begin);
}

/// Goal: sequential requests visit the units in turn, each from its start to its end and then from its start again.
#[test]
fn requests_visit_the_units_in_turn() {
    let parameters = Parameters { units: Some(3), ..parameters() };
    let load = Arc::new(Load::new(parameters, vec![memory(16), memory(8)]).unwrap());
    let unit = |device, start, requests| Unit { device, start: start * KIB, requests };
    assert_eq!(load.units, [unit(0, 0, 2), unit(1, 0, 2), unit(0, 8, 2)]);
    let mut schedule = Schedule::new(&load, 0, Spread::new(1), Instant::from_ns(1));
    let mut next = || {
        let (unit, offset, direction) = schedule.request();
        assert_eq!(direction, Direction::Read);
        (unit.device, offset / KIB)
    };
    let made: Vec<_> = (0..7).map(|_| next()).collect();
    assert_eq!(made, [(0, 0), (1, 0), (0, 8), (0, 4), (1, 4), (0, 12), (0, 0)]);
}

/// Goal: a load that is not possible is refused with the reason.
#[test]
fn impossible_loads_are_refused() {
    let refused = |parameters, devices| Load::new(parameters, devices).err().unwrap().to_string();
    let odd = Parameters { request_bytes: 1000, ..parameters() };
    assert!(refused(odd, vec![memory(16)]).contains("multiple of the block size, 512"));
    let few = Parameters { units: Some(1), ..parameters() };
    assert!(refused(few, vec![memory(16), memory(16)]).contains("each of 2 devices"));
    let many = Parameters { units: Some(5), ..parameters() };
    assert!(refused(many, vec![memory(16)]).starts_with("memory:16KiB is too small"));
}

/// Goal: by every way all requests that were due are made and counted, and the summary survives JSON.
#[test]
fn loads_run_by_every_way() {
    let ways = [
        null(None),
        null(Some(QueuePolicy::Direct)),
        null(Some(QueuePolicy::Elevator)),
        memory(64),
    ];
    for (storage, is_straight) in ways.into_iter().zip([true, false, false, false]) {
        let parameters = Parameters { jobs: 2, pattern: Pattern::RandomMixed, ..parameters() };
        let summary = run(parameters, vec![storage], &AtomicBool::new(false)).unwrap();
        assert_eq!((summary.is_straight, summary.unfinished), (is_straight, 0));
        assert!((1..=50).contains(&summary.ios_all), "{}", summary.ios_all);
        let text = serde_json::to_string(&summary).unwrap();
        assert!(text.contains("\"p99.9\""), "{text}");
        let read: Summary = serde_json::from_str(&text).unwrap();
        assert_eq!((read.ios_all, read.histogram_ns), (summary.ios_all, summary.histogram_ns));
    }
}

/// Goal: a load that is interrupted before all jobs are ready ends with an error.
#[test]
fn an_interrupted_load_ends() {
    let forever = Parameters { runtime: Duration::from_hours(1), ..parameters() };
    let ended = run(forever, vec![null(None)], &AtomicBool::new(true));
    assert!(ended.is_err() || ended.is_ok_and(|summary| summary.is_interrupted));
}
