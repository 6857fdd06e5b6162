//! Scenes of rights that are recalled, kept and returned: the rules of Rights and Data in
//! docs/protocol.md.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod stage;

use client::{Client, OpenMode};
use protocol::attr::AttrChanges;
use protocol::times::{HEARTBEAT, WRITEBACK};
use protocol::{Errno, InodeId};
use reactor::time::{sleep, timeout};
use stage::gate::Gate;
use stage::{
    APPEND, BLOCK_BYTES, DEVICE_BYTES, SETTING, Stage, WRITE, bytes_of, filled, make, play,
    play_on_one,
};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const ROOT: InodeId = InodeId::ROOT;
/// Time in which a message over a fast network arrives and is answered.
const MOMENT: Duration = Duration::from_millis(20);
const END_LASTS: Duration = Duration::from_mins(2);

fn play_gated<F: Future<Output = ()>>(nodes: usize, scene: impl FnOnce(Rc<Stage>, Gate) -> F) {
    let gate = Gate::new(DEVICE_BYTES, BLOCK_BYTES);
    let device = Arc::new(gate.clone());
    play_on_one(device, nodes, |_| None, |stage| scene(Rc::new(stage), gate));
}

/// Goal: after another client has changed data or attributes, nothing older is returned from a
/// cache (R6, T1, I6).
#[test]
fn what_others_changed_is_not_told_from_a_cache() {
    play(2, async |stage| {
        let inode = stage.on(0, async |client| make(&client, b"a", 1, 5000).await).await;
        let look = async move |client: Rc<Client>| {
            let attr = client.attr(inode).await.unwrap();
            (attr.size, bytes_of(&client, inode, 0..8).await.unwrap())
        };
        for round in 2..6_u8 {
            let size = 5000 * u64::from(round);
            let change = async move |client: Rc<Client>| {
                let (handle, _) = client.open(inode, WRITE).await.unwrap();
                client.write(&handle, 0, filled(round, 8), false).await.unwrap();
                client.release(&handle).await.unwrap();
                let changes = AttrChanges { size: Some(size), ..AttrChanges::default() };
                client.truncate(inode, changes).await.unwrap();
            };
            stage.on(usize::from(round % 2), change).await;
            for node in [0, 1] {
                let seen = stage.on(node, look).await;
                assert_eq!(seen, (size, vec![round; 8]), "node {node}, round {round}");
            }
        }
    });
}

/// Goal: a commit of a client with outdated extents in its cache does not make them current again
/// (I6).
#[test]
fn a_commit_keeps_no_extents_that_others_have_replaced() {
    play(2, async |stage| {
        let inode = stage.on(0, async |client| make(&client, b"a", 1, 20_000).await).await;
        let begin = async move |client: Rc<Client>| {
            let (handle, _) = client.open(inode, WRITE).await.unwrap();
            bytes_of(&client, inode, 0..20_000).await.unwrap();
            client.write(&handle, 0, filled(2, 100), false).await.unwrap();
            handle
        };
        let handle = stage.on(0, begin).await;
        let other = async move |client: Rc<Client>| {
            let (handle, _) = client.open(inode, WRITE).await.unwrap();
            client.write(&handle, 10_000, filled(3, 100), false).await.unwrap();
            client.release(&handle).await.unwrap();
        };
        stage.on(1, other).await;
        stage.on(0, async move |client| client.release(&handle).await.unwrap()).await;
        let read =
            async move |client: Rc<Client>| bytes_of(&client, inode, 10_000..10_100).await.unwrap();
        assert_eq!(stage.on(0, read).await, [3; 100]);
    });
}

/// Goal: a connection that is lost while a recall of WRITE waits for the commit costs nothing: the
/// client reports its rights until the answer, and the written data is part of the file (R6).
#[test]
fn a_recall_outlives_the_connection() {
    play_gated(2, async |stage, gate| {
        let begin = async |client: Rc<Client>| {
            let (handle, _) = client.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
            client.write(&handle, 0, filled(7, 5000), false).await.unwrap();
            handle
        };
        let handle = stage.on(1, begin).await;
        let inode = handle.inode();
        gate.writes().hold();
        let cut = stage.begin(0, async move |client: Rc<Client>| {
            let changes = AttrChanges { size: Some(10_000), ..AttrChanges::default() };
            client.truncate(inode, changes).await.unwrap();
        });
        gate.writes().until_one_waits().await;
        stage.network.reset(&stage.nodes[1], &stage.meta);
        sleep(HEARTBEAT).await;
        gate.writes().release();
        timeout(END_LASTS, cut).await.expect("it ends").unwrap();
        stage.on(1, async move |client| client.release(&handle).await.unwrap()).await;
        let read = async move |client: Rc<Client>| bytes_of(&client, inode, 0..5000).await;
        assert_eq!(stage.on(0, read).await.unwrap(), [7; 5000], "written data is lost");
    });
}

