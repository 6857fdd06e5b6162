//! Loads and levels of IOR.

use crate::engine::ior::MpiKind;
use crate::experiment::ior::{IorLevel, IorLoad, IorOptions, Stripe, check_options};
use crate::experiment::raw::{RawLevel, RawWorkload};
use crate::units;
use std::collections::BTreeMap;
use toml::Value;

/// Values may be written as what they are.
fn texts(raw: &BTreeMap<String, Value>) -> Result<BTreeMap<String, String>, String> {
    raw.iter()
        .map(|(key, value)| {
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Integer(number) => number.to_string(),
                Value::Boolean(flag) => u8::from(*flag).to_string(),
                other => return Err(format!("{key} = {other} is no text, number or truth")),
            };
            Ok((key.clone(), text))
        })
        .collect()
}

fn options(raw: &BTreeMap<String, Value>) -> Result<IorOptions, String> {
    let options = texts(raw)?;
    check_options(&options)?;
    Ok(options)
}

/// A load; `rw` says whether it writes.
pub(super) fn load(raw: &RawWorkload) -> Result<IorLoad, String> {
    let writes = match raw.rw.as_ref().map(|rw| rw.get_ref().as_str()) {
        Some("write") => true,
        Some("read") => false,
        _ => return Err("rw has to be \"write\" or \"read\"".into()),
    };
    Ok(IorLoad { writes, options: options(&raw.options)? })
}

/// A level.
pub(super) fn level(raw: &RawLevel) -> Result<IorLevel, String> {
    let mpi = match &raw.mpi {
        None => None,
        Some(name) => {
            let found = MpiKind::ALL.iter().find(|(known, _)| known == name);
            let names: Vec<&str> = MpiKind::ALL.iter().map(|(known, _)| *known).collect();
            let (_, kind) = found.ok_or_else(|| format!("mpi: there are {}", names.join(", ")))?;
            Some(*kind)
        }
    };
    let bytes = raw.stripe_size.as_ref().map(|size| units::parse_bytes(size)).transpose()?;
    let stripe = Stripe { count: raw.stripe_count, bytes };
    Ok(IorLevel {
        mpi,
        options: options(&raw.options)?,
        hints: texts(&raw.hints)?,
        stripe: (stripe != Stripe::default()).then_some(stripe),
    })
}

#[cfg(test)]
mod tests {
    use crate::engine::ior::MpiKind;
    use crate::experiment::ior::Stripe;
    use crate::experiment::{Experiment, LevelKind, Mode, Task};
    use crate::plan::Plan;

    const STUDY: &str = include_str!("../../../../../experiments/parallel-io.toml");

    fn message(replaced: &str, by: &str) -> String {
        assert!(STUDY.contains(replaced), "{replaced}");
        let text = STUDY.replacen(replaced, by, 1);
        Experiment::parse(&text, Mode::Full).unwrap_err().to_string()
    }

    /// Goal: the study's file is read in both forms, with what its levels and loads say.
    #[test]
    fn the_study_is_read() {
        for (mode, cells) in [(Mode::Quick, 2), (Mode::Full, 32)] {
            let plan = Plan::new(Experiment::parse(STUDY, mode).unwrap());
            assert_eq!((plan.cells.len(), plan.conditions.len()), (cells, 9));
        }
        let experiment = Experiment::parse(STUDY, Mode::Full).unwrap();
        let LevelKind::Ior(level) = &experiment.factors["way"]["two-phase"].kind else {
            unreachable!()
        };
        assert_eq!(level.mpi, Some(MpiKind::Mpich));
        assert_eq!(level.options["collective"], "1");
        assert_eq!(level.hints["romio_cb_read"], "enable");
        let Task::Ior(load) = &experiment.workloads[1].task else { unreachable!() };
        assert!(!load.writes && load.options["blockSize"] == "64m");
        let striped =
            STUDY.replacen("mpi = \"mpich\"", "stripe-count = -1\nstripe-size = \"1MiB\"", 1);
        let experiment = Experiment::parse(&striped, Mode::Full).unwrap();
        let LevelKind::Ior(level) = &experiment.factors["way"]["posix-shared"].kind else {
            unreachable!()
        };
        let stripe = Stripe { count: Some(-1), bytes: Some(1 << 20) };
        assert_eq!((level.mpi, level.stripe), (None, Some(stripe)));
    }

    /// Goal: mistakes are named: what the plan decides, unknown options, MPIs and metrics, kinds that
    /// go with another engine.
    #[test]
    fn mistakes_are_named() {
        for (replaced, by, expected) in [
            ("api = \"POSIX\"", "testFile = \"x\"", "testFile follows from the plan"),
            ("api = \"POSIX\"", "speed = 1", "unknown keyword \"speed\""),
            ("api = \"POSIX\"", "fsync = [1]", "is no text, number or truth"),
            ("mpi = \"mpich\"", "mpi = \"lam\"", "there are mpich, openmpi, openmpi-romio"),
            ("rw = \"write\"", "rw = \"randwrite\"", "rw has to be"),
            ("[\"bandwidth\"]", "[\"latency\"]", "does not measure"),
            ("kind = \"directory\"", "kind = \"paced\"\nrate = \"1MiB\"", "works on files"),
            ("kind = \"directory\"", "kind = \"container\"", "runs natively"),
            ("engine = \"ior\"", "engine = \"fio\"", "goes with engine"),
        ] {
            let message = message(replaced, by);
            assert!(message.contains(expected), "{by}: {message}");
            assert!(message.starts_with("line "), "{message}");
        }
    }
}
