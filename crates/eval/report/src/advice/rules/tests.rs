//! Each rule has a case with a finding, a case without, and a case without measurements.

mod consistent;
mod containers;
mod cpu;
mod parallel;
mod queues;
mod stability;
mod stripes;

use super::*;
use crate::advice::further_judgements;
use crate::advice::{Card, advise};
use base::Stop;
use base::messages::Language;
use lab::analysis::Analysis;
use lab::experiment::Mode;
use lab::history::Trend;
use lab::plan::Plan;
use lab::plan::Planned;
use lab::store::Store;
use lab::test_support::{experiment, planted};
use loads::engine::Engine;
use loads::outcome::Mark;
use loads::outcome::Outcome;
use loads::synthetic::SyntheticEngine;

/// Judges the content of a store.
fn advised(plan: &Plan, store: &Store) -> Vec<Card> {
    advised_of(plan, &Analysis::of(plan, store, further_judgements).unwrap(), None)
}

/// Judges in English, and checks the same cards in Japanese, so each case of each rule is checked in both.
fn advised_of(plan: &Plan, analysis: &Analysis, trend: Option<&Trend>) -> Vec<Card> {
    let mut names: Vec<&str> = PHRASES.to_vec();
    names.extend(plan.experiment.workloads.iter().map(|it| it.name.as_str()));
    names.extend(plan.experiment.comparisons.iter().map(|it| it.name.as_str()));
    names.extend(plan.conditions.iter().flat_map(|it| [it.id.as_str(), it.label.as_str()]));
    names.extend(plan.cells.iter().map(|it| it.id.as_str()));
    // Histories name cells in English, as they are stored.
    let rows = trend.iter().flat_map(|trend| &trend.rows);
    names.extend(rows.flat_map(|row| [row.change.cell.as_str(), row.change.of.as_str()]));
    names.sort_by_key(|name| std::cmp::Reverse(name.len()));
    for card in advise(plan, analysis, trend, Language::Japanese) {
        for text in card.evidence.iter().chain([&card.claim, &card.apply, &card.scope]) {
            assert_eq!(english_word(text, &names), None, "{}: {text}", card.id);
        }
    }
    advise(plan, analysis, trend, Language::English)
}

/// Words that stay the same in Japanese: commands, options, calls, and names of the kernel.
const PHRASES: [&str; 15] = [
    "tsumugi eval run",
    "tsumugi eval history",
    "eval history",
    "--out",
    "tsumugi stripe set",
    "lfs setstripe",
    "MPI_File_write_at_all",
    "MPI_File_write_at",
    "romio_cb_write",
    "romio_cb_read",
    "softirq",
    "xfs",
    "btrfs",
    "ext4",
    "stripe-count",
];

/// Returns an English word of three letters or more in small letters that is in no name.
fn english_word(text: &str, names: &[&str]) -> Option<String> {
    let text = names.iter().fold(text.to_string(), |text, name| text.replace(name, " "));
    // A missing measurement is quoted with its keys: role "remote-local".
    let text: String = text.split('"').step_by(2).collect();
    let words = text.split(|letter: char| !letter.is_ascii_alphabetic());
    let is_english = |word: &&str| word.len() > 2 && word.bytes().all(|it| it.is_ascii_lowercase());
    words.filter(|word| *word != "role").find(is_english).map(str::to_string)
}

/// Goal: an English word among Japanese is found; names, units and keys are not reported.
#[test]
fn english_words_are_found() {
    let names = ["seq read", "A (at risk: none)"];
    for (text, found) in [
        ("seq read、A (at risk: none): 12 MiB/s、p99 3 µs、n = 6", None),
        ("role が \"remote-local\" の比較", None),
        ("上限: none", Some("none")),
        ("1 操作の costs（マシン全体）", Some("costs")),
    ] {
        assert_eq!(english_word(text, &names).as_deref(), found, "{text}");
    }
}

/// Runs all rounds up to `rounds` and judges; `mark` may add marks.
fn cards(changes: &[(&str, &str)], rounds: u32, mark: impl Fn(u32) -> Vec<Mark>) -> Vec<Card> {
    let plan = Plan::new(experiment(changes, Mode::Full));
    judged(&plan, rounds, mark, |_| 1.0)
}

