//! Scenes of locks that a session grants itself: the rules K6 to K10 in docs/protocol.md.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod stage;

use client::{Client, OpenMode};
use protocol::lock::{Lock, LockFamily, LockMode, LockOwner};
use protocol::times::{HEARTBEAT, SELF_STOP};
use protocol::{Errno, InodeId};
use reactor::time::{sleep, timeout};
use stage::{Stage, make, play};
use std::rc::Rc;
use std::time::Duration;

/// Longest time for the end of a session and everything that it waits for.
const END_LASTS: Duration = Duration::from_mins(2);
/// Longer than a call and its recalls take.
const SOON: Duration = Duration::from_secs(5);

fn range(inode: InodeId, owner: u64, (start, last): (u64, u64)) -> Lock {
    let (family, mode) = (LockFamily::Posix, LockMode::Exclusive);
    Lock { inode, family, owner: LockOwner(owner), start, last, mode, pid: owner as u32 }
}

/// Returns a file that node 0 has open. Its first lock has brought the right to decide about
/// further locks.
async fn file(stage: &Stage) -> InodeId {
    file_named(stage, b"a").await
}

async fn file_named(stage: &Stage, name: &'static [u8]) -> InodeId {
    let make_open = async move |client: Rc<Client>| {
        let inode = make(&client, name, 1, 100).await;
        client.open(inode, OpenMode::default()).await.unwrap();
        inode
    };
    let inode = stage.on(0, make_open).await;
    try_lock(stage, 0, range(inode, 1, (0, 0))).await.unwrap();
    inode
}

async fn try_lock(stage: &Stage, node: usize, lock: Lock) -> Result<(), Errno> {
    stage.on(node, async move |client: Rc<Client>| client.lock(lock, false).await).await
}

async fn unlock(stage: &Stage, node: usize, lock: Lock) {
    stage.on(node, async move |client: Rc<Client>| client.unlock(lock).await.unwrap()).await;
}

async fn test(stage: &Stage, node: usize, lock: Lock) -> Option<u64> {
    let found = async move |client: Rc<Client>| client.test_lock(lock).await.unwrap();
    stage.on(node, found).await.map(|lock| lock.start)
}

/// Returns the number of lock calls that a node has made.
async fn calls(stage: &Stage, node: usize) -> u64 {
    let counts = async |client: Rc<Client>| client.counts().meta.by_kind.get("lock").copied();
    stage.on(node, counts).await.unwrap_or_default()
}

/// Goal: a session that is the only user of a file's locks makes one call, for any number of
/// owners, and makes these exclude each other (K6).
#[test]
fn who_is_alone_asks_once() {
    play(2, async |stage| {
        let inode = file(&stage).await;
        for round in 0..50 {
            let at = (2 * round, 2 * round);
            try_lock(&stage, 0, range(inode, 1, at)).await.unwrap();
            assert_eq!(try_lock(&stage, 0, range(inode, 2, at)).await, Err(Errno::EAGAIN));
            assert_eq!(test(&stage, 0, range(inode, 2, at)).await, Some(at.0));
            unlock(&stage, 0, range(inode, 1, at)).await;
            try_lock(&stage, 0, range(inode, 2, at)).await.unwrap();
        }
        assert_eq!(calls(&stage, 0).await, 1);
    });
}

/// Goal: locks that a session has granted itself exclude others from their first request on, also
/// after a restart of the service, and locks that it has released are free (K6, K7).
#[test]
fn others_see_all_locks_and_no_other_ones() {
    play(2, async |stage| {
        let inode = file(&stage).await;
        // The service knows only the first lock.
        unlock(&stage, 0, range(inode, 1, (0, 0))).await;
        try_lock(&stage, 0, range(inode, 1, (7, 9))).await.unwrap();
        let mine = |at| range(inode, 1, at);
        assert_eq!(test(&stage, 1, mine((0, 20))).await, Some(7), "the other session sees no lock");
        assert_eq!(try_lock(&stage, 1, mine((8, 8))).await, Err(Errno::EAGAIN));
        assert_eq!(
            try_lock(&stage, 1, mine((0, 0))).await,
            Ok(()),
            "a released lock is still held"
        );
        stage.restart_meta();
        assert_eq!(
            try_lock(&stage, 1, mine((8, 8))).await,
            Err(Errno::EAGAIN),
            "the lock is forgotten"
        );
        assert_eq!(try_lock(&stage, 0, mine((0, 0))).await, Err(Errno::EAGAIN));
        unlock(&stage, 0, mine((7, 9))).await;
        assert_eq!(try_lock(&stage, 1, mine((8, 8))).await, Ok(()));
    });
}

/// Goal: the first lock of another session takes the right away, even if that session has not
/// tested locks before (K6).
#[test]
fn another_lock_takes_the_right_away() {
    play(2, async |stage| {
        let inode = file(&stage).await;
        try_lock(&stage, 0, range(inode, 1, (7, 9))).await.unwrap();
        assert_eq!(try_lock(&stage, 1, range(inode, 1, (7, 7))).await, Err(Errno::EAGAIN));
        let before = calls(&stage, 0).await;
        unlock(&stage, 0, range(inode, 1, (7, 9))).await;
        assert_eq!(calls(&stage, 0).await, before + 1, "the session still decides");
        assert_eq!(try_lock(&stage, 1, range(inode, 1, (7, 7))).await, Ok(()));
    });
}

