//! Advice: rules as data, judged on an analysis, each with its evidence or what is missing for it.
//!
//! Every rule gives exactly one [`Card`]. A rule whose cells were not measured says so and names
//! what to run; nothing is said beyond the measured range.

mod rules;

use crate::analysis::Analysis;
use crate::messages::{Language, Message};
use crate::plan::Plan;
use std::fmt::Display;

/// Limits that the rules use; the report shows them.
#[derive(Clone, Copy, Debug)]
pub struct Thresholds {
    /// A3, A13: share of the best bandwidth that counts as good.
    pub good_share: f64,
    /// A1: loss that counts as none.
    pub loss_small: f64,
    /// Share of cells that have to agree for advice to be strong.
    pub strong_share: f64,
    /// A17: rounds below which nothing is graded well.
    pub rounds_min: usize,
    /// A17: widest half interval, as a log-ratio.
    pub half_width_max: f64,
    /// A17: share of runs with a mark from which on the mark counts.
    pub marked_share_max: f64,
    /// A3: fewest block sizes to judge a curve.
    pub sizes_min: usize,
    /// A13: fewest stripe counts to judge a curve.
    pub stripes_min: usize,
    /// A4: share of the best throughput that counts as all of it.
    pub knee_share: f64,
    /// A4: fewest numbers of operations under way to judge a curve.
    pub knee_points_min: usize,
    /// A4, A8, A9: R² from which on a model is shown.
    pub model_r2_min: f64,
    /// A4: factor by which the tail latency of one operation may grow.
    pub knee_tail: f64,
    /// A4: largest difference of N and rate × latency, relative.
    pub little_max: f64,
    /// A6: share of link or device that is all of it.
    pub bound_share: f64,
    /// A6: share of one CPU that is all of it, and what softirqs may take of one.
    pub cpu_share: f64,
    /// A6: see `cpu_share`.
    pub softirq_share: f64,
    /// A6: share of all CPUs below which they are not what is lacking.
    pub cpu_idle_share: f64,
    /// A6: factor by which latency may have grown while each operation still works for itself.
    pub latency_flat: f64,
    /// A7: fewest rates to give a slope.
    pub rates_min: usize,
    /// A7: R² from which on a slope is given.
    pub slope_r2_min: f64,
    /// A9: fewest numbers of threads.
    pub threads_min: usize,
    /// A8: fewest batch sizes.
    pub batches_min: usize,
    /// A8: factor of the cost of the largest batch that counts as no more than it.
    pub batch_cost: f64,
    /// A8: factor by which the tail latency of single operations may grow.
    pub batch_tail: f64,
}

/// The limits in use.
pub const THRESHOLDS: Thresholds = Thresholds {
    good_share: 0.90,
    loss_small: 0.05,
    strong_share: 0.80,
    rounds_min: 6,
    half_width_max: 0.05,
    marked_share_max: 0.10,
    sizes_min: 3,
    stripes_min: 2,
    knee_share: 0.95,
    knee_points_min: 6,
    model_r2_min: 0.95,
    knee_tail: 2.0,
    little_max: 0.05,
    bound_share: 0.90,
    cpu_share: 0.90,
    softirq_share: 0.80,
    cpu_idle_share: 0.50,
    latency_flat: 1.10,
    rates_min: 5,
    slope_r2_min: 0.98,
    threads_min: 3,
    batches_min: 3,
    batch_cost: 1.05,
    batch_tail: 1.10,
};

impl Thresholds {
    /// Name and value of each, for the report.
    pub fn table(&self) -> Vec<(&'static str, String)> {
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        vec![
            ("A1: loss that counts as none", percent(self.loss_small)),
            ("A3, A13: share of the peak that is good", percent(self.good_share)),
            ("A3: fewest block sizes", self.sizes_min.to_string()),
            ("A13: fewest stripe counts", self.stripes_min.to_string()),
            ("A4: share of the best that is all of it", percent(self.knee_share)),
            ("A4: fewest products of jobs and depth", self.knee_points_min.to_string()),
            ("A4, A8, A9: R² of a model that is shown", self.model_r2_min.to_string()),
            ("A4: growth of the tail of one operation", self.knee_tail.to_string()),
            ("A4: difference of N and rate × latency", percent(self.little_max)),
            ("A6: share of link or device that is all of it", percent(self.bound_share)),
            ("A6: share of one CPU that is all of it", percent(self.cpu_share)),
            ("A6: softirqs' share of one CPU that is all of it", percent(self.softirq_share)),
            ("A6: share of all CPUs that is little", percent(self.cpu_idle_share)),
            ("A6: growth of latency that is none", self.latency_flat.to_string()),
            ("A7: fewest rates", self.rates_min.to_string()),
            ("A7: R² of a slope that is given", self.slope_r2_min.to_string()),
            ("A8: fewest batch sizes", self.batches_min.to_string()),
            ("A8: growth of cost that is none", self.batch_cost.to_string()),
            ("A8: growth of the tail that is none", self.batch_tail.to_string()),
            ("A9: fewest numbers of threads", self.threads_min.to_string()),
            ("strong: cells that have to agree", percent(self.strong_share)),
            ("A17: fewest rounds", self.rounds_min.to_string()),
            ("A17: widest half interval", percent(self.half_width_max)),
            ("A17: marked runs that count", percent(self.marked_share_max)),
        ]
    }
}

