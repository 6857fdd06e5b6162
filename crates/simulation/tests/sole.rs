//! Scenes of attribute changes that wait for a commit, under SOLE: the rules R17 and R18 in
//! docs/protocol.md.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod stage;

use client::{Client, Handle};
use protocol::attr::AttrChanges;
use protocol::times::WRITEBACK;
use protocol::{Attr, Errno, InodeId, Timestamp};
use reactor::time::sleep;
use stage::gate::Gate;
use stage::{
    BLOCK_BYTES, DEVICE_BYTES, SETTING, Stage, WRITE, bytes_of, filled, make, play, play_on_one,
};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const ROOT: InodeId = InodeId::ROOT;
/// The modification time in the archive.
const THEN: Timestamp = Timestamp(1_000_000_000);

/// Acts like tar: makes a file, writes to it, sets times, owner and mode.
async fn unpack(client: &Rc<Client>, name: &[u8]) -> Handle {
    let (handle, _) = client.create(ROOT, name, SETTING, WRITE).await.unwrap();
    client.write(&handle, 0, filled(1, 3000), false).await.unwrap();
    for changes in [
        AttrChanges { mtime: Some(THEN), ..AttrChanges::default() },
        AttrChanges { uid: Some(5), gid: Some(6), ..AttrChanges::default() },
        AttrChanges { mode: Some(0o4751), ..AttrChanges::default() },
    ] {
        client.set_attr(handle.inode(), changes).await.unwrap();
    }
    handle
}

fn attributes_of(attr: &Attr) -> (u16, u32, u32, Timestamp) {
    (attr.mode, attr.uid, attr.gid, attr.mtime)
}

const UNPACKED: (u16, u32, u32, Timestamp) = (0o4751, 5, 6, THEN);

async fn calls(stage: &Stage, node: usize, kind: &'static str) -> u64 {
    stage
        .on(node, async move |client| {
            let counts = serde_json::to_value(client.counts()).unwrap();
            counts["meta_calls_by_kind"][kind].as_u64().unwrap_or(0)
        })
        .await
}

/// Goal: attributes that are set before a file is closed need no call of their own, and are visible
/// to all when it is closed (R18).
#[test]
fn attributes_travel_in_the_commit() {
    play(2, async |stage| {
        let handle = stage.on(0, async |client| unpack(&client, b"a").await).await;
        let inode = handle.inode();
        let own = stage.on(0, async move |client| client.attr(inode).await.unwrap()).await;
        assert_eq!(attributes_of(&own), UNPACKED, "its own users see them at once");
        stage.on(0, async move |client| client.release(&handle).await.unwrap()).await;
        assert_eq!(calls(&stage, 0, "set_attr").await, 0);
        assert_eq!(calls(&stage, 0, "commit").await, 1);
        for node in [1, 0] {
            let seen = stage.on(node, async move |client| client.attr(inode).await.unwrap()).await;
            assert_eq!((attributes_of(&seen), seen.size), (UNPACKED, 3000), "node {node}");
        }
    });
}

/// Goal: other clients see waiting attributes (R17): by name, in a listing, by an open. Meanwhile
/// the file's data may wait for its device.
#[test]
fn whoever_looks_sees_attributes_that_wait() {
    let gate = Gate::new(DEVICE_BYTES, BLOCK_BYTES);
    let device = Arc::new(gate.clone());
    play_on_one(
        device,
        2,
        |_| None,
        async |stage| {
            for way in 0..3 {
                gate.writes().hold();
                let handle = stage.on(0, async |client| unpack(&client, b"a").await).await;
                let seen = stage.on(1, async move |client| look(&client, way).await).await;
                assert_eq!(attributes_of(&seen), UNPACKED);
                gate.writes().release();
                stage
                    .on(0, async move |client| {
                        client.release(&handle).await.unwrap();
                        client.unlink(ROOT, b"a").await.unwrap();
                    })
                    .await;
            }
        },
    );
}

