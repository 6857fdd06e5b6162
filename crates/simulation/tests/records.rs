//! Scenes of records that lie apart in a file: they are read with few commands, and are never older
//! than allowed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod stage;

use client::{Client, OpenMode};
use protocol::InodeId;
use stage::gate::Gate;
use stage::{BLOCK_BYTES, DEVICE_BYTES, WRITE, bytes_of, filled, play_on_one};
use std::rc::Rc;
use std::sync::Arc;

const RECORD_BYTES: u64 = 3_000;
const RECORDS: u64 = 600;
const SIDES: u64 = 2;

/// Writes every second record, and commits them.
async fn write(client: Rc<Client>, inode: InodeId, side: u64, byte: u8) {
    let (handle, _) = client.open(inode, WRITE).await.unwrap();
    for number in (side..RECORDS).step_by(SIDES as usize) {
        let bytes = filled(byte, RECORD_BYTES as usize);
        client.write(&handle, number * RECORD_BYTES, bytes, false).await.unwrap();
    }
    client.release(&handle).await.unwrap();
}

/// Reads records of one side in the kernel's pattern. All must contain this byte.
async fn read(client: Rc<Client>, inode: InodeId, numbers: std::ops::Range<u64>, byte: u8) {
    for number in numbers.filter(|number| number % SIDES == 1) {
        let start = number * RECORD_BYTES;
        client.look_ahead(inode, start, RECORD_BYTES as usize);
        let found = bytes_of(&client, inode, start..start + RECORD_BYTES).await.unwrap();
        assert!(found.iter().all(|other| *other == byte), "record {number} has {}", found[0]);
    }
}

/// Goal: records of two writers alternate in the file but lie one after the other on the device. A
/// few commands read them, not one each, and reads see what others write meanwhile.
#[test]
fn records_are_read_ahead_and_never_stale() {
    let device = Arc::new(Gate::new(DEVICE_BYTES, BLOCK_BYTES));
    let gate = Arc::clone(&device);
    play_on_one(
        device,
        2,
        |_| None,
        async |stage| {
            let make = async |client: Rc<Client>| stage::make(&client, b"a", 0, 1).await;
            let inode = stage.on(0, make).await;
            stage.on(0, async move |client| write(client, inode, 0, 1).await).await;
            stage.on(1, async move |client| write(client, inode, 1, 2).await).await;
            let open = async move |client: Rc<Client>| {
                client.open(inode, OpenMode::default()).await.unwrap().0
            };
            let handle = stage.on(0, open).await;
            let before = gate.reads().asked();
            stage.on(0, async move |client| read(client, inode, 0..RECORDS / 2, 2).await).await;
            let commands = gate.reads().asked() - before;
            assert!(
                commands < RECORDS / SIDES / 2 / 2,
                "{commands} commands for {} records",
                RECORDS / 4
            );
            stage.on(1, async move |client| write(client, inode, 1, 3).await).await;
            stage
                .on(0, async move |client| read(client, inode, RECORDS / 2..RECORDS, 3).await)
                .await;
            stage.on(0, async move |client| client.release(&handle).await.unwrap()).await;
        },
    );
}
