//! Two questions, four answers.
//!
//! Per cell three p-values are computed from the paired log-ratios with Student's t: that there is a
//! difference at all, that it lies wholly beyond the margin, and (two one-sided tests) that it lies
//! wholly within. Each is multiplied by the number of looks and then adjusted over the cells of one
//! figure by Holm's procedure, so that a figure of 60 cells is not more likely to cry wolf than one of
//! one. The answers in order:
//!
//! 1. *equivalent*: within the margin is proven, and the median lies in it;
//! 2. *different, matters*: beyond the margin is proven, and the median agrees;
//! 3. *different, small*: a difference is proven, but not that it exceeds the margin;
//! 4. *inconclusive*: neither is proven, which is never the same as "no difference".
//!
//! What an interval shows is one cell's alone, so it may promise more than the verdict says; what the
//! verdict would be without Holm is kept beside it ([`Evidence::alone`]), and marked where they differ.
//!
//! "The median agrees" means that its order-statistic interval excludes no difference on the same
//! side. If it does not, the difference hangs on a few outliers and the answer is *inconclusive*.

use super::{Interval, deviation, mean, median, median_interval, student, t_interval};
use crate::messages::{Language, Message};
use serde::Serialize;

/// The error that an experiment may make per figure: 5 %.
pub const ALPHA: f64 = 0.05;
/// More rounds than this nobody runs; the answer is "more than that".
const ROUNDS_NEEDED_MAX: u32 = 1000;

/// What paired log-ratios say before anything is decided.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evidence {
    /// Number of pairs.
    pub n: usize,
    /// Mean of ln(other / baseline).
    pub mean: f64,
    /// Median of it.
    pub median: f64,
    /// Standard deviation of it.
    pub deviation: f64,
    /// 95 % t-interval of the mean (wider by the number of looks).
    pub interval: Option<Interval>,
    /// 90 % t-interval of the mean, which the equivalence test compares with the margin.
    pub interval_90: Option<Interval>,
    /// 95 % order-statistic interval of the median.
    pub median_interval: Option<Interval>,
    /// Largest log-ratio that does not matter.
    pub margin: f64,
    /// Adjusted p-value of "there is a difference".
    pub p_different: f64,
    /// Adjusted p-value of "there is a difference beyond the margin".
    pub p_matters: f64,
    /// Adjusted p-value of "any difference is within the margin".
    pub p_equivalent: f64,
    /// What the verdict would be of this cell alone, as its intervals show it.
    pub alone: Verdict,
    /// Number of cells that were judged together.
    pub judged_together: usize,
}

impl Evidence {
    /// Whether the verdict is not what the intervals show, as it counts the other cells too.
    pub fn is_held_back(&self, verdict: Verdict) -> bool {
        use Inconclusive::NeedsMore;
        match (self.alone, verdict) {
            // How many more it takes is not another answer.
            (Verdict::Inconclusive(NeedsMore(_)), Verdict::Inconclusive(NeedsMore(_))) => false,
            (alone, verdict) => alone != verdict,
        }
    }

    /// The verdict for people, marked († of so many) where the intervals show another.
    pub fn label(&self, verdict: Verdict, language: Language) -> String {
        let mark = if self.is_held_back(verdict) {
            language.say(Message::HeldBackMark, &[("all", &self.judged_together)])
        } else {
            String::new()
        };
        verdict.label(language) + &mark
    }
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Verdict {
    /// Any difference is within the margin.
    Equivalent,
    /// There is a difference, and it is beyond the margin.
    DifferentMatters,
    /// There is a difference, but it may be within the margin.
    DifferentSmall,
    /// Not decided.
    Inconclusive(Inconclusive),
}

/// Why nothing was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Inconclusive {
    /// About so many more rounds are needed; `None` is more than anybody runs.
    NeedsMore(Option<u32>),
    /// Mean and median disagree: a few outliers make the difference.
    Outliers,
    /// Fewer than two usable pairs.
    NoData,
}

impl Verdict {
    /// Whether it is an answer.
    pub fn is_decided(self) -> bool {
        !matches!(self, Self::Inconclusive(_))
    }

    /// Whether a difference was found.
    pub fn is_different(self) -> bool {
        matches!(self, Self::DifferentMatters | Self::DifferentSmall)
    }
}

impl Verdict {
    /// For people.
    pub fn label(self, language: Language) -> String {
        match self {
            Self::Equivalent => language.text(Message::Equivalent).into(),
            Self::DifferentMatters => language.text(Message::DifferentMatters).into(),
            Self::DifferentSmall => language.text(Message::DifferentSmall).into(),
            Self::Inconclusive(Inconclusive::NeedsMore(Some(more))) => {
                language.say(Message::NeedsMore, &[("more", &more)])
            }
            Self::Inconclusive(Inconclusive::NeedsMore(None)) => {
                language.say(Message::NeedsMany, &[("most", &ROUNDS_NEEDED_MAX)])
            }
            Self::Inconclusive(Inconclusive::Outliers) => language.text(Message::Outliers).into(),
            Self::Inconclusive(Inconclusive::NoData) => language.text(Message::NoData).into(),
        }
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.label(Language::English))
    }
}

