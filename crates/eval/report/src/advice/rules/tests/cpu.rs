//! A4 to A8 on planted values: a case with a finding, a case without, and a case without measurements.

use super::*;
use base::statistics::Usl;
use lab::test_support::{head, plan};
use loads::metric::Metric;

const CLOSED: (&str, &str) = (
    "nvme",
    r#"
[limits]
[factors.storage.memory]
kind = "target"
backing = "memory"
[factors.host.sleep]
kind = "host"
[factors.host.spin]
kind = "host"
poll-us = 50
[[workload]]
name = "read"
rw = "randread"
bs = ["4KiB"]
jobs = [1, 2, 4, 8]
depth = [1, 4, 16]
metrics = ["iops", "bandwidth", "latency-p99", "cpu-per-io", "machine-cpu"]
[[comparison]]
name = "spin/sleep"
baseline = { storage = "memory", host = "sleep" }
other = { storage = "memory", host = "spin" }
"#,
);

const OPEN: (&str, &str) = (
    "rate",
    r#"
[factors.device.null]
kind = "null"
[factors.device.file]
kind = "directory"
[factors.queue.direct]
kind = "queue"
policy = "direct"
[factors.queue.elevator]
kind = "queue"
policy = "elevator"
[[workload]]
name = "read"
rw = "randread"
bs = ["8KiB"]
units = 192
rate = [1000, 2000, 3000, 4000, 5000]
batch = [1, 2, 4, 8]
metrics = ["iops", "latency-p99", "cpu-per-io"]
[[comparison]]
name = "elevator/direct"
role = "queue"
baseline = { device = "file", queue = "direct" }
other = { device = "file", queue = "elevator" }
[[comparison]]
name = "alone"
baseline = { device = "null", queue = "direct" }
other = { device = "null", queue = "elevator" }
"#,
);

/// A run with its values: metrics, and further samples.
pub(super) struct Planted<'a> {
    pub(super) cell: &'a loads::workload::Cell,
    pub(super) condition: &'a str,
    /// exp(noise · N(0, 1)), of this run.
    pub(super) noise: f64,
}

