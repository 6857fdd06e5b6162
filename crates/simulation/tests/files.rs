//! Scenes of small files that are made many at a time: the rule D10 in docs/protocol.md.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod stage;

use client::Client;
use protocol::files::NewFile;
use protocol::inline::{Bytes, INLINE_MAX_BYTES};
use protocol::{Errno, InodeId, Timestamp};
use stage::{INLINE_BYTES, SETTING, Stage, bytes_of, play};
use std::rc::Rc;
use std::sync::atomic::Ordering;

const ROOT: InodeId = InodeId::ROOT;

fn scene<F: Future<Output = ()>>(scene: impl FnOnce(Stage) -> F) {
    INLINE_BYTES.store(INLINE_MAX_BYTES, Ordering::Relaxed);
    play(2, scene);
}

fn name(number: usize) -> Vec<u8> {
    format!("file{number}").into_bytes()
}

/// Files that have as many bytes as their number.
fn files(numbers: std::ops::Range<usize>) -> Vec<NewFile> {
    let file = |number: usize| NewFile {
        name: name(number),
        mode: 0o640,
        uid: 5,
        gid: 6,
        atime: Timestamp(7),
        mtime: Timestamp(8),
        bytes: Bytes(vec![number as u8; number]),
    };
    numbers.map(file).collect()
}

async fn make(stage: &Stage, node: usize, files: Vec<NewFile>) -> Result<(), Errno> {
    stage.on(node, async move |client: Rc<Client>| client.create_files(ROOT, files).await).await
}

/// Goal: whoever has looked for a name, or has listed the directory, sees files that are made at once, whole.
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

/// Goal: where one name is there, none of the files is made; what is too large is refused before the call.
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

/// Goal: files are there after the service has died, and what follows in the directory works.
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
