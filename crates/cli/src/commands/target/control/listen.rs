//! Listeners belong to the reactor that serves them, so changes are orders to its task.

use anyhow::{Context, bail};
use reactor::mailbox::{Receiver, Sender};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
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
    decision: Decision,
}

/// Who came first: the server with its result, or the caller that gave the order up.
#[derive(Clone, Debug, Default)]
struct Decision(Arc<AtomicBool>);

impl Decision {
    /// Decides; returns whether the other side has not decided before.
    fn take(&self) -> bool {
        !self.0.swap(true, Ordering::SeqCst)
    }

    fn is_taken(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
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
    /// Carries the order out. An order that its caller has given up, and so has reported as failed,
    /// opens no listener: one that it has opened is closed again.
    pub(in crate::commands::target) async fn carry_out(self, server: &mut Server) {
        if self.decision.is_taken() {
            return;
        }
        let result = match self.change {
            Change::Add => add(server, self.address).await,
            Change::Remove => {
                server.unlisten(self.address).await;
                Ok(self.address)
            }
        };
        if self.decision.take() {
            let _ = self.answer.send(result);
        } else if let (Change::Add, Ok(address)) = (self.change, result) {
            server.unlisten(address).await;
        }
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
        let decision = Decision::default();
        let order = Order { address, change, answer, decision: decision.clone() };
        if self.listeners.try_send(order).is_err() {
            bail!("the target ends");
        }
        Ok(await_answer(&answered, &decision, PATIENCE)??)
    }
}

/// Waits for the result of an order, and gives the order up if there is none in time.
fn await_answer<T>(
    answered: &mpsc::Receiver<T>,
    decision: &Decision,
    patience: Duration,
) -> anyhow::Result<T> {
    match answered.recv_timeout(patience) {
        // The result comes at this moment.
        Err(mpsc::RecvTimeoutError::Timeout) if !decision.take() => answered.recv().ok(),
        answer => answer.ok(),
    }
    .context("the target does not answer")
}

#[cfg(test)]
mod tests {
    use super::*;
    use target::{AdmissionMode, Admissions, Limits, ServerOptions, Target};

    /// Goal: an order whose caller has given it up leaves no listener, whether the server begins it
    /// after that or before; one that is awaited does.
    #[test]
    fn an_order_that_was_given_up_opens_nothing() {
        reactor::Runtime::new(&reactor::Config::default()).unwrap().block_on(async {
            let admissions = Admissions::new(AdmissionMode::AnyHost);
            let target = Target::new(Limits::default(), admissions).unwrap();
            let options = ServerOptions {
                listen: vec!["127.0.0.1:0".parse().unwrap()],
                ..ServerOptions::default()
            };
            let mut server = Server::start(&target, &options).unwrap();
            let known = server.addresses().len();
            for (is_given_up, added) in [(true, 0), (false, 1)] {
                let (answer, answered) = mpsc::sync_channel(1);
                let decision = Decision::default();
                let order = Order {
                    address: "127.0.0.1:0".parse().unwrap(),
                    change: Change::Add,
                    answer,
                    decision: decision.clone(),
                };
                if is_given_up {
                    assert!(await_answer(&answered, &decision, Duration::ZERO).is_err());
                }
                order.carry_out(&mut server).await;
                assert_eq!(server.addresses().len(), known + added);
                assert_eq!(answered.try_recv().is_ok(), !is_given_up);
            }
        });
    }
}
