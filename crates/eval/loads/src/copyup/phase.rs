//! A phase: all containers write, and then all becomes durable.

use super::container::{Answer, Containers};
use super::{FINISH, NAME, WRITE_BYTES};
use crate::crowd::{CONTAINER_QUANTILES, fairness};
use crate::outcome::Outcome;
use base::{Error, Stop};
use stats::quantile;
use std::time::Instant;

/// What a phase came to.
#[derive(Debug, Default)]
pub struct Phase {
    /// Seconds until the last write returned.
    pub written_s: f64,
    /// Seconds until all was durable.
    pub durable_s: f64,
    /// How long each write took, in order of length.
    pub latencies_ns: Vec<u64>,
    /// Writes per second of each container.
    pub rates: Vec<f64>,
    /// Bytes that devices have written meanwhile, where they are counted.
    pub(super) device_bytes: Option<u64>,
    /// From when the last container was ready until the first write of any, and from that until the first
    /// write of the last one, ms.
    pub(super) start_ms: (f64, f64),
}

impl Phase {
    /// Lets all containers write, on this order, and makes it durable; `sync` does that below their mounts.
    pub fn run<E: From<Error>>(
        word: &str,
        containers: &mut Containers,
        sync: impl FnOnce() -> Result<(), E>,
        stop: &Stop,
    ) -> Result<Self, E> {
        let last_ready_ns = containers.last_ready_ns;
        let mut begun_at = (u64::MAX, 0);
        let begun = Instant::now();
        let mut phase = Self::default();
        containers.ask(word, stop, |answer| match answer {
            Answer::Written { mut latencies_ns, begun_ns, elapsed_ns } => {
                begun_at = (begun_at.0.min(begun_ns), begun_at.1.max(begun_ns));
                phase.rates.push(latencies_ns.len() as f64 / (elapsed_ns.max(1) as f64 / 1e9));
                phase.latencies_ns.append(&mut latencies_ns);
                Ok(())
            }
            other => Err(other.confuses()),
        })?;
        phase.written_s = begun.elapsed().as_secs_f64();
        containers.ask(FINISH, stop, |answer| match answer {
            Answer::Finished => Ok(()),
            other => Err(other.confuses()),
        })?;
        sync()?;
        phase.durable_s = begun.elapsed().as_secs_f64();
        phase.latencies_ns.sort_unstable();
        let (first, last) = begun_at;
        if first < last_ready_ns {
            return Err(Error::program(NAME, "one began before the last one was ready").into());
        }
        phase.start_ms = ((first - last_ready_ns) as f64 / 1e6, (last - first) as f64 / 1e6);
        Ok(phase)
    }

    /// Returns the number of writes.
    pub fn operations(&self) -> f64 {
        self.latencies_ns.len() as f64
    }

    /// Returns a percentile of the latencies.
    pub fn latency_us(&self, percent: usize) -> f64 {
        let last = self.latencies_ns.len().saturating_sub(1);
        let at = (self.latencies_ns.len() * percent / 100).min(last);
        self.latencies_ns.get(at).copied().unwrap_or_default() as f64 / 1e3
    }

    /// What is kept of it, by name.
    pub(super) fn further(&self, name: &str, outcome: &mut Outcome) {
        let mut keep = |what: &str, value: f64| {
            outcome.further.insert(format!("{name}_{what}"), value);
        };
        keep("rate_unsynced", self.operations() / self.written_s);
        keep("latency_p50_us", self.latency_us(50));
        keep("latency_p99_us", self.latency_us(99));
        keep("fairness", fairness(&self.rates).unwrap_or(f64::NAN));
        for (what, share) in CONTAINER_QUANTILES {
            keep(what, quantile(&self.rates, share));
        }
        keep("start_skew_ms", self.start_ms.1);
        let asked = self.operations() * WRITE_BYTES as f64;
        if let Some(bytes) = self.device_bytes {
            keep("device_bytes_per_byte", bytes as f64 / asked);
        }
    }
}
