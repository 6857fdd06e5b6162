//! CPU time of other machines that a load works on, e.g. of the target: their `/proc/stat`, read by ssh
//! before and after a run.
//!
//! Time between two looks is that of the other machine's own clock, read together with its counters:
//! how long ssh takes to get there differs from look to look, most of all on a busy machine.
//!
//! What ssh itself costs there is in it, as in the second without a load before the round, which is
//! taken off.

use super::Sampled;
use super::accounting::Accounting;
use super::stat::{Column, Machine};
use loads::process;
use std::collections::BTreeMap;

/// Seconds that connecting may take.
const CONNECT_PATIENCE: &str = "ConnectTimeout=5";

/// Another machine at one moment.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Seconds since it was started, by its own clock.
    uptime: f64,
    /// Its counters.
    pub machine: Machine,
}

/// Machines by their names for ssh; those that do not answer are missing.
pub(super) type Hosts = BTreeMap<String, Seen>;

/// What another machine used between two looks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostSpent {
    /// Seconds between the looks.
    pub seconds: f64,
    /// User, system, irq and softirq time.
    pub busy: Sampled,
}

/// Whether this can be the name of a machine: nothing that ssh takes for an option.
pub fn is_name(name: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.@:%[]".contains(&b);
    !name.is_empty() && !name.starts_with('-') && name.bytes().all(is_plain)
}

/// Asks one machine, without a password; why it does not answer, if it does not.
pub fn ask(name: &str) -> Result<Seen, String> {
    let what = "cat /proc/uptime /proc/stat";
    let options = ["-o", "BatchMode=yes", "-o", CONNECT_PATIENCE, "--", name, what];
    let text = process::output("ssh", &options).map_err(|error| error.to_string())?;
    Seen::parse(&text).ok_or_else(|| "it has no /proc/uptime and /proc/stat".into())
}

impl Seen {
    /// From what both files say.
    fn parse(text: &str) -> Option<Self> {
        let (uptime, stat) = text.split_once('\n')?;
        let uptime = uptime.split_whitespace().next()?.parse().ok()?;
        let machine = Machine::parse(stat);
        (machine.cpus() > 0).then_some(Self { uptime, machine })
    }
}

pub(super) fn look(names: &[String]) -> Hosts {
    names.iter().filter_map(|name| Some((name.clone(), ask(name).ok()?))).collect()
}

/// What was used from one look to a later one. How other machines count is not known.
pub(super) fn spent(from: &Hosts, to: &Hosts) -> BTreeMap<String, HostSpent> {
    let accounting = Accounting::parse("", "");
    let between = |(name, Seen { uptime, machine }): (&String, &Seen)| {
        let Seen { uptime: before, machine: earlier } = from.get(name)?;
        // One that was started anew meanwhile counts from nothing.
        let seconds = Some(uptime - before).filter(|seconds| *seconds >= 0.0)?;
        machine.since(earlier, Column::User)?;
        let busy: f64 = Column::BUSY.iter().filter_map(|it| machine.since(earlier, *it)).sum();
        let error = accounting.error(Column::System, busy, seconds * machine.cpus() as f64);
        Some((name.clone(), HostSpent { seconds, busy: Sampled { seconds: busy, error } }))
    };
    to.iter().filter_map(between).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what machines used is told by name, over the time of their own clocks, with the error of samples;
    /// one that stopped answering, was started anew, or is another now, is missing; names cannot be options.
    #[test]
    fn other_machines_are_told_apart() {
        let hosts = |machines: &[(&str, &str)]| -> Hosts {
            let one =
                |(name, said): &(&str, &str)| ((*name).to_string(), Seen::parse(said).unwrap());
            machines.iter().map(one).collect()
        };
        let before = hosts(&[
            ("a", "100.00 7.5\ncpu 100 0 50 9 0 0 0 0\ncpu0 100\n"),
            ("b", "100.00 1.0\ncpu 1 1 1 1\ncpu0 1\n"),
            ("d", "100.00 1.0\ncpu 1 1 1 1\ncpu0 1\n"),
        ]);
        let after = hosts(&[
            ("a", "102.00 8.5\ncpu 150 0 80 9 0 0 0 0\ncpu0 100\n"),
            ("c", "102.00 1.0\ncpu 1 1 1 1\ncpu0 1\n"),
            ("d", "2.00 1.0\ncpu 2 2 2 2\ncpu0 2\n"),
        ]);
        let spent = spent(&before, &after);
        assert_eq!(spent.keys().collect::<Vec<_>>(), ["a"]);
        assert!((spent["a"].busy.seconds - 0.8).abs() < 1e-9 && spent["a"].busy.error > 0.0);
        assert!((spent["a"].seconds - 2.0).abs() < 1e-9);
        assert!(
            Seen::parse("cpu 1 1 1 1\ncpu0 1\n").is_none() && Seen::parse("1.0 1.0\n").is_none()
        );
        for (name, is_it) in [
            ("root@10.0.0.7", true),
            ("node1.example", true),
            ("-oProxyCommand=x", false),
            ("a b", false),
            ("", false),
        ] {
            assert_eq!(is_name(name), is_it, "{name:?}");
        }
    }
}
