//! Scenes of sessions that end, and of clients that are out of contact: the rules of Sessions,
//! Slots and Targets in docs/protocol.md.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod stage;

use client::{Client, OpenMode};
use protocol::lock::{Lock, LockFamily, LockMode, LockOwner};
use protocol::times::{
    ADMISSION_LAPSE, HEARTBEAT, SELF_STOP, SESSION_DEADLINE, TARGET_DEADLINE, WRITEBACK,
};
use protocol::{Errno, InodeId};
use reactor::sim::Moment;
use reactor::time::{now, sleep, timeout};
use stage::gate::Gate;
use stage::{
    BLOCK_BYTES, DEVICE_BYTES, SETTING, Stage, WRITE, bytes_of, filled, make, play_on_one,
};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const ROOT: InodeId = InodeId::ROOT;
/// Time in which a message over a fast network arrives and is answered.
const MOMENT: Duration = Duration::from_millis(20);
/// Longest time for the end of a session and everything that it waits for.
const END_LASTS: Duration = Duration::from_mins(2);

/// Plays on nodes. The first one has the only device.
fn play<F: Future<Output = ()>>(nodes: usize, scene: impl FnOnce(Rc<Stage>, Gate) -> F) {
    let gate = Gate::new(DEVICE_BYTES, BLOCK_BYTES);
    let device = Arc::new(gate.clone());
    play_on_one(device, nodes, |_| None, |stage| scene(Rc::new(stage), gate));
}

fn lock_on(inode: InodeId, owner: u64) -> Lock {
    let (family, mode) = (LockFamily::Flock, LockMode::Exclusive);
    Lock { inode, family, owner: LockOwner(owner), start: 0, last: u64::MAX, mode, pid: 1 }
}

/// Goal: a read that ends when its client has had no contact for `SELF_STOP` returns nothing before
/// there is contact again (D1, S9).
#[test]
fn a_read_hands_nothing_over_without_contact() {
    play(1, async |stage, gate| {
        let inode = stage.on(0, async |client| make(&client, b"a", 1, 5000).await).await;
        gate.reads().hold();
        let read =
            stage.begin(0, async move |client| bytes_of(&client, inode, 0..5000).await.unwrap());
        gate.reads().until_one_waits().await;
        stage.network.cut(&stage.nodes[0], &stage.meta);
        sleep(SELF_STOP + HEARTBEAT).await;
        gate.reads().release();
        let mut read = read;
        assert!(timeout(HEARTBEAT, &mut read).await.is_err(), "bytes are returned");
        stage.network.heal(&stage.nodes[0], &stage.meta);
        assert_eq!(read.await.unwrap(), [1; 5000]);
    });
}

/// Goal: a read that began in a session that is lost since returns nothing in the next: its blocks
/// may hold another file's data (D1).
#[test]
fn a_read_of_a_lost_session_hands_nothing_over() {
    play(2, async |stage, gate| {
        let inode = stage.on(0, async |client| make(&client, b"a", 1, 5000).await).await;
        gate.reads().hold();
        let read = stage.begin(0, async move |client| bytes_of(&client, inode, 0..5000).await);
        gate.reads().until_one_waits().await;
        stage.network.cut(&stage.nodes[0], &stage.meta);
        // The call waits until that client has lost its session.
        stage.on(1, async |client| client.unlink(ROOT, b"a").await.unwrap()).await;
        stage.network.heal(&stage.nodes[0], &stage.meta);
        sleep(HEARTBEAT).await;
        gate.reads().release();
        let read = timeout(END_LASTS, read).await.expect("it ends").unwrap();
        assert_eq!(read, Err(Errno::ESTALE), "bytes of a file that is gone");
    });
}

