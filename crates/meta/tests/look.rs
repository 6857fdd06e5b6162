//! A check of the records while changes go on: it reads a snapshot of the store.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use meta::check::store::check_records;
use meta::store::{Batch, Direction, Error, FjallStore, Opening, Scan, Store};
use meta::tree::{Boot, Context, Core};
use protocol::client::{Answer, Call, ChangeCall, Creation, OpenTold};
use protocol::{HostId, InodeId, Rights, SessionId, Timestamp};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use tempfile::TempDir;
use uuid::Uuid;

const BOOT: Uuid = Uuid::from_u128(1);

fn directory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn open(directory: &TempDir) -> FjallStore {
    FjallStore::open(directory.path(), Opening { boot: BOOT, accept_loss: false }).unwrap()
}

fn all(store: &dyn Store) -> Vec<(Vec<u8>, Vec<u8>)> {
    let scan = Scan { prefix: b"", from: None, direction: Direction::Forward, limit: 100_000 };
    store.scan(scan).unwrap()
}

/// Goal: a snapshot shows the records of its moment, regardless of later commits, takes no commit,
/// and does not hinder later ones.
#[test]
fn a_look_shows_one_moment() {
    let directory = directory();
    let mut store = open(&directory);
    let batch = |key: &str, value: Option<&str>| Batch {
        writes: vec![(key.as_bytes().to_vec(), value.map(|value| value.as_bytes().to_vec()))],
    };
    store.commit(&batch("a", Some("1"))).unwrap();
    store.commit(&batch("b", Some("2"))).unwrap();
    let mut look = store.snapshot().unwrap().unwrap();
    let before = all(&store);
    store.commit(&batch("a", Some("3"))).unwrap();
    store.commit(&batch("b", None)).unwrap();
    store.commit(&batch("c", Some("4"))).unwrap();
    assert_eq!(all(&*look), before);
    assert_eq!(look.get(b"a").unwrap(), Some(b"1".to_vec()));
    assert_eq!(look.get(b"b").unwrap(), Some(b"2".to_vec()));
    assert_eq!(look.get(b"c").unwrap(), None);
    assert!(matches!(look.commit(&batch("d", None)), Err(Error::Poisoned)));
    assert_eq!(store.get(b"a").unwrap(), Some(b"3".to_vec()));
    drop(look);
    drop(store);
    assert_eq!(open(&directory).get(b"b").unwrap(), None);
}

fn call(core: &mut Core, session: SessionId, call: &Call) -> Option<Answer> {
    let openers = |_| Vec::new();
    let context = Context { session, now: Timestamp(7), openers: &openers };
    core.execute(&context, call).ok().map(|outcome| outcome.answer)
}

/// Creates, renames, links and removes files, and commits each change by itself.
fn change(core: &mut Core, session: SessionId, round: u64) {
    let name = |number: u64| format!("file{}", number % 97).into_bytes();
    let parent = InodeId::ROOT;
    let create = ChangeCall::Create {
        parent,
        name: name(round),
        creation: if round.is_multiple_of(3) { Creation::Directory } else { Creation::File },
        mode: 0o640,
        uid: 5,
        gid: 6,
        rights: Rights::NONE,
    };
    call(core, session, &Call::Change(create));
    core.flush().unwrap();
    let victim = name(round.wrapping_mul(31));
    let remove = match round % 2 {
        0 => ChangeCall::Unlink { parent, name: victim, told: OpenTold::OfAny },
        _ => ChangeCall::Rmdir { parent, name: victim },
    };
    call(core, session, &Call::Change(remove));
    core.flush().unwrap();
    while core.reclaim_step(100).unwrap() {}
    core.flush().unwrap();
}

/// Goal: checks beside a stream of changes find nothing, though each takes longer than many
/// changes.
#[test]
fn changes_during_a_look_are_no_findings() {
    let directory = directory();
    let boot = Boot {
        boot: BOOT,
        file_system: Uuid::from_u128(2),
        now: Timestamp(0),
        root: (0o755, 0, 0),
    };
    let (mut core, _) = Core::open(Box::new(open(&directory)), &boot).unwrap();
    let (session, _) = core.create_session("node", HostId([1; 16])).unwrap();
    core.flush().unwrap();
    let (looks, taken) = mpsc::sync_channel::<Box<dyn Store>>(0);
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&is_over);
    let checker = std::thread::spawn(move || {
        let mut checks = 0;
        for look in taken {
            let checked = check_records(look).unwrap();
            assert_eq!(checked.findings, vec![], "check {checks}");
            checks += 1;
            if checks == 40 {
                break;
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    let (mut round, mut look) = (0, core.snapshot().unwrap());
    while !is_over.load(Ordering::Relaxed) {
        change(&mut core, session, round);
        round += 1;
        if let Some(due) = look.take() {
            match looks.try_send(due) {
                Ok(()) => {}
                Err(mpsc::TrySendError::Full(due)) => look = Some(due),
                Err(mpsc::TrySendError::Disconnected(_)) => break,
            }
        } else {
            look = core.snapshot().unwrap();
        }
    }
    checker.join().unwrap();
    assert!(round > 100, "only {round} changes");
}
