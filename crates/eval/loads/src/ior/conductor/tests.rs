//! Small real tests in a temporary directory, with threads for ranks.

use super::*;
use crate::ior::crew::threads::Threads;
use crate::ior::order::Offsets;
use crate::ior::script::Settings;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::path::Path;

const SMALL: [(&str, &str); 3] =
    [("blockSize", "64k"), ("transferSize", "16k"), ("segmentCount", "3")];

fn parameters(ranks: usize, compat: Compat, directives: &[(&str, &str)]) -> Parameters {
    let mut settings = Settings::default();
    for (keyword, value) in directives {
        settings.set(keyword, value).unwrap();
    }
    Parameters::new(&settings, Threads(ranks).layout(), compat).unwrap().0
}

fn small(path: &Path, further: &[(&str, &str)]) -> Parameters {
    small_as(Compat::V4, path, further)
}

fn small_as(compat: Compat, path: &Path, further: &[(&str, &str)]) -> Parameters {
    let path = path.to_str().unwrap();
    let all: Vec<_> = SMALL.iter().chain(further).copied().chain([("testFile", path)]).collect();
    parameters(3, compat, &all)
}

fn run(conductor: &mut Conductor, parameters: &Parameters) -> Result<Outcome, IorError> {
    conductor.run(parameters, &mut Threads(parameters.ranks), &mut |_| {})
}

fn run_alone(parameters: &Parameters) -> Result<Outcome, IorError> {
    run(&mut Conductor::default(), parameters)
}

fn phase_of(parameters: &Parameters) -> Phase {
    let parts = (0..parameters.ranks).collect();
    phase_after(parameters, vec![0; parameters.ranks], Access::Write, parts)
}

/// A phase on these parts, of which so many transfers were written each.
fn phase_after(
    parameters: &Parameters,
    caps: Vec<u64>,
    access: Access,
    parts: Vec<usize>,
) -> Phase {
    let mut crew = Threads(parameters.ranks);
    let run = Run {
        caps,
        parameters,
        crew: &mut crew,
        files: &mut Files::default(),
        stop: &Stop::default(),
        mounts: &[],
        tell: &mut |_| {},
        begun: Instant::now(),
        outcome: Outcome::default(),
    };
    run.phase(access, 0, parts)
}

/// Goal: ranks share a file without gaps and without overlap, or fill files of their own, in order
/// and at random, as either version.
#[test]
fn offsets_cover_the_file() {
    for (own, random, compat) in [
        ("0", "0", Compat::V4),
        ("1", "0", Compat::V4),
        ("0", "1", Compat::V4),
        ("1", "1", Compat::V4),
        ("0", "1", Compat::V2),
        ("1", "1", Compat::V2),
    ] {
        let further = [("filePerProc", own), ("randomOffset", random)];
        let parameters = small_as(compat, Path::new("f"), &further);
        let phase = phase_of(&parameters);
        let mut seen = BTreeSet::new();
        for part in 0..3 {
            let offsets = Offsets::of(&phase, part);
            for index in 0..offsets.len() {
                assert!(seen.insert((parameters.file(part, 0), offsets.get(index))), "{further:?}");
            }
        }
        assert_eq!(seen.len() as u64 * parameters.transfer_bytes, parameters.aggregate_bytes());
        let last = seen.iter().map(|(_, offset)| offset + 16384).max().unwrap();
        assert_eq!(last, if own == "1" { 3 * 65536 } else { 9 * 65536 });
    }
    let several = [("testFile", "a@b@c"), ("filePerProc", "1"), ("multiFile", "1")];
    let named = parameters(4, Compat::V4, &several);
    assert_eq!(named.file(3, 2), PathBuf::from("a.00000003.2"));
    assert_eq!(named.file(1, 0), PathBuf::from("b.00000001.0"));
}

/// Goal: in random order 2.10.3 reads otherwise than it wrote and version 4 in the same order; ranks with files of
/// their own have an order each.
#[test]
fn random_orders_differ_where_they_should() {
    for (compat, reads_otherwise) in [(Compat::V2, true), (Compat::V4, false)] {
        for own in ["0", "1"] {
            let further = [("filePerProc", own), ("randomOffset", "1")];
            let parameters = small_as(compat, Path::new("f"), &further);
            let order = |access, part| {
                let phase = phase_after(&parameters, vec![0; 3], access, vec![0, 1, 2]);
                let offsets = Offsets::of(&phase, part);
                (0..offsets.len()).map(|index| offsets.get(index)).collect::<Vec<_>>()
            };
            let is_other = order(Access::Write, 0) != order(Access::Read, 0);
            assert_eq!(is_other, reads_otherwise, "{compat:?}, own files {own}");
            if own == "1" && compat == Compat::V4 {
                assert_ne!(order(Access::Write, 0), order(Access::Write, 1));
            }
        }
    }
}

