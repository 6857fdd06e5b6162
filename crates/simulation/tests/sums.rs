//! Scenes of flipping bits, at rest and on the way: rules C1 to C4 of docs/protocol.md. A read
//! returns the bytes that were written, or EIO, and EIO only where bits were flipped.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod stage;

use client::{ChecksumCounts, Client, Damage, OpenMode};
use protocol::times::HEARTBEAT;
use protocol::{DeviceId, Errno, InodeId};
use reactor::time::{sleep, timeout};
use reactor::{Buffer, Chunk, Region};
use stage::flip::Flip;
use stage::gate::Gate;
use stage::{
    BLOCK_BYTES, CHECKSUMS, DEVICE_BYTES, SETTING, Stage, WRITE, bytes_of, device, filled, make,
    play_on_one,
};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const ROOT: InodeId = InodeId::ROOT;
const BLOCK: u64 = BLOCK_BYTES as u64;
const END_LASTS: Duration = Duration::from_mins(2);
/// Time until a quiet file is compacted.
const A_WHILE: Duration = Duration::from_secs(10);

/// Plays on nodes. The first one has the only device.
fn play<F: Future<Output = ()>>(nodes: usize, scene: impl FnOnce(Rc<Stage>, Flip) -> F) {
    let flip = Flip::new(DEVICE_BYTES, BLOCK_BYTES);
    let device = Arc::new(flip.clone());
    play_on_one(device, nodes, |_| None, |stage| scene(Rc::new(stage), flip));
}

/// Like [`play`], on a device with reads that can be held.
fn play_held<F: Future<Output = ()>>(nodes: usize, scene: impl FnOnce(Rc<Stage>, Gate) -> F) {
    let gate = Gate::new(DEVICE_BYTES, BLOCK_BYTES);
    let device = Arc::new(gate.clone());
    play_on_one(device, nodes, |_| None, |stage| scene(Rc::new(stage), gate));
}

async fn read(
    stage: &Stage,
    node: usize,
    inode: InodeId,
    range: std::ops::Range<u64>,
) -> Result<Vec<u8>, Errno> {
    stage.on(node, async move |client| bytes_of(&client, inode, range).await).await
}

async fn counts(stage: &Stage, node: usize) -> ChecksumCounts {
    stage.on(node, async |client| client.counts().checksums).await
}

/// Writes to a file, and closes it.
async fn write(client: &Rc<Client>, inode: InodeId, offset: u64, byte: u8, length: usize) {
    let (handle, _) = client.open(inode, WRITE).await.unwrap();
    client.write(&handle, offset, filled(byte, length), false).await.unwrap();
    client.release(&handle).await.unwrap();
}

/// Goal: no reader, near or far, gets bytes that changed on the device, and the error shows their
/// place. The blocks beside them and other files can be read, and so can data that is written again
/// (C1, C2).
#[test]
fn what_changed_at_rest_is_an_error() {
    play(2, async |stage, flip| {
        let inode = stage.on(0, async |client| make(&client, b"a", 1, 5 * 4096 + 7).await).await;
        let first = flip.written()[0];
        let other = stage.on(1, async |client| make(&client, b"b", 2, 9000).await).await;
        flip.at_rest(first + 2).await;
        for node in 0..2 {
            let whole = read(&stage, node, inode, 0..5 * BLOCK).await;
            assert_eq!(whole, Err(Errno::EIO), "node {node}");
            assert_eq!(read(&stage, node, inode, 3 * BLOCK - 1..3 * BLOCK).await, Err(Errno::EIO));
            let last = Some(Damage { device: DeviceId(0), block: first + 2, inode });
            let ChecksumCounts { checksum_repaired, checksum_wrong, checksum_last } =
                counts(&stage, node).await;
            assert_eq!((checksum_repaired, checksum_wrong, checksum_last), (0, 2, last));
            assert_eq!(read(&stage, node, inode, 0..2 * BLOCK).await.unwrap(), [1; 2 * 4096]);
            let end = 3 * BLOCK..5 * BLOCK + 7;
            assert_eq!(read(&stage, node, inode, end).await.unwrap(), [1; 2 * 4096 + 7]);
            assert_eq!(read(&stage, node, other, 0..9000).await.unwrap(), [2; 9000]);
        }
        let mend = async move |client: Rc<Client>| write(&client, inode, 2 * BLOCK, 3, 4096).await;
        stage.on(1, mend).await;
        for node in 0..2 {
            let mended = read(&stage, node, inode, 2 * BLOCK..3 * BLOCK).await.unwrap();
            assert_eq!(mended, [3; 4096], "node {node}");
        }
    });
}