/// Judges the cells of one figure: for each the paired log-ratios; all share a margin (a log-ratio
/// above 0) and the number of looks that the experiment may take.
pub fn judge_family(
    cells: &[Vec<f64>],
    margin: f64,
    looks: usize,
    alpha: f64,
) -> Vec<(Evidence, Verdict)> {
    let alpha_per_look = alpha / looks.max(1) as f64;
    let mut all: Vec<Evidence> =
        cells.iter().map(|ratios| weigh(ratios, margin, looks, alpha)).collect();
    for evidence in &mut all {
        evidence.alone = decide(evidence, alpha_per_look, alpha);
        evidence.judged_together = cells.len();
    }
    let adjust = |all: &mut [Evidence], field: fn(&mut Evidence) -> &mut f64| {
        let raw: Vec<f64> = all.iter_mut().map(|evidence| *field(evidence)).collect();
        for (evidence, adjusted) in all.iter_mut().zip(holm(&raw)) {
            *field(evidence) = adjusted;
        }
    };
    adjust(&mut all, |evidence| &mut evidence.p_different);
    adjust(&mut all, |evidence| &mut evidence.p_matters);
    adjust(&mut all, |evidence| &mut evidence.p_equivalent);
    all.into_iter()
        .map(|evidence| {
            let verdict = decide(&evidence, alpha_per_look, alpha);
            (evidence, verdict)
        })
        .collect()
}

/// Holm's step-down adjustment (1979): adjusted p-values in the given order.
pub fn holm(raw: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..raw.len()).collect();
    order.sort_by(|&a, &b| raw[a].total_cmp(&raw[b]));
    let mut adjusted = vec![1.0; raw.len()];
    let mut floor = 0.0_f64;
    for (rank, &index) in order.iter().enumerate() {
        floor = floor.max(raw[index] * (raw.len() - rank) as f64).min(1.0);
        adjusted[index] = floor;
    }
    adjusted
}

/// The evidence of one cell, its p-values adjusted for looks but not yet for other cells.
fn weigh(ratios: &[f64], margin: f64, looks: usize, alpha: f64) -> Evidence {
    let n = ratios.len();
    let looks = looks.max(1) as f64;
    let mut evidence = Evidence {
        n,
        mean: mean(ratios),
        median: median(ratios),
        deviation: deviation(ratios),
        interval: t_interval(ratios, 1.0 - alpha / looks),
        interval_90: t_interval(ratios, 1.0 - 2.0 * alpha / looks),
        median_interval: median_interval(ratios, 1.0 - alpha),
        margin,
        p_different: 1.0,
        p_matters: 1.0,
        p_equivalent: 1.0,
        alone: Verdict::Inconclusive(Inconclusive::NoData),
        judged_together: 1,
    };
    if n < 2 {
        return evidence;
    }
    let error = evidence.deviation / (n as f64).sqrt();
    // Of identical ratios everything is certain: t is infinite, with its sign.
    let tail = |distance: f64| {
        if error > 0.0 {
            student::survival(distance / error, (n - 1) as f64)
        } else if distance > 0.0 {
            0.0
        } else {
            1.0
        }
    };
    let size = evidence.mean.abs();
    evidence.p_different = (2.0 * tail(size) * looks).min(1.0);
    evidence.p_matters = (2.0 * tail(size - margin) * looks).min(1.0);
    evidence.p_equivalent = (tail(margin - size) * looks).min(1.0);
    evidence
}

fn decide(evidence: &Evidence, alpha_per_look: f64, alpha: f64) -> Verdict {
    if evidence.n < 2 {
        return Verdict::Inconclusive(Inconclusive::NoData);
    }
    if evidence.p_equivalent <= alpha && evidence.median.abs() <= evidence.margin {
        return Verdict::Equivalent;
    }
    if evidence.p_different <= alpha {
        let agrees = evidence.median_interval.is_some_and(|interval| {
            !interval.contains(0.0) && (interval.low > 0.0) == (evidence.mean > 0.0)
        });
        if !agrees {
            return Verdict::Inconclusive(Inconclusive::Outliers);
        }
        let matters = evidence.p_matters <= alpha && evidence.median.abs() > evidence.margin;
        return if matters { Verdict::DifferentMatters } else { Verdict::DifferentSmall };
    }
    Verdict::Inconclusive(Inconclusive::NeedsMore(rounds_missing(evidence, alpha_per_look)))
}

/// How many more rounds would decide, if mean and deviation stay what they are: the nearer of
/// "equivalent" and "different".
fn rounds_missing(evidence: &Evidence, alpha: f64) -> Option<u32> {
    let size = evidence.mean.abs();
    let n = evidence.n as u32;
    let decides = |rounds: u32| {
        let error = (evidence.deviation / f64::from(rounds).sqrt()).max(f64::MIN_POSITIVE);
        let tail = |distance: f64| student::survival(distance / error, f64::from(rounds - 1));
        2.0 * tail(size) <= alpha || tail(evidence.margin - size) <= alpha
    };
    if n >= ROUNDS_NEEDED_MAX || !decides(ROUNDS_NEEDED_MAX) {
        return None;
    }
    // More rounds never decide less, so the border can be bisected.
    let (mut too_few, mut enough) = (n, ROUNDS_NEEDED_MAX);
    while enough - too_few > 1 {
        let middle = too_few.midpoint(enough);
        if decides(middle) {
            enough = middle;
        } else {
            too_few = middle;
        }
    }
    Some(enough - n)
}

#[cfg(test)]
mod tests;
