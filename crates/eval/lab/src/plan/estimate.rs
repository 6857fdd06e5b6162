//! What a plan costs, before anything is run.

use super::Plan;
use loads::file_set;
use loads::level::{Backing, ContainerKind, Level, LevelKind, Runtime, Storage};
use loads::scheme::Scheme;
use loads::workload::{Cell, Copies};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What starting and ending one run costs beside the load itself.
pub const RUN_OVERHEAD: Duration = Duration::from_millis(600);
/// Rate that the estimate of written bytes assumes: the run itself is what finds the real one.
const WRITE_RATE_ASSUMED_BYTES: u64 = 1 << 30;

/// What starting, mounting, ending and removing a container is assumed to take, by what starts it.
const PLAIN_CONTAINER: Duration = Duration::from_millis(25);
const NAMESPACES_CONTAINER: Duration = Duration::from_millis(45);
const RUNTIME_CONTAINER: Duration = Duration::from_millis(600);
/// Bytes that a scheme stores for a write that copies nothing whole: a block, and what names it.
const CHANGE_BYTES: u64 = 8 << 10;

/// What a plan costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Runs up to the first look, those for warming up included.
    pub runs_min: u64,
    /// Runs up to the last look.
    pub runs_max: u64,
    /// Seconds up to the first look.
    pub seconds_min: f64,
    /// Seconds up to the last look, or to the limit.
    pub seconds_max: f64,
    /// Bytes that writing the files beforehand takes.
    pub prepared_bytes: u64,
    /// Bytes that the runs may write up to the last look, or the limit: what containers copy, and of other
    /// loads 1 GiB per second.
    pub written_bytes_max: u64,
}

/// First and second writes per second that containers are assumed to make together: guesses for two cores
/// with a disk that flushes in less than a millisecond. The runs themselves find the real ones.
fn assumed_rates(scheme: Scheme) -> (f64, f64) {
    match scheme {
        Scheme::Overlay | Scheme::OverlayReflink => (2000.0, 30_000.0),
        Scheme::OverlayVolatile | Scheme::BtrfsSnapshot | Scheme::ThinSnapshot => {
            (4000.0, 20_000.0)
        }
        Scheme::UnionKeep => (8000.0, 8000.0),
        Scheme::FuseOverlayfs | Scheme::UnionBackground | Scheme::UnionWhole => (1500.0, 5000.0),
    }
}

/// Whether a scheme copies whole files.
fn copies_whole(scheme: Scheme) -> bool {
    use Scheme::{FuseOverlayfs, Overlay, OverlayVolatile, UnionBackground, UnionWhole};
    matches!(scheme, Overlay | OverlayVolatile | FuseOverlayfs | UnionBackground | UnionWhole)
}

impl Plan {
    /// What it costs at most, and at least.
    pub fn estimate(&self) -> Estimate {
        let timing = &self.experiment.timing;
        let limits = &self.experiment.limits;
        let pairs = || {
            let conditions = 0..self.conditions.len();
            self.cells.iter().flat_map(move |cell| conditions.clone().map(move |it| (cell, it)))
        };
        let per_round = (self.cells.len() * self.conditions.len()) as u64;
        let round_s: f64 = pairs().map(|(cell, condition)| self.run_s(cell, condition)).sum();
        let round_written: f64 =
            pairs().map(|(cell, condition)| self.written_bytes(cell, condition)).sum();
        let rounds = |counted: u32| timing.warm_up_rounds + counted;
        let limit = limits.time.map_or(f64::INFINITY, |limit| limit.as_secs_f64());
        let (least, most) = (rounds(timing.looks.rounds_min()), rounds(timing.looks.rounds_max()));
        let written = f64::from(most) * round_written;
        Estimate {
            runs_min: u64::from(least) * per_round,
            runs_max: u64::from(most) * per_round,
            seconds_min: (f64::from(least) * round_s).min(limit),
            seconds_max: (f64::from(most) * round_s).min(limit),
            prepared_bytes: self.prepared_bytes(),
            written_bytes_max: (written as u64).min(limits.written_bytes.unwrap_or(u64::MAX)),
        }
    }

    /// Seconds of a run, with what starting and ending it costs.
    fn run_s(&self, cell: &Cell, condition: usize) -> f64 {
        let timing = &self.experiment.timing;
        let load = timing.run + timing.ramp;
        let scheme = self.scheme(condition);
        let copies = self.experiment.workloads[cell.workload].task.copies();
        let containers = copies.map_or(Duration::ZERO, |_| self.container(condition) * cell.jobs);
        let load = match (copies.and_then(Copies::files_written), scheme) {
            // Not as long as is said, but as much.
            (Some(files), Some(scheme)) => {
                let writes = f64::from(cell.jobs) * f64::from(files);
                let (first, second) = assumed_rates(scheme);
                writes / first + writes / second
            }
            _ => load.as_secs_f64(),
        };
        load + (containers + RUN_OVERHEAD).as_secs_f64()
    }

