//! Scenes of small files that are made and read many at a time: the rules D10, R26 and R27 in
//! docs/protocol.md.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod stage;

use client::{Change, Client, Dropping, Lending, OpenMode};
use protocol::files::NewFile;
use protocol::inline::{Bytes, INLINE_MAX_BYTES};
use protocol::times::LENT;
use protocol::{Errno, InodeId, Timestamp};
use stage::gate::Gate;
use stage::{
    BLOCK_BYTES, Changes, DEVICE_BYTES, INLINE_BYTES, SETTING, Stage, bytes_of, play, play_on_one,
};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const ROOT: InodeId = InodeId::ROOT;

fn scene<F: Future<Output = ()>>(scene: impl FnOnce(Stage) -> F) {
    INLINE_BYTES.store(INLINE_MAX_BYTES, Ordering::Relaxed);
    play(2, scene);
}

fn name(number: usize) -> Vec<u8> {
    format!("file{number}").into_bytes()
}

/// Returns files with as many bytes as their number.
fn files(numbers: std::ops::Range<usize>) -> Vec<NewFile> {
    let file = |number: usize| NewFile {
        name: name(number),
        mode: 0o640,
        uid: 5,
        gid: 6,
        atime: Timestamp(7),
        mtime: Timestamp(8),
        bytes: Bytes(vec![number as u8; number]),
        sum: None,
    };
    numbers.map(file).collect()
}

async fn make(stage: &Stage, node: usize, files: Vec<NewFile>) -> Result<(), Errno> {
    stage.on(node, async move |client: Rc<Client>| client.create_files(ROOT, files).await).await
}

/// Goal: a client that has looked a name up, or has listed the directory, immediately sees files
/// that are made, complete.
#[test]
fn files_are_seen_everywhere_at_once() {
    scene(async |stage| {
        for node in [0, 1] {
            let look = async |client: Rc<Client>| {
                assert!(client.list(ROOT, 0).await.unwrap().entries.is_empty());
                for number in 0..20 {
                    assert_eq!(client.lookup(ROOT, &name(number)).await, Err(Errno::ENOENT));
                }
            };
            stage.on(node, look).await;
        }
        make(&stage, 0, files(0..20)).await.unwrap();
        for node in [0, 1] {
            let look = async |client: Rc<Client>| {
                for number in 0..20 {
                    let attr = client.lookup(ROOT, &name(number)).await.unwrap();
                    assert_eq!((attr.mode, attr.uid, attr.gid), (0o640, 5, 6));
                    assert_eq!((attr.atime, attr.mtime), (Timestamp(7), Timestamp(8)));
                    assert_eq!((attr.size, attr.allocated_bytes), (number as u64, number as u64));
                    let bytes = bytes_of(&client, attr.inode, 0..100).await.unwrap();
                    assert_eq!(bytes, vec![number as u8; number]);
                }
                assert_eq!(client.list(ROOT, 0).await.unwrap().entries.len(), 20);
            };
            stage.on(node, look).await;
        }
    });
}

/// Goal: if one of the names exists, none of the files is made. A file that is too large is refused
/// before the call.
#[test]
fn all_files_are_made_or_none() {
    scene(async |stage| {
        let taken = async |client: Rc<Client>| {
            let (handle, _) = client.create(ROOT, b"file3", SETTING, stage::WRITE).await.unwrap();
            client.release(&handle).await.unwrap();
        };
        stage.on(1, taken).await;
        assert_eq!(make(&stage, 0, files(0..6)).await, Err(Errno::EEXIST));
        let twice = [files(7..8), files(7..8)].concat();
        assert_eq!(make(&stage, 0, twice).await, Err(Errno::EEXIST));
        let mut large = files(8..10);
        large[1].bytes = Bytes(vec![1; INLINE_MAX_BYTES as usize + 1]);
        assert_eq!(make(&stage, 0, large).await, Err(Errno::EOPNOTSUPP));
        assert_eq!(make(&stage, 0, Vec::new()).await, Err(Errno::EINVAL));
        let slash = vec![NewFile { name: b"a/b".to_vec(), ..files(1..2).remove(0) }];
        assert_eq!(make(&stage, 0, slash).await, Err(Errno::EINVAL));
        for node in [0, 1] {
            let count = async |client: Rc<Client>| client.list(ROOT, 0).await.unwrap().entries;
            let entries = stage.on(node, count).await;
            assert_eq!(entries.len(), 1, "{entries:?}");
        }
    });
}

/// Goal: files are there after the service was killed, and later operations in the directory work.
#[test]
fn files_outlive_the_service() {
    scene(async |stage| {
        make(&stage, 0, files(1..5)).await.unwrap();
        stage.restart_meta();
        let look = async |client: Rc<Client>| {
            let attr = client.lookup(ROOT, b"file4").await.unwrap();
            assert_eq!(bytes_of(&client, attr.inode, 0..9).await.unwrap(), [4; 4]);
            client.unlink(ROOT, b"file4").await.unwrap();
        };
        stage.on(1, look).await;
        make(&stage, 0, files(4..6)).await.unwrap();
    });
}

async fn calls(stage: &Stage, node: usize, kind: &str) -> u64 {
    let counts = async |client: Rc<Client>| serde_json::to_value(client.counts()).unwrap();
    stage.on(node, counts).await["meta_calls_by_kind"][kind].as_u64().unwrap_or(0)
}

