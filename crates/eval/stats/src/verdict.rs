//! Two questions, four answers, and reasons to give none.
//!
//! The paired log-ratios give three p-values: that there is a difference at all, that it lies wholly beyond
//! the margin, and (two one-sided tests) that it lies wholly within. They allow for rounds that resemble
//! their neighbours ([`Belief`]). Each is multiplied by the number of looks and by the number of comparisons
//! whose verdicts the report prints (Bonferroni). The answers in order:
//!
//! 1. *equivalent*: within the margin is proven, and the median lies in it;
//! 2. *different, matters*: beyond the margin is proven, and the median agrees;
//! 3. *different, small*: a difference is proven, but not that it exceeds the margin;
//! 4. *inconclusive*: neither is proven, which is never the same as "no difference".
//!
//! The family is the report, since a reader takes every verdict of it for true. At most one of these
//! statements about a comparison can be wrong (equal ones cannot be falsely equivalent), so the chance that a
//! report contains *any* wrong statement, "different" or "equivalent", is at most 5 %. Holm's procedure would
//! decide a little more, but has no intervals that agree with it; these are simultaneous, and exclude "no
//! difference" exactly where the verdict may.
//!
//! "The median agrees" means that its order-statistic interval excludes no difference on the same side. If it
//! does not, the difference comes from a few outliers and the answer is *inconclusive*.

use super::{Belief, Interval, deviation, mean, median, median_interval, student};
use serde::Serialize;

/// The error that a report may make: 5 %.
pub const ALPHA: f64 = 0.05;
/// The largest number of further rounds that [`Inconclusive::NeedsMore`] names.
pub const ROUNDS_NEEDED_MAX: u32 = 1000;

/// The statistics of paired log-ratios before a decision.
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
    /// 95 % interval of the mean: with those of all comparisons of the report and over all looks.
    pub interval: Option<Interval>,
    /// 95 % interval of the mean of this comparison alone, over all looks.
    pub interval_alone: Option<Interval>,
    /// The 90 % interval that goes with `interval`, which the equivalence test compares with the margin.
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
    /// The verdict of this comparison alone.
    pub alone: Verdict,
    /// Number of comparisons that were judged together: all of the report.
    pub judged_together: usize,
}

impl Evidence {
    /// Returns whether the comparison would have another verdict in a report of its own.
    pub fn is_held_back(&self, verdict: Verdict) -> bool {
        use Inconclusive::{NeedsMore, NotDue, Withheld};
        match (self.alone, verdict) {
            // Other comparisons do not affect the first two, and another number of further rounds is not
            // another answer.
            (_, Verdict::Inconclusive(NotDue(_) | Withheld(_)))
            | (Verdict::Inconclusive(NeedsMore(_)), Verdict::Inconclusive(NeedsMore(_))) => false,
            (alone, verdict) => alone != verdict,
        }
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

/// The reason why there is no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Inconclusive {
    /// About this number of additional rounds is needed; `None` is more than is practical.
    NeedsMore(Option<u32>),
    /// Mean and median disagree: a few outliers make the difference.
    Outliers,
    /// Fewer than two usable pairs.
    NoData,
    /// The data is sufficient for an answer, but the next look is due in this many rounds.
    NotDue(u32),
    /// One number does not describe the ratio.
    Withheld(Withheld),
}

/// Why one number does not describe a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Withheld {
    /// It grows or falls over the rounds.
    Trend,
    /// It changed at once between two rounds.
    Step,
    /// It depends on which condition ran first.
    Order,
    /// It depends on which condition ran before.
    CarryOver,
    /// Neighbouring rounds resemble each other.
    Autocorrelated,
    /// Speed changes at once within the runs of one condition.
    Cliff,
    /// The runs of one condition stand still at times.
    Stalls,
}

impl Withheld {
    /// Returns its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Trend => "trend",
            Self::Step => "step",
            Self::Order => "order",
            Self::CarryOver => "carry-over",
            Self::Autocorrelated => "autocorrelated",
            Self::Cliff => "cliff",
            Self::Stalls => "stalls",
        }
    }
}

impl Verdict {
    /// Returns whether it is an answer.
    pub fn is_decided(self) -> bool {
        !matches!(self, Self::Inconclusive(_))
    }

    /// Returns whether a difference was found.
    pub fn is_different(self) -> bool {
        matches!(self, Self::DifferentMatters | Self::DifferentSmall)
    }
}

/// The distribution of a report's error.
#[derive(Clone, Copy, Debug)]
pub struct Stake {
    /// The error of the whole report.
    pub alpha: f64,
    /// Looks that the experiment may take.
    pub looks: usize,
    /// Comparisons whose verdicts the report prints.
    pub together: usize,
}

impl Stake {
    /// Shares a report's 5 % among looks and comparisons.
    pub fn of_report(looks: usize, together: usize) -> Self {
        Self { alpha: ALPHA, looks, together }
    }

