//! Advice: rules as data, judged on an analysis, each with its evidence or what is missing for it.
//!
//! Every rule gives exactly one [`Card`]. A rule whose cells were not measured says so and names
//! what to run; nothing is said beyond the measured range.

mod rules;

use crate::analysis::Analysis;
use crate::plan::Plan;

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
    pub question: &'static str,
    /// What has to be measured for it.
    pub needs: &'static str,
    /// What would change the answer.
    pub change: &'static str,
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
        question: "What does remote storage cost against local?",
        needs: "a comparison with role \"remote-local\"",
        change: "another network, another device, larger blocks, more operations under way",
        judge: rules::remote_cost,
    },
    Rule {
        id: "A2",
        question: "What does a container cost?",
        needs: "a comparison with role \"container-native\"",
        change: "another runtime, image on another file system, seccomp or cgroup limits",
        judge: rules::container_cost,
    },
    Rule {
        id: "A3",
        question: "Which is the smallest good transfer size?",
        needs: "bandwidth at three or more block sizes",
        change: "more jobs or depth (smaller blocks get good), a longer way (larger ones needed)",
        judge: rules::transfer_size,
    },
    Rule {
        id: "A10",
        question: "One shared file, or a file per rank?",
        needs: "a comparison with role \"own-shared\"",
        change: "more ranks and nodes, striping, a file system that locks shared files",
        judge: rules::parallel::own_files,
    },
    Rule {
        id: "A11",
        question: "Collective or independent MPI-IO?",
        needs: "a comparison with role \"collective-independent\"",
        change: "smaller or interleaved records, more nodes, another number of aggregators",
        judge: rules::parallel::collective,
    },
    Rule {
        id: "A12",
        question: "Does the hint pay?",
        needs: "a comparison with role \"hint\"",
        change: "another pattern, another MPI-IO, another file system",
        judge: rules::parallel::hints,
    },
    Rule {
        id: "A13",
        question: "Over how many devices should a file be striped?",
        needs: "levels of IOR that differ in their stripe-count alone",
        change: "more ranks and nodes, more devices, other transfer sizes",
        judge: rules::stripes::count,
    },
    Rule {
        id: "A14",
        question: "Which storage for which pattern?",
        needs: "a comparison with role \"storage\"",
        change: "another pattern, more ranks, other load on what is shared",
        judge: rules::parallel::storages,
    },
    Rule {
        id: "A17",
        question: "Is this result to be trusted?",
        needs: "runs",
        change: "more rounds, longer runs, a quieter machine",
        judge: rules::trust,
    },
    Rule {
        id: "A18",
        question: "Was anything served from a cache?",
        needs: "runs with direct I/O on a device with counters",
        change: "direct I/O, a working set of twice the memory, another node",
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
    pub fn label(self) -> &'static str {
        match self {
            Self::Strong => "strong",
            Self::Moderate => "moderate",
            Self::NoAdvice => "no advice",
            Self::NotMeasured => "not measured",
        }
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
    pub question: &'static str,
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
    pub change: &'static str,
}

/// Judges all rules.
pub fn advise(plan: &Plan, analysis: &Analysis) -> Vec<Card> {
    let facts = Facts { plan, analysis, limits: THRESHOLDS };
    let sizes: Vec<u64> = plan.cells.iter().map(|cell| cell.block_size).collect();
    let jobs: Vec<u32> = plan.cells.iter().map(|cell| cell.jobs).collect();
    let range =
        |low: String, high: String| if low == high { low } else { format!("{low} to {high}") };
    let size = |size: Option<&u64>| crate::units::bytes(size.copied().unwrap_or_default());
    let job = |jobs: Option<&u32>| jobs.copied().unwrap_or_default().to_string();
    let blocks = match sizes.iter().max() {
        Some(0) | None => String::new(),
        largest => format!("blocks of {}, ", range(size(sizes.iter().min()), size(largest))),
    };
    let scope = format!(
        "this machine and storage, {blocks}{} {}, {} rounds{}",
        range(job(jobs.iter().min()), job(jobs.iter().max())),
        crate::units::plural(plan.experiment.engine.worker()),
        analysis.rounds,
        if plan.experiment.mode == crate::experiment::Mode::Quick { ", a quick form" } else { "" },
    );
    RULES
        .iter()
        .map(|rule| {
            let mut finding = (rule.judge)(&facts);
            if finding.confidence == Confidence::NotMeasured {
                finding.claim =
                    format!("Not measured: {}. It needs {}.", finding.claim, rule.needs);
                finding.apply =
                    format!("tsumugi eval run with an experiment that has {}", rule.needs);
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
