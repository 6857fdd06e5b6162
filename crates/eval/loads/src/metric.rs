//! What is measured and compared: names, units, and which way is better.

use base::messages::Message;
use serde::{Deserialize, Serialize};

/// What is measured and compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Metric {
    /// Bytes per second.
    Bandwidth,
    /// Operations per second.
    Iops,
    /// Mean latency, µs.
    Latency,
    /// 99th percentile of latency, µs.
    LatencyP99,
    /// CPU time of the load's own processes per operation, µs.
    CpuPerIo,
    /// CPU time of the whole machine, less what it used before, in percent of all CPUs.
    MachineCpu,
    /// The same per operation, µs.
    MachineCpuPerIo,
    /// The same per GiB that was moved, s.
    CpuPerGib,
    /// Seconds that a command took.
    Time,
    /// A program's own figure; more is better.
    Score,
    /// Files made per second.
    CreateRate,
    /// Files looked at per second.
    StatRate,
    /// Files read per second.
    ReadRate,
    /// Files removed per second.
    RemoveRate,
    /// Operations per second of all instances together.
    OpsTotal,
    /// Operations per second of an instance, mean over all.
    OpsPerContainer,
    /// Jain's index of the instances' rates, from 1/n to 1.
    Fairness,
    /// First writes of all containers per second, until they are durable.
    CopyUpRate,
    /// Second writes to the same files, likewise.
    SteadyRate,
}

impl Metric {
    /// All of them, with the names they have in files and in the database.
    pub const ALL: &[(&'static str, Self)] = &[
        ("bandwidth", Self::Bandwidth),
        ("iops", Self::Iops),
        ("latency", Self::Latency),
        ("latency-p99", Self::LatencyP99),
        ("cpu-per-io", Self::CpuPerIo),
        ("machine-cpu", Self::MachineCpu),
        ("machine-cpu-per-io", Self::MachineCpuPerIo),
        ("cpu-per-gib", Self::CpuPerGib),
        ("time", Self::Time),
        ("score", Self::Score),
        ("create-rate", Self::CreateRate),
        ("stat-rate", Self::StatRate),
        ("read-rate", Self::ReadRate),
        ("remove-rate", Self::RemoveRate),
        ("ops-total", Self::OpsTotal),
        ("ops-per-container", Self::OpsPerContainer),
        ("fairness", Self::Fairness),
        ("copy-up-rate", Self::CopyUpRate),
        ("steady-rate", Self::SteadyRate),
    ];

    /// CPU time of the whole machine, which is measured beside every run.
    pub const OF_MACHINE: [Self; 3] = [Self::MachineCpu, Self::MachineCpuPerIo, Self::CpuPerGib];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, metric)| *metric == self).map_or("", |(name, _)| name)
    }

    /// How reports call it in a sentence.
    pub fn message(self) -> Message {
        match self {
            Self::Bandwidth => Message::Bandwidth,
            Self::Iops => Message::Iops,
            Self::Latency => Message::Latency,
            Self::LatencyP99 => Message::LatencyP99,
            Self::CpuPerIo => Message::CpuPerIo,
            Self::MachineCpu => Message::MachineCpu,
            Self::MachineCpuPerIo => Message::MachineCpuPerIo,
            Self::CpuPerGib => Message::CpuPerGib,
            Self::Time => Message::Time,
            Self::Score => Message::Score,
            Self::CreateRate => Message::CreateRate,
            Self::StatRate => Message::StatRate,
            Self::ReadRate => Message::ReadRate,
            Self::RemoveRate => Message::RemoveRate,
            Self::OpsTotal => Message::OpsTotal,
            Self::OpsPerContainer => Message::OpsPerContainer,
            Self::Fairness => Message::Fairness,
            Self::CopyUpRate => Message::CopyUpRate,
            Self::SteadyRate => Message::SteadyRate,
        }
    }

    /// How reports call it, with its unit.
    pub fn message_with_unit(self) -> Message {
        match self {
            Self::Bandwidth => Message::BandwidthUnit,
            Self::Latency => Message::LatencyUnit,
            Self::LatencyP99 => Message::LatencyP99Unit,
            Self::CpuPerIo => Message::CpuPerIoUnit,
            Self::MachineCpu => Message::MachineCpuUnit,
            Self::MachineCpuPerIo => Message::MachineCpuPerIoUnit,
            Self::CpuPerGib => Message::CpuPerGibUnit,
            Self::Time => Message::TimeUnit,
            Self::CreateRate => Message::CreateRateUnit,
            Self::StatRate => Message::StatRateUnit,
            Self::ReadRate => Message::ReadRateUnit,
            Self::RemoveRate => Message::RemoveRateUnit,
            Self::OpsTotal => Message::OpsTotalUnit,
            Self::OpsPerContainer => Message::OpsPerContainerUnit,
            Self::Fairness => Message::FairnessUnit,
            Self::Iops | Self::Score => self.message(),
            Self::CopyUpRate => Message::CopyUpRateUnit,
            Self::SteadyRate => Message::SteadyRateUnit,
        }
    }

    /// How advice calls it in a sentence.
    pub fn word(self) -> &'static str {
        self.message().english()
    }

    /// How advice calls it, with its unit.
    pub fn label(self) -> &'static str {
        self.message_with_unit().english()
    }

    /// Whether more is better.
    pub fn is_throughput(self) -> bool {
        !self.is_rough() && self != Self::Time
    }

    /// Whether it has the wider margin, of latencies and CPU time.
    pub fn is_rough(self) -> bool {
        matches!(self, Self::Latency | Self::LatencyP99) || self.is_cpu()
    }

    /// Whether it is CPU time.
    pub fn is_cpu(self) -> bool {
        matches!(self, Self::CpuPerIo) || Self::OF_MACHINE.contains(&self)
    }

    /// What one of the report's units is in the database's.
    pub fn unit(self) -> f64 {
        if self == Self::Bandwidth { (1 << 20) as f64 } else { 1.0 }
    }
}
