use super::*;
use crate::ffsb::account::Count;
use crate::ffsb::profile::Compat;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

const FILES: usize = 10;
const BYTES: u64 = 10_000;

/// A profile with one operation, and more lines for its group.
fn profile(operation: &str, more: &str) -> Profile {
    let text = format!(
        "time=1\n[filesystem]\nlocation=/x\nnum_files={FILES}\nnum_dirs=2\nmin_filesize={BYTES}\n\
         max_filesize={BYTES}\n[end]\n[threadgroup]\nnum_threads=1\n{operation}_weight=1\n\
         read_size=2500\nread_blocksize=1000\nwrite_size=2500\nwrite_blocksize=1000\n{more}\n[end]\n"
    );
    Profile::parse(&text, Some(Compat::V6)).unwrap()
}

/// All files and directories below a set's root, with their sizes; directories have none.
fn tree(root: &Path) -> BTreeMap<PathBuf, Option<u64>> {
    let mut found = BTreeMap::new();
    let mut open = vec![root.to_path_buf()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let is_directory = entry.file_type().unwrap().is_dir();
            let size = (!is_directory).then(|| entry.metadata().unwrap().len());
            found.insert(entry.path(), size);
            open.extend(is_directory.then(|| entry.path()));
        }
    }
    found
}

/// What so many steps came to.
struct Ran {
    part: Part,
    before: BTreeMap<PathBuf, Option<u64>>,
    after: BTreeMap<PathBuf, Option<u64>>,
}

fn run(profile: &Profile, steps: u32) -> Result<Ran, FfsbError> {
    let root = tempfile::tempdir().unwrap();
    let set = Set::prepare(profile, 0, (root.path(), false), 7)?;
    let before = tree(root.path());
    let sets = [set];
    let mut worker = Worker::new(profile, &profile.groups[0], &sets, 3);
    for _ in 0..steps {
        worker.step()?;
    }
    let after = tree(root.path());
    assert!(before.keys().all(|path| path.starts_with(root.path())));
    Ok(Ran { part: worker.part, before, after })
}

fn count(operation: &str, more: &str, steps: u32) -> (Count, Ran) {
    let ran = run(&profile(operation, more), steps).unwrap();
    assert_eq!(ran.part.tally.0.len(), 1);
    assert_eq!(ran.part.latencies.count(), u64::from(steps));
    let (done, count) = ran.part.tally.0.iter().next().unwrap();
    assert_eq!(done.name(), operation);
    (*count, ran)
}

/// Goal: operations that leave files alone count as FFSB counts them: whole blocks of reads only, one for
/// looking and opening.
#[test]
fn reads_change_nothing() {
    for (operation, more, transactions, bytes) in [
        ("read", "", 2, 2500),
        ("read", "read_random=1", 2, 2000),
        ("read", "read_skip=1\nread_skipsize=500", 3, 2500),
        ("readall", "", 10, BYTES),
        ("stat", "", 1, 0),
        ("open_close", "", 1, 0),
    ] {
        let (count, ran) = count(operation, more, 20);
        let expected = Count { transactions: transactions * 20, operations: 20, bytes: bytes * 20 };
        assert_eq!(count, expected, "{operation} {more}");
        assert_eq!(ran.before, ran.after, "{operation}");
        assert_eq!(ran.part.first_writes.count(), 0);
    }
}

/// Goal: overwrites count all blocks, leave sizes alone, and tell the first one of each file; appends make
/// files larger.
#[test]
fn writes_count_and_land() {
    for (operation, more, transactions, bytes) in [
        ("write", "", 3, 2500),
        ("write_fsync", "write_random=1", 2, 2000),
        ("writeall", "", 10, BYTES),
        ("writeall_fsync", "", 10, BYTES),
    ] {
        let (count, ran) = count(operation, more, 200);
        let expected =
            Count { transactions: transactions * 200, operations: 200, bytes: bytes * 200 };
        assert_eq!(count, expected, "{operation} {more}");
        assert_eq!(ran.before, ran.after, "{operation}");
        assert_eq!(ran.part.first_writes.count(), FILES as u64, "{operation}");
    }
    for operation in ["append", "append_fsync"] {
        let (count, ran) = count(operation, "", 20);
        assert_eq!(count, Count { transactions: 60, operations: 20, bytes: 50_000 });
        let size = |tree: &BTreeMap<_, Option<u64>>| tree.values().flatten().sum::<u64>();
        assert_eq!(size(&ran.after), size(&ran.before) + 50_000);
    }
}