/// Goal: a client that looks at a file does not wait for a close that waits for its device (R17).
#[test]
fn looking_does_not_wait_for_a_device() {
    let gate = Gate::new(DEVICE_BYTES, BLOCK_BYTES);
    let device = Arc::new(gate.clone());
    play_on_one(
        device,
        2,
        |_| None,
        async |stage| {
            gate.writes().hold();
            let handle = stage.on(0, async |client| unpack(&client, b"a").await).await;
            let close = async move |client: Rc<Client>| client.release(&handle).await;
            let closed = stage.begin(0, close);
            gate.writes().until_one_waits().await;
            let seen = stage.on(1, async |client| look(&client, 0).await).await;
            assert_eq!((attributes_of(&seen), seen.size), (UNPACKED, 0));
            gate.writes().release();
            closed.await.unwrap().unwrap();
            let seen = stage.on(1, async |client| look(&client, 0).await).await;
            assert_eq!((attributes_of(&seen), seen.size), (UNPACKED, 3000));
        },
    );
}

async fn look(client: &Rc<Client>, way: u32) -> Attr {
    match way {
        0 => client.lookup(ROOT, b"a").await.unwrap(),
        1 => client.list(ROOT, 0).await.unwrap().entries[0].attr,
        _ => {
            let inode = client.lookup(ROOT, b"a").await.unwrap().inode;
            let (handle, attr) = client.open(inode, WRITE).await.unwrap();
            client.release(&handle).await.unwrap();
            attr
        }
    }
}

/// Goal: the service also requests waiting attributes after a restart: no client sees the file
/// before its maker has reclaimed it (S12).
#[test]
fn a_restart_does_not_uncover_what_waits() {
    play(2, async |stage| {
        let handle = stage.on(0, async |client| unpack(&client, b"a").await).await;
        stage.network.cut(&stage.nodes[0], &stage.meta);
        stage.restart_meta();
        let seen = stage.begin(1, async |client: Rc<Client>| client.lookup(ROOT, b"a").await);
        sleep(Duration::from_secs(3)).await;
        stage.network.heal(&stage.nodes[0], &stage.meta);
        assert_eq!(attributes_of(&seen.await.unwrap().unwrap()), UNPACKED);
        stage.on(0, async move |client| client.release(&handle).await.unwrap()).await;
    });
}

/// Goal: waiting attributes are stored within a second even if the file stays open (R18).
#[test]
fn what_waits_is_written_back() {
    play(1, async |stage| {
        let touch = async |client: Rc<Client>| {
            let (handle, _) = client.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
            let changes = AttrChanges { mode: Some(0o600), ..AttrChanges::default() };
            client.set_attr(handle.inode(), changes).await.unwrap();
            handle
        };
        let handle = stage.on(0, touch).await;
        sleep(WRITEBACK * 2).await;
        assert_eq!(calls(&stage, 0, "commit").await, 1);
        stage.restart_meta();
        let seen = stage.on(0, async |client| client.lookup(ROOT, b"a").await.unwrap()).await;
        assert_eq!(seen.mode, 0o600);
        drop(handle);
    });
}

/// Goal: the failure of a commit with attributes is returned by close, and nothing else waits any
/// more.
#[test]
fn a_lost_session_tells_of_what_waited() {
    play(2, async |stage| {
        let (handle, _) = stage
            .on(0, async |client| client.create(ROOT, b"a", SETTING, WRITE).await.unwrap())
            .await;
        let inode = handle.inode();
        let chmod = async move |client: Rc<Client>| {
            let changes = AttrChanges { mode: Some(0o600), ..AttrChanges::default() };
            client.set_attr(inode, changes).await.unwrap();
        };
        stage.on(0, chmod).await;
        stage.network.cut(&stage.nodes[0], &stage.meta);
        sleep(Duration::from_mins(2)).await;
        stage.network.heal(&stage.nodes[0], &stage.meta);
        sleep(Duration::from_secs(30)).await;
        let close = async move |client: Rc<Client>| client.release(&handle).await;
        let closed = stage.on(0, close).await;
        assert!(matches!(closed, Err(Errno::EIO | Errno::ETIMEDOUT)), "{closed:?}");
        // Files of other clients are not affected.
        let other = stage.on(1, async |client| make(&client, b"b", 3, 100).await).await;
        let read = async move |client: Rc<Client>| bytes_of(&client, other, 0..100).await.unwrap();
        assert_eq!(stage.on(0, read).await, [3; 100]);
    });
}