/// Goal: data that changed once on the way is read again, and is right: in the client's memory, in
/// the caller's, and in read-ahead (C2).
#[test]
fn what_changed_on_the_way_is_read_again() {
    play(2, async |stage, flip| {
        let inode = stage.on(0, async |client| make(&client, b"a", 1, 64 * 4096).await).await;
        for node in 0..2 {
            flip.on_the_way(&[true]);
            assert_eq!(read(&stage, node, inode, 0..3 * BLOCK).await.unwrap(), [1; 3 * 4096]);
            let in_place = async move |client: Rc<Client>| {
                let region = Region::new(4 * 4096).unwrap();
                let room = region.range(0, region.len());
                let chunks = client.read(inode, BLOCK, 2 * 4096, Some(&room)).await.unwrap();
                assert!(chunks.iter().all(|chunk| matches!(chunk, Chunk::Region(_))));
                chunks.iter().flat_map(|chunk| chunk.to_bytes().into_owned()).collect::<Vec<_>>()
            };
            flip.on_the_way(&[true]);
            assert_eq!(stage.on(node, in_place).await, [1; 2 * 4096]);
            let in_order = async move |client: Rc<Client>| {
                let (handle, _) = client.open(inode, OpenMode::default()).await.unwrap();
                for at in 0..16 {
                    client.look_ahead(inode, at * 4 * BLOCK, 4 * 4096);
                    let bytes =
                        bytes_of(&client, inode, at * 4 * BLOCK..(at + 1) * 4 * BLOCK).await;
                    assert_eq!(bytes.unwrap(), [1; 4 * 4096]);
                    sleep(Duration::from_millis(10)).await;
                }
                client.release(&handle).await.unwrap();
            };
            flip.on_the_way(&[false, true]);
            stage.on(node, in_order).await;
            let ChecksumCounts { checksum_repaired, checksum_wrong, .. } =
                counts(&stage, node).await;
            assert_eq!((checksum_repaired, checksum_wrong), (3, 0), "node {node}");
        }
        assert_eq!(flip.met(), 6);
    });
}

/// Goal: bytes that are wrong twice are not returned, and the next read starts again (C2).
#[test]
fn what_is_wrong_twice_is_not_handed_over() {
    play(1, async |stage, flip| {
        let inode = stage.on(0, async |client| make(&client, b"a", 1, 5000).await).await;
        flip.on_the_way(&[true, true]);
        assert_eq!(read(&stage, 0, inode, 0..5000).await, Err(Errno::EIO));
        assert_eq!(read(&stage, 0, inode, 0..5000).await.unwrap(), [1; 5000]);
    });
}

