//! Takeover by a host that connects again: the commands of its earlier controllers end first.
//!
//! When a host loses a connection, it repeats a write on the next one, and reports the write as
//! done when the repetition is. If the target executed the first copy after that, the copy could
//! overwrite space that by then belongs to another file. So the target answers the Connect of an
//! admin queue pair only after the back-end I/O of the host's earlier controllers has ended.
//!
//! The controllers whose admin connection is known to be over are always earlier ones. Besides, a
//! host may have given up a connection that the target still takes for alive, and commands may still
//! arrive on it. With [controlled](AdmissionMode::Controlled) admissions, a host has one controller
//! per host name, and a new one ends the old one. In the other modes a host may have any number of
//! controllers, and keep alive has to find the dead ones, as in any target.

use super::Target;
use super::connect::Wanted;
use crate::admission::AdmissionMode;
use crate::controller::Association;
use nvme::SubmissionQueueEntry;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

/// A future that completes when the given controllers have nothing in flight. Each connection of a
/// controller holds the association until its commands have ended.
#[derive(Debug, Default)]
#[must_use = "the controllers have ended only when this has completed"]
pub(crate) struct Ended {
    controllers: Vec<Weak<Association>>,
}

impl Ended {
    /// Returns whether there is nothing to wait for.
    pub(crate) fn is_empty(&self) -> bool {
        self.controllers.is_empty()
    }
}

impl Future for Ended {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.controllers.retain(|controller| match controller.upgrade() {
            // If this is the last reference, dropping it wakes this task again.
            Some(controller) => {
                controller.wake_at_end(cx.waker());
                true
            }
            None => false,
        });
        if self.controllers.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Target {
    /// Ends the controllers that a Connect replaces, provided that the Connect would succeed, and
    /// returns those that have not ended yet. `tls_identity` is the identity of the connection's
    /// key.
    pub(crate) fn take_over(
        &self,
        sqe: &SubmissionQueueEntry,
        data: &[u8],
        tls_identity: Option<&[u8]>,
    ) -> Ended {
        let Ok(wanted) = Wanted::decode(sqe, data) else { return Ended::default() };
        let Ok(subsystem) = self.find(&wanted.subsystem_name) else { return Ended::default() };
        let is_let_in = self.may_connect(&wanted, tls_identity)
            && subsystem.allows(wanted.host_name.as_ref())
            && self.admissions.check(wanted.host).is_ok();
        if !is_let_in || !wanted.connect.qid.is_admin() || subsystem.is_discovery() {
            return Ended::default();
        }
        let is_earlier = |controller: &Arc<Association>| {
            controller.host() == wanted.host
                && controller.host_name() == wanted.host_name.as_ref()
                && Arc::ptr_eq(controller.subsystem(), &subsystem)
        };
        let registry = self.registry();
        let ending = registry.ending.iter();
        let ending = ending.filter(|ending| ending.upgrade().is_some_and(|it| is_earlier(&it)));
        let mut controllers: Vec<Weak<Association>> = ending.cloned().collect();
        if *self.admissions.mode() == AdmissionMode::Controlled
            && !reactor::mutant!("takeover-keeps-old")
        {
            for controller in registry.controllers.values().filter(|it| is_earlier(it)) {
                controller.drop_all();
                controllers.push(Arc::downgrade(controller));
            }
        }
        Ended {
            controllers: if reactor::mutant!("takeover-hurries") {
                Vec::new()
            } else {
                controllers
            },
        }
    }
}
