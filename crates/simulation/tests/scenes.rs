//! Scenes in which two tasks of one client meet at a moment that random loads seldom hit: one for
//! each mistake that a seed of the simulation has shown.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "power_cut/cluster.rs"]
mod cluster;

use block::{Backing, Device, Fault, FaultPlan, Geometry, Incarnation, IoFuture, MemoryBacking};
use client::{Client, OpenMode, Setting};
use cluster::{machines, start_meta, start_node};
use meta::store::MemoryStore;
use protocol::client::{FallocateMode, RenameMode};
use protocol::{Errno, InodeId};
use ring::time::{sleep, timeout};
use ring::{Buffer, Chunk, Segments, spawn};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const ROOT: InodeId = InodeId::ROOT;
const SETTING: Setting = Setting { mode: 0o644, uid: 0, gid: 0 };
const WRITE: OpenMode = OpenMode { write: true, append: false, sync: false };
const BLOCK_BYTES: u32 = 4096;
const DEVICE_BYTES: u64 = 4 << 20;
/// Longer than the pause between two write-backs.
const RECALL_LASTS: Duration = Duration::from_secs(1);

/// Runs a scene on the client of one node; it is given the metadata service's store too.
fn on_a_node<F>(scene: impl FnOnce(Rc<Client>, MemoryStore) -> F + 'static)
where
    F: Future<Output = ()> + 'static,
{
    let backing = Arc::new(MemoryBacking::new(DEVICE_BYTES, BLOCK_BYTES).unwrap());
    on_a_node_with(backing, scene);
}

fn on_a_node_with<F>(
    backing: Arc<dyn Backing>,
    scene: impl FnOnce(Rc<Client>, MemoryStore) -> F + 'static,
) where
    F: Future<Output = ()> + 'static,
{
    let (mut simulation, meta, nodes) = machines(1, 1);
    let store = MemoryStore::new();
    let whole = async move {
        start_meta(&meta, Box::new(store.clone()), 1);
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
                    remover.rename((ROOT, b"b"), (ROOT, b"a"), RenameMode::Replace).await.map(drop)
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

/// A device of which one flush takes longer than a durable commit waits for it.
#[derive(Clone, Debug)]
struct SlowFlush {
    memory: Arc<MemoryBacking>,
    /// The next flush is the slow one.
    is_next: Arc<AtomicBool>,
}

struct SlowFlushDevice(SlowFlush, Rc<dyn Device>);

impl Backing for SlowFlush {
    fn geometry(&self) -> Geometry {
        Geometry { has_volatile_cache: true, ..Backing::geometry(&*self.memory) }
    }

    fn incarnation(&self) -> Incarnation {
        Backing::incarnation(&*self.memory)
    }

    fn attach(&self) -> Rc<dyn Device> {
        Rc::new(SlowFlushDevice(self.clone(), self.memory.attach()))
    }
}

impl Device for SlowFlushDevice {
    fn geometry(&self) -> Geometry {
        Backing::geometry(&self.0)
    }

    fn incarnation(&self) -> Incarnation {
        Backing::incarnation(&self.0)
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Chunk> {
        self.1.read(offset, len)
    }

    fn read_into(&self, offset: u64, segments: Segments) -> IoFuture<Segments> {
        self.1.read_into(offset, segments)
    }

    fn write(&self, offset: u64, chunk: Chunk) -> IoFuture<()> {
        self.1.write(offset, chunk)
    }

    fn write_chunks(&self, offset: u64, chunks: Vec<Chunk>) -> IoFuture<()> {
        self.1.write_chunks(offset, chunks)
    }

    fn flush(&self) -> IoFuture<()> {
        let is_slow = self.0.is_next.swap(false, Ordering::SeqCst);
        IoFuture::boxed(async move {
            if is_slow {
                sleep(protocol::times::SESSION_DEADLINE * 2).await;
            }
            Ok(())
        })
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.1.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.1.write_zeroes(offset, len)
    }
}

/// Goal: an fsync whose data was committed, but could not be made durable in time, fails; the blocks
/// that the commit has named are not used for another file (seed 27).
#[test]
fn blocks_of_a_commit_that_is_not_durable_in_time_are_not_used_again() {
    let memory = Arc::new(MemoryBacking::new(DEVICE_BYTES, BLOCK_BYTES).unwrap());
    let is_next = Arc::new(AtomicBool::new(false));
    let backing = SlowFlush { memory, is_next: Arc::clone(&is_next) };
    on_a_node_with(Arc::new(backing), async move |client, _| {
        let bytes = |byte: u8| Chunk::from(Buffer::copy_from(&[byte; 5000]));
        let (handle, attr) = client.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
        client.write(&handle, 0, bytes(1), false).await.unwrap();
        client.release(&handle).await.unwrap();
        // The service has it flushed within half a second, and that takes long.
        is_next.store(true, Ordering::SeqCst);
        sleep(protocol::times::WRITEBACK).await;
        assert!(!is_next.load(Ordering::SeqCst), "the slow flush has begun");
        let (handle, _) = client.open(attr.inode, WRITE).await.unwrap();
        client.write(&handle, 5000, bytes(2), false).await.unwrap();
        assert_eq!(client.fsync(attr.inode).await, Err(Errno::EIO));
        let (other, _) = client.create(ROOT, b"b", SETTING, WRITE).await.unwrap();
        client.write(&other, 0, bytes(3), false).await.unwrap();
        let closed = client.release(&other).await;
        let read = client.read(attr.inode, 0, 10_000, None).await.unwrap();
        let is_foreign = read.iter().any(|chunk| chunk.as_slice().contains(&3));
        assert!(!is_foreign, "a file holds what was written to another");
        closed.unwrap();
        let _ = client.release(&handle).await;
    });
}

/// Goal: what cannot be written out when another session asks for the right to it is told at close
/// (seed 251).
#[test]
fn a_close_tells_what_a_recall_could_not_commit() {
    let (mut simulation, meta, nodes) = machines(1, 2);
    let memory = || Arc::new(MemoryBacking::new(DEVICE_BYTES, BLOCK_BYTES).unwrap());
    let backing = Fault::new(memory(), 1, FaultPlan::default());
    let whole = async move {
        start_meta(&meta, Box::new(MemoryStore::new()), 1);
        let machine = |index: usize| (meta.clone(), nodes[index].clone());
        let writer = start_node(&machine(0), 0, Arc::new(backing.clone()), 1).await;
        let other = start_node(&machine(1), 1, memory(), 1).await;
        let (writer_again, at) = (Rc::clone(&writer), &nodes[0]);
        let written = at.spawn(async move {
            let (handle, attr) = writer.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
            let bytes = Chunk::from(Buffer::copy_from(&[1; 5000]));
            writer.write(&handle, 0, bytes, false).await.unwrap();
            (handle, attr.inode)
        });
        let (handle, inode) = written.await.unwrap();
        backing.set_plan(FaultPlan { write_error_ppm: 1_000_000, ..FaultPlan::default() });
        let punch = nodes[1].spawn(async move {
            other.fallocate(inode, 100_000, 5000, FallocateMode::Punch).await.unwrap();
        });
        punch.await.unwrap();
        assert_eq!(backing.counts().errors, 1, "the recall has it written out");
        let closed = at.spawn(async move { writer_again.release(&handle).await });
        assert_eq!(closed.await.unwrap(), Err(Errno::EIO));
    };
    simulation.run(whole).unwrap();
}

/// Goal: a write for which each device has too little left fails, even if all together have enough
/// (seeds 653 and 878): the blocks that were granted meanwhile are not asked for again for ever.
#[test]
fn a_write_ends_that_no_device_has_room_for() {
    let (mut simulation, meta, nodes) = machines(1, 2);
    let memory = || Arc::new(MemoryBacking::new(DEVICE_BYTES, BLOCK_BYTES).unwrap());
    let whole = async move {
        start_meta(&meta, Box::new(MemoryStore::new()), 1);
        let mut clients = Vec::new();
        for (index, node) in nodes.iter().enumerate() {
            let machine = (meta.clone(), node.clone());
            clients.push(start_node(&machine, index, memory(), 1).await);
        }
        let zeros = |blocks: usize| Chunk::from(Buffer::zeroed(blocks * BLOCK_BYTES as usize));
        for (name, index) in [(b"0", 0), (b"1", 1)] {
            let client: &Rc<Client> = &clients[index];
            let client = Rc::clone(client);
            let job = nodes[index].spawn(async move {
                let (handle, _) = client.create(ROOT, name, SETTING, WRITE).await.unwrap();
                client.write(&handle, 0, zeros(5), false).await.unwrap();
                client.release(&handle).await.unwrap();
            });
            job.await.unwrap();
        }
        let client = Rc::clone(&clients[1]);
        let job = nodes[1].spawn(async move {
            // While it is open it may be closed any time: the service asks on, lest that be missed.
            let (handle, _) = client.create(ROOT, b"open", SETTING, WRITE).await.unwrap();
            client.unlink(ROOT, b"open").await.unwrap();
            handle
        });
        let _open = job.await.unwrap();
        let client = Rc::clone(&clients[0]);
        let job = nodes[0].spawn(async move {
            let (handle, attr) = client.create(ROOT, b"rest", SETTING, WRITE).await.unwrap();
            let mut offset = 0;
            while client.write(&handle, offset, zeros(1), false).await.is_ok() {
                offset += u64::from(BLOCK_BYTES);
                client.fsync(attr.inode).await.unwrap();
            }
            client.unlink(ROOT, b"0").await.unwrap();
            client.unlink(ROOT, b"1").await.unwrap();
            let patience = Duration::from_mins(2);
            let write = timeout(patience, client.write(&handle, offset, zeros(8), false));
            assert_eq!(write.await.expect("it ends"), Err(Errno::ENOSPC));
            client.write(&handle, offset, zeros(5), false).await.unwrap();
            client.release(&handle).await.unwrap();
        });
        job.await.unwrap();
    };
    simulation.run(whole).unwrap();
}

/// Goal: a file that is closed while its right to be written is recalled, and told to be closed right
/// after the recall is answered, is gone with its last name (seeds 727 and 2152).
#[test]
fn a_file_closed_during_a_recall_goes_with_its_last_name() {
    let (mut simulation, meta, nodes) = machines(1, 2);
    let memory = || Arc::new(MemoryBacking::new(DEVICE_BYTES, BLOCK_BYTES).unwrap());
    let slow = FaultPlan { delay_ppm: 1_000_000, delay_max: RECALL_LASTS, ..FaultPlan::default() };
    let backing = Fault::new(memory(), 1, FaultPlan::default());
    let whole = async move {
        start_meta(&meta, Box::new(MemoryStore::new()), 1);
        let machine = |index: usize| (meta.clone(), nodes[index].clone());
        let writer = start_node(&machine(0), 0, Arc::new(backing.clone()), 1).await;
        let other = start_node(&machine(1), 1, memory(), 1).await;
        let inodes = async |client: &Rc<Client>| client.pool_use().await.unwrap().inodes;
        let elsewhere = nodes[1].clone();
        let scene = nodes[0].spawn(async move {
            let before = inodes(&writer).await;
            backing.set_plan(slow);
            for _ in 0..50 {
                let (handle, attr) = writer.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
                let bytes = Chunk::from(Buffer::copy_from(&[1; 5000]));
                writer.write(&handle, 0, bytes, false).await.unwrap();
                let remover = Rc::clone(&other);
                let removed = elsewhere.spawn(async move { remover.unlink(ROOT, b"a").await });
                // The recall has begun to commit by then; next come the close and the write-back.
                sleep(Duration::from_millis(2)).await;
                writer.release(&handle).await.unwrap();
                removed.await.unwrap().unwrap();
                writer.forget(attr.inode, 1);
            }
            sleep(protocol::times::WRITEBACK * 4).await;
            assert_eq!(inodes(&writer).await, before);
        });
        scene.await.unwrap();
    };
    simulation.run(whole).unwrap();
}

/// Goal: a file whose last name has gone is gone with its last handle, also if the service and the
/// client lost their connection while it was open (seeds 653 and 727).
#[test]
fn an_open_that_was_reclaimed_can_be_returned() {
    let (mut simulation, meta, nodes) = machines(1, 1);
    let network = simulation.network();
    let memory = Arc::new(MemoryBacking::new(DEVICE_BYTES, BLOCK_BYTES).unwrap());
    let whole = async move {
        start_meta(&meta, Box::new(MemoryStore::new()), 1);
        let machine = (meta.clone(), nodes[0].clone());
        let client = start_node(&machine, 0, memory, 1).await;
        let node = nodes[0].clone();
        let scene = nodes[0].spawn(async move {
            let before = client.pool_use().await.unwrap().inodes;
            let (handle, attr) = client.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
            client.unlink(ROOT, b"a").await.unwrap();
            network.reset(&node, &meta);
            assert_eq!(client.pool_use().await.unwrap().inodes, before + 1);
            client.release(&handle).await.unwrap();
            client.forget(attr.inode, 1);
            sleep(protocol::times::WRITEBACK * 4).await;
            assert_eq!(client.pool_use().await.unwrap().inodes, before);
        });
        scene.await.unwrap();
    };
    simulation.run(whole).unwrap();
}

/// Goal: a client that was out of contact for so long that its session may have ended says nothing of
/// names by what it has cached (seeds 1427, 2211 and 2278).
#[test]
fn names_are_not_told_from_the_cache_without_contact() {
    let (mut simulation, meta, nodes) = machines(1, 2);
    let memory = || Arc::new(MemoryBacking::new(DEVICE_BYTES, BLOCK_BYTES).unwrap());
    let whole = async move {
        start_meta(&meta, Box::new(MemoryStore::new()), 1);
        let machine = |index: usize| (meta.clone(), nodes[index].clone());
        let paused = start_node(&machine(0), 0, memory(), 1).await;
        let other = start_node(&machine(1), 1, memory(), 1).await;
        let looker = Rc::clone(&paused);
        let look = nodes[0].spawn(async move {
            assert_eq!(looker.lookup(ROOT, b"a").await.map(drop), Err(Errno::ENOENT));
            // It looks again before it learns that its connection was closed meanwhile.
            sleep(protocol::times::HEARTBEAT).await;
            let found = looker.lookup(ROOT, b"a").await.map(drop);
            assert_ne!(found, Err(Errno::ENOENT), "it was made while the node was paused");
        });
        sleep(Duration::from_millis(10)).await;
        nodes[0].pause();
        let made = nodes[1].spawn(async move {
            let (handle, _) = other.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
            other.release(&handle).await.unwrap();
        });
        made.await.unwrap();
        nodes[0].resume();
        look.await.unwrap();
    };
    simulation.run(whole).unwrap();
}

/// Goal: what a close has committed is seen by others, also where another worker of the same client
/// has overwritten it while it went to its device, and not committed that yet (seed 631).
#[test]
fn a_close_commits_what_is_overwritten_meanwhile() {
    let (mut simulation, meta, nodes) = machines(1, 2);
    let memory = || Arc::new(MemoryBacking::new(DEVICE_BYTES, BLOCK_BYTES).unwrap());
    let slow = FaultPlan { delay_ppm: 1_000_000, delay_max: RECALL_LASTS, ..FaultPlan::default() };
    let backing = Fault::new(memory(), 1, FaultPlan::default());
    let whole = async move {
        start_meta(&meta, Box::new(MemoryStore::new()), 1);
        let machine = |index: usize| (meta.clone(), nodes[index].clone());
        let writer = start_node(&machine(0), 0, Arc::new(backing.clone()), 1).await;
        let reader = start_node(&machine(1), 1, memory(), 1).await;
        let bytes = |byte: u8| Chunk::from(Buffer::copy_from(&[byte; 5000]));
        let write = nodes[0].spawn(async move {
            let (handle, attr) = writer.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
            let (other, _) = writer.open(attr.inode, WRITE).await.unwrap();
            writer.write(&handle, 0, bytes(1), false).await.unwrap();
            backing.set_plan(slow);
            let closer = Rc::clone(&writer);
            let close = spawn(async move { closer.release(&handle).await });
            // Its bytes are on their way by then.
            ring::yield_now().await;
            writer.write(&other, 0, bytes(2), false).await.unwrap();
            close.await.unwrap().unwrap();
            attr.inode
        });
        let inode = write.await.unwrap();
        let read = nodes[1].spawn(async move { reader.read(inode, 0, 5000, None).await.unwrap() });
        let found = read.await.unwrap();
        let found: Vec<u8> = found.iter().flat_map(Chunk::as_slice).copied().collect();
        assert!(found == [1; 5000] || found == [2; 5000], "neither of the writes: {:?}", found[0]);
    };
    simulation.run(whole).unwrap();
}

/// Goal: what an fsync has committed is read back also from a file whose last name this client has
/// removed in between: extents from before are not used (seed 4795).
#[test]
fn a_file_that_lost_its_name_is_read_as_synced() {
    on_a_node(async |client, _| {
        let (handle, attr) = client.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
        let bytes = Chunk::from(Buffer::copy_from(&[1; 5000]));
        client.write(&handle, 0, bytes, false).await.unwrap();
        client.unlink(ROOT, b"a").await.unwrap();
        client.fsync(attr.inode).await.unwrap();
        client.attr(attr.inode).await.unwrap();
        let read = client.read(attr.inode, 0, 5000, None).await.unwrap();
        assert!(read.iter().flat_map(Chunk::as_slice).all(|byte| *byte == 1), "zeros");
        client.release(&handle).await.unwrap();
    });
}
