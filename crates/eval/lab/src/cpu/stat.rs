//! `/proc/stat`: time of the whole machine and of each CPU, by what it was used for.

use std::fs;

/// The unit of `/proc/stat`, by second: `USER_HZ`, which is 100 everywhere but on Alpha, whatever the
/// kernel's own tick is.
const UNITS_PER_SECOND: f64 = 100.0;

/// What time was used for, in the order of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Column {
    /// Programs, those with a nice value left out.
    User,
    /// Programs with a nice value.
    Nice,
    /// The kernel, for programs or by threads of its own.
    System,
    /// Nothing.
    Idle,
    /// Nothing, while something waited for a disk.
    IoWait,
    /// Interrupts.
    Irq,
    /// What interrupts put off.
    SoftIrq,
    /// Given to others by the hypervisor.
    Steal,
}

impl Column {
    /// All of them, in the file's order.
    pub const ALL: [Self; 8] = [
        Self::User,
        Self::Nice,
        Self::System,
        Self::Idle,
        Self::IoWait,
        Self::Irq,
        Self::SoftIrq,
        Self::Steal,
    ];
    /// Those in which a CPU works for this machine.
    pub const BUSY: [Self; 5] = [Self::User, Self::Nice, Self::System, Self::Irq, Self::SoftIrq];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Nice => "nice",
            Self::System => "system",
            Self::Idle => "idle",
            Self::IoWait => "iowait",
            Self::Irq => "irq",
            Self::SoftIrq => "softirq",
            Self::Steal => "steal",
        }
    }
}

/// One line: units by column; `None` where there is no such column.
type Line = [Option<u64>; 8];

/// The file at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// All CPUs together.
    all: Line,
    each: Vec<Line>,
}

impl Machine {
    /// The machine now.
    pub fn now() -> Self {
        Self::parse(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// Reads the file's text.
    pub fn parse(text: &str) -> Self {
        let mut machine = Self::default();
        for line in text.lines() {
            let mut fields = line.split_ascii_whitespace();
            let Some(number) = fields.next().and_then(|name| name.strip_prefix("cpu")) else {
                continue;
            };
            let mut values: Line = [None; 8];
            for (value, field) in values.iter_mut().zip(fields) {
                *value = field.parse().ok();
            }
            if number.is_empty() {
                machine.all = values;
            } else {
                machine.each.push(values);
            }
        }
        machine
    }

    /// CPUs that it lists.
    pub fn cpus(&self) -> usize {
        self.each.len()
    }

    /// CPU seconds in a column since an earlier look; `None` if the kernel does not count it: there is no
    /// such column, or it has stood at 0 since the machine was started.
    pub fn since(&self, earlier: &Self, column: Column) -> Option<f64> {
        let now = self.all[column as usize]?;
        if now == 0 {
            return None;
        }
        // The counts of idle and iowait may go back a little.
        let units = now.saturating_sub(earlier.all[column as usize]?);
        Some(units as f64 / UNITS_PER_SECOND)
    }

    /// Of the CPU that used most in these columns since an earlier look: the share of its time.
    pub fn busiest(&self, earlier: &Self, columns: &[Column]) -> Option<f64> {
        if columns.iter().all(|column| self.since(earlier, *column).is_none()) {
            return None;
        }
        let units = |now: &Line, then: &Line, column: Column| {
            let (now, then) = (now[column as usize], then[column as usize]);
            now.unwrap_or_default().saturating_sub(then.unwrap_or_default()) as f64
        };
        let shares = self.each.iter().zip(&earlier.each).filter_map(|(now, then)| {
            let all: f64 = Column::ALL.iter().map(|column| units(now, then, *column)).sum();
            let used: f64 = columns.iter().map(|column| units(now, then, *column)).sum();
            (all > 0.0).then_some(used / all)
        });
        shares.max_by(f64::total_cmp)
    }
}