/// Goal: every form writes, reads and checks without errors, in the right order of times, and leaves
/// nothing.
#[test]
fn files_are_written_read_and_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    for compat in [Compat::V2, Compat::V4] {
        for further in [
            &[("fsync", "1")][..],
            &[("filePerProc", "1"), ("intraTestBarriers", "1"), ("fsyncPerWrite", "1")],
            &[("filePerProc", "1"), ("uniqueDir", "1"), ("multiFile", "1"), ("repetitions", "2")],
            &[("randomOffset", "1")],
            &[("randomOffset", "1"), ("filePerProc", "1")],
            &[("setTimeStampSignature", "77"), ("singleXferAttempt", "1")],
            &[("reorderTasksRandom", "1"), ("reorderTasksRandomSeed", "7")],
            &[("interIODelay", "1"), ("memoryPerTask", "1m")],
        ] {
            let mut parameters = small_as(compat, &path, further);
            parameters.phases.check_write = true;
            parameters.phases.check_read =
                compat == Compat::V4 || parameters.order == Order::Sequential;
            let outcome = run_alone(&parameters).unwrap();
            let count = outcome.measured.len() as u32;
            assert_eq!(count, 2 * parameters.repetitions, "{further:?}");
            assert_eq!(outcome.errors, 0, "{further:?} {compat:?}");
            for it in &outcome.measured {
                assert_eq!((it.bytes, it.errors), (9 * 65536, 0), "{further:?}");
                assert!(it.total_s >= it.transfer_s && it.open_s >= 0.0 && it.close_s >= 0.0);
            }
            let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().flatten().collect();
            assert!(left.is_empty(), "{further:?}: {left:?}");
        }
    }
}

/// Goal: a planted flipped byte is found, by the rank that reads it and at its offset, and only where
/// checks are on, in data of our own and of IOR.
#[test]
fn flipped_bytes_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    for stamp in ["0", "1234"] {
        let stamp = ("setTimeStampSignature", stamp);
        run_alone(&small(&path, &[("writeFile", "1"), ("keepFile", "1"), stamp])).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 9 * 65536);
        bytes[100_000] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let found = |directive, compat| {
            let existing = ("useExistingTestFile", "1");
            let parameters = small_as(compat, &path, &[directive, stamp, existing]);
            let mut notes = Vec::new();
            let mut tell = |event: Event<'_>| {
                if let Event::Note(note) = event {
                    notes.push(note);
                }
            };
            let outcome =
                Conductor::default().run(&parameters, &mut Threads(3), &mut tell).unwrap();
            (outcome.errors, notes.concat())
        };
        for check in ["checkRead", "checkWrite"] {
            let (errors, note) = found((check, "1"), Compat::V4);
            assert_eq!(errors, 1, "{check}");
            assert!(
                note.contains("rank 1 found 1 wrong words") && note.contains("at 100000"),
                "{note}"
            );
        }
        assert_eq!(found(("readFile", "1"), Compat::V4).0, 0);
        if stamp.1 == "0" {
            assert_eq!(found(("checkRead", "1"), Compat::V2).0, 1);
        }
        std::fs::remove_file(&path).unwrap();
    }
    let quits = [("quitOnError", "1"), ("checkRead", "1"), ("useExistingTestFile", "1")];
    std::fs::write(&path, vec![0; 9 * 65536]).unwrap();
    assert!(matches!(run_alone(&small(&path, &quits)), Err(IorError::Data(_))));
}