/// Goal: data that is written and not committed is checked against the sums in its writer's memory
/// (C2).
#[test]
fn what_is_not_committed_is_checked() {
    play(1, async |stage, flip| {
        let scene = async move |client: Rc<Client>| {
            let (handle, attr) = client.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
            client.write(&handle, 0, filled(1, 512 << 10), false).await.unwrap();
            sleep(Duration::from_millis(20)).await;
            let first = flip.written()[0];
            flip.at_rest(first + 5).await;
            let damaged = bytes_of(&client, attr.inode, 5 * BLOCK..6 * BLOCK).await;
            assert_eq!(damaged, Err(Errno::EIO), "the data is not on the device yet");
            let before = bytes_of(&client, attr.inode, 0..5 * BLOCK).await;
            assert_eq!(before, Ok(vec![1; 5 * 4096]));
            client.release(&handle).await.unwrap();
            assert_eq!(bytes_of(&client, attr.inode, 5 * BLOCK..6 * BLOCK).await, Err(Errno::EIO));
        };
        stage.on(0, scene).await;
    });
}

/// Goal: a client that lost its cache between two commits of one block still checks the block: it
/// requests the sum (C4).
#[test]
fn a_block_that_is_named_twice_is_checked() {
    play(2, async |stage, flip| {
        let inode = stage.on(0, async |client| make(&client, b"a", 1, 2 * 4096).await).await;
        for round in 0..3 {
            let node = round % 2;
            let scene = async move |client: Rc<Client>| {
                for offset in [10, 3000, 5000] {
                    write(&client, inode, offset, 2 + round as u8, 100).await;
                    bytes_of(&client, inode, 0..1).await.unwrap();
                }
            };
            stage.on(node, scene).await;
        }
        for block in flip.written() {
            flip.at_rest(block).await;
        }
        for node in 0..2 {
            for offset in [10, 3000, 5000] {
                assert_eq!(read(&stage, node, inode, offset..offset + 1).await, Err(Errno::EIO));
            }
        }
    });
}

/// Goal: with `checksum=off` a client returns the bytes of the device and makes no sums: others
/// read its blocks unchecked (C2).
#[test]
fn without_checksums_bytes_are_handed_over_as_they_are() {
    CHECKSUMS.set(0b01);
    play(2, async |stage, flip| {
        let inode = stage.on(0, async |client| make(&client, b"a", 1, 4096).await).await;
        let block = flip.written()[0];
        flip.at_rest(block).await;
        assert_eq!(read(&stage, 0, inode, 0..BLOCK).await, Err(Errno::EIO));
        assert_ne!(read(&stage, 1, inode, 0..BLOCK).await.unwrap(), [1; 4096]);
        let other = stage.on(1, async |client| make(&client, b"b", 2, 4096).await).await;
        for block in flip.written().into_iter().filter(|other| *other != block) {
            flip.at_rest(block).await;
        }
        for node in 0..2 {
            assert_ne!(read(&stage, node, other, 0..BLOCK).await.unwrap(), [2; 4096]);
        }
        assert_eq!(counts(&stage, 1).await, ChecksumCounts::default());
    });
    CHECKSUMS.set(u32::MAX);
}

/// Goal: a block that was freed and is used again has no old sum, even if its new writer makes none
/// (C4).
#[test]
fn a_block_that_is_used_again_is_not_checked_against_its_old_sum() {
    CHECKSUMS.set(0b01);
    play(2, async |stage, _| {
        let inode = stage.on(0, async |client| make(&client, b"a", 1, 2 << 20).await).await;
        assert_eq!(read(&stage, 0, inode, 0..BLOCK).await.unwrap(), [1; 4096]);
        for round in 0..6 {
            let again =
                async move |client: Rc<Client>| write(&client, inode, 0, round, 2 << 20).await;
            stage.on(1, again).await;
            sleep(Duration::from_secs(5)).await;
            for at in 0..512 {
                let bytes = read(&stage, 0, inode, at * BLOCK..(at + 1) * BLOCK).await;
                assert_eq!(bytes, Ok(vec![round; 4096]), "round {round}, block {at}");
            }
        }
        assert_eq!(counts(&stage, 0).await, ChecksumCounts::default());
    });
    CHECKSUMS.set(u32::MAX);
}