/// Goal: a machine that wakes after longer than its session lives counts that time, and answers
/// nothing from its caches (S9, G6), neither attributes nor names.
#[test]
fn who_was_suspended_answers_nothing_from_its_cache() {
    for is_name in [false, true] {
        play(2, async |stage, _| {
            let inode = stage.on(0, async |client| make(&client, b"a", 1, 100).await).await;
            let find = async |client: Rc<Client>| client.lookup(ROOT, b"b").await.map(drop);
            assert_eq!(stage.on(1, find).await, Err(Errno::ENOENT));
            let size = async move |client: Rc<Client>| {
                let attr = if is_name {
                    client.lookup(ROOT, b"a").await
                } else {
                    client.attr(inode).await
                };
                attr.map(|attr| attr.size)
            };
            assert_eq!(stage.on(1, size).await, Ok(100));
            stage.nodes[1].suspend();
            let grow = async move |client: Rc<Client>| {
                client.unlink(ROOT, b"a").await.unwrap();
                make(&client, b"a", 2, 200).await;
                make(&client, b"b", 2, 200).await
            };
            // The call waits until the other client has lost its session.
            stage.on(0, grow).await;
            // The call is made before the machine wakes, so that nothing else runs first.
            let found = stage.begin(1, find);
            let seen = stage.begin(1, size);
            stage.nodes[1].wake();
            assert_ne!(found.await.unwrap(), Err(Errno::ENOENT), "the file was made meanwhile");
            let seen = seen.await.unwrap();
            assert_ne!(seen, Ok(100), "a machine wakes with what it had cached");
        });
    }
}

/// How the metadata service and the target with a dead client's blocks reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// Normally: the client is fenced by a message.
    Always,
    /// Not after the client is cut off: it is fenced by lapse.
    Never,
    /// After the client is cut off too; earlier messages of the service arrive just before
    /// admissions lapse.
    Late,
}

/// A client locks a file, and one of its writes is stuck on the way to the target. The client is
/// cut off from the metadata service, and another one waits for the lock. After the lock is
/// granted, the write arrives.
async fn a_write_comes_after_the_lock_went(stage: Rc<Stage>, gate: Gate, reach: Reach) {
    let inode = stage.on(1, async |client| make(&client, b"a", 1, 5000).await).await;
    // The target's first admission is long ago.
    sleep(ADMISSION_LAPSE * 2).await;
    let network = &stage.network;
    let (meta, target, writer) = (&stage.meta, &stage.nodes[0], &stage.nodes[1]);
    let lock = async move |client: Rc<Client>| {
        client.lock(lock_on(inode, 1), false).await.unwrap();
        client.open(inode, WRITE).await.unwrap().0
    };
    let handle = stage.on(1, lock).await;
    let write = stage.begin(1, async move |client: Rc<Client>| {
        sleep(MOMENT).await;
        client.write(&handle, 0, filled(9, 4096), false).await.unwrap();
        let _ = client.flush(&handle).await;
    });
    network.hold_back_sender(writer, target, 2_000).await;
    let wait = stage.begin(2, async move |client: Rc<Client>| {
        client.lock(lock_on(inode, 2), true).await.unwrap();
    });
    sleep(MOMENT).await;
    let written = gate.writes().asked();
    network.cut(writer, meta);
    match reach {
        Reach::Always => {}
        Reach::Never => network.cut(target, meta),
        Reach::Late => {
            network.hold_back(target, meta);
            sleep(ADMISSION_LAPSE * 5 / 6).await;
            network.let_go(target, meta);
            sleep(Duration::from_millis(1)).await;
            network.cut(target, meta);
        }
    }
    timeout(END_LASTS, wait).await.expect("the lock goes").unwrap();
    network.let_go(writer, target);
    sleep(MOMENT).await;
    assert_eq!(gate.writes().asked(), written, "{reach:?}: a write of a dead client");
    network.heal_all();
    timeout(END_LASTS, write).await.expect("it ends").unwrap();
}

/// Goal: a client that gets the lock of a dead client sees no later write of that client. The
/// service fences the dead client first, by a message or, if its target is out of reach, by lapse
/// (S3, S4, S5, K4, G2, G4, G5).
#[test]
fn who_gets_the_lock_of_a_dead_client_sees_no_write_of_it() {
    for reach in [Reach::Always, Reach::Never, Reach::Late] {
        play(3, async |stage, gate| a_write_comes_after_the_lock_went(stage, gate, reach).await);
    }
}

