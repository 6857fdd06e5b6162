//! Tests devices on files: their space, and their owners.
#![allow(missing_docs, clippy::unwrap_used)]

use block::{Backing, DiscardEffect, Error, FileBacking, FileOptions, Fill, Incarnation, create};
use reactor::{Buffer, Chunk, Config, Runtime};
use std::path::Path;
use std::time::Duration;

const BLOCK: u64 = 4096;
const SIZE: u64 = BLOCK * 64;

fn run<F: Future>(future: F) -> F::Output {
    Runtime::new(&Config::default()).unwrap().block_on(future)
}

/// Returns distinguishable bytes for one write.
fn pattern(len: u64, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i / 7) as u8 ^ seed).collect()
}

fn options(preallocated: bool) -> FileOptions {
    let incarnation = Incarnation::random();
    FileOptions { block_size: None, direct: true, preallocated, incarnation }
}

fn sparse_file(path: &Path) {
    std::fs::File::create(path).unwrap().set_len(SIZE).unwrap();
}

/// Goal: a created file has real blocks, reports its progress, and keeps them through discard and
/// write-zeroes when opened as preallocated.
#[test]
fn preallocated_files_stay_whole() {
    use std::os::unix::fs::MetadataExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("device");
    let size = 5 << 20;
    run(async {
        let mut steps = Vec::new();
        create(&path, size, true, Fill::Written, |done| steps.push(done)).await.unwrap();
        assert_eq!((steps.len(), *steps.last().unwrap()), (5, size));
        let allocated = std::fs::metadata(&path).unwrap().blocks();
        assert!(allocated * 512 >= size);
        let device = FileBacking::open(&path, &options(true)).unwrap().attach();
        assert_eq!(device.geometry().discard, DiscardEffect::Ignored);
        let bytes = pattern(1 << 20, 5);
        device.write(0, Buffer::copy_from(&bytes).into()).await.unwrap();
        device.discard(0, size).await.unwrap();
        assert!(device.read(0, 1 << 20).await.unwrap().to_bytes() == bytes);
        device.write_zeroes(0, size).await.unwrap();
        assert!(device.read(0, 1 << 20).await.unwrap().to_bytes().iter().all(|&b| b == 0));
        assert_eq!(std::fs::metadata(&path).unwrap().blocks(), allocated);
        // Without this option, discard releases the space.
        drop(device);
        let device = FileBacking::open(&path, &options(false)).unwrap().attach();
        device.discard(0, size).await.unwrap();
        assert!(std::fs::metadata(&path).unwrap().blocks() < allocated / 2);
    });
}

/// Goal: a file has one owner, and the refusal names it.
#[test]
fn files_have_one_owner() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("device");
    sparse_file(&path);
    let first = FileBacking::open(&path, &options(false)).unwrap();
    let error = FileBacking::open(&path, &options(false)).unwrap_err();
    assert!(matches!(error, Error::Locked { .. }));
    let pid = format!("process {}", std::process::id());
    assert!(error.to_string().contains(&pid), "{error}");
    drop(first);
    FileBacking::open(&path, &options(false)).unwrap();
}

/// Goal: opening waits for a lock that is released soon, like that of a killed process.
#[test]
fn a_lock_that_lingers_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("device");
    sparse_file(&path);
    run(async {
        let first = FileBacking::open(&path, &options(false)).unwrap();
        let _ending = reactor::spawn(async move {
            reactor::time::sleep(Duration::from_millis(100)).await;
            drop(first);
        });
        FileBacking::open_patiently(&path, &options(false)).await.unwrap();
    });
}

/// Goal: a shared file is open to other sharers, excludes and is excluded by a process that opens
/// it alone, and shows each sharer the writes of the others. Without direct I/O it is refused.
#[test]
fn a_file_is_shared_by_those_that_share_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    sparse_file(&path);
    run(async {
        let first = FileBacking::open_shared(&path, &options(true)).await.unwrap();
        let second = FileBacking::open_shared(&path, &options(true)).await.unwrap();
        assert!(matches!(FileBacking::open(&path, &options(true)), Err(Error::Locked { .. })));
        let (one, two) = (first.attach(), second.attach());
        one.write(BLOCK, Chunk::copy_from(&pattern(BLOCK, 9))).await.unwrap();
        let read = two.read(BLOCK, BLOCK as usize).await.unwrap();
        assert!(read.to_bytes() == pattern(BLOCK, 9));
        let buffered = FileOptions { direct: false, ..options(true) };
        assert!(FileBacking::open_shared(&path, &buffered).await.is_err());
        drop((one, two, first, second));
        let alone = FileBacking::open(&path, &options(true)).unwrap();
        let refused = FileBacking::open_shared(&path, &options(true)).await;
        assert!(matches!(refused, Err(Error::Locked { .. })));
        drop(alone);
    });
}
