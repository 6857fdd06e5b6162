//! How a kernel counts the columns of `/proc/stat`, and what follows for their errors.
//!
//! With *tick accounting* (most kernels) each tick adds a tick to what it interrupts. So the columns are
//! samples, `CONFIG_HZ` by second and CPU, and a share p of n samples has the standard error
//! √(p(1 − p)/n), if what is measured is not in step with the tick. *Precise* accounting (virtual CPU
//! accounting, by the architecture or under `nohz_full`) measures every change between user and kernel.
//! Interrupts are measured by themselves with `CONFIG_IRQ_TIME_ACCOUNTING`.

use super::stat::Column;
use loads::process;
use std::collections::BTreeMap;
use std::fs;

/// Quantile of a 95 % interval.
const QUANTILE: f64 = 1.96;
/// Of a share that was never seen in n samples, 3/n is the upper end of the 95 % interval.
const NEVER_SEEN: f64 = 3.0;
/// The file counts in units of this many seconds.
const UNIT_SECONDS: f64 = 0.01;
/// Ticks per second if the kernel does not report them: the fewest possible.
const TICKS_PER_SECOND_MIN: f64 = 100.0;

/// How time is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// By samples.
    Ticks,
    /// By measuring.
    Precise,
    /// The kernel does not report it; assumed to be samples.
    Unknown,
}

/// How this machine counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Accounting {
    /// User and system time.
    pub counting: Counting,
    /// Interrupts and softirqs.
    pub interrupts: Counting,
    /// Ticks by second, if it is known.
    pub ticks_per_second: Option<f64>,
}

impl Accounting {
    /// Asks this machine: the kernel's configuration and the CPUs without ticks.
    pub fn of_this_machine() -> Self {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let config = fs::read_to_string(format!("/boot/config-{}", release.trim()))
            .or_else(|_| process::output("gzip", &["-dc", "/proc/config.gz"]))
            .unwrap_or_default();
        let without_ticks = fs::read_to_string("/sys/devices/system/cpu/nohz_full");
        Self::parse(&config, &without_ticks.unwrap_or_default())
    }

    /// Reads a kernel's configuration and its list of CPUs without ticks.
    pub fn parse(config: &str, without_ticks: &str) -> Self {
        let options: BTreeMap<&str, &str> =
            config.lines().filter_map(|line| line.trim().split_once('=')).collect();
        let is_set = |name: &str| options.get(name) == Some(&"y");
        let is_tickless = !matches!(without_ticks.trim(), "" | "(null)");
        let is_precise = is_set("CONFIG_VIRT_CPU_ACCOUNTING_NATIVE")
            || is_set("CONFIG_VIRT_CPU_ACCOUNTING_GEN") && is_tickless;
        let counting = if is_precise {
            Counting::Precise
        } else if is_set("CONFIG_TICK_CPU_ACCOUNTING") || is_set("CONFIG_VIRT_CPU_ACCOUNTING_GEN") {
            Counting::Ticks
        } else {
            Counting::Unknown
        };
        let interrupts =
            if is_set("CONFIG_IRQ_TIME_ACCOUNTING") { Counting::Precise } else { counting };
        let ticks_per_second = options.get("CONFIG_HZ").and_then(|value| value.parse().ok());
        Self { counting, interrupts, ticks_per_second }
    }

    /// Half of the 95 % interval of CPU seconds in a column, of `total` CPU seconds that there were.
    pub fn error(&self, column: Column, seconds: f64, total: f64) -> f64 {
        let counting = match column {
            Column::Irq | Column::SoftIrq => self.interrupts,
            _ => self.counting,
        };
        if counting == Counting::Precise || total <= 0.0 {
            return UNIT_SECONDS;
        }
        let samples = total * self.ticks_per_second.unwrap_or(TICKS_PER_SECOND_MIN);
        let share = (seconds / total).clamp(0.0, 1.0);
        let deviation = (share * (1.0 - share) / samples).sqrt();
        total * (QUANTILE * deviation).max(NEVER_SEEN / samples) + UNIT_SECONDS
    }

    /// For people.
    pub fn label(&self) -> String {
        let counting = match self.counting {
            Counting::Ticks => "by ticks (sampled)",
            Counting::Precise => "precise",
            Counting::Unknown => "unknown, taken for ticks",
        };
        let interrupts = match self.interrupts {
            Counting::Precise => "interrupts precise",
            _ => "interrupts as well",
        };
        let ticks = self
            .ticks_per_second
            .map_or("an unknown number of ticks".into(), |ticks| format!("{ticks:.0} ticks"));
        format!("{counting}, {interrupts}, {ticks} per second")
    }
}
