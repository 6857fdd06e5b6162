//! `tsumugi eval advise`: advice from stored results, for all of their loads or for a given access
//! pattern.

use super::results;
use clap::Args;
use eval::advice::pattern::{Answer, Asked, answer, cards};
use eval::advice::{Card, THRESHOLDS};
use eval::units;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, Args)]
pub(super) struct AdviseArgs {
    /// Directories of results, directories of such directories, databases, or an experiment's file
    /// [default: the results below the current directory]
    results: Vec<PathBuf>,
    /// Your access pattern, e.g. 'write shared 1MiB x 64 ranks'
    #[arg(long, value_parser = Asked::parse)]
    pattern: Option<Asked>,
    /// Print the thresholds of the rules
    #[arg(long, conflicts_with_all = ["pattern", "results"])]
    thresholds: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The advice of all rules about a result.
#[derive(Serialize)]
struct OfResult {
    source: String,
    cards: Vec<Card>,
}

/// Prints the advice that the arguments ask for.
pub(super) fn run(args: &AdviseArgs) -> anyhow::Result<ExitCode> {
    if args.thresholds {
        return thresholds(args.json);
    }
    let all = results::read(&args.results)?;
    if let Some(asked) = &args.pattern {
        let answer = answer(asked, &all);
        if args.json {
            println!("{}", serde_json::to_string_pretty(&answer)?);
        } else {
            print_answer(&answer);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let of_results: Vec<OfResult> = (0..all.len())
        .map(|index| OfResult { source: all[index].source.clone(), cards: cards(&all, index) })
        .collect();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&of_results)?);
        return Ok(ExitCode::SUCCESS);
    }
    for it in &of_results {
        println!("# {}\n", it.source);
        it.cards.iter().for_each(print_card);
    }
    Ok(ExitCode::SUCCESS)
}

fn thresholds(json: bool) -> anyhow::Result<ExitCode> {
    let table = THRESHOLDS.table();
    if json {
        println!("{}", serde_json::to_string_pretty(&table)?);
        return Ok(ExitCode::SUCCESS);
    }
    println!("| rules | limit | value |\n| --- | --- | ---: |");
    for line in table {
        println!("| {} | {} | {} |", line.rules, line.what, line.shown());
    }
    Ok(ExitCode::SUCCESS)
}

fn print_card(card: &Card) {
    let (question, change) = (card.question.english(), card.change.english());
    println!("## {} {question} ({})\n\n{}", card.id, card.confidence.label(), card.claim);
    for line in &card.evidence {
        println!("* {line}");
    }
    println!("\nApply: {}\nHolds for: {}\nWould change it: {change}\n", card.apply, card.scope);
}

fn print_answer(answer: &Answer) {
    println!("# {}\n", answer.asked);
    if !answer.found.is_empty() {
        println!("| result | condition | cell | octaves away | median | 95 % interval | n |");
        println!("| --- | --- | --- | ---: | ---: | --- | ---: |");
    }
    for it in &answer.found {
        for figure in &it.figures {
            let interval = figure.interval.map_or("–".into(), |(low, high)| {
                format!("{} … {}", units::significant(low), units::significant(high))
            });
            println!(
                "| {}{} | {} | {} | {:.1} | {}: {} | {interval} | {} |",
                it.source,
                if it.is_imported { " (imported)" } else { "" },
                it.condition,
                it.cell,
                it.octaves,
                figure.metric,
                units::significant(figure.median),
                figure.n
            );
        }
    }
    if answer.too_far > 0 {
        println!(
            "\n{} cells of the same work differ by more than a factor of two in size, jobs or \
             depth, and are left out.",
            answer.too_far
        );
    }
    if let Some(run) = &answer.run {
        println!("\n{run}");
    }
    for advice in &answer.advice {
        println!("\n# Advice from {}\n", advice.source);
        advice.cards.iter().for_each(print_card);
    }
}
