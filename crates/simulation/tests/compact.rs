//! Scenes of files in pieces that are compacted: rules P9 to P11 of docs/protocol.md.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod stage;

use client::{Client, CompactCounts};
use protocol::{Errno, InodeId};
use reactor::time::sleep;
use stage::gate::Gate;
use stage::{BLOCK_BYTES, DEVICE_BYTES, SETTING, Stage, WRITE, bytes_of, filled, play_on_one};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Blocks of the file: an eighth of the pool.
const BLOCKS: u64 = DEVICE_BYTES / BLOCK_BYTES as u64 / 8;
const BYTES: u64 = BLOCKS * BLOCK_BYTES as u64;
/// Time until a quiet file is compacted and its old space is free again.
const A_WHILE: Duration = Duration::from_secs(10);

/// Plays on nodes. The first one has the only device.
fn play<F: Future<Output = ()>>(nodes: usize, scene: impl FnOnce(Rc<Stage>, Gate) -> F) {
    let gate = Gate::new(DEVICE_BYTES, BLOCK_BYTES);
    let device = Arc::new(gate.clone());
    play_on_one(device, nodes, |_| None, |stage| scene(Rc::new(stage), gate));
}

/// Returns the value of a block after the last rewrite.
fn value(block: u64) -> u8 {
    (block % 251) as u8
}

/// Bytes between two pieces of the file.
const BETWEEN_BYTES: usize = 32 << 10;
const PIECES: u64 = BLOCKS / 4;

/// Makes a file that is overwritten block by block, a few blocks per commit, alternating with
/// another file.
async fn wear(client: Rc<Client>) -> InodeId {
    let (between, _) = client.create(InodeId::ROOT, b"between", SETTING, WRITE).await.unwrap();
    let (handle, attr) = client.create(InodeId::ROOT, b"a", SETTING, WRITE).await.unwrap();
    client.write(&handle, 0, filled(255, BYTES as usize), false).await.unwrap();
    client.flush(&handle).await.unwrap();
    for piece in 0..PIECES {
        for index in 4 * piece..4 * (piece + 1) {
            let block = index * 37 % BLOCKS;
            let bytes = filled(value(block), BLOCK_BYTES as usize);
            client.write(&handle, block * u64::from(BLOCK_BYTES), bytes, false).await.unwrap();
        }
        client.flush(&handle).await.unwrap();
        let bytes = filled(1, BETWEEN_BYTES);
        client.write(&between, piece * BETWEEN_BYTES as u64, bytes, false).await.unwrap();
        client.flush(&between).await.unwrap();
    }
    client.release(&handle).await.unwrap();
    client.release(&between).await.unwrap();
    attr.inode
}

fn is_whole(bytes: &[u8]) -> bool {
    let blocks = (0..).zip(bytes.chunks(BLOCK_BYTES as usize));
    bytes.len() as u64 == BYTES
        && blocks.into_iter().all(|(at, block)| block.iter().all(|byte| *byte == value(at)))
}

async fn read(stage: &Stage, node: usize, inode: InodeId) -> Result<Vec<u8>, Errno> {
    stage.on(node, async move |client| bytes_of(&client, inode, 0..BYTES).await).await
}

async fn counts(stage: &Stage, node: usize) -> CompactCounts {
    stage.on(node, async |client| client.counts().compaction).await
}

/// Goal: soon after a file was rewritten in pieces it lies in one piece, occupies only its own
/// size, has its bytes and is read with one command.
#[test]
fn a_file_in_pieces_is_put_together() {
    play(1, async |stage, gate| {
        let inode = stage.on(0, wear).await;
        let asked = gate.reads().asked();
        assert!(is_whole(&read(&stage, 0, inode).await.unwrap()));
        let before = gate.reads().asked() - asked;
        sleep(A_WHILE).await;
        let asked = gate.reads().asked();
        assert!(is_whole(&read(&stage, 0, inode).await.unwrap()));
        let after = gate.reads().asked() - asked;
        assert!(before > 8 && after == 1, "{after} commands after {before}");
        let pool = stage.on(0, async |client| client.pool_use().await.unwrap()).await;
        let between = PIECES * BETWEEN_BYTES as u64;
        assert_eq!(pool.total_bytes - pool.free_bytes, BYTES + between, "{pool:?}");
        let counts = counts(&stage, 0).await;
        assert!(counts.compacted_bytes == BYTES && counts.compactions_overtaken == 0, "{counts:?}");
    });
}

