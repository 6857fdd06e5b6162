//! Small files: their data travels in commits and lies with the metadata service.
//!
//! One call then publishes a file's data and attributes, and no device has to be waited for. A
//! reader gets the bytes with the answer that would otherwise name the file's extents.

use crate::client::Client;
use crate::dirty::fill::FillPlace;
use crate::extent_map::Run;
use crate::inode::Inode;
use protocol::inline::{Bytes, InlineRun};
use protocol::sums::checksum;

/// Most runs that one commit carries. More runs in a small file become extents.
const RUNS_MAX: usize = 64;

impl Client {
    /// Returns the dirty runs of an inode and their bytes, if all of them are in memory and the
    /// file is small.
    pub(crate) fn small_runs(
        &self,
        inode: &Inode,
    ) -> Option<(Vec<Run<FillPlace>>, Vec<InlineRun>)> {
        let dirty = inode.dirty.borrow();
        if !self.session.takes_inline.get() {
            return None;
        }
        let size = inode.committed_attr()?.size.max(dirty.end());
        let runs = if size <= self.inline_bytes { dirty.present() } else { return None };
        if runs.is_empty() || runs.len() > RUNS_MAX || !dirty.is_all_gathering() {
            return None;
        }
        let carried = runs.iter().map(|run| {
            let bytes = Bytes(dirty.gathered(run)?.to_vec());
            let sum = self.checksum.then(|| checksum(&bytes.0));
            Some(InlineRun { offset: run.offset as u32, bytes, sum })
        });
        let carried: Option<Vec<InlineRun>> = carried.collect();
        carried.map(|carried| (runs, carried))
    }
}
