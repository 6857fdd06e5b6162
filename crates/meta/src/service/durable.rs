//! Flushing devices: within a second of an unflushed commit, and when a call waits for it.
//!
//! The service asks a device's agent for the flush, because only the service knows the commits that
//! it covers, of all clients, dead ones included. Each device has one flush under way at a time; a
//! call that needs a later one waits for it. An idle device is not flushed.

use super::outbox::{ClientReply, Outgoing, refusal, send};
use super::shared::Shared;
use crate::store::Error;
use crate::tree::Durable;
use protocol::agent::{Push, PushAnswer};
use protocol::client::{self, Answer, Response};
use protocol::{DeviceId, Errno, InodeId};
use reactor::local::{Notify, oneshot};
use reactor::time::{Instant, now, sleep, timeout};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

/// Interval at which a call checks a device that is out of contact.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Time after which a call no longer waits for a flush that may not concern it.
const SLOW_FLUSH: Duration = Duration::from_secs(1);

/// The flushes under way.
#[derive(Debug, Default)]
pub(super) struct Flushing {
    /// The devices, and when each flush began.
    running: RefCell<BTreeMap<DeviceId, Instant>>,
    over: Notify,
}

impl Flushing {
    /// Returns whether the flush of one of these devices has taken long so far.
    fn is_slow(&self, devices: &[DeviceId]) -> bool {
        let running = self.running.borrow();
        let begun = |device| running.get(device).copied();
        devices.iter().filter_map(begun).any(|begun| begun.elapsed() >= SLOW_FLUSH)
    }
}

/// Returns the answer to a call that was executed, but is not durable.
fn not_durable(response: Response, errno: Errno) -> Response {
    match response.result {
        Ok(Answer::Attr(attr)) => Response { result: Ok(Answer::NotDurable(attr)), ..response },
        _ => refusal(errno),
    }
}

impl Shared {
    /// Makes data durable within a second: flushes the devices that were written since the last
    /// flush. It runs twice a second, because clients may take half a second to commit open files.
    pub(super) async fn flush_ticks(self: Rc<Self>) {
        loop {
            sleep(self.times.writeback / 2).await;
            let mut devices = self.core.borrow().unflushed_devices();
            if reactor::mutant!("flushes-unasked") {
                devices.clear();
            }
            self.start_flushes(&devices);
        }
    }

    /// Starts a flush of each of these devices, unless one is under way.
    fn start_flushes(self: &Rc<Self>, devices: &[DeviceId]) {
        let mut wanted = Vec::new();
        for device in devices {
            if self.flushing.running.borrow().contains_key(device) {
                continue;
            }
            let incarnation = self.core.borrow().incarnation(*device);
            if let (Some(connection), Some(incarnation)) =
                (self.agents.connection(*device), incarnation)
            {
                wanted.push((*device, incarnation, connection));
            }
        }
        if wanted.is_empty() {
            return;
        }
        let ended = self.core.borrow_mut().end_flush_epoch();
        let through = match ended {
            Ok(through) => through,
            Err(error) => return self.fail(error),
        };
        for (device, incarnation, connection) in wanted {
            self.flushing.running.borrow_mut().insert(device, now());
            let answering =
                connection.call(&Push::Flush(device), Some(self.times.request_deadline));
            let shared = Rc::clone(self);
            reactor::spawn(async move {
                let flushed = match answering.await {
                    Ok(PushAnswer::Flushed) => Some(true),
                    Ok(PushAnswer::FlushFailed) => Some(false),
                    Ok(_) => None,
                    Err(error) => {
                        tracing::warn!(%device, %error, "a flush was not answered");
                        None
                    }
                };
                shared.flushing.running.borrow_mut().remove(&device);
                if let Some(is_durable) = flushed {
                    let noted =
                        shared.core.borrow_mut().flushed(device, incarnation, through, is_durable);
                    if let Err(error) = noted {
                        return shared.fail(error);
                    }
                    if !is_durable && !reactor::mutant!("loss-untold") {
                        shared.send_to_sessions(&client::Push::Lost(device));
                    }
                    if !is_durable {
                        shared.exclude_device(device, incarnation);
                    }
                    shared.post(Outgoing::Then(Box::new(|_| {})));
                }
                shared.flushing.over.notify();
            });
        }
    }

