//! The CPU time of a run: its users, its source, and its precision.
//!
//! Two kinds of numbers are kept apart. The scheduler's are exact to a nanosecond and belong to
//! processes: the load's (with all that it started), the standing services' (target, attached host),
//! the threads of the kernel, our cgroup. Those of `/proc/stat` are of the whole machine, neighbours
//! included, and on most kernels they are *samples*: each tick adds all of itself to whatever it
//! happens to interrupt. So each of them carries the error of its sampling, and what the kernel does
//! not count is not available instead of 0.

mod accounting;
mod cgroup;
mod group;
pub mod hosts;
mod processes;
mod stat;

pub use accounting::{Accounting, Counting};
pub use cgroup::Cgroup;
pub use group::Group;
pub use processes::Service;
pub use stat::{Column, Machine};

use hosts::{HostSpent, Hosts};

use loads::metric::Metric;
use loads::outcome::Outcome;
use processes::Times;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Values of a share that is known by its samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampled {
    /// CPU seconds.
    pub seconds: f64,
    /// Half of its 95 % interval, in CPU seconds.
    pub error: f64,
}

/// What is looked at.
#[derive(Clone, Debug)]
pub struct Meter {
    accounting: Accounting,
    cgroup: Option<Cgroup>,
    services: Vec<Service>,
    /// Other machines.
    hosts: Vec<String>,
}

/// Counters at one moment.
#[derive(Clone, Debug)]
pub struct Look {
    at: Instant,
    machine: Machine,
    times: Times,
    cgroup: Option<Duration>,
    hosts: Hosts,
}

/// What was used between two looks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spent {
    /// Seconds between the looks.
    pub seconds: f64,
    /// CPUs of the machine.
    pub cpus: usize,
    /// Of the whole machine, by column; what the kernel does not count is missing.
    pub columns: BTreeMap<Column, Sampled>,
    /// User, system, irq and softirq time of the whole machine; what is not available counts as none.
    pub busy: Option<Sampled>,
    /// Largest share of one CPU's time that it was busy.
    pub busiest_cpu: Option<f64>,
    /// Largest share of one CPU's time that it spent on softirqs.
    pub busiest_softirq: Option<f64>,
    /// CPU seconds of the processes that were started and ended between the looks: the load.
    pub load: Option<f64>,
    /// CPU seconds of each standing service, by name.
    pub services: BTreeMap<String, f64>,
    /// CPU seconds of the threads of the kernel.
    pub kernel: Option<f64>,
    /// CPU seconds of our cgroup.
    pub cgroup: Option<f64>,
    /// Of other machines, by name.
    pub hosts: BTreeMap<String, HostSpent>,
}

impl Meter {
    /// A meter for this machine, with services that stand, and for others.
    pub fn new(services: Vec<Service>, hosts: Vec<String>) -> Self {
        Self {
            accounting: Accounting::of_this_machine(),
            cgroup: Cgroup::of_this_process(),
            services,
            hosts,
        }
    }

    /// How the machine counts.
    pub fn accounting(&self) -> &Accounting {
        &self.accounting
    }

    /// Our cgroup, if there is one that counts.
    pub fn cgroup(&self) -> Option<&Cgroup> {
        self.cgroup.as_ref()
    }

    /// Looks at the counters before something, others' first: asking them costs time here too.
    pub fn before(&self) -> Look {
        let hosts = hosts::look(&self.hosts);
        Look { hosts, ..self.look() }
    }

    /// Looks at the counters after something, others' last.
    pub fn after(&self) -> Look {
        let look = self.look();
        Look { hosts: hosts::look(&self.hosts), ..look }
    }

    fn look(&self) -> Look {
        Look {
            hosts: Hosts::new(),
            at: Instant::now(),
            machine: Machine::now(),
            times: Times::now(&self.services),
            cgroup: self.cgroup.as_ref().and_then(Cgroup::used),
        }
    }

