//! The last error of work that no caller waited for, for the status.

use std::cell::RefCell;

use rustix::io::Errno;

/// The last error of work that no caller waited for.
#[derive(Debug, Default)]
pub(super) struct LastError(RefCell<Option<String>>);

impl LastError {
    pub(super) fn note(&self, what: &str, errno: Errno) {
        *self.0.borrow_mut() = Some(format!("{what}: {errno}"));
    }

    pub(super) fn text(&self) -> Option<String> {
        self.0.borrow().clone()
    }
}
