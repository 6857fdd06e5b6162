//! Experiment files: what is accepted, and how well refusals say where and why.

mod ior;

use super::*;
use crate::plan::Plan;
use crate::test_support::text;
use loads::program::Program;
use std::path::Path;

fn refusal(changes: &[(&str, &str)], mode: Mode) -> String {
    Experiment::parse(&text(changes), mode).unwrap_err().to_string()
}

/// Line of the test text in which a string first occurs, after the changes.
fn line(changes: &[(&str, &str)], of: &str) -> String {
    let text = text(changes);
    let at = text.find(of).unwrap();
    format!("line {}: ", text[..at].matches('\n').count() + 1)
}

/// Goal: every kind of mistake is refused with its line, its key and what would be right.
#[test]
fn mistakes_are_named() {
    for (old, new, key, message) in [
        ("file-size = \"64MiB\"", "file-size = \"64Mx\"", "file-size", "no known unit"),
        ("engine = \"synthetic\"", "engine = \"fia\"", "engine", "there are fio, nvme"),
        ("name = \"known\"", "name = \"a b\"", "name", "use letters"),
        ("run = \"1s\"", "run = \"1\"", "timing.run", "no known unit"),
        ("run = \"1s\"", "run = \"1ms\"", "timing.run", "at least 100ms"),
        ("rw = \"read\"", "rw = \"reed\"", "workload \"seq\": rw", "there are read, write"),
        ("bs = [\"4KiB\", \"1MiB\"]", "bs = [\"100\"]", "workload \"seq\": bs", "multiple of 512"),
        ("jobs = [4]", "jobs = [0]", "workload \"seq\": jobs", "between 1 and"),
        ("metrics = [\"bandwidth\"]", "metrics = [\"speed\"]", "metrics", "there are bandwidth"),
        ("other = { storage = \"b\" }", "other = { storage = \"c\" }", "other", "one of a, b"),
        ("other = { storage = \"b\" }", "other = { storage = \"a\" }", "other", "baseline itself"),
        ("ratio = 1.0", "ratio = -1.0", "factors.storage.b.ratio", "at least"),
        ("64MiB", "2MiB", "file-size", "cannot be shared by 4 jobs"),
    ] {
        let said = refusal(&[(old, new)], Mode::Full);
        assert!(said.contains(key) && said.contains(message), "{new}: {said}");
        assert!(said.starts_with(&line(&[(old, new)], new)), "{new}: {said}");
    }
    let looks = [("warm-up-rounds = 1", "warm-up-rounds = 1\nlooks = [3]")];
    assert!(refusal(&looks, Mode::Full).contains("from 6 to"));
    let two = [("name = \"rand\"", "name = \"seq\"")];
    assert!(refusal(&two, Mode::Full).contains("another workload"));
}

/// Goal: unknown keys and broken TOML are refused with line and column.
#[test]
fn unknown_keys_are_refused() {
    let said = refusal(&[("seed = 1", "sead = 1")], Mode::Full);
    assert!(said.contains("line 6, column 1") && said.contains("sead"), "{said}");
    let said = refusal(&[("seed = 1", "seed = ")], Mode::Full);
    assert!(said.contains("line 6"), "{said}");
    assert!(refusal(&[("title = \"Known truth\"\n", "")], Mode::Full).contains("title"));
}

/// Goal: a quick form is short, whatever the file says, and refused if it has too many cells.
#[test]
fn quick_forms_are_short() {
    let quick = Experiment::parse(&text(&[]), Mode::Quick).unwrap();
    assert_eq!(quick.timing.looks.rounds(), [6]);
    assert_eq!(quick.timing.run, std::time::Duration::from_secs(2));
    let many = [("jobs = [1, 4]", "jobs = [1, 2, 3, 4, 5, 6, 7, 8, 9]")];
    assert!(
        refusal(&many, Mode::Quick).contains("at most")
            || refusal(&many, Mode::Quick).contains("may have 20")
    );
    Experiment::parse(&text(&many), Mode::Full).unwrap();
    let other = "other = { storage = \"b\" }";
    let named = |name: &str| format!("{other}\n[quick]\ncomparisons = [\"{name}\"]");
    let said = refusal(&[(other, named("C/A").as_str())], Mode::Quick);
    assert!(said.contains("quick.comparisons") && said.contains("no comparison"), "{said}");
    Experiment::parse(&text(&[(other, named("B/A").as_str())]), Mode::Quick).unwrap();
}

/// Goal: every experiment in the source tree can be read and planned, in both forms, its loads are described
/// in each language, and what it runs out of the tree exists.
#[test]
fn experiments_of_the_tree_are_right() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let mut seen = 0;
    for directory in ["experiments", "experiments/performance"] {
        for entry in std::fs::read_dir(root.join(directory)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|ending| ending != "toml") {
                continue;
            }
            for mode in [Mode::Full, Mode::Quick] {
                let experiment = Experiment::read(&path, mode)
                    .unwrap_or_else(|error| panic!("{}: {mode:?}: {error}", path.display()));
                for load in &experiment.workloads {
                    let said = Language::ALL.iter().map(|(_, language)| load.describe(*language));
                    let said: Vec<String> = said.collect();
                    assert!(!said[0].is_empty() && said[0] != said[1], "{said:?}");
                    let command =
                        load.task::<Program>().and_then(|program| program.command.first());
                    let ours = command.and_then(|program| program.strip_prefix("{cwd}/"));
                    assert!(ours.is_none_or(|it| root.join(it).is_file()), "{ours:?}");
                }
                let plan = Plan::new(experiment);
                assert!(
                    !plan.cells.is_empty() && !plan.conditions.is_empty(),
                    "{}",
                    path.display()
                );
            }
            seen += 1;
        }
    }
    assert!(seen >= 30, "{seen}");
}
