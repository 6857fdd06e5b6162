//! Scenes of devices that lose unflushed data, and of flushes: the rules of Power loss in
//! docs/protocol.md.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod stage;

use block::{Fault, FaultPlan};
use client::{Client, Handle};
use node::{NodeConfig, NodeDevice, open_devices};
use protocol::times::{HEARTBEAT, REQUEST_DEADLINE, SESSION_DEADLINE, WRITEBACK};
use protocol::{Errno, InodeId};
use reactor::sim::{DiskError, DiskFault};
use reactor::{File, OpenOptions};

use reactor::time::{sleep, timeout};
use stage::gate::Gate;
use stage::{
    BLOCK_BYTES, DEVICE_BYTES, SETTING, Stage, WRITE, bytes_of, device, filled, make, play_on_one,
};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const ROOT: InodeId = InodeId::ROOT;
const END_LASTS: Duration = Duration::from_mins(2);

/// Plays on nodes. The first one has the only device.
fn play<F: Future<Output = ()>>(nodes: usize, scene: impl FnOnce(Rc<Stage>, Gate) -> F) {
    let gate = Gate::new(DEVICE_BYTES, BLOCK_BYTES);
    let device = Arc::new(gate.clone());
    play_on_one(device, nodes, |_| None, |stage| scene(Rc::new(stage), gate));
}

/// Brings the first node's device back empty, with another incarnation.
async fn lose_device(stage: &Stage, incarnation: u128) {
    let empty = Arc::new(Gate::new(DEVICE_BYTES, BLOCK_BYTES));
    stage.restart_node(0, Some(device(0, empty, incarnation))).await;
}

async fn write(client: &Rc<Client>, handle: &Handle, offset: u64, byte: u8) {
    client.write(handle, offset, filled(byte, 5000), false).await.unwrap();
}

/// Goal: data that a device lost with its power reads as EIO everywhere, even if its extents are
/// cached (F4, F5, F7), until it is written again. Data that was written later (F5) or flushed
/// before is not lost.
#[test]
fn what_a_device_has_lost_reads_as_eio() {
    play(2, async |stage, _| {
        let flushed = async |client: Rc<Client>| {
            let (handle, attr) = client.create(ROOT, b"old", SETTING, WRITE).await.unwrap();
            write(&client, &handle, 0, 1).await;
            client.release(&handle).await.unwrap();
            attr.inode
        };
        stage.on(1, flushed).await;
        sleep(WRITEBACK * 2).await;
        let inode = stage.on(1, async |client| make(&client, b"a", 1, 5000).await).await;
        let read = async move |client: Rc<Client>| bytes_of(&client, inode, 0..5000).await;
        assert_eq!(stage.on(1, read).await.unwrap(), [1; 5000]);
        lose_device(&stage, 2).await;
        assert_eq!(stage.on(1, read).await, Err(Errno::EIO), "its extents were cached");
        assert_eq!(stage.on(0, read).await, Err(Errno::EIO));
        let mend = async move |client: Rc<Client>| {
            let (handle, _) = client.open(inode, WRITE).await.unwrap();
            write(&client, &handle, 0, 2).await;
            client.release(&handle).await.unwrap();
        };
        stage.on(1, mend).await;
        assert_eq!(stage.on(0, read).await.unwrap(), [2; 5000]);
    });
}

/// Goal: a small read past the kernel's pages, which reads whole blocks, gets bytes that were written
/// again, although others of their block are lost (F4).
#[test]
fn a_small_read_spares_what_is_lost_beside_it() {
    play(1, async |stage, _| {
        let inode = stage.on(0, async |client| make(&client, b"a", 1, 5000).await).await;
        lose_device(&stage, 2).await;
        let read = async move |client: Rc<Client>| {
            let (handle, _) = client.open(inode, WRITE).await.unwrap();
            client.write(&handle, 0, filled(2, 100), false).await.unwrap();
            client.flush(&handle).await.unwrap();
            let wanted = client.read_small(inode, 0, 100).await.unwrap();
            let beside = client.read_small(inode, 50, 100).await.map(drop);
            client.release(&handle).await.unwrap();
            let wanted = wanted.iter().flat_map(|chunk| chunk.to_bytes().into_owned());
            (wanted.collect::<Vec<u8>>(), beside)
        };
        let (wanted, beside) = stage.on(0, read).await;
        assert_eq!(wanted, [2; 100]);
        assert_eq!(beside, Err(Errno::EIO));
    });
}

