use super::*;
use crate::memory::MemoryBacking;
use crate::{Event, Log};
use reactor::Buffer;
use std::path::PathBuf;

const BLOCK: u64 = 512;

fn memory() -> Arc<dyn Backing> {
    Arc::new(MemoryBacking::new(64 * BLOCK, BLOCK as u32).unwrap())
}

fn run<T>(future: impl Future<Output = T>) -> T {
    reactor::Runtime::new(&reactor::Config::default()).unwrap().block_on(future)
}

fn bytes(blocks: u64, value: u8) -> Chunk {
    Chunk::from(Buffer::copy_from(&vec![value; (blocks * BLOCK) as usize]))
}

/// A file for a test, which does not exist yet.
fn path(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("tsumugi-marks-{name}-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

async fn is_readable(device: &Rc<dyn Device>, block: u64) -> bool {
    device.read(block * BLOCK, BLOCK as usize).await.is_ok()
}

/// Goal: reads of marked blocks fail, as part of a longer read too. A write, Write Zeroes, or a
/// write of only some of the blocks ends the marks of the blocks that it writes, and of no others.
/// Discarding ends none.
#[test]
fn marked_blocks_fail_until_they_are_written() {
    let backing = Uncorrectable::in_memory(memory());
    assert!(backing.can_mark_uncorrectable() && !memory().can_mark_uncorrectable());
    let (device, other) = (backing.attach(), backing.attach());
    run(async {
        device.write(0, bytes(64, 7)).await.unwrap();
        device.mark_uncorrectable(10 * BLOCK, 4 * BLOCK).await.unwrap();
        assert_eq!(backing.marked_blocks(), 4);
        for block in [9, 10, 13, 14] {
            let expected = !(10..14).contains(&block);
            assert_eq!(is_readable(&other, block).await, expected, "block {block}");
        }
        let error = device.read(8 * BLOCK, 3 * BLOCK as usize).await.unwrap_err();
        assert!(matches!(error, Error::Io { access: Access::Read, .. }), "{error}");
        device.discard(10 * BLOCK, BLOCK).await.unwrap();
        assert!(!is_readable(&device, 10).await);
        other.write(9 * BLOCK, bytes(2, 8)).await.unwrap();
        device.write_zeroes(12 * BLOCK, BLOCK).await.unwrap();
        device.write_chunks(20 * BLOCK, vec![bytes(1, 1)]).await.unwrap();
        assert!(is_readable(&device, 10).await && is_readable(&device, 12).await);
        assert!(!is_readable(&device, 11).await && !is_readable(&device, 13).await);
        assert_eq!(backing.marked_blocks(), 2);
        let beyond = device.mark_uncorrectable(63 * BLOCK, 2 * BLOCK).await.unwrap_err();
        assert!(matches!(beyond, Error::OutOfRange { .. }));
        let unaligned = device.mark_uncorrectable(1, BLOCK).await.unwrap_err();
        assert!(matches!(unaligned, Error::Unaligned { .. }));
        let plain = memory().attach().mark_uncorrectable(0, BLOCK).await.unwrap_err();
        assert!(matches!(plain, Error::Unsupported { .. }));
    });
}

/// Goal: marks and their ends survive a restart. The file of another device, of another block size,
/// or of unknown content is refused.
#[test]
fn marks_survive_a_restart() {
    let path = path("restart");
    run(async {
        let open = async |uuid| Uncorrectable::open(memory(), &path, [uuid; 16]).await;
        let backing = open(1).await.unwrap();
        let device = backing.attach();
        device.mark_uncorrectable(3 * BLOCK, 3 * BLOCK).await.unwrap();
        device.write(4 * BLOCK, bytes(1, 1)).await.unwrap();
        let used = open(1).await.unwrap_err().to_string();
        assert!(used.contains("another process uses it"), "{used}");
        drop((device, backing));
        let backing = open(1).await.unwrap();
        let device = backing.attach();
        for (block, expected) in [(2, true), (3, false), (4, true), (5, false), (6, true)] {
            assert_eq!(is_readable(&device, block).await, expected, "block {block}");
        }
        drop((device, backing));
        let wrong = open(2).await.unwrap_err().to_string();
        assert!(wrong.contains("name the file of this namespace"), "{wrong}");
        let larger: Arc<dyn Backing> = Arc::new(MemoryBacking::new(64 << 10, 4096).unwrap());
        assert!(Uncorrectable::open(larger, &path, [1; 16]).await.is_err());
        for content in [&b""[..], b"tsumugi", &[0; 8192]] {
            std::fs::write(&path, content).unwrap();
            assert!(open(1).await.is_err(), "a file of {} bytes", content.len());
        }
    });
    std::fs::remove_file(&path).unwrap();
}

/// Goal: a write that ends marks is durable before they end: the device is flushed in between.
#[test]
fn data_is_durable_before_its_mark_ends() {
    let log = Log::new(memory());
    let backing = Uncorrectable::in_memory(Arc::new(log.clone()));
    let device = backing.attach();
    run(async {
        device.write(0, bytes(1, 1)).await.unwrap();
        let flushes = || log.events().iter().filter(|it| matches!(it, Event::Flush { .. })).count();
        assert_eq!(flushes(), 0, "a write to other blocks is not flushed");
        device.mark_uncorrectable(0, BLOCK).await.unwrap();
        device.write(0, bytes(1, 2)).await.unwrap();
        assert_eq!(flushes(), 1);
    });
}

/// Goal: if the file cannot be changed, a new mark fails but holds, since the file may have it. A
/// write to marked blocks fails, and the mark stays.
#[test]
fn a_failed_file_keeps_every_mark() {
    let path = path("failed");
    run(async {
        let backing = Uncorrectable::open(memory(), &path, [1; 16]).await.unwrap();
        let device = backing.attach();
        device.mark_uncorrectable(0, BLOCK).await.unwrap();
        backing.marks.store.as_ref().unwrap().fail();
        assert!(device.mark_uncorrectable(BLOCK, BLOCK).await.is_err());
        assert!(!is_readable(&device, 1).await);
        let error = device.write(0, bytes(1, 1)).await.unwrap_err();
        assert!(matches!(error, Error::Io { access: Access::Write, .. }), "{error}");
        assert!(!is_readable(&device, 0).await);
        device.write(2 * BLOCK, bytes(1, 1)).await.unwrap();
    });
    std::fs::remove_file(&path).unwrap();
}

/// Goal: a device of another size, or opened anew, has the same marks.
#[test]
fn a_resized_device_has_the_marks() {
    let backing = Uncorrectable::in_memory(memory());
    let others = [backing.resized(32 * BLOCK).unwrap(), backing.over(memory())];
    run(async {
        backing.attach().mark_uncorrectable(5 * BLOCK, BLOCK).await.unwrap();
        for other in others {
            assert!(other.can_mark_uncorrectable());
            assert!(!is_readable(&other.attach(), 5).await);
        }
    });
}
