//! Failures of one inode's writes and commits, and which handles have reported them.
//!
//! Each handle reports a failure from its time once, however many others reported it before, as
//! Linux does for its page cache (`errseq_t`). A failure that no handle has reported when another
//! one is opened is reported by that one too: the program that wrote may be gone.

use protocol::Errno;
use std::cell::Cell;

/// Failures of one inode.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    /// Failures noted so far.
    count: u64,
    /// The first of them since a handle last reported one.
    errno: Option<Errno>,
    is_reported: bool,
}

/// Number of the failures that a handle has reported, or that others had reported before it was
/// opened.
#[derive(Debug, Default)]
pub(crate) struct ReportedFailures(Cell<u64>);

impl Failures {
    /// Notes a failure.
    pub(crate) fn note(&mut self, errno: Errno) {
        self.count += 1;
        if self.is_reported || self.errno.is_none() {
            self.errno = Some(errno);
        }
        self.is_reported = false;
    }

    /// Returns how many failures were noted.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Returns the failure noted since there were `count`.
    pub(crate) fn since(&self, count: u64) -> Result<(), Errno> {
        if self.count == count { Ok(()) } else { self.errno.map_or(Ok(()), Err) }
    }

    /// Returns whether there is a failure that no handle has reported.
    pub(crate) fn has_unreported(&self) -> bool {
        self.errno.is_some() && !self.is_reported
    }

    /// Returns the failures that a handle opened now need not report.
    pub(crate) fn reported_at_open(&self) -> ReportedFailures {
        ReportedFailures(Cell::new(if self.has_unreported() { self.count - 1 } else { self.count }))
    }

    /// Returns the failure noted since this handle last reported one.
    pub(crate) fn report_to(&mut self, reported: &ReportedFailures) -> Result<(), Errno> {
        if reported.0.replace(self.count) == self.count {
            return Ok(());
        }
        self.is_reported = true;
        self.errno.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every handle reports each failure from its time once, with its error.
    #[test]
    fn every_handle_reports_a_failure_once() {
        let mut failures = Failures::default();
        let (one, two) = (failures.reported_at_open(), failures.reported_at_open());
        assert_eq!(failures.report_to(&one), Ok(()));
        failures.note(Errno::ENOSPC);
        failures.note(Errno::EIO);
        assert!(failures.has_unreported());
        assert_eq!(failures.report_to(&one), Err(Errno::ENOSPC));
        assert!(!failures.has_unreported());
        assert_eq!(failures.report_to(&one), Ok(()));
        assert_eq!(failures.report_to(&two), Err(Errno::ENOSPC));
        failures.note(Errno::ETIMEDOUT);
        assert_eq!(failures.report_to(&one), Err(Errno::ETIMEDOUT));
        assert_eq!(failures.report_to(&two), Err(Errno::ETIMEDOUT));
    }

    /// Goal: a handle opened after a failure reports it only if no other handle has.
    #[test]
    fn a_new_handle_reports_what_no_other_has() {
        let mut failures = Failures::default();
        failures.note(Errno::EIO);
        let heir = failures.reported_at_open();
        assert_eq!(failures.report_to(&heir), Err(Errno::EIO));
        let stranger = failures.reported_at_open();
        assert_eq!(failures.report_to(&stranger), Ok(()));
    }
}
