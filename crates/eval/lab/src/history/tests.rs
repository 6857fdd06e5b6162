use super::*;
use crate::analysis::no_further;
use crate::guard::Environment;
use crate::test_support::{TEXT, measured, plan};

/// A result of the synthetic experiment, with changes in its text, on this kernel.
fn results(changes: &[(&str, &str)], kernel: &str) -> Results {
    let store = measured(&plan(TEXT, changes));
    let facts = vec![("kernel".to_string(), kernel.to_string())];
    store.set("environment", &serde_json::to_string(&Environment { facts }).unwrap()).unwrap();
    Results::of(&store, no_further).unwrap()
}

const SEED: (&str, &str) = ("seed = 1", "seed = 2");

fn verdicts(history: &History, kind: Kind) -> Vec<Verdict> {
    let rows = history.changes.iter().filter(|change| change.kind == kind);
    rows.map(|change| change.verdict.unwrap()).collect()
}

/// Goal: the same again is equivalent; 30 % slower is found, in values under that condition and in
/// the effect, and nowhere else.
#[test]
fn changes_are_found() {
    let first = results(&[], "6.1");
    let same = compare(&first, &results(&[SEED], "6.1"), false);
    assert!(same.reasons.is_empty() && same.unmatched.is_empty(), "{:?}", same.reasons);
    assert!(same.changes.iter().all(|it| !it.verdict.unwrap().is_different()), "{same:?}");
    // Levels differ on purpose: what they do is asked about.
    let slower = results(&[SEED, ("ratio = 1.0", "ratio = 0.7")], "6.1");
    let history = compare(&first, &slower, true);
    for change in &history.changes {
        let is_changed = change.kind == Kind::Effect || change.of == "B";
        assert_eq!(change.verdict == Some(Verdict::DifferentMatters), is_changed, "{change:?}");
        if is_changed {
            let truth = if change.metric.is_throughput() { 0.7_f64.ln() } else { -0.7_f64.ln() };
            assert!((change.mean - truth).abs() < 0.05, "{change:?}");
        }
    }
    assert_eq!(verdicts(&history, Kind::Effect).len(), 6);
}

/// Goal: the cells of a metric share the error: beside others an interval is wider than alone.
#[test]
fn cells_of_a_metric_share_the_error() {
    let first = results(&[], "6.1");
    let width = |count: usize| {
        let one = || Row {
            past: vec![vec![0.0, 0.1, 0.2]],
            second: vec![0.1, 0.2, 0.3],
            ..row(Kind::Value, "A", &first, 0, Metric::Bandwidth)
        };
        let mut rows: Vec<Row> = (0..count).map(|_| one()).collect();
        judge(&mut rows, &first.plan, true);
        let interval = rows[0].change.interval.unwrap();
        interval.high - interval.low
    };
    // Of four degrees of freedom: 5.60 / 2.78.
    assert!(width(10) > 1.9 * width(1), "{} / {}", width(10), width(1));
}

/// Goal: another kernel, level or length of run is a reason to say nothing, and is named.
#[test]
fn what_differs_is_named() {
    let first = results(&[], "6.1");
    for (changes, kernel, reason) in [
        (vec![], "6.2", "kernel: 6.1 / 6.2"),
        (vec![("run = \"1s\"", "run = \"2s\"")], "6.1", "length of a run"),
        (vec![("64MiB", "128MiB")], "6.1", "file size"),
        (vec![("ratio = 1.0", "ratio = 0.9")], "6.1", "level storage.b"),
        (vec![("rw = \"read\"", "rw = \"write\"")], "6.1", "workload seq"),
    ] {
        let history = compare(&first, &results(&changes, kernel), false);
        assert!(history.reasons.iter().any(|it| it.contains(reason)), "{:?}", history.reasons);
        assert!(history.changes.iter().all(|change| change.verdict.is_none()));
        assert!(!history.changes.is_empty());
    }
    let other = results(&[("jobs = [4]", "jobs = [8]")], "6.1");
    let history = compare(&first, &other, false);
    assert!(history.unmatched.iter().any(|it| it.contains("seq") && it.contains("first only")));
    assert!(history.unmatched.iter().any(|it| it.contains("seq") && it.contains("second only")));
}

/// A result begun on this day.
fn on(day: u32, changes: &[(&str, &str)], kernel: &str) -> Results {
    let seed = format!("seed = {}", day + 100);
    let changes = [changes, &[("seed = 1", seed.as_str())]].concat();
    let mut results = results(&changes, kernel);
    results.started = format!("2026-11-{day:02}");
    // The seed is what makes days differ here, and not another plan.
    results.plan.hash = "same".into();
    results
}

/// Goal: results are one series if plan and machine are the same, oldest first; the kernel may differ and
/// is told; fewer than three earlier ones give no verdict.
#[test]
fn results_are_series() {
    let mut other = on(4, &[], "6.1");
    other.facts.insert("CPUs".into(), "another".into());
    let all = [on(3, &[], "6.2"), on(1, &[], "6.1"), other, on(2, &[], "6.1")];
    let groups = series(&all.iter().collect::<Vec<_>>());
    let days: Vec<Vec<&str>> =
        groups.iter().map(|group| group.iter().map(|it| it.started.as_str()).collect()).collect();
    assert_eq!(days, [vec!["2026-11-01", "2026-11-02", "2026-11-03"], vec!["2026-11-04"]]);
    let trend = Trend::of(&groups[0]).unwrap();
    assert_eq!(trend.notes, ["2026-11-03: kernel: 6.1 → 6.2"]);
    assert!(!trend.is_judged() && trend.regressions().is_empty());
    assert!(trend.rows.iter().all(|row| row.change.verdict.is_none() && row.means.len() == 3));
    assert!(Trend::of(&[]).is_none());
}

/// Goal: a planted loss is found under the condition that has it and nowhere else, a gain and the same
/// again are none; effects show it too.
#[test]
fn planted_losses_are_regressions() {
    let past: Vec<Results> = (1..6).map(|day| on(day, &[], "6.1")).collect();
    let with = |latest: &Results| {
        let all: Vec<&Results> = past.iter().chain([latest]).collect();
        Trend::of(&all).unwrap()
    };
    let worse = with(&on(9, &[("ratio = 1.0", "ratio = 0.5")], "6.1"));
    let found = worse.regressions();
    assert_eq!(found.len(), 6, "{worse:?}");
    assert!(found.iter().all(|row| row.change.of == "B" && row.means.len() == 6));
    let effects = worse.rows.iter().filter(|row| row.change.kind == Kind::Effect);
    assert!(effects.clone().count() == 6 && effects.clone().all(|row| !row.is_regression()));
    assert!(effects.into_iter().all(|row| row.change.verdict == Some(Verdict::DifferentMatters)));
    assert!(with(&on(9, &[], "6.1")).regressions().is_empty());
    assert!(with(&on(9, &[("ratio = 1.0", "ratio = 2.0")], "6.1")).regressions().is_empty());
}
