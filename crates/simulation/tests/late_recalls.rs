//! Scenes of recalls whose answers wait for a dead node: healthy sessions stay, and a client that
//! does not answer loses its session in bounded time (R7 in docs/protocol.md).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod stage;

use client::{Client, Handle};
use protocol::InodeId;
use protocol::times::{HEARTBEAT, REQUEST_DEADLINE, SESSION_DEADLINE, WRITEBACK};
use reactor::time::{now, sleep, timeout};
use stage::gate::Gate;
use stage::{
    APPEND, BLOCK_BYTES, DEVICE_BYTES, SETTING, Stage, WRITE, bytes_of, filled, make, play,
    play_on_one,
};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const ROOT: InodeId = InodeId::ROOT;
/// Bytes of a record of the log.
const RECORD_BYTES: u64 = 5000;
const END_LASTS: Duration = Duration::from_mins(3);

/// Plays on nodes. The first one has the only device.
fn play_gated<F: Future<Output = ()>>(nodes: usize, scene: impl FnOnce(Rc<Stage>, Gate) -> F) {
    let gate = Gate::new(DEVICE_BYTES, BLOCK_BYTES);
    let device = Arc::new(gate.clone());
    play_on_one(device, nodes, |_| None, |stage| scene(Rc::new(stage), gate));
}

/// Returns the sessions of these nodes.
async fn sessions(stage: &Stage, nodes: &[usize]) -> Vec<Option<protocol::SessionId>> {
    let mut sessions = Vec::new();
    for node in nodes {
        sessions.push(stage.on(*node, async |client| client.session_id()).await);
    }
    sessions
}

async fn append(client: &Rc<Client>, handle: &Handle, byte: u8) {
    client.write(handle, 0, filled(byte, RECORD_BYTES as usize), false).await.unwrap();
}

/// How a node goes.
#[derive(Clone, Copy, Debug)]
enum Death {
    /// Its process is killed.
    Kill,
    /// No other machine reaches it.
    Cut,
}

/// The moment at which a node goes.
#[derive(Clone, Copy, Debug)]
enum Hour {
    /// Before another node appends.
    BeforeAppend,
    /// So long before it that its session is about to end.
    LongBefore,
    /// While a commit of another node waits for its answer.
    DuringCommit,
}

/// Three nodes append to one file, and the third one dies. The first one has a record that is
/// not committed, and the second one needs the right to append.
async fn a_log_outlives_a_node(stage: Rc<Stage>, death: Death, hour: Hour) {
    let begin = async |client: Rc<Client>| {
        let (handle, _) = client.create(ROOT, b"log", SETTING, APPEND).await.unwrap();
        append(&client, &handle, 1).await;
        client.flush(&handle).await.unwrap();
        handle
    };
    let first = stage.on(0, begin).await;
    let inode = first.inode();
    let next = |byte: u8| {
        async move |client: Rc<Client>| {
            let (handle, _) = client.open(inode, APPEND).await.unwrap();
            append(&client, &handle, byte).await;
            client.flush(&handle).await.unwrap();
            handle
        }
    };
    let second = stage.on(1, next(2)).await;
    let third = stage.on(2, next(3)).await;
    let before = sessions(&stage, &[0, 1]).await;
    let go = || match death {
        Death::Kill => stage.nodes[2].kill(),
        Death::Cut => stage.network.isolate(&stage.nodes[2]),
    };
    let more = |handle: Handle, byte: u8| {
        async move |client: Rc<Client>| {
            append(&client, &handle, byte).await;
            handle
        }
    };
    let look = async move |client: Rc<Client>| client.attr(inode).await.map(drop);
    stage.on(2, look).await.unwrap();
    if let Hour::LongBefore = hour {
        go();
        sleep(SESSION_DEADLINE * 9 / 10).await;
    }
    let first = stage.on(0, more(first, 4)).await;
    if let Hour::BeforeAppend = hour {
        stage.on(2, look).await.unwrap();
        go();
    }
    if let Hour::DuringCommit = hour {
        // It holds the right to read again, and goes when it is asked.
        stage.on(2, look).await.unwrap();
        stage.network.hold_back(&stage.meta, &stage.nodes[2]);
        sleep(WRITEBACK).await;
        go();
    }
    let second = stage.begin(1, more(second, 5));
    let second = timeout(END_LASTS, second).await.expect("it ends").unwrap();
    let close = |handle: Handle| async move |client: Rc<Client>| client.release(&handle).await;
    for (node, handle) in [(0, first), (1, second)] {
        let closed = timeout(END_LASTS, stage.on(node, close(handle))).await.expect("it ends");
        assert_eq!(closed, Ok(()), "node {node}, {death:?} {hour:?}: written data is lost");
    }
    sleep(HEARTBEAT * 2).await;
    assert_eq!(sessions(&stage, &[0, 1]).await, before, "{death:?} {hour:?}: a session ended");
    // The records of the dead node's device are not there.
    for (node, byte) in [(0_usize, 4_u8), (1, 5)] {
        let start = u64::from(byte - 1) * RECORD_BYTES;
        let read = async move |client: Rc<Client>| {
            bytes_of(&client, inode, start..start + RECORD_BYTES).await
        };
        let expected = vec![byte; RECORD_BYTES as usize];
        assert_eq!(stage.on(1 - node, read).await, Ok(expected), "{death:?} {hour:?}: {byte}");
    }
    stage.network.heal_all();
    drop(third);
}

