//! No storage: numbers drawn from a known truth, so that everything behind an engine can be tested.
//!
//! Throughput follows `peak · t / (t + half)` over the block size t and saturates over the jobs; each
//! level multiplies it by its ratio, each run by exp(noise · N(0, 1)), each pair of runs by
//! exp(common · N(0, 1)), and the machine gets slower with every run by the drift. Levels may also have what
//! makes a ratio no single number: a trend of their own over the rounds, a speed that wanders from round to
//! round (AR(1)), something that they leave behind for the next run, a cliff in the last third of each run,
//! and seconds in which nothing moves. Runs take no time.

use super::{Engine, Outcome, SERIES_INTERVAL, Stop, Work};
use crate::error::Error;
use crate::experiment::{LevelKind, Metric, Synthetic};
use crate::statistics::mean;
use crate::statistics::random::Random;

const PEAK_BYTES_PER_S: f64 = 2e9;
const HALF_BYTES: f64 = 65_536.0;
/// Share of a second job's work that has to wait for the first (Amdahl).
const CONTENTION: f64 = 0.2;
/// Intervals of runs that are too short for seconds.
const INTERVALS_MIN: usize = 12;

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
        let plan = work.plan;
        let per_round = (plan.cells.len() * plan.conditions.len()) as u64;
        let index = u64::from(work.step.round) * per_round + u64::from(work.step.position);
        let mut random = Random::of(plan.experiment.seed ^ 0x5eed, index);
        let mut series = Vec::new();
        let mut rate = truth_bytes_per_s(work.cell.block_size, work.cell.jobs);
        for (factor, level) in &work.condition.levels {
            let level = plan.experiment.factors.get(factor).and_then(|it| it.get(level));
            if let Some(LevelKind::Synthetic(effect)) = level.map(|level| &level.kind) {
                let Synthetic { ratio, noise, common, drift, .. } = *effect;
                // Offsets of a pair have one seed, and so has what it shares.
                let shared = Random::of(work.step.seed, u64::from(work.step.round)).normal();
                rate *= ratio * (noise * random.normal() + common * shared).exp();
                rate *= (-drift * index as f64 / 100.0).exp();
                rate *= (-effect.trend * f64::from(work.step.round)).exp();
                let part = work.step.condition as u64;
                rate *= (effect.wander * wandering(plan.experiment.seed, part, work, effect)).exp();
                series = intervals(effect, &mut random, plan.experiment.timing.run.as_secs());
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
        let seconds = plan.experiment.timing.run.as_secs_f64();
        let writes = plan.workload(work.step.cell).writes();
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
fn wandering(seed: u64, condition: u64, work: &Work<'_>, effect: &Synthetic) -> f64 {
    if effect.wander <= 0.0 {
        return 0.0;
    }
    let mut random = Random::of(seed ^ 0x0a17, condition << 32 | work.step.cell as u64);
    let rho = effect.correlation;
    let start = random.normal();
    (0..work.step.round).fold(start, |at, _| rho * at + (1.0 - rho * rho).sqrt() * random.normal())
}

/// Share of the throughput that the run before takes away.
fn left_before(work: &Work<'_>) -> f64 {
    let (plan, step) = (work.plan, work.step);
    let earlier = match step.position.checked_sub(1) {
        Some(position) => plan.round(step.round).into_iter().nth(position as usize),
        None => step.round.checked_sub(1).and_then(|round| plan.round(round).pop()),
    };
    let Some(earlier) = earlier else { return 0.0 };
    let levels = plan.conditions[earlier.condition].levels.iter();
    levels
        .filter_map(|(factor, level)| {
            match &plan.experiment.factors.get(factor)?.get(level)?.kind {
                LevelKind::Synthetic(effect) => Some(effect.leaves),
                _ => None,
            }
        })
        .fold(0.0, f64::max)
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
