//! Heartbeats from a thread of their own.
//!
//! The thread that serves calls may stall: a device of the same process blocks, a page fault waits.
//! That must not end the session, so a small thread with a reactor and a connection of its own
//! reports to the metadata service that the process lives ([`SessionCall::Pulse`]). But a client
//! must not keep rights that the service cannot recall. So the service ends a session that answers
//! no recall, even if it sends pulses. And once the serving thread has not run for
//! [`Times::stall_max`](protocol::times::Times::stall_max) there are no more pulses.
//!
//! In a simulation the "thread" is a task of the same executor.

use crate::session::config::SessionConfig;
use crate::session::contact::Contact;
use crate::session::handler::{Link, PushReply};
use protocol::client::{Answer, Call, Push, Request, Response, SessionCall};
use protocol::{HostId, SessionId};
use reactor::time::{now, sleep, timeout};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Entries of the thread's ring: it has one connection.
const RING_ENTRIES: u32 = 16;

/// Ends the pulses when the serving thread's task ends, for any reason.
#[derive(Debug)]
pub(super) struct Serving(pub(super) Arc<Contact>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Starts the thread.
///
/// # Errors
/// Errors from making a thread or its ring.
pub(super) fn start(contact: &Arc<Contact>, config: &SessionConfig) -> io::Result<()> {
    let runtime = reactor::Config { entries: RING_ENTRIES, ..reactor::Config::default() };
    let (contact, config) = (Arc::clone(contact), config.clone());
    let thread = reactor::thread::spawn("heartbeat", &runtime, move || run(contact, config));
    // The thread ends soon after `Contact::close`.
    thread.map(drop)
}

/// Sends pulses until the contact is closed.
async fn run(contact: Arc<Contact>, config: SessionConfig) {
    let mut link: Option<Link> = None;
    while !contact.is_closed.load(Ordering::SeqCst) {
        match contact.subject(&config.times) {
            Some((session, host)) => link = beat(&contact, &config, link, session, host).await,
            None => drop(link.take().map(|link| link.close("the client does not run"))),
        }
        sleep(config.times.heartbeat).await;
    }
    if let Some(link) = link {
        link.close("the session has ended");
    }
}

/// Sends one pulse. Returns the connection for the next.
async fn beat(
    contact: &Contact,
    config: &SessionConfig,
    link: Option<Link>,
    session: SessionId,
    host: HostId,
) -> Option<Link> {
    let link = match link.filter(|link| link.closed_reason().is_none()) {
        Some(link) => link,
        None => connect(config).await?,
    };
    let sent = now();
    let request = Request { slot: None, call: Call::Session(SessionCall::Pulse { session, host }) };
    match link.call(&request, Some(config.times.self_stop)).await {
        Ok(Response { result: Ok(Answer::Alive { .. }), .. }) => contact.heard(sent),
        // The session has ended or is to be resumed: its own connection finds out.
        Ok(_) => {}
        Err(error) => {
            tracing::debug!(%error, "a pulse was not answered");
            link.close("a pulse was not answered");
            return None;
        }
    }
    Some(link)
}

/// Connects to the service.
async fn connect(config: &SessionConfig) -> Option<Link> {
    let limits = rpc::Limits::default();
    let handler = Rc::new(PulseReceiver);
    let link = Link::connect(config.meta, &config.sockets, &config.credential, limits, handler);
    timeout(config.times.self_stop, Box::pin(link)).await.ok()?.ok()
}

/// Receives pushes on a connection without a session; there should be none.
struct PulseReceiver;

impl rpc::Handler<rpc::Connector<rpc::Client>> for PulseReceiver {
    fn called(&self, push: Push, reply: PushReply) {
        tracing::warn!(?push, "asked over a connection that only sends pulses");
        drop(reply);
    }
}
