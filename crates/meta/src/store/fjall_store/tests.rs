use super::*;
use crate::store::journal;
use fjall::AbstractTree;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

fn batch(number: u64) -> Batch {
    Batch { writes: vec![(number.to_le_bytes().to_vec(), Some(vec![7; 100]))] }
}

fn open(directory: &Path) -> FjallStore {
    let opening = Opening::here().expect("the kernel has a boot identifier");
    FjallStore::open(directory, opening).expect("a store")
}

/// Goal: an engine that the syncing thread reopens is checked only against commits that it can
/// have. Input: commits, beside a thread that reopens the engine all the time. Expected: no commit
/// is missed, and each is there after the store is opened again.
#[test]
fn commits_while_the_engine_is_opened_anew() {
    const COMMITS: u64 = 3000;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut store = open(directory.path());
    let (shared, is_over) = (Arc::clone(&store.shared), Arc::new(AtomicBool::new(false)));
    let over = Arc::clone(&is_over);
    let reviver = std::thread::spawn(move || {
        let mut revived = 0;
        while !over.load(Ordering::Relaxed) {
            shared.revive(Workers::None).expect("nothing is missing");
            revived += 1;
            std::thread::yield_now();
        }
        revived
    });
    for number in 0..COMMITS {
        store.commit(&batch(number)).expect("a commit");
    }
    is_over.store(true, Ordering::Relaxed);
    let revived: u64 = reviver.join().expect("nothing is missing");
    assert!(revived > 0, "the engine was never reopened");
    drop(store);
    let store = open(directory.path());
    assert_eq!(locked(&store.shared.commits).newest.sequence, COMMITS);
    for number in 0..COMMITS {
        let value = store.get(&number.to_le_bytes()).expect("an intact store");
        assert_eq!(value.as_deref(), Some(&[7; 100][..]), "commit {number}");
    }
}

/// Waits until a condition holds; fails after 30 s.
fn until(mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(30), "it never happens");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn records(store: &FjallStore) -> fjall::Keyspace {
    store.shared.with(|engine| Ok(engine.records.clone())).expect("an open engine")
}

/// Commits more than a memtable.
fn fill_memtable(store: &mut FjallStore) {
    for number in 0..300_u64 {
        let write = (number.to_le_bytes().to_vec(), Some(vec![7; 64 << 10]));
        store.commit(&Batch { writes: vec![write] }).expect("a commit");
    }
}

/// Goal: records are written out again after the worker was held up, for example by a long
/// compaction. Input: a worker that waits while more commits than the engine's queue has room for
/// exceed the memtable. Expected: with commits going on, the worker writes all memtables out.
#[test]
fn a_worker_catches_up_after_a_delay() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut store = open(directory.path());
    let records = records(&store);
    // Large enough that the journal is mostly locked when the worker wants it.
    let writes = (0..500_u64).map(|key| (key.to_le_bytes().to_vec(), Some(vec![7; 100])));
    let large = Batch { writes: writes.collect() };
    for _ in 0..6 {
        {
            let _held = records.tree.get_flush_lock();
            fill_memtable(&mut store);
            until(|| records.sealed_memtable_count() > 0);
            fill_memtable(&mut store);
            for number in 0..1100 {
                store.commit(&batch(number)).expect("a commit");
            }
        }
        until(|| {
            store.commit(&large).expect("a commit");
            let bytes = records.tree.active_memtable().size();
            records.sealed_memtable_count() == 0 && bytes < 16 << 20
        });
    }
}

/// Goal: an engine that the syncing thread reopened without workers gets them when there is room.
#[test]
fn workers_return_when_there_is_room() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut store = open(directory.path());
    store.commit(&batch(1)).expect("a commit");
    store.shared.revive(Workers::None).expect("nothing is missing");
    assert!(!store.shared.has_workers());
    until(|| store.has_room());
    std::thread::sleep(Duration::from_millis(60));
    assert!(store.has_room() && store.shared.has_workers());
    assert!(store.get(&1_u64.to_le_bytes()).expect("an intact store").is_some());
}

/// Stops the engine's worker by an error that is no failed sync.
fn stop_worker(store: &FjallStore, directory: &Path) {
    let (tables, away) = (directory.join("keyspaces/1/tables"), directory.join("away"));
    std::fs::rename(&tables, &away).expect("tables");
    records(store).rotate_memtable().expect("a memtable");
    until(|| {
        let persisted = store.shared.with(|engine| Ok(engine.persist()));
        matches!(persisted, Ok(Err(fjall::Error::Poisoned)))
    });
    std::fs::rename(&away, &tables).expect("the directory");
}

/// Goal: after a failed sync of the journal, no later sync succeeds before the records have been
/// written anew. Input: a worker that has stopped, once without a failed sync, once with one (a
/// file that cannot be synced stands for it). Expected: the first time, the engine is reopened. The
/// second time, sync and commit fail; the next start has all commits, in tables, and an empty
/// journal; so has the one after it.
#[test]
fn no_sync_succeeds_after_a_failed_one() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut store = open(directory.path());
    store.commit(&batch(1)).expect("a commit");
    stop_worker(&store, directory.path());
    store.sync().expect("no sync has failed");
    store.commit(&batch(2)).expect("a commit");
    std::thread::sleep(Duration::from_millis(60));
    assert!(store.has_room() && store.shared.has_workers());
    store.commit(&batch(3)).expect("a commit");
    stop_worker(&store, directory.path());
    let failing = File::open("/proc/self/status").expect("a file that cannot be synced");
    let replaced = store.shared.with(|engine| {
        engine.witness().file = failing;
        Ok(())
    });
    replaced.expect("an open engine");
    assert!(store.sync().is_err(), "a failed sync became success");
    assert!(store.commit(&batch(4)).is_err(), "the store goes on after a failed sync");
    drop(store);
    assert!(unsynced::is_marked(directory.path()));
    for _ in 0..2 {
        let store = open(directory.path());
        assert!(!unsynced::is_marked(directory.path()));
        for number in 1..4_u64 {
            let value = store.get(&number.to_le_bytes()).expect("an intact store");
            assert!(value.is_some(), "commit {number} is missing");
        }
        let journals = journal::read(directory.path(), &[]).expect("journals");
        assert!(journals.first.is_none(), "the journal was kept: {:?}", journals.first);
    }
    assert_eq!(open(directory.path()).shared.commits.lock().expect("commits").newest.sequence, 3);
}
