//! Scenes of file locks as points of synchronisation: the rules of Locks in docs/protocol.md.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod stage;

use client::{Change, Client, Dropping, OpenMode};
use protocol::lock::{Lock, LockFamily, LockMode, LockOwner};
use protocol::times::HEARTBEAT;
use protocol::{Errno, InodeId};
use reactor::time::{sleep, timeout};
use stage::gate::Gate;
use stage::{
    BLOCK_BYTES, Changes, DEVICE_BYTES, Stage, WRITE, bytes_of, filled, make, play, play_on_one,
};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Longer than any wait for a free lock.
const PATIENCE: Duration = Duration::from_secs(30);

fn lock_on(inode: InodeId, mode: LockMode) -> Lock {
    let (family, owner) = (LockFamily::Posix, LockOwner(1));
    Lock { inode, family, owner, start: 0, last: u64::MAX, mode, pid: 1 }
}

/// Takes a lock as soon as it is free.
async fn lock(stage: &Stage, node: usize, inode: InodeId, mode: LockMode) {
    let lock = lock_on(inode, mode);
    let taken = stage.on(node, async move |client: Rc<Client>| client.lock(lock, true).await);
    timeout(PATIENCE, taken).await.expect("the lock is free").unwrap();
}

async fn try_lock(stage: &Stage, node: usize, inode: InodeId) -> Result<(), Errno> {
    let lock = lock_on(inode, LockMode::Exclusive);
    stage.on(node, async move |client: Rc<Client>| client.lock(lock, false).await).await
}

async fn unlock(stage: &Stage, node: usize, inode: InodeId) {
    let lock = lock_on(inode, LockMode::Exclusive);
    stage.on(node, async move |client: Rc<Client>| client.unlock(lock).await.unwrap()).await;
}

/// Goal: a write under one lock is visible under the next, through a handle that stays open,
/// whether the lock was released or weakened to a shared one (K2).
#[test]
fn what_is_written_under_a_lock_is_seen_under_the_next() {
    for is_downgrade in [false, true] {
        play(2, async |stage| {
            let inode = stage.on(0, async |client| make(&client, b"a", 1, 100).await).await;
            lock(&stage, 0, inode, LockMode::Exclusive).await;
            let write = async move |client: Rc<Client>| {
                let (handle, _) = client.open(inode, WRITE).await.unwrap();
                client.write(&handle, 0, filled(2, 100), false).await.unwrap();
                handle
            };
            let handle = stage.on(0, write).await;
            if is_downgrade {
                lock(&stage, 0, inode, LockMode::Shared).await;
            } else {
                unlock(&stage, 0, inode).await;
            }
            lock(&stage, 1, inode, LockMode::Shared).await;
            let read = async move |client: Rc<Client>| bytes_of(&client, inode, 0..100).await;
            assert_eq!(stage.on(1, read).await.unwrap(), [2; 100]);
            stage.on(0, async move |client| client.release(&handle).await.unwrap()).await;
        });
    }
}

/// Goal: a lock excludes others after a restart of the service too, and a released lock is still
/// free after a restart (K1).
#[test]
fn locks_outlive_the_service_and_unlocked_ones_do_not() {
    play(2, async |stage| {
        let inode = stage.on(0, async |client| make(&client, b"a", 1, 100).await).await;
        lock(&stage, 0, inode, LockMode::Exclusive).await;
        assert_eq!(try_lock(&stage, 1, inode).await, Err(Errno::EAGAIN));
        stage.restart_meta();
        assert_eq!(try_lock(&stage, 1, inode).await, Err(Errno::EAGAIN), "the lock is forgotten");
        unlock(&stage, 0, inode).await;
        stage.restart_meta();
        assert_eq!(try_lock(&stage, 1, inode).await, Ok(()), "its end is forgotten");
    });
}

