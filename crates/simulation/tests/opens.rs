//! Scenes of files that are open while their names go, their connection is lost or their rights are
//! recalled: they live as long as anybody has them open, and no longer.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod stage;

use block::FaultPlan;
use client::{Client, Handle, OpenMode, Setting};
use protocol::attr::AttrChanges;
use protocol::client::RenameMode;
use protocol::{Errno, InodeId};
use reactor::time::{sleep, timeout};
use reactor::{Buffer, Chunk, spawn};
use stage::{Stage, play};
use std::rc::Rc;
use std::time::Duration;

const ROOT: InodeId = InodeId::ROOT;
const SETTING: Setting = Setting { mode: 0o644, uid: 0, gid: 0 };
const WRITE: OpenMode = OpenMode { write: true, append: false, sync: false };
/// Longer than the pause between two write-backs.
const RECALL_LASTS: Duration = Duration::from_secs(1);

fn bytes(byte: u8) -> Chunk {
    Chunk::from(Buffer::copy_from(&[byte; 5000]))
}

/// Goal: an unlink, or a rename over a name, whose client has the file open tells the service so
/// first; it ends also if the file is closed while it does that: then there is nothing to tell, and
/// what the service grants is returned at once (seed 189).
#[test]
fn a_removal_ends_when_its_file_is_closed_meanwhile() {
    let scene = async |client: Rc<Client>| {
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
            reactor::yield_now().await;
            client.release(&handle).await.unwrap();
            let ended = timeout(Duration::from_mins(2), removal).await;
            ended.expect("it ends").unwrap().unwrap();
            let _ = client.unlink(ROOT, b"b").await;
        }
    };
    play(1, async |stage| stage.on(0, scene).await);
}

/// Goal: a file that is closed while its right to be written is recalled, and told to be closed right
/// after the recall is answered, is gone with its last name (seeds 727 and 2152).
#[test]
fn a_file_closed_during_a_recall_goes_with_its_last_name() {
    play(2, async |stage| {
        let stage = Rc::new(stage);
        let all = Rc::clone(&stage);
        let scene = async move |writer: Rc<Client>| {
            let before = inodes(&writer).await;
            let (delay_ppm, delay_max) = (1_000_000, RECALL_LASTS);
            all.device.set_plan(FaultPlan { delay_ppm, delay_max, ..FaultPlan::default() });
            for _ in 0..50 {
                let (handle, attr) = writer.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
                writer.write(&handle, 0, bytes(1), false).await.unwrap();
                let removed = all.begin(1, async |remover| remover.unlink(ROOT, b"a").await);
                // The recall has begun to commit by then; next come the close and the write-back.
                sleep(Duration::from_millis(2)).await;
                writer.release(&handle).await.unwrap();
                removed.await.unwrap().unwrap();
                writer.forget(attr.inode, 1);
            }
            sleep(protocol::times::WRITEBACK * 4).await;
            assert_eq!(inodes(&writer).await, before);
        };
        stage.on(0, scene).await;
    });
}

/// Goal: a file whose last name has gone is gone with its last handle, also if the service and the
/// client lost their connection while it was open (seeds 653 and 727).
#[test]
fn an_open_that_was_reclaimed_can_be_returned() {
    play(1, async |stage| {
        let stage = Rc::new(stage);
        let all = Rc::clone(&stage);
        let scene = async move |client: Rc<Client>| {
            let before = inodes(&client).await;
            let (handle, attr) = client.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
            client.unlink(ROOT, b"a").await.unwrap();
            all.network.reset(&all.nodes[0], &all.meta);
            assert_eq!(inodes(&client).await, before + 1);
            client.release(&handle).await.unwrap();
            client.forget(attr.inode, 1);
            sleep(protocol::times::WRITEBACK * 4).await;
            assert_eq!(inodes(&client).await, before);
        };
        stage.on(0, scene).await;
    });
}

/// Has a file read whose last name its client has removed before it was committed.
fn a_file_that_lost_its_name_is_read(is_synced: bool) {
    let scene = async move |client: Rc<Client>| {
        let (handle, attr) = client.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
        client.write(&handle, 0, bytes(1), false).await.unwrap();
        client.unlink(ROOT, b"a").await.unwrap();
        if is_synced {
            client.fsync(attr.inode).await.unwrap();
            client.attr(attr.inode).await.unwrap();
        } else {
            client.flush(&handle).await.unwrap();
        }
        let read = client.read(attr.inode, 0, 5000, None).await.unwrap();
        assert!(
            read.iter().flat_map(|it| it.to_bytes().into_owned()).all(|byte| byte == 1),
            "zeros"
        );
        client.release(&handle).await.unwrap();
    };
    play(1, async |stage| stage.on(0, scene).await);
}

