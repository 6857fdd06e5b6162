//! The reader and the writer of a connection.

use super::{Inner, Traffic};
use crate::error::RpcError;
use crate::interface::Side;
use crate::transport::{self, Transport};
use protocol::connection::ConnectionError;
use std::rc::Rc;
use std::task::Poll;

pub(super) async fn read<S: Side>(inner: Rc<Inner<S>>, transport: Rc<Transport>) {
    let mut buffer = transport::receive_buffer();
    let reason = loop {
        match drain(&inner).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => break error.to_string(),
        }
        let result;
        let take = |bytes: &[u8]| inner.peer.borrow_mut().receive(bytes);
        (result, buffer) = transport.receive(buffer, take).await;
        match result {
            Ok(0) => break "the peer closed it".to_owned(),
            Ok(bytes) => {
                let traffic = inner.traffic.get();
                let received_bytes = traffic.received_bytes + bytes as u64;
                inner.traffic.set(Traffic { received_bytes, ..traffic });
            }
            Err(error) => break ended_with(&inner, "receiving", &error),
        }
    };
    tracing::info!(address = %inner.address, reason, "connection ends");
    inner.close(&reason);
}

/// Logs an error that ends a connection; returns its text.
fn ended_with<S: Side>(inner: &Inner<S>, action: &str, error: &RpcError) -> String {
    let errno = match error {
        RpcError::Io(error) => error.raw_os_error().unwrap_or_default(),
        _ => 0,
    };
    if inner.reason.borrow().is_none() {
        tracing::warn!(address = %inner.address, errno, %error, "connection ends: {action} failed");
    }
    error.to_string()
}

/// Passes all received events on, at the speed at which the peer reads; returns false if the
/// connection was closed meanwhile.
async fn drain<S: Side>(inner: &Rc<Inner<S>>) -> Result<bool, ConnectionError> {
    let may_go_on =
        |inner: &Inner<S>| (!inner.holds_calls() || inner.reason.borrow().is_some()).then_some(());
    loop {
        inner.watch(may_go_on).await;
        if !inner.dispatch()? {
            return Ok(inner.reason.borrow().is_none());
        }
    }
}

pub(super) async fn write<S: Side>(inner: Rc<Inner<S>>, transport: Rc<Transport>) {
    let mut spare = Vec::new();
    loop {
        std::future::poll_fn(|cx| {
            if inner.peer.borrow().output().is_empty() {
                *inner.writer.borrow_mut() = Some(cx.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
        // Tasks that are ready now may have more to send: it goes with this send.
        reactor::yield_now().await;
        let bytes = inner.peer.borrow_mut().take_output(spare);
        inner.is_sending.set(true);
        inner.sending_bytes.set(bytes.len());
        let sent = transport.send(&bytes).await;
        inner.is_sending.set(false);
        inner.sending_bytes.set(0);
        inner.count_unsent();
        if let Err(error) = sent {
            inner.close(&ended_with(&inner, "sending", &error));
            return;
        }
        let traffic = inner.traffic.get();
        let sent_bytes = traffic.sent_bytes + bytes.len() as u64;
        inner.traffic.set(Traffic { sent_bytes, ..traffic });
        spare = transport::spare(bytes);
        if !inner.holds_calls() {
            inner.notify();
        }
    }
}