/// Returns a rule's card for twelve rounds of values that `run` makes up on an engine's load.
pub(super) fn planted(
    (engine, load): (&str, &str),
    changes: &[(&str, &str)],
    noise: f64,
    id: &str,
    run: impl Fn(&Planted<'_>) -> Outcome,
) -> Card {
    let plan = plan(&(head("load", engine) + load), changes);
    let store = lab::test_support::planted(&plan, 12, |work| {
        let part = u64::from(work.step.round) * 10_000 + u64::from(work.step.position);
        run(&Planted {
            cell: work.cell,
            condition: &work.condition.id,
            noise: (noise * base::statistics::random::Random::of(9, part).normal()).exp(),
        })
    });
    card(&advised(&plan, &store), id)
}

const LAW: Usl = Usl { lambda: 10_000.0, sigma: 0.05, kappa: 0.0004, r_squared: 1.0 };

/// Returns a closed load by the law, with the given tail.
fn by_law(it: &Planted<'_>, tail: impl Fn(f64) -> f64) -> Outcome {
    let n = f64::from(it.cell.jobs * it.cell.depth);
    let iops = LAW.at(n) * it.noise;
    Outcome {
        metrics: [
            (Metric::Iops, iops),
            (Metric::Bandwidth, iops * 4096.0),
            (Metric::Latency, n / iops * 1e6),
            (Metric::LatencyP99, tail(n)),
            (Metric::CpuPerIo, 5.0),
            (Metric::MachineCpu, 20.0),
        ]
        .into(),
        ..Outcome::default()
    }
}

/// Goal: A4 finds the knee of a known law, and the law. A tail that grows with N forbids it; so do a rate
/// that contradicts its latency and depth that is faster than jobs. Few points count as not measured.
#[test]
fn a4_knee() {
    let flat = |n: f64| 100.0 * (1.0 + n / 128.0);
    let fires = planted(CLOSED, &[], 0.002, "A4", |it| by_law(it, flat));
    let best = [1, 2, 4, 8, 16, 32, 64, 128].map(|n| (n, LAW.at(f64::from(n))));
    let most = best.iter().map(|it| it.1).fold(0.0, f64::max);
    let knee = best.iter().find(|it| it.1 >= 0.95 * most).unwrap().0;
    assert_eq!(fires.confidence, Confidence::Strong, "{fires:?}");
    assert!(fires.claim.starts_with(&format!("{knee} operations under way")), "{fires:?}");
    assert!(
        fires.evidence[0].contains("σ = 0.05") && fires.evidence[0].contains("peak at N = 49"),
        "{fires:?}"
    );
    let slow = planted(CLOSED, &[], 0.002, "A4", |it| by_law(it, |n| 100.0 * n));
    assert_eq!(slow.confidence, Confidence::NoAdvice, "{slow:?}");
    let faulty = planted(CLOSED, &[], 0.002, "A4", |it| {
        let mut outcome = by_law(it, flat);
        outcome.metrics.entry(Metric::Latency).and_modify(|latency| *latency *= 1.3);
        outcome
    });
    assert_eq!(faulty.confidence, Confidence::NoAdvice);
    assert!(faulty.claim.contains("faulty"), "{faulty:?}");
    let deep = planted(CLOSED, &[], 0.002, "A4", |it| {
        let mut outcome = by_law(it, flat);
        let factor = 1.0 + f64::from(it.cell.depth) / 16.0;
        outcome.metrics.entry(Metric::Iops).and_modify(|rate| *rate *= factor);
        outcome.metrics.entry(Metric::Bandwidth).and_modify(|rate| *rate *= factor);
        outcome.metrics.entry(Metric::Latency).and_modify(|latency| *latency /= factor);
        outcome
    });
    assert!(!deep.claim.contains("faulty"), "{deep:?}");
    let few = [("jobs = [1, 2, 4, 8]", "jobs = [1, 2]"), ("depth = [1, 4, 16]", "depth = [1]")];
    let missing = planted(CLOSED, &few, 0.002, "A4", |it| by_law(it, flat));
    assert_eq!(missing.confidence, Confidence::NotMeasured);
}

/// Goal: A5 prefers the faster of two at the same product, the cheaper if neither is faster, and gives no
/// advice under noise.
#[test]
fn a5_jobs_or_depth() {
    let run = |factor: f64, cost: f64| {
        move |it: &Planted<'_>| {
            let mut outcome = by_law(it, |_| 100.0);
            if it.cell.jobs > it.cell.depth {
                outcome.metrics.entry(Metric::Bandwidth).and_modify(|value| *value *= factor);
                outcome.metrics.entry(Metric::CpuPerIo).and_modify(|value| *value *= cost);
            }
            outcome
        }
    };
    let few = ("jobs = [1, 2, 4, 8]", "jobs = [1, 4]");
    let depth = ("depth = [1, 4, 16]", "depth = [1, 4]");
    let fires = planted(CLOSED, &[few, depth], 0.005, "A5", run(1.3, 1.0));
    assert_eq!(fires.confidence, Confidence::Strong, "{fires:?}");
    assert!(fires.claim.starts_with("More jobs is faster in 2 of 2"), "{fires:?}");
    let slower = planted(CLOSED, &[few, depth], 0.005, "A5", run(0.7, 1.0));
    assert!(slower.claim.starts_with("More depth is faster"), "{slower:?}");
    let same = planted(CLOSED, &[few, depth], 0.005, "A5", run(1.0, 1.5));
    assert!(same.claim.contains("equivalent") && same.apply.starts_with("Take depth"), "{same:?}");
    let vague = planted(CLOSED, &[few, depth], 0.5, "A5", run(1.0, 1.0));
    assert_eq!(vague.confidence, Confidence::NoAdvice, "{vague:?}");
    let one = ("depth = [1, 4, 16]", "depth = [1]");
    let missing = planted(CLOSED, &[one], 0.005, "A5", run(1.3, 1.0));
    assert_eq!(missing.confidence, Confidence::NotMeasured);
}

