//! The table of CPU time: by user of the time, and by activity of the machine.
//!
//! Columns of processes are the scheduler's, exact; those of the machine are samples and carry the error of
//! one run. A missing value is shown as not available, never as 0.

use super::Report;
use base::messages::{Language, Message};
use base::statistics::median;
use base::units;
use lab::store::Run;

/// Names of the columns.
pub(super) const HEAD: [Message; 15] = [
    Message::ColumnCell,
    Message::ColumnCondition,
    Message::CostLoad,
    Message::CostContainer,
    Message::CostServices,
    Message::CostKernelThreads,
    Message::CostOtherMachines,
    Message::CostUser,
    Message::CostSystem,
    Message::CostIrq,
    Message::CostSoftirq,
    Message::CostSteal,
    Message::CostMachine,
    Message::CostLessGenerator,
    Message::CostPerGib,
];

/// Returns the rows of a workload; none if CPU time was not recorded.
pub(super) fn rows(report: &Report, workload: usize) -> Vec<Vec<String>> {
    let plan = &report.plan;
    let mut rows = Vec::new();
    for cell in plan.cells.iter().filter(|cell| cell.workload == workload) {
        let runs = |condition: usize| -> Vec<&Run> {
            let id = &plan.conditions[condition].id;
            let all = report.analysis.runs.iter().filter(|run| run.is_usable());
            all.filter(|run| run.cell == cell.id && run.condition == *id)
                .filter(|run| run.samples.contains_key("cpu_wall_s"))
                .collect()
        };
        let null = (0..plan.conditions.len()).find(|it| plan.is_null(*it));
        let generator = null.and_then(|null| middle(&runs(null), machine));
        for (condition, it) in plan.conditions.iter().enumerate() {
            let runs = runs(condition);
            if runs.is_empty() {
                continue;
            }
            let mut row = vec![cell.label_in(report.language), it.label.clone()];
            let generator = generator.filter(|_| Some(condition) != null);
            row.extend(row_of(&runs, generator, report.language));
            rows.push(row);
        }
    }
    rows
}

fn row_of(runs: &[&Run], generator: Option<f64>, language: Language) -> Vec<String> {
    let shown = |value: Option<f64>| {
        value.map_or(language.text(Message::NotAvailable).into(), units::significant)
    };
    let per_io = |seconds: fn(&Run) -> Option<f64>| {
        middle(runs, |run| Some(1e6 * seconds(run)? / operations(run)?))
    };
    let machine = middle(runs, machine);
    let mut row = vec![
        shown(per_io(|run| value(run, "cpu_load_s"))),
        shown(per_io(|run| value(run, "cpu_container_s"))),
        per_io(services).map_or(language.text(Message::CostNone).into(), units::significant),
        shown(per_io(|run| value(run, "cpu_kernel_threads_s"))),
        shown(per_io(others)),
    ];
    row.push(share(runs, &["user", "nice"], language));
    for column in ["system", "irq", "softirq", "steal"] {
        row.push(share(runs, &[column], language));
    }
    row.push(shown(machine));
    let net = machine.zip(generator).map(|(all, own)| all - own);
    row.push(shown(net));
    row.push(shown(middle(runs, |run| value(run, "cpu-per-gib"))));
    row
}

fn value(run: &Run, name: &str) -> Option<f64> {
    run.samples.get(name).copied()
}

fn operations(run: &Run) -> Option<f64> {
    value(run, "cpu_operations").filter(|count| *count > 0.0)
}

fn machine(run: &Run) -> Option<f64> {
    value(run, "machine-cpu-per-io")
}

/// Returns the time of all services together; `None` if no service ran.
fn services(run: &Run) -> Option<f64> {
    let all = run.samples.iter().filter(|(name, _)| name.starts_with("cpu_service_"));
    all.map(|(_, value)| *value).reduce(|sum, value| sum + value)
}

