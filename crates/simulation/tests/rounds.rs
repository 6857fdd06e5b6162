//! Scenes of operations that others overtake: they end, and wait only for what they need.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "power_cut/cluster.rs"]
mod cluster;

use block::{Fault, FaultPlan, MemoryBacking};
use client::{OpenMode, Setting};
use cluster::{machines, start_meta, start_node};
use meta::store::MemoryStore;
use protocol::InodeId;
use protocol::attr::AttrChanges;
use reactor::time::{now, sleep};
use reactor::{Buffer, Chunk};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const ROOT: InodeId = InodeId::ROOT;
const SETTING: Setting = Setting { mode: 0o644, uid: 0, gid: 0 };
const WRITE: OpenMode = OpenMode { write: true, append: false, sync: false };

/// Goal: opening a file for writing needs WRITE. It does not wait while another session's change
/// blocks READ, here because a reader is slow to end its read.
#[test]
fn an_open_for_writing_does_not_wait_for_read() {
    let (mut simulation, meta, nodes) = machines(1, 3);
    let memory = || Arc::new(MemoryBacking::new(4 << 20, 4096).unwrap());
    let backing = Fault::new(memory(), 1, FaultPlan::default());
    let whole = async move {
        start_meta(&meta, Box::new(MemoryStore::new()), 1);
        let machine = |index: usize| (meta.clone(), nodes[index].clone());
        let reader = start_node(&machine(0), 0, Arc::new(backing.clone()), 1).await;
        let changer = start_node(&machine(1), 1, memory(), 1).await;
        let writer = start_node(&machine(2), 2, memory(), 1).await;
        let made = Rc::clone(&reader);
        let made = nodes[0].spawn(async move {
            let (handle, attr) = made.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
            let bytes = Chunk::from(Buffer::copy_from(&[1; 5000]));
            made.write(&handle, 0, bytes, false).await.unwrap();
            made.release(&handle).await.unwrap();
            made.read(attr.inode, 0, 5000, None).await.unwrap();
            attr.inode
        });
        let inode = made.await.unwrap();
        let delay_max = Duration::from_secs(5);
        let slow = FaultPlan { delay_ppm: 1_000_000, delay_max, ..FaultPlan::default() };
        backing.set_plan(slow);
        let read = nodes[0].spawn(async move {
            reader.read(inode, 0, 5000, None).await.unwrap();
            now()
        });
        sleep(Duration::from_millis(5)).await;
        let changed = nodes[1].spawn(async move {
            let changes = AttrChanges { mode: Some(0o600), ..AttrChanges::default() };
            changer.set_attr(inode, changes).await.unwrap();
            now()
        });
        sleep(Duration::from_millis(5)).await;
        let opened = nodes[2].spawn(async move {
            writer.open(inode, WRITE).await.unwrap();
            now()
        });
        let (read, changed, opened) =
            (read.await.unwrap(), changed.await.unwrap(), opened.await.unwrap());
        assert!(changed >= read, "the change must wait for the read");
        assert!(opened < read, "the open must not wait");
    };
    simulation.run(whole).unwrap();
}

/// Goal: a commit with enough extents to be sent in parts succeeds although another session
/// overwrites everything in the first part before the second arrives. Each byte is from its last or
/// only writer.
#[test]
fn a_commit_in_parts_survives_what_others_overwrite_meanwhile() {
    // In some seeds the other session's commit comes between the parts.
    for seed in 1..=20 {
        commit_in_parts(seed);
    }
}

