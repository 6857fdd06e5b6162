//! Scenes in which two tasks of one client, or two clients, meet at a moment that random loads
//! seldom hit: one for each bug with data that a seed of the simulation has shown. Those with files
//! that are open without a name are in `opens.rs`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod stage;

use block::{Backing, Device, Fault, FaultPlan, Geometry, Incarnation, IoFuture, MemoryBacking};
use client::{Client, OpenMode, Setting};
use protocol::attr::AttrChanges;
use protocol::client::FallocateMode;
use protocol::{Errno, InodeId};
use reactor::time::{sleep, timeout};
use reactor::{Buffer, Chunk, Segments, spawn};
use stage::{BLOCK_BYTES, DEVICE_BYTES, play, play_on};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const ROOT: InodeId = InodeId::ROOT;
const SETTING: Setting = Setting { mode: 0o644, uid: 0, gid: 0 };
const WRITE: OpenMode = OpenMode { write: true, append: false, sync: false };
/// A device with slow operations, usually longer than the pause between two write-backs.
const SLOW: FaultPlan = FaultPlan {
    read_error_ppm: 0,
    write_error_ppm: 0,
    torn_write_ppm: 0,
    flush_error_ppm: 0,
    delay_ppm: 1_000_000,
    delay_max: Duration::from_secs(1),
};

fn bytes(byte: u8) -> Chunk {
    Chunk::from(Buffer::copy_from(&[byte; 5000]))
}

/// Goal: data written before an fsync survives the loss of the store's unsynced tail when the fsync
/// returns, even if a close of the same client was committing it just then and left nothing to
/// commit (seed 78).
#[test]
fn an_fsync_makes_durable_what_a_close_has_committed_meanwhile() {
    play(1, async |stage| {
        let store = stage.store();
        let scene = async move |client: Rc<Client>| {
            let (handle, attr) = client.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
            client.write(&handle, 0, bytes(7), false).await.unwrap();
            let closer = Rc::clone(&client);
            let close = spawn(async move { closer.release(&handle).await });
            // By then the commit is under way.
            reactor::yield_now().await;
            client.fsync(attr.inode).await.unwrap();
            assert!(store.unsynced().is_empty(), "fsync has answered too early");
            close.await.unwrap().unwrap();
        };
        stage.on(0, scene).await;
    });
}

/// A device with one flush that takes longer than a durable commit waits.
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

/// Goal: an fsync fails if its data was committed but could not be made durable in time. The blocks
/// that the commit has named are not used for another file (seed 27).
#[test]
fn blocks_of_a_commit_that_is_not_durable_in_time_are_not_used_again() {
    let memory = Arc::new(MemoryBacking::new(DEVICE_BYTES, BLOCK_BYTES).unwrap());
    let is_next = Arc::new(AtomicBool::new(false));
    let backing = Arc::new(SlowFlush { memory, is_next: Arc::clone(&is_next) });
    let scene = async move |client: Rc<Client>| {
        let (handle, attr) = client.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
        client.write(&handle, 0, bytes(1), false).await.unwrap();
        client.release(&handle).await.unwrap();
        // The service requests a flush within half a second, and that flush is slow.
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
        let is_foreign = read.iter().any(|chunk| chunk.to_bytes().contains(&3));
        assert!(!is_foreign, "a file holds what was written to another");
        closed.unwrap();
        let _ = client.release(&handle).await;
    };
    let device = Fault::new(backing, 1, FaultPlan::default());
    play_on(device, 1, async |stage| stage.on(0, scene).await);
}

/// Goal: when another session recalls the right and the data cannot be written out, close returns
/// the error (seed 251).
#[test]
fn a_close_tells_what_a_recall_could_not_commit() {
    play(2, async |stage| {
        let write = async |client: Rc<Client>| {
            let (handle, _) = client.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
            client.write(&handle, 0, bytes(1), false).await.unwrap();
            handle
        };
        let handle = stage.on(0, write).await;
        let inode = handle.inode();
        stage.device.set_plan(FaultPlan { write_error_ppm: 1_000_000, ..FaultPlan::default() });
        let punch = async move |other: Rc<Client>| {
            other.fallocate(inode, 100_000, 5000, FallocateMode::Punch).await.unwrap();
        };
        stage.on(1, punch).await;
        assert_eq!(stage.device.counts().errors, 1, "the recall causes the write");
        let closed = stage.on(0, async move |client| client.release(&handle).await).await;
        assert_eq!(closed, Err(Errno::EIO));
    });
}

