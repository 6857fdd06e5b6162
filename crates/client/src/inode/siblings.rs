//! Small files that one answer has listed together.

use protocol::InodeId;
use std::cell::Cell;

/// Small files that one answer has listed, in its order.
#[derive(Debug)]
pub(crate) struct Siblings {
    pub(crate) files: Vec<InodeId>,
    /// Number of calls that fetched one of them.
    pub(crate) asked: Cell<usize>,
}