/// Goal: a change that was sent in a session that is lost since is not sent again in the next (L5).
#[test]
fn a_change_of_a_lost_session_is_not_repeated_in_the_next() {
    play(3, async |stage, _| {
        let network = &stage.network;
        let (meta, node) = (&stage.meta, &stage.nodes[1]);
        // The call arrives; the answer does not.
        network.cut_one_way(meta, node);
        let create = stage
            .begin(1, async |client| client.create(ROOT, b"a", SETTING, WRITE).await.map(drop));
        sleep(HEARTBEAT).await;
        network.cut(meta, node);
        // The call waits until that client has lost its session.
        stage.on(2, async |client| client.unlink(ROOT, b"a").await.unwrap()).await;
        network.heal(meta, node);
        let created = timeout(END_LASTS, create).await.expect("it ends").unwrap();
        assert_eq!(created, Err(Errno::EIO));
        let found = stage.on(2, async |client| client.lookup(ROOT, b"a").await.map(drop)).await;
        assert_eq!(found, Err(Errno::ENOENT), "the change was carried out again");
    });
}

/// Goal: a file that is locked, and was read under the lock, is not written through its handles
/// after its session is lost (K5), nor is a file with uncommitted data (S10). Another file is.
#[test]
fn handles_of_locked_files_end_with_their_session() {
    play(1, async |stage, _| {
        let scene = async |client: Rc<Client>| {
            let mut handles = Vec::new();
            for name in [b"a", b"b", b"c"] {
                let inode = make(&client, name, 1, 5000).await;
                handles.push(client.open(inode, WRITE).await.unwrap().0);
            }
            client.lock(lock_on(handles[0].inode(), 1), false).await.unwrap();
            handles
        };
        let handles = Rc::new(stage.on(0, scene).await);
        stage.network.cut(&stage.nodes[0], &stage.meta);
        let dirty = Rc::clone(&handles);
        let write = async move |client: Rc<Client>| {
            client.write(&dirty[1], 0, filled(2, 100), false).await.unwrap();
        };
        stage.on(0, write).await;
        sleep(SESSION_DEADLINE + ADMISSION_LAPSE + HEARTBEAT).await;
        stage.network.heal(&stage.nodes[0], &stage.meta);
        sleep(HEARTBEAT * 2).await;
        let write = async move |client: Rc<Client>| {
            let mut results = Vec::new();
            for handle in handles.iter() {
                results.push(client.write(handle, 0, filled(3, 100), false).await.map(drop));
            }
            results
        };
        let written = stage.on(0, write).await;
        assert_eq!(written, [Err(Errno::EIO), Err(Errno::EIO), Ok(())]);
    });
}

/// Goal: a session that does not answer a recall is ended, although its process lives and sends
/// heartbeats. Others get its rights, and the client continues with another session (S8, R7).
#[test]
fn who_does_not_answer_a_recall_gives_way() {
    play(3, async |stage, _| {
        let hold = async |client: Rc<Client>| client.hold_names(ROOT).await.unwrap();
        let held = stage.on(1, hold).await;
        let session = async |client: Rc<Client>| client.session_id();
        let before = stage.on(1, session).await;
        let begun = now();
        let create = stage.begin(2, async |client| make(&client, b"a", 1, 100).await);
        timeout(END_LASTS, create).await.expect("others wait for ever").unwrap();
        let waited = begun.elapsed();
        assert!(waited >= SESSION_DEADLINE, "its right was taken after {waited:?}");
        sleep(HEARTBEAT * 2).await;
        assert_ne!(stage.on(1, session).await, before, "the session still lives");
        stage.nodes[1].spawn(async move { drop(held) }).await.unwrap();
    });
}

