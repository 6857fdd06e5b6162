//! Scenes in which two tasks of one client meet at a moment that random loads seldom hit: one for
//! each mistake that a seed of the simulation has shown.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "power_cut/cluster.rs"]
mod cluster;

use block::MemoryBacking;
use client::{Client, OpenMode, Setting};
use cluster::{machines, start_meta, start_node};
use meta::store::MemoryStore;
use protocol::InodeId;
use protocol::client::RenameMode;
use ring::time::{sleep, timeout};
use ring::{Buffer, Chunk, spawn};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const ROOT: InodeId = InodeId::ROOT;
const SETTING: Setting = Setting { mode: 0o644, uid: 0, gid: 0 };
const WRITE: OpenMode = OpenMode { write: true, append: false, sync: false };
const BLOCK_BYTES: u32 = 4096;
const DEVICE_BYTES: u64 = 4 << 20;

/// Runs a scene on the client of one node; it is given the metadata service's store too.
fn on_a_node<F>(scene: impl FnOnce(Rc<Client>, MemoryStore) -> F + 'static)
where
    F: Future<Output = ()> + 'static,
{
    let (mut simulation, meta, nodes) = machines(1, 1);
    let store = MemoryStore::new();
    let whole = async move {
        start_meta(&meta, Box::new(store.clone()), 1);
        let backing = Arc::new(MemoryBacking::new(DEVICE_BYTES, BLOCK_BYTES).unwrap());
        let client = start_node(&(meta, nodes[0].clone()), 0, backing, 1).await;
        nodes[0].spawn(scene(client, store)).await.unwrap();
    };
    simulation.run(whole).unwrap();
}

/// Goal: an unlink, or a rename over a name, whose client has the file open tells the service so
/// first; it ends also if the file is closed while it does that: then there is nothing to tell, and
/// what the service grants is returned at once (seed 189).
#[test]
fn a_removal_ends_when_its_file_is_closed_meanwhile() {
    on_a_node(async |client, _| {
        for is_rename in [false, true] {
            for name in [&b"a"[..], b"b"] {
                let made = client.create(ROOT, name, SETTING, WRITE).await;
                client.release(&made.unwrap().0).await.unwrap();
            }
            // Opens that have ended are told of by then.
            sleep(protocol::times::WRITEBACK * 2).await;
            let inode = client.lookup(ROOT, b"a").await.unwrap().inode;
            let (handle, _) = client.open(inode, OpenMode::default()).await.unwrap();
            let remover = Rc::clone(&client);
            let removal = spawn(async move {
                if is_rename {
                    remover.rename((ROOT, b"b"), (ROOT, b"a"), RenameMode::Replace).await
                } else {
                    remover.unlink(ROOT, b"a").await
                }
            });
            // It has asked by then, and has no answer.
            ring::yield_now().await;
            client.release(&handle).await.unwrap();
            let ended = timeout(Duration::from_mins(2), removal).await;
            ended.expect("it ends").unwrap().unwrap();
            let _ = client.unlink(ROOT, b"b").await;
        }
    });
}

/// Goal: what was written before an fsync survives the loss of the store's unsynced tail when the
/// fsync returns, also if a close of the same client was just committing it and left nothing to
/// commit (seed 78).
#[test]
fn an_fsync_makes_durable_what_a_close_has_committed_meanwhile() {
    on_a_node(async |client, store| {
        let (handle, attr) = client.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
        let bytes = Chunk::from(Buffer::copy_from(&[7; 5000]));
        client.write(&handle, 0, bytes, false).await.unwrap();
        let closer = Rc::clone(&client);
        let close = spawn(async move { closer.release(&handle).await });
        // The commit is under way by then.
        ring::yield_now().await;
        client.fsync(attr.inode).await.unwrap();
        assert!(store.unsynced().is_empty(), "fsync has answered too early");
        close.await.unwrap().unwrap();
    });
}
