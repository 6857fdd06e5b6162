//! Advice: rules as data, judged on an analysis, each with its evidence or with the missing measurements.
//!
//! Every rule gives exactly one [`Card`]. A rule whose cells were not measured names the experiment to run.
//! No rule makes a statement beyond the measured range.

pub mod pattern;
mod rules;

use base::messages::{Language, Message};
use lab::analysis::Analysis;
use lab::history::Trend;
use lab::plan::Plan;
use serde::Serialize;
use std::fmt::Display;

pub use lab::thresholds::{THRESHOLDS, Threshold, Thresholds, Unit};
use rules::trust::Grade;

/// A rule.
#[derive(Clone, Copy)]
pub struct Rule {
    /// Its number, e.g. "A1".
    pub id: &'static str,
    /// The question that it answers.
    pub question: Message,
    /// The measurements that it needs.
    pub needs: Message,
    /// The facts that would change the answer.
    pub change: Message,
    judge: fn(&Facts<'_>) -> Finding,
}

impl std::fmt::Debug for Rule {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Rule").field("id", &self.id).finish_non_exhaustive()
    }
}

/// All rules.
pub const RULES: &[Rule] = &[
    Rule {
        id: "A1",
        question: Message::A1Question,
        needs: Message::A1Needs,
        change: Message::A1Change,
        judge: rules::remote_cost,
    },
    Rule {
        id: "A2",
        question: Message::A2Question,
        needs: Message::A2Needs,
        change: Message::A2Change,
        judge: rules::container_cost,
    },
    Rule {
        id: "A3",
        question: Message::A3Question,
        needs: Message::A3Needs,
        change: Message::A3Change,
        judge: rules::transfer_size,
    },
    Rule {
        id: "A4",
        question: Message::A4Question,
        needs: Message::A4Needs,
        change: Message::A4Change,
        judge: rules::depth::knee,
    },
    Rule {
        id: "A5",
        question: Message::A5Question,
        needs: Message::A5Needs,
        change: Message::A5Change,
        judge: rules::depth::jobs_or_depth,
    },
    Rule {
        id: "A6",
        question: Message::A6Question,
        needs: Message::A6Needs,
        change: Message::A6Change,
        judge: rules::bound::limit,
    },
    Rule {
        id: "A7",
        question: Message::A7Question,
        needs: Message::A7Needs,
        change: Message::A7Change,
        judge: rules::cost::per_operation,
    },
    Rule {
        id: "A8",
        question: Message::A8Question,
        needs: Message::A8Needs,
        change: Message::A8Change,
        judge: rules::cost::batch,
    },
    Rule {
        id: "A9",
        question: Message::A9Question,
        needs: Message::A9Needs,
        change: Message::A9Change,
        judge: rules::queues::one_or_many,
    },
    Rule {
        id: "A10",
        question: Message::A10Question,
        needs: Message::A10Needs,
        change: Message::A10Change,
        judge: rules::parallel::own_files,
    },
    Rule {
        id: "A11",
        question: Message::A11Question,
        needs: Message::A11Needs,
        change: Message::A11Change,
        judge: rules::parallel::collective,
    },
    Rule {
        id: "A12",
        question: Message::A12Question,
        needs: Message::A12Needs,
        change: Message::A12Change,
        judge: rules::parallel::hints,
    },
    Rule {
        id: "A13",
        question: Message::A13Question,
        needs: Message::A13Needs,
        change: Message::A13Change,
        judge: rules::stripes::count,
    },
    Rule {
        id: "A14",
        question: Message::A14Question,
        needs: Message::A14Needs,
        change: Message::A14Change,
        judge: rules::parallel::storages,
    },
    Rule {
        id: "A15",
        question: Message::A15Question,
        needs: Message::A15Needs,
        change: Message::A15Change,
        judge: rules::containers::how_many,
    },
    Rule {
        id: "A16",
        question: Message::A16Question,
        needs: Message::A16Needs,
        change: Message::A16Change,
        judge: rules::containers::copy_policy,
    },
    Rule {
        id: "A17",
        question: Message::A17Question,
        needs: Message::A17Needs,
        change: Message::A17Change,
        judge: rules::trust::trust,
    },
    Rule {
        id: "A18",
        question: Message::A18Question,
        needs: Message::A18Needs,
        change: Message::A18Change,
        judge: rules::trust::cache,
    },
    Rule {
        id: "A19",
        question: Message::A19Question,
        needs: Message::A19Needs,
        change: Message::A19Change,
        judge: rules::regression::regression,
    },
    Rule {
        id: "A20",
        question: Message::A20Question,
        needs: Message::A20Needs,
        change: Message::A20Change,
        judge: rules::stability::stability,
    },
];

/// The confidence of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Confidence {
    /// Nearly all cells agree, and none contradicts.
    Strong,
    /// The effect is beyond the margin, but cells are undecided.
    Moderate,
    /// The cells were measured, and no advice follows.
    NoAdvice,
    /// The cells that it needs were not measured.
    NotMeasured,
}

impl Confidence {
    /// Returns the confidence in words.
    pub fn message(self) -> Message {
        match self {
            Self::Strong => Message::Strong,
            Self::Moderate => Message::Moderate,
            Self::NoAdvice => Message::NoAdvice,
            Self::NotMeasured => Message::NotMeasured,
        }
    }

    /// Returns the same in English.
    pub fn label(self) -> &'static str {
        self.message().english()
    }
}

/// The finding of a rule.
#[derive(Clone, Debug)]
struct Finding {
    confidence: Confidence,
    claim: String,
    evidence: Vec<String>,
    apply: String,
    basis: Basis,
}