/// Goal: of three nodes that append to a log one goes, killed or cut off. The others keep their
/// sessions and all that they wrote, although one of them has to commit before the other may
/// append, and its commit waits until the dead node has lost its right to read.
#[test]
fn nodes_that_append_keep_their_sessions_when_one_of_them_goes() {
    for death in [Death::Kill, Death::Cut] {
        for hour in [Hour::BeforeAppend, Hour::LongBefore, Hour::DuringCommit] {
            play(3, async |stage| a_log_outlives_a_node(Rc::new(stage), death, hour).await);
        }
    }
}

/// Goal: a client whose data is on its way to a device that does not answer keeps its session when
/// another client wants its rights. It loses that data alone, and reports it.
#[test]
fn who_waits_for_a_device_that_does_not_answer_keeps_its_session() {
    play_gated(3, async |stage, gate| {
        let begin = async |client: Rc<Client>| {
            let (handle, _) = client.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
            client.write(&handle, 0, filled(1, 5000), false).await.unwrap();
            client.fsync_file(&handle).await.unwrap();
            client.write(&handle, 0, filled(2, 5000), false).await.unwrap();
            handle
        };
        let handle = stage.on(1, begin).await;
        let inode = handle.inode();
        let before = sessions(&stage, &[1]).await;
        gate.writes().hold();
        let cut = async move |client: Rc<Client>| {
            let changes = protocol::attr::AttrChanges { size: Some(0), ..Default::default() };
            client.truncate(inode, changes).await.map(drop)
        };
        let cut = timeout(END_LASTS, stage.on(2, cut)).await.expect("it ends");
        assert_eq!(cut, Ok(()), "the other client waits in vain");
        gate.writes().release();
        let close = async move |client: Rc<Client>| client.release(&handle).await;
        assert_eq!(stage.on(1, close).await, Err(protocol::Errno::EIO), "the loss is reported");
        // A client learns from its next heartbeat that its session has ended.
        sleep(HEARTBEAT * 2).await;
        assert_eq!(sessions(&stage, &[1]).await, before, "its session ended");
    });
}

