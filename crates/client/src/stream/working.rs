//! The recalls on whose answers this client works.
//!
//! An answer may have to wait for a device that is out of reach, or for a commit that itself waits
//! until a dead session has ended. The service ends a session that does not answer in time. It waits
//! longer while each heartbeat reports that I/O or calls for the answer are under way. What users of
//! this client may hold for ever, such as the names of a directory, is no such work.

use protocol::LeaseStamp;
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Most recalls that a heartbeat reports, the newest first: as many as the service sends at once.
const REPORTED_MAX: usize = 1024;

/// The stamps of the recalls.
#[derive(Debug, Default)]
pub(crate) struct WorkingOn(RefCell<BTreeSet<LeaseStamp>>);

/// Reports a recall until it is dropped.
struct Report<'a> {
    all: &'a WorkingOn,
    stamp: LeaseStamp,
}

impl Drop for Report<'_> {
    fn drop(&mut self) {
        self.all.0.borrow_mut().remove(&self.stamp);
    }
}

impl WorkingOn {
    /// Runs I/O or calls for the answer to a recall, and reports the recall meanwhile.
    pub(crate) async fn during<T>(&self, stamp: LeaseStamp, work: impl Future<Output = T>) -> T {
        self.0.borrow_mut().insert(stamp);
        let _report = Report { all: self, stamp };
        work.await
    }

    /// Returns the recalls to report.
    pub(crate) fn stamps(&self) -> Vec<LeaseStamp> {
        self.0.borrow().iter().rev().take(REPORTED_MAX).copied().collect()
    }
}