/// Does the same on a plan; `effect` is a factor on the throughput of a run.
fn judged(
    plan: &Plan,
    rounds: u32,
    mark: impl Fn(u32) -> Vec<Mark>,
    effect: impl Fn(&Planned<'_>) -> f64,
) -> Vec<Card> {
    let store = planted(plan, rounds, |work| {
        let mut outcome = SyntheticEngine.run(&work.work(None), &Stop::default()).unwrap();
        for (metric, value) in &mut outcome.metrics {
            *value *= if metric.is_throughput() { effect(work) } else { 1.0 };
        }
        Outcome { marks: mark(work.step.position), ..outcome }
    });
    advised(plan, &store)
}

fn card(cards: &[Card], id: &str) -> Card {
    cards.iter().find(|card| card.id == id).unwrap().clone()
}

fn one(changes: &[(&str, &str)], id: &str) -> Card {
    card(&cards(changes, 30, |_| Vec::new()), id)
}

/// Goal: A1 finds a planted loss, reports no loss where there is none, and names missing measurements.
#[test]
fn a1_remote_cost() {
    let fires = one(&[("ratio = 1.0", "ratio = 0.6")], "A1");
    assert_eq!(fires.confidence, Confidence::Strong, "{fires:?}");
    assert!(fires.claim.contains("costs most in") && fires.claim.contains('−'), "{}", fires.claim);
    let same = one(&[], "A1");
    assert_eq!(same.confidence, Confidence::Strong);
    assert!(same.claim.contains("nothing that matters"), "{}", same.claim);
    let vague = one(&[("noise = 0.02", "noise = 0.5")], "A1");
    assert_eq!(vague.confidence, Confidence::NoAdvice, "{vague:?}");
    let missing = one(&[("role = \"remote-local\"", "role = \"other\"")], "A1");
    assert_eq!(missing.confidence, Confidence::NotMeasured);
    assert!(missing.claim.starts_with("Not measured"));
}

/// Goal: A1 finds the block size at which a planted loss ends; it names no size if there is no loss or if the
/// loss never ends.
#[test]
fn a1_threshold() {
    let many = ("bs = [\"4KiB\", \"1MiB\"]", "bs = [\"4KiB\", \"64KiB\", \"256KiB\", \"1MiB\"]");
    let quiet = ("noise = 0.02", "noise = 0.005");
    let plan = Plan::new(experiment(&[many, quiet], Mode::Full));
    let loses_below = |size: u64| {
        let effect = |work: &Planned<'_>| {
            let is_remote = work.condition.id.ends_with("=b");
            if is_remote && work.cell.block_size < size { 0.6 } else { 1.0 }
        };
        card(&judged(&plan, 12, |_| vec![], effect), "A1").claim
    };
    let claim = loses_below(256 << 10);
    assert!(claim.contains("seq: from 256 KiB on it loses less than 5 %"), "{claim}");
    assert!(
        !loses_below(0).contains("on it loses") && !loses_below(1 << 30).contains("on it loses")
    );
}

/// Goal: A2 likewise.
#[test]
fn a2_container_cost() {
    let role = ("role = \"remote-local\"", "role = \"container-native\"");
    let same = one(&[role], "A2");
    assert_eq!(same.confidence, Confidence::Strong);
    assert!(same.claim.starts_with("The container costs nothing that matters"), "{}", same.claim);
    let fires = one(&[role, ("ratio = 1.0", "ratio = 0.8")], "A2");
    assert!(fires.claim.contains("costs most in"), "{}", fires.claim);
    assert_eq!(one(&[], "A2").confidence, Confidence::NotMeasured);
}

/// Goal: A3 finds the known knee: `size / (size + 64 KiB)` is within 10 % of its best measured value (16 MiB)
/// from 1 MiB on, and half of the limit is at 64 KiB; noise that hides it gives no advice.
#[test]
fn a3_transfer_size() {
    let sizes = "bs = [\"4KiB\", \"64KiB\", \"256KiB\", \"1MiB\", \"4MiB\", \"16MiB\"]";
    let many = ("bs = [\"4KiB\", \"1MiB\"]", sizes);
    let quiet = ("noise = 0.02", "noise = 0.005");
    let fires = one(&[many, quiet], "A3");
    assert_eq!(fires.confidence, Confidence::Strong, "{fires:?}");
    assert!(fires.claim.contains("1 MiB"), "{}", fires.claim);
    assert!(fires.evidence.iter().all(|line| line.contains("half of the limit at 6")), "{fires:?}");
    let vague = one(&[many, ("noise = 0.02", "noise = 0.5")], "A3");
    assert_ne!(vague.confidence, Confidence::Strong, "{vague:?}");
    assert_eq!(one(&[], "A3").confidence, Confidence::NotMeasured);
    let exact: Vec<(f64, f64)> =
        [4096.0, 65536.0, 1e6].iter().map(|size| (*size, 1e9 * size / (size + 65536.0))).collect();
    assert!((fit_half(&exact).unwrap() - 65536.0).abs() < 1e-3);
}

/// Goal: A17 gives clean results grade A, names each flaw, and gives D to results without information.
#[test]
fn a17_trust() {
    let clean = one(&[], "A17");
    assert!(clean.claim.starts_with("Grade A"), "{clean:?}");
    let marked = card(
        &cards(&[], 30, |position| if position % 4 == 0 { vec![Mark::Steal] } else { vec![] }),
        "A17",
    );
    assert!(marked.claim.starts_with("Grade B"), "{marked:?}");
    assert!(marked.evidence[0].contains("stolen"), "{marked:?}");
    let cached = card(&cards(&[], 12, |_| vec![Mark::Cached]), "A17");
    assert!(cached.claim.starts_with("Grade D"), "{cached:?}");
    assert_eq!(card(&cards(&[], 0, |_| vec![]), "A17").confidence, Confidence::NotMeasured);
}

/// Goal: A18 fires on cached runs only, and says if no run could show it.
#[test]
fn a18_cache() {
    let real = [
        ("engine = \"synthetic\"", "engine = \"fio\""),
        ("kind = \"synthetic\"", "kind = \"directory\""),
        ("noise = 0.02", ""),
        ("ratio = 1.0", ""),
    ];
    let fires = card(
        &cards(&real, 7, |position| if position == 0 { vec![Mark::Cached] } else { vec![] }),
        "A18",
    );
    assert_eq!(fires.confidence, Confidence::Strong, "{fires:?}");
    assert!(fires.claim.starts_with("Cache, not storage: in 6 of 48"), "{}", fires.claim);
    let clean = card(&cards(&real, 7, |_| vec![]), "A18");
    assert_eq!(clean.confidence, Confidence::NoAdvice);
    let blind = card(&cards(&real, 7, |_| vec![Mark::CacheUnknown]), "A18");
    assert_eq!(blind.confidence, Confidence::NotMeasured);
    let buffered = [&real[..], &[("rw = ", "direct = false\nrw = ")]].concat();
    let buffered = card(&cards(&buffered, 7, |_| vec![]), "A18");
    assert_eq!(buffered.confidence, Confidence::NotMeasured, "{buffered:?}");
}
