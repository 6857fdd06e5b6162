//! Scenes of files that are open while their names are removed, their connection is lost or their
//! rights are recalled: they live until the last handle is closed, and no longer.

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

/// Goal: an unlink, or a rename over a name, of a file that its client has open first registers the
/// open with the service. It also ends if the file is closed meanwhile: then there is nothing to
/// register, and the client immediately returns what the service grants (seed 189).
#[test]
fn a_removal_ends_when_its_file_is_closed_meanwhile() {
    let scene = async |client: Rc<Client>| {
        for is_rename in [false, true] {
            for name in [&b"a"[..], b"b"] {
                let made = client.create(ROOT, name, SETTING, WRITE).await;
                client.release(&made.unwrap().0).await.unwrap();
            }
            // By then the client has reported opens that have ended.
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
            // By then the call is sent, and has no answer.
            reactor::yield_now().await;
            client.release(&handle).await.unwrap();
            let ended = timeout(Duration::from_mins(2), removal).await;
            ended.expect("it ends").unwrap().unwrap();
            let _ = client.unlink(ROOT, b"b").await;
        }
    };
    play(1, async |stage| stage.on(0, scene).await);
}

/// Goal: a file is closed while its right to be written is recalled, and the close is reported
/// right after the answer to the recall. The file is removed with its last name (seeds 727 and
/// 2152).
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
                // By then the recall has begun to commit; next come the close and the write-back.
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

/// Goal: a file without a name is removed with its last handle, even if the service and the client
/// lost their connection while it was open (seeds 653 and 727).
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

/// Lets a client read a file after the client has removed its last name, before the file was
/// committed.
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

/// Lets one client open a file that another, or the same, is removing. The client has answered
/// before that it does not have the file open. The removal waits for a third client, which reads.
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
        // By then all clients but the reader have answered the removal's recall.
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

/// Goal: a file that one worker opens while another of the same client removes its name exists as
/// long as it is open: the service does not ask the client that removes.
#[test]
fn a_file_opened_during_its_own_clients_removal_stays() {
    a_file_opened_during_its_removal_stays(1);
}

/// Goal: the same for a client that opens the file just after it has answered that it does not have
/// it open.
#[test]
fn a_file_opened_after_a_recall_stays() {
    a_file_opened_during_its_removal_stays(2);
}

/// Goal: data that an fsync has committed can be read back also from a file whose last name this
/// client has removed in between: older extents are not used (seed 4795).
#[test]
fn a_file_that_lost_its_name_is_read_as_synced() {
    a_file_that_lost_its_name_is_read(true);
}

/// Goal: the same for data that any other commit, such as that of a write-back, has made part of
/// the file (seed 20695).
#[test]
fn a_file_that_lost_its_name_is_read_as_committed() {
    a_file_that_lost_its_name_is_read(false);
}

/// Checks an open file: it has the bytes that were written, and space for more.
async fn is_there(client: Rc<Client>, handle: Handle) {
    client.write(&handle, 5000, bytes(1), false).await.unwrap();
    client.fsync(handle.inode()).await.expect("it is lost");
    let read = client.read(handle.inode(), 0, 10_000, None).await.unwrap();
    assert!(read.iter().flat_map(|it| it.to_bytes().into_owned()).all(|byte| byte == 1), "zeros");
    client.release(&handle).await.unwrap();
}

/// Makes a file, closes it, and waits until that is reported.
async fn make(client: &Rc<Client>, name: &[u8]) -> InodeId {
    let (handle, attr) = client.create(ROOT, name, SETTING, WRITE).await.unwrap();
    client.write(&handle, 0, bytes(1), false).await.unwrap();
    client.release(&handle).await.unwrap();
    sleep(protocol::times::WRITEBACK * 2).await;
    attr.inode
}

/// Goal: one worker renames an open file over a name that another worker of the same client is
/// removing. The file exists as long as it is open: the removal has reported opens of the file that
/// had the name before.
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
        // By then the call is sent, and has no answer.
        reactor::yield_now().await;
        let removal = spawn(async move { remover.unlink(ROOT, b"a").await });
        assert_eq!(rename.await.unwrap().unwrap().moved, inode);
        removal.await.unwrap().unwrap();
        assert_eq!(client.lookup(ROOT, b"a").await.map(drop), Err(Errno::ENOENT));
        is_there(client, handle).await;
    };
    play(1, async |stage| stage.on(0, scene).await);
}

/// One client renames `b` over `a` while another client removes `a` and opens `b` for writing,
/// after the rename has asked for all rights over `b`. Both calls wait for a third client, which
/// reads `a`. Returns whether the renamed file is removed, and not the one that it replaced.
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

/// Goal: the same for a file that another client renames and that was opened for writing meanwhile:
/// no request covers an open that begins after the rename has asked.
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

/// Goal: a file that is closed, immediately opened again and then removed by another client exists
/// as long as it is open: the pending report of the close is dropped (seed 20160).
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

/// Goal: the same for a file that another client changes between close and open, and that its own
/// client removes: the close was reported to the service, so the new open is reported too (seed
/// 21180).
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
            // By then the client has handled what was queued at the close.
            sleep(protocol::times::WRITEBACK * 2).await;
            opener.unlink(ROOT, b"a").await.unwrap();
            is_there(opener, handle).await;
        };
        stage.on(0, remove).await;
    });
}

/// Goal: an open needs no call although another name is being removed.
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
        // By then the call is sent, and has no answer.
        reactor::yield_now().await;
        let (handle, _) = client.open(inode, OpenMode::default()).await.unwrap();
        assert_eq!(acquired(), before);
        removal.await.unwrap().unwrap();
        client.release(&handle).await.unwrap();
    };
    play(1, async |stage| stage.on(0, scene).await);
}

/// Stages a create that is carried out after its caller has given up, because the metadata service
/// waits for a session that was cut off: over the same connection, or after that is lost. Then the
/// client that made the file removes it.
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
            // The service answers lookups before changes: the client looks for the file as soon as
            // it has a name.
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

/// Goal: a file whose create was answered after its caller gave up is not open (seed 3255).
#[test]
fn a_create_answered_too_late_leaves_nothing_open() {
    a_late_create_is_known(true);
}

/// Goal: a client that has given up a change and then lost its connection still learns the change
/// in the end. Otherwise its cache would report for ever that there is no such file.
#[test]
fn a_change_that_was_given_up_is_heard_of() {
    a_late_create_is_known(false);
}

async fn inodes(client: &Rc<Client>) -> u64 {
    client.pool_use().await.unwrap().inodes
}

/// Goal: while a client holds a directory's names no other client adds one, and waiting calls
/// continue once the holder has made its own. A pinned file survives the removal of its last name.
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
                // By then the call of the other client waits.
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