/// Returns the time of all other machines together, less their idle use; `None` if there is
/// none or the time of one is unknown.
fn others(run: &Run) -> Option<f64> {
    let busy =
        |name: &String| Some(name.strip_prefix("cpu_host_")?.strip_suffix("_busy_s")?.to_string());
    let hosts: Vec<String> = run.samples.keys().filter_map(busy).collect();
    let net = |host: &String| {
        let of = |what: &str| value(run, &format!("cpu_host_{host}_{what}"));
        Some(of("busy_s")? - of("idle_busy")? * of("wall_s")?)
    };
    let all: Option<Vec<f64>> = hosts.iter().map(net).collect();
    all.filter(|all| !all.is_empty()).map(|all| all.iter().sum())
}

fn middle(runs: &[&Run], value: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = runs.iter().filter_map(|run| value(run)).collect();
    (!values.is_empty()).then(|| median(&values))
}

/// Formats the percent of all CPUs in several columns together, with the error; the first column must exist.
fn share(runs: &[&Run], columns: &[&str], language: Language) -> String {
    let percent = |run: &Run, ending: &str| {
        let all = value(run, "cpu_wall_s")? * value(run, "cpu_count")?;
        let of = |column: &&str| value(run, &format!("cpu_{column}{ending}"));
        of(columns.first()?)?;
        Some(100.0 * columns.iter().filter_map(of).sum::<f64>() / all)
    };
    let (part, error) =
        (middle(runs, |run| percent(run, "_s")), middle(runs, |run| percent(run, "_error_s")));
    match part.zip(error) {
        Some((part, error)) => format!("{part:.1} ± {error:.1}"),
        None => language.text(Message::NotAvailable).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(samples: &[(&str, f64)]) -> Run {
        Run {
            round: 1,
            position: 0,
            is_warm_up: false,
            cell: String::new(),
            condition: String::new(),
            seed: 0,
            error: None,
            marks: Vec::new(),
            command: String::new(),
            job: String::new(),
            samples: samples.iter().map(|(name, value)| ((*name).to_string(), *value)).collect(),
        }
    }

    /// Goal: times are per operation, shares carry their error, the generator is subtracted, and values that
    /// the kernel does not count are not available.
    #[test]
    fn costs_are_told_with_their_errors() {
        let run = run(&[
            ("cpu_wall_s", 2.0),
            ("cpu_count", 2.0),
            ("cpu_operations", 1000.0),
            ("cpu_load_s", 0.01),
            ("cpu_container_s", 0.02),
            ("cpu_service_target_s", 0.02),
            ("cpu_service_attach_s", 0.03),
            ("cpu_host_a_busy_s", 0.5),
            ("cpu_host_a_wall_s", 2.0),
            ("cpu_host_a_idle_busy", 0.2),
            ("cpu_user_s", 1.0),
            ("cpu_user_error_s", 0.1),
            ("cpu_nice_s", 0.2),
            ("cpu_nice_error_s", 0.1),
            ("cpu_system_s", 0.4),
            ("cpu_system_error_s", 0.04),
            ("machine-cpu-per-io", 80.0),
        ]);
        let row_of = |run: &Run, own| row_of(&[run], own, Language::English);
        let row = row_of(&run, Some(5.0));
        let not = "not available";
        let told = [
            "10.0",
            "20.0",
            "50.0",
            not,
            "100.0",
            "30.0 ± 5.0",
            "10.0 ± 1.0",
            not,
            not,
            not,
            "80.0",
            "75.0",
            not,
        ];
        let told: Vec<String> = told.iter().map(|it| (*it).to_string()).collect();
        assert_eq!(row, told);
        assert_eq!(row.len() + 2, HEAD.len());
        assert_eq!(row_of(&run, None)[11], not);
        let alone = Run { samples: [("cpu_operations".to_string(), 9.0)].into(), ..run };
        let row = row_of(&alone, None);
        assert_eq!((row[2].as_str(), row[4].as_str()), ("none", not));
    }
}
