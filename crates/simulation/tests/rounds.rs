//! Scenes of operations that others overtake: they end, and wait for nothing that they do not need.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "power_cut/cluster.rs"]
mod cluster;

use block::{Fault, FaultPlan, MemoryBacking};
use client::{OpenMode, Setting};
use cluster::{machines, start_meta, start_node};
use meta::store::MemoryStore;
use protocol::InodeId;
use protocol::attr::AttrChanges;
use ring::time::{now, sleep};
use ring::{Buffer, Chunk};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const ROOT: InodeId = InodeId::ROOT;
const SETTING: Setting = Setting { mode: 0o644, uid: 0, gid: 0 };
const WRITE: OpenMode = OpenMode { write: true, append: false, sync: false };

/// Goal: opening a file for writing needs WRITE; it does not wait while another session's change bars
/// READ, here because a reader is slow to end its read.
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
        assert!(changed >= read, "the change waits for the read");
        assert!(opened < read, "the open waits for nobody");
    };
    simulation.run(whole).unwrap();
}