/// Goal: A6 names the reached limit, in the order of its list, and none where none was reached.
#[test]
fn a6_limit() {
    let run = |core: f64, softirq: f64, machine: f64, is_flat: bool| {
        move |it: &Planted<'_>| {
            let n = f64::from(it.cell.jobs * it.cell.depth);
            let latency = if is_flat { 100.0 } else { 100.0 * (1.0 + n) };
            let iops = n / latency * 1e6 * it.noise;
            Outcome {
                metrics: [
                    (Metric::Iops, iops),
                    (Metric::Bandwidth, iops * 4096.0),
                    (Metric::Latency, latency),
                    (Metric::MachineCpu, machine),
                ]
                .into(),
                further: [
                    ("cpu_busiest_share".to_string(), core),
                    ("cpu_busiest_softirq_share".into(), softirq),
                ]
                .into(),
                ..Outcome::default()
            }
        }
    };
    let claim = |changes: &[(&str, &str)], core, softirq, machine, is_flat| {
        let card = planted(CLOSED, changes, 0.001, "A6", run(core, softirq, machine, is_flat));
        (card.confidence, card.claim)
    };
    let is_by = |(confidence, claim): (Confidence, String), word: &str| {
        // The best cell of one load counts, and one cell makes no card strong.
        assert!(confidence == Confidence::Moderate && claim.contains(word), "{word}: {claim}");
    };
    is_by(claim(&[], 0.95, 0.1, 50.0, false), "a CPU");
    is_by(claim(&[], 0.5, 0.85, 30.0, false), "a CPU");
    is_by(claim(&[], 0.5, 0.1, 20.0, true), "latency");
    // 128 / 100 µs × 4 KiB is 5.2 GB/s.
    let link = ("[limits]", "[limits]\nlink-rate = \"5000MiB\"");
    is_by(claim(&[link], 0.95, 0.1, 50.0, true), "the link");
    let none = claim(&[], 0.6, 0.1, 60.0, true);
    assert_eq!(none.0, Confidence::NoAdvice, "{none:?}");
    let blind = planted(CLOSED, &[], 0.001, "A6", |it| by_law(it, |_| 100.0));
    assert_eq!(blind.confidence, Confidence::NotMeasured);
    // CPUs that were busy before the load (of two) are not its limit.
    let beside = |others: f64| {
        planted(CLOSED, &[], 0.001, "A6", move |it| {
            let mut outcome = run(0.99, 0.1, 5.0, false)(it);
            let seen = [("cpu_idle_busy".to_string(), others), ("cpu_count".into(), 2.0)];
            outcome.further.extend(seen);
            outcome
        })
    };
    let quiet = beside(0.2);
    is_by((quiet.confidence, quiet.claim), "a CPU");
    let crowded = beside(1.9);
    assert_eq!(crowded.confidence, Confidence::NoAdvice, "{crowded:?}");
    assert!(crowded.evidence[0].contains("those before the load 95 %"), "{crowded:?}");
}

/// Returns runs at fixed rates whose operations cost these µs by condition, on a machine with this noise.
fn at_rate(it: &Planted<'_>, noise: f64) -> Outcome {
    let cost = match it.condition {
        "device=null,queue=direct" | "device=null,queue=elevator" => 2.0,
        "device=file,queue=direct" => 12.0,
        _ => 22.0,
    };
    let rate = it.cell.rate as f64;
    let busy = 0.05 + cost * it.noise * rate / 1e6;
    Outcome {
        metrics: [(Metric::Iops, rate), (Metric::CpuPerIo, cost), (Metric::LatencyP99, 100.0)]
            .into(),
        further: [
            ("cpu_wall_s".to_string(), 1.0),
            ("cpu_busy_s".into(), busy + noise * (1.0 - it.cell.rate as f64 % 2000.0 / 1000.0)),
            ("cpu_load_s".into(), busy),
        ]
        .into(),
        ..Outcome::default()
    }
}

