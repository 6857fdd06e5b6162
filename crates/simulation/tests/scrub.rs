//! Scenes of a scrub: it reports all damage, once and with its place in the file, and nothing else,
//! even if others change files meanwhile.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod stage;

use client::{Client, Scrubbed};
use protocol::times::HEARTBEAT;
use protocol::{Errno, InodeId};
use reactor::time::sleep;
use stage::flip::Flip;
use stage::gate::Gate;
use stage::{BLOCK_BYTES, DEVICE_BYTES, SETTING, Stage, WRITE, filled, make, play_on_one};
use std::rc::Rc;
use std::sync::Arc;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Number of blocks of a file; the next constant is the number of bytes in the last one.
const BLOCKS: u64 = 40;
const LAST: u64 = 7;
const LENGTH: u64 = (BLOCKS - 1) * BLOCK + LAST;

/// Plays on two nodes. The first one has the only device.
fn play<F: Future<Output = ()>>(scene: impl FnOnce(Rc<Stage>, Flip) -> F) {
    let flip = Flip::new(DEVICE_BYTES, BLOCK_BYTES);
    let device = Arc::new(flip.clone());
    play_on_one(device, 2, |_| None, |stage| scene(Rc::new(stage), flip));
}

/// Scrubs a whole file in small parts. Returns the sum of their results.
async fn scrub(stage: &Stage, node: usize, inode: InodeId) -> Result<Scrubbed, Errno> {
    let parts = async move |client: Rc<Client>| {
        let mut all = Scrubbed::default();
        while all.end < LENGTH {
            let part = client.scrub(inode, all.end..LENGTH, 8 * BLOCK).await?;
            assert!(part.end > all.end, "{part:?} makes no progress after {all:?}");
            all.end = part.end;
            all.read_bytes += part.read_bytes;
            all.compared += part.compared;
            all.unsummed += part.unsummed;
            all.repaired += part.repaired;
            all.wrong.extend(part.wrong);
            all.lost.extend(part.lost);
            all.unread.extend(part.unread);
        }
        client.forget(inode, 0);
        Ok(all)
    };
    stage.on(node, parts).await
}

/// Goal: each damaged block is reported with its bytes of the file, from near and far nodes. The
/// scrub continues after it, and compares each block once. Data that changed on the way is right
/// when it is read again.
#[test]
fn a_scrub_names_what_changed() {
    play(async |stage, flip| {
        let inode = stage.on(0, async |client| make(&client, b"a", 1, LENGTH as usize).await).await;
        stage.on(0, async |client| client.sync_all().await.unwrap()).await;
        let first = flip.written()[0];
        for node in 0..2 {
            let all = scrub(&stage, node, inode).await.unwrap();
            assert_eq!((all.compared, all.unsummed), (BLOCKS, 0), "node {node}: {all:?}");
            assert_eq!((all.wrong.len(), all.repaired, all.read_bytes), (0, 0, BLOCKS * BLOCK));
        }
        let damaged = [(2, BLOCK), (3, BLOCK), (30, BLOCK), (BLOCKS - 1, LAST)];
        for (block, _) in damaged {
            flip.at_rest(first + block).await;
        }
        for node in 0..2 {
            let all = scrub(&stage, node, inode).await.unwrap();
            let places: Vec<_> = all.wrong.iter().map(|it| (it.block - first, it.bytes)).collect();
            let bytes = |(block, count)| (block, (block * BLOCK, block * BLOCK + count - 1));
            assert_eq!(places, damaged.map(bytes), "node {node}");
            assert!(all.wrong.iter().all(|it| it.node == "node0"), "{:?}", all.wrong);
            let counts = stage.on(node, async |client| client.counts().checksums).await;
            assert_eq!((counts.checksum_wrong, counts.checksum_repaired), (4, 0));
        }
        for (block, _) in damaged {
            flip.at_rest(first + block).await;
        }
        for node in 0..2 {
            flip.on_the_way(&[true]);
            let all = scrub(&stage, node, inode).await.unwrap();
            assert_eq!((all.wrong.len(), all.repaired), (0, 1), "node {node}: {all:?}");
        }
    });
}

/// Goal: while another node rewrites a file again and again, so that its blocks are freed and used
/// again, a scrub finds no damage.
#[test]
fn what_changes_under_a_scrub_is_no_damage() {
    play(async |stage, _| {
        let inode = stage.on(0, async |client| make(&client, b"a", 1, LENGTH as usize).await).await;
        let scrubbing = {
            let stage = Rc::clone(&stage);
            reactor::spawn(async move {
                let mut compared = 0;
                for _ in 0..60 {
                    let all = scrub(&stage, 1, inode).await.unwrap();
                    assert_eq!((all.wrong.len(), all.unread.len()), (0, 0), "{all:?}");
                    compared += all.compared;
                }
                compared
            })
        };
        for round in 0..200 {
            let rewrite = async move |client: Rc<Client>| {
                let (handle, _) = client.open(inode, WRITE).await.unwrap();
                let bytes = filled(round as u8, LENGTH as usize);
                client.write(&handle, 0, bytes, false).await.unwrap();
                client.flush(&handle).await.unwrap();
                client.release(&handle).await.unwrap();
            };
            stage.on(0, rewrite).await;
        }
        assert!(scrubbing.await.unwrap() > BLOCKS);
    });
}

/// Goal: blocks that a scrub reads are not used for another file before the read ends, although
/// their file is removed and the device is filled again and again. Otherwise the scrub would report
/// them as damaged.
#[test]
fn blocks_under_a_scrub_are_kept() {
    let gate = Gate::new(DEVICE_BYTES, BLOCK_BYTES);
    let device = Arc::new(gate.clone());
    let scene = async |stage: Stage| {
        let inode = stage.on(0, async |client| make(&client, b"a", 1, LENGTH as usize).await).await;
        gate.reads().hold();
        let part = async move |client: Rc<Client>| client.scrub(inode, 0..LENGTH, 1 << 20).await;
        // Not over the socket, where such a slow read times out.
        let scrubbing = stage.begin(0, part);
        gate.reads().until_one_waits().await;
        let fill = async |client: Rc<Client>| {
            client.unlink(InodeId::ROOT, b"a").await.unwrap();
            for _ in 0..3 {
                sleep(HEARTBEAT * 3).await;
                let made = client.create(InodeId::ROOT, b"b", SETTING, WRITE).await;
                let (handle, _) = made.unwrap();
                let mut at = 0;
                while at < DEVICE_BYTES
                    && client.write(&handle, at, filled(2, 1 << 16), false).await.is_ok()
                {
                    at += 1 << 16;
                }
                let _ = client.flush(&handle).await;
                client.release(&handle).await.unwrap();
                client.unlink(InodeId::ROOT, b"b").await.unwrap();
            }
        };
        stage.on(1, fill).await;
        gate.reads().release();
        let part = scrubbing.await.unwrap().unwrap();
        assert_eq!((part.wrong.len(), part.unread.len(), part.compared), (0, 0, BLOCKS));
    };
    play_on_one(device, 2, |_| None, scene);
}
