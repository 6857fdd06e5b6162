//! A15 and A16 on planted values: a case with a finding, a case without, and a case without measurements. No
//! speed is reported without the files at risk.

use super::cpu::{Planted, planted};
use super::*;
use loads::metric::Metric;

const TEXT: (&str, &str) = (
    "copyup",
    r#"
[limits]
[factors.storage.kernel]
kind = "layers"
scheme = "overlay"
label = "kernel"
[factors.storage.volatile]
kind = "layers"
scheme = "overlay-volatile"
label = "volatile"
[factors.storage.ours]
kind = "layers"
scheme = "union-keep"
label = "ours"
[[workload]]
name = "write"
items = 64
jobs = [1, 4, 16, 64]
metrics = ["copy-up-rate", "steady-rate"]
[[comparison]]
name = "volatile/kernel"
role = "copy-up"
baseline = { storage = "kernel" }
other = { storage = "volatile" }
[[comparison]]
name = "ours/kernel"
role = "other"
baseline = { storage = "kernel" }
other = { storage = "ours" }
"#,
);

/// Returns the throughput of a number of containers: it grows up to 16, then stays or falls to a share.
fn outcome(it: &Planted<'_>, last: f64, fairness: f64, factor: f64) -> Outcome {
    let count = f64::from(it.cell.jobs);
    let share = if count > 16.0 { last } else { 1.0 };
    let rate = 100.0 * count.min(16.0) * share * it.noise * factor;
    let mut outcome = Outcome {
        metrics: [(Metric::CopyUpRate, rate), (Metric::SteadyRate, rate * 2.0)].into(),
        ..Outcome::default()
    };
    for phase in ["copy_up_fairness", "steady_fairness"] {
        outcome.further.insert(phase.into(), if count > 16.0 { fairness } else { 0.99 });
    }
    outcome
}

/// Goal: A15 finds how many are served fairly, the knee, a planted collapse and no other, and the required
/// rate; unfair service and few points give no advice.
#[test]
fn a15_how_many() {
    let flat = planted(TEXT, &[], 0.005, "A15", |it| outcome(it, 1.0, 0.98, 1.0));
    assert_eq!(flat.confidence, Confidence::Strong, "{flat:?}");
    assert!(flat.claim.starts_with("Up to 64 containers"), "{flat:?}");
    assert!(
        flat.claim.contains("nothing beyond 16") && !flat.claim.contains("collapses"),
        "{flat:?}"
    );
    for (label, risk) in [("kernel", "none"), ("volatile", "all"), ("ours", "none")] {
        let named = format!("write, {label} (at risk: {risk})");
        assert!(flat.evidence.iter().any(|line| line.contains(&named)), "{flat:?}");
    }
    let falls = planted(TEXT, &[], 0.005, "A15", |it| outcome(it, 0.5, 0.98, 1.0));
    assert!(falls.claim.starts_with("Up to 16 containers"), "{falls:?}");
    assert!(falls.claim.contains("It collapses with more in 6 of 6"), "{falls:?}");
    let unfair = planted(TEXT, &[], 0.005, "A15", |it| outcome(it, 1.0, 0.5, 1.0));
    assert!(unfair.claim.starts_with("Up to 16 containers"), "{unfair:?}");
    let alone = planted(TEXT, &[], 0.005, "A15", |it| {
        let mut outcome = outcome(it, 1.0, 0.5, 1.0);
        if it.cell.jobs > 1 {
            outcome.further.values_mut().for_each(|fairness| *fairness = 0.5);
        }
        outcome
    });
    assert!(
        alone.claim.starts_with("Only one container at a time is served fairly in"),
        "{alone:?}"
    );
    assert!(alone.apply.ends_with("one after another."), "{alone:?}");
    let differ = planted(TEXT, &[], 0.005, "A15", |it| {
        outcome(it, 1.0, if it.condition.ends_with("kernel") { 0.5 } else { 0.98 }, 1.0)
    });
    let start =
        "By condition, at most 16 to 64 containers at a time are served fairly in 6 of 6 curves;";
    assert!(differ.claim.starts_with(start), "{differ:?}");
    for each in ["kernel (at risk: none): 16", "ours (at risk: none): 64"] {
        assert!(differ.apply.contains(each), "{differ:?}");
    }
    let each = ("[limits]", "[limits]\ncontainer-rate = 90.0");
    let asked = planted(TEXT, &[each], 0.005, "A15", |it| outcome(it, 1.0, 0.98, 1.0));
    let start = "Up to 16 containers at a time are served fairly, with 90.0 writes per second each, in 6 of 6";
    assert!(asked.claim.starts_with(start), "{asked:?}");
    let much = ("[limits]", "[limits]\ncontainer-rate = 900.0");
    let none = planted(TEXT, &[much], 0.005, "A15", |it| outcome(it, 1.0, 0.98, 1.0));
    assert_eq!(none.confidence, Confidence::NoAdvice, "{none:?}");
    let few = ("jobs = [1, 4, 16, 64]", "jobs = [1, 64]");
    let few = planted(TEXT, &[few], 0.005, "A15", |it| outcome(it, 1.0, 0.98, 1.0));
    assert_eq!(few.confidence, Confidence::NotMeasured);
}

/// Goal: A16 reports both phases and the risk in a crash, advises the faster of two equally safe kinds, warns
/// of a faster and less safe one, gives no advice without a proof, and names missing measurements.
#[test]
fn a16_copy_policy() {
    let role = ("role = \"other\"", "role = \"copy-up\"");
    let only_ours = [
        role,
        (
            "role = \"copy-up\"\nbaseline = { storage = \"kernel\" }\nother = { storage = \"volatile\"",
            "role = \"other\"\nbaseline = { storage = \"kernel\" }\nother = { storage = \"volatile\"",
        ),
    ];
    let faster = |it: &Planted<'_>| {
        outcome(it, 1.0, 0.98, if it.condition.ends_with("kernel") { 1.0 } else { 2.0 })
    };
    let risky = planted(TEXT, &[], 0.005, "A16", faster);
    assert_eq!(risky.confidence, Confidence::Strong, "{risky:?}");
    for part in [
        "First writes: volatile (at risk: all) is faster in 4 of 4 cells",
        "Second writes: volatile (at risk: all) is faster",
        "kernel (at risk: none): complete",
        "volatile (at risk: all): zeros",
    ] {
        assert!(risky.claim.contains(part), "{part}: {risky:?}");
    }
    assert!(risky.apply.contains("only where all that containers change may be lost"), "{risky:?}");
    assert!(risky.evidence.iter().all(|line| line.contains("(at risk: none → all)")), "{risky:?}");
    let safe = planted(TEXT, &only_ours, 0.005, "A16", faster);
    assert_eq!(safe.apply, "Take ours (at risk: none).", "{safe:?}");
    let vague = planted(TEXT, &[], 0.5, "A16", |it| outcome(it, 1.0, 0.98, 1.0));
    assert_eq!(vague.confidence, Confidence::NoAdvice, "{vague:?}");
    let slower = planted(TEXT, &[], 0.005, "A16", |it| {
        outcome(it, 1.0, 0.98, if it.condition.ends_with("kernel") { 2.0 } else { 1.0 })
    });
    assert_eq!(slower.apply, "Take kernel (at risk: none).", "{slower:?}");
    let without = ("role = \"copy-up\"", "role = \"else\"");
    let missing = planted(TEXT, &[without], 0.005, "A16", faster);
    assert_eq!(missing.confidence, Confidence::NotMeasured);
}
