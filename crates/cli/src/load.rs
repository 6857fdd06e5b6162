//! Shared code of commands that put load on storage: kinds of load, times, signals.

use anyhow::Context;
use clap::ValueEnum;
use eval::workload::Pattern;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Kinds of load, as in fio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Sequential reads
    Read,
    /// Sequential writes
    Write,
    /// Random reads
    Randread,
    /// Random writes
    Randwrite,
    /// Random reads and writes
    Randrw,
}

impl Mode {
    /// Returns the pattern of its requests.
    pub(crate) fn pattern(self) -> Pattern {
        match self {
            Self::Read => Pattern::Read,
            Self::Write => Pattern::Write,
            Self::Randread => Pattern::RandomRead,
            Self::Randwrite => Pattern::RandomWrite,
            Self::Randrw => Pattern::RandomMixed,
        }
    }

    pub(crate) fn writes(self) -> bool {
        self.pattern().writes()
    }

    pub(crate) fn is_random(self) -> bool {
        self.pattern().is_random()
    }
}

/// Returns a flag that SIGINT and SIGTERM set.
pub(crate) fn interrupted() -> anyhow::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
    }
    Ok(flag)
}

/// Returns the duration given to `--NAME`.
pub(crate) fn seconds(name: &str, value: f64) -> anyhow::Result<Duration> {
    Duration::try_from_secs_f64(value).with_context(|| format!("--{name} {value}"))
}
