//! Planted bugs: their catalogue, and the checker that caught one.

use serde::Deserialize;
use std::collections::BTreeMap;

/// All planted bugs with the rules that they break.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalogue {
    /// Invariants, by their number.
    pub invariants: BTreeMap<String, String>,
    /// Promises of docs/semantics.md, by their number.
    pub promises: BTreeMap<String, String>,
    /// Guarantees of a union's journal, by their number.
    pub union: BTreeMap<String, String>,
    /// Guarantees of a pool of volumes, by their number.
    pub volumes: BTreeMap<String, String>,
    /// The bugs.
    #[serde(rename = "mutant")]
    pub mutants: Vec<Mutant>,
}

/// A planted bug.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mutant {
    /// The name in the condition in the code.
    pub name: String,
    /// The rules that it breaks, with a space between two: numbers of [`Catalogue::invariants`],
    /// [`Catalogue::promises`], [`Catalogue::union`], [`Catalogue::volumes`] or docs/protocol.md.
    pub rule: String,
    /// The file in which it is planted.
    pub file: String,
    /// The defect, in a sentence.
    pub bug: String,
    /// The test that catches it where no seed does: package, target and name.
    pub test: Option<String>,
    /// Why no seed catches it.
    pub masked: Option<String>,
}

impl Mutant {
    /// Returns the rules that it breaks.
    pub fn rules(&self) -> impl Iterator<Item = &str> {
        self.rule.split(' ')
    }
}

/// Returns the catalogue, `mutants.toml`.
///
/// # Panics
/// If the file is malformed.
pub fn catalogue() -> Catalogue {
    toml::from_str(include_str!("../mutants.toml")).expect("mutants.toml is a catalogue")
}

/// Plants a bug in this process. Must be called before any shipped code runs.
///
/// # Errors
/// Returns the reason why the bug cannot be planted.
pub fn activate(name: &str) -> Result<(), String> {
    if !catalogue().mutants.iter().any(|mutant| mutant.name == name) {
        return Err(format!("no mutant {name} in crates/simulation/mutants.toml"));
    }
    planted(name)
}

#[cfg(feature = "mutants")]
fn planted(name: &str) -> Result<(), String> {
    let is_planted = reactor::mutants::activate(name);
    is_planted.map_err(|active| format!("cannot plant {name}: this process has {active:?}"))
}

#[cfg(not(feature = "mutants"))]
fn planted(name: &str) -> Result<(), String> {
    Err(format!("cannot plant {name}: build with --features mutants"))
}

/// Returns how often the planted bug's condition was evaluated.
pub fn reached() -> u64 {
    #[cfg(feature = "mutants")]
    return reactor::mutants::reached();
    #[cfg(not(feature = "mutants"))]
    0
}

/// Makes each thread count the evaluated conditions of mutants from now on.
///
/// # Errors
/// Returns the reason why this is impossible.
pub fn note_reached() -> Result<(), String> {
    #[cfg(feature = "mutants")]
    {
        reactor::mutants::note_reached();
        Ok(())
    }
    #[cfg(not(feature = "mutants"))]
    Err("cannot see what is reached: build with --features mutants".to_owned())
}

/// Returns and clears this thread's counts: how often it evaluated a condition of each mutant.
pub fn noted() -> BTreeMap<&'static str, u64> {
    #[cfg(feature = "mutants")]
    return reactor::mutants::noted();
    #[cfg(not(feature = "mutants"))]
    BTreeMap::new()
}

/// A part of a violation's text, with the checker that reports it.
const CHECKERS: [(&str, &str); 25] = [
    ("keeps what is forgotten", "forgets"),
    ("references for a kernel", "forgets"),
    ("a duplicated connection is let in", "duplicates"),
    ("the store, ", "store"),
    ("free bytes and inodes", "space"),
    ("an empty pool", "space"),
    ("two appends", "appends"),
    ("a lock is left", "locks"),
    ("has lost a lock", "locks"),
    ("locks of inode", "locks"),
    ("was given out again", "inode numbers"),
    ("read of inode", "bytes"),
    ("size of inode", "ends"),
    ("fails without cause", "errors"),
    ("without cause", "waits"),
    ("does not end", "waits"),
    ("time limit", "waits"),
    ("deadline", "waits"),
    ("extended attribute", "attributes"),
    ("seek of inode", "attributes"),
    ("points elsewhere", "attributes"),
    ("is no symbolic link", "attributes"),
    ("cannot be removed", "end"),
    ("no order of calls", "names"),
    ("(ticks ", "names"),
];

/// Returns the checker that reports a violation of the cluster.
pub fn checker(violation: &str) -> &'static str {
    let found = CHECKERS.iter().find(|(text, _)| violation.contains(text));
    found.map_or("operator", |(_, checker)| checker)
}
