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
    /// A4: share of the best throughput that counts as all of it.
    pub knee_share: f64,
    /// A4: fewest numbers of operations under way to judge a curve.
    pub knee_points_min: usize,
    /// A4, A8: R² from which on a model is shown.
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
            ("A4, A8: R² of a model that is shown", self.model_r2_min.to_string()),
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
        id: "A4",
        question: "How many operations under way are enough?",
        needs: "six or more products of jobs and depth, with bandwidth or IOPS",
        change: "another device, a longer way, larger blocks, other jobs beside it",
        judge: rules::depth::knee,
    },
    Rule {
        id: "A5",
        question: "More jobs, or more depth?",
        needs: "cells with the same product of jobs and depth",
        change: "more CPUs, another engine, a device with fewer queues",
        judge: rules::depth::jobs_or_depth,
    },
    Rule {
        id: "A6",
        question: "What is the limit?",
        needs: "CPU shares of the runs, or a rate of the link",
        change: "a faster link, device or CPU, more operations under way",
        judge: rules::bound::limit,
    },
    Rule {
        id: "A7",
        question: "What CPU time does an operation cost?",
        needs: "five or more rates that were held (engine \"rate\")",
        change: "another kernel, driver or transport, larger blocks, other batches",
        judge: rules::cost::per_operation,
    },
    Rule {
        id: "A8",
        question: "Which batch is large enough?",
        needs: "three or more batch sizes, 1 among them, at a rate that was held (engine \"rate\")",
        change: "another rate, a device that answers later, cheaper system calls",
        judge: rules::cost::batch,
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
