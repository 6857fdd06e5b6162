//! The stored results that a command works on.

use super::DATABASE;
use anyhow::{Context, bail};
use eval::advice::further_judgements;
use eval::advice::pattern::Named;
use eval::experiment::{Experiment, Mode};
use eval::history::Results;
use eval::plan::Plan;
use eval::store::Store;
use std::path::{Path, PathBuf};

/// Reads all given results: a directory of results, its database, or a directory of such
/// directories. An experiment's file selects the results of that experiment. Without other names,
/// the results below the current directory are read.
pub(super) fn read(names: &[PathBuf]) -> anyhow::Result<Vec<Named>> {
    let is_experiment = |path: &&PathBuf| path.extension().is_some_and(|it| it == "toml");
    let mut hashes = Vec::new();
    for path in names.iter().filter(is_experiment) {
        for mode in [Mode::Full, Mode::Quick] {
            // Not every experiment has both forms.
            match (Experiment::read(path, mode), mode) {
                (Ok(experiment), _) => hashes.push(Plan::new(experiment).hash),
                (Err(error), Mode::Full) => {
                    return Err(error).with_context(|| path.display().to_string());
                }
                (Err(_), Mode::Quick) => {}
            }
        }
    }
    let places: Vec<PathBuf> = names.iter().filter(|path| !is_experiment(path)).cloned().collect();
    let places = if places.is_empty() { vec![PathBuf::from(".")] } else { places };
    let mut found = Vec::new();
    for place in &places {
        for database in databases(place)? {
            let shown = shown(&database);
            let results = Store::open(&database)
                .and_then(|store| Results::of(&store, further_judgements))
                .with_context(|| shown.clone())?;
            if hashes.is_empty() || hashes.contains(&results.plan.hash) {
                found.push(Named { source: shown, results });
            }
        }
    }
    if found.is_empty() {
        let experiment = if hashes.is_empty() { "" } else { " of that experiment" };
        let shown: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
        bail!(
            "there are no results{experiment} in {}: create some with `tsumugi eval run`",
            shown.join(", ")
        );
    }
    Ok(found)
}

/// Returns the databases at or below a path, sorted by name.
fn databases(place: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if place.is_file() {
        return Ok(vec![place.into()]);
    }
    if place.join(DATABASE).is_file() {
        return Ok(vec![place.join(DATABASE)]);
    }
    let entries =
        std::fs::read_dir(place).with_context(|| format!("cannot read {}", place.display()))?;
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path().join(DATABASE)))
        .filter(|database| database.is_file())
        .collect();
    found.sort();
    Ok(found)
}

/// Returns a database's name for people: its directory.
fn shown(database: &Path) -> String {
    let is_usual = database.file_name().is_some_and(|name| name == DATABASE);
    let directory = database.parent().filter(|_| is_usual).unwrap_or(database);
    let text = directory.strip_prefix("./").unwrap_or(directory).display().to_string();
    if text.is_empty() { ".".into() } else { text }
}