/// Goal: what is written reaches the file: other bytes than before at the places that were written.
#[test]
fn overwrites_change_bytes() {
    let profile = profile("writeall", "");
    let root = tempfile::tempdir().unwrap();
    let sets = [Set::prepare(&profile, 0, (root.path(), false), 7).unwrap()];
    let contents = || -> Vec<Vec<u8>> {
        let tree = tree(root.path());
        tree.iter().filter(|it| it.1.is_some()).map(|it| fs::read(it.0).unwrap()).collect()
    };
    let before = contents();
    let mut worker = Worker::new(&profile, &profile.groups[0], &sets, 3);
    for _ in 0..100 {
        worker.step().unwrap();
    }
    assert!(before.iter().zip(contents()).all(|(before, after)| *before != after));
}

/// Goal: files and directories are made, removed and renamed, and counted once each.
#[test]
fn names_come_and_go() {
    let files = |tree: &BTreeMap<_, Option<u64>>| tree.values().flatten().count();
    let directories =
        |tree: &BTreeMap<_, Option<u64>>| tree.values().filter(|it| it.is_none()).count();
    for operation in ["create", "create_fsync"] {
        let (count, ran) = count(operation, "", 15);
        assert_eq!(count, Count { transactions: 150, operations: 15, bytes: 15 * BYTES });
        assert_eq!(files(&ran.after), FILES + 15);
        assert!(ran.after.values().flatten().all(|bytes| *bytes == BYTES));
        assert_eq!(ran.part.first_writes.count(), 0);
    }
    let (count, ran) = self::count("delete", "", 6);
    assert_eq!((count.transactions, files(&ran.after)), (6, FILES - 6));
    let (count, ran) = self::count("createdir", "", 4);
    assert_eq!((count.transactions, directories(&ran.after)), (4, directories(&ran.before) + 4));
    // Two made and one removed each time, below meta.
    let (count, ran) = self::count("metaop", "", 30);
    assert_eq!((count.transactions, directories(&ran.after)), (30, directories(&ran.before) + 30));
    assert!(ran.after.keys().any(|path| path.to_string_lossy().ends_with('a')));
}

/// Goal: weights choose operations; deleted files make place for new ones; calls are timed as asked.
#[test]
fn mixes_follow_weights() {
    let more = "create_weight=3\nstat_weight=6\n[stats]\nenable_stats=1\nignore=close\n[end]";
    let ran = run(&profile("delete", more), 2000).unwrap();
    let of = |operation| ran.part.tally.0[&operation].operations as f64 / 2000.0;
    for (operation, share) in
        [(Operation::Delete, 0.1), (Operation::Create, 0.3), (Operation::Stat, 0.6)]
    {
        assert!((of(operation) - share).abs() < 0.04, "{operation:?}: {}", of(operation));
    }
    let calls = &ran.part.calls.0;
    assert_eq!(calls[&Call::Stat].calls, ran.part.tally.0[&Operation::Stat].operations);
    assert_eq!(calls[&Call::Unlink].calls, ran.part.tally.0[&Operation::Delete].operations);
    assert!(!calls.contains_key(&Call::Close) && !calls.contains_key(&Call::Read));
}

/// Goal: what cannot be done is told with the fix: files that are too small, none that are left.
#[test]
fn impossible_operations_are_told() {
    let error = |profile: &Profile, steps| run(profile, steps).err().unwrap().to_string();
    let large = profile("read", "").to_string().replace("read_size=2500", "read_size=20000");
    let large = Profile::parse(&large, Some(Compat::V6)).unwrap();
    assert!(error(&large, 1).contains("min_filesize"));
    let skips = profile("read", "read_skip=1\nread_skipsize=4000");
    assert!(error(&skips, 1).contains("read_skipsize"));
    assert!(error(&profile("delete", ""), FILES as u32 + 1).contains("num_files"));
}
