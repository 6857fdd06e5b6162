//! Measures the cost of a volume for each command, in addition to its device. Run it in a release
//! build, on a quiet machine: `cargo test --release -p tsumugi-volume --test cost -- --ignored
//! --nocapture`.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use block::{Backing, Device};
use common::{BLOCK, CLUSTER, Random, pool, run, write};
use reactor::{Buffer, Segment};
use std::rc::Rc;
use std::time::Duration;

const COMMANDS: u64 = 500;
/// Small enough for a CPU's cache, so that the cost is not that of memory.
const VOLUME_BYTES: u64 = 512 << 10;
const ROUNDS: usize = 3000;

/// Returns the nanoseconds of a command: 4 KiB at a random place of a memory device.
async fn cost(device: &Rc<dyn Device>, is_write: bool, shift: u64) -> f64 {
    let (start, mut random) = (reactor::time::now(), Random(1));
    let bytes = Buffer::zeroed(BLOCK as usize).freeze();
    for _ in 0..COMMANDS {
        let offset = shift + random.below(VOLUME_BYTES / BLOCK) * BLOCK;
        if is_write {
            device.write(offset, bytes.clone().into()).await.unwrap();
        } else {
            let room = Segment::Buffer(Buffer::with_capacity(BLOCK as usize), 0..BLOCK as usize);
            device.read_into(offset, [room].into_iter().collect()).await.unwrap();
        }
    }
    let took: Duration = start.elapsed();
    took.as_nanos() as f64 / COMMANDS as f64
}

/// Prints the cost with and without a volume; it asserts nothing.
#[test]
#[ignore = "a measurement: run it alone, optimised, with --ignored"]
fn cost_of_a_command() {
    run(async {
        let (memory, pool) = pool(16 << 20).await;
        pool.create("a", VOLUME_BYTES).await.unwrap();
        let volume = pool.volume("a").unwrap().attach();
        for cluster in 0..VOLUME_BYTES / CLUSTER {
            write(&volume, cluster * CLUSTER / BLOCK, &[1]).await.unwrap();
        }
        let plain = memory.attach();
        // The same bytes on the device: the volume's clusters are the pool's first ones.
        let start = pool.usage().layout.data_start;
        for (name, is_write) in [("write", true), ("read", false)] {
            let (mut with, mut without) = (f64::MAX, f64::MAX);
            for _ in 0..ROUNDS {
                with = with.min(cost(&volume, is_write, 0).await);
                without = without.min(cost(&plain, is_write, start).await);
            }
            println!("{name}: {without:.0} ns, in a volume {:.0} ns more", with - without);
        }
    });
}