/// Goal: a client checks blocks of its own commits against the sums that it made, even if they
/// belonged to another file before (C4).
#[test]
fn own_commits_bring_their_sums() {
    play(1, async |stage, _| {
        let scene = async move |client: Rc<Client>| {
            // More than the device has: blocks are used again.
            let inode = make(&client, b"a", 0, 1 << 20).await;
            for round in 1..20 {
                write(&client, inode, 0, round, 1 << 20).await;
                let bytes = bytes_of(&client, inode, 0..1 << 20).await;
                assert_eq!(bytes, Ok(vec![round; 1 << 20]), "round {round}");
                sleep(Duration::from_secs(3)).await;
            }
            assert_eq!(client.counts().checksums, ChecksumCounts::default());
        };
        stage.on(0, scene).await;
    });
}

/// Goal: if a block belongs to another file by the time of the read, because the session has ended
/// meanwhile, that is no damage: the read starts again (C3).
#[test]
fn a_block_of_a_lost_session_is_not_called_damaged() {
    play_held(2, async |stage, gate| {
        let inode = stage.on(0, async |client| make(&client, b"a", 1, 5000).await).await;
        gate.reads().hold();
        let read = stage.begin(0, async move |client| bytes_of(&client, inode, 0..5000).await);
        gate.reads().until_one_waits().await;
        stage.network.cut(&stage.nodes[0], &stage.meta);
        // The call waits until that client has lost its session; then the block is used again.
        let replace = async |client: Rc<Client>| {
            client.unlink(ROOT, b"a").await.unwrap();
            let (handle, _) = client.create(ROOT, b"b", SETTING, WRITE).await.unwrap();
            let mut at = 0;
            while client.write(&handle, at, filled(2, 1 << 16), false).await.is_ok() {
                at += 1 << 16;
            }
            let _ = client.release(&handle).await;
        };
        stage.on(1, replace).await;
        stage.network.heal(&stage.nodes[0], &stage.meta);
        // The client has a new session, in which it may read again.
        sleep(HEARTBEAT).await;
        gate.reads().release();
        let read = timeout(END_LASTS, read).await.expect("it ends").unwrap();
        // The file is gone when the client asks for it again.
        assert!(matches!(read, Err(Errno::ESTALE | Errno::ETIMEDOUT)), "{read:?}");
        assert_eq!(counts(&stage, 0).await, ChecksumCounts::default());
    });
}

/// Goal: bytes that a device has lost with its power are reported as lost, and not as damaged (C3).
#[test]
fn what_a_device_has_lost_is_not_called_damaged() {
    play_held(2, async |stage, gate| {
        let inode = stage.on(1, async |client| make(&client, b"a", 1, 5000).await).await;
        let read = async move |client: Rc<Client>| bytes_of(&client, inode, 0..5000).await;
        assert_eq!(stage.on(1, read).await.unwrap(), [1; 5000]);
        gate.reads().hold();
        let reading = stage.begin(1, read);
        gate.reads().until_one_waits().await;
        let empty = Arc::new(Gate::new(DEVICE_BYTES, BLOCK_BYTES));
        stage.restart_node(0, Some(device(0, empty, 2))).await;
        let lost = timeout(END_LASTS, reading).await.expect("it ends").unwrap();
        assert_eq!(lost, Err(Errno::EIO));
        assert_eq!(counts(&stage, 1).await, ChecksumCounts::default());
    });
}

