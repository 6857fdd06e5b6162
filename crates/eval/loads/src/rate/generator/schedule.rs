//! When requests are due, and where they go.

use super::load::{Load, Parameters, Unit};
use crate::threads::Spread;
use crate::workload::Pattern;
use reactor::Direction;
use reactor::time::Instant;
use std::sync::Arc;
use std::time::Duration;

/// The batches of one job.
pub(super) struct Schedule {
    load: Arc<Load>,
    /// Number of the job.
    index: u32,
    begin: Instant,
    /// Batches of this job so far.
    sent: u64,
    /// Requests of this job so far, for their units.
    turn: usize,
    /// By unit, for sequential loads.
    next: Vec<u64>,
    random: Spread,
}

impl Schedule {
    /// The first batch of all jobs is due at `begin`.
    pub(super) fn new(load: &Arc<Load>, index: u32, random: Spread, begin: Instant) -> Self {
        let units = &load.units;
        let jobs = u64::from(load.parameters.jobs);
        let job = u64::from(index);
        Self {
            // Jobs go through all units, each from another place.
            turn: (job * units.len() as u64 / jobs) as usize,
            next: units.iter().map(|unit| unit.requests / jobs * job).collect(),
            load: Arc::clone(load),
            index,
            begin,
            sent: 0,
            random,
        }
    }

    fn parameters(&self) -> &Parameters {
        &self.load.parameters
    }

    /// When the next batch is due: batches of all jobs are evenly spaced; without a rate, at once.
    pub(super) fn due(&self, now: Instant) -> Instant {
        let Some(rate) = self.parameters().rate else { return now };
        let (jobs, batch) =
            (u128::from(self.parameters().jobs), u128::from(self.parameters().batch));
        let index = u128::from(self.sent) * jobs + u128::from(self.index);
        let ns = index * batch * 1_000_000_000 / u128::from(rate);
        self.begin + Duration::from_nanos(ns as u64)
    }

    /// The batch that was due has been made.
    pub(super) fn batch_is_made(&mut self) {
        self.sent += 1;
    }

    /// Where the next request goes: unit, offset in its device, and what it does there.
    pub(super) fn request(&mut self) -> (Unit, u64, Direction) {
        let index = self.turn;
        self.turn = if index + 1 == self.load.units.len() { 0 } else { index + 1 };
        let unit = self.load.units[index];
        let pattern = self.parameters().pattern;
        let request = if pattern.is_random() {
            self.random.below(unit.requests)
        } else {
            let request = self.next[index];
            self.next[index] = if request + 1 >= unit.requests { 0 } else { request + 1 };
            request
        };
        let is_write = match pattern {
            Pattern::RandomMixed => self.random.next() >> 63 == 1,
            pattern => pattern.writes(),
        };
        let direction = if is_write { Direction::Write } else { Direction::Read };
        (unit, unit.start + request * self.parameters().request_bytes, direction)
    }
}
