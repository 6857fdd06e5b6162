//! The move of a connection from the listener's reactor to its core, after its first command has
//! arrived.

use super::{Connection, Wire};
use crate::driver::Registration;
use crate::driver::cores::{Kind, Threads};
use crate::queue_pair::QueuePair;
use crate::target::Target;
use nvme::fabrics::Connect;
use nvme::opcode::FabricsType;
use reactor::Buffer;
use reactor::time::Instant;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use tls::{Idle, Stream};

/// A connection that moves to its core. Nothing of it is in flight.
#[derive(Debug)]
pub(in crate::driver) struct Arrival {
    stream: Idle,
    registration: Registration,
    pair: QueuePair,
    buffer: Option<Buffer>,
    unread: Range<usize>,
    handshake_deadline: Instant,
}

impl Arrival {
    /// Assigns the connection to the best core for the kind that it requests. Returns the core.
    pub(in crate::driver) fn choose_core(&mut self) -> usize {
        self.registration.choose_core(wanted(&self.pair))
    }
}

/// Returns the kind of queue pair that a connection's first command requests. A command other than
/// Connect is refused on any core.
fn wanted(pair: &QueuePair) -> Kind {
    let Some(sqe) = pair.next_command() else { return Kind::Admin };
    let is_connect = sqe.is_fabrics() && sqe.fabrics_type() == FabricsType::CONNECT;
    let connect = if is_connect { Connect::decode(sqe).ok() } else { None };
    if connect.is_some_and(|connect| !connect.qid.is_admin()) { Kind::Io } else { Kind::Admin }
}

impl Connection {
    /// Makes the connection move to one of these threads when its first command has arrived.
    pub(in crate::driver) fn outside(mut self, threads: Option<Rc<Threads>>) -> Self {
        self.outside = threads;
        self
    }

    /// Continues a connection on its core.
    pub(in crate::driver) fn resume(target: &Arc<Target>, arrival: Arrival) -> Self {
        let Arrival { stream, registration, pair, buffer, unread, handshake_deadline } = arrival;
        let connection = Self::new(target, Stream::from(stream), registration);
        Self { pair, buffer, unread, handshake_deadline, ..connection }
    }

    /// Sends the connection to its core after the present send has ended.
    pub(super) async fn leave(mut self) {
        // A receive ends before its bytes become a command, and starts again only after that.
        debug_assert!(self.receiving.is_none());
        if let Some(sending) = self.sending.take() {
            let (mut op, until) = (sending.op, self.handshake_deadline);
            // A connection over RDMA stays where it is and never gets here.
            let sent = poll_fn(|cx| match &mut self.wire {
                Wire::Tcp(stream) => stream.poll_send(&mut op, cx),
                Wire::Rdma(_) => Poll::Pending,
            });
            match reactor::race(pin!(sent), pin!(reactor::time::sleep_until(until))).await {
                reactor::Either::First((Ok(()), _)) => self.pair.release(sending.reserved_bytes),
                // The peer does not receive its ICResp, or has closed the connection.
                _ => return self.close().await,
            }
        }
        let idle = poll_fn(|cx| match &mut self.wire {
            Wire::Tcp(stream) => stream.poll_idle(cx),
            Wire::Rdma(_) => Poll::Pending,
        });
        let until = self.handshake_deadline;
        match reactor::race(pin!(idle), pin!(reactor::time::sleep_until(until))).await {
            reactor::Either::First(Ok(())) => {}
            _ => return self.close().await,
        }
        let Some(threads) = self.outside.take() else { return };
        let Wire::Tcp(stream) = self.wire else { return };
        let Some(stream) = stream.into_idle() else {
            unreachable!("sends and receives have ended")
        };
        let arrival = Arrival {
            stream,
            registration: self.registration,
            pair: self.pair,
            buffer: self.buffer,
            unread: self.unread,
            handshake_deadline: self.handshake_deadline,
        };
        threads.send(arrival).await;
    }
}
