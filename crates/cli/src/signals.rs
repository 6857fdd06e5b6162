//! Signals as events of a reactor, without a thread for them.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use anyhow::Context;
use reactor::Handle;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;

/// Returns whether this process ignores a signal (`proc_pid_status(5)`, `SigIgn`).
///
/// # Errors
/// If /proc does not show it.
pub(crate) fn is_ignored(signal: i32) -> anyhow::Result<bool> {
    let path = "/proc/self/status";
    let status = std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let mask = mask.with_context(|| format!("{path} does not list the ignored signals"))?;
    // The lowest bit is signal 1.
    Ok(mask >> (signal - 1) & 1 != 0)
}

/// A queue of signals that have come. After it is dropped, these signals are ignored.
#[derive(Debug)]
pub(crate) struct Signals {
    delivery: SignalDelivery<UnixStream, SignalOnly>,
    /// Readable when a signal has come.
    socket: Handle,
    waiting: VecDeque<i32>,
}

/// Watches SIGINT, SIGTERM and the signals of `further`: from now on they only go into the queue.
pub(crate) fn watch(further: &[i32]) -> anyhow::Result<Signals> {
    let numbers = [SIGINT, SIGTERM].iter().chain(further);
    let (read, write) = UnixStream::pair().context("cannot make a socket for signals")?;
    let socket = read.try_clone().context("cannot make a socket for signals")?;
    let socket = Handle::from_fd(OwnedFd::from(socket));
    let delivery = SignalDelivery::with_pipe(read, write, SignalOnly, numbers)
        .context("cannot watch for signals")?;
    Ok(Signals { delivery, socket, waiting: VecDeque::new() })
}

impl Signals {
    /// Waits for the next signal and returns it; several of one number may count as one. Dropping
    /// the future loses nothing.
    pub(crate) async fn recv(&mut self) -> i32 {
        loop {
            self.waiting.extend(self.delivery.pending());
            if let Some(signal) = self.waiting.pop_front() {
                return signal;
            }
            if let Err(error) = self.socket.poll_readable().await {
                tracing::error!(%error, "the process no longer receives signals");
                return std::future::pending().await;
            }
        }
    }
}

/// As [`watch`], for a service that a job relies on: signals that by default end a process, and
/// that terminals and tools send for other reasons, no longer end it.
pub(crate) fn watch_service() -> anyhow::Result<Signals> {
    watch(&[SIGHUP, SIGUSR1, SIGUSR2])
}

/// Completes with the first SIGINT or SIGTERM; at each SIGUSR1 calls `show`.
pub(crate) async fn termination_or(signals: &mut Signals, mut show: impl FnMut()) {
    loop {
        match signals.recv().await {
            SIGINT | SIGTERM => return,
            SIGUSR1 => show(),
            _ => {}
        }
    }
}

/// Completes with the first SIGINT or SIGTERM.
pub(crate) async fn termination(signals: &mut Signals) {
    while !matches!(signals.recv().await, SIGINT | SIGTERM) {}
}
