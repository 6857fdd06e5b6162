//! The tasks that keep a controller connected: watching, keep-alive, events, reconnecting.

use super::{ControllerEvent, Inner, Link, LinkState, establish};
use crate::connection::check_outcome;
use crate::error::{ConnectionEnd, Error};
use crate::queue_pair::{Data, Destination};
use nvme::async_event::AsyncEvent;
use nvme::command::GetLogPage;
use nvme::identify::NamespaceList;
use nvme::log_page::{ChangedNamespaces, lid};
use nvme::{Nsid, SubmissionQueueEntry};
use reactor::Buffer;
use reactor::time;
use std::rc::Rc;
use std::time::Duration;

/// The first pause between attempts to reconnect.
const RECONNECT_DELAY_MIN: Duration = Duration::from_millis(50);

/// Starts the tasks of a new link, which end with it.
pub(super) fn start(inner: &Rc<Inner>, link: &Rc<Link>) {
    for connection in link.io.iter().chain([&link.admin]) {
        let (inner, connection) = (Rc::clone(inner), connection.clone());
        let _watcher = reactor::spawn(async move {
            connection.ended().await;
            inner.attention.notify();
        });
    }
    if !inner.options.keep_alive_tmo.is_zero() {
        let _keeper = reactor::spawn(keep_alive(Rc::clone(inner), Rc::clone(link)));
    }
    let _listener = reactor::spawn(listen(Rc::clone(inner), Rc::clone(link)));
}

/// Sends Keep Alive until the link ends. The command's deadline detects a controller that does not
/// answer, and a refusal ends the link. With other paths the deadline is the timeout itself, as in
/// Linux: then commands do not wait longer for an answer that will not arrive.
async fn keep_alive(inner: Rc<Inner>, link: Rc<Link>) {
    let total = inner.options.keep_alive_tmo;
    loop {
        let period = total / 2;
        let slept = reactor::race(Box::pin(link.admin.ended()), time::sleep(period)).await;
        if matches!(slept, reactor::Either::First(_)) {
            return;
        }
        let answer = link.admin("Keep Alive", SubmissionQueueEntry::keep_alive(), Data::None);
        let is_answered = if inner.is_path.get() {
            matches!(time::timeout(total, answer).await, Ok(Ok(_)))
        } else {
            answer.await.is_ok()
        };
        if !is_answered {
            link.close();
            return;
        }
    }
}

/// Keeps one Asynchronous Event Request outstanding and reports the events.
async fn listen(inner: Rc<Inner>, link: Rc<Link>) {
    loop {
        let sqe = SubmissionQueueEntry::async_event_request();
        let (outcome, _) = link.admin.execute_without_deadline(sqe).await;
        let Ok(outcome) = outcome else { return };
        // A refusal (no more requests allowed) ends listening, not the link.
        let Ok(cqe) = check_outcome("Asynchronous Event Request", outcome, &link.admin) else {
            return;
        };
        let event = AsyncEvent::from_dword(cqe.dword0());
        let event = if event == AsyncEvent::NAMESPACE_ATTRIBUTES_CHANGED {
            // Namespaces are verified again before their next commands: another one may have the
            // same identifier now.
            inner.namespace_changes.set(inner.namespace_changes.get() + 1);
            inner.link_changed.notify();
            match changed_namespaces(&link).await {
                Ok(nsids) => ControllerEvent::NamespacesChanged(nsids),
                Err(_) => ControllerEvent::NamespacesChanged(Vec::new()),
            }
        } else if event == AsyncEvent::DISCOVERY_CHANGED {
            ControllerEvent::DiscoveryChanged
        } else if event == AsyncEvent::ANA_CHANGED {
            inner.ana_changes.set(inner.ana_changes.get() + 1);
            inner.link_changed.notify();
            ControllerEvent::AnaChanged
        } else {
            clear_event(&link, event).await;
            continue;
        };
        inner.push_event(event);
    }
}

/// Reads the log page of changed namespaces, which also unmasks the next such event.
async fn changed_namespaces(link: &Link) -> Result<Vec<Nsid>, Error> {
    let page = read_page(link, lid::CHANGED_NAMESPACES, NamespaceList::BYTES).await?;
    let list = ChangedNamespaces::from_prefix(&page).map_err(|source| Error::InvalidResponse {
        structure: "Changed Namespaces",
        fault: source,
    })?;
    let nsids: Vec<Nsid> = list.iter().collect();
    // FFFFFFFFh alone: more than 1024 changed.
    Ok(if nsids.first() == Some(&Nsid::BROADCAST) { Vec::new() } else { nsids })
}

/// Reads the page that an event of another kind names, so that the event does not stay masked.
async fn clear_event(link: &Link, event: AsyncEvent) {
    if let Err(error) = read_page(link, event.log_page, 512).await {
        tracing::debug!(?event, %error, "the log page of an event could not be read");
    }
}

