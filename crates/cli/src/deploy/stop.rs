//! The user's request to stop: SIGINT, SIGTERM and SIGHUP set a flag that loops look at. SIGHUP
//! stays ignored if it is ignored already: nohup(1) starts programs this way, to outlast a terminal.

use crate::signals;
use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A shared flag; clones see the same one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop(Arc<AtomicUsize>);

/// A signal has asked this process to end.
#[derive(Debug, thiserror::Error)]
#[error("stopped by signal {0}")]
pub(crate) struct Stopped(pub(crate) usize);

impl Stop {
    /// Catches the signals from now on.
    pub(crate) fn on_signals() -> anyhow::Result<Stop> {
        let stop = Stop::default();
        let hangup = if signals::is_ignored(SIGHUP)? { None } else { Some(SIGHUP) };
        for signal in [SIGINT, SIGTERM].into_iter().chain(hangup) {
            let value = signal.cast_unsigned() as usize;
            signal_hook::flag::register_usize(signal, Arc::clone(&stop.0), value)
                .context("cannot watch for signals")?;
        }
        Ok(stop)
    }

    /// Returns an error if it is time to stop.
    pub(crate) fn check(&self) -> Result<(), Stopped> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(Stopped(signal)),
        }
    }

    /// Forgets the signals so far, which were for another process.
    pub(crate) fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Sets the flag, as a signal does.
    pub(crate) fn request(&self) {
        self.0.store(SIGTERM.cast_unsigned() as usize, Ordering::Relaxed);
    }
}
