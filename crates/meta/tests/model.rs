//! The transaction core against a reference model: a tree in plain maps, and files in which each
//! byte records which byte of which allocation it is.
//!
//! Random calls go to both. Answers and errors must agree call by call, and the whole state at the
//! end. After crashes, the reopened store must have exactly the model's state of that moment.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod model {
    pub(crate) mod driver;
    pub(crate) mod steps;
    pub(crate) mod tree;
}

use meta::store::CrashPoint;
use model::driver::Driver;
use model::steps::{Step, any_step};
use proptest::prelude::*;

fn steps(count: usize) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(any_step(), 1..count)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Goal: every answer equals the model's, and at the end every name, attribute, byte and block.
    #[test]
    fn core_behaves_as_the_model(steps in steps(160)) {
        let mut driver = Driver::new();
        for step in &steps {
            driver.run(step);
        }
        driver.compare();
        driver.check();
        driver.compare_space();
        driver.compare();
        driver.check();
    }

    /// Goal: killed after any call, the service finds everything that it had answered.
    #[test]
    fn every_flushed_call_survives_a_kill(steps in steps(60)) {
        let mut driver = Driver::new();
        for step in &steps {
            driver.run(step);
            driver.flush();
            driver.reopen(CrashPoint::Process);
            driver.compare();
            driver.check();
        }
    }

    /// Goal: after a loss of power the store has the state after some earlier flush, whole.
    #[test]
    fn power_loss_keeps_a_prefix(steps in steps(80), kept in any::<prop::sample::Index>()) {
        let mut driver = Driver::new();
        let mut states = vec![driver.state()];
        for step in &steps {
            let before = driver.batches();
            driver.run(step);
            driver.flush();
            // A call may write nothing. If it is long, it may write several batches, and only the
            // last shows the call's whole effect.
            for _ in before..driver.batches() {
                states.push(driver.state());
            }
        }
        let kept = kept.index(states.len());
        driver.reopen(CrashPoint::Power { kept });
        driver.set_state(states[kept].clone());
        driver.compare();
        driver.check();
        driver.compare_space();
        driver.check();
    }
}