/// Goal: a client that reads from a device that does not answer keeps its session when another
/// client commits to the file, and that commit succeeds.
#[test]
fn who_reads_from_a_device_that_does_not_answer_keeps_its_session() {
    play_gated(3, async |stage, gate| {
        let inode = stage.on(0, async |client| make(&client, b"a", 1, 5000).await).await;
        let read = async move |client: Rc<Client>| bytes_of(&client, inode, 0..5000).await;
        stage.on(1, read).await.unwrap();
        let before = sessions(&stage, &[1]).await;
        gate.reads().hold();
        let reading = stage.begin(1, read);
        gate.reads().until_one_waits().await;
        let change = async move |client: Rc<Client>| {
            let (handle, _) = client.open(inode, WRITE).await.unwrap();
            client.write(&handle, 0, filled(2, 5000), false).await.unwrap();
            client.release(&handle).await
        };
        let changed = timeout(END_LASTS, stage.on(2, change)).await.expect("it ends");
        assert_eq!(changed, Ok(()), "the commit waits in vain");
        let _ = reading.await.unwrap();
        // A client learns from its next heartbeat that its session has ended.
        sleep(HEARTBEAT * 2).await;
        assert_eq!(sessions(&stage, &[1]).await, before, "its session ended");
    });
}

/// Goal: two clients whose commits wait for each other's reads of a device that does not answer end
/// both commits and keep their sessions.
#[test]
fn who_waits_for_each_other_goes_on() {
    play_gated(3, async |stage, gate| {
        let make_both = async |client: Rc<Client>| {
            (make(&client, b"a", 1, 5000).await, make(&client, b"b", 1, 5000).await)
        };
        let (a, b) = stage.on(0, make_both).await;
        let before = sessions(&stage, &[1, 2]).await;
        let read = |inode: InodeId| {
            async move |client: Rc<Client>| bytes_of(&client, inode, 0..5000).await
        };
        let change = |inode: InodeId| {
            async move |client: Rc<Client>| {
                let (handle, _) = client.open(inode, WRITE).await.unwrap();
                client.write(&handle, 0, filled(2, 5000), false).await.unwrap();
                client.release(&handle).await
            }
        };
        let (mut reads, mut changes) = (Vec::new(), Vec::new());
        for (node, inode) in [(1, a), (2, b)] {
            stage.on(node, read(inode)).await.unwrap();
        }
        gate.reads().hold();
        for (node, inode) in [(1, a), (2, b)] {
            reads.push(stage.begin(node, read(inode)));
            gate.reads().until_one_waits().await;
        }
        for (node, inode) in [(1, b), (2, a)] {
            changes.push(stage.begin(node, change(inode)));
        }
        for changing in changes {
            let changed = timeout(END_LASTS, changing).await.expect("it ends").unwrap();
            assert_eq!(changed, Ok(()), "a commit waits in vain");
        }
        for reading in reads {
            let _ = timeout(END_LASTS, reading).await.expect("it ends").unwrap();
        }
        sleep(HEARTBEAT * 2).await;
        assert_eq!(sessions(&stage, &[1, 2]).await, before, "a session ended");
    });
}

/// Goal: a client whose device never answers holds a recall for a bounded time only, although it
/// works on the answer and sends heartbeats: then its session ends.
#[test]
fn who_works_for_ever_loses_its_session() {
    play_gated(2, async |stage, gate| {
        let begin = async |client: Rc<Client>| {
            let (handle, _) = client.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
            client.write(&handle, 0, filled(1, 5000), false).await.unwrap();
            handle
        };
        gate.writes().hold();
        let handle = stage.on(0, begin).await;
        let inode = handle.inode();
        let before = sessions(&stage, &[0]).await;
        let cut = stage.begin(1, async move |client: Rc<Client>| {
            let changes = protocol::attr::AttrChanges { size: Some(0), ..Default::default() };
            client.truncate(inode, changes).await.map(drop)
        });
        let begun = now();
        while sessions(&stage, &[0]).await == before {
            sleep(HEARTBEAT).await;
            let waited = begun.elapsed();
            assert!(waited < REQUEST_DEADLINE + SESSION_DEADLINE * 2, "it lives after {waited:?}");
        }
        let waited = begun.elapsed();
        assert!(waited > SESSION_DEADLINE * 2, "it ended after {waited:?}");
        gate.writes().release();
        let _ = timeout(END_LASTS, cut).await.expect("it ends");
    });
}