/// Goal: a lock is granted only after pages from before another's change are dropped (K3). A client
/// that keeps such pages is asked to drop them, and has done so, before the grant.
#[test]
fn a_lock_waits_until_stale_pages_are_dropped() {
    let dropped: Rc<Cell<u32>> = Rc::default();
    let counted = Rc::clone(&dropped);
    let changes = move |node| -> Option<Changes> {
        let counted = Rc::clone(&counted);
        let note = move |change| {
            let Change::Pages(_, done) = change else { return };
            let counted = Rc::clone(&counted);
            drop(reactor::spawn(async move {
                sleep(HEARTBEAT).await;
                counted.set(counted.get() + 1);
                let _ = done.send(Dropping::Done).await;
            }));
        };
        (node == 0).then(|| Box::new(note) as Changes)
    };
    let device = Arc::new(Gate::new(DEVICE_BYTES, BLOCK_BYTES));
    play_on_one(device, 2, changes, async |stage| {
        let inode = stage.on(1, async |client| make(&client, b"a", 1, 100).await).await;
        let read = async move |client: Rc<Client>| {
            client.open(inode, OpenMode::default()).await.unwrap();
            bytes_of(&client, inode, 0..100).await.unwrap()
        };
        assert_eq!(stage.on(0, read).await, [1; 100]);
        lock(&stage, 1, inode, LockMode::Exclusive).await;
        let write = async move |client: Rc<Client>| {
            let (handle, _) = client.open(inode, WRITE).await.unwrap();
            client.write(&handle, 0, filled(2, 100), false).await.unwrap();
            client.lock(lock_on(inode, LockMode::Shared), true).await.unwrap();
        };
        stage.on(1, write).await;
        assert_eq!(dropped.get(), 0, "the recall was answered before");
        lock(&stage, 0, inode, LockMode::Shared).await;
        assert_eq!(dropped.get(), 1, "the lock came before stale pages were dropped");
        lock(&stage, 0, inode, LockMode::Shared).await;
        assert_eq!(dropped.get(), 1, "no page is stale");
    });
}

/// Goal: the locks of a session that has ended are free (K4, S7).
#[test]
fn the_locks_of_an_ended_session_are_free() {
    play(2, async |stage| {
        let inode = stage.on(0, async |client| make(&client, b"a", 1, 100).await).await;
        lock(&stage, 0, inode, LockMode::Exclusive).await;
        stage.on(0, async |client| client.end().await.unwrap()).await;
        lock(&stage, 1, inode, LockMode::Exclusive).await;
    });
}

/// Goal: any number of waits leaves room for the call that ends them: the holder's unlock, and
/// everything else that this client changes.
#[test]
fn waits_leave_room_for_the_unlock() {
    const WAITS: u64 = 300;
    play(1, async |stage| {
        let inode = stage.on(0, async |client| make(&client, b"a", 1, 100).await).await;
        let of = move |owner| Lock {
            owner: LockOwner(owner),
            pid: owner as u32,
            ..lock_on(inode, LockMode::Exclusive)
        };
        lock(&stage, 0, inode, LockMode::Exclusive).await;
        let begin = |owner| {
            stage.begin(0, async move |client| {
                client.lock(of(owner), true).await?;
                client.unlock(of(owner)).await
            })
        };
        let mut waits: Vec<_> = (2..2 + WAITS).map(begin).collect();
        sleep(HEARTBEAT).await;
        // The last one is interrupted.
        let last = waits.pop().unwrap();
        let cancel = async move |client: Rc<Client>| {
            let owner = LockOwner(1 + WAITS);
            client.cancel_lock(inode, LockFamily::Posix, owner).await
        };
        timeout(HEARTBEAT, stage.on(0, cancel)).await.expect("it is prompt").unwrap();
        let ended = timeout(HEARTBEAT, last).await.expect("the wait ends").unwrap();
        assert_eq!(ended, Err(Errno::EINTR));
        let made = stage.on(0, async |client| make(&client, b"b", 1, 100).await);
        timeout(HEARTBEAT, made).await.expect("changes have room");
        timeout(HEARTBEAT, unlock(&stage, 0, inode)).await.expect("the unlock has room");
        for wait in waits {
            timeout(PATIENCE, wait).await.expect("the lock is free").unwrap().unwrap();
        }
    });
}

/// Goal: a wait for which there is no room ends when its lock is free, whatever the others wait
/// for: the holder of the lock that the others want may be the one that waits.
#[test]
fn a_holder_waits_beside_any_number_of_waits() {
    const WAITS: u64 = 300;
    play(1, async |stage| {
        let scene = async |client: Rc<Client>| {
            (make(&client, b"a", 1, 100).await, make(&client, b"b", 1, 100).await)
        };
        let (a, b) = stage.on(0, scene).await;
        let of = |inode, owner| Lock {
            owner: LockOwner(owner),
            pid: owner as u32,
            ..lock_on(inode, LockMode::Exclusive)
        };
        lock(&stage, 0, a, LockMode::Exclusive).await;
        let taken = stage.on(0, async move |client: Rc<Client>| client.lock(of(b, 2), true).await);
        taken.await.unwrap();
        let begin =
            |owner| stage.begin(0, async move |client| client.lock(of(a, owner), true).await);
        let waits: Vec<_> = (3..3 + WAITS).map(begin).collect();
        sleep(HEARTBEAT).await;
        let holder = stage.begin(0, async move |client| client.lock(of(b, 1), true).await);
        sleep(HEARTBEAT).await;
        stage.on(0, async move |client| client.unlock(of(b, 2)).await.unwrap()).await;
        timeout(PATIENCE, holder).await.expect("the lock is free").unwrap().unwrap();
        drop(waits);
    });
}
