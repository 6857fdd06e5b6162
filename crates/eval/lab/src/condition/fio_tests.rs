//! The engine on the real fio, on a small file in a directory of ours.

use crate::guard::{Claim, Look, marks};
use crate::plan::{Plan, Planned, Step};
use crate::test_support::{head, plan, stage};
use base::{Error, Stop};
use loads::engine::{Engine, Work};
use loads::fio::FioEngine;
use loads::metric::Metric;
use loads::outcome::{Mark, Outcome};
use std::process::Command;
use std::time::Duration;

const LOADS: &str = r#"
[factors.storage.here]
kind = "directory"

[factors.runtime.native]
kind = "native"

[factors.runtime.container]
kind = "container"

[[workload]]
name = "read"
rw = "read"
bs = ["1MiB"]
jobs = [2]
metrics = ["bandwidth"]
direct = false

[[workload]]
name = "write"
rw = "randwrite"
bs = ["64KiB"]
jobs = [1]
metrics = ["iops"]

[[comparison]]
name = "C/N"
baseline = { storage = "here", runtime = "native" }
other = { storage = "here", runtime = "container" }
"#;

fn has_fio() -> bool {
    let has = Command::new("fio").arg("--version").output().is_ok();
    if !has {
        println!("skipped: fio is not installed");
    }
    has
}

/// Runs of so long on files of 4 MiB.
fn runs_of(length: &str) -> Plan {
    plan(&(head("real", "fio") + LOADS), &[("\"64MiB\"", "\"4MiB\""), ("\"1s\"", length)])
}

/// Runs every cell under every condition that there is once; `check` sees each.
fn each(check: impl Fn(&Work<'_>, &Outcome, (&Look, &Look))) {
    // A directory on a real disk: the cache guard needs its counters.
    let data = tempfile::tempdir_in("/var/tmp").unwrap();
    let plan = runs_of("\"300ms\"");
    let stage = stage(&plan, data.path());
    let mut engine = FioEngine::new(stage.scratch().unwrap()).unwrap();
    for step in plan.round(0) {
        let condition = &plan.conditions[step.condition];
        let place = match stage.place(condition) {
            Ok(place) => place,
            Err(why) => {
                println!("not available: {}: {why}", condition.label);
                continue;
            }
        };
        let work = Planned::new(&plan, &step).work(Some(&place));
        let before = Look::now(place.source());
        let outcome = engine.run(&work, &Stop::default()).unwrap();
        let after = Look::now(place.source());
        check(&work, &outcome, (&before, &after));
    }
    stage.leave().unwrap();
    let left: Vec<_> = std::fs::read_dir(data.path()).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Goal: the generated jobs run, natively and in a container, values are sane, a read from the page
/// cache is caught, and nothing is left behind.
#[test]
fn real_runs() {
    if !has_fio() {
        return;
    }
    each(|work, outcome, (before, after)| {
        let value = |metric| outcome.metrics[&metric];
        let size = work.cell.block_size as f64;
        let rate = value(Metric::Bandwidth) / (value(Metric::Iops) * size);
        assert!((0.9..1.1).contains(&rate), "{rate}");
        assert!(value(Metric::LatencyP99) > 0.0 && value(Metric::Latency) > 0.0);
        assert!(outcome.command.contains("fio") && outcome.job.contains("[load]"));
        if work.workload.name == "read" {
            // 4 MiB over and over: all but the first pass comes from memory.
            let claim = Claim {
                read_bytes_per_s: outcome.read_bytes_per_s,
                written_bytes_per_s: 0.0,
                load_seconds: outcome.load_seconds,
            };
            let marks = marks(before, after, &claim);
            let expected = [Mark::Cached, Mark::CacheUnknown];
            assert!(marks.iter().any(|mark| expected.contains(mark)), "{marks:?}");
        }
    });
}

/// Goal: a stop ends a run soon, as an interruption and not as a failure.
#[test]
fn runs_can_be_stopped() {
    if !has_fio() {
        return;
    }
    let data = tempfile::tempdir_in("/var/tmp").unwrap();
    let plan = runs_of("\"600s\"");
    let stage = stage(&plan, data.path());
    let mut engine = FioEngine::new(stage.scratch().unwrap()).unwrap();
    let steps = plan.round(0);
    let native = |step: &&Step| plan.conditions[step.condition].id.contains("native");
    let step = steps.iter().find(native).unwrap();
    let place = stage.place(&plan.conditions[step.condition]).unwrap();
    let work = Planned::new(&plan, step).work(Some(&place));
    let stop = Stop::default();
    let asked = stop.clone();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        asked.request();
    });
    let result = engine.run(&work, &stop);
    thread.join().unwrap();
    assert!(matches!(result, Err(Error::Interrupted)), "{result:?}");
    stage.leave().unwrap();
}