/// Returns the files of the root as one node lists them, ordered by their sizes.
async fn listed(client: &Rc<Client>) -> Vec<InodeId> {
    let mut entries = client.list(ROOT, 0).await.unwrap().entries;
    entries.sort_by_key(|entry| entry.attr.size);
    entries.iter().map(|entry| entry.attr.inode).collect()
}

/// Reads a file by its number, which is its size and the value of each of its bytes.
async fn check(client: &Rc<Client>, inodes: &[InodeId], number: usize) {
    let bytes = bytes_of(client, inodes[number - 1], 0..300).await.unwrap();
    assert_eq!(bytes, vec![number as u8; number], "file {number}");
}

/// Goal: a client that lists a directory and reads its files needs only a few calls, in any order.
/// It sees changes by others to files that came along, and its own uncommitted writes.
#[test]
fn a_directory_is_read_with_a_few_calls() {
    scene(async |stage| {
        make(&stage, 0, files(1..200)).await.unwrap();
        let read = async |client: Rc<Client>| {
            let inodes = listed(&client).await;
            let (own, _) = client.open(inodes[99], stage::WRITE).await.unwrap();
            client.write(&own, 0, stage::filled(7, 50), false).await.unwrap();
            for number in (1..200).rev().filter(|number| *number != 100) {
                check(&client, &inodes, number).await;
            }
            let bytes = bytes_of(&client, inodes[99], 0..300).await.unwrap();
            assert_eq!((bytes.len(), &bytes[..50], bytes[50]), (100, &[7; 50][..], 100));
            client.release(&own).await.unwrap();
            inodes
        };
        let inodes = stage.on(1, read).await;
        let asked = (calls(&stage, 1, "read_extents").await, calls(&stage, 1, "read_files").await);
        assert!(asked.0 <= 2 && asked.1 <= 4, "{asked:?}");
        let changed = inodes.clone();
        let write = async move |client: Rc<Client>| {
            let (handle, _) = client.open(changed[149], stage::WRITE).await.unwrap();
            client.write(&handle, 0, stage::filled(3, 150), false).await.unwrap();
            client.release(&handle).await.unwrap();
        };
        stage.on(0, write).await;
        let look = async move |client: Rc<Client>| {
            assert_eq!(bytes_of(&client, inodes[149], 0..300).await.unwrap(), [3; 150]);
            check(&client, &inodes, 151).await;
        };
        stage.on(1, look).await;
    });
}

/// Returns a kernel that drops everything on request, and counts the pages.
fn kernel(dropped: Rc<Cell<u32>>) -> Changes {
    Box::new(move |change| match change {
        Change::Inode(_) => {}
        Change::Pages(_, done) => {
            dropped.set(dropped.get() + 1);
            let _ = done.try_send(Dropping::Done);
        }
        Change::Attributes { known, .. } => drop(known.try_send(true)),
        Change::Names(_, _, done) => drop(done.try_send(())),
        Change::AllNames(done) => drop(done.try_send(true)),
    })
}

/// Goal: at an open, the bytes of a small file go into the kernel's pages if the kernel knows its
/// end and no other handle has it open. They are dropped like pages that were read (R27).
#[test]
fn pages_are_filled_of_files_that_nobody_else_has_open() {
    INLINE_BYTES.store(INLINE_MAX_BYTES, Ordering::Relaxed);
    let dropped = Rc::new(Cell::new(0));
    let counted = Rc::clone(&dropped);
    let changes = |node| (node == 0).then(|| kernel(Rc::clone(&counted)));
    let device = Arc::new(Gate::new(DEVICE_BYTES, BLOCK_BYTES));
    play_on_one(device, 2, changes, async |stage| {
        let inode = stage.on(1, async |client| stage::make(&client, b"a", 1, 4096).await).await;
        let read = async move |client: Rc<Client>| {
            client.set_lending(Lending { attributes: LENT, names: LENT });
            bytes_of(&client, inode, 0..4096).await.unwrap();
            let attr = client.attr(inode).await.unwrap();
            let (first, _) = client.open(inode, OpenMode::default()).await.unwrap();
            assert_eq!(client.bytes_for_pages(&attr), None, "the kernel does not know its end");
            assert!(!client.lend_attributes(&attr).is_zero());
            assert_eq!(client.bytes_for_pages(&attr), Some(vec![1; 4096]));
            let (second, _) = client.open(inode, OpenMode::default()).await.unwrap();
            assert_eq!(client.bytes_for_pages(&attr), None, "it is open already");
            client.release(&second).await.unwrap();
            assert!(client.bytes_for_pages(&attr).is_some());
            (client, attr, first)
        };
        let (client, attr, _first) = stage.on(0, read).await;
        let write = async move |client: Rc<Client>| {
            let (handle, _) = client.open(inode, stage::WRITE).await.unwrap();
            client.write(&handle, 0, stage::filled(2, 100), false).await.unwrap();
            client.release(&handle).await.unwrap();
        };
        stage.on(1, write).await;
        assert_eq!(dropped.get(), 1, "the pages are still there");
        assert_eq!(client.bytes_for_pages(&attr), None, "it has changed");
    });
}
