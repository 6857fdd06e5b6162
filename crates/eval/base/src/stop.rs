//! The flag by which the user stops an experiment.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that says whether the user wants to stop; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Stop(pub Arc<AtomicBool>);

impl Stop {
    /// Returns whether the user wants to stop.
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the flag.
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