/// Goal: data that another node commits during a compaction is there afterwards (P9).
#[test]
fn a_compaction_never_overtakes_a_write() {
    play(2, async |stage, gate| {
        let inode = stage.on(0, wear).await;
        gate.flushes().hold();
        // The compaction has copied the file, and waits for the flush.
        sleep(A_WHILE / 2).await;
        let write = async move |client: Rc<Client>| {
            let (handle, _) = client.open(inode, WRITE).await.unwrap();
            client.write(&handle, 0, filled(254, BLOCK_BYTES as usize), false).await.unwrap();
            client.release(&handle).await.unwrap();
        };
        stage.on(1, write).await;
        gate.flushes().release();
        sleep(A_WHILE).await;
        let bytes = read(&stage, 1, inode).await.unwrap();
        assert!(bytes[..BLOCK_BYTES as usize].iter().all(|byte| *byte == 254), "the write is lost");
        assert!(counts(&stage, 0).await.compactions_overtaken > 0, "nothing was overtaken");
    });
}

/// Goal: blocks that were read for a copy are not used again before it is known whether the copy
/// takes effect (P10). Otherwise the file might name them again with other bytes.
#[test]
fn blocks_that_were_copied_rest_until_the_answer() {
    play(1, async |stage, gate| {
        let inode = stage.on(0, wear).await;
        gate.flushes().hold();
        sleep(A_WHILE / 2).await;
        let overwrite = async move |client: Rc<Client>| {
            let (handle, _) = client.open(inode, WRITE).await.unwrap();
            client.write(&handle, 0, filled(254, BYTES as usize), false).await.unwrap();
            client.release(&handle).await.unwrap();
        };
        stage.on(0, overwrite).await;
        let dead = async |client: Rc<Client>| client.pool_use().await.unwrap().dead_bytes;
        sleep(A_WHILE / 2).await;
        assert!(stage.on(0, dead).await >= BYTES, "the blocks are free");
        gate.flushes().release();
        sleep(A_WHILE).await;
        assert_eq!(stage.on(0, dead).await, 0);
    });
}

/// Goal: a client with the old place of a file in its cache reads it at the new place, and never
/// the bytes written to its old blocks since: a client of another session (T1), and the one that
/// compacts (P11).
#[test]
fn readers_follow_a_compaction() {
    play(2, async |stage, _| {
        let inode = stage.on(0, wear).await;
        for node in 0..2 {
            assert!(is_whole(&read(&stage, node, inode).await.unwrap()));
        }
        sleep(A_WHILE).await;
        assert_eq!(counts(&stage, 0).await.compacted_bytes, BYTES);
        let fill = async |client: Rc<Client>| {
            let (handle, _) = client.create(InodeId::ROOT, b"b", SETTING, WRITE).await.unwrap();
            let mut at = 0;
            while client.write(&handle, at, filled(253, 1 << 16), false).await.is_ok() {
                at += 1 << 16;
            }
            client.release(&handle).await.unwrap();
            at
        };
        assert!(stage.on(0, fill).await > DEVICE_BYTES / 4, "the pool is not full");
        for node in 0..2 {
            assert!(is_whole(&read(&stage, node, inode).await.unwrap()), "node {node}");
        }
    });
}

/// Goal: in a pool with little free space nothing is compacted, so that no write gets ENOSPC
/// because of a copy.
#[test]
fn a_pool_without_room_is_left_alone() {
    play(1, async |stage, _| {
        let inode = stage.on(0, wear).await;
        let fill = async |client: Rc<Client>| {
            let (handle, _) = client.create(InodeId::ROOT, b"b", SETTING, WRITE).await.unwrap();
            let bytes = DEVICE_BYTES / 16 * 15 - BYTES - PIECES * BETWEEN_BYTES as u64;
            for at in 0..bytes >> 16 {
                client.write(&handle, at << 16, filled(1, 1 << 16), false).await.unwrap();
            }
            client.release(&handle).await.unwrap();
        };
        stage.on(0, fill).await;
        sleep(A_WHILE).await;
        assert_eq!(counts(&stage, 0).await.compacted_bytes, 0);
        assert!(is_whole(&read(&stage, 0, inode).await.unwrap()));
        // The compaction runs once there is space.
        stage.on(0, async |client| client.unlink(InodeId::ROOT, b"b").await.unwrap()).await;
        sleep(6 * A_WHILE).await;
        assert_eq!(counts(&stage, 0).await.compacted_bytes, BYTES);
    });
}