/// Has one client open a file that another, or the same, is just removing, and has said before that it
/// does not have it open: the removal waits for a third one, which reads.
fn a_file_opened_during_its_removal_stays(opener: usize) {
    play(3, async |stage| {
        let make = async |reader: Rc<Client>| {
            let (handle, attr) = reader.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
            reader.write(&handle, 0, bytes(1), false).await.unwrap();
            reader.release(&handle).await.unwrap();
            reader.read(attr.inode, 0, 5000, None).await.unwrap();
            attr.inode
        };
        let inode = stage.on(0, make).await;
        stage.on(opener, async |client| client.lookup(ROOT, b"a").await.unwrap()).await;
        sleep(protocol::times::WRITEBACK * 2).await;
        let (delay_ppm, delay_max) = (1_000_000, RECALL_LASTS);
        stage.device.set_plan(FaultPlan { delay_ppm, delay_max, ..FaultPlan::default() });
        let read = stage.begin(0, async move |reader| reader.read(inode, 0, 5000, None).await);
        sleep(Duration::from_millis(5)).await;
        let removal = stage.begin(1, async |remover| remover.unlink(ROOT, b"a").await);
        // All but the reader have answered its recall by then.
        sleep(Duration::from_millis(5)).await;
        let open = async move |client: Rc<Client>| {
            client.open(inode, OpenMode::default()).await.unwrap().0
        };
        let handle = stage.on(opener, open).await;
        read.await.unwrap().unwrap();
        removal.await.unwrap().unwrap();
        sleep(protocol::times::WRITEBACK * 2).await;
        let read = async move |client: Rc<Client>| {
            let read = client.read(inode, 0, 5000, None).await.unwrap();
            assert!(
                read.iter().flat_map(|it| it.to_bytes().into_owned()).all(|byte| byte == 1),
                "zeros"
            );
            client.release(&handle).await.unwrap();
        };
        stage.on(opener, read).await;
    });
}

/// Goal: a file that one worker opens while another of the same client removes its name is there for
/// as long as it is open: the service does not ask the client that removes.
#[test]
fn a_file_opened_during_its_own_clients_removal_stays() {
    a_file_opened_during_its_removal_stays(1);
}

/// Goal: so is one that is opened by a client that has just answered that it does not have it open.
#[test]
fn a_file_opened_after_a_recall_stays() {
    a_file_opened_during_its_removal_stays(2);
}

/// Goal: what an fsync has committed is read back also from a file whose last name this client has
/// removed in between: extents from before are not used (seed 4795).
#[test]
fn a_file_that_lost_its_name_is_read_as_synced() {
    a_file_that_lost_its_name_is_read(true);
}

/// Goal: so is what any other commit, as that of a write-back, has made part of it (seed 20695).
#[test]
fn a_file_that_lost_its_name_is_read_as_committed() {
    a_file_that_lost_its_name_is_read(false);
}

/// What an open file has to have: the bytes that were written, and room for more.
async fn is_there(client: Rc<Client>, handle: Handle) {
    client.write(&handle, 5000, bytes(1), false).await.unwrap();
    client.fsync(handle.inode()).await.expect("it is lost");
    let read = client.read(handle.inode(), 0, 10_000, None).await.unwrap();
    assert!(read.iter().flat_map(|it| it.to_bytes().into_owned()).all(|byte| byte == 1), "zeros");
    client.release(&handle).await.unwrap();
}

/// Makes a file, and lets its open be forgotten.
async fn make(client: &Rc<Client>, name: &[u8]) -> InodeId {
    let (handle, attr) = client.create(ROOT, name, SETTING, WRITE).await.unwrap();
    client.write(&handle, 0, bytes(1), false).await.unwrap();
    client.release(&handle).await.unwrap();
    sleep(protocol::times::WRITEBACK * 2).await;
    attr.inode
}

/// Goal: an open file that one worker renames over a name which another of the same client is just
/// removing is there for as long as it is open: the removal has told of what had the name before.
#[test]
fn an_open_file_that_is_renamed_to_a_name_being_removed_stays() {
    let scene = async |client: Rc<Client>| {
        make(&client, b"a").await;
        let inode = make(&client, b"b").await;
        let (handle, _) = client.open(inode, WRITE).await.unwrap();
        let (renamer, remover) = (Rc::clone(&client), Rc::clone(&client));
        let rename = spawn(async move {
            renamer.rename((ROOT, b"b"), (ROOT, b"a"), RenameMode::Replace).await
        });
        // It has asked by then, and has no answer.
        reactor::yield_now().await;
        let removal = spawn(async move { remover.unlink(ROOT, b"a").await });
        assert_eq!(rename.await.unwrap().unwrap().moved, inode);
        removal.await.unwrap().unwrap();
        assert_eq!(client.lookup(ROOT, b"a").await.map(drop), Err(Errno::ENOENT));
        is_there(client, handle).await;
    };
    play(1, async |stage| stage.on(0, scene).await);
}

