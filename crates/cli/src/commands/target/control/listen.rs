//! Listeners belong to the reactor that serves them, so changes are orders to its task.

use anyhow::{Context, bail};
use reactor::mailbox::{Receiver, Sender};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::Duration;
use target::{Error, Server};

/// Orders that may wait: changes come one after the other.
const ORDERS_MAX: usize = 4;
/// How long an order may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often to try an address in use, and the pause between: the kernel frees an address a moment
/// after its listener was closed.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(20);

/// A listener to add or remove.
#[derive(Clone, Copy, Debug)]
enum Change {
    Add,
    Remove,
}

/// An order to the server's task.
#[derive(Debug)]
pub(in crate::commands::target) struct Order {
    address: SocketAddr,
    change: Change,
    answer: mpsc::SyncSender<Result<SocketAddr, Error>>,
}

/// The orders, for the task that owns the server.
pub(in crate::commands::target) struct Orders(Receiver<Order>);

pub(super) fn channel() -> (Sender<Order>, Orders) {
    let (sender, receiver) = reactor::mailbox::channel(ORDERS_MAX);
    (sender, Orders(receiver))
}

impl Orders {
    /// Returns the next order. Dropping the future loses nothing.
    pub(in crate::commands::target) async fn next(&mut self) -> Order {
        match self.0.recv().await {
            Some(order) => order,
            // The control is gone: no more orders come.
            None => std::future::pending().await,
        }
    }
}

impl Order {
    /// Carries the order out.
    pub(in crate::commands::target) async fn carry_out(self, server: &mut Server) {
        let result = match self.change {
            Change::Add => add(server, self.address).await,
            Change::Remove => {
                server.unlisten(self.address).await;
                Ok(self.address)
            }
        };
        // The caller may have stopped waiting; the listener is open all the same.
        let _ = self.answer.send(result);
    }
}

async fn add(server: &mut Server, address: SocketAddr) -> Result<SocketAddr, Error> {
    for _ in 1..TRIES {
        match server.listen(address) {
            Err(Error::Listen { source, .. }) if source.kind() == ErrorKind::AddrInUse => {
                reactor::time::sleep(PAUSE).await;
            }
            result => return result,
        }
    }
    server.listen(address)
}

impl super::Control {
    /// Listens on an address. Returns it with its port.
    pub(super) fn add_listener(&self, address: SocketAddr) -> anyhow::Result<SocketAddr> {
        self.order(address, Change::Add)
    }

    /// Stops listening on an address.
    pub(super) fn remove_listener(&self, address: SocketAddr) -> anyhow::Result<()> {
        self.order(address, Change::Remove).map(drop)
    }

    fn order(&self, address: SocketAddr, change: Change) -> anyhow::Result<SocketAddr> {
        let (answer, answered) = mpsc::sync_channel(1);
        if self.listeners.try_send(Order { address, change, answer }).is_err() {
            bail!("the target ends");
        }
        let result = answered.recv_timeout(PATIENCE).context("the target does not answer")?;
        Ok(result?)
    }
}
