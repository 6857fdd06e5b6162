//! Goal: planted bugs and their catalogue agree, and the shipped program has none.

use simulation::mutants::{Catalogue, catalogue, checker};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Crates in which bugs are planted: those that the simulation runs, and those of unions and
/// volumes.
const CRATES: [&str; 10] =
    ["client", "host", "locks", "meta", "mount", "node", "rpc", "target", "union", "volume"];

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Returns the files in which each mutant is planted.
fn planted() -> BTreeMap<String, BTreeSet<String>> {
    let mut files = Vec::new();
    for name in CRATES {
        sources(&top().join("crates").join(name).join("src"), &mut files);
    }
    let mut planted: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in files {
        let text = fs::read_to_string(&file).expect("a source");
        let place = file.strip_prefix(top()).expect("below the top").display().to_string();
        for after in text.split("reactor::mutant!(").skip(1) {
            let name = after.split('"').nth(1).expect("a name in quotes");
            planted.entry(name.to_owned()).or_default().insert(place.clone());
        }
    }
    planted
}

/// Goal: every planted bug is in the catalogue with its file, and every entry of the catalogue is
/// planted under a unique name.
#[test]
fn sites_and_catalogue_agree() {
    let Catalogue { mutants, .. } = catalogue();
    let planted = planted();
    let named: BTreeSet<&str> = mutants.iter().map(|mutant| mutant.name.as_str()).collect();
    assert_eq!(named.len(), mutants.len(), "names are given once");
    let sites: BTreeSet<&str> = planted.keys().map(String::as_str).collect();
    assert_eq!(named, sites);
    for mutant in &mutants {
        assert!(
            planted[&mutant.name].contains(&mutant.file),
            "{} is not in {}",
            mutant.name,
            mutant.file
        );
    }
}

/// Rules that are numbered in docs/protocol.md.
fn numbered(protocol: &str) -> BTreeSet<&str> {
    let marked = protocol.split("**").skip(1).step_by(2);
    let is_number = |text: &&str| {
        let (letter, number) = text.split_at_checked(1).unwrap_or_default();
        letter.chars().all(|letter| letter.is_ascii_uppercase()) && number.parse::<u32>().is_ok()
    };
    marked.filter(is_number).collect()
}

/// Goal: every rule that a mutant breaks is documented, two mutants break each rule (V14, and those
/// of unions and volumes: one), and promises are quoted from docs/semantics.md.
#[test]
fn each_rule_is_broken_by_two_mutants() {
    let Catalogue { invariants, promises, union, volumes, mutants } = catalogue();
    let protocol = fs::read_to_string(top().join("docs/protocol.md")).expect("the protocol");
    let semantics = fs::read_to_string(top().join("docs/semantics.md")).expect("the semantics");
    let crates = union.keys().chain(volumes.keys());
    let listed = invariants.keys().chain(promises.keys()).chain(crates).map(String::as_str);
    let rules: BTreeSet<&str> = numbered(&protocol).into_iter().chain(listed).collect();
    let broken =
        |rule: &str| mutants.iter().filter(|mutant| mutant.rules().any(|it| it == rule)).count();
    for mutant in &mutants {
        for rule in mutant.rules() {
            assert!(rules.contains(rule), "{} breaks {rule}, which is no rule", mutant.name);
        }
    }
    for quote in promises.values() {
        let text = semantics.replace('\n', " ");
        assert!(text.contains(quote), "docs/semantics.md does not promise: {quote}");
    }
    let is_of_crate = |rule: &str| union.contains_key(rule) || volumes.contains_key(rule);
    let needed = |rule: &str| if is_of_crate(rule) || rule == "V14" { 1 } else { 2 };
    let few: Vec<&str> = rules.iter().copied().filter(|rule| broken(rule) < needed(rule)).collect();
    assert!(few.is_empty(), "rules that fewer than two mutants break: {few:?}");
}

/// Goal: the crates of which `tsumugi` is built contain no planted bugs, not even through a feature
/// of another crate.
#[test]
fn the_shipped_program_has_no_mutants() {
    let tree = |package: &str, more: &[&str]| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["tree", "--offline", "--locked", "--edges", "normal,build,features"]);
        let answer = cargo
            .args(["--invert", "tsumugi-reactor", "--package", package])
            .args(more)
            .current_dir(top())
            .output();
        let answer = answer.expect("cargo runs");
        assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
        String::from_utf8_lossy(&answer.stdout).contains("tsumugi-reactor feature \"mutants\"")
    };
    assert!(!tree("tsumugi", &[]));
    assert!(!tree("tsumugi-simulation", &[]));
    assert!(tree("tsumugi-simulation", &["--features", "mutants"]), "the test sees the feature");
}

/// Goal: the checker that caught a mutant is found from the violation's text.
#[test]
fn checkers_are_told_apart() {
    assert_eq!(checker("the store, when all rest: freed twice"), "store");
    assert_eq!(checker("read of inode 4 at 0..9 on node0 (ticks 1..2): byte 8 is"), "bytes");
    assert_eq!(
        checker("Saw(None) by lookup for d in InodeId(3) on node0 (ticks 72..73):"),
        "names"
    );
    assert_eq!(checker("a stranger is let in at x"), "operator");
}
