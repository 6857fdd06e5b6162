//! The reasons for withheld verdicts, in words.

use super::Report;
use base::messages::{Language, Message};
use base::statistics::{Withheld, median};
use base::units;
use lab::analysis::{Family, Flaw, Row};
use loads::metric::Metric;
use serde_json::{Value, json};

impl Report {
    /// Returns the flaws of a row, the most certain first.
    pub(super) fn flaws(&self, row: &Row, language: Language) -> Vec<String> {
        row.flaws.iter().map(|flaw| self.flaw(row, flaw, language)).collect()
    }

    fn flaw(&self, row: &Row, flaw: &Flaw, language: Language) -> String {
        let change = units::percent(flaw.change);
        let label = |index: usize| self.plan.conditions[index].label.as_str();
        let condition = flaw.condition.map_or("?", label);
        let share = format!("{:.0}", 100.0 * flaw.share);
        let seconds = units::significant(flaw.at);
        match flaw.kind {
            Withheld::Trend => language.say(Message::FlawTrend, &[("change", &change)]),
            Withheld::Step => {
                let round = flaw.at as u32 + 1 - self.plan.warm_up_rounds().min(flaw.at as u32);
                language.say(Message::FlawStep, &[("change", &change), ("round", &round)])
            }
            Withheld::Order => language.say(Message::FlawOrder, &[("change", &change)]),
            Withheld::CarryOver => language
                .say(Message::FlawCarryOver, &[("condition", &condition), ("change", &change)]),
            Withheld::Autocorrelated => {
                let size = format!("{:.2}", flaw.change);
                language.say(Message::FlawAutocorrelated, &[("size", &size)])
            }
            Withheld::Cliff => language.say(
                Message::FlawCliff,
                &[
                    ("condition", &condition),
                    ("change", &change),
                    ("seconds", &seconds),
                    ("share", &share),
                ],
            ),
            Withheld::Stalls => {
                let tail = flaw.condition.and_then(|it| self.tail(row.cell, it));
                let tail = tail.map_or(String::new(), |p99| {
                    language.say(Message::FlawTail, &[("p99", &units::significant(p99))])
                });
                language.say(
                    Message::FlawStalls,
                    &[
                        ("condition", &condition),
                        ("share", &share),
                        ("seconds", &seconds),
                        ("tail", &tail),
                    ],
                )
            }
        }
    }

    /// Returns the median p99 latency of a condition, in µs.
    fn tail(&self, cell: usize, condition: usize) -> Option<f64> {
        let (cell, condition) = (&self.plan.cells[cell].id, &self.plan.conditions[condition].id);
        let runs = self.analysis.runs.iter();
        let values: Vec<f64> = runs
            .filter(|run| run.is_usable() && run.cell == *cell && run.condition == *condition)
            .filter_map(|run| run.value(Metric::LatencyP99))
            .collect();
        (!values.is_empty()).then(|| median(&values))
    }

    /// Returns the flaws for other programs.
    pub(super) fn flaws_json(&self, row: &Row) -> Value {
        let each = row.flaws.iter().map(|flaw| {
            json!({
                "kind": flaw.kind.name(), "said": self.flaw(row, flaw, Language::English),
                "change": flaw.change, "at": flaw.at, "share": flaw.share, "p": flaw.p,
                "condition": flaw.condition.map(|it| self.plan.conditions[it].label.as_str()),
            })
        });
        Value::Array(each.collect())
    }

    /// Returns the rows with flaws.
    pub(super) fn flawed(&self) -> impl Iterator<Item = (&Family, &Row)> {
        let rows = self.analysis.families.iter();
        rows.flat_map(|family| family.rows.iter().map(move |row| (family, row)))
            .filter(|(_, row)| !row.flaws.is_empty())
    }
}