/// One client renames `b` over `a`, which another removes meanwhile; that one opens `b` for writing
/// when the rename has asked for everybody's rights over it. Both wait for a third one, which reads `a`.
/// Answers whether what was renamed is removed, and not what it replaced.
async fn rename_beside_a_removal(stage: &Stage) -> bool {
    let replaced = stage.on(0, async |reader| make(&reader, b"a").await).await;
    let renamed = stage.on(1, async |renamer| make(&renamer, b"b").await).await;
    stage.on(0, async move |reader| reader.read(replaced, 0, 1, None).await.unwrap()).await;
    let (delay_ppm, delay_max) = (1_000_000, RECALL_LASTS);
    stage.device.set_plan(FaultPlan { delay_ppm, delay_max, ..FaultPlan::default() });
    let read = stage.begin(0, async move |reader| reader.read(replaced, 0, 5000, None).await);
    sleep(Duration::from_millis(5)).await;
    let rename = stage.begin(1, async |renamer| {
        renamer.rename((ROOT, b"b"), (ROOT, b"a"), RenameMode::Replace).await
    });
    sleep(Duration::from_millis(5)).await;
    let open = async move |opener: Rc<Client>| opener.open(renamed, WRITE).await.unwrap().0;
    let handle = stage.on(2, open).await;
    let removal = stage.begin(2, async |remover| remover.unlink(ROOT, b"a").await);
    read.await.unwrap().unwrap();
    assert_eq!(rename.await.unwrap().unwrap().moved, renamed);
    removal.await.unwrap().unwrap();
    stage.device.set_plan(FaultPlan::default());
    stage.on(2, async move |client| is_there(client, handle).await).await;
    let left = stage.on(0, async |client| client.unlink(ROOT, b"a").await).await;
    left == Err(Errno::ENOENT)
}

/// Goal: so is one that another client renames, and that was opened for writing meanwhile: nobody asks
/// for what was opened after the rename had asked.
#[test]
fn a_file_opened_while_others_rename_it_to_a_name_being_removed_stays() {
    play(3, async |stage| {
        let mut removed_after = 0;
        for _ in 0..10 {
            removed_after += u32::from(rename_beside_a_removal(&stage).await);
        }
        assert!(removed_after > 0, "the removal never came after the rename");
    });
}

/// Goal: a file that is closed, opened again at once and then removed by another client is there for as
/// long as it is open: that it was closed is not told any more (seed 20160).
#[test]
fn a_file_that_is_opened_again_at_once_stays() {
    play(2, async |stage| {
        let reopen = async |opener: Rc<Client>| {
            let (handle, attr) = opener.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
            opener.write(&handle, 0, bytes(1), false).await.unwrap();
            opener.release(&handle).await.unwrap();
            opener.open(attr.inode, WRITE).await.unwrap().0
        };
        let handle = stage.on(0, reopen).await;
        stage.on(1, async |remover| remover.unlink(ROOT, b"a").await.unwrap()).await;
        sleep(protocol::times::WRITEBACK * 2).await;
        let before = stage.on(1, async |other| inodes(&other).await).await;
        stage.on(0, async move |client| is_there(client, handle).await).await;
        sleep(protocol::times::WRITEBACK * 4).await;
        assert_eq!(stage.on(1, async |other| inodes(&other).await).await, before - 1);
    });
}

/// Goal: so is one that another client changes between close and open, and that its own client removes:
/// the service has heard of its end, and is told that it is open again (seed 21180).
#[test]
fn a_file_that_is_opened_again_after_a_change_stays() {
    play(2, async |stage| {
        let close = async |opener: Rc<Client>| {
            let (handle, attr) = opener.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
            opener.release(&handle).await.unwrap();
            attr.inode
        };
        let inode = stage.on(0, close).await;
        let change = async move |other: Rc<Client>| {
            let changes = AttrChanges { size: Some(5), ..AttrChanges::default() };
            other.truncate(inode, changes).await.unwrap();
        };
        stage.on(1, change).await;
        let remove = async move |opener: Rc<Client>| {
            let handle = opener.open(inode, WRITE).await.unwrap().0;
            opener.write(&handle, 0, bytes(1), false).await.unwrap();
            // What was queued at the close is looked at by then.
            sleep(protocol::times::WRITEBACK * 2).await;
            opener.unlink(ROOT, b"a").await.unwrap();
            is_there(opener, handle).await;
        };
        stage.on(0, remove).await;
    });
}