/// Goal: what is there is neither overwritten nor removed; a short file is an error, not a hang; a
/// file that an earlier test of the run made may be overwritten and is removed in the end.
#[test]
fn files_of_others_are_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, b"mine").unwrap();
    let error = run_alone(&small(&path, &[])).unwrap_err();
    assert!(error.to_string().contains("refused to overwrite"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    let read = small(&path, &[("readFile", "1"), ("intraTestBarriers", "1")]);
    assert!(run_alone(&read).unwrap_err().to_string().contains("cannot read"));
    assert!(path.exists());
    std::fs::remove_file(&path).unwrap();
    let mut conductor = Conductor::default();
    let kept = small(&path, &[("writeFile", "1"), ("keepFile", "1")]);
    run(&mut conductor, &kept).unwrap();
    run(&mut conductor, &kept).unwrap();
    assert!(path.exists());
    run(&mut conductor, &small(&path, &[("readFile", "1")])).unwrap();
    assert!(!path.exists());
    let unique = [("filePerProc", "1"), ("uniqueDir", "1")];
    std::fs::create_dir(directory.path().join("1")).unwrap();
    run_alone(&small(&path, &unique)).unwrap();
    let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().flatten().collect();
    assert!(left.len() == 1 && left[0].file_name() == "1", "{left:?}");
}

/// Goal: a number of iterations bounds writing, and what is read is what was written; ranks wear out
/// together; the status file carries the number to another run.
#[test]
fn stonewalls_bound_what_is_written_and_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let outcome = run_alone(&small(&path, &[("stoneWallingWearOutIterations", "5")])).unwrap();
    let calls: Vec<u64> =
        outcome.measured.iter().flat_map(|it| it.answers.iter().map(|it| it.calls)).collect();
    assert_eq!(calls, [5; 6]);
    let status = directory.path().join("status");
    let status = ("stoneWallingStatusFile", status.to_str().unwrap());
    let wall = [("deadlineForStonewalling", "60"), ("stoneWallingWearOut", "1"), ("keepFile", "1")];
    let all = [&wall[..], &[status, ("writeFile", "1")]].concat();
    run_alone(&small(&path, &all)).unwrap();
    assert_eq!(std::fs::read_to_string(status.1).unwrap(), "12");
    std::fs::write(status.1, "2").unwrap();
    let read = small(&path, &[status, ("keepFile", "1"), ("readFile", "1")]);
    let outcome = run_alone(&read).unwrap();
    assert!(outcome.measured[0].answers.iter().all(|it| it.calls == 2));
    std::fs::remove_file(&path).unwrap();
    // The smallest file, over and over until a second is gone.
    let long = small(&path, &[("minTimeDuration", "1")]);
    let outcome = run_alone(&long).unwrap();
    assert!(outcome.measured.iter().all(|it| it.transfer_s >= 1.0));
}

/// Goal: whoever reads a part goes as far as its writer did, and not as far as itself.
#[test]
fn readers_stop_where_the_writer_of_their_part_did() {
    let parameters = parameters(3, Compat::V4, &[]);
    let phase = phase_after(&parameters, vec![5, 7, 9], Access::Read, vec![2, 0, 1]);
    assert_eq!((phase.parts, phase.caps), (vec![2, 0, 1], vec![9, 5, 7]));
}

/// Goal: what cannot be done is refused with its reason.
#[test]
fn wrong_parameters_are_refused() {
    for (directives, message) in [
        (&[("blockSize", "10k"), ("transferSize", "4k")][..], "no multiple"),
        (&[("transferSize", "0")], "positive"),
        (&[("api", "HDF5")], "POSIX and MPIIO are"),
        (&[("testFile", "a@b")], "filePerProc"),
        (&[("numTasks", "0")], "too few"),
        (&[("blockSize", "4096p")], "too large"),
        (&[("randomOffset", "1"), ("blockSize", "1t"), ("transferSize", "8")], "kept in memory"),
        (&[("randomOffset", "1"), ("blockSize", "4k"), ("transferSize", "4k")], "within a block"),
        (&[("randomOffset", "2")], "not available"),
        (&[("randomOffset", "1"), ("api", "MPIIO"), ("collective", "1")], "collective"),
        (&[("randomOffset", "1"), ("reorderTasks", "1")], "reordering"),
        (&[("reorderTasksRandom", "1"), ("reorderTasks", "1")], "exclude each other"),
        (&[("stoneWallingWearOut", "1")], "deadlineForStonewalling"),
        (&[("stoneWallingStatusFile", "x")], "keepFile"),
        (&[("savePerOpDataCSV", "x")], "not available"),
        (&[("memoryPerNode", "200%")], "more than there is"),
        (&[("numTasks", "5"), ("warningAsErrors", "1")], "warningAsErrors"),
        (&[("hintsFileName", "/no/such/file"), ("api", "MPIIO")], "cannot read hints"),
    ] {
        let mut settings = Settings::default();
        for (keyword, value) in directives {
            settings.set(keyword, value).unwrap();
        }
        let error = Parameters::new(&settings, Threads(2).layout(), Compat::V4).unwrap_err();
        assert!(error.contains(message), "{directives:?}: {error}");
    }
}