/// Goal: a read that was under way when its device came back with another incarnation returns no
/// bytes of the new content (F7).
#[test]
fn a_read_over_the_rebirth_of_its_device_hands_nothing_over() {
    play(2, async |stage, gate| {
        let inode = stage.on(1, async |client| make(&client, b"a", 1, 5000).await).await;
        let read = async move |client: Rc<Client>| bytes_of(&client, inode, 0..5000).await;
        assert_eq!(stage.on(1, read).await.unwrap(), [1; 5000]);
        gate.reads().hold();
        let reading = stage.begin(1, read);
        gate.reads().until_one_waits().await;
        lose_device(&stage, 2).await;
        let read = timeout(END_LASTS, reading).await.expect("it ends").unwrap();
        assert_eq!(read, Err(Errno::EIO));
    });
}

/// Goal: after its device comes back with another incarnation, uncommitted data is lost to its
/// writer too: it is not committed, and close reports that (F7, I2).
#[test]
fn what_was_written_before_a_rebirth_is_not_committed_after() {
    play(2, async |stage, gate| {
        let begin = async |client: Rc<Client>| {
            let (handle, _) = client.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
            write(&client, &handle, 0, 1).await;
            handle
        };
        let handle = stage.on(1, begin).await;
        let inode = handle.inode();
        gate.writes().hold();
        let closing = stage.begin(1, async move |client| client.release(&handle).await);
        gate.writes().until_one_waits().await;
        // The data goes to the device, and is not committed yet.
        let meta = &stage.meta;
        stage.network.cut(&stage.nodes[1], meta);
        gate.writes().release();
        sleep(Duration::from_millis(50)).await;
        lose_device(&stage, 2).await;
        stage.network.heal(&stage.nodes[1], meta);
        let closed = timeout(END_LASTS, closing).await.expect("it ends").unwrap();
        let read = async move |client: Rc<Client>| bytes_of(&client, inode, 0..5000).await;
        let read = stage.on(0, read).await;
        let is_reported = closed == Err(Errno::EIO) || read == Err(Errno::EIO);
        assert!(is_reported, "{closed:?}, and then {:?}", read.map(|bytes| bytes.len()));
    });
}

/// Goal: an fsync is answered only when data committed before, by any client, has left the device's
/// cache (F2, F8, I3), in whichever way it became part of the file: while a flush is held, the
/// fsync waits.
#[test]
fn an_fsync_waits_for_the_flush_of_all_that_was_committed() {
    for part in ["of another client", "of this client", "just written", "copied"] {
        play(2, async |stage, gate| {
            let inode = stage.on(1, async |client| make(&client, b"a", 1, 5000).await).await;
            if part == "copied" {
                // A file of its own, to which nothing was written.
                let copy = async move |client: Rc<Client>| {
                    let made = client.create(ROOT, b"copy", SETTING, WRITE).await.unwrap();
                    let to = (made.0.inode(), 0);
                    client.copy_range((inode, 0), to, 5000).await.unwrap();
                    made.0.inode()
                };
                let copied = stage.on(1, copy).await;
                return an_fsync_waits(&stage, &gate, 1, copied, false).await;
            }
            let node = usize::from(part != "of another client");
            an_fsync_waits(&stage, &gate, node, inode, part == "just written").await;
        });
    }
}