/// Goal: A7 finds planted slopes without the generator's, and that one is twice the other. If the machine's
/// samples are no line it uses the scheduler's times; without any line it gives no slope. It ignores rates
/// that were not held.
#[test]
fn a7_cost() {
    let one = ("batch = [1, 2, 4, 8]", "batch = [1]");
    let fires = planted(OPEN, &[one], 0.002, "A7", |it| at_rate(it, 0.0));
    assert_eq!(fires.confidence, Confidence::Strong, "{fires:?}");
    assert!(
        fires.claim.contains("whole machine") && fires.claim.contains("different, matters"),
        "{fires:?}"
    );
    let with = |card: &Card, text: &str| card.evidence.iter().any(|line| line.contains(text));
    assert!(with(&fires, "c = 10.0") || with(&fires, "c = 10 "), "{fires:?}");
    assert!(with(&fires, "+99") || with(&fires, "+100"), "{fires:?}");
    let noisy = planted(OPEN, &[one], 0.002, "A7", |it| at_rate(it, 0.5));
    assert!(noisy.claim.contains("threads of the kernel"), "{noisy:?}");
    let bent = planted(OPEN, &[one], 0.002, "A7", |it| {
        let mut outcome = at_rate(it, 0.5);
        let busy = outcome.further["cpu_busy_s"];
        outcome.further.insert("cpu_load_s".into(), busy);
        outcome
    });
    assert_eq!(bent.confidence, Confidence::NoAdvice, "{bent:?}");
    let saturated = planted(OPEN, &[one], 0.002, "A7", |it| Outcome {
        marks: if it.cell.rate > 3000 { vec![Mark::Saturated] } else { vec![] },
        ..at_rate(it, 0.0)
    });
    assert_eq!(saturated.confidence, Confidence::NotMeasured);
}

/// Goal: A8 finds the batch from which on no time is saved, of c = 20 + 4/b; a tail that grows with the batch
/// forbids it; two sizes are too few.
#[test]
fn a8_batch() {
    let run = |tail: fn(f64) -> f64| {
        move |it: &Planted<'_>| {
            let b = f64::from(it.cell.batch);
            let is_null = it.condition.starts_with("device=null");
            // A larger batch makes each send cheaper, which is one of its savings.
            let cost = if is_null { 1.0 + 20.0 / b } else { 21.0 + 4.0 / b };
            let mut outcome = at_rate(it, 0.0);
            outcome.metrics.insert(Metric::CpuPerIo, cost * it.noise);
            outcome.metrics.insert(Metric::LatencyP99, tail(b));
            outcome.further.insert("batch_achieved".into(), b);
            outcome
        }
    };
    let fires = planted(OPEN, &[], 0.001, "A8", run(|b| 100.0 + b));
    assert_eq!(fires.confidence, Confidence::Strong, "{fires:?}");
    assert!(fires.claim.starts_with("Batches of 4"), "{fires:?}");
    assert!(
        fires.evidence[0].contains("achieved 4.0") && fires.evidence[0].contains("is in it"),
        "{fires:?}"
    );
    let slow = planted(OPEN, &[], 0.001, "A8", run(|b| 100.0 * b));
    assert_eq!(slow.confidence, Confidence::NoAdvice, "{slow:?}");
    let few = ("batch = [1, 2, 4, 8]", "batch = [1, 2]");
    let missing = planted(OPEN, &[few], 0.001, "A8", run(|b| 100.0 + b));
    assert_eq!(missing.confidence, Confidence::NotMeasured);
}
