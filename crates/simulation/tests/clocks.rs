//! Clocks with unexpected jumps: wall clocks that are set, and machines that are suspended.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod stage;

use client::{OpenMode, Setting};
use protocol::InodeId;
use reactor::time::{sleep, timeout};
use reactor::{Buffer, Chunk};
use stage::play;
use std::time::Duration;

const ROOT: InodeId = InodeId::ROOT;
const SETTING: Setting = Setting { mode: 0o644, uid: 0, gid: 0 };
const WRITE: OpenMode = OpenMode { write: true, append: false, sync: false };
const APPEND: OpenMode = OpenMode { append: true, ..WRITE };

/// Longer than any wait for a session, shorter than the deadline of a call without an answer.
const PATIENCE: Duration = Duration::from_secs(15);

fn bytes(byte: u8, length: usize) -> Chunk {
    Chunk::from(Buffer::copy_from(&vec![byte; length]))
}

/// Goal: rights that are granted after a restart replace those from before it, whether the wall
/// clock of the metadata service has been set forward or back meanwhile. Two nodes that append to
/// one file in turn do not wait for a client that mistakes the new grant for an old one.
#[test]
fn grants_count_after_the_wall_clock_was_set() {
    for seconds in [-86_400, -1, 1, 86_400] {
        play(2, async |stage| {
            let inode = stage
                .on(0, async move |client| {
                    let (handle, attr) = client.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
                    client.write(&handle, 0, bytes(1, 5000), false).await.unwrap();
                    client.fsync(attr.inode).await.unwrap();
                    client.write(&handle, 0, bytes(2, 5000), false).await.unwrap();
                    // The file is open, with the right to write, when the service restarts.
                    std::mem::forget(handle);
                    attr.inode
                })
                .await;
            stage.meta.step_wall_clock(seconds);
            stage.restart_meta();
            sleep(Duration::from_secs(5)).await;
            let writing = stage.on(1, async move |client| {
                let (handle, _) = client.open(inode, APPEND).await.unwrap();
                client.write(&handle, 0, bytes(3, 100), false).await.unwrap();
                client.release(&handle).await.unwrap();
            });
            let written = timeout(PATIENCE, writing).await;
            assert!(written.is_ok(), "another writer hangs after the clock was set by {seconds} s");
            let writing = stage.on(0, async move |client| {
                let (handle, _) = client.open(inode, APPEND).await.unwrap();
                client.write(&handle, 0, bytes(4, 100), false).await.unwrap();
                client.release(&handle).await.unwrap();
            });
            let written = timeout(PATIENCE, writing).await;
            assert!(written.is_ok(), "a writer hangs after the clock was set by {seconds} s");
        });
    }
}

/// Goal: a machine that was suspended for longer than its session lives does not answer from its
/// caches when it wakes: its first answer is what another node has written meanwhile.
#[test]
fn a_suspended_machine_wakes_without_its_caches() {
    play(2, async |stage| {
        let inode = stage
            .on(0, async |client| {
                let (handle, attr) = client.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
                client.write(&handle, 0, bytes(1, 100), false).await.unwrap();
                client.release(&handle).await.unwrap();
                attr.inode
            })
            .await;
        let size = stage.on(1, async move |client| client.lookup(ROOT, b"a").await.unwrap().size);
        assert_eq!(size.await, 100);
        stage.nodes[1].pause();
        let write = stage.on(0, async move |client| {
            let (handle, _) = client.open(inode, WRITE).await.unwrap();
            client.write(&handle, 0, bytes(2, 200), false).await.unwrap();
            client.release(&handle).await.unwrap();
        });
        write.await;
        sleep(Duration::from_mins(1)).await;
        // The call is made before the machine wakes, so that nothing else runs first.
        let seen =
            stage.begin(1, async move |client| client.lookup(ROOT, b"a").await.map(|a| a.size));
        stage.nodes[1].resume();
        let seen = seen.await.unwrap();
        assert!(seen != Ok(100), "a suspended machine wakes with what it had cached");
    });
}

/// Goal: admissions lapse while the target's machine is suspended (G6).
#[test]
fn admissions_lapse_while_their_machine_is_suspended() {
    use std::rc::Rc;
    use target::{AdmissionMode, Admissions, Refusal};
    let mut simulation = reactor::sim::Simulation::new(1);
    let node = simulation.node("target");
    let whole = async move {
        let host = nvme::HostId([1; 16]);
        let lapse = Duration::from_secs(30);
        let begin = node.spawn(async move {
            let admissions = Rc::new(Admissions::new(AdmissionMode::Controlled));
            admissions.admit(host, 1, admissions.now() + lapse).await.unwrap();
            admissions
        });
        let admissions = begin.await.unwrap();
        node.suspend();
        sleep(lapse).await;
        node.wake();
        let checked = node.spawn(async move { admissions.check(host) });
        assert_eq!(checked.await.unwrap(), Err(Refusal::Lapsed));
    };
    simulation.run(whole).unwrap();
}