    /// Sends an answer once the store is synced and all commits to an inode are durable. If some
    /// data is lost, or its device stays out of contact, the answer is an error.
    pub(super) fn answer_durable(
        self: &Rc<Self>,
        reply: ClientReply,
        response: Response,
        inode: Option<InodeId>,
    ) {
        let Some(inode) = inode else {
            return self.sync_then(move |_| send(reply, &response));
        };
        if reactor::mutant!("fsync-unsynced") {
            return send(reply, &response);
        }
        if reactor::mutant!("fsync-unflushed") {
            return self.sync_then(move |_| send(reply, &response));
        }
        match self.look(inode) {
            Ok(devices) if devices.is_empty() => self.sync_then(move |_| send(reply, &response)),
            Err(errno) => send(reply, &not_durable(response, errno)),
            Ok(_) => {
                let shared = Rc::clone(self);
                reactor::spawn(async move {
                    match shared.until_durable(inode).await {
                        Ok(()) => shared.sync_then(move |_| send(reply, &response)),
                        Err(errno) => send(reply, &not_durable(response, errno)),
                    }
                });
            }
        }
    }

    /// Returns the devices that are flushed before an inode's data counts as durable.
    fn look(&self, inode: InodeId) -> Result<Vec<DeviceId>, Errno> {
        let durable = self.core.borrow_mut().durable(inode);
        Shared::awaited(inode, durable)
    }

    /// As [`Shared::look`], but returns only devices that contain data of the inode.
    fn look_closely(&self, inode: InodeId) -> Result<Vec<DeviceId>, Errno> {
        let durable = self.core.borrow_mut().durable_closely(inode);
        Shared::awaited(inode, durable)
    }

    fn awaited(inode: InodeId, durable: Result<Durable, Error>) -> Result<Vec<DeviceId>, Errno> {
        match durable {
            Ok(Durable::Yes) => Ok(Vec::new()),
            Ok(Durable::After(devices)) => Ok(devices),
            Ok(Durable::Lost) if reactor::mutant!("lost-sync-succeeds") => Ok(Vec::new()),
            Ok(Durable::Lost) => Err(Errno::EIO),
            Err(error) => {
                tracing::error!(%error, inode = inode.0, "cannot determine whether data is durable");
                Err(Errno::EIO)
            }
        }
    }

    /// Waits until an inode's data is durable on its devices, and the store has the marks of their
    /// flushes.
    async fn until_durable(self: &Rc<Self>, inode: InodeId) -> Result<(), Errno> {
        let deadline = now() + self.times.session_deadline;
        // The devices with data of the inode, once it was searched because one is slow.
        let mut named: Option<BTreeSet<DeviceId>> = None;
        loop {
            let over = self.flushing.over.notified();
            let mut devices = self.look(inode)?;
            devices.retain(|device| named.as_ref().is_none_or(|named| named.contains(device)));
            let is_over = devices.is_empty() && named.is_some();
            // Once these are flushed, some data may be lost, or be on others by now.
            if is_over || (named.is_none() && self.flushing.is_slow(&devices)) {
                devices = self.look_closely(inode)?;
                named = Some(devices.iter().copied().collect());
            }
            if devices.is_empty() {
                return self.until_stored(inode).await;
            }
            if now() >= deadline {
                tracing::error!(inode = inode.0, ?devices, "data could not be flushed in time");
                if reactor::mutant!("late-sync-succeeds") {
                    return Ok(());
                }
                return Err(Errno::EIO);
            }
            self.start_flushes(&devices);
            let _ = timeout(LOOK_AGAIN, over).await;
        }
    }

    /// Waits until the store has all changes up to now: the next sync must cover the marks of the
    /// flushes. While the disk is full, the store does not take them.
    async fn until_stored(&self, inode: InodeId) -> Result<(), Errno> {
        let (done, is_done) = oneshot();
        self.post(Outgoing::Then(Box::new(move |_| {
            // The waiting task may have ended.
            let _ = done.send(());
        })));
        let stored = timeout(self.times.session_deadline, is_done).await;
        if !matches!(stored, Ok(Ok(()))) {
            tracing::error!(inode = inode.0, "the flush of data could not be recorded in time");
            return Err(Errno::EIO);
        }
        Ok(())
    }
}
