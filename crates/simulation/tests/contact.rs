//! Scenes of nodes that do not answer: reads of their data fail at once after the first deadline,
//! and succeed soon after the nodes are back. A short interruption fails nothing.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod stage;

use client::{Client, OpenMode, Setting};
use protocol::{Errno, InodeId};
use reactor::time::{Instant, now, sleep};
use reactor::{Buffer, Chunk};
use stage::{Stage, play};
use std::rc::Rc;
use std::time::Duration;

const ROOT: InodeId = InodeId::ROOT;
const SETTING: Setting = Setting { mode: 0o644, uid: 0, gid: 0 };
const WRITE: OpenMode = OpenMode { write: true, append: false, sync: false };
/// Longest time that counts as "at once".
const AT_ONCE: Duration = Duration::from_secs(1);
/// Longest time that counts as "soon".
const SOON: Duration = Duration::from_secs(5);
/// The longest that the first read of a node that does not answer may take.
const FIRST_MAX: Duration = Duration::from_secs(41);

fn bytes(byte: u8) -> Chunk {
    Chunk::from(Buffer::copy_from(&[byte; 5000]))
}

/// Writes files on the first node. Returns their inodes.
async fn written(stage: &Stage, names: &'static [&'static [u8]]) -> Vec<InodeId> {
    let writing = async move |client: Rc<Client>| {
        let mut inodes = Vec::new();
        for name in names {
            let (handle, attr) = client.create(ROOT, name, SETTING, WRITE).await.unwrap();
            client.write(&handle, 0, bytes(1), false).await.unwrap();
            client.fsync_file(&handle).await.unwrap();
            client.release(&handle).await.unwrap();
            inodes.push(attr.inode);
        }
        inodes
    };
    stage.on(0, writing).await
}

/// Reads a file on the second node. Returns the result and the duration.
async fn read(stage: &Stage, inode: InodeId) -> (Result<(), Errno>, Duration) {
    let begun: Instant = now();
    let reading = async move |client: Rc<Client>| {
        let chunks = client.read(inode, 0, 5000, None).await?;
        assert!(chunks.iter().all(|chunk| chunk.to_bytes().iter().all(|byte| *byte == 1)));
        Ok(())
    };
    (stage.on(1, reading).await, begun.elapsed())
}

/// Reads all files: the first read may take its time, the others must fail at once.
async fn fail(stage: &Stage, inodes: &[InodeId]) {
    let (first, took) = read(stage, inodes[0]).await;
    assert_eq!(first, Err(Errno::EIO));
    assert!(took < FIRST_MAX, "the first read took {took:?}");
    for inode in inodes.iter().chain(inodes) {
        let (next, took) = read(stage, *inode).await;
        assert_eq!(next, Err(Errno::EIO));
        assert!(took < AT_ONCE, "a read of {inode} took {took:?} after the first had failed");
    }
}

/// Checks that all files can be read soon after the node is back.
async fn recover(stage: &Stage, inodes: &[InodeId]) {
    sleep(SOON).await;
    for inode in inodes {
        let (result, took) = read(stage, *inode).await;
        assert_eq!(result, Ok(()), "{inode} is not read {SOON:?} after the node is back");
        assert!(took < AT_ONCE, "a read of {inode} took {took:?} though the node is back");
    }
}

/// Goal: when only the path from client to target is cut, the first read of data there waits for
/// its deadline, and all others fail at once. The device is used again soon after the path works.
#[test]
fn reads_of_a_node_out_of_reach_fail_at_once_after_the_first() {
    play(2, async |stage| {
        let inodes = written(&stage, &[b"a", b"b", b"c"]).await;
        assert_eq!(read(&stage, inodes[0]).await.0, Ok(()));
        for _ in 0..2 {
            stage.network.cut(&stage.nodes[0], &stage.nodes[1]);
            fail(&stage, &inodes).await;
            sleep(Duration::from_mins(2)).await;
            fail(&stage, &inodes).await;
            stage.network.heal(&stage.nodes[0], &stage.nodes[1]);
            recover(&stage, &inodes).await;
        }
    });
}

/// Goal: the same for a client that was never connected to the target.
#[test]
fn a_first_connection_to_a_node_out_of_reach_is_not_waited_for_twice() {
    play(2, async |stage| {
        let inodes = written(&stage, &[b"a", b"b"]).await;
        stage.network.cut(&stage.nodes[0], &stage.nodes[1]);
        fail(&stage, &inodes).await;
        stage.network.heal(&stage.nodes[0], &stage.nodes[1]);
        recover(&stage, &inodes).await;
    });
}