    /// What was used from one look to a later one.
    pub fn spent(&self, from: &Look, to: &Look) -> Spent {
        let seconds = to.at.duration_since(from.at).as_secs_f64();
        let cpus = to.machine.cpus();
        let used = self.machine(from, to, seconds * cpus as f64);
        let difference = |from: Option<Duration>, to: Option<Duration>| {
            Some(to?.checked_sub(from?)?.as_secs_f64())
        };
        let (columns, busy) = used;
        let share = |column: &[Column]| to.machine.busiest(&from.machine, column);
        Spent {
            seconds,
            cpus,
            columns,
            busy,
            busiest_cpu: share(&Column::BUSY),
            busiest_softirq: share(&[Column::SoftIrq]),
            load: difference(from.times.children, to.times.children),
            services: to
                .times
                .services
                .iter()
                .filter_map(|(name, time)| {
                    let before = from.times.services.get(name).copied();
                    Some((name.clone(), difference(before, Some(*time))?))
                })
                .collect(),
            kernel: to.times.kernel_since(&from.times),
            cgroup: difference(from.cgroup, to.cgroup),
            hosts: hosts::spent(&from.hosts, &to.hosts),
        }
    }

    /// Columns of the machine, and their sum without those that are not busy. `total` are the CPU
    /// seconds that there were.
    fn machine(
        &self,
        from: &Look,
        to: &Look,
        total: f64,
    ) -> (BTreeMap<Column, Sampled>, Option<Sampled>) {
        let mut columns = BTreeMap::new();
        for column in Column::ALL {
            if let Some(seconds) = to.machine.since(&from.machine, column) {
                let error = self.accounting.error(column, seconds, total);
                columns.insert(column, Sampled { seconds, error });
            }
        }
        let parts = Column::BUSY.iter().filter_map(|column| columns.get(column));
        let seconds: f64 = parts.map(|it| it.seconds).sum();
        let has_parts =
            columns.contains_key(&Column::User) && columns.contains_key(&Column::System);
        // One sample is of one column only, so that the sum is a share of samples itself.
        let error = self.accounting.error(Column::System, seconds, total);
        (columns, has_parts.then_some(Sampled { seconds, error }))
    }
}

impl Spent {
    /// CPU time of the machine for what a run moved, less `idle` (CPU seconds by second without it).
    /// What is not more than that by the error of its sampling has no value.
    pub fn metrics(&self, idle: Option<f64>, outcome: &Outcome) -> BTreeMap<Metric, f64> {
        let (Some(busy), Some(idle)) = (self.busy, idle) else { return BTreeMap::new() };
        let seconds = busy.seconds - idle * self.seconds;
        if seconds <= busy.error {
            return BTreeMap::new();
        }
        let bytes_per_s = outcome.read_bytes_per_s + outcome.written_bytes_per_s;
        let gib = bytes_per_s * outcome.load_seconds / (1 << 30) as f64;
        let all = self.seconds * self.cpus as f64;
        let per = |count: f64| (count > 0.0).then(|| seconds / count);
        [
            (Metric::MachineCpu, per(all).map(|share| 100.0 * share)),
            (Metric::MachineCpuPerIo, per(outcome.operations()).map(|seconds| 1e6 * seconds)),
            (Metric::CpuPerGib, per(gib)),
        ]
        .into_iter()
        .filter_map(|(metric, value)| Some((metric, value?)))
        .collect()
    }

    /// All of it as named values, for the database: what is not available has no name there.
    pub fn samples(&self) -> BTreeMap<String, f64> {
        let mut samples: BTreeMap<String, f64> = BTreeMap::new();
        samples.insert("cpu_wall_s".into(), self.seconds);
        samples.insert("cpu_count".into(), self.cpus as f64);
        let mut sampled = |name: &str, it: Sampled| {
            samples.insert(format!("cpu_{name}_s"), it.seconds);
            samples.insert(format!("cpu_{name}_error_s"), it.error);
        };
        for (column, it) in &self.columns {
            sampled(column.name(), *it);
        }
        if let Some(busy) = self.busy {
            sampled("busy", busy);
        }
        for (name, value) in [
            ("cpu_load_s", self.load),
            ("cpu_kernel_threads_s", self.kernel),
            ("cpu_cgroup_s", self.cgroup),
            ("cpu_busiest_share", self.busiest_cpu),
            ("cpu_busiest_softirq_share", self.busiest_softirq),
        ] {
            samples.extend(value.map(|value| (name.to_string(), value)));
        }
        for (name, it) in &self.hosts {
            samples.insert(format!("cpu_host_{name}_wall_s"), it.seconds);
            samples.insert(format!("cpu_host_{name}_busy_s"), it.busy.seconds);
            samples.insert(format!("cpu_host_{name}_error_s"), it.busy.error);
        }
        samples.extend(
            self.services.iter().map(|(name, value)| (format!("cpu_service_{name}_s"), *value)),
        );
        samples
    }
}

#[cfg(test)]
mod tests;