/// Goal: a client that appends writes behind data that another client has meanwhile written past
/// the end (T4, V3).
#[test]
fn an_append_goes_behind_what_others_have_written_past_the_end() {
    play(2, async |stage| {
        let begin = async |client: Rc<Client>| {
            let (handle, _) = client.create(ROOT, b"a", SETTING, APPEND).await.unwrap();
            client.write(&handle, 0, filled(1, 5000), false).await.unwrap();
            client.flush(&handle).await.unwrap();
            handle
        };
        let handle = stage.on(0, begin).await;
        let inode = handle.inode();
        let other = async move |client: Rc<Client>| {
            let (handle, _) = client.open(inode, WRITE).await.unwrap();
            client.write(&handle, 5000, filled(2, 5000), false).await.unwrap();
            handle
        };
        let other = stage.on(1, other).await;
        // This commit recalls the appender's right to the size. Meanwhile the appender continues.
        let close = stage.begin(1, async move |client| client.release(&other).await.unwrap());
        close.await.unwrap();
        let append = async move |client: Rc<Client>| {
            let at = client.write(&handle, 0, filled(3, 100), false).await.unwrap();
            client.release(&handle).await.unwrap();
            at
        };
        assert_eq!(stage.on(0, append).await, 10_000);
    });
}

/// Goal: while a client holds the names of a directory no other client adds one, neither with a
/// create nor with a link or a rename (T6).
#[test]
fn names_that_are_held_are_added_by_nobody_else() {
    for how in ["create", "link", "rename"] {
        play(2, async |stage| {
            let inode = stage.on(1, async |client| make(&client, b"a", 1, 100).await).await;
            let hold = async |client: Rc<Client>| client.hold_names(ROOT).await.unwrap();
            let held = stage.on(0, hold).await;
            let add = async move |client: Rc<Client>| match how {
                "create" => make(&client, b"b", 1, 100).await,
                "link" => client.link(inode, ROOT, b"b").await.unwrap().inode,
                _ => {
                    let mode = protocol::client::RenameMode::Replace;
                    client.rename((ROOT, b"a"), (ROOT, b"b"), mode).await.unwrap().moved
                }
            };
            let mut adding = stage.begin(1, add);
            assert!(timeout(HEARTBEAT, &mut adding).await.is_err(), "{how} adds a name");
            stage.nodes[0].spawn(async move { drop(held) }).await.unwrap();
            timeout(END_LASTS, adding).await.expect("it ends").unwrap();
        });
    }
}

/// Goal: a copy contains data that another client has written to the source and not committed yet,
/// like a copy on one machine (T7).
#[test]
fn a_copy_has_what_others_have_written_to_its_source() {
    play(2, async |stage| {
        let inode = stage.on(0, async |client| make(&client, b"a", 1, 5000).await).await;
        let begin = async move |client: Rc<Client>| {
            let (handle, _) = client.open(inode, WRITE).await.unwrap();
            client.write(&handle, 0, filled(2, 5000), false).await.unwrap();
            handle
        };
        let handle = stage.on(0, begin).await;
        let copy = async move |client: Rc<Client>| {
            let (to, _) = client.create(ROOT, b"b", SETTING, WRITE).await.unwrap();
            client.copy_range((inode, 0), (to.inode(), 0), 5000).await.unwrap();
            let copied = bytes_of(&client, to.inode(), 0..5000).await.unwrap();
            client.release(&to).await.unwrap();
            copied
        };
        assert_eq!(stage.on(1, copy).await, [2; 5000]);
        stage.on(0, async move |client| client.release(&handle).await.unwrap()).await;
    });
}

/// Goal: a client opens a file without a name that it had looked up before. The file survives a
/// restart of the service when the earlier openers have closed it (D4).
#[test]
fn an_open_of_a_file_without_a_name_is_stored() {
    play(3, async |stage| {
        let inode = stage.on(0, async |client| make(&client, b"a", 1, 5000).await).await;
        let open = async move |client: Rc<Client>| {
            client.open(inode, OpenMode::default()).await.unwrap().0
        };
        stage.on(1, async |client| client.lookup(ROOT, b"a").await.unwrap()).await;
        let first = stage.on(0, open).await;
        stage.on(2, async |client| client.unlink(ROOT, b"a").await.unwrap()).await;
        let second = stage.on(1, open).await;
        stage.on(0, async move |client| client.release(&first).await.unwrap()).await;
        sleep(WRITEBACK * 2).await;
        stage.restart_meta();
        sleep(HEARTBEAT * 2).await;
        let read = async move |client: Rc<Client>| bytes_of(&client, inode, 0..5000).await;
        assert_eq!(stage.on(1, read).await, Ok(vec![1; 5000]), "the file is gone");
        stage.on(1, async move |client| client.release(&second).await.unwrap()).await;
    });
}

