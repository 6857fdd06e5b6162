//! Scenes of a pool that is nearly full: the rules of Space in docs/protocol.md.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod stage;

use client::{Change, Client, Lending};
use protocol::InodeId;
use protocol::attr::AttrChanges;
use reactor::time::sleep;
use stage::gate::Gate;
use stage::{
    BLOCK_BYTES, Changes, DEVICE_BYTES, SETTING, Stage, WRITE, bytes_of, filled, make, play_on_one,
};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Blocks of the file: five of eight of the pool.
const BLOCKS: u64 = DEVICE_BYTES / BLOCK_BYTES as u64 * 5 / 8;

/// Plays on one node, which has the only device.
fn play<F: Future<Output = ()>>(scene: impl FnOnce(Rc<Stage>) -> F) {
    let device = Arc::new(Gate::new(DEVICE_BYTES, BLOCK_BYTES));
    play_on_one(device, 1, |_| None, |stage| scene(Rc::new(stage)));
}

fn block(byte: u8) -> reactor::Chunk {
    filled(byte, BLOCK_BYTES as usize)
}

fn place(index: u64) -> u64 {
    index * u64::from(BLOCK_BYTES)
}

/// Goal: a file that is overwritten block by block in any order occupies only its own blocks:
/// writes find space where the replaced data is dead (P3), although it is only a part of what was
/// written together.
#[test]
fn space_of_overwritten_blocks_is_found_again() {
    play(async |stage| {
        let overwrite = async |client: Rc<Client>| {
            let (mut handle, attr) =
                client.create(InodeId::ROOT, b"a", SETTING, WRITE).await.unwrap();
            for index in 0..BLOCKS {
                client.write(&handle, place(index), block(0), false).await.unwrap();
            }
            client.release(&handle).await.unwrap();
            for index in 0..4 * BLOCKS {
                if index % 16 == 0 {
                    handle = client.open(attr.inode, WRITE).await.unwrap().0;
                }
                let (round, at) = (index / BLOCKS + 1, place(index * 277 % BLOCKS));
                client.write(&handle, at, block(round as u8), false).await.unwrap();
                if index % 16 == 15 {
                    client.release(&handle).await.unwrap();
                }
            }
            attr.inode
        };
        let inode = stage.on(0, overwrite).await;
        let read = async move |client: Rc<Client>| bytes_of(&client, inode, 0..place(BLOCKS)).await;
        assert!(stage.on(0, read).await.unwrap().iter().all(|byte| *byte == 4));
    });
}

/// Goal: a write in a full pool waits until the earlier writes of its client are committed and the
/// blocks that they replace are free (P4). It does not fail.
#[test]
fn a_full_pool_has_what_is_dirty_committed() {
    play(async |stage| {
        let overwrite = async |client: Rc<Client>| {
            let (handle, _) = client.create(InodeId::ROOT, b"a", SETTING, WRITE).await.unwrap();
            for round in 0..4 {
                for index in 0..BLOCKS / 16 {
                    let bytes = filled(round, 16 * BLOCK_BYTES as usize);
                    client.write(&handle, place(16 * index), bytes, false).await.unwrap();
                }
            }
            client.release(&handle).await.unwrap();
        };
        stage.on(0, overwrite).await;
    });
}

/// Goal: writes that are gathered reserve all blocks that their bytes need (P8), and no more: a
/// pool with exactly this number of blocks is enough.
#[test]
fn fills_have_all_blocks_that_they_need() {
    play(async |stage| {
        let write = async |client: Rc<Client>| {
            let (handle, attr) = client.create(InodeId::ROOT, b"a", SETTING, WRITE).await.unwrap();
            let handle = Rc::new(handle);
            let step = u64::from(BLOCK_BYTES) * 3 / 4;
            let count = DEVICE_BYTES * 7 / 8 / step;
            for start in (0..count).step_by(7) {
                let write = |at: u64| {
                    let (client, handle) = (Rc::clone(&client), Rc::clone(&handle));
                    let bytes = filled(at as u8, step as usize);
                    reactor::spawn(
                        async move { client.write(&handle, at * step, bytes, false).await },
                    )
                };
                let writes: Vec<_> = (start..count.min(start + 7)).map(write).collect();
                for write in writes {
                    write.await.unwrap().unwrap();
                }
            }
            client.release(&handle).await.unwrap();
            let bytes = bytes_of(&client, attr.inode, 0..count * step).await.unwrap();
            for (at, part) in (0..).zip(bytes.chunks(step as usize)) {
                assert!(part.iter().all(|byte| *byte == at as u8), "write {at}");
            }
        };
        stage.on(0, write).await;
    });
}

/// Goal: a change that waits for another session holds no space back that was freed before (P4): the
/// other one may wait for this space. Here it waits for its kernel, which keeps lent attributes until
/// they expire.
#[test]
fn a_change_that_waits_holds_no_space_back() {
    const LENT: Duration = Duration::from_secs(5);
    let device = Arc::new(Gate::new(DEVICE_BYTES, BLOCK_BYTES));
    let silent = |node| -> Option<Changes> {
        let kept = std::cell::RefCell::new(Vec::new());
        let keep = move |change: Change| kept.borrow_mut().push(change);
        (node == 1).then(|| Box::new(keep) as Changes)
    };
    play_on_one(device, 2, silent, async |stage| {
        let length = BLOCKS as usize * BLOCK_BYTES as usize;
        let shown = stage.on(0, async |client| make(&client, b"shown", 1, 100).await).await;
        stage.on(0, async move |client| make(&client, b"old", 2, length).await).await;
        let lend = async move |client: Rc<Client>| {
            client.set_lending(Lending { attributes: LENT, names: LENT });
            let attr = client.attr(shown).await.unwrap();
            client.lend_attributes(&attr)
        };
        assert!(!stage.on(1, lend).await.is_zero());
        let is_done = Rc::new(Cell::new(false));
        let ended = Rc::clone(&is_done);
        let change = async move |client: Rc<Client>| {
            let changes = AttrChanges { mode: Some(0o600), ..AttrChanges::default() };
            client.set_attr(shown, changes).await.unwrap();
            ended.set(true);
        };
        let changing = stage.begin(0, change);
        sleep(LENT / 50).await;
        let replace = async move |client: Rc<Client>| {
            client.unlink(InodeId::ROOT, b"old").await.unwrap();
            make(&client, b"new", 3, length).await;
        };
        stage.on(0, replace).await;
        assert!(!is_done.get(), "the space was free only after the change");
        changing.await.unwrap();
    });
}
