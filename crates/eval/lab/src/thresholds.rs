//! The limits that rules use, in one table: a rule has no limit of its own.
//!
//! A line of the table has a field of [`Thresholds`], its value, its unit, the rules that use it, and its
//! meaning; the report, `tsumugi eval advise --thresholds` and the documentation of the fields come from the
//! same line.

use crate::guard::DEVICE_SHARE_MIN;
use serde::Serialize;

/// The unit in which a limit is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// A share, shown in percent.
    Share,
    /// A plain number.
    Number,
}

/// A line of the table.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Threshold {
    /// Its name in [`Thresholds`].
    pub name: &'static str,
    /// The rules that use it.
    pub rules: &'static str,
    /// What it means.
    pub what: &'static str,
    /// Its unit.
    pub unit: Unit,
    /// Its value; of shares 1 is all.
    pub value: f64,
}

impl Threshold {
    /// The value for people.
    pub fn shown(&self) -> String {
        match self.unit {
            Unit::Share => format!("{:.0} %", self.value * 100.0),
            Unit::Number => self.value.to_string(),
        }
    }
}

macro_rules! thresholds {
    ($($name:ident: $kind:ty = $value:expr, $unit:ident, $rules:literal, $what:literal;)*) => {
        /// Limits that the rules use.
        #[derive(Clone, Copy, Debug)]
        pub struct Thresholds {
            $(#[doc = concat!($rules, ": ", $what, ".")] pub $name: $kind,)*
        }

        /// The limits in use.
        pub const THRESHOLDS: Thresholds = Thresholds { $($name: $value,)* };

        impl Thresholds {
            /// Every line.
            pub fn table(&self) -> Vec<Threshold> {
                vec![$(Threshold {
                    name: stringify!($name),
                    rules: $rules,
                    what: $what,
                    unit: Unit::$unit,
                    value: self.$name as f64,
                },)*]
            }
        }
    };
}

thresholds! {
    loss_small: f64 = 0.05, Share, "A1", "loss that counts as none";
    good_share: f64 = 0.90, Share, "A3, A13", "share of the best bandwidth that is good";
    sizes_min: usize = 3, Number, "A3", "fewest block sizes";
    knee_share: f64 = 0.95, Share, "A4, A15", "share of the best throughput that is all of it";
    knee_points_min: usize = 6, Number, "A4", "fewest products of jobs and depth";
    model_r2_min: f64 = 0.95, Number, "A4, A8, A9", "R² of a model that is shown";
    knee_tail: f64 = 2.0, Number, "A4", "factor by which the tail of one operation may grow";
    little_max: f64 = 0.05, Share, "A4", "difference of N and rate × latency";
    bound_share: f64 = 0.90, Share, "A6", "share of link or device that is all of it";
    cpu_share: f64 = 0.90, Share, "A6", "share of one CPU that is all of it";
    softirq_share: f64 = 0.80, Share, "A6", "softirqs' share of one CPU that is all of it";
    cpu_idle_share: f64 = 0.50, Share, "A6", "share of all CPUs that is little";
    latency_flat: f64 = 1.10, Number, "A6", "growth of latency that is none";
    rates_min: usize = 5, Number, "A7", "fewest rates";
    slope_r2_min: f64 = 0.98, Number, "A7", "R² of a slope that is given";
    cost_same: f64 = 1.10, Number, "A7", "ratio of two slopes that does not matter";
    batches_min: usize = 3, Number, "A8", "fewest batch sizes";
    batch_cost: f64 = 1.05, Number, "A8", "growth of cost that is none";
    batch_tail: f64 = 1.10, Number, "A8", "growth of the tail that is none";
    threads_min: usize = 3, Number, "A9", "fewest numbers of threads";
    stripes_min: usize = 2, Number, "A13", "fewest stripe counts";
    containers_min: usize = 3, Number, "A15", "fewest numbers of containers";
    fairness_min: f64 = 0.90, Number, "A15", "fairness (Jain) that is fair";
    collapse_share: f64 = 0.80, Share, "A15", "share of the best below which it collapses";
    strong_share: f64 = 0.80, Share, "A1, A2, A10 to A12, A14", "cells that have to agree for strong";
    strong_cells_min: usize = 2, Number, "all", "fewest cells for strong";
    rounds_min: usize = 6, Number, "A17", "fewest rounds";
    half_width_max: f64 = 0.05, Share, "A17", "widest half interval";
    marked_share_max: f64 = 0.10, Share, "A17", "share of marked runs that counts";
    cached_share_max: f64 = 0.50, Share, "A17", "share of runs from a cache above which it is grade D";
    device_share: f64 = DEVICE_SHARE_MIN, Share, "A18", "share of a load that its device has to move";
    octaves_max: f64 = 1.0, Number, "--pattern", "octaves that size, jobs and depth may be away";
    past_min: usize = 3, Number, "A19", "fewest earlier results";
    variation_max: f64 = 0.10, Share, "A20", "deviation over rounds by the mean";
    modes_runs_min: usize = 15, Number, "A20", "fewest runs to look for two clusters in";
    modes_gap: f64 = 3.0, Number, "A20", "gap between two clusters by the deviation within them";
    stable_runs_min: usize = 3, Number, "A20", "fewest runs to judge spread or tail";
    tail_max: f64 = 100.0, Number, "A20", "p99.9 by p50";
}