/// Goal: data that is written and not committed when another client extends the file, or punches a
/// range beside it, is part of the file. The client answers the recall after its commit, because a
/// later commit would have an older truncate generation and be dropped.
#[test]
fn what_is_written_when_a_file_is_cut_is_committed_before() {
    for is_punch in [false, true] {
        play(2, async |stage| {
            let write = async |writer: Rc<Client>| {
                let (handle, _) = writer.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
                writer.write(&handle, 0, bytes(7), false).await.unwrap();
                handle
            };
            let handle = stage.on(0, write).await;
            let inode = handle.inode();
            let cut = async move |other: Rc<Client>| {
                if is_punch {
                    other.fallocate(inode, 5000, 5000, FallocateMode::Punch).await.unwrap();
                } else {
                    let changes = AttrChanges { size: Some(10_000), ..AttrChanges::default() };
                    other.truncate(inode, changes).await.unwrap();
                }
            };
            stage.on(1, cut).await;
            stage.on(0, async move |writer| writer.release(&handle).await.unwrap()).await;
            let read =
                async move |reader: Rc<Client>| reader.read(inode, 0, 5000, None).await.unwrap();
            let found = stage.on(1, read).await;
            let mut found = found.iter().flat_map(|chunk| chunk.to_bytes().into_owned());
            assert!(found.by_ref().take(5000).eq([7; 5000]), "written data is lost");
        });
    }
}

/// Goal: a write fails if each device has too little free space, even if all together have enough
/// (seeds 653 and 878). The client does not ask for ever for blocks that were granted meanwhile.
#[test]
fn a_write_ends_that_no_device_has_room_for() {
    let zeros = |blocks: usize| Chunk::from(Buffer::zeroed(blocks * BLOCK_BYTES as usize));
    play(2, async |stage| {
        for (name, index) in [(b"0", 0), (b"1", 1)] {
            let write = async move |client: Rc<Client>| {
                let (handle, _) = client.create(ROOT, name, SETTING, WRITE).await.unwrap();
                client.write(&handle, 0, zeros(5), false).await.unwrap();
                client.release(&handle).await.unwrap();
            };
            stage.on(index, write).await;
        }
        let open = async |client: Rc<Client>| {
            // An open file may be closed any time, so the service waits for that.
            let (handle, _) = client.create(ROOT, b"open", SETTING, WRITE).await.unwrap();
            client.unlink(ROOT, b"open").await.unwrap();
            handle
        };
        let _open = stage.on(1, open).await;
        let fill = async move |client: Rc<Client>| {
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
        };
        stage.on(0, fill).await;
    });
}

/// Goal: after a loss of contact that was long enough for its session to end, a client does not
/// answer lookups from its cache (seeds 1427, 2211 and 2278).
#[test]
fn names_are_not_told_from_the_cache_without_contact() {
    play(2, async |stage| {
        let look = async |looker: Rc<Client>| {
            assert_eq!(looker.lookup(ROOT, b"a").await.map(drop), Err(Errno::ENOENT));
            // The client looks the name up again before it learns that its connection was closed
            // meanwhile.
            sleep(protocol::times::HEARTBEAT).await;
            let found = looker.lookup(ROOT, b"a").await.map(drop);
            assert_ne!(found, Err(Errno::ENOENT), "the file was made while the node was paused");
        };
        let look = stage.begin(0, look);
        sleep(Duration::from_millis(10)).await;
        stage.nodes[0].pause();
        let make = async |other: Rc<Client>| {
            let (handle, _) = other.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
            other.release(&handle).await.unwrap();
        };
        stage.on(1, make).await;
        stage.nodes[0].resume();
        look.await.unwrap();
    });
}

