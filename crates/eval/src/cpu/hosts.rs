//! CPU time of other machines that a load works on, e.g. of the target: their `/proc/stat`, read by ssh
//! before and after a run.
//!
//! What ssh itself costs there is in it, as in the second without a load before the round, which is
//! taken off.

use super::Sampled;
use super::accounting::Accounting;
use super::stat::{Column, Machine};
use crate::process;
use std::collections::BTreeMap;
use std::time::Instant;

/// Seconds that connecting may take.
const CONNECT_PATIENCE: &str = "ConnectTimeout=5";

/// Machines at one moment, by their names for ssh; those that do not answer are missing.
pub(super) type Hosts = BTreeMap<String, (Instant, Machine)>;

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
pub fn ask(name: &str) -> Result<Machine, String> {
    let options = ["-o", "BatchMode=yes", "-o", CONNECT_PATIENCE, "--", name, "cat /proc/stat"];
    let text = process::output("ssh", &options).map_err(|error| error.to_string())?;
    let machine = Machine::parse(&text);
    (machine.cpus() > 0).then_some(machine).ok_or_else(|| "it has no /proc/stat".into())
}

pub(super) fn look(names: &[String]) -> Hosts {
    let at = |name: &String| Some((name.clone(), (Instant::now(), ask(name).ok()?)));
    names.iter().filter_map(at).collect()
}

/// What was used from one look to a later one. How other machines count is not known.
pub(super) fn spent(from: &Hosts, to: &Hosts) -> BTreeMap<String, HostSpent> {
    let accounting = Accounting::parse("", "");
    let between = |(name, (at, machine)): (&String, &(Instant, Machine))| {
        let (before, earlier) = from.get(name)?;
        let seconds = at.duration_since(*before).as_secs_f64();
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
    use std::time::Duration;

    /// Goal: what machines used is told by name, with the error of samples; one that stopped answering,
    /// or is another now, is missing; names cannot be options.
    #[test]
    fn other_machines_are_told_apart() {
        let then = Instant::now();
        let hosts = |after: u64, machines: &[(&str, &str)]| -> Hosts {
            let at = then + Duration::from_secs(after);
            let one =
                |(name, stat): &(&str, &str)| ((*name).to_string(), (at, Machine::parse(stat)));
            machines.iter().map(one).collect()
        };
        let before = hosts(
            0,
            &[("a", "cpu 100 0 50 9 0 0 0 0\ncpu0 100\n"), ("b", "cpu 1 1 1 1\ncpu0 1\n")],
        );
        let after = hosts(
            2,
            &[("a", "cpu 150 0 80 9 0 0 0 0\ncpu0 100\n"), ("c", "cpu 1 1 1 1\ncpu0 1\n")],
        );
        let spent = spent(&before, &after);
        assert_eq!(spent.keys().collect::<Vec<_>>(), ["a"]);
        assert!((spent["a"].busy.seconds - 0.8).abs() < 1e-9 && spent["a"].busy.error > 0.0);
        assert!((spent["a"].seconds - 2.0).abs() < 1e-9);
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
