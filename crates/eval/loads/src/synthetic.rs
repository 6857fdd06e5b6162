//! No storage: numbers drawn from a known truth, so that everything behind an engine can be tested.
//!
//! Throughput follows `peak · t / (t + half)` over the block size t and saturates over the jobs; each
//! level multiplies it by its ratio, each run by exp(noise · N(0, 1)), each pair of runs by
//! exp(common · N(0, 1)), and the machine gets slower with every run by the drift. Levels may also have what
//! makes a ratio no single number: a trend of their own over the rounds, a speed that wanders from round to
//! round (AR(1)), something that they leave behind for the next run, a cliff in the last third of each run,
//! and seconds in which nothing moves. Runs take no time.

use crate::blocks;
use crate::engine::{Declaration, Engine, Operations, Origin, SettingKind, Work};
use crate::keys::{Form, Key, Table};
use crate::level::Setting;
use crate::metric::Metric;
use crate::outcome::{Outcome, SERIES_INTERVAL};
use base::{Error, Stop};
use stats::mean;
use stats::random::Random;
use std::sync::Arc;

const PEAK_BYTES_PER_S: f64 = 2e9;
const HALF_BYTES: f64 = 65_536.0;
/// Share of a second job's work that has to wait for the first (Amdahl).
const CONTENTION: f64 = 0.2;
/// Intervals of runs that are too short for seconds.
const INTERVALS_MIN: usize = 12;

/// Numbers from a known truth.
pub const ENGINE: Declaration = Declaration {
    name: "synthetic",
    metrics: Some(blocks::METRICS),
    setting: Some(SettingKind {
        kind: "synthetic",
        noun: "effects",
        keys: &[
            Key::new("ratio", Form::Number),
            Key::new("noise", Form::Number),
            Key::new("common", Form::Number),
            Key::new("drift", Form::Number),
            Key::new("trend", Form::Number),
            Key::new("wander", Form::Number),
            Key::new("correlation", Form::Number),
            Key::new("leaves", Form::Number),
            Key::new("cliff", Form::Number),
            Key::new("stalls", Form::Number),
        ],
        is_all: true,
        read: effect,
    }),
    operations: Operations::Blocks,
    is_direct: |given| given.unwrap_or(true),
    runs_this_program: false,
    origin: Origin::Drawn,
    load: blocks::load,
    start: Some(|_| Ok(Box::new(SyntheticEngine))),
    ..Declaration::DEFAULT
};

/// What a level of the synthetic engine does.
#[derive(Clone, Copy, Debug)]
pub struct Synthetic {
    /// Factor on throughput.
    pub ratio: f64,
    /// Deviation of the logarithm of each run.
    pub noise: f64,
    /// Deviation of the logarithm of the noise that the runs of a pair share.
    pub common: f64,
    /// Share by which the machine slows down per 100 runs.
    pub drift: f64,
    /// Share by which this level alone slows down per round.
    pub trend: f64,
    /// Deviation of the logarithm of the part that wanders from round to round,
    pub wander: f64,
    /// and the correlation of neighbouring rounds in it.
    pub correlation: f64,
    /// Share of the next run's throughput that this level takes away, by what it leaves behind.
    pub leaves: f64,
    /// Factor on throughput in the last third of each run.
    pub cliff: f64,
    /// Share of seconds in which nothing moves.
    pub stalls: f64,
}

impl Setting for Synthetic {
    fn engine(&self) -> &'static str {
        ENGINE.name
    }
}

fn effect(table: &Table<'_>) -> Result<Arc<dyn Setting>, Error> {
    Ok(Arc::new(Synthetic {
        ratio: table.number_from("ratio", 1.0, 1e-6)?,
        noise: table.number_from("noise", 0.0, 0.0)?,
        common: table.number_from("common", 0.0, 0.0)?,
        drift: table.number_from("drift", 0.0, 0.0)?,
        trend: table.number_from("trend", 0.0, 0.0)?,
        wander: table.number_from("wander", 0.0, 0.0)?,
        correlation: table.share("correlation")?,
        leaves: table.share("leaves")?,
        cliff: table.number_from("cliff", 1.0, 1e-6)?,
        stalls: table.share("stalls")?,
    }))
}

/// The engine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SyntheticEngine;

