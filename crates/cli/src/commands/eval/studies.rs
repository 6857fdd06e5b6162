//! `tsumugi eval studies`: several experiments, one after the other, and one report of all.
//!
//! Each has its own directory of results, which exists before the first begins. So these
//! directories alone show which experiments are done, failed or waiting, even after a kill: `eval
//! report DIR` writes the report of all again, and `--resume` continues.

use super::experiment::{
    Course, INTERRUPTED, check_runs, conduct, make_directory, open_store, stop_on_signals,
};
use super::progress::Progress;
use super::{DATABASE, language, read};
use anyhow::{Context, bail};
use clap::Args;
use eval::Stop;
use eval::ending::Ending;
use eval::live::Claim;
use eval::messages::Language;
use eval::plan::Plan;
use eval::report::{Overview, Study};
use eval::store::Store;
use eval::units;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[derive(Debug, Args)]
pub(super) struct StudiesArgs {
    /// Experiment files (TOML), in the order of their runs
    #[arg(required = true)]
    experiments: Vec<PathBuf>,
    /// Use the quick forms
    #[arg(long)]
    quick: bool,
    /// Directory for all results and their report
    #[arg(long, value_name = "DIR", default_value = "studies")]
    out: PathBuf,
    /// Directory below which the files for the load are created
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    data: PathBuf,
    /// Continue with existing results
    #[arg(long)]
    resume: bool,
    /// Time limit for all experiments together, e.g. 30m
    #[arg(long, value_parser = humantime::parse_duration, value_name = "TIME")]
    time: Option<Duration>,
    /// Language of all pages and charts [default: the first experiment's]
    #[arg(long, value_parser = language, value_name = "en|ja")]
    language: Option<Language>,
}

/// One of the experiments.
struct Turn {
    plan: Plan,
    store: Store,
    directory: PathBuf,
    /// Held until the experiment is over, so that no other process works on it.
    claim: Option<Claim>,
}

impl Turn {
    /// Returns whether nothing of it is left to do, see [`Ending::is_for_good`].
    fn is_over(&self) -> anyhow::Result<bool> {
        let ending = self.store.get("ending")?;
        let is_for_good = ending.as_deref().is_some_and(Ending::is_for_good);
        Ok(self.store.get("failure")?.is_none() && is_for_good)
    }

    /// Returns its shortest planned duration in seconds.
    fn planned_seconds(&self) -> f64 {
        self.plan.estimate().seconds_min
    }
}

