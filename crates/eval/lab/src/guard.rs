//! Guards: what the machine did beside our load, and whether the load reached storage at all.
//!
//! A look at the kernel's counters before and after each run. What they say becomes *marks* on the
//! run. Only a mark that makes the number itself wrong keeps it out of verdicts (served from a
//! cache, not settled); noise from elsewhere is marked and counted in the report, but not dropped:
//! pairing deals with it, and dropping runs by their look would bias what is left.

mod source;

use crate::cpu::{Accounting, Cgroup};
use loads::outcome::Mark;
use serde::Serialize;
pub(crate) use source::unescaped;
pub use source::{Numbers, Source};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Instant;

/// A device has to move at least this share of what the application says it moved.
pub const DEVICE_SHARE_MIN: f64 = 0.80;
/// Share of time stolen by the hypervisor that is worth a mark.
const STEAL_MAX: f64 = 0.05;
/// Runnable tasks per CPU, before the run, that are worth a mark.
const LOAD_MAX: f64 = 0.5;
/// Traffic of the device beyond the application's that is worth a mark.
const OTHER_TRAFFIC_MAX: f64 = 0.25;
const SECTOR_BYTES: u64 = 512;

/// Counters of a block device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Bytes read since start.
    pub read_bytes: u64,
    /// Bytes written since start.
    pub written_bytes: u64,
}

/// Whether the kernel counts what each of these devices moves.
fn has_counters(devices: &BTreeSet<Numbers>) -> bool {
    let text = fs::read_to_string("/proc/diskstats").unwrap_or_default();
    !devices.is_empty() && devices.iter().all(|it| find_device(&text, it.0, it.1).is_some())
}

fn find_device(text: &str, major: u32, minor: u32) -> Option<DeviceCounters> {
    let numbers = [major.to_string(), minor.to_string()];
    let fields = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .find(|fields| fields.len() > 9 && fields[0] == numbers[0] && fields[1] == numbers[1])?;
    Some(DeviceCounters {
        read_bytes: fields[5].parse::<u64>().ok()? * SECTOR_BYTES,
        written_bytes: fields[9].parse::<u64>().ok()? * SECTOR_BYTES,
    })
}

/// One look at the machine.
#[derive(Clone, Debug)]
pub struct Look {
    at: Instant,
    device: Option<DeviceCounters>,
    /// Whether nothing caches before the storage, so that no counters are needed.
    is_uncached: bool,
    /// Whether several devices share the data.
    is_spread: bool,
    /// Ticks of all CPUs: all, and stolen.
    ticks: (u64, u64),
    load_per_cpu: f64,
}

impl Look {
    /// Looks at the machine, and at the devices that a load's data lies on.
    pub fn now(source: &Source) -> Self {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let cpus = stat.lines().filter(|line| is_cpu(line)).count().max(1) as f64;
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        // The fourth field is runnable / all tasks, now; ourselves left out.
        let runnable = load.split_whitespace().nth(3).and_then(|field| field.split('/').next());
        let runnable: f64 = runnable.and_then(|field| field.parse().ok()).unwrap_or(1.0);
        Self {
            at: Instant::now(),
            device: source.counters(),
            is_uncached: *source == Source::Uncached,
            is_spread: source.is_spread(),
            ticks: ticks(&stat),
            load_per_cpu: (runnable - 1.0).max(0.0) / cpus,
        }
    }
}

fn is_cpu(line: &str) -> bool {
    line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// Sum and steal of the first line of /proc/stat (user nice system idle iowait irq softirq steal).
fn ticks(stat: &str) -> (u64, u64) {
    let fields: Vec<u64> = stat
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .take(8)
        .filter_map(|field| field.parse().ok())
        .collect();
    (fields.iter().sum(), fields.get(7).copied().unwrap_or_default())
}

/// What a run moved according to itself.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// Bytes per second read.
    pub read_bytes_per_s: f64,
    /// Bytes per second written.
    pub written_bytes_per_s: f64,
    /// Seconds of load.
    pub load_seconds: f64,
}