/// Goal: the versions differ where the reference says so: numTasks, fsync with MPI-IO, shifts.
#[test]
fn versions_differ_where_they_do() {
    let with = |compat, layout, directives: &[(&str, &str)]| {
        let mut settings = Settings::default();
        for (keyword, value) in directives {
            settings.set(keyword, value).unwrap();
        }
        Parameters::new(&settings, layout, compat).unwrap()
    };
    let here = Threads(2).layout();
    let (it, notes) = with(Compat::V2, here, &[("numTasks", "0"), ("reorderTasksConstant", "1")]);
    assert_eq!((it.ranks, it.reorder.parts(2, 0, 0)), (2, vec![0, 1]));
    assert!(notes[0].contains("does nothing on one node"));
    for compat in [Compat::V2, Compat::V4] {
        let (it, notes) = with(compat, here, &[("numTasks", "5")]);
        assert!(it.ranks == 2 && notes[0].contains("more than there are: 2 are used"), "{notes:?}");
    }
    // Either way to name hints names the same file.
    let hints = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(hints.path(), "IOR_HINT__MPI__cb_nodes=3\n").unwrap();
    for keyword in ["hintsFileName", "--mpiio.hintsFileName"] {
        let named = [("api", "MPIIO"), (keyword, hints.path().to_str().unwrap())];
        let (it, _) = with(Compat::V4, here, &named);
        assert!(it.hints.contains(&("cb_nodes".into(), "3".into())), "{keyword}: {:?}", it.hints);
    }
    let fsync = [("api", "MPIIO"), ("fsync", "1")];
    let (it, notes) = with(Compat::V2, here, &fsync);
    assert!(!it.has_fsync && notes[0].contains("left out"));
    let (it, notes) = with(Compat::V4, here, &fsync);
    assert!(it.has_fsync && notes.is_empty());
    // Two nodes of two ranks, filled one after the other, or in turn.
    let mut nodes = crate::ior::Layout { ranks: 4, nodes: 2, per_node: 2, is_block: true };
    let constant = [("reorderTasksConstant", "1")];
    let (it, _) = with(Compat::V2, nodes, &constant);
    assert_eq!(it.reorder.parts(4, 0, 0), [2, 3, 0, 1]);
    assert_eq!(it.reorder.parts(4, 1, 0), [0, 1, 2, 3]);
    nodes.is_block = false;
    let (it, _) = with(Compat::V4, nodes, &constant);
    assert_eq!(it.reorder.parts(4, 0, 0), [1, 2, 3, 0]);
    assert_eq!(it.reorder.parts(4, 1, 0), [2, 3, 0, 1]);
    let shuffled = [("reorderTasksRandom", "2"), ("reorderTasksRandomSeed", "3")];
    let (it, _) = with(Compat::V4, nodes, &shuffled);
    let mut parts = it.reorder.parts(4, 0, 0);
    parts.sort_unstable();
    assert_eq!(parts, [0, 1, 2, 3]);
}

/// Goal: striping that the file system does not have ends a test of either version before anything is
/// written, whichever way it is asked for.
#[test]
fn striping_elsewhere_than_on_lustre_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    for (compat, directive) in [
        (Compat::V2, ("lustreStripeCount", "4")),
        (Compat::V2, ("lustreStripeSize", "1m")),
        (Compat::V2, ("lustreStartOST", "0")),
        (Compat::V4, ("--posix.lustre.stripecount", "4")),
    ] {
        let error = run_alone(&small_as(compat, &path, &[directive])).unwrap_err();
        assert!(matches!(error, IorError::NotAvailable(_)), "{directive:?}: {error}");
        assert!(!path.exists(), "{directive:?}");
    }
    // What only 2.10.3's default asks for is not asked for.
    run_alone(&small_as(Compat::V2, &path, &[("lustreStripeCount", "0")])).unwrap();
}

