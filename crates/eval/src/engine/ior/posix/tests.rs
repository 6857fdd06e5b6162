//! Small real tests in a temporary directory.

use super::super::script::{Compat, Settings};
use super::*;
use std::collections::BTreeSet;

fn parameters(ranks: usize, directives: &[(&str, &str)]) -> Parameters {
    let mut settings = Settings::default();
    for (keyword, value) in directives {
        settings.set(keyword, value).unwrap();
    }
    Parameters::new(&settings, ranks, Compat::V4).unwrap().0
}

const SMALL: [(&str, &str); 3] =
    [("blockSize", "64k"), ("transferSize", "16k"), ("segmentCount", "3")];

fn small(ranks: usize, path: &Path, further: &[(&str, &str)]) -> Parameters {
    let path = path.to_str().unwrap();
    let all: Vec<_> = SMALL.iter().chain(further).copied().chain([("testFile", path)]).collect();
    parameters(ranks, &all)
}

/// Goal: ranks share a file without gaps and without overlap, or fill files of their own.
#[test]
fn offsets_cover_the_file() {
    for own in ["0", "1"] {
        let further = [("filePerProc", own)];
        let parameters = parameters(3, &[&SMALL[..], &further].concat());
        let mut seen = BTreeSet::new();
        for rank in 0..3 {
            for index in 0..parameters.transfers() {
                seen.insert((parameters.file(rank, 0), parameters.offset(rank, index)));
            }
        }
        assert_eq!(seen.len() as u64 * parameters.transfer_bytes, parameters.aggregate_bytes());
        let last = seen.iter().map(|(_, offset)| offset + 16384).max().unwrap();
        assert_eq!(last, if own == "1" { 3 * 65536 } else { 9 * 65536 });
    }
    let named = parameters(4, &[("testFile", "a@b@c"), ("filePerProc", "1"), ("multiFile", "1")]);
    assert_eq!(named.file(3, 2), PathBuf::from("a.00000003.2"));
    assert_eq!(named.file(1, 0), PathBuf::from("b.00000001.0"));
}

/// Goal: every form writes, reads and checks without errors, in the right order of times, and leaves
/// nothing.
#[test]
fn files_are_written_read_and_removed() {
    let directory = tempfile::tempdir().unwrap();
    for further in [
        &[("fsync", "1")][..],
        &[("filePerProc", "1"), ("intraTestBarriers", "1")],
        &[("filePerProc", "1"), ("uniqueDir", "1"), ("multiFile", "1"), ("repetitions", "2")],
        &[("randomOffset", "1")],
    ] {
        let mut parameters = small(3, &directory.path().join("file"), further);
        let checks = !parameters.is_random;
        parameters.phases = super::super::script::Phases {
            write: true,
            read: true,
            check_write: true,
            check_read: checks,
        };
        let measured = run(&parameters).unwrap();
        assert_eq!(measured.len() as u32, 2 * parameters.repetitions, "{further:?}");
        for it in measured {
            assert_eq!((it.bytes, it.errors), (9 * 65536, 0), "{further:?}");
            assert!(it.total_s >= it.transfer_s && it.open_s >= 0.0 && it.close_s >= 0.0);
        }
        let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().flatten().collect();
        assert!(left.is_empty(), "{further:?}: {left:?}");
    }
}

/// Goal: a planted flipped byte is found, and only where checks are on.
#[test]
fn flipped_bytes_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    run(&small(2, &path, &[("writeFile", "1"), ("keepFile", "1")])).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes.len(), 6 * 65536);
    bytes[100_000] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let found =
        |directive| run(&small(2, &path, &[directive, ("useExistingTestFile", "1")])).unwrap();
    assert_eq!(found(("checkRead", "1"))[0].errors, 1);
    assert_eq!(found(("checkWrite", "1"))[0].errors, 1);
    assert_eq!(found(("readFile", "1"))[0].errors, 0);
}

/// Goal: what is there is neither overwritten nor removed; a short file is an error, not a hang.
#[test]
fn files_of_others_are_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, b"mine").unwrap();
    let error = run(&small(2, &path, &[])).unwrap_err();
    assert!(error.to_string().contains("must not exist"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    let read = small(2, &path, &[("readFile", "1"), ("intraTestBarriers", "1")]);
    assert!(run(&read).unwrap_err().to_string().contains("cannot read"));
    assert!(path.exists());
}

/// Goal: what cannot be done is refused with its reason.
#[test]
fn wrong_parameters_are_refused() {
    for (directives, message) in [
        (&[("blockSize", "10k"), ("transferSize", "4k")][..], "no multiple"),
        (&[("transferSize", "0")], "positive"),
        (&[("randomOffset", "1"), ("checkRead", "1")], "checkRead"),
        (&[("api", "MPIIO")], "not built in"),
        (&[("testFile", "a@b")], "filePerProc"),
        (&[("numTasks", "0")], "too few"),
        (&[("blockSize", "4096p")], "too large"),
        (&[("randomOffset", "1"), ("blockSize", "1t"), ("transferSize", "8")], "random order"),
    ] {
        let mut settings = Settings::default();
        for (keyword, value) in directives {
            settings.set(keyword, value).unwrap();
        }
        let error = Parameters::new(&settings, 2, Compat::V4).unwrap_err();
        assert!(error.contains(message), "{directives:?}: {error}");
    }
    let mut settings = Settings::default();
    settings.set("numTasks", "0").unwrap();
    settings.set("reorderTasksConstant", "1").unwrap();
    let (parameters, notes) = Parameters::new(&settings, 2, Compat::V2).unwrap();
    assert_eq!((parameters.ranks, parameters.read_shift), (2, 0));
    assert!(notes[0].contains("does nothing on one node"));
}