/// A rule.
#[derive(Clone, Copy)]
pub struct Rule {
    /// Its number, e.g. "A1".
    pub id: &'static str,
    /// What it answers.
    pub question: Message,
    /// What has to be measured for it.
    pub needs: Message,
    /// What would change the answer.
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
        id: "A17",
        question: Message::A17Question,
        needs: Message::A17Needs,
        change: Message::A17Change,
        judge: rules::trust,
    },
    Rule {
        id: "A18",
        question: Message::A18Question,
        needs: Message::A18Needs,
        change: Message::A18Change,
        judge: rules::cache,
    },
];

/// How sure a rule is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confidence {
    /// Nearly all cells agree and none contradicts.
    Strong,
    /// The effect is beyond the margin, but cells are undecided.
    Moderate,
    /// Measured, and nothing follows.
    NoAdvice,
    /// The cells that it needs were not measured.
    NotMeasured,
}

impl Confidence {
    /// For people.
    pub fn message(self) -> Message {
        match self {
            Self::Strong => Message::Strong,
            Self::Moderate => Message::Moderate,
            Self::NoAdvice => Message::NoAdvice,
            Self::NotMeasured => Message::NotMeasured,
        }
    }

    /// The same in English.
    pub fn label(self) -> &'static str {
        self.message().english()
    }
}

/// What a rule found.
#[derive(Clone, Debug)]
struct Finding {
    confidence: Confidence,
    claim: String,
    evidence: Vec<String>,
    apply: String,
}

impl Finding {
    fn not_measured(why: &str) -> Self {
        Self {
            confidence: Confidence::NotMeasured,
            claim: why.into(),
            evidence: Vec::new(),
            apply: String::new(),
        }
    }
}

/// What a rule looks at.
#[derive(Clone, Copy, Debug)]
struct Facts<'a> {
    plan: &'a Plan,
    analysis: &'a Analysis,
    limits: Thresholds,
}

/// What the report shows of a rule.
#[derive(Clone, Debug)]
pub struct Card {
    /// Its number.
    pub id: &'static str,
    /// What it answers.
    pub question: Message,
    /// How sure it is.
    pub confidence: Confidence,
    /// The answer, or why there is none.
    pub claim: String,
    /// Numbers with intervals and n, by cell.
    pub evidence: Vec<String>,
    /// What to do about it.
    pub apply: String,
    /// For what the answer holds.
    pub scope: String,
    /// What would change it.
    pub change: Message,
}

/// Judges all rules; what frames their findings is in a language, the findings are in English.
pub fn advise(plan: &Plan, analysis: &Analysis, language: Language) -> Vec<Card> {
    let facts = Facts { plan, analysis, limits: THRESHOLDS };
    let scope = scope(&facts, language);
    RULES
        .iter()
        .map(|rule| {
            let mut finding = (rule.judge)(&facts);
            if finding.confidence == Confidence::NotMeasured {
                let needs = language.text(rule.needs);
                let values: [(&str, &dyn Display); 2] =
                    [("why", &finding.claim), ("needs", &needs)];
                finding.claim = language.say(Message::NotMeasuredClaim, &values);
                finding.apply = language.say(Message::NotMeasuredApply, &[("needs", &needs)]);
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

/// For what all answers hold.
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
            let range = range(crate::units::bytes(least), crate::units::bytes(most));
            language.say(Message::ScopeBlocks, &[("range", &range)])
        }
    };
    let jobs = cells.iter().map(|cell| cell.jobs);
    let [least, most] =
        [jobs.clone().min(), jobs.max()].map(|jobs| jobs.unwrap_or_default().to_string());
    let workers = language.plural(plan.experiment.engine.worker());
    let workers = format!("{} {workers}", range(least, most));
    let is_quick = plan.experiment.mode == crate::experiment::Mode::Quick;
    let quick = if is_quick { language.text(Message::ScopeQuick) } else { "" };
    let rounds = facts.analysis.rounds;
    let values: [(&str, &dyn Display); 4] =
        [("blocks", &blocks), ("workers", &workers), ("rounds", &rounds), ("quick", &quick)];
    language.say(Message::Scope, &values)
}
