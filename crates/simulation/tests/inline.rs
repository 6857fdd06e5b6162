//! Scenes of small files with their data at the metadata service: the rules D6 and D7 in
//! docs/protocol.md.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod stage;

use client::{Client, SeekTo};
use protocol::attr::AttrChanges;
use protocol::client::FallocateMode;
use protocol::inline::INLINE_MAX_BYTES;
use protocol::times::HEARTBEAT;
use protocol::{Errno, InodeId};
use reactor::time::sleep;
use stage::gate::Gate;
use stage::{
    BLOCK_BYTES, DEVICE_BYTES, INLINE_BYTES, SETTING, Stage, WRITE, bytes_of, filled, make,
    play_on_one,
};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const ROOT: InodeId = InodeId::ROOT;

fn play<F: Future<Output = ()>>(nodes: usize, scene: impl FnOnce(Stage, Gate) -> F) {
    INLINE_BYTES.store(INLINE_MAX_BYTES, Ordering::Relaxed);
    let gate = Gate::new(DEVICE_BYTES, BLOCK_BYTES);
    let device = Arc::new(gate.clone());
    play_on_one(device, nodes, |_| None, |stage| scene(stage, gate));
}

async fn write(client: &Rc<Client>, inode: InodeId, offset: u64, byte: u8, length: usize) {
    let (handle, _) = client.open(inode, WRITE).await.unwrap();
    client.write(&handle, offset, filled(byte, length), false).await.unwrap();
    client.release(&handle).await.unwrap();
}

async fn resize(client: &Rc<Client>, inode: InodeId, size: u64) {
    let changes = AttrChanges { size: Some(size), ..AttrChanges::default() };
    client.truncate(inode, changes).await.unwrap();
}

async fn all(stage: &Stage, node: usize, inode: InodeId, length: u64) -> Vec<u8> {
    stage.on(node, async move |client| bytes_of(&client, inode, 0..length).await.unwrap()).await
}

async fn calls(stage: &Stage, node: usize) -> serde_json::Value {
    let counts = async |client: Rc<Client>| serde_json::to_value(client.counts()).unwrap();
    stage.on(node, counts).await["meta_calls_by_kind"].clone()
}

/// Goal: a small file needs no device, neither for a write nor for a read elsewhere, and a read
/// needs one call. Data that is written over it is visible everywhere.
#[test]
fn a_small_file_needs_no_device() {
    play(2, async |stage, gate| {
        gate.writes().hold();
        let inode = stage.on(0, async |client| make(&client, b"a", 7, 3000).await).await;
        stage.on(1, async move |client| client.attr(inode).await.unwrap()).await;
        let before = calls(&stage, 1).await["read_extents"].as_u64().unwrap_or(0);
        for _ in 0..2 {
            assert_eq!(all(&stage, 1, inode, 3000).await, [7; 3000]);
        }
        assert_eq!(calls(&stage, 1).await["read_extents"].as_u64(), Some(before + 1));
        for (node, byte) in [(1, 8_u8), (0, 9), (1, 10)] {
            stage.on(node, async move |client| write(&client, inode, 1000, byte, 500).await).await;
            for reader in [0, 1] {
                let seen = all(&stage, reader, inode, 3000).await;
                assert_eq!(seen[1000..1500], [byte; 500], "node {reader} after node {node}");
                assert_eq!((seen[999], seen[1500]), (7, 7));
            }
        }
        let attr = stage.on(0, async move |client| client.attr(inode).await.unwrap()).await;
        assert_eq!((attr.size, attr.allocated_bytes), (3000, 3000));
        gate.writes().release();
    });
}

/// Goal: a file that grows out of the store, is cut and grows again shows zeros behind the cut,
/// both in data at the service and on the device (D7).
#[test]
fn what_is_cut_off_does_not_come_back() {
    play(2, async |stage, _| {
        let inode = stage.on(0, async |client| make(&client, b"a", 1, 6000).await).await;
        stage.on(0, async move |client| write(&client, inode, 5000, 2, 100_000).await).await;
        let mut expected = vec![1; 5000];
        expected.resize(105_000, 2);
        for node in [1, 0] {
            assert_eq!(all(&stage, node, inode, 105_000).await, expected, "node {node}");
        }
        stage
            .on(1, async move |client| {
                resize(&client, inode, 2000).await;
                resize(&client, inode, 9000).await;
            })
            .await;
        expected.truncate(2000);
        expected.resize(9000, 0);
        for node in [1, 0] {
            assert_eq!(all(&stage, node, inode, 9000).await, expected, "node {node}");
        }
        let punch = async move |client: Rc<Client>| {
            client.fallocate(inode, 500, 1000, FallocateMode::Punch).await.unwrap();
        };
        stage.on(0, punch).await;
        expected[500..1500].fill(0);
        for node in [1, 0] {
            assert_eq!(all(&stage, node, inode, 9000).await, expected, "node {node}, punched");
        }
    });
}