/// Goal: while a client truncates a file, its other users write nothing to it: a write that began
/// meanwhile is there afterwards, complete (V7).
#[test]
fn a_write_beside_its_own_clients_truncation_is_whole() {
    play_gated(2, async |stage, gate| {
        let inode = stage.on(0, async |client| make(&client, b"a", 1, 20_000).await).await;
        stage.on(1, async move |client| bytes_of(&client, inode, 0..20_000).await.unwrap()).await;
        gate.reads().hold();
        // The truncation waits for another client's read.
        let read = stage.begin(1, async move |client| bytes_of(&client, inode, 0..20_000).await);
        gate.reads().until_one_waits().await;
        let cut = stage.begin(0, async move |client: Rc<Client>| {
            let changes = AttrChanges { size: Some(0), ..AttrChanges::default() };
            client.truncate(inode, changes).await.unwrap();
        });
        sleep(MOMENT).await;
        let write = stage.begin(0, async move |client: Rc<Client>| {
            let (handle, _) = client.open(inode, WRITE).await.unwrap();
            client.write(&handle, 0, filled(2, 5000), false).await.unwrap();
            client.release(&handle).await
        });
        sleep(MOMENT).await;
        gate.reads().release();
        timeout(END_LASTS, cut).await.expect("it ends").unwrap();
        assert_eq!(timeout(END_LASTS, write).await.expect("it ends").unwrap(), Ok(()));
        let _ = read.await.unwrap();
        let read = async move |client: Rc<Client>| bytes_of(&client, inode, 0..5000).await.unwrap();
        assert_eq!(stage.on(1, read).await, [2; 5000], "a write that was closed is lost");
    });
}

/// Goal: a directory's attributes are those after the last change of its entries, by any client
/// (T3).
#[test]
fn a_directorys_attributes_follow_its_entries() {
    play(2, async |stage| {
        let size = async |client: Rc<Client>| client.attr(ROOT).await.unwrap().size;
        for round in 0..4_u8 {
            for node in [0, 1] {
                assert_eq!(stage.on(node, size).await, u64::from(round), "on node {node}");
            }
            let name = [b'a' + round];
            let add = async move |client: Rc<Client>| make(&client, &name, 1, 10).await;
            stage.on(usize::from(round % 2), add).await;
        }
    });
}

/// Goal: when a client loses READ over a directory, it drops the entries that were cached under it
/// (R9): an entry that is removed during the loss of the connection is not found any more.
#[test]
fn entries_go_with_the_right_over_their_directory() {
    play(2, async |stage| {
        stage.on(0, async |client| make(&client, b"a", 1, 10).await).await;
        let find = async |client: Rc<Client>| client.lookup(ROOT, b"a").await.map(drop);
        assert_eq!(stage.on(1, find).await, Ok(()));
        stage.network.cut(&stage.nodes[1], &stage.meta);
        stage.network.reset(&stage.nodes[1], &stage.meta);
        stage.on(0, async |client| client.unlink(ROOT, b"a").await.unwrap()).await;
        stage.network.heal(&stage.nodes[1], &stage.meta);
        sleep(HEARTBEAT).await;
        assert_eq!(stage.on(1, find).await, Err(Errno::ENOENT));
    });
}

/// Goal: an open for writing does not wait for other writers (T5).
#[test]
fn an_open_for_writing_waits_for_no_writer() {
    play_gated(3, async |stage, gate| {
        let inode = stage.on(0, async |client| make(&client, b"a", 1, 5000).await).await;
        let begin = async move |client: Rc<Client>| {
            let (handle, _) = client.open(inode, WRITE).await.unwrap();
            client.write(&handle, 0, filled(2, 5000), false).await.unwrap();
            handle
        };
        let handle = stage.on(1, begin).await;
        gate.writes().hold();
        let closing = stage.begin(1, async move |client| client.release(&handle).await.unwrap());
        gate.writes().until_one_waits().await;
        let open = async move |client: Rc<Client>| client.open(inode, WRITE).await.map(drop);
        let opened = timeout(HEARTBEAT, stage.on(2, open)).await;
        assert_eq!(opened.expect("it waits for a writer"), Ok(()));
        gate.writes().release();
        closing.await.unwrap();
    });
}

/// Goal: a file whose commit waits for the right of a dead session delays no other file of its
/// client: others see what was written to these within the usual time.
#[test]
fn a_commit_that_waits_delays_no_other_file() {
    play(3, async |stage| {
        let prepare = async |client: Rc<Client>| {
            let mut inodes = Vec::new();
            for name in ["a", "b", "c"] {
                inodes.push(make(&client, name.as_bytes(), 1, 5000).await);
            }
            inodes
        };
        let inodes = stage.on(1, prepare).await;
        let first = inodes[0];
        stage.on(2, async move |client| bytes_of(&client, first, 0..8).await.unwrap()).await;
        stage.network.isolate(&stage.nodes[2]);
        let all = inodes.clone();
        let write_all = async move |client: Rc<Client>| {
            let mut handles = Vec::new();
            for inode in all {
                let (handle, _) = client.open(inode, WRITE).await.unwrap();
                client.write(&handle, 5000, filled(2, 4000), false).await.unwrap();
                handles.push(handle);
            }
            handles
        };
        let _open = stage.on(1, write_all).await;
        sleep(WRITEBACK * 2).await;
        let look = async move |client: Rc<Client>| {
            let mut sizes = Vec::new();
            for inode in inodes {
                sizes.push(client.attr(inode).await.unwrap().size);
            }
            sizes
        };
        assert_eq!(stage.on(0, look).await, [5000, 9000, 9000]);
    });
}