/// Goal: data that a close has committed is visible to others, even where another worker of the
/// same client has overwritten it while it was written to its device, and has not committed that
/// yet (seed 631).
#[test]
fn a_close_commits_what_is_overwritten_meanwhile() {
    play(2, async |stage| {
        let device = stage.device.clone();
        let write = async move |writer: Rc<Client>| {
            let (handle, attr) = writer.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
            let (other, _) = writer.open(attr.inode, WRITE).await.unwrap();
            writer.write(&handle, 0, bytes(1), false).await.unwrap();
            device.set_plan(SLOW);
            let closer = Rc::clone(&writer);
            let close = spawn(async move { closer.release(&handle).await });
            // By then the bytes are on their way.
            reactor::yield_now().await;
            writer.write(&other, 0, bytes(2), false).await.unwrap();
            close.await.unwrap().unwrap();
            attr.inode
        };
        let inode = stage.on(0, write).await;
        let read = async move |reader: Rc<Client>| reader.read(inode, 0, 5000, None).await.unwrap();
        let found = stage.on(1, read).await;
        let found: Vec<u8> = found.iter().flat_map(|it| it.to_bytes().into_owned()).collect();
        assert!(found == [1; 5000] || found == [2; 5000], "not one of the writes: {:?}", found[0]);
    });
}

/// Goal: an append goes behind what its own client has written, even if that is committed between
/// the answer with the file's size and its use (seed 5341).
#[test]
fn an_append_goes_behind_what_is_committed_meanwhile() {
    play(1, async |stage| {
        let stage = Rc::new(stage);
        let all = Rc::clone(&stage);
        let scene = async move |client: Rc<Client>| {
            let append = OpenMode { append: true, ..WRITE };
            let (handle, attr) = client.create(ROOT, b"a", SETTING, append).await.unwrap();
            let handle = Rc::new(handle);
            for round in 0..30 {
                let at = client.write(&handle, 0, bytes(1), false).await.unwrap();
                assert_eq!(at, round * 10_000);
                // Both the commit and the append wait for the next connection, and are sent over it
                // together.
                all.network.cut(&all.nodes[0], &all.meta);
                all.network.reset(&all.nodes[0], &all.meta);
                sleep(Duration::from_millis(50)).await;
                let (closer, closed) = (Rc::clone(&client), Rc::clone(&handle));
                let close = spawn(async move { closer.flush(&closed).await });
                let (writer, written) = (Rc::clone(&client), Rc::clone(&handle));
                let write = async move { writer.write(&written, 0, bytes(2), false).await };
                let write = spawn(write);
                sleep(Duration::from_millis(50)).await;
                all.network.heal(&all.nodes[0], &all.meta);
                let at = write.await.unwrap().unwrap();
                assert_eq!(
                    at,
                    round * 10_000 + 5000,
                    "the append shares bytes with the one before"
                );
                close.await.unwrap().unwrap();
                client.flush(&handle).await.unwrap();
            }
            assert_eq!(client.attr(attr.inode).await.unwrap().size, 300_000);
        };
        stage.on(0, scene).await;
    });
}

/// Goal: a truncation waits for another client's writes. Their commit waits for a right of the
/// truncating client, which itself writes to the file meanwhile. They do not wait in a circle until
/// a session is ended (seed 21180).
#[test]
fn writes_beside_a_truncation_do_not_hold_back_what_it_waits_for() {
    play(2, async |stage| {
        let append = OpenMode { append: true, ..WRITE };
        let extend = async move |client: Rc<Client>| {
            let (handle, attr) = client.create(ROOT, b"a", SETTING, append).await.unwrap();
            client.write(&handle, 0, bytes(1), false).await.unwrap();
            client.flush(&handle).await.unwrap();
            (handle, attr.inode)
        };
        // The client keeps the right to extend the file.
        let (own, inode) = stage.on(0, extend).await;
        let write = async move |client: Rc<Client>| {
            let (handle, _) = client.open(inode, WRITE).await.unwrap();
            client.write(&handle, 9000, bytes(2), false).await.unwrap();
            handle
        };
        // The commit takes that right.
        let other = stage.on(1, write).await;
        let truncate = async move |client: Rc<Client>| {
            let truncater = Rc::clone(&client);
            let changes = AttrChanges { size: Some(0), ..AttrChanges::default() };
            let truncation = spawn(async move { truncater.truncate(inode, changes).await });
            // By then the call is sent, and has no answer.
            reactor::yield_now().await;
            client.write(&own, 0, bytes(3), false).await.unwrap();
            truncation.await.unwrap().unwrap();
            client.release(&own).await.unwrap();
        };
        stage.on(0, truncate).await;
        stage.on(1, async move |client: Rc<Client>| client.release(&other).await.unwrap()).await;
    });
}