/// Goal: after a restart nothing is changed before all sessions have reclaimed what they hold or
/// have ended: data that one client has written is committed before another truncates the file
/// (S11, S12).
#[test]
fn changes_wait_until_all_have_reclaimed() {
    play(3, async |stage, _| {
        let write = async |client: Rc<Client>| {
            let (handle, _) = client.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
            client.write(&handle, 0, filled(7, 5000), false).await.unwrap();
            handle
        };
        let handle = stage.on(1, write).await;
        let inode = handle.inode();
        stage.network.cut(&stage.nodes[1], &stage.meta);
        stage.restart_meta();
        let cut = stage.begin(2, async move |client: Rc<Client>| {
            let size = Some(10_000);
            let changes = protocol::attr::AttrChanges { size, ..Default::default() };
            client.truncate(inode, changes).await.unwrap();
        });
        sleep(HEARTBEAT * 3).await;
        stage.network.heal(&stage.nodes[1], &stage.meta);
        timeout(END_LASTS, cut).await.expect("it ends").unwrap();
        stage.on(1, async move |client| client.release(&handle).await.unwrap()).await;
        let read = async move |client: Rc<Client>| bytes_of(&client, inode, 0..5000).await;
        assert_eq!(stage.on(2, read).await.unwrap(), [7; 5000], "written data is lost");
    });
}

/// Goal: after a restart a session that never comes back delays others only until it has ended
/// (S11).
#[test]
fn a_session_that_does_not_come_back_ends_the_grace() {
    play(3, async |stage, _| {
        stage.network.isolate(&stage.nodes[1]);
        stage.restart_meta();
        let create = stage.begin(2, async |client| make(&client, b"a", 1, 100).await);
        timeout(END_LASTS, create).await.expect("others wait for ever").unwrap();
        let mode = OpenMode::default();
        let open = async move |client: Rc<Client>| {
            let attr = client.lookup(ROOT, b"a").await.unwrap();
            client.open(attr.inode, mode).await.map(drop)
        };
        assert_eq!(stage.on(0, open).await, Ok(()));
        sleep(WRITEBACK + TARGET_DEADLINE).await;
    });
}

/// A client that has locked a file has a write under way at a device that does not answer. The
/// client is cut off.
async fn strand_a_writer(stage: &Rc<Stage>, gate: &Gate) -> InodeId {
    let inode = stage.on(1, async |client| make(&client, b"a", 1, 5000).await).await;
    let lock = async move |client: Rc<Client>| {
        client.lock(lock_on(inode, 1), false).await.unwrap();
        client.open(inode, WRITE).await.unwrap().0
    };
    let handle = stage.on(1, lock).await;
    gate.writes().hold();
    drop(stage.begin(1, async move |client: Rc<Client>| {
        client.write(&handle, 0, filled(9, 4096), false).await.unwrap();
        let _ = client.flush(&handle).await;
    }));
    gate.writes().until_one_waits().await;
    stage.network.cut(&stage.nodes[1], &stage.meta);
    inode
}

/// Goal: while a write of a dead client is under way at a device, no other client gets the dead
/// client's rights: the fence is answered only after that write has ended (I5, S3).
#[test]
fn a_fence_waits_for_what_is_under_way() {
    play(3, async |stage, gate| {
        let inode = strand_a_writer(&stage, &gate).await;
        let mut wait = stage.begin(2, async move |client: Rc<Client>| {
            client.lock(lock_on(inode, 2), true).await.unwrap();
        });
        let waited = timeout(SESSION_DEADLINE * 2, &mut wait).await;
        assert!(waited.is_err(), "the lock is granted while a write of its holder is under way");
        gate.writes().release();
        timeout(END_LASTS, wait).await.expect("the lock goes").unwrap();
    });
}

/// Goal: after a dead client was fenced by lapse, the target admits no new client before the
/// commands that began under lapsed admissions have ended (I5).
#[test]
fn an_admission_waits_for_what_began_under_lapsed_ones() {
    play(3, async |stage, gate| {
        let inode = strand_a_writer(&stage, &gate).await;
        stage.network.cut(&stage.nodes[0], &stage.meta);
        let wait = stage.begin(2, async move |client: Rc<Client>| {
            client.lock(lock_on(inode, 2), true).await.unwrap();
        });
        timeout(END_LASTS, wait).await.expect("the lock goes").unwrap();
        stage.network.heal(&stage.nodes[0], &stage.meta);
        sleep(HEARTBEAT).await;
        let before = gate.writes().asked();
        let write = stage.begin(2, async |client: Rc<Client>| {
            let (handle, _) = client.create(ROOT, b"b", SETTING, WRITE).await.unwrap();
            client.write(&handle, 0, filled(2, 4096), false).await.unwrap();
            let _ = client.release(&handle).await;
        });
        sleep(TARGET_DEADLINE * 2).await;
        assert_eq!(gate.writes().asked(), before, "a write beside one of a dead client");
        gate.writes().release();
        timeout(END_LASTS, write).await.expect("it ends").unwrap();
    });
}

