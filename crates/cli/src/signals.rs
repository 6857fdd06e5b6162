//! Signals as messages to a reactor.

use anyhow::Context;
use ring::mailbox::{Receiver, channel};
use signal_hook::consts::{SIGINT, SIGTERM};

/// Signals that may wait to be looked at.
const SIGNALS_MAX: usize = 16;

/// SIGINT and SIGTERM as they come, one message each, and `further` ones too.
pub(crate) fn watch(further: &[i32]) -> anyhow::Result<Receiver<i32>> {
    let numbers = [SIGINT, SIGTERM].iter().chain(further);
    let mut signals =
        signal_hook::iterator::Signals::new(numbers).context("cannot watch for signals")?;
    let (sender, receiver) = channel(SIGNALS_MAX);
    let forward = move || {
        for signal in signals.forever() {
            // A full mailbox has enough of them already.
            let _ = sender.try_send(signal);
        }
    };
    let thread = std::thread::Builder::new().name("signals".into()).spawn(forward);
    thread.context("cannot start a thread for signals")?;
    Ok(receiver)
}

/// Completes with the first SIGINT or SIGTERM.
pub(crate) async fn termination(signals: &mut Receiver<i32>) {
    while let Some(signal) = signals.recv().await {
        if matches!(signal, SIGINT | SIGTERM) {
            return;
        }
    }
}
