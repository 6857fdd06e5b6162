//! Small reads past the kernel's pages, in scenes in which a read waits at its device.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod stage;

use client::Client;
use stage::gate::Gate;
use stage::{BLOCK_BYTES, DEVICE_BYTES, WRITE, filled, make, play_on_one};
use std::rc::Rc;
use std::sync::Arc;

/// Goal: blocks that a commit of this client has overtaken while they were read are not kept.
#[test]
fn blocks_that_a_commit_overtakes_are_not_kept() {
    let gate = Gate::new(DEVICE_BYTES, BLOCK_BYTES);
    play_on_one(
        Arc::new(gate.clone()),
        1,
        |_| None,
        async move |stage| {
            let inode = stage.on(0, async |client| make(&client, b"a", 1, 5000).await).await;
            let read =
                async move |client: Rc<Client>| client.read_small(inode, 0, 100).await.unwrap();
            let (handle, _) =
                stage.on(0, async move |client| client.open(inode, WRITE).await).await.unwrap();
            gate.reads().hold();
            let reading = stage.begin(0, read);
            gate.reads().until_one_waits().await;
            let overtake = async move |client: Rc<Client>| {
                client.write(&handle, 0, filled(2, 5000), false).await.unwrap();
                client.flush(&handle).await.unwrap();
                handle
            };
            let handle = stage.on(0, overtake).await;
            gate.reads().release();
            reading.await.unwrap();
            assert_eq!(stage.on(0, read).await[0].to_bytes()[..], [2; 100]);
            stage.on(0, async move |client| client.release(&handle).await).await.unwrap();
        },
    );
}