/// Goal: a session that is being fenced is not served any more. Its client learns that from its
/// next call and continues with another session, although the fence has not ended (S3).
#[test]
fn who_is_being_fenced_is_not_served() {
    play(3, async |stage, gate| {
        let session = async |client: Rc<Client>| client.session_id();
        let before = stage.on(1, session).await;
        let hold = async |client: Rc<Client>| {
            make(&client, b"a", 1, 100).await;
            client.hold_names(ROOT).await.unwrap()
        };
        let held = stage.on(1, hold).await;
        gate.writes().hold();
        drop(stage.begin(1, async |client: Rc<Client>| {
            let inode = client.lookup(ROOT, b"a").await.unwrap().inode;
            let (handle, _) = client.open(inode, WRITE).await.unwrap();
            client.write(&handle, 0, filled(9, 4096), false).await.unwrap();
            let _ = client.flush(&handle).await;
        }));
        gate.writes().until_one_waits().await;
        let create = stage.begin(2, async |client| {
            let (handle, _) = client.create(ROOT, b"b", SETTING, WRITE).await.unwrap();
            client.release(&handle).await.unwrap();
        });
        sleep(SESSION_DEADLINE + HEARTBEAT * 3).await;
        assert_ne!(stage.on(1, session).await, before, "the session is still served");
        gate.writes().release();
        timeout(END_LASTS, create).await.expect("it ends").unwrap();
        stage.nodes[1].spawn(async move { drop(held) }).await.unwrap();
    });
}

/// Goal: a write that began in a session that is lost since is not part of the next: it fails
/// (S10).
#[test]
fn a_write_of_a_lost_session_is_not_placed_in_the_next() {
    play(2, async |stage, _| {
        let create =
            async |client: Rc<Client>| client.create(ROOT, b"a", SETTING, WRITE).await.unwrap().0;
        let handle = stage.on(1, create).await;
        stage.network.cut(&stage.nodes[1], &stage.meta);
        // The write waits for space.
        let write = stage.begin(1, async move |client: Rc<Client>| {
            client.write(&handle, 0, filled(1, 5000), false).await
        });
        sleep(SESSION_DEADLINE + HEARTBEAT * 3).await;
        stage.network.heal(&stage.nodes[1], &stage.meta);
        let written = timeout(END_LASTS, write).await.expect("it ends").unwrap();
        assert_eq!(written, Err(Errno::EIO));
    });
}

/// Goal: after a metadata service did not run for longer than sessions may be silent, it ends no
/// session for that silence, because their messages may be waiting. This holds for living sessions
/// and for those that are just resumed (G7).
#[test]
fn a_pause_of_the_service_ends_no_session() {
    for answers in 0..12 {
        play(2, async |stage, _| {
            let session = async |client: Rc<Client>| client.session_id();
            let before = stage.on(1, session).await;
            let (meta, node) = (&stage.meta, &stage.nodes[1]);
            if answers > 0 {
                // The client connects again, and after this number of answers its messages are
                // stuck.
                stage.network.reset(node, meta);
                for _ in 0..answers {
                    let answer = Moment::Send { from: meta, to: node, bytes_min: 1 };
                    stage.network.moment(answer).await;
                }
                stage.network.cut_one_way(node, meta);
                sleep(MOMENT).await;
            }
            meta.suspend();
            sleep(SESSION_DEADLINE * 2).await;
            meta.wake();
            stage.network.heal(node, meta);
            sleep(HEARTBEAT * 4).await;
            let after = stage.on(1, session).await;
            assert_eq!(after, before, "ended {answers} answers after a reset");
        });
    }
}
