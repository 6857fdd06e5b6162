//! A9 on planted values: a case with a finding, cases without, and cases without measurements.

use super::cpu::{Planted, planted};
use super::*;
use base::statistics::Usl;
use loads::metric::Metric;

const QUEUES: (&str, &str) = (
    "rate",
    r#"
[factors.device.null]
kind = "null"
[factors.queue.direct]
kind = "queue"
policy = "direct"
[factors.queue.elevator]
kind = "queue"
policy = "elevator"
[[workload]]
name = "cores"
rw = "randread"
bs = ["8KiB"]
units = 192
jobs = [1, 2, 4, 8]
depth = [32]
metrics = ["iops", "cpu-per-io"]
[[comparison]]
name = "one/many"
role = "queue"
baseline = { device = "null", queue = "direct" }
other = { device = "null", queue = "elevator" }
"#,
);

/// Returns the throughput by one law for many queues and by another for one.
fn by_laws(it: &Planted<'_>, one: Usl) -> Outcome {
    let many = Usl { lambda: 100_000.0, sigma: 0.02, kappa: 0.0001, r_squared: 1.0 };
    let law = if it.condition.ends_with("elevator") { one } else { many };
    Outcome {
        metrics: [
            (Metric::Iops, law.at(f64::from(it.cell.jobs)) * it.noise),
            (Metric::CpuPerIo, 1e6 / law.lambda),
        ]
        .into(),
        further: [("cpu_count".to_string(), 4.0)].into(),
        ..Outcome::default()
    }
}

/// Goal: A9 finds planted contention and reports its cost and that threads share CPUs; equal queues are
/// equivalent; a slower queue is not called contended; noise gives no advice; without enough threads, or
/// without a comparison of queues, the rule is not measured.
#[test]
fn a9_one_or_many() {
    let law = |lambda, sigma| Usl { lambda, sigma, kappa: 0.0001, r_squared: 1.0 };
    let card = |noise, one| planted(QUEUES, &[], noise, "A9", |it| by_laws(it, one));
    let fires = card(0.005, law(100_000.0, 0.5));
    assert_eq!(fires.confidence, Confidence::Strong, "{fires:?}");
    assert!(fires.claim.contains("contended in 1 of 1"), "{fires:?}");
    let has = |text: &str| fires.evidence.iter().any(|line| line.contains(text));
    assert!(has("σ = 0.49") && has("σ = 0.0") && has("8 threads on 4 CPUs"), "{fires:?}");
    let same = card(0.005, law(100_000.0, 0.02));
    assert_eq!(same.confidence, Confidence::Strong, "{same:?}");
    assert!(same.claim.contains("nothing that matters"), "{same:?}");
    let slower = card(0.005, law(50_000.0, 0.02));
    assert_eq!(slower.confidence, Confidence::Moderate, "{slower:?}");
    assert!(slower.claim.contains("no contention is proven"), "{slower:?}");
    let vague = card(0.8, law(100_000.0, 0.05));
    assert_eq!(vague.confidence, Confidence::NoAdvice, "{vague:?}");
    for change in [
        ("jobs = [1, 2, 4, 8]", "jobs = [1, 2]"),
        ("role = \"queue\"", "role = \"other\""),
        ("depth = [32]", "rate = [1000000]"),
    ] {
        let one = law(100_000.0, 0.5);
        let missing = planted(QUEUES, &[change], 0.005, "A9", |it| by_laws(it, one));
        assert_eq!(missing.confidence, Confidence::NotMeasured, "{change:?}");
    }
}