/// Holds flushes, lets a client call fsync, and checks whether it waits.
async fn an_fsync_waits(stage: &Stage, gate: &Gate, node: usize, inode: InodeId, writes: bool) {
    gate.flushes().hold();
    let before = gate.flushes().passed();
    let sync = async move |client: Rc<Client>| {
        let (handle, _) = client.open(inode, WRITE).await.unwrap();
        if writes {
            write(&client, &handle, 5000, 2).await;
        }
        client.fsync_file(&handle).await
    };
    let syncing = stage.begin(node, sync);
    let mut syncing = syncing;
    let is_early = timeout(HEARTBEAT, &mut syncing).await.is_ok();
    assert!(!is_early || gate.flushes().passed() > before, "fsync waits for no flush");
    assert!(!is_early, "fsync was answered while flushes wait");
    gate.flushes().release();
    timeout(END_LASTS, syncing).await.expect("it ends").unwrap().unwrap();
}

/// Goal: an fsync of data that a device has lost fails (F9), and so does one of data on a device
/// that stays absent.
#[test]
fn an_fsync_of_what_is_lost_or_out_of_reach_fails() {
    for is_lost in [true, false] {
        play(2, async |stage, _| {
            let inode = stage.on(1, async |client| make(&client, b"a", 1, 5000).await).await;
            if is_lost {
                lose_device(&stage, 2).await;
            } else {
                stage.network.isolate(&stage.nodes[0]);
            }
            let sync = stage.on(1, async move |client| client.fsync(inode).await);
            let synced = timeout(END_LASTS, sync).await.expect("it ends");
            assert_eq!(synced, Err(Errno::EIO));
        });
    }
}

/// Goal: a commit that is carried out but not durable returns EIO (F9). When a flush fails, the
/// data that it would have covered is lost to all clients, even if its extents are cached (F4, F6).
#[test]
fn a_flush_that_fails_is_reported_to_all() {
    let gate = Gate::new(DEVICE_BYTES, BLOCK_BYTES);
    let faulty = Fault::new(Arc::new(gate), 1, FaultPlan::default());
    let device = Arc::new(faulty.clone());
    play_on_one(
        device,
        2,
        |_| None,
        async |stage| {
            let inode = stage.on(1, async |client| make(&client, b"a", 1, 5000).await).await;
            let read = async move |client: Rc<Client>| bytes_of(&client, inode, 0..5000).await;
            assert_eq!(stage.on(1, read).await.unwrap(), [1; 5000]);
            faulty.set_plan(FaultPlan { flush_error_ppm: 1_000_000, ..FaultPlan::default() });
            sleep(WRITEBACK * 2).await;
            faulty.set_plan(FaultPlan::default());
            assert_eq!(stage.on(1, read).await, Err(Errno::EIO), "its extents were cached");
            let sync = async move |client: Rc<Client>| {
                let (handle, _) = client.open(inode, WRITE).await.unwrap();
                client.fsync_file(&handle).await
            };
            assert_eq!(stage.on(1, sync).await, Err(Errno::EIO));
            let more = async move |client: Rc<Client>| {
                let (handle, _) = client.open(inode, WRITE).await.unwrap();
                client.write(&handle, 5000, filled(2, 5000), false).await.err()
            };
            let refused = stage.on(1, more).await;
            assert_eq!(refused, Some(Errno::EIO), "the device takes no more data");
            sleep(SESSION_DEADLINE).await;
            assert_eq!(stage.on(0, read).await, Err(Errno::EIO));
        },
    );
}

/// Goal: a flush covers what was committed before its request and nothing later (F1, F3): data that
/// is committed during the flush is lost with the device's power.
#[test]
fn a_flush_under_way_does_not_cover_what_is_committed_meanwhile() {
    play(2, async |stage, gate| {
        stage.on(1, async |client| make(&client, b"a", 1, 5000).await).await;
        gate.flushes().hold();
        gate.flushes().until_one_waits().await;
        let inode = stage.on(1, async |client| make(&client, b"b", 2, 5000).await).await;
        gate.flushes().release();
        sleep(Duration::from_millis(50)).await;
        lose_device(&stage, 2).await;
        let read = async move |client: Rc<Client>| bytes_of(&client, inode, 0..5000).await;
        assert_eq!(stage.on(0, read).await, Err(Errno::EIO), "no flush has covered the data");
    });
}

