//! Data that a client has read ahead must not be older than what the reader may see: scenes with
//! two clients, in which a file changes between the read-ahead and the read. The same holds for blocks
//! that were kept of small reads.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "power_cut/cluster.rs"]
mod cluster;

use block::MemoryBacking;
use client::{Client, OpenMode, Setting};
use cluster::{machines, start_meta, start_node};
use meta::store::MemoryStore;
use protocol::InodeId;
use reactor::sim::Node;
use reactor::time::sleep;
use reactor::{Buffer, Chunk};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const ROOT: InodeId = InodeId::ROOT;
const SETTING: Setting = Setting { mode: 0o644, uid: 0, gid: 0 };
const WRITE: OpenMode = OpenMode { write: true, append: false, sync: false };
const BLOCK: usize = 16 << 10;
const BLOCKS: usize = 16;

/// Writes all of the file with a byte, and closes it.
async fn fill(client: &Rc<Client>, inode: InodeId, byte: u8) {
    let (handle, _) = client.open(inode, WRITE).await.unwrap();
    let bytes = Chunk::from(Buffer::copy_from(&vec![byte; BLOCK * BLOCKS]));
    client.write(&handle, 0, bytes, false).await.unwrap();
    client.release(&handle).await.unwrap();
}

/// Reads a block as the mount does for `O_DIRECT`. Returns its first and last byte.
async fn read(client: &Rc<Client>, inode: InodeId, block: usize) -> (u8, u8) {
    let offset = (block * BLOCK) as u64;
    client.look_ahead(inode, offset, BLOCK);
    let chunks = client.read(inode, offset, BLOCK, None).await.unwrap();
    let bytes: Vec<u8> = chunks.iter().flat_map(|chunk| chunk.to_bytes().into_owned()).collect();
    assert_eq!(bytes.len(), BLOCK);
    (bytes[0], bytes[BLOCK - 1])
}

fn read_bytes(client: &Client) -> u64 {
    client.counts().devices.iter().map(|device| device.read_bytes).sum()
}

/// Starts the service and two nodes with a device each. Returns the nodes' clients.
async fn start_two(meta: &Node, nodes: &[Node]) -> [Rc<Client>; 2] {
    start_meta(meta, Box::new(MemoryStore::new()), 1);
    let memory = || Arc::new(MemoryBacking::new(8 << 20, 4096).unwrap());
    let machine = |index: usize| (meta.clone(), nodes[index].clone());
    let reader = start_node(&machine(0), 0, memory(), 1).await;
    [reader, start_node(&machine(1), 1, memory(), 1).await]
}

/// Reads the first blocks in order, lets a client fill the file with twos, and reads on.
fn changed_by(is_other: bool, is_committed: bool) {
    let (mut simulation, meta, nodes) = machines(1, 2);
    let whole = async move {
        let [reader, other] = start_two(&meta, &nodes).await;
        let at = Rc::clone(&reader);
        let begun = nodes[0].spawn(async move {
            let (handle, attr) = at.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
            at.release(&handle).await.unwrap();
            fill(&at, attr.inode, 1).await;
            let (handle, _) = at.open(attr.inode, OpenMode::default()).await.unwrap();
            for block in 0..4 {
                assert_eq!(read(&at, attr.inode, block).await, (1, 1));
            }
            sleep(Duration::from_millis(100)).await;
            assert!(read_bytes(&at) > 4 * BLOCK as u64, "nothing was read ahead");
            (handle, attr.inode)
        });
        let (handle, inode) = begun.await.unwrap();
        let writer = if is_other { Rc::clone(&other) } else { Rc::clone(&reader) };
        let change = nodes[usize::from(is_other)].spawn(async move {
            if is_committed {
                return fill(&writer, inode, 2).await;
            }
            let (handle, _) = writer.open(inode, WRITE).await.unwrap();
            let bytes = Chunk::from(Buffer::copy_from(&vec![2; BLOCK * BLOCKS]));
            writer.write(&handle, 0, bytes, false).await.unwrap();
        });
        change.await.unwrap();
        let at = Rc::clone(&reader);
        let rest = nodes[0].spawn(async move {
            for block in 4..BLOCKS {
                assert_eq!(read(&at, inode, block).await, (2, 2), "block {block} is old");
            }
            at.release(&handle).await.unwrap();
        });
        rest.await.unwrap();
    };
    simulation.run(whole).unwrap();
}

