//! The store of copy-ups against a reference model, through kills and power losses at every step.
#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

#[path = "journal/attack.rs"]
mod attack;
#[path = "journal/damage.rs"]
mod damage;
#[path = "journal/directory.rs"]
mod directory;
#[path = "journal/disk.rs"]
mod disk;
#[path = "journal/model.rs"]
mod model;
#[path = "journal/rot.rs"]
mod rot;

use model::{Driver, check, options};

fn seeds(default: u64) -> u64 {
    std::env::var("JOURNAL_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(default)
}

// Goal: after any operations the store shows what plain arrays show, at once and after a kill, with
// cleaning in between; and cleaning keeps the log within a small multiple of what lives.
#[test]
fn equals_the_model() {
    for seed in 0..seeds(8) {
        let mut driver = Driver::new(seed, options());
        for round in 0..250 {
            driver.step().unwrap();
            let model = driver.model.clone();
            check(driver.journal(), &model);
            if round % 50 == 49 {
                driver.disk.kill();
                assert!(driver.reopen().is_continuous);
                assert_eq!(
                    driver.model.len(),
                    model.values().filter(|f| !f.names.is_empty()).count()
                );
            }
        }
        driver.sync().unwrap();
        while driver.journal().clean(1 << 20).unwrap().has_more {
            driver.sync().unwrap();
        }
        let usage = driver.journal().usage();
        let bound = 2 * usage.live_bytes + 1024 * usage.files as u64 + 4 * 16_384;
        assert!(usage.used_bytes <= bound, "{usage:?}");
    }
}

// Goal: a power loss at every single step of a run, with several outcomes each, shows a state that
// was there, nothing before what was acknowledged; and the store goes on from it.
#[test]
fn power_loss_at_every_step() {
    for seed in 0..seeds(2) {
        let mut crash_at = 1;
        loop {
            let mut driver = Driver::new(seed, options());
            driver.disk.0.borrow_mut().crash_at = Some(crash_at);
            for _ in 0..70 {
                if driver.step().is_err() && driver.disk.0.borrow().is_down {
                    break;
                }
            }
            let is_over = !driver.disk.0.borrow().is_down;
            driver.disk.lose_power(seed * 1000 + crash_at);
            driver.reopen();
            for _ in 0..5 {
                driver.step().unwrap();
            }
            driver.sync().unwrap();
            driver.disk.lose_power(seed * 2000 + crash_at);
            driver.reopen();
            if is_over {
                break;
            }
            crash_at += 1;
        }
    }
}

// Goal: many power losses and kills one after the other, also during recovery and cleaning, at
// random steps: what was given up never comes back.
#[test]
fn many_crashes_in_a_row() {
    for seed in 0..seeds(20) {
        let mut driver = Driver::new(seed + 77, options());
        for round in 0..12 {
            let steps = driver.disk.0.borrow().steps;
            let crash_at = steps + 1 + driver.random.below(60);
            driver.disk.0.borrow_mut().crash_at = Some(crash_at);
            while !driver.disk.0.borrow().is_down {
                let _ = driver.step();
            }
            // A crash in the middle of the recovery shows nothing, but leaves its traces.
            if round % 3 == 1 {
                driver.disk.lose_power(seed * 31 + round);
                let now = driver.disk.0.borrow().steps;
                driver.disk.0.borrow_mut().crash_at = Some(now + 1 + driver.random.below(3));
                driver.journal = None;
                let _ = union::journal::Journal::open(driver.disk.clone(), driver.options);
            }
            if round % 4 == 3 {
                driver.disk.kill();
            } else {
                driver.disk.lose_power(seed * 100 + round);
            }
            driver.reopen();
        }
    }
}
