//! The limit of open files, for processes that serve many connections or mounts.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open files to the highest value that the process may set: a server needs one
/// for each connection or mount, and the usual limit of 1024 is for programs that call `select(2)`.
pub(crate) fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(errno) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%errno, "the limit of open files stays");
    }
}
