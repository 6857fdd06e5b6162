//! Signals as events of a reactor, without a thread for them.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use anyhow::Context;
use reactor::Handle;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;

/// Signals that have come, and those that come. When it is dropped, these are ignored.
#[derive(Debug)]
pub(crate) struct Signals {
    delivery: SignalDelivery<UnixStream, SignalOnly>,
    /// Readable when one has come.
    socket: Handle,
    waiting: VecDeque<i32>,
}

/// SIGINT and SIGTERM, and `further` ones too: from now on they do nothing but be told.
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
    /// The next signal, waiting for it; several of one number may be told as one. Dropping the
    /// future loses nothing.
    pub(crate) async fn recv(&mut self) -> i32 {
        loop {
            self.waiting.extend(self.delivery.pending());
            if let Some(signal) = self.waiting.pop_front() {
                return signal;
            }
            if let Err(error) = self.socket.poll_readable().await {
                tracing::error!(%error, "signals come no more");
                return std::future::pending().await;
            }
        }
    }
}

/// As [`watch`], for a service that a job relies on: the signals that by default end a process, and
/// that terminals and tools send for other reasons, end it no more.
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