/// Goal: ranks use the mounts in turn, whichever part they work on; what is made and removed is named
/// in the first. (Two names of one directory stand for two mounts.)
#[test]
fn ranks_use_mounts_in_turn() {
    let directory = tempfile::tempdir().unwrap();
    let (first, second) = (directory.path().join("first"), directory.path().join("second"));
    std::fs::create_dir(&first).unwrap();
    std::os::unix::fs::symlink(&first, &second).unwrap();
    for own in ["0", "1"] {
        let reorder = ("reorderTasksRandom", "1");
        let parameters = small(&first.join("file"), &[("filePerProc", own), reorder]);
        let mut conductor =
            Conductor { mounts: vec![first.clone(), second.clone()], ..Conductor::default() };
        let mut crew = Seen { crew: Threads(3), files: Vec::new() };
        let outcome = conductor.run(&parameters, &mut crew, &mut |_| {}).unwrap();
        assert_eq!((outcome.errors, outcome.measured.len()), (0, 2));
        assert_eq!(crew.files.len(), 6, "{:?}", crew.files);
        for (rank, path) in crew.files.iter().enumerate() {
            assert!(path.starts_with(if rank % 3 == 1 { &second } else { &first }), "{path:?}");
        }
        assert_eq!(std::fs::read_dir(&first).unwrap().count(), 0);
    }
}

/// Keeps the files of phases.
struct Seen {
    crew: Threads,
    files: Vec<PathBuf>,
}

impl Crew for Seen {
    fn layout(&self) -> crate::ior::Layout {
        self.crew.layout()
    }

    fn describe(&self) -> String {
        self.crew.describe()
    }

    fn phase(&mut self, phase: &Phase) -> Result<Reply, IorError> {
        self.files.extend(phase.files.clone());
        self.crew.phase(phase)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Goal: random tests, of either version, that are not refused write and read all of their bytes,
    /// find nothing wrong in them, and leave nothing.
    #[test]
    fn random_tests_run(
        is_old in any::<bool>(),
        ranks in 1..5_usize,
        sizes in (1..5_u64, 1..5_u64, 1..4_u64),
        flags in any::<u32>(),
        seed in 0..1000_u32,
    ) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file").display().to_string();
        let (transfers, words, segments) = sizes;
        let flag = |bit: u32| (flags >> bit & 1).to_string();
        let settings = [
            ("testFile", path),
            ("transferSize", (words * 512).to_string()),
            ("blockSize", (transfers * words * 512).to_string()),
            ("segmentCount", segments.to_string()),
            ("filePerProc", flag(0)),
            ("uniqueDir", (flags & flags >> 1 & 1).to_string()),
            ("fsync", flag(2)),
            ("fsyncPerWrite", flag(3)),
            ("intraTestBarriers", flag(4)),
            ("multiFile", flag(5)),
            ("reorderTasksConstant", flag(6)),
            ("reorderTasksRandom", flag(7)),
            ("reorderTasksRandomSeed", seed.to_string()),
            ("randomOffset", flag(8)),
            ("setTimeStampSignature", if flag(9) == "1" { "0".into() } else { seed.to_string() }),
            ("repetitions", (1 + (flags >> 10 & 1)).to_string()),
            ("taskPerNodeOffset", (flags >> 11 & 3).to_string()),
            ("writeFile", "1".into()),
            ("checkWrite", "1".into()),
            ("readFile", "1".into()),
            ("checkRead", if is_old { "0".into() } else { flag(13) }),
        ];
        let settings: Vec<(&str, &str)> =
            settings.iter().map(|(keyword, value)| (*keyword, value.as_str())).collect();
        let compat = if is_old { Compat::V2 } else { Compat::V4 };
        let mut all = Settings::default();
        for (keyword, value) in &settings {
            all.set(keyword, value).unwrap();
        }
        // What excludes each other is refused; that is tested above.
        let Ok((parameters, _)) = Parameters::new(&all, Threads(ranks).layout(), compat) else {
            return Ok(());
        };
        let outcome = run_alone(&parameters).unwrap();
        prop_assert_eq!(outcome.errors, 0);
        prop_assert_eq!(outcome.measured.len() as u32, 2 * parameters.repetitions);
        let bytes = transfers * words * 512 * segments * ranks as u64;
        for measured in &outcome.measured {
            prop_assert_eq!(measured.bytes, bytes);
        }
        prop_assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
