//! A controller's part in reservations beside the I/O commands: two features, the notification log
//! page and its event.

use super::{Association, Completion, Controller, Reply};
use crate::namespace::Namespace;
use crate::queue_pair::Tag;
use crate::reservation::{Change, NoticeLog};
use nvme::reservation::notification_mask;
use nvme::{Nsid, Status};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Commands whose I/O has ended; the queue pair completes them.
#[derive(Clone, Debug, Default)]
pub(super) struct Later(Arc<Mutex<VecDeque<Completion>>>);

impl Later {
    pub(super) fn ended(&self) -> MutexGuard<'_, VecDeque<Completion>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take(&self) -> Option<Completion> {
        self.ended().pop_front()
    }
}

impl Association {
    /// Returns the reservation notifications for the host.
    pub(crate) fn notices(&self) -> MutexGuard<'_, NoticeLog> {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Controller {
    /// Returns the namespaces with reservations to which setting a feature applies.
    fn reservable(&self, nsid: Nsid) -> Result<Vec<Arc<Namespace>>, Status> {
        let association = &self.association;
        let all = if nsid == Nsid::BROADCAST {
            association.namespaces()
        } else {
            vec![association.namespace(nsid).ok_or(Status::INVALID_NAMESPACE.do_not_retry())?]
        };
        let with: Vec<_> = all.into_iter().filter(|it| it.reservations().is_some()).collect();
        if with.is_empty() { Err(Status::INVALID_FIELD.do_not_retry()) } else { Ok(with) }
    }

    /// Returns the namespace for which a feature's value is requested.
    fn reservable_one(&self, nsid: Nsid) -> Result<Arc<Namespace>, Status> {
        let mut namespaces = self.reservable(nsid)?;
        match namespaces.pop() {
            Some(namespace) if nsid != Nsid::BROADCAST => Ok(namespace),
            _ => Err(Status::INVALID_NAMESPACE.do_not_retry()),
        }
    }

    /// Returns the Reservation Notification Mask (base 5.1.25.1.31).
    pub(super) fn get_notification_mask(&self, nsid: Nsid, is_current: bool) -> Reply {
        match self.reservable_one(nsid) {
            Ok(_) if is_current => Reply::result(u64::from(self.association.notices().mask(nsid))),
            Ok(_) => Reply::result(0),
            Err(status) => status.into(),
        }
    }

    pub(super) fn set_notification_mask(&self, nsid: Nsid, mask: u32) -> Reply {
        if mask & !notification_mask::ALL != 0 {
            return Status::INVALID_FIELD.do_not_retry().into();
        }
        let namespaces = match self.reservable(nsid) {
            Ok(namespaces) => namespaces,
            Err(status) => return status.into(),
        };
        let mut notices = self.association.notices();
        for namespace in namespaces {
            notices.set_mask(namespace.nsid(), mask);
        }
        Reply::result(0)
    }

    /// Returns the Reservation Persistence (base 5.1.25.1.32).
    pub(super) fn get_persistence(&self, nsid: Nsid, is_current: bool) -> Reply {
        match self.reservable_one(nsid) {
            Ok(namespace) => {
                let is_set = namespace.reservations().is_some_and(|it| it.is_persistent());
                Reply::result(u64::from(is_set && is_current))
            }
            Err(status) => status.into(),
        }
    }

    /// Sets the persistence for one namespace or all. The command is held until the change is
    /// durable.
    pub(super) fn set_persistence(&self, tag: Tag, nsid: Nsid, dword11: u32) -> Reply {
        if dword11 > 1 {
            return Status::INVALID_FIELD.do_not_retry().into();
        }
        let change = Change::Persist(dword11 == 1);
        let namespaces = match self.reservable(nsid) {
            Ok(namespaces) => namespaces,
            Err(status) => return status.into(),
        };
        let (later, association) = (self.later.clone(), Arc::clone(&self.association));
        reactor::spawn(async move {
            let mut status = Status::SUCCESS;
            for reservations in namespaces.iter().filter_map(|it| it.reservations()) {
                // The other namespaces keep their value.
                if let Err(error) = reservations.change(association.host(), change).await {
                    status = error;
                    break;
                }
            }
            later.ended().push_back(Completion { tag, status, result: 0 });
            association.look_for_events();
        });
        Reply::Held
    }
}
