//! Patterns are parsed and found in results; a pattern without a similar cell is refused.

use super::*;
use crate::advice::further_judgements;
use lab::experiment::{Experiment, Mode};
use lab::test_support::{TEXT, measured, plan};
use loads::workload::Pattern;

fn named(text: &str, changes: &[(&str, &str)]) -> Vec<Named> {
    let results = Results::of(&measured(&plan(text, changes)), further_judgements).unwrap();
    vec![Named { source: "results".into(), results }]
}

/// Goal: the words of the grammar, in any order and with or without blanks in sizes, have their meaning.
#[test]
fn patterns_are_understood() {
    for (text, shown) in [
        ("write shared 1MiB x 64 ranks", "write, shared files, 1 MiB, x 64"),
        ("64 ranks write own files of 1 MiB", "write, own files, 1 MiB, x 64"),
        (
            "random read, 4k x16 depth 4 remote container",
            "randread, 4 KiB, x 16, depth 4, container, remote",
        ),
        ("randwrite 8KiB local native", "randwrite, 8 KiB, native, local"),
        ("mixed random 4KiB", "randrw, 4 KiB"),
        ("sequential read collective", "read, collective"),
        ("READ 1mib × 2 jobs independent", "read, 1 MiB, x 2, independent"),
    ] {
        assert_eq!(Asked::parse(text).unwrap().to_string(), shown, "{text}");
    }
    for (text, why) in [
        ("", "is empty"),
        ("frobnicate", "word 1: \"frobnicate\" is not known: there are read, write"),
        ("read write", "word 2: \"write\" says the same twice"),
        ("read 1MiB 2MiB", "word 3"),
        ("read x", "needs a number above 0"),
        ("read x 0", "needs a number above 0"),
        ("read 64", "word 2: \"64\" is a number of what?"),
        ("random", "random needs read"),
        ("mixed", "at random only"),
    ] {
        let error = Asked::parse(text).unwrap_err();
        assert!(error.contains(why), "{text}: {error}");
    }
}

/// Goal: the nearest cells come first, within an octave; others of the same work are only counted; the advice
/// is that of the same work.
#[test]
fn the_nearest_cells_answer() {
    let all = named(TEXT, &[("ratio = 1.0", "ratio = 0.6")]);
    let asked = Asked::parse("read 4KiB x 4").unwrap();
    let exact = answer(&asked, &all);
    assert_eq!((exact.found.len(), exact.too_far), (2, 2), "{exact:?}");
    assert!(exact.found.iter().all(|it| it.octaves == 0.0 && it.cell.starts_with("seq 4 KiB")));
    assert!(exact.found[0].figures[0].interval.is_some() && exact.run.is_none());
    let advice = &exact.advice[0].cards;
    let remote = advice.iter().find(|card| card.id == "A1").unwrap();
    assert!(remote.evidence.iter().all(|line| line.contains("seq")), "{remote:?}");
    // A rule that the pattern asks for by name and that lacks points is reported; no other missing rule is.
    assert!(
        advice.iter().any(|card| card.id == "A3" && card.confidence == Confidence::NotMeasured)
    );
    assert!(!advice.iter().any(|card| card.id == "A10"));
    let near = answer(&Asked::parse("read 8KiB x 3").unwrap(), &all);
    assert!((near.found[0].octaves - 1.415).abs() < 1e-3, "{near:?}");
    let far = answer(&Asked::parse("read 64KiB x 4").unwrap(), &all);
    assert_eq!((far.found.len(), far.too_far), (0, 4));
}

/// Goal: without a matching cell the answer names an experiment to run, in a form that an experiment file
/// accepts. A run whose place is unknown does not match a request for a place.
#[test]
fn what_is_missing_is_told() {
    let all = named(TEXT, &[]);
    for (text, engine) in [
        ("write own 1MiB x 64 ranks collective", "parallel-io"),
        ("random write shared 1MiB x 64 ranks", "parallel-io"),
        ("random write 16KiB x 2 depth 8 remote", "nvmeof-container"),
        ("read 4KiB x 4 remote", "nvmeof-container"),
    ] {
        let answer = answer(&Asked::parse(text).unwrap(), &all);
        assert!(answer.found.is_empty(), "{text}: {answer:?}");
        let run = answer.run.unwrap();
        assert!(run.contains(&format!("experiments/{engine}.toml")), "{run}");
        let workload = &run[run.find("[[workload]]").unwrap()..];
        let path = format!("{}/../../../experiments/{engine}.toml", env!("CARGO_MANIFEST_DIR"));
        let file = std::fs::read_to_string(path).unwrap();
        let (head, tail) =
            (file.find("[[workload]]").unwrap(), file.find("[[comparison]]").unwrap());
        let tail = &file[tail..file.find("[quick]").unwrap_or(file.len()).max(tail)];
        let whole = format!("{}{workload}\n{tail}", &file[..head]);
        let experiment = Experiment::parse(&whole, Mode::Full).unwrap();
        assert_eq!(experiment.workloads[0].name, "asked");
        if engine == "nvmeof-container" && text.contains("write") {
            assert_eq!(experiment.workloads[0].pattern(), Some(Pattern::RandomWrite));
        }
    }
}