/// Compares what was seen before and after with what the run says.
pub fn marks(before: &Look, after: &Look, claim: &Claim) -> Vec<Mark> {
    let mut marks = Vec::new();
    match (before.device, after.device) {
        (Some(old), Some(new)) => {
            // The load's own time, not the wall's: starting up moves nothing.
            let seconds = claim.load_seconds.max(0.001);
            let rate = |old: u64, new: u64| new.saturating_sub(old) as f64 / seconds;
            let read = rate(old.read_bytes, new.read_bytes);
            let written = rate(old.written_bytes, new.written_bytes);
            let claimed = claim.read_bytes_per_s + claim.written_bytes_per_s;
            let is_cached = read < DEVICE_SHARE_MIN * claim.read_bytes_per_s
                || written < DEVICE_SHARE_MIN * claim.written_bytes_per_s;
            if is_cached {
                marks.push(Mark::Cached);
            } else if !after.is_spread && read + written > (1.0 + OTHER_TRAFFIC_MAX) * claimed {
                marks.push(Mark::OtherTraffic);
            }
        }
        _ if after.is_uncached => {}
        _ if claim.read_bytes_per_s > 0.0 => marks.extend([Mark::CacheUnknown, Mark::ReadsUnknown]),
        _ => marks.push(Mark::CacheUnknown),
    }
    let total = after.ticks.0.saturating_sub(before.ticks.0).max(1) as f64;
    let stolen = after.ticks.1.saturating_sub(before.ticks.1) as f64;
    if stolen / total > STEAL_MAX {
        marks.push(Mark::Steal);
    }
    if before.load_per_cpu > LOAD_MAX {
        marks.push(Mark::OtherLoad);
    }
    debug_assert!(after.at >= before.at);
    marks
}

/// What the report says about the machine.
#[derive(Clone, Debug, Default, Serialize, serde::Deserialize)]
pub struct Environment {
    /// Pairs of name and value, in the order to be shown.
    pub facts: Vec<(String, String)>,
}

impl Environment {
    /// Looks at the machine. `data` is the directory below which files are made.
    pub fn of_this_machine(data: &Path) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_string();
        let cpuinfo = read("/proc/cpuinfo");
        let model = cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
            .map(|(_, model)| model.trim().to_string());
        let cpus = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
        let memory = read("/proc/meminfo");
        let memory = memory.lines().next().map(|line| line.replace("MemTotal:", ""));
        let governor = read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
        let mut facts = vec![
            ("machine".into(), or_none(machine(&read("/etc/machine-id")))),
            ("kernel".into(), read("/proc/sys/kernel/osrelease")),
            ("CPUs".into(), format!("{cpus} × {}", model.unwrap_or_else(|| "unknown".into()))),
            ("memory".into(), memory.unwrap_or_default().trim().to_string()),
            ("CPU governor".into(), or_none(governor)),
            ("CPU accounting".into(), Accounting::of_this_machine().label()),
            (
                "CPU time of cgroup".into(),
                or_none(Cgroup::of_this_process().map(|it| it.label()).unwrap_or_default()),
            ),
        ];
        facts.extend(data_facts(data));
        Self { facts }
    }
}

/// A name for a machine that does not give its id away, which is meant to be kept secret
/// (machine-id(5)).
fn machine(id: &str) -> String {
    if id.is_empty() {
        return String::new();
    }
    let key = blake3::derive_key("tsumugi eval: name of a machine", id.as_bytes());
    blake3::Hash::from_bytes(key).to_hex()[..16].to_string()
}

fn or_none(text: String) -> String {
    if text.is_empty() { "not available".into() } else { text }
}