fn commit_in_parts(seed: u64) {
    const PIECES: u64 = 2000;
    const STRIDE: u64 = 64;
    let (mut simulation, meta, nodes) = machines(seed, 2);
    let memory = || Arc::new(MemoryBacking::new(64 << 20, 4096).unwrap());
    let whole = async move {
        start_meta(&meta, Box::new(MemoryStore::new()), 1);
        let machine = |index: usize| (meta.clone(), nodes[index].clone());
        let one = start_node(&machine(0), 0, memory(), 1).await;
        let two = start_node(&machine(1), 1, memory(), 1).await;
        let writer = nodes[0].spawn(async move {
            let (handle, attr) = one.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
            for piece in 0..PIECES {
                let byte = Chunk::from(Buffer::copy_from(&[1]));
                one.write(&handle, piece * STRIDE, byte, false).await.unwrap();
            }
            (one, handle, attr.inode)
        });
        let (one, handle, inode) = writer.await.unwrap();
        let done = Rc::new(std::cell::Cell::new(false));
        let is_done = Rc::clone(&done);
        let other = nodes[1].spawn(async move {
            let (handle, _) = two.open(inode, WRITE).await.unwrap();
            while !is_done.get() {
                let bytes = vec![2; (1024 * STRIDE) as usize];
                let bytes = Chunk::from(Buffer::copy_from(&bytes));
                two.write(&handle, 0, bytes, false).await.unwrap();
                two.flush(&handle).await.unwrap();
            }
            two.release(&handle).await.unwrap();
        });
        // By then the other session has overwritten something, and continues.
        sleep(Duration::from_millis(20)).await;
        nodes[0]
            .spawn(async move {
                one.flush(&handle).await.unwrap();
                done.set(true);
                other.await.unwrap();
                let read = one.read(inode, 0, (PIECES * STRIDE) as usize, None).await.unwrap();
                let bytes: Vec<u8> =
                    read.iter().flat_map(|chunk| chunk.to_bytes().to_vec()).collect();
                for piece in 0..PIECES {
                    let found = bytes[(piece * STRIDE) as usize];
                    let expected = if piece < 1024 { 2 } else { 1 };
                    assert_eq!(found, expected, "piece {piece}");
                }
                one.release(&handle).await.unwrap();
            })
            .await
            .unwrap();
    };
    simulation.run(whole).unwrap();
}

/// Goal: a read sees what the same client has written, even if a commit ends while the read
/// requests extents. There are enough extents that it needs two calls, and the bytes are then
/// neither dirty any more nor in the extents (seed 37).
#[test]
fn a_read_sees_what_is_committed_while_it_asks() {
    const PIECES: u64 = 1500;
    const STRIDE: u64 = 64;
    let (mut simulation, meta, nodes) = machines(1, 2);
    let memory = || Arc::new(MemoryBacking::new(64 << 20, 4096).unwrap());
    let whole = async move {
        start_meta(&meta, Box::new(MemoryStore::new()), 1);
        let machine = |index: usize| (meta.clone(), nodes[index].clone());
        let client = start_node(&machine(0), 0, memory(), 1).await;
        let other = start_node(&machine(1), 1, memory(), 1).await;
        let writer = Rc::clone(&client);
        let made = nodes[0].spawn(async move {
            let (handle, attr) = writer.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
            for piece in 0..PIECES {
                let byte = Chunk::from(Buffer::copy_from(&[0]));
                writer.write(&handle, piece * STRIDE, byte, false).await.unwrap();
            }
            writer.flush(&handle).await.unwrap();
            (Rc::new(handle), attr.inode)
        });
        let (handle, inode) = made.await.unwrap();
        for round in 1..20_u8 {
            // Makes the first client forget all extents.
            let other = Rc::clone(&other);
            let forget = nodes[1].spawn(async move {
                let mode = Some(0o600 | u16::from(round % 8));
                let changes = AttrChanges { mode, ..AttrChanges::default() };
                other.set_attr(inode, changes).await.unwrap();
            });
            forget.await.unwrap();
            let (client, handle) = (Rc::clone(&client), Rc::clone(&handle));
            let scene = async move {
                let bytes = Chunk::from(Buffer::copy_from(&[round; 10]));
                client.write(&handle, 0, bytes, false).await.unwrap();
                let closer = Rc::clone(&client);
                let close = reactor::spawn(async move { closer.flush(&handle).await });
                let length = (PIECES * STRIDE) as usize;
                let read = client.read(inode, 0, length, None).await.unwrap();
                let bytes: Vec<u8> = read.iter().flat_map(|it| it.to_bytes().to_vec()).collect();
                assert_eq!(bytes[..10], [round; 10], "round {round}");
                close.await.unwrap().unwrap();
            };
            nodes[0].spawn(scene).await.unwrap();
        }
    };
    simulation.run(whole).unwrap();
}