/// Goal: the same for a node that neither clients nor the service can reach. It comes back with
/// another session.
#[test]
fn a_node_that_is_cut_off_from_all_fails_at_once_and_comes_back() {
    play(2, async |stage| {
        let inodes = written(&stage, &[b"a", b"b"]).await;
        assert_eq!(read(&stage, inodes[0]).await.0, Ok(()));
        stage.network.cut(&stage.nodes[0], &stage.nodes[1]);
        stage.network.cut(&stage.nodes[0], &stage.meta);
        fail(&stage, &inodes).await;
        sleep(Duration::from_mins(2)).await;
        fail(&stage, &inodes).await;
        stage.network.heal(&stage.nodes[0], &stage.nodes[1]);
        stage.network.heal(&stage.nodes[0], &stage.meta);
        recover(&stage, &inodes).await;
    });
}

/// Goal: a client that was out of contact itself, so that its own deadlines passed and its session
/// ended, reads at once when it has another session: it has learned nothing about the node.
#[test]
fn a_client_that_was_away_itself_finds_no_node_out_of_reach() {
    play(2, async |stage| {
        let inodes = written(&stage, &[b"a", b"b"]).await;
        assert_eq!(read(&stage, inodes[0]).await.0, Ok(()));
        stage.network.cut(&stage.nodes[0], &stage.nodes[1]);
        fail(&stage, &inodes).await;
        stage.network.cut(&stage.meta, &stage.nodes[1]);
        let session = async |client: Rc<Client>| client.session_id();
        let before = stage.on(1, session).await;
        sleep(Duration::from_mins(2)).await;
        stage.network.heal(&stage.nodes[0], &stage.nodes[1]);
        stage.network.heal(&stage.meta, &stage.nodes[1]);
        while stage.on(1, session).await == before {
            sleep(Duration::from_millis(1)).await;
        }
        let (result, took) = read(&stage, inodes[1]).await;
        assert_eq!(result, Ok(()));
        assert!(took < AT_ONCE, "a read took {took:?} though the node is back");
    });
}

/// Goal: writes go to a device that answers, and an fsync fails at once if its data cannot be made
/// durable.
#[test]
fn writes_go_elsewhere_while_a_node_is_out_of_reach() {
    play(2, async |stage| {
        let inodes = written(&stage, &[b"a"]).await;
        stage.network.cut(&stage.nodes[0], &stage.nodes[1]);
        fail(&stage, &inodes).await;
        let inode = inodes[0];
        let writing = async move |client: Rc<Client>| {
            let begun = now();
            let (handle, _) = client.open(inode, WRITE).await.unwrap();
            client.write(&handle, 0, bytes(1), false).await.unwrap();
            client.release(&handle).await.unwrap();
            begun.elapsed()
        };
        let took = stage.on(1, writing).await;
        assert!(took < AT_ONCE, "a write took {took:?}");
        assert_eq!(read(&stage, inode).await.0, Ok(()));
    });
}

/// Goal: no read fails when connections are reset again and again, or a path is cut for less than
/// the deadline.
#[test]
fn a_short_interruption_fails_no_read() {
    play(2, async |stage| {
        let inodes = written(&stage, &[b"a", b"b"]).await;
        let (one, two) = (stage.nodes[0].clone(), stage.nodes[1].clone());
        for round in 0..20 {
            let network = stage.network.clone();
            let (from, to) = (one.clone(), two.clone());
            let resetting = stage.begin(0, async move |_| {
                sleep(Duration::from_micros(50 * round)).await;
                network.reset(&from, &to);
            });
            for inode in &inodes {
                assert_eq!(read(&stage, *inode).await.0, Ok(()), "round {round}");
            }
            resetting.await.unwrap();
        }
        stage.network.cut(&one, &two);
        let reading = stage.begin(1, {
            let inode = inodes[0];
            async move |client: Rc<Client>| client.read(inode, 0, 5000, None).await.map(drop)
        });
        sleep(Duration::from_secs(3)).await;
        stage.network.heal(&one, &two);
        assert_eq!(reading.await.unwrap(), Ok(()));
    });
}