/// The evidence of a finding. A finding is not strong on a single cell, nor where one number does not
/// describe the measurements.
#[derive(Clone, Copy, Debug, Default)]
struct Basis {
    /// Cells, or comparisons of two of them.
    cells: usize,
    /// Whether a verdict on them is withheld.
    is_withheld: bool,
}

impl Finding {
    fn not_measured(why: impl Into<String>) -> Self {
        Self {
            confidence: Confidence::NotMeasured,
            claim: why.into(),
            evidence: Vec::new(),
            apply: String::new(),
            basis: Basis::default(),
        }
    }
}

/// The input of a rule.
#[derive(Clone, Copy, Debug)]
struct Facts<'a> {
    plan: &'a Plan,
    analysis: &'a Analysis,
    /// Earlier results of the same plan on the same machine, if they were loaded.
    trend: Option<&'a Trend>,
    limits: Thresholds,
    /// The language of the findings.
    language: Language,
}

/// The card of a rule in a report.
#[derive(Clone, Debug, Serialize)]
pub struct Card {
    /// Its number.
    pub id: &'static str,
    /// The question that it answers.
    pub question: Message,
    /// The confidence.
    pub confidence: Confidence,
    /// The answer, or the reason why there is none.
    pub claim: String,
    /// Numbers with intervals and n, by cell.
    pub evidence: Vec<String>,
    /// How to apply it.
    pub apply: String,
    /// The scope of the answer.
    pub scope: String,
    /// The facts that would change it.
    pub change: Message,
}

/// Returns the number of verdicts that the cards print beside those of the comparisons: all share the
/// report's error.
pub fn further_judgements(plan: &Plan, analysis: &Analysis) -> usize {
    let facts =
        Facts { plan, analysis, trend: None, limits: THRESHOLDS, language: Language::English };
    rules::depth::judgements(&facts) + rules::cost::judgements(&facts)
}

/// Judges all rules and returns the cards in a language. `trend` has earlier results, for A19.
pub fn advise(
    plan: &Plan,
    analysis: &Analysis,
    trend: Option<&Trend>,
    language: Language,
) -> Vec<Card> {
    let facts = Facts { plan, analysis, trend, limits: THRESHOLDS, language };
    let scope = scope(&facts, language);
    let grade = rules::trust::grade(&facts);
    RULES
        .iter()
        .map(|rule| {
            let mut finding = (rule.judge)(&facts);
            temper(&facts, &mut finding, grade.as_ref());
            if finding.confidence == Confidence::NotMeasured {
                let needs = language.text(rule.needs);
                let values: [(&str, &dyn Display); 2] =
                    [("why", &finding.claim), ("needs", &needs)];
                finding.claim = language.say(Message::NotMeasuredClaim, &values);
                if finding.apply.is_empty() {
                    finding.apply = language.say(Message::NotMeasuredApply, &[("needs", &needs)]);
                }
            }
            Card {
                id: rule.id,
                question: rule.question,
                confidence: finding.confidence,
                claim: finding.claim,
                evidence: finding.evidence,
                apply: finding.apply,
                scope: scope.clone(),
                change: rule.change,
            }
        })
        .collect()
}

/// Lowers the confidence of advice with too little evidence, and states the reason.
fn temper(facts: &Facts<'_>, finding: &mut Finding, grade: Option<&Grade>) {
    if finding.confidence != Confidence::Strong {
        return;
    }
    let Basis { cells, is_withheld } = finding.basis;
    let mut why = Vec::new();
    if cells < facts.limits.strong_cells_min {
        why.push(facts.language.text(Message::AdviceOneCell).to_string());
    }
    if let Some(grade) = grade.filter(|grade| !grade.is_good()) {
        why.push(facts.language.say(Message::AdviceGrade, &[("grade", &grade.letter)]));
    }
    if is_withheld {
        why.push(facts.language.text(Message::AdviceWithheld).to_string());
    }
    if !why.is_empty() {
        finding.confidence = Confidence::Moderate;
        finding.evidence.append(&mut why);
    }
}

/// Returns the scope that all answers share.
fn scope(facts: &Facts<'_>, language: Language) -> String {
    let (plan, cells) = (facts.plan, &facts.plan.cells);
    let range = |low: String, high: String| {
        if low == high {
            return low;
        }
        language.say(Message::RangeOf, &[("low", &low), ("high", &high)])
    };
    let sizes = cells.iter().map(|cell| cell.block_size);
    let blocks = match sizes.clone().min().zip(sizes.max()) {
        None | Some((_, 0)) => String::new(),
        Some((least, most)) => {
            let range = range(base::units::bytes(least), base::units::bytes(most));
            language.say(Message::ScopeBlocks, &[("range", &range)])
        }
    };
    let jobs = cells.iter().map(|cell| cell.jobs);
    let [least, most] =
        [jobs.clone().min(), jobs.max()].map(|jobs| jobs.unwrap_or_default().to_string());
    let workers = language.plural(plan.experiment.engine.worker);
    let workers = format!("{} {workers}", range(least, most));
    let is_quick = plan.experiment.mode == lab::experiment::Mode::Quick;
    let quick = if is_quick { language.text(Message::ScopeQuick) } else { "" };
    let rounds = facts.analysis.rounds;
    let values: [(&str, &dyn Display); 4] =
        [("blocks", &blocks), ("workers", &workers), ("rounds", &rounds), ("quick", &quick)];
    language.say(Message::Scope, &values)
}