/// Reads a block as the mount does for small reads past the kernel's pages, twice. The second time
/// no device is read. Returns its first and last byte.
async fn read_twice(client: &Rc<Client>, inode: InodeId, block: usize) -> (u8, u8) {
    let offset = (block * BLOCK + 100) as u64;
    let mut found = Vec::new();
    for round in 0..2 {
        let before = read_bytes(client);
        let chunks = client.read_small(inode, offset, BLOCK - 200).await.unwrap();
        let bytes: Vec<u8> =
            chunks.iter().flat_map(|chunk| chunk.to_bytes().into_owned()).collect();
        assert_eq!(bytes.len(), BLOCK - 200);
        assert!(round == 0 || read_bytes(client) == before, "block {block} was read again");
        found.push((bytes[0], bytes[BLOCK - 201]));
    }
    assert_eq!(found[0], found[1]);
    found[0]
}

/// Reads all of a file in small pieces, lets a client fill it with twos, and reads it again.
fn small_reads_changed_by(is_other: bool) {
    let (mut simulation, meta, nodes) = machines(1, 2);
    let whole = async move {
        let [reader, other] = start_two(&meta, &nodes).await;
        let at = Rc::clone(&reader);
        let begun = nodes[0].spawn(async move {
            let (handle, attr) = at.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
            fill(&at, attr.inode, 1).await;
            for block in 0..BLOCKS {
                assert_eq!(read_twice(&at, attr.inode, block).await, (1, 1));
            }
            assert_eq!(at.counts().blocks.blocks_kept_bytes, (BLOCK * BLOCKS) as u64);
            (handle, attr.inode)
        });
        let (handle, inode) = begun.await.unwrap();
        let writer = if is_other { other } else { Rc::clone(&reader) };
        let change =
            nodes[usize::from(is_other)].spawn(async move { fill(&writer, inode, 2).await });
        change.await.unwrap();
        let rest = nodes[0].spawn(async move {
            for block in 0..BLOCKS {
                assert_eq!(read_twice(&reader, inode, block).await, (2, 2), "block {block} is old");
            }
            let (writer, _) = reader.open(inode, WRITE).await.unwrap();
            let byte = Chunk::from(Buffer::copy_from(&[3]));
            reader.write(&writer, 100, byte, false).await.unwrap();
            let chunks = reader.read_small(inode, 100, 1).await.unwrap();
            assert_eq!(chunks[0].to_bytes()[..], [3], "a write that is not committed yet");
            reader.release(&writer).await.unwrap();
            let kept = reader.counts().blocks.blocks_kept_bytes;
            assert_eq!(kept, (BLOCK * BLOCKS) as u64 - 4096, "a commit drops its own block alone");
            reader.release(&handle).await.unwrap();
            assert_eq!(reader.counts().blocks.blocks_kept_bytes, 0, "after the last close");
        });
        rest.await.unwrap();
    };
    simulation.run(whole).unwrap();
}

/// Goal: small reads are served from memory the second time. They return what another client, or
/// this one, has written meanwhile.
#[test]
fn small_reads_see_what_was_written() {
    small_reads_changed_by(true);
    small_reads_changed_by(false);
}

/// Goal: reads return what another client has written and closed, not what was read ahead before.
#[test]
fn what_others_write_is_seen() {
    changed_by(true, true);
}

/// Goal: reads return a client's own writes, committed or not.
#[test]
fn own_writes_are_seen() {
    changed_by(false, true);
    changed_by(false, false);
}

/// Goal: with any amount of read-ahead a file is read only once, and each block is the right one.
#[test]
fn a_file_in_order_is_read_once() {
    let (mut simulation, meta, nodes) = machines(1, 1);
    let whole = async move {
        start_meta(&meta, Box::new(MemoryStore::new()), 1);
        let memory = Arc::new(MemoryBacking::new(8 << 20, 4096).unwrap());
        let client = start_node(&(meta, nodes[0].clone()), 0, memory, 1).await;
        let scene = async move {
            let (handle, attr) = client.create(ROOT, b"a", SETTING, WRITE).await.unwrap();
            for block in 0..BLOCKS {
                let bytes = Chunk::from(Buffer::copy_from(&[block as u8; BLOCK]));
                client.write(&handle, (block * BLOCK) as u64, bytes, false).await.unwrap();
            }
            client.fsync(attr.inode).await.unwrap();
            for block in 0..BLOCKS {
                let byte = block as u8;
                assert_eq!(read(&client, attr.inode, block).await, (byte, byte));
            }
            assert_eq!(read_bytes(&client), (BLOCKS * BLOCK) as u64);
            client.release(&handle).await.unwrap();
        };
        nodes[0].spawn(scene).await.unwrap();
    };
    simulation.run(whole).unwrap();
}
