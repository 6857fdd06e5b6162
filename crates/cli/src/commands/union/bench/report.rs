//! The tables: the median of each condition over its rounds, and its ratio to the kernel.

use eval::statistics;
use serde::Serialize;

use super::files::Lower;
use super::measured::Run;

/// The medians of a condition's runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Row {
    condition: &'static str,
    containers: usize,
    rounds: usize,
    rate: f64,
    rate_min: f64,
    rate_max: f64,
    rate_unsynced: f64,
    p50_ms: f64,
    p99_ms: f64,
    container_rate: f64,
    fairness: f64,
    upper_amplification: f64,
    disk_amplification: Option<f64>,
    flushes_per_operation: Option<f64>,
    /// The median over the rounds of the ratio to the kernel's rate in the same round.
    against_kernel: Option<f64>,
}

impl Row {
    /// Returns the rows of runs, by number of containers and in the order of the conditions.
    pub(super) fn of(runs: &[Run]) -> Vec<Self> {
        let mut groups: Vec<(usize, &'static str)> = Vec::new();
        for run in runs {
            if !groups.contains(&(run.containers, run.condition)) {
                groups.push((run.containers, run.condition));
            }
        }
        groups.sort_by_key(|&(containers, _)| containers);
        groups.into_iter().filter_map(|group| Self::of_group(runs, group)).collect()
    }

    fn of_group(runs: &[Run], (containers, condition): (usize, &'static str)) -> Option<Self> {
        let same = |run: &&Run| run.containers == containers && run.condition == condition;
        let own: Vec<&Run> = runs.iter().filter(same).collect();
        let of =
            |value: fn(&Run) -> f64| median(&own.iter().map(|run| value(run)).collect::<Vec<_>>());
        let maybe = |value: fn(&Run) -> Option<f64>| {
            median(&own.iter().filter_map(|run| value(run)).collect::<Vec<_>>())
        };
        let kernel = |round| {
            runs.iter().find(|run| {
                run.containers == containers && run.round == round && run.condition == "kernel"
            })
        };
        let against: Vec<f64> =
            own.iter().filter_map(|run| Some(run.rate / kernel(run.round)?.rate)).collect();
        Some(Self {
            condition,
            containers,
            rounds: own.len(),
            rate: of(|run| run.rate)?,
            rate_min: own.iter().map(|run| run.rate).fold(f64::INFINITY, f64::min),
            rate_max: own.iter().map(|run| run.rate).fold(0.0, f64::max),
            rate_unsynced: of(|run| run.rate_unsynced)?,
            p50_ms: of(|run| run.p50_ms)?,
            p99_ms: of(|run| run.p99_ms)?,
            container_rate: of(|run| run.container_rate)?,
            fairness: of(|run| run.fairness)?,
            upper_amplification: of(|run| run.upper_amplification)?,
            disk_amplification: maybe(|run| run.disk_amplification),
            flushes_per_operation: maybe(|run| run.flushes_per_operation),
            against_kernel: median(&against),
        })
    }
}

/// Returns the median, if there is a value.
fn median(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| statistics::median(values))
}

/// Prints one line of JSON.
pub(super) fn print_json(what: &impl Serialize) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(what)?);
    Ok(())
}

/// Prints the tables.
pub(super) fn print(rows: &[Row], lower: &Lower) {
    println!("{} files, {:.1} MB", lower.files, lower.bytes as f64 / 1e6);
    println!(
        "upper and disk: bytes for each byte written; disk and flushes are the whole machine's"
    );
    let mut containers = 0;
    for row in rows {
        if row.containers != containers {
            containers = row.containers;
            println!("\n{containers} container(s), medians of {} round(s)", row.rounds);
            println!(
                "{:<16} {:>9} {:>17} {:>9} {:>8} {:>8} {:>9} {:>5} {:>8} {:>8} {:>8} {:>7}",
                "condition",
                "durable/s",
                "(min-max)",
                "written/s",
                "p50 ms",
                "p99 ms",
                "each/s",
                "fair",
                "upper",
                "disk",
                "flush/op",
                "kernel",
            );
        }
        let maybe = |value: Option<f64>, digits: usize| {
            value.map_or("-".into(), |value| format!("{value:.digits$}"))
        };
        println!(
            "{:<16} {:>9.1} {:>17} {:>9.1} {:>8.2} {:>8.2} {:>9.1} {:>5.2} {:>8.1} {:>8} {:>8} \
             {:>7}",
            row.condition,
            row.rate,
            format!("({:.0}-{:.0})", row.rate_min, row.rate_max),
            row.rate_unsynced,
            row.p50_ms,
            row.p99_ms,
            row.container_rate,
            row.fairness,
            row.upper_amplification,
            maybe(row.disk_amplification, 1),
            maybe(row.flushes_per_operation, 3),
            row.against_kernel.map_or("-".into(), |ratio| format!("{ratio:.2}x")),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(condition: &'static str, containers: usize, round: usize, rate: f64) -> Run {
        Run {
            condition,
            containers,
            round,
            operations: 1,
            rate,
            rate_unsynced: rate,
            p50_ms: 1.0,
            p99_ms: 2.0,
            container_rate: rate,
            fairness: 1.0,
            upper_amplification: 1.0,
            disk_amplification: None,
            flushes_per_operation: Some(0.5),
        }
    }

    // Goal: a row is the median of its runs, and its ratio the median of the rounds' ratios (which
    // is not the ratio of the medians), in any order of the runs.
    #[test]
    fn rows_are_medians_of_rounds() {
        let runs = [
            run("keep", 4, 0, 100.0),
            run("kernel", 4, 0, 10.0),
            run("kernel", 4, 1, 50.0),
            run("keep", 4, 1, 100.0),
            run("keep", 4, 2, 90.0),
            run("kernel", 4, 2, 30.0),
            run("keep", 1, 0, 7.0),
        ];
        let rows = Row::of(&runs);
        assert_eq!(rows.iter().map(|row| row.containers).collect::<Vec<_>>(), [1, 4, 4]);
        assert_eq!(rows[0].against_kernel, None);
        let keep = &rows[1];
        assert_eq!((keep.condition, keep.rounds, keep.rate), ("keep", 3, 100.0));
        assert_eq!((keep.rate_min, keep.rate_max), (90.0, 100.0));
        assert_eq!(keep.against_kernel, Some(3.0));
        assert_eq!((keep.disk_amplification, keep.flushes_per_operation), (None, Some(0.5)));
        assert_eq!(median(&[4.0, 1.0]), Some(2.5));
    }
}