/// True throughput at a point, before ratios, in bytes per second.
pub fn truth_bytes_per_s(block_size: u64, jobs: u32) -> f64 {
    let size = block_size as f64;
    let jobs = f64::from(jobs);
    let share = jobs / (1.0 + CONTENTION * (jobs - 1.0)) * CONTENTION;
    PEAK_BYTES_PER_S * share * size / (size + HALF_BYTES)
}

impl Engine for SyntheticEngine {
    fn version(&self) -> String {
        "synthetic 1".into()
    }

    fn run(&mut self, work: &Work<'_>, stop: &Stop) -> Result<Outcome, Error> {
        if stop.is_requested() {
            return Err(Error::Interrupted);
        }
        let (seed, turn) = (work.data.seed, &work.turn);
        let index = turn.index;
        let mut random = Random::of(seed ^ 0x5eed, index);
        let mut series = Vec::new();
        let mut rate = truth_bytes_per_s(work.cell.block_size, work.cell.jobs);
        for level in &work.levels {
            if let Some(effect) = level.setting::<Synthetic>() {
                let Synthetic { ratio, noise, common, drift, .. } = *effect;
                // Offsets of a pair have one seed, and so has what it shares.
                let shared = Random::of(work.seed, u64::from(turn.round)).normal();
                rate *= ratio * (noise * random.normal() + common * shared).exp();
                rate *= (-drift * index as f64 / 100.0).exp();
                rate *= (-effect.trend * f64::from(turn.round)).exp();
                rate *= (effect.wander * wandering(work, effect)).exp();
                series = intervals(effect, &mut random, work.time.as_secs());
            }
        }
        rate *= 1.0 - left_before(work);
        // What the run gives is the mean of its intervals.
        for speed in &mut series {
            *speed *= rate;
        }
        if !series.is_empty() {
            rate = mean(&series);
        }
        let iops = rate / work.cell.block_size as f64;
        let parallel = f64::from(work.cell.jobs * work.cell.depth);
        let latency_us = parallel / iops * 1e6;
        let seconds = work.time.as_secs_f64();
        let writes = work.workload.writes();
        Ok(Outcome {
            metrics: [
                (Metric::Bandwidth, rate),
                (Metric::Iops, iops),
                (Metric::Latency, latency_us),
                (Metric::LatencyP99, 3.0 * latency_us),
            ]
            .into(),
            read_bytes_per_s: if writes { 0.0 } else { rate },
            written_bytes_per_s: if writes { rate } else { 0.0 },
            load_seconds: seconds,
            further: [(SERIES_INTERVAL.to_string(), seconds / series.len().max(1) as f64)].into(),
            series,
            command: "(drawn from the known truth)".into(),
            ..Outcome::default()
        })
    }
}

/// Where a level's speed has wandered to by this round: AR(1) of deviation 1, for each cell its own.
fn wandering(work: &Work<'_>, effect: &Synthetic) -> f64 {
    if effect.wander <= 0.0 {
        return 0.0;
    }
    let part = (work.turn.condition as u64) << 32 | work.turn.cell as u64;
    let mut random = Random::of(work.data.seed ^ 0x0a17, part);
    let rho = effect.correlation;
    let start = random.normal();
    (0..work.turn.round).fold(start, |at, _| rho * at + (1.0 - rho * rho).sqrt() * random.normal())
}

/// Share of the throughput that the run before takes away.
fn left_before(work: &Work<'_>) -> f64 {
    let before = work.turn.before.iter().filter_map(|level| level.setting::<Synthetic>());
    before.map(|effect| effect.leaves).fold(0.0, f64::max)
}

/// The speed of each interval by that of the run, where a level has cliffs or stalls.
fn intervals(effect: &Synthetic, random: &mut Random, seconds: u64) -> Vec<f64> {
    if (effect.cliff - 1.0).abs() < f64::EPSILON && effect.stalls <= 0.0 {
        return Vec::new();
    }
    let count = (seconds as usize).max(INTERVALS_MIN);
    (0..count)
        .map(|at| {
            let speed = if 3 * at < 2 * count { 1.0 } else { effect.cliff };
            let is_stalled = random.uniform() < effect.stalls;
            if is_stalled { 0.0 } else { speed * (0.02 * random.normal()).exp() }
        })
        .collect()
}
