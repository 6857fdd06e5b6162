//! The first bytes of a file as the service has them.

use crate::inode::state::State;
use protocol::inline::InlineRun;
use std::rc::Rc;

impl State {
    /// Returns the inline bytes that go with [`State::extents`].
    pub(crate) fn head(&self) -> Rc<[u8]> {
        Rc::clone(&self.head)
    }

    /// Caches inline bytes that came with extents.
    pub(crate) fn set_head(&mut self, bytes: &[u8]) {
        if self.may_cache() {
            self.head = bytes.into();
        }
    }

    /// Lays this client's committed inline bytes over what is cached.
    pub(crate) fn overlay_inline(&mut self, runs: &[InlineRun]) {
        if !self.may_cache() || runs.is_empty() || reactor::mutant!("own-inline-unseen") {
            return;
        }
        self.ahead.clear();
        let mut bytes = self.head.to_vec();
        protocol::inline::overlay(&mut bytes, runs);
        self.head = bytes.into();
        for run in runs {
            let range = u64::from(run.offset)..run.end();
            self.extents.remove(range.clone());
            self.known.insert(range);
        }
    }
}
