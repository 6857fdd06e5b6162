//! Dirty bytes of small files, which commits carry.

use crate::dirty::Dirty;
use crate::dirty::fill::{FillId, FillPlace, FillState};
use crate::extent_map::Run;

impl Dirty {
    /// Returns whether all dirty data is in memory and none is on its way to a device.
    pub(crate) fn is_all_gathering(&self) -> bool {
        self.fills.values().all(|fill| matches!(fill.state, FillState::Gathering(_)))
    }

    /// Returns the bytes of a run of a fill that gathers.
    pub(crate) fn gathered(&self, run: &Run<FillPlace>) -> Option<&[u8]> {
        let FillState::Gathering(buffer) = &self.fills.get(&run.place.fill)?.state else {
            return None;
        };
        let start = run.place.at as usize;
        buffer.get(start..start + run.length as usize)
    }

    /// Drops gathering fills that hold nothing uncommitted.
    pub(crate) fn drop_gathered(&mut self) {
        let needed: Vec<FillId> = self.runs.iter().map(|run| run.place.fill).collect();
        self.fills.retain(|id, fill| {
            !matches!(fill.state, FillState::Gathering(_)) || needed.contains(id)
        });
    }
}