/// Goal: after a small write over data on a device, reads return the small data (D6).
#[test]
fn inline_data_replaces_extents() {
    play(2, async |stage, _| {
        let inode = stage.on(0, async |client| make(&client, b"a", 1, 100_000).await).await;
        stage
            .on(0, async move |client| {
                resize(&client, inode, 10_000).await;
                write(&client, inode, 4000, 2, 3000).await;
            })
            .await;
        let mut expected = vec![1; 10_000];
        expected[4000..7000].fill(2);
        for node in [1, 0] {
            assert_eq!(all(&stage, node, inode, 10_000).await, expected, "node {node}");
        }
    });
}

/// Goal: bytes that a device stores are not stored at the service as well (D6): such bytes count
/// once, and copies share them.
#[test]
fn a_byte_lies_in_one_place() {
    play(2, async |stage, _| {
        let inode = stage.on(0, async |client| make(&client, b"a", 1, 3000).await).await;
        stage.on(1, async move |client| write(&client, inode, 0, 2, 100_000).await).await;
        assert!(all(&stage, 0, inode, 100_000).await == vec![2; 100_000]);
        let attr = stage.on(0, async move |client| client.attr(inode).await.unwrap()).await;
        assert_eq!((attr.size, attr.allocated_bytes), (100_000, 100_000));
        stage
            .on(0, async move |client| {
                let (to, _) = client.create(ROOT, b"b", SETTING, WRITE).await.unwrap();
                let shared = client.copy_range((inode, 0), (to.inode(), 0), 100_000).await;
                assert_eq!(shared, Ok(100_000));
                client.release(&to).await.unwrap();
            })
            .await;
    });
}

/// Goal: when the store's file system has little space left for data, clients write to devices
/// (D9).
#[test]
fn a_full_file_system_takes_no_small_files() {
    play(2, async |stage, gate| {
        stage.on(0, async |client| make(&client, b"a", 1, 3000).await).await;
        assert_eq!(gate.writes().asked(), 0);
        stage.store().set_scarce(true);
        sleep(HEARTBEAT * 2).await;
        let inode = stage.on(0, async |client| make(&client, b"b", 2, 3000).await).await;
        assert_eq!(all(&stage, 1, inode, 3000).await, [2; 3000]);
        assert!(gate.writes().passed() > 0);
        stage.store().set_scarce(false);
        sleep(HEARTBEAT * 2).await;
        let before = gate.writes().asked();
        stage.on(0, async |client| make(&client, b"c", 3, 3000).await).await;
        assert_eq!(gate.writes().asked(), before);
    });
}

/// Goal: data at the service survives the service's death after a close, is found by a seek for
/// data, is copied although it cannot be shared, and is removed with its file.
#[test]
fn small_files_are_files() {
    play(2, async |stage, _| {
        let inode = stage.on(0, async |client| make(&client, b"a", 1, 3000).await).await;
        stage.restart_meta();
        assert_eq!(all(&stage, 1, inode, 3000).await, [1; 3000]);
        stage
            .on(1, async move |client| {
                assert_eq!(client.seek(inode, 10, SeekTo::Data).await, Ok(10));
                assert_eq!(client.seek(inode, 10, SeekTo::Hole).await, Ok(3000));
                assert_eq!(client.seek(inode, 3000, SeekTo::Data).await, Err(Errno::ENXIO));
                // The file grows beyond what a copy reads and writes, and its head stays.
                write(&client, inode, 50_000, 2, 150_000).await;
                let (to, _) = client.create(ROOT, b"b", SETTING, WRITE).await.unwrap();
                let mut at = 0;
                while at < 200_000 {
                    at += client.copy((inode, at), (&to, at), u64::MAX).await.unwrap();
                }
                client.release(&to).await.unwrap();
                let copied = bytes_of(&client, to.inode(), 0..200_000).await.unwrap();
                let whole = bytes_of(&client, inode, 0..200_000).await.unwrap();
                assert!(copied == whole && copied[2999..3001] == [1, 0]);
                client.unlink(ROOT, b"a").await.unwrap();
            })
            .await;
    });
}
