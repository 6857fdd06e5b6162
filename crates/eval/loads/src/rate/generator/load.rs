//! What the jobs of a load do together: its parameters, devices and their parts.

use super::LoadError;
use super::source::{Storage, Target};
use crate::workload::Pattern;
use std::time::Duration;

/// Longest request.
const REQUEST_BYTES_MAX: u64 = 1 << 30;
/// How late a batch may be for a wake-up that serves several: the kernel's own timer slack, which ours is
/// otherwise too fine for.
const SLACK: Duration = Duration::from_micros(50);

/// The parameters of a load.
#[derive(Clone, Debug)]
pub struct Parameters {
    /// Requests per second of all jobs together; `None` for a closed loop with `depth_max` requests in flight per
    /// job.
    pub rate: Option<u64>,
    /// What each request does, and where.
    pub pattern: Pattern,
    /// Bytes of a request.
    pub request_bytes: u64,
    /// Requests that are due, and submitted, together.
    pub batch: u32,
    /// Equal parts of the devices, which requests visit in turn; `None` for one per device.
    pub units: Option<u32>,
    /// Threads, each with a ring of its own.
    pub jobs: u32,
    /// Most requests in flight per job; more are late.
    pub depth_max: u32,
    /// Time to measure.
    pub runtime: Duration,
    /// Time of load before the measurement.
    pub ramp: Duration,
    /// Seed of offsets.
    pub seed: u64,
    /// Lateness allowed for a batch so that one wake-up and system call serve several; `None` for what pays.
    pub slack: Option<Duration>,
    /// How long to spin for completions before sleeping.
    pub spin: reactor::Spin,
    /// CPUs that the jobs are pinned to, in turn.
    pub cpus: Vec<usize>,
}

impl Parameters {
    /// Returns how late a batch may be for the sake of fewer wake-ups. Where batches are further apart there is
    /// nothing to gain.
    pub(super) fn slack(&self) -> Duration {
        let Some(rate) = self.rate else { return Duration::ZERO };
        let per_job = u64::from(self.batch) * u64::from(self.jobs);
        let period = Duration::from_nanos(per_job * 1_000_000_000 / rate);
        let default = if period * 2 <= SLACK { SLACK } else { Duration::ZERO };
        self.slack.unwrap_or(default)
    }
}

/// A part of a device that requests go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    pub(super) device: usize,
    /// Byte at which it begins.
    pub(super) start: u64,
    /// Requests that fit.
    pub(super) requests: u64,
}

/// What the jobs do together.
pub(super) struct Load {
    pub(super) parameters: Parameters,
    pub(super) devices: Vec<Storage>,
    pub(super) units: Vec<Unit>,
    /// Where requests go if no layer of ours is between: by device.
    pub(super) straight: Option<Vec<Target>>,
}

impl Load {
    /// Returns the load, if it is possible.
    pub(super) fn new(parameters: Parameters, devices: Vec<Storage>) -> Result<Self, LoadError> {
        let units = units(&parameters, &devices)?;
        // All of them or none: one loop makes them all. Spinning is the reactor's.
        let can_be = parameters.spin.is_never();
        let straight = devices.iter().map(|it| it.source.straight().filter(|_| can_be)).collect();
        Ok(Self { parameters, devices, units, straight })
    }

    /// Returns the requests under way from which on there is no room for another batch.
    pub(super) fn room(&self) -> u32 {
        self.parameters.depth_max.saturating_sub(self.parameters.batch - 1).max(1)
    }
}

/// Divides the devices.
fn units(parameters: &Parameters, devices: &[Storage]) -> Result<Vec<Unit>, LoadError> {
    let bytes = parameters.request_bytes;
    let count = devices.len() as u32;
    let units = parameters.units.unwrap_or(count);
    if units < count {
        return Err(LoadError::FewUnits { units, devices: count });
    }
    let mut parts = Vec::new();
    for index in 0..units {
        // Units of a device are spread over the turn, so that neighbours in time are on others.
        let device = (index % count) as usize;
        let of_device = units / count + u32::from(index % count < units % count);
        let geometry = devices[device].source.geometry();
        let block = u64::from(geometry.block_size);
        if bytes == 0 || !bytes.is_multiple_of(block) || bytes > REQUEST_BYTES_MAX {
            return Err(LoadError::RequestSize(block));
        }
        let requests = geometry.size() / u64::from(of_device) / bytes;
        if requests == 0 {
            let name = devices[device].name.clone();
            return Err(LoadError::SmallDevice { name, units: of_device, bytes });
        }
        let start = u64::from(index / count) * requests * bytes;
        parts.push(Unit { device, start, requests });
    }
    Ok(parts)
}
