//! A host that connects anew: what its earlier controllers began ends first.
//!
//! A host repeats a write whose connection was lost on the next one, and says that it is done when
//! the repetition is. If the first copy were carried out after that, it would land in space that
//! may belong to another file by then. So a Connect of an admin queue pair is not answered before
//! the back-end I/O of the host's earlier controllers has ended.
//!
//! Which controllers are earlier ones? Those whose admin connection is known to be over, always. The
//! target may not know yet of a connection that the host has given up, and commands that it carries
//! may still come. Where admissions are [controlled](AdmissionMode::Controlled), a host has one
//! controller per host name, and a new one ends the old. Elsewhere a host may have as many as it
//! likes, and keep alive has to find out which are dead, as with any target.

use super::Target;
use super::connect::Wanted;
use crate::admission::AdmissionMode;
use crate::controller::Association;
use nvme::SubmissionQueueEntry;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

/// Completes when nothing of some controllers is in flight any more: each of their connections
/// holds the association until then.
#[derive(Debug, Default)]
#[must_use = "the controllers have ended only when this has completed"]
pub(crate) struct Ended {
    controllers: Vec<Weak<Association>>,
}

impl Ended {
    /// Whether there is nothing to wait for.
    pub(crate) fn is_empty(&self) -> bool {
        self.controllers.is_empty()
    }
}

impl Future for Ended {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.controllers.retain(|controller| match controller.upgrade() {
            // Should this be the last one to hold it, its drop wakes this task again.
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
    /// Ends the controllers that a Connect replaces, if it would succeed, and answers those that
    /// have not ended yet. `tls_identity` is that of the connection's key.
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