    /// Returns the factor on a p-value.
    fn factor(&self) -> f64 {
        (self.looks.max(1) * self.together.max(1)) as f64
    }

    /// Returns the same for a report of this comparison alone.
    fn alone(&self) -> Self {
        Self { together: 1, ..*self }
    }
}

/// Judges the paired log-ratios of a comparison, in the order of their rounds; `margin` is a log-ratio
/// above 0.
pub fn judge(ratios: &[f64], margin: f64, stake: Stake) -> (Evidence, Verdict) {
    let weighed = Weighed::of(ratios, margin, stake.alpha);
    let belief = Belief::of(ratios);
    let interval = |stake: Stake, sides: f64| {
        belief.as_ref().map(|it| it.interval(1.0 - sides * stake.alpha / stake.factor()))
    };
    let adjusted = |p: f64| (p * stake.factor()).min(1.0);
    let evidence = Evidence {
        n: ratios.len(),
        mean: mean(ratios),
        median: weighed.median,
        deviation: deviation(ratios),
        interval: interval(stake, 1.0),
        interval_alone: interval(stake.alone(), 1.0),
        interval_90: interval(stake, 2.0),
        median_interval: weighed.median_interval,
        margin,
        p_different: adjusted(weighed.p_different),
        p_matters: adjusted(weighed.p_matters),
        p_equivalent: adjusted(weighed.p_equivalent),
        alone: weighed.decide(ratios, stake.alone()),
        judged_together: stake.together,
    };
    (evidence, weighed.decide(ratios, stake))
}

/// The decision on log-ratios, without the intervals, which take longer.
#[derive(Clone, Debug)]
struct Weighed {
    mean: f64,
    median: f64,
    median_interval: Option<Interval>,
    margin: f64,
    /// p-values of this comparison at one look.
    p_different: f64,
    p_matters: f64,
    p_equivalent: f64,
}

impl Weighed {
    fn of(ratios: &[f64], margin: f64, alpha: f64) -> Self {
        let (mut p_different, mut p_matters, mut p_equivalent) = (1.0, 1.0, 1.0);
        if let Some(belief) = Belief::of(ratios) {
            p_different = (2.0 * belief.below(0.0).min(belief.above(0.0))).min(1.0);
            p_matters = (2.0 * belief.below(margin).min(belief.above(-margin))).min(1.0);
            p_equivalent = belief.above(margin).max(belief.below(-margin));
        }
        Self {
            mean: mean(ratios),
            median: median(ratios),
            median_interval: median_interval(ratios, 1.0 - alpha),
            margin,
            p_different,
            p_matters,
            p_equivalent,
        }
    }

    fn decide(&self, ratios: &[f64], stake: Stake) -> Verdict {
        if ratios.len() < 2 {
            return Verdict::Inconclusive(Inconclusive::NoData);
        }
        let level = stake.alpha / stake.factor();
        if self.p_equivalent <= level && self.median.abs() <= self.margin {
            return Verdict::Equivalent;
        }
        if self.p_different <= level {
            let agrees = self.median_interval.is_some_and(|interval| {
                !interval.contains(0.0) && (interval.low > 0.0) == (self.mean > 0.0)
            });
            if !agrees {
                return Verdict::Inconclusive(Inconclusive::Outliers);
            }
            let matters = self.p_matters <= level && self.median.abs() > self.margin;
            return if matters { Verdict::DifferentMatters } else { Verdict::DifferentSmall };
        }
        let missing = rounds_missing(self.mean.abs(), self.margin, ratios, level);
        Verdict::Inconclusive(Inconclusive::NeedsMore(missing))
    }
}

/// Returns how many more rounds would decide, if mean and deviation stay the same and rounds are unrelated:
/// the smaller number of "equivalent" and "different".
fn rounds_missing(size: f64, margin: f64, ratios: &[f64], alpha: f64) -> Option<u32> {
    let (n, deviation) = (ratios.len() as u32, deviation(ratios));
    let decides = |rounds: u32| {
        let error = (deviation / f64::from(rounds).sqrt()).max(f64::MIN_POSITIVE);
        let tail = |distance: f64| student::survival(distance / error, f64::from(rounds - 1));
        2.0 * tail(size) <= alpha || tail(margin - size) <= alpha
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

/// Judges comparisons that share a margin and make up a whole report.
#[cfg(test)]
pub(crate) fn judge_family(
    cells: &[Vec<f64>],
    margin: f64,
    looks: usize,
    alpha: f64,
) -> Vec<(Evidence, Verdict)> {
    let stake = Stake { alpha, looks, together: cells.len() };
    cells.iter().map(|cell| judge(cell, margin, stake)).collect()
}

/// Returns the verdict alone, which is computed quickly.
#[cfg(test)]
pub(crate) fn verdict_of(ratios: &[f64], margin: f64, stake: Stake) -> Verdict {
    Weighed::of(ratios, margin, stake.alpha).decide(ratios, stake)
}

#[cfg(test)]
mod tests;
