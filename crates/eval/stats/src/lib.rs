//! The verdict on two conditions after n rounds, and its error.
//!
//! All comparisons are paired: round i gives dᵢ = ln(otherᵢ / baselineᵢ), so drift and slow neighbours, which
//! affect both runs of a pair alike, cancel. Two tests use d, "is there a difference?" (two-sided) and "is it
//! too small to matter?" (two one-sided tests, Schuirmann 1987), which give four answers, see [`Verdict`].
//! The tests are Student's, widened for rounds that resemble their neighbours ([`Belief`]). The median with
//! its order-statistic interval stands beside the mean: a difference that only the mean shows comes from
//! outliers.
//!
//! This crate does no I/O. It is optimised in debug builds too, because its tests simulate tens of thousands
//! of experiments.

mod between;
mod dependence;
mod fit;
mod interval;
mod modes;
pub mod random;
mod sequential;
mod steady;
mod student;
mod verdict;

pub use between::between_interval;
pub use dependence::Belief;
pub use fit::{Line, Usl};
pub use interval::{
    Interval, deviation, mean, median, median_interval, quantile, t_interval, welch_interval,
};
pub use modes::{Modes, modes};
pub use sequential::{LOOKS_DEFAULT, LookRule};
pub use steady::{Steadiness, steadiness, steady_window};
pub use student::{quantile as t_quantile, survival as t_survival};
#[cfg(test)]
pub(crate) use verdict::verdict_of;
pub use verdict::{
    ALPHA, Evidence, Inconclusive, ROUNDS_NEEDED_MAX, Stake, Verdict, Withheld, judge,
};