/// Goal: an open costs no call because another name is just removed.
#[test]
fn an_open_beside_another_removal_costs_no_call() {
    let scene = async |client: Rc<Client>| {
        for name in [&b"a"[..], b"b"] {
            let made = client.create(ROOT, name, SETTING, WRITE).await;
            client.release(&made.unwrap().0).await.unwrap();
        }
        sleep(protocol::times::WRITEBACK * 2).await;
        let inode = client.lookup(ROOT, b"b").await.unwrap().inode;
        let acquired = || client.counts().meta.by_kind.get("acquire").copied();
        let before = acquired();
        let remover = Rc::clone(&client);
        let removal = spawn(async move { remover.unlink(ROOT, b"a").await });
        // It has asked by then, and has no answer.
        reactor::yield_now().await;
        let (handle, _) = client.open(inode, OpenMode::default()).await.unwrap();
        assert_eq!(acquired(), before);
        removal.await.unwrap().unwrap();
        client.release(&handle).await.unwrap();
    };
    play(1, async |stage| stage.on(0, scene).await);
}

/// Stages a create that is carried out after its caller has given it up, as the metadata service waits
/// for a session that was cut off: over the same connection, or after that is lost. Then the file is
/// removed by the client that made it.
fn a_late_create_is_known(is_same_connection: bool) {
    play(2, async |stage| {
        let before = stage.on(0, async |client| inodes(&client).await).await;
        stage.network.cut(&stage.nodes[1], &stage.meta);
        stage.restart_meta();
        let create =
            async |client: Rc<Client>| client.create(ROOT, b"a", SETTING, WRITE).await.map(drop);
        let create = stage.begin(0, create);
        for _ in 0..3 {
            sleep(Duration::from_secs(15)).await;
            stage.restart_meta();
        }
        assert_eq!(create.await.unwrap(), Err(Errno::ETIMEDOUT));
        if !is_same_connection {
            stage.network.reset(&stage.nodes[0], &stage.meta);
        }
        let remove = async move |client: Rc<Client>| {
            // Names are answered before changes are: it looks for the file as soon as there is one.
            while client.lookup(ROOT, b"a").await.is_err() {
                sleep(Duration::from_secs(1)).await;
            }
            client.unlink(ROOT, b"a").await.unwrap();
            sleep(protocol::times::WRITEBACK * 4).await;
            assert_eq!(inodes(&client).await, before);
        };
        timeout(Duration::from_mins(2), stage.on(0, remove)).await.expect("it is made");
    });
}

/// Goal: a file whose create was answered when nobody waited for it any more is not open (seed 3255).
#[test]
fn a_create_answered_too_late_leaves_nothing_open() {
    a_late_create_is_known(true);
}

/// Goal: a client that has given a change up, and lost its connection since, still learns of what it has
/// changed in the end: its cache would else say for ever that there is no such file.
#[test]
fn a_change_that_was_given_up_is_heard_of() {
    a_late_create_is_known(false);
}

async fn inodes(client: &Rc<Client>) -> u64 {
    client.pool_use().await.unwrap().inodes
}

/// Goal: while a client holds a directory's names no other adds one, and what waits goes on once the
/// holder has made its own; what is pinned outlives its last name.
#[test]
fn a_name_that_is_held_is_made_by_its_holder() {
    play(2, async |stage| {
        let stage = Rc::new(stage);
        let all = Rc::clone(&stage);
        let scene = async move |holder: Rc<Client>| {
            for _ in 0..20 {
                let held = holder.hold_names(ROOT).await.unwrap();
                assert_eq!(holder.lookup(ROOT, b"a").await.map(drop), Err(Errno::ENOENT));
                let other = all.begin(1, async |other| {
                    other.create(ROOT, b"a", SETTING, WRITE).await.map(drop)
                });
                // The other one's call waits by then.
                sleep(Duration::from_millis(50)).await;
                let (handle, attr) = holder.create_held(held, b"a", SETTING, WRITE).await.unwrap();
                assert_eq!(other.await.unwrap(), Err(Errno::EEXIST));
                holder.release(&handle).await.unwrap();
                let pin = holder.pin(attr.inode).await.unwrap();
                let removed = all.begin(1, async |other| other.unlink(ROOT, b"a").await);
                removed.await.unwrap().unwrap();
                assert_eq!(holder.attr(attr.inode).await.unwrap().nlink, 0);
                drop(pin);
            }
        };
        stage.on(0, scene).await;
    });
}