/// Goal: data that is closed and not synced is flushed within two seconds without a request (F1).
#[test]
fn what_is_closed_is_flushed_soon() {
    play(1, async |stage, gate| {
        stage.on(0, async |client| make(&client, b"a", 1, 5000).await).await;
        sleep(WRITEBACK * 2).await;
        assert!(gate.flushes().passed() > 0, "the data was not flushed");
    });
}

/// Goal: blocks of a failed write are not used again, because the device may still execute the
/// write (P6).
#[test]
fn blocks_of_a_failed_write_are_not_used_again() {
    play(1, async |stage, gate| {
        stage.on(0, async |client| make(&client, b"a", 1, 5000).await).await;
        let before = gate.writes().offsets().len();
        gate.writes().fail_next();
        let fail = async |client: Rc<Client>| {
            let (handle, _) = client.create(ROOT, b"b", SETTING, WRITE).await.unwrap();
            write(&client, &handle, 0, 2).await;
            client.release(&handle).await
        };
        assert_eq!(stage.on(0, fail).await, Err(Errno::EIO));
        let failed = gate.writes().offsets()[before..].to_vec();
        for name in [b"c", b"d", b"e"] {
            stage.on(0, async move |client| make(&client, name, 3, 5000).await).await;
        }
        let later = gate.writes().offsets()[before + failed.len()..].to_vec();
        assert!(!later.is_empty() && later.iter().all(|at| !failed.contains(at)), "{later:?}");
    });
}

/// Goal: blocks of a commit that the service refused are free for their client again (P5): after
/// many refusals it can still use the whole device.
#[test]
fn blocks_of_a_refused_commit_are_free_again() {
    play(1, async |stage, _| {
        let scene = async |client: Rc<Client>, store: meta::store::MemoryStore| {
            let free = client.pool_use().await.unwrap().free_bytes;
            let (handle, attr) = client.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
            for round in 0..4 {
                client.write(&handle, 0, filled(1, 1 << 20), false).await.unwrap();
                // Everything is written, and none of it is committed.
                store.set_fault(Some(meta::store::StoreFault::Full));
                assert!(client.flush(&handle).await.is_err(), "round {round}");
                store.set_fault(None);
                sleep(WRITEBACK * 2).await;
                let changes = protocol::attr::AttrChanges { size: Some(0), ..Default::default() };
                client.truncate(attr.inode, changes).await.unwrap();
            }
            sleep(SESSION_DEADLINE).await;
            let all = filled(2, (free / 2) as usize);
            client.write(&handle, 0, all, false).await.unwrap();
            client.release(&handle).await.unwrap();
        };
        let store = stage.store();
        stage.on(0, async move |client| scene(client, store).await).await;
    });
}

/// Goal: blocks of a commit without an answer are not used again, because the commit may be carried
/// out after its caller gave up (P6).
#[test]
fn blocks_of_a_commit_in_doubt_are_not_used_again() {
    play(3, async |stage, gate| {
        let inode = stage.on(1, async |client| make(&client, b"a", 1, 5000).await).await;
        let read = async move |client: Rc<Client>| bytes_of(&client, inode, 0..5000).await;
        stage.on(0, read).await.unwrap();
        gate.reads().hold();
        // The commit waits for this read, and then for the end of its session.
        let reading = stage.begin(0, read);
        gate.reads().until_one_waits().await;
        let begin = async move |client: Rc<Client>| {
            let (handle, _) = client.open(inode, WRITE).await.unwrap();
            write(&client, &handle, 0, 2).await;
            handle
        };
        let handle = stage.on(1, begin).await;
        let slow = Duration::from_secs(1);
        stage.network.set_latency(&stage.nodes[1], &stage.meta, Some((slow, slow)));
        let again = async move |client: Rc<Client>| {
            let doubtful = client.release(&handle).await;
            assert_eq!(doubtful, Err(Errno::ETIMEDOUT));
            sleep(slow * 4).await;
            make(&client, b"b", 3, 5000).await
        };
        let writing = stage.begin(1, again);
        // The client has given up by then. The service, which got the call a second later, has not.
        sleep(REQUEST_DEADLINE + slow / 2).await;
        gate.reads().release();
        let _ = timeout(END_LASTS, reading).await;
        timeout(END_LASTS, writing).await.expect("it ends").unwrap();
        assert_eq!(stage.on(2, read).await.unwrap(), [2; 5000]);
    });
}

