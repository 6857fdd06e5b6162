//! Loads and levels of IOR.

use crate::experiment::{Experiment, Mode};
use crate::plan::Plan;
use loads::ior::experiment::{IorLevel, IorLoad};
use loads::ior::{MpiKind, Stripe};

const STUDY: &str = include_str!("../../../../../../experiments/parallel-io.toml");

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
    let level: &IorLevel = experiment.factors["way"]["two-phase"].setting().unwrap();
    assert_eq!(level.mpi, Some(MpiKind::Mpich));
    assert_eq!(level.options["collective"], "1");
    assert_eq!(level.hints["romio_cb_read"], "enable");
    let load: &IorLoad = experiment.workloads[1].task().unwrap();
    assert!(!load.writes && load.options["blockSize"] == "64m");
    let striped = STUDY.replacen("mpi = \"mpich\"", "stripe-count = -1\nstripe-size = \"1MiB\"", 1);
    let experiment = Experiment::parse(&striped, Mode::Full).unwrap();
    let level: &IorLevel = experiment.factors["way"]["posix-shared"].setting().unwrap();
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
