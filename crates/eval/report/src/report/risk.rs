//! The files that a crash may damage, condition by condition: the table that belongs to every speed of copies
//! for containers.

use base::messages::{Language, Message};
use lab::plan::Plan;
use loads::scheme::STUDY_BATCHES;

/// Names of the columns.
pub(super) const HEAD: [Message; 4] =
    [Message::ColumnCondition, Message::RiskFiles, Message::RiskAfter, Message::RiskSource];

/// Returns the rows; none if no condition makes copies for containers.
pub(super) fn rows(plan: &Plan, language: Language) -> Vec<[String; 4]> {
    let row = |name: String, risk: loads::scheme::Risk| {
        [name, risk.short().into(), language.text(risk.after).into(), risk.source.into()]
    };
    let conditions = (0..plan.conditions.len()).filter_map(|condition| {
        let risk = plan.scheme(condition)?.risk();
        Some(row(plan.conditions[condition].label.clone(), risk))
    });
    let mut rows: Vec<_> = conditions.collect();
    if !rows.is_empty() {
        let name = "for comparison, not measured here: one fsync for every 50 copies, as the study's modified \
                    overlayfs".into();
        rows.push(row(name, STUDY_BATCHES));
    }
    rows
}