async fn read_page(link: &Link, lid: u8, bytes: usize) -> Result<Buffer, Error> {
    let request = GetLogPage { lid, dwords: (bytes / 4) as u64, ..Default::default() };
    let sqe = request
        .encode(Nsid::BROADCAST)
        .map_err(|source| Error::InvalidResponse { structure: "Get Log Page", fault: source })?;
    let data = Data::Read(Destination::whole(Buffer::zeroed(bytes)));
    let (_, data) = link.admin("Get Log Page", sqe, data).await?;
    Ok(data.into_buffer().unwrap_or_else(|| Buffer::zeroed(bytes)))
}

/// Waits for the end of the link and creates a new one, until the user stops or the controller is
/// given up.
pub(super) async fn supervise(inner: Rc<Inner>) {
    let mut number = 1;
    loop {
        let Ok(Some(link)) = inner.live_link_now() else { return };
        let end = loop {
            if inner.is_stopping.get() {
                return stop(&inner, &link).await;
            }
            // A target may end the I/O queue pairs as soon as it gets the order to shut down.
            if !inner.is_ending.get()
                && let Some(end) = link_end(&link)
            {
                break end;
            }
            inner.attention.notified().await;
        };
        inner.set_link(LinkState::Down);
        link.close();
        drop(link);
        inner.push_event(ControllerEvent::Disconnected(end.clone().into()));
        tracing::warn!(
            subsystem = %inner.options.subsystem_nqn, address = %inner.options.address,
            %end, "connection lost, reconnecting"
        );
        number += 1;
        match reconnect(&inner, number).await {
            Ok(Some(link)) => {
                start(&inner, &link);
                inner.reconnects.set(inner.reconnects.get() + 1);
                inner.set_link(LinkState::Live(link));
                inner.push_event(ControllerEvent::Reconnected);
            }
            Ok(None) => return inner.set_link(LinkState::Failed(Error::Disconnected)),
            Err(error) => {
                tracing::error!(
                    subsystem = %inner.options.subsystem_nqn, address = %inner.options.address,
                    %error, "controller given up"
                );
                inner.set_link(LinkState::Failed(error.clone()));
                return inner.push_event(ControllerEvent::Lost(error));
            }
        }
    }
}

async fn stop(inner: &Inner, link: &Rc<Link>) {
    inner.set_link(LinkState::Failed(Error::Disconnected));
    link.close();
    link.admin.ended().await;
}

/// Returns the reason for the end of the link, if it has ended: that of the first ended connection
/// in the list, with the I/O queue pairs first.
fn link_end(link: &Link) -> Option<ConnectionEnd> {
    link.io.iter().chain([&link.admin]).find_map(crate::connection::Connection::end)
}

/// Tries until it succeeds, `ctrl_loss_tmo` has passed, or another attempt would be in vain.
/// Returns [`None`] if the user stops.
async fn reconnect(inner: &Rc<Inner>, number: u64) -> Result<Option<Rc<Link>>, Error> {
    let start = time::now();
    let mut delay = RECONNECT_DELAY_MIN.min(inner.options.reconnect_delay);
    loop {
        if inner.is_stopping.get() {
            return Ok(None);
        }
        match establish::establish(inner, number).await {
            Ok(link) => return Ok(Some(link)),
            Err(error) if is_in_vain(inner, &error) => return Err(error),
            Err(error) => tracing::debug!(%error, ?delay, "reconnecting failed"),
        }
        if let Some(total) = inner.options.ctrl_loss_tmo
            && start.elapsed() + delay > total
        {
            return Err(Error::ControllerLost(total));
        }
        // In either case the loop checks what has changed.
        let _ = time::timeout(delay, stopped(inner)).await;
        delay = (delay * 2).min(inner.options.reconnect_delay);
    }
}

async fn stopped(inner: &Inner) {
    while !inner.is_stopping.get() {
        inner.attention.notified().await;
    }
}

/// Returns whether another attempt would be in vain: the target has set Do Not Retry or demands
/// something that this host cannot do, or this host's key may have ended. A host that generates TLS
/// keys gets these answers in the clear, where an attacker can forge them. So only `ctrl_loss_tmo`
/// ends its attempts.
fn is_in_vain(inner: &Inner, error: &Error) -> bool {
    if inner.options.concat {
        return false;
    }
    let is_key_final = || inner.options.tls.as_ref().is_some_and(|tls| tls.is_refusal_final);
    match error {
        Error::SecureChannel(_) => is_key_final(),
        Error::Refused { status, .. } => status.is_do_not_retry(),
        Error::QueueRefused { .. } => !error.is_connection_error(),
        Error::Unsupported(_)
        | Error::SecretNeeded
        | Error::ConcatenationNeeded
        | Error::NothingToConcatenate
        | Error::Authentication(_) => true,
        _ => false,
    }
}