/// Opens the first node's device in a file of its disk, as the node does. The file is made if it is
/// missing.
async fn open_file_device(stage: &Stage) -> NodeDevice {
    let config = "name='node0'\nmeta='127.0.0.1:1'\nsecret='s'\nmarks='/job/node0.marks'\n\
                  [[device]]\npath='/scratch/device'\nuuid='00000000-0000-0000-0000-000000000064'";
    let config: NodeConfig = toml::from_str(config).unwrap();
    let path = config.devices[0].path.clone().unwrap();
    let opening = async move {
        let options = OpenOptions { create: true, ..OpenOptions::READ_WRITE };
        let file = File::open(path, options).unwrap();
        file.set_size(DEVICE_BYTES).unwrap();
        file.sync_all().await.unwrap();
        drop(file);
        open_devices(&config).await.unwrap().remove(0)
    };
    stage.nodes[0].spawn(opening).await.unwrap()
}

/// Goal: a failed flush that the service never learned of, because the node ended before, counts
/// when the node comes back in the same boot: what the flush would have covered is lost, although
/// later flushes succeed (F4). A node that is killed without a failed flush loses nothing.
#[test]
fn a_failed_flush_outlives_its_node() {
    for fails in [true, false] {
        play(2, async |stage, _| {
            stage.nodes[0].kill();
            let device = open_file_device(&stage).await;
            stage.restart_node(0, Some(device.clone())).await;
            let inode = stage.on(1, async |client| make(&client, b"a", 1, 5000).await).await;
            stage.network.cut(&stage.nodes[0], &stage.meta);
            let broken = Some(DiskError::Broken);
            let fault = DiskFault { sync: broken, forgets: true, ..DiskFault::default() };
            if fails {
                stage.nodes[0].set_disk_fault(fault);
                // As a client's connection does.
                let backing = Arc::clone(&device.backing);
                let flush = stage.nodes[0].spawn(async move { backing.attach().flush().await });
                assert!(flush.await.unwrap().is_err());
                stage.nodes[0].set_disk_fault(DiskFault::default());
            }
            stage.nodes[0].kill();
            drop(device);
            stage.network.heal_all();
            stage.restart_node(0, Some(open_file_device(&stage).await)).await;
            let sync = stage.on(1, async move |client| client.fsync(inode).await).await;
            let read = async move |client: Rc<Client>| bytes_of(&client, inode, 0..5000).await;
            let is_whole = stage.on(1, read).await.map(|bytes| bytes == [1; 5000]);
            let wanted =
                if fails { (Err(Errno::EIO), Err(Errno::EIO)) } else { (Ok(()), Ok(true)) };
            assert_eq!((sync, is_whole), wanted);
        });
    }
}

/// Goal: a sync of all files does not wait for one before it begins with the next.
#[test]
fn all_files_are_synced_together() {
    const FILES: u64 = 5;
    play(1, async |stage, gate| {
        let open = async |client: Rc<Client>| {
            let mut handles = Vec::new();
            for number in 0..FILES {
                let name = [b'a' + number as u8];
                let (handle, _) = client.create(ROOT, &name, SETTING, WRITE).await.unwrap();
                write(&client, &handle, 0, 1).await;
                handles.push(handle);
            }
            handles
        };
        gate.writes().hold();
        let handles = stage.on(0, open).await;
        let asked = gate.writes().asked();
        let syncing = stage.begin(0, async |client| client.sync_all().await);
        sleep(WRITEBACK / 20).await;
        assert_eq!(gate.writes().asked() - asked, FILES, "a file waits for another one");
        gate.writes().release();
        syncing.await.unwrap().unwrap();
        drop(handles);
    });
}