/// Goal: a session that holds a lock beside another session does not get the right (K6).
#[test]
fn nobody_decides_beside_others() {
    play(2, async |stage| {
        let inode = stage.on(0, async |client| make(&client, b"a", 1, 100).await).await;
        try_lock(&stage, 0, range(inode, 1, (0, 0))).await.unwrap();
        try_lock(&stage, 1, range(inode, 1, (5, 5))).await.unwrap();
        sleep(SOON).await;
        try_lock(&stage, 0, range(inode, 1, (1, 1))).await.unwrap();
        assert_eq!(try_lock(&stage, 0, range(inode, 1, (5, 5))).await, Err(Errno::EAGAIN));
        unlock(&stage, 1, range(inode, 1, (5, 5))).await;
        assert_eq!(try_lock(&stage, 0, range(inode, 1, (5, 5))).await, Ok(()));
    });
}

/// Goal: after a restart of the service the session that decides about locks continues to do so. No
/// other session gets or sees a lock before the service knows this (K10).
#[test]
fn who_decides_goes_on_after_a_restart() {
    play(2, async |stage| {
        let inode = file(&stage).await;
        unlock(&stage, 0, range(inode, 1, (0, 0))).await;
        try_lock(&stage, 0, range(inode, 1, (7, 9))).await.unwrap();
        // The other session is back first.
        stage.network.cut(&stage.nodes[0], &stage.meta);
        stage.restart_meta();
        let look = range(inode, 1, (0, 20));
        let look = stage
            .begin(1, async move |client| client.test_lock(look).await.unwrap().map(|l| l.start));
        sleep(SOON).await;
        stage.network.heal(&stage.nodes[0], &stage.meta);
        let seen = timeout(END_LASTS, look).await.expect("it is answered").unwrap();
        assert_eq!(seen, Some(7));
        assert_eq!(try_lock(&stage, 1, range(inode, 1, (7, 7))).await, Err(Errno::EAGAIN));
        assert_eq!(try_lock(&stage, 1, range(inode, 1, (0, 0))).await, Ok(()));
    });
}

/// Goal: a client without contact grants itself nothing once it must stop itself, because another
/// client may have the right (K8, S9).
#[test]
fn nobody_decides_without_contact() {
    play(2, async |stage| {
        let inode = file(&stage).await;
        stage.network.cut(&stage.nodes[0], &stage.meta);
        sleep(SELF_STOP + HEARTBEAT).await;
        let lock = range(inode, 1, (7, 9));
        let mut granted = stage.begin(0, async move |client| client.lock(lock, false).await);
        assert!(timeout(HEARTBEAT, &mut granted).await.is_err(), "it decides without contact");
        let other = stage.begin(1, async move |client| client.lock(lock, false).await);
        let other = timeout(END_LASTS, other).await.expect("it is free").unwrap();
        assert_eq!(other, Ok(()));
        stage.network.heal(&stage.nodes[0], &stage.meta);
        let granted = timeout(END_LASTS, granted).await.expect("it is answered").unwrap();
        assert_eq!(granted, Err(Errno::EAGAIN));
    });
}

/// Goal: a client with other lock calls under way cannot use the right, because it would not know
/// which locks those calls get (K8).
#[test]
fn calls_under_way_count() {
    play(2, async |stage| {
        let inode = stage.on(0, async |client| make(&client, b"a", 1, 100).await).await;
        let locks = [range(inode, 1, (0, 0)), range(inode, 2, (5, 5)), range(inode, 3, (9, 9))];
        let begin =
            |lock| stage.begin(0, async move |client: Rc<Client>| client.lock(lock, false).await);
        for taken in locks.map(begin) {
            assert_eq!(taken.await.unwrap(), Ok(()));
        }
        let others = locks.map(|lock| Lock { owner: LockOwner(7), ..lock });
        for lock in others {
            assert_eq!(try_lock(&stage, 0, lock).await, Err(Errno::EAGAIN), "{lock:?}");
        }
    });
}

/// Goal: a wait for a lock that this client has granted itself ends when the lock is released, and
/// a wait that would close a circle of waits is refused (K9).
#[test]
fn waits_are_the_services() {
    play(1, async |stage| {
        let (a, b) = (file(&stage).await, file_named(&stage, b"b").await);
        let everything = (0, u64::MAX);
        unlock(&stage, 0, range(a, 1, everything)).await;
        unlock(&stage, 0, range(b, 1, everything)).await;
        try_lock(&stage, 0, range(a, 1, everything)).await.unwrap();
        try_lock(&stage, 0, range(b, 2, everything)).await.unwrap();
        let (of_one, of_two) = (range(b, 1, everything), range(a, 2, everything));
        let mut first = stage.begin(0, async move |client| client.lock(of_one, true).await);
        assert!(timeout(HEARTBEAT, &mut first).await.is_err(), "the call does not wait");
        let second = stage.begin(0, async move |client| client.lock(of_two, true).await);
        let second = timeout(SOON, second).await.expect("a circle of waits").unwrap();
        assert_eq!(second, Err(Errno::EDEADLK));
        unlock(&stage, 0, range(b, 2, everything)).await;
        assert_eq!(timeout(SOON, first).await.expect("it is free").unwrap(), Ok(()));
    });
}

/// Goal: locks that a dead client has granted itself are free once it is fenced (K4).
#[test]
fn locks_end_with_who_decides() {
    play(2, async |stage| {
        let inode = file(&stage).await;
        let scene = async move |client: Rc<Client>| {
            client.lock(range(inode, 2, (7, 9)), false).await.unwrap();
            client.unlock(range(inode, 2, (7, 9))).await.unwrap();
            client.lock(range(inode, 2, (5, 5)), false).await.unwrap();
        };
        stage.on(0, scene).await;
        stage.restart_node(0, None).await;
        for at in [(0, 0), (5, 5), (7, 9)] {
            let lock = range(inode, 1, at);
            let taken = stage.begin(1, async move |client| client.lock(lock, true).await);
            timeout(END_LASTS, taken).await.expect("it is free").unwrap().unwrap();
        }
    });
}