/// File system, mount options and device below a directory.
fn data_facts(data: &Path) -> Vec<(String, String)> {
    let Ok(path) = data.canonicalize() else { return Vec::new() };
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mount = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .filter(|fields| fields.len() > 3 && path.starts_with(fields[1]))
        .max_by_key(|fields| fields[1].len());
    let mut facts = Vec::new();
    if let Some(fields) = mount {
        facts.push(("file system".into(), format!("{} ({})", fields[2], fields[3])));
    }
    let device = fs::metadata(&path).map(|metadata| std::os::unix::fs::MetadataExt::dev(&metadata));
    if let Ok(device) = device {
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let queue = format!("/sys/dev/block/{major}:{minor}/queue");
        let read = |name: &str| {
            fs::read_to_string(format!("{queue}/{name}")).unwrap_or_default().trim().to_string()
        };
        facts.push(("scheduler".into(), or_none(read("scheduler"))));
        facts.push(("rotational".into(), or_none(read("rotational"))));
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(read: u64, written: u64) -> Look {
        Look {
            at: Instant::now(),
            device: Some(DeviceCounters { read_bytes: read, written_bytes: written }),
            is_uncached: false,
            is_spread: false,
            ticks: (1000, 0),
            load_per_cpu: 0.0,
        }
    }

    fn claim(read: f64, written: f64) -> Claim {
        Claim { read_bytes_per_s: read, written_bytes_per_s: written, load_seconds: 2.0 }
    }

    /// Goal: a read that the device did not do is cached; one that it did is not; others' traffic
    /// is seen, but not in mirrors, which write twice; without counters nothing is claimed, and reads do
    /// not count, unless nothing can cache them.
    #[test]
    fn caches_are_caught() {
        let before = look(0, 0);
        assert_eq!(marks(&before, &look(50, 0), &claim(100.0, 0.0)), [Mark::Cached]);
        assert_eq!(marks(&before, &look(200, 0), &claim(100.0, 0.0)), []);
        assert_eq!(marks(&before, &look(200, 200), &claim(100.0, 0.0)), [Mark::OtherTraffic]);
        assert_eq!(marks(&before, &look(0, 100), &claim(0.0, 100.0)), [Mark::Cached]);
        let blind = Look { device: None, ..look(0, 0) };
        assert_eq!(marks(&blind, &blind, &claim(0.0, 1.0)), [Mark::CacheUnknown]);
        let unknown = [Mark::CacheUnknown, Mark::ReadsUnknown];
        assert_eq!(marks(&blind, &blind, &claim(1.0, 1.0)), unknown);
        assert!(Mark::ReadsUnknown.excludes() && !Mark::CacheUnknown.excludes());
        let memory = Look { is_uncached: true, ..blind };
        assert_eq!(marks(&memory, &memory, &claim(1.0, 0.0)), []);
        let mirror = Look { is_spread: true, ..look(0, 200) };
        assert_eq!(marks(&before, &mirror, &claim(0.0, 100.0)), []);
        assert!(Mark::Cached.excludes() && !Mark::OtherTraffic.excludes());
    }

    /// Goal: steal and load are marked.
    #[test]
    fn others_are_seen() {
        let before = Look { load_per_cpu: 3.0, ..look(0, 0) };
        let after = Look { ticks: (1100, 10), ..look(0, 0) };
        assert_eq!(marks(&before, &after, &claim(0.0, 0.0)), [Mark::Steal, Mark::OtherLoad]);
    }

    /// Goal: the fields of /proc are where they are thought to be.
    #[test]
    fn proc_is_read() {
        let text = " 254       0 vda 10 0 80 1 20 0 160 2 0 3 4 5 6 7 8 9 10\n 254 1 vda1 1 2 3\n";
        let counters = DeviceCounters { read_bytes: 40_960, written_bytes: 81_920 };
        assert_eq!(find_device(text, 254, 0), Some(counters));
        assert_eq!(find_device(text, 254, 1), None);
        assert_eq!(find_device(text, 8, 0), None);
        assert_eq!(ticks("cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1\n"), (36, 8));
        assert!(is_cpu("cpu11 1 2") && !is_cpu("cpu  1") && !is_cpu("ctxt 1"));
        let machine = Environment::of_this_machine(Path::new("/"));
        assert!(machine.facts.iter().any(|(name, value)| name == "kernel" && !value.is_empty()));
    }
}
