//! The interface between the session and the rest of the client.

use protocol::client::{Call, Push, PushAnswer, Response};
use protocol::space::DeviceInfo;
use protocol::{InodeId, LeaseStamp, Rights};
use std::rc::Rc;

/// Receives the session's events, in the order of its stream.
pub(crate) trait Handler {
    /// An answer to `call` has come; `is_awaited` says whether its caller still waits.
    fn answered(self: Rc<Self>, call: &Call, response: &Response, is_awaited: bool);
    /// The service has sent a push that needs an answer.
    fn pushed(self: Rc<Self>, push: Push, reply: PushReply);
    /// The connection is lost, but the session may continue. READ rights are void.
    fn disconnected(self: Rc<Self>);
    /// Returns the rights to reclaim after a resume.
    fn held(&self) -> Vec<(InodeId, Rights)>;
    /// Returns the recalls whose answers wait for I/O or calls of this client.
    fn working_on(&self) -> Vec<LeaseStamp>;
    /// The session is lost with everything it held.
    fn lost(&self);
    /// The pool's devices have been reported, at every start.
    fn devices(&self, devices: Vec<DeviceInfo>);
}

/// The connection to the service.
pub(crate) type Link = rpc::Connection<rpc::Connector<rpc::Client>>;

/// The handle for the answer to a [`Push`].
pub(crate) type PushReply = rpc::Reply<rpc::Connector<rpc::Client>>;

/// Stands in until the session's start names the real handler.
pub(crate) struct NoHandler;

impl Handler for NoHandler {
    fn answered(self: Rc<Self>, _: &Call, _: &Response, _: bool) {}
    fn pushed(self: Rc<Self>, _: Push, _: PushReply) {}
    fn disconnected(self: Rc<Self>) {}
    fn held(&self) -> Vec<(InodeId, Rights)> {
        Vec::new()
    }
    fn working_on(&self) -> Vec<LeaseStamp> {
        Vec::new()
    }
    fn lost(&self) {}
    fn devices(&self, _: Vec<DeviceInfo>) {}
}

/// Sends the answer to a push.
pub(crate) fn answer(reply: PushReply, answer: &PushAnswer) {
    if let Err((_, error)) = reply.send(answer) {
        tracing::error!(%error, "an answer to the metadata service could not be sent");
    }
}
