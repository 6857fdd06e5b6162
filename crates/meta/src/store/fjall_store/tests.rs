use super::*;
use std::sync::atomic::{AtomicBool, Ordering};

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