/// Goal: a compaction copies no damage: the copy would have a correct sum of wrong bytes (C2).
#[test]
fn a_compaction_copies_no_damage() {
    play(1, async |stage, flip| {
        let blocks = 64;
        let wear = async move |client: Rc<Client>| {
            let (handle, attr) = client.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
            let (between, _) = client.create(ROOT, b"between", SETTING, WRITE).await.unwrap();
            for block in 0..blocks {
                let at = block * 37 % blocks * BLOCK;
                client.write(&handle, at, filled(1, 4096), false).await.unwrap();
                client.flush(&handle).await.unwrap();
                client.write(&between, block << 15, filled(9, 32 << 10), false).await.unwrap();
                client.flush(&between).await.unwrap();
            }
            client.release(&handle).await.unwrap();
            client.release(&between).await.unwrap();
            attr.inode
        };
        let inode = stage.on(0, wear).await;
        let damaged = flip.written()[0];
        flip.at_rest(damaged).await;
        sleep(A_WHILE).await;
        let mut failed = 0;
        for at in 0..blocks {
            match read(&stage, 0, inode, at * BLOCK..(at + 1) * BLOCK).await {
                Ok(bytes) => assert_eq!(bytes, [1; 4096], "block {at}"),
                Err(errno) => {
                    assert_eq!(errno, Errno::EIO);
                    failed += 1;
                }
            }
        }
        assert_eq!(failed, 1);
    });
}

/// Pseudorandom numbers.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

const FILE_BYTES: u64 = 200_000;

/// Takes one step of random reads and writes on a node. Returns the bytes read and the expected
/// ones.
async fn step(
    client: Rc<Client>,
    inode: InodeId,
    model: &mut [u8],
    mut numbers: Numbers,
) -> Option<Errno> {
    let mut range = || {
        let start = numbers.below(FILE_BYTES - 50_000);
        start..start + 1 + numbers.below(40_000)
    };
    let (written, asked) = (range(), range());
    let (handle, _) = client.open(inode, WRITE).await.unwrap();
    let writes = numbers.below(3) > 0;
    if writes {
        let byte = numbers.below(256) as u8;
        let bytes = Buffer::copy_from(&vec![byte; (written.end - written.start) as usize]);
        client.write(&handle, written.start, Chunk::from(bytes), false).await.unwrap();
        model[written.start as usize..written.end as usize].fill(byte);
    }
    if numbers.below(2) == 0 {
        client.flush(&handle).await.unwrap();
    }
    let read = bytes_of(&client, inode, asked.clone()).await;
    client.release(&handle).await.unwrap();
    match read {
        Ok(bytes) => {
            assert!(bytes == model[asked.start as usize..asked.end as usize], "wrong bytes");
            None
        }
        Err(errno) => Some(errno),
    }
}

/// Goal: with any flips, reads return the bytes that were written, or EIO; and EIO only if they met
/// a flipped bit.
#[test]
fn random_flips_show_as_errors_only() {
    let (mut failed, mut passed) = (0, 0);
    for seed in 0..12 {
        let (failed, passed) = (&mut failed, &mut passed);
        play(2, async |stage, flip| {
            let length = FILE_BYTES as usize;
            let inode = stage.on(0, async move |client| make(&client, b"a", 7, length).await).await;
            let mut model = vec![7; length];
            let mut numbers = Numbers(seed);
            for _ in 0..60 {
                if numbers.below(4) == 0 {
                    let written = flip.written();
                    flip.at_rest(written[numbers.below(written.len() as u64) as usize]).await;
                }
                if numbers.below(3) == 0 {
                    flip.on_the_way(&[numbers.below(2) == 0, numbers.below(3) == 0]);
                }
                let before = flip.met();
                let node = numbers.below(2) as usize;
                let (own, mut bytes) =
                    (Numbers(numbers.below(1 << 30)), std::mem::take(&mut model));
                let act = async move |client: Rc<Client>| {
                    let errno = step(client, inode, &mut bytes, own).await;
                    (errno, bytes)
                };
                let (errno, bytes) = stage.on(node, act).await;
                model = bytes;
                if let Some(errno) = errno {
                    assert_eq!(errno, Errno::EIO);
                    assert!(flip.met() > before, "seed {seed}: nothing was flipped");
                    *failed += 1;
                } else {
                    *passed += 1;
                }
            }
        });
    }
    assert!(failed > 20 && passed > 200, "{failed} failed, {passed} passed");
}
