//! `tsumugi eval history`: the development of an experiment's results.

use super::results;
use clap::Args;
use eval::history::{Kind, Trend, TrendRow, series};
use eval::units;
use std::path::PathBuf;
use std::process::ExitCode;

/// Exit code: the latest result is a regression, with --fail-on-regression.
const REGRESSION: u8 = 3;

#[derive(Debug, Args)]
pub(super) struct HistoryArgs {
    /// Directories of results, directories of such directories, databases, or the experiment's file
    /// [default: the results below the current directory]
    results: Vec<PathBuf>,
    /// Exit with code 3 if the latest result is worse than the earlier ones
    #[arg(long)]
    fail_on_regression: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints each series of results.
pub(super) fn run(args: &HistoryArgs) -> anyhow::Result<ExitCode> {
    let named = results::read(&args.results)?;
    let all: Vec<_> = named.iter().map(|it| &it.results).collect();
    let trends: Vec<Trend> = series(&all).iter().filter_map(|group| Trend::of(group)).collect();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&trends)?);
    } else {
        trends.iter().for_each(print);
    }
    let has_regression = trends.iter().any(|trend| !trend.regressions().is_empty());
    let fails = args.fail_on_regression && has_regression;
    Ok(if fails { ExitCode::from(REGRESSION) } else { ExitCode::SUCCESS })
}

fn print(trend: &Trend) {
    println!("# {}: {} results\n", trend.name, trend.started.len());
    println!("* plan {}, machine {}", &trend.plan[..16.min(trend.plan.len())], trend.host);
    println!("* begun {}", trend.started.join(", "));
    for note in &trend.notes {
        println!("* changed at {note}");
    }
    if trend.is_judged() {
        let count = trend.regressions().len();
        println!(
            "* {count} values are worse than the {} results before; nothing pairs results, so what days \
             differ by is in the intervals, and no confidence is strong",
            trend.past()
        );
    } else {
        println!("* no verdicts: {} results before the latest, 3 are needed", trend.past());
    }
    for (kind, title) in [
        (Kind::Value, "Values under each condition"),
        (Kind::Effect, "Effects: the ratios of the comparisons"),
    ] {
        let rows: Vec<&TrendRow> = trend.rows.iter().filter(|it| it.change.kind == kind).collect();
        if rows.is_empty() {
            continue;
        }
        println!("\n## {title}\n");
        println!(
            "| of | workload | cell | metric | by result | latest | 95 % interval | verdict |"
        );
        println!("| --- | --- | --- | --- | --- | ---: | --- | --- |");
        rows.into_iter().for_each(row);
    }
    println!("");
}

fn row(row: &TrendRow) {
    let it = &row.change;
    let unit = if it.kind == Kind::Value { it.metric.unit() } else { 1.0 };
    let means: Vec<String> = row.means.iter().map(|mean| units::significant(mean / unit)).collect();
    let name = if it.kind == Kind::Value { it.metric.label() } else { it.metric.word() };
    let interval = units::interval(it.interval);
    println!(
        "| {} | {} | {} | {name} | {} | {} | {interval} | {}{} |",
        it.of,
        it.workload,
        it.cell,
        means.join(" → "),
        units::percent(it.mean),
        it.verdict.map_or("not judged".into(), |_| it.said()),
        if row.is_regression() { ": **worse**" } else { "" },
    );
}
