//! No storage: numbers drawn from a known truth, so that everything behind an engine can be tested.
//!
//! Throughput follows `peak · t / (t + half)` over the block size t and saturates over the jobs; each
//! level multiplies it by its ratio, each run by exp(noise · N(0, 1)), each pair of runs by
//! exp(common · N(0, 1)), and the machine gets slower with every run by the drift. Runs take no time.

use super::{Engine, Outcome, Stop, Work};
use crate::error::Error;
use crate::experiment::{LevelKind, Metric, Synthetic};
use crate::random::Random;

const PEAK_BYTES_PER_S: f64 = 2e9;
const HALF_BYTES: f64 = 65_536.0;
/// Share of a second job's work that has to wait for the first (Amdahl).
const CONTENTION: f64 = 0.2;

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
        let mut rate = truth_bytes_per_s(work.cell.block_size, work.cell.jobs);
        for (factor, level) in &work.condition.levels {
            let level = plan.experiment.factors.get(factor).and_then(|it| it.get(level));
            if let Some(LevelKind::Synthetic(effect)) = level.map(|level| &level.kind) {
                let Synthetic { ratio, noise, common, drift } = *effect;
                // Offsets of a pair have one seed, and so has what it shares.
                let shared = Random::of(work.step.seed, u64::from(work.step.round)).normal();
                rate *= ratio * (noise * random.normal() + common * shared).exp();
                rate *= (-drift * index as f64 / 100.0).exp();
            }
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
            command: "(drawn from the known truth)".into(),
            ..Outcome::default()
        })
    }
}
