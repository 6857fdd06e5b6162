//! Whether the user wants to stop: SIGINT, SIGTERM and SIGHUP as a flag that loops look at.

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A shared flag; clones see the same one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop(Arc<AtomicUsize>);

/// The user, or who started this, wants it to end.
#[derive(Debug, thiserror::Error)]
#[error("stopped by signal {0}")]
pub(crate) struct Stopped(pub(crate) usize);

impl Stop {
    /// Catches the signals from now on.
    pub(crate) fn on_signals() -> anyhow::Result<Stop> {
        let stop = Stop::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let value = signal.cast_unsigned() as usize;
            signal_hook::flag::register_usize(signal, Arc::clone(&stop.0), value)
                .context("cannot watch for signals")?;
        }
        Ok(stop)
    }

    /// An error once it is time to stop.
    pub(crate) fn check(&self) -> Result<(), Stopped> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(Stopped(signal)),
        }
    }

    /// Forgets signals that came so far: they were for somebody else.
    pub(crate) fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Tells all who look to stop, as if by a signal.
    pub(crate) fn request(&self) {
        self.0.store(SIGTERM.cast_unsigned() as usize, Ordering::Relaxed);
    }
}
