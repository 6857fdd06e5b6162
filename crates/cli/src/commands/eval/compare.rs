//! `tsumugi eval compare`: the verdicts of one result, or the changes between two.

use clap::Args;
use eval::advice::further_judgements;
use eval::history::{Change, History, Kind, Results, compare};
use eval::store::Store;
use eval::units;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Debug, Args)]
pub(super) struct CompareArgs {
    /// Directory of results
    results: PathBuf,
    /// A later directory of results to compare with
    later: Option<PathBuf>,
    /// Print verdicts even if machine, kernel, loads or limits differ
    #[arg(long, requires = "later")]
    anyway: bool,
    /// Print JSON
    #[arg(long, requires = "later")]
    json: bool,
}

/// Prints the comparison.
pub(super) fn run(args: &CompareArgs) -> anyhow::Result<ExitCode> {
    let Some(later) = &args.later else {
        print!("{}", super::open(&args.results)?.markdown());
        return Ok(ExitCode::SUCCESS);
    };
    let read = |path: &Path| {
        let store = Store::open(&super::database(path))?;
        anyhow::Ok(Results::of(&store, further_judgements)?)
    };
    let history = compare(&read(&args.results)?, &read(later)?, args.anyway);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&history)?);
    } else {
        print(&history, args.anyway);
    }
    Ok(ExitCode::SUCCESS)
}

fn print(history: &History, anyway: bool) {
    for note in &history.notes {
        println!("* {note}");
    }
    if !history.reasons.is_empty() {
        let how = if anyway { "judged all the same" } else { "no verdicts; --anyway gives them" };
        println!("\nNot comparable ({how}):");
        for reason in &history.reasons {
            println!("* {reason}");
        }
    }
    if !history.unmatched.is_empty() {
        println!("\nIn one of them only:");
        for name in &history.unmatched {
            println!("* {name}");
        }
    }
    for (kind, title) in [
        (Kind::Effect, "Effects: how the ratios of the comparisons changed"),
        (Kind::Value, "Values under each condition"),
    ] {
        let rows: Vec<&Change> = history.changes.iter().filter(|it| it.kind == kind).collect();
        if rows.is_empty() {
            continue;
        }
        println!("\n## {title}\n");
        println!("| of | workload | cell | metric | change | 95 % interval | n | verdict |");
        println!("| --- | --- | --- | --- | ---: | --- | ---: | --- |");
        for it in rows {
            let interval = units::interval(it.interval);
            println!(
                "| {} | {} | {} | {} | {} | {interval} | {}, {} | {} |",
                it.of,
                it.workload,
                it.cell,
                it.metric.word(),
                units::percent(it.mean),
                it.n.0,
                it.n.1,
                it.said()
            );
        }
    }
}