    /// What starting and ending one container takes.
    fn container(&self, condition: usize) -> Duration {
        let kinds = self.levels(condition).find_map(|level| match &level.kind {
            LevelKind::Runtime(Runtime::Container(kinds)) => Some(kinds),
            _ => None,
        });
        match kinds.map(Vec::as_slice) {
            None => PLAIN_CONTAINER,
            Some([ContainerKind::Namespaces | ContainerKind::Charliecloud]) => NAMESPACES_CONTAINER,
            Some(_) => RUNTIME_CONTAINER,
        }
    }

    /// Bytes that a run may write.
    fn written_bytes(&self, cell: &Cell, condition: usize) -> f64 {
        let timing = &self.experiment.timing;
        let load = &self.experiment.workloads[cell.workload];
        let files = load.task.copies().and_then(Copies::files_written);
        match (files, self.scheme(condition)) {
            (Some(files), Some(scheme)) => {
                let each = if copies_whole(scheme) { self.mean_file_bytes() } else { 0.0 };
                f64::from(cell.jobs) * f64::from(files) * (each + 2.0 * CHANGE_BYTES as f64)
            }
            _ if load.writes() => {
                (timing.run + timing.ramp).as_secs_f64() * WRITE_RATE_ASSUMED_BYTES as f64
            }
            _ => 0.0,
        }
    }

    /// Mean size of the files of the set that containers see.
    fn mean_file_bytes(&self) -> f64 {
        let sizes = file_set::sizes(self.experiment.file_bytes, self.experiment.seed);
        sizes.iter().sum::<u64>() as f64 / sizes.len().max(1) as f64
    }

    /// Of files that are made for a storage, all is written once; devices are taken as they are.
    fn prepared_bytes(&self) -> u64 {
        let makes_file = |level: &&Level| {
            use Storage::{Command, Directory, Iscsi, Pool, Target};
            let Some(storage) = level.storage() else { return false };
            let is_file = matches!(storage, Target { backing: Backing::File, .. });
            is_file || matches!(storage, Command { .. } | Directory(_) | Iscsi { .. } | Pool(_))
        };
        let levels = || self.experiment.factors.values().flat_map(BTreeMap::values);
        // Schemes without a file system of their own have one set of files together.
        let sets: BTreeSet<_> = (0..self.conditions.len())
            .filter_map(|condition| self.scheme(condition))
            .map(|it| it.file_system().or((it == Scheme::ThinSnapshot).then_some("thin")))
            .collect();
        let storages = levels().filter(makes_file).count() + sets.len();
        self.experiment.file_bytes * storages as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Experiment, Mode};

    const CONTAINERS: &str = "name = \"c\"\ntitle = \"c\"\nquestion = \"?\"\nengine = \"copyup\"\n\
        file-size = \"48MiB\"\n[timing]\nrun = \"10s\"\nwarm-up-rounds = 0\nlooks = [6]\n\
        [factors.storage.kernel]\nkind = \"layers\"\nscheme = \"overlay\"\n\
        [factors.storage.keep]\nkind = \"layers\"\nscheme = \"union-keep\"\n\
        [[workload]]\nname = \"files\"\nitems = 100\njobs = [JOBS]\n\
        metrics = [\"copy-up-rate\"]\n\
        [[comparison]]\nname = \"c\"\nbaseline = { storage = \"kernel\" }\n\
        other = { storage = \"keep\" }\n";

    fn estimate(jobs: &str) -> Estimate {
        let text = CONTAINERS.replace("JOBS", jobs);
        Plan::new(Experiment::parse(&text, Mode::Full).unwrap()).estimate()
    }

    /// Goal: containers cost what they write and what starting them takes, not the time of a timed load; files
    /// are made once for both schemes; cells add up.
    #[test]
    fn containers_cost_by_number() {
        let (few, many) = (estimate("1"), estimate("200"));
        assert_eq!((few.runs_min, few.prepared_bytes), (12, 48 << 20));
        assert!(few.seconds_min < 12.0 * 2.0, "{few:?}");
        // 200 containers of 25 ms each, for two conditions and six rounds; and 20 000 writes and more.
        assert!(many.seconds_min > 12.0 * 5.0 + 6.0 * 20_000.0 / 2000.0, "{many:?}");
        assert!(many.written_bytes_max > 150 * few.written_bytes_max, "{many:?}");
        let both = estimate("1, 200");
        assert!((both.seconds_min - few.seconds_min - many.seconds_min).abs() < 1e-6, "{both:?}");
    }
}
