//! Scenes of failures that are reported to a client: which calls report them, what the client reads
//! afterwards, and what happens to the blocks.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod stage;

use block::{Fault, FaultPlan};
use client::{Client, OpenMode, Setting};
use protocol::{Errno, InodeId};
use reactor::time::sleep;
use reactor::{Buffer, Chunk};
use stage::play;
use std::rc::Rc;
use std::time::Duration;

const ROOT: InodeId = InodeId::ROOT;
const SETTING: Setting = Setting { mode: 0o644, uid: 0, gid: 0 };
const WRITE: OpenMode = OpenMode { write: true, append: false, sync: false };

/// Runs a scene on the client of one of two nodes, with control over the failures of its device.
fn on_a_faulty_node<F>(scene: impl FnOnce(Rc<Client>, Fault) -> F)
where
    F: Future<Output = ()> + 'static,
{
    play(2, async |stage| {
        let device = stage.device.clone();
        stage.on(0, |client| scene(client, device)).await;
    });
}

fn bytes(byte: u8) -> Chunk {
    Chunk::from(Buffer::copy_from(&[byte; 5000]))
}

fn all_are(chunks: &[Chunk], byte: u8) -> bool {
    chunks.iter().all(|chunk| chunk.to_bytes().iter().all(|found| *found == byte))
}

/// Goal: when a device cannot flush committed data, clients with the file's extents in their cache
/// read EIO like all others. A later durable commit fails but is carried out: its writer sees the
/// new size and reads what was written, on another device. Data that is written again can be read.
#[test]
fn who_cached_what_a_device_has_lost_reads_none_of_it() {
    on_a_faulty_node(async |client, backing| {
        let (handle, attr) = client.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
        client.write(&handle, 0, bytes(1), false).await.unwrap();
        client.flush(&handle).await.unwrap();
        assert!(all_are(&client.read(attr.inode, 0, 5000, None).await.unwrap(), 1));
        backing.set_plan(FaultPlan { flush_error_ppm: 1_000_000, ..FaultPlan::default() });
        sleep(protocol::times::WRITEBACK * 2).await;
        assert!(backing.counts().errors > 0, "the service has flushed the device");
        assert_eq!(client.read(attr.inode, 0, 5000, None).await.unwrap_err(), Errno::EIO);
        backing.set_plan(FaultPlan::default());
        client.write(&handle, 5000, bytes(2), false).await.unwrap();
        assert_eq!(client.fsync_file(&handle).await, Err(Errno::EIO));
        assert_eq!(client.attr(attr.inode).await.unwrap().size, 10_000);
        assert!(all_are(&client.read(attr.inode, 5000, 5000, None).await.unwrap(), 2));
        assert_eq!(client.read(attr.inode, 0, 5000, None).await.unwrap_err(), Errno::EIO);
        client.write(&handle, 0, bytes(3), false).await.unwrap();
        client.fsync_file(&handle).await.unwrap();
        assert!(all_are(&client.read(attr.inode, 0, 5000, None).await.unwrap(), 3));
        client.release(&handle).await.unwrap();
    });
}

/// Goal: a failure is reported once to every handle that was open, whichever handle's call met it
/// first, and not to handles that were opened after it was reported.
#[test]
fn each_handle_is_told_of_a_failure_once() {
    on_a_faulty_node(async |client, backing| {
        let (one, attr) = client.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
        let (two, _) = client.open(attr.inode, WRITE).await.unwrap();
        let (reader, _) = client.open(attr.inode, OpenMode::default()).await.unwrap();
        backing.set_plan(FaultPlan { write_error_ppm: 1_000_000, ..FaultPlan::default() });
        client.write(&one, 0, bytes(1), false).await.unwrap();
        assert_eq!(client.flush(&two).await, Err(Errno::EIO));
        backing.set_plan(FaultPlan::default());
        let (three, _) = client.open(attr.inode, WRITE).await.unwrap();
        assert_eq!(client.fsync_file(&three).await, Ok(()));
        assert_eq!(client.fsync_file(&one).await, Err(Errno::EIO));
        assert_eq!(client.fsync_file(&reader).await, Err(Errno::EIO));
        for handle in [one, two, three, reader] {
            assert_eq!(client.fsync_file(&handle).await, Ok(()));
            client.release(&handle).await.unwrap();
        }
    });
}

/// Goal: a handle whose data could not be written out is broken when its session is lost right
/// after, even though nothing is dirty any more and no call has reported the failure. It must not
/// continue as if nothing had failed.
#[test]
fn a_handle_whose_data_was_refused_breaks_with_its_session() {
    play(1, async |stage| {
        let (device, network) = (stage.device.clone(), stage.network.clone());
        let (meta, node) = (stage.meta.clone(), stage.nodes[0].clone());
        let scene = async move |client: Rc<Client>| {
            let (handle, attr) = client.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
            device.set_plan(FaultPlan { write_error_ppm: 1_000_000, ..FaultPlan::default() });
            client.write(&handle, 0, bytes(1), false).await.unwrap();
            sleep(protocol::times::WRITEBACK * 2).await;
            device.set_plan(FaultPlan::default());
            network.cut(&meta, &node);
            sleep(protocol::times::SESSION_DEADLINE * 2).await;
            network.heal(&meta, &node);
            sleep(protocol::times::SESSION_DEADLINE).await;
            let broken = client.write(&handle, 5000, bytes(2), false).await;
            assert_eq!(broken, Err(Errno::EIO));
            assert_eq!(client.flush(&handle).await, Err(Errno::EIO));
            let (other, _) = client.open(attr.inode, WRITE).await.unwrap();
            client.write(&other, 0, bytes(3), false).await.unwrap();
            client.fsync_file(&other).await.unwrap();
        };
        stage.on(0, scene).await;
    });
}

/// Goal: a connection that breaks while it is first made fails no read, like one that breaks later.
#[test]
fn a_connection_that_breaks_while_it_is_made_costs_no_read() {
    for after_us in (100..5_000).step_by(300) {
        play(2, async |stage| {
            let writing = async move |client: Rc<Client>| {
                let (handle, attr) = client.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
                client.write(&handle, 0, bytes(1), false).await.unwrap();
                client.release(&handle).await.unwrap();
                attr.inode
            };
            let inode = stage.on(0, writing).await;
            let (network, nodes) = (stage.network.clone(), stage.nodes.clone());
            let reading =
                stage.begin(1, async move |client| client.read(inode, 0, 5000, None).await);
            sleep(Duration::from_micros(after_us)).await;
            network.reset(&nodes[0], &nodes[1]);
            let read = reading.await.unwrap();
            assert!(all_are(&read.expect("it is read"), 1), "reset after {after_us} us");
        });
    }
}

/// Goal: reads under way end when their client ends, and no task spins until they do: a task that
/// is always ready would stop the simulated time.
#[test]
fn reads_under_way_end_with_their_client() {
    for after_us in (0..3_000).step_by(100) {
        play(2, async |stage| {
            let writing = async move |client: Rc<Client>| {
                let (handle, attr) = client.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
                client.write(&handle, 0, bytes(1), false).await.unwrap();
                client.release(&handle).await.unwrap();
                attr.inode
            };
            let inode = stage.on(0, writing).await;
            for _ in 0..4 {
                drop(stage.begin(
                    1,
                    async move |client| {
                        while client.read(inode, 0, 5000, None).await.is_ok() {}
                    },
                ));
            }
            sleep(Duration::from_millis(10) + Duration::from_micros(after_us)).await;
            let _ = stage.on(1, async move |client| client.end().await).await;
        });
    }
}