/// Runs the experiments with the arguments of the command line.
pub(super) fn run(args: &StudiesArgs) -> anyhow::Result<ExitCode> {
    let begun = Instant::now();
    let mut turns = prepare(args)?;
    let stop = stop_on_signals()?;
    let deadline = args.time.map(|time| begun + time);
    let course = All { args, deadline, stop: &stop };
    let failed = course.run(&mut turns)?;
    let places: Vec<PathBuf> = turns.iter().map(|turn| turn.directory.clone()).collect();
    drop(turns);
    let page = report(&places, &args.out, args.language)?;
    println!(
        "report of all: {} ({})",
        page.display(),
        units::seconds(begun.elapsed().as_secs_f64())
    );
    Ok(match failed {
        _ if stop.is_requested() => ExitCode::from(INTERRUPTED),
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Reads all files before anything runs, and creates or opens their results.
fn prepare(args: &StudiesArgs) -> anyhow::Result<Vec<Turn>> {
    let mut plans = Vec::new();
    let mut names = BTreeSet::new();
    for file in &args.experiments {
        let plan = read(file, args.quick)?;
        check_runs(&plan, file)?;
        if !names.insert(plan.experiment.name.clone()) {
            bail!("{}: there are two experiments {:?}", file.display(), plan.experiment.name);
        }
        plans.push(plan);
    }
    if !args.resume {
        let taken =
            names.iter().map(|name| args.out.join(name)).find(|it| it.join(DATABASE).exists());
        if let Some(taken) = taken {
            bail!(
                "{} already has results: continue with --resume, or give another --out",
                taken.display()
            );
        }
    }
    let mut turns = Vec::new();
    for plan in plans {
        let directory = args.out.join(&plan.experiment.name);
        make_directory(&directory)?;
        let claim = Claim::on(&directory.join(DATABASE))?;
        let store = open_store(&directory, &plan, args.resume)?;
        turns.push(Turn { plan, store, directory, claim: Some(claim) });
    }
    Ok(turns)
}

/// The settings that all experiments share.
struct All<'a> {
    args: &'a StudiesArgs,
    deadline: Option<Instant>,
    stop: &'a Stop,
}

impl All<'_> {
    /// Runs the experiments in turn. Returns the number of failures.
    fn run(&self, turns: &mut [Turn]) -> anyhow::Result<usize> {
        let count = turns.len();
        // How much longer than planned the completed ones took: 1 until one is complete.
        let (mut planned, mut taken) = (0.0, 0.0);
        let mut failed = 0;
        for index in 0..count {
            let waiting = turns[index + 1..].iter().filter(|turn| !turn.is_over().unwrap_or(false));
            let later: Vec<f64> = waiting.map(Turn::planned_seconds).collect();
            let factor = if planned > 0.0 { taken / planned } else { 1.0 };
            let turn = &mut turns[index];
            let name = &turn.plan.experiment.name;
            if self.stop.is_requested() {
                break;
            }
            if turn.is_over()? {
                eprintln!("study {} of {count}: {name}: done before", index + 1);
                turn.claim = None;
                continue;
            }
            eprintln!("study {} of {count}: {name}", index + 1);
            let begun = Instant::now();
            let ending = self.turn(turn, later.len() + 1, later.iter().sum::<f64>() * factor);
            taken += begun.elapsed().as_secs_f64();
            planned += turn.planned_seconds();
            turn.claim = None;
            match ending {
                Ok(ending) => eprintln!("{}: {}", turn.plan.experiment.name, ending.label()),
                Err(error) => {
                    failed += 1;
                    let why = crate::print::words(&error);
                    eprintln!("{}: failed: {why}", turn.plan.experiment.name);
                }
            }
        }
        Ok(failed)
    }

    /// Runs one of `left` remaining experiments; the others take about `later` seconds.
    fn turn(&self, turn: &mut Turn, left: usize, later: f64) -> anyhow::Result<Ending> {
        let now = Instant::now();
        let part = |end: Instant| now + end.saturating_duration_since(now) / left as u32;
        let course =
            Course { data: &self.args.data, deadline: self.deadline.map(part), stop: self.stop };
        conduct(&turn.plan, &mut turn.store, &course, Progress::before_others(later))
    }
}

/// Returns the directories of results directly below a directory, in the order of their start.
pub(super) fn below(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory)
        .with_context(|| format!("cannot read {}", directory.display()))?;
    let places = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut found = Vec::new();
    for place in places.filter(|place| place.join(DATABASE).is_file()) {
        let begun = Store::open(&place.join(DATABASE))?.get("started")?;
        // Waiting ones come last.
        found.push((begun.is_none(), begun, place));
    }
    if found.is_empty() {
        bail!("there are no results in {} or directly below it", directory.display());
    }
    found.sort();
    Ok(found.into_iter().map(|(_, _, place)| place).collect())
}

/// Writes the report of each, and one of all to `out`. Returns the page's path.
pub(super) fn report(
    places: &[PathBuf],
    out: &Path,
    language: Option<Language>,
) -> anyhow::Result<PathBuf> {
    make_directory(out)?;
    let mut studies = Vec::new();
    let mut common = language;
    for place in places {
        let store = Store::open(&place.join(DATABASE))?;
        let language = *common.get_or_insert(store.plan()?.experiment.language);
        let study = Study::of(&store, relative(place, out)?, language)
            .with_context(|| place.display().to_string())?;
        study.report().write(place)?;
        studies.push(study);
    }
    Ok(Overview::new(studies, common.unwrap_or_default()).write(out)?)
}

/// Returns a path relative to a directory; both exist.
fn relative(path: &Path, from: &Path) -> anyhow::Result<String> {
    let whole = |path: &Path| {
        path.canonicalize().with_context(|| format!("cannot find {}", path.display()))
    };
    let (path, from) = (whole(path)?, whole(from)?);
    let common = path.components().zip(from.components()).take_while(|(a, b)| a == b).count();
    let up = from.components().skip(common).map(|_| "..".to_string());
    let down =
        path.components().skip(common).map(|it| it.as_os_str().to_string_lossy().into_owned());
    let parts: Vec<String> = up.chain(down).collect();
    Ok(if parts.is_empty() { ".".into() } else { parts.join("/") })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the report of all links to results wherever either is.
    #[test]
    fn places_are_relative_to_the_report() {
        let top = tempfile::tempdir().unwrap();
        for directory in ["all", "all/one", "other/two"] {
            std::fs::create_dir_all(top.path().join(directory)).unwrap();
        }
        let from =
            |path: &str, from: &str| relative(&top.path().join(path), &top.path().join(from));
        assert_eq!(from("all/one", "all").unwrap(), "one");
        assert_eq!(from("other/two", "all").unwrap(), "../other/two");
        assert_eq!(from("all", "all/one").unwrap(), "..");
        assert_eq!(from("all", "all").unwrap(), ".");
        assert!(from("none", "all").is_err());
    }
}
