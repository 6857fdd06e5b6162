//! The journal of a union on a disk in memory that loses, tears, reorders and garbles what was not
//! synced. The disk, the model and the damage are those of the crate's tests.

#[path = "../../../union/tests/journal/disk.rs"]
#[allow(dead_code, reason = "tests use the rest")]
mod disk;
#[path = "../../../union/tests/journal/model.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "tests use the rest; a wrong answer is a panic")]
mod model;
#[path = "../../../union/tests/journal/rot.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "tests use the rest; a wrong answer is a panic")]
mod rot;

use crate::random::Random;
use model::{Driver, options};
use rot::{Sum, attack};
use union::journal::Journal;

/// Crashes of a run.
const CRASHES: u64 = 10;
/// Most changing calls to the disk between two crashes.
const CALLS_MAX: u64 = 60;
/// Damaged copies of a store.
const DAMAGES: usize = 5;

/// Runs a seed; returns its trace and what is wrong. It panics where the journal shows other bytes.
pub(super) fn run(seed: u64) -> (u64, Vec<String>) {
    let mut random = Random::new(seed ^ 0x6a6f_7572_6e61_6c73);
    // The test's models multiply seeds.
    let start = random.below(1 << 40);
    let mut driver = Driver::new(start, options());
    for _ in 0..CRASHES {
        let calls = driver.disk.0.borrow().steps;
        driver.disk.0.borrow_mut().crash_at = Some(calls + random.between(1, CALLS_MAX));
        while !driver.disk.0.borrow().is_down {
            let _ = driver.step();
        }
        if random.chance(30) {
            // A crash within the recovery shows nothing, but leaves its traces.
            driver.disk.lose_power(random.next());
            let calls = driver.disk.0.borrow().steps;
            driver.disk.0.borrow_mut().crash_at = Some(calls + random.between(1, 3));
            driver.journal = None;
            let _ = Journal::open(driver.disk.clone(), driver.options);
        }
        if random.chance(25) {
            driver.disk.kill();
        } else {
            driver.disk.lose_power(random.next());
        }
        driver.reopen();
    }
    attack(start, DAMAGES, &mut Sum::default());
    let calls = driver.disk.0.borrow().steps;
    (calls << 32 | driver.journal().appended().0, Vec::new())
}
