//! Reads and writes of blocks: the load of several engines.

use crate::keys::Table;
use crate::metric::Metric;
use crate::workload::{Access, Load, Pattern};
use base::Error;
use base::messages::{Language, Text};
use std::sync::Arc;

// What a load says of itself, in English and in Japanese.
const BLOCKS_DIRECT: Text =
    Text(["pattern {pattern}, direct I/O", "パターン {pattern}、ダイレクト I/O"]);
const BLOCKS_CACHED: Text =
    Text(["pattern {pattern}, through the page cache", "パターン {pattern}、ページキャッシュ経由"]);

/// What engines of blocks measure.
pub const METRICS: &[Metric] =
    &[Metric::Bandwidth, Metric::Iops, Metric::Latency, Metric::LatencyP99, Metric::CpuPerIo];

/// Reads or writes of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Which of them.
    pub pattern: Pattern,
}

impl Load for Blocks {
    fn pattern(&self) -> Option<Pattern> {
        Some(self.pattern)
    }

    fn writes(&self) -> bool {
        self.pattern.writes()
    }

    fn describe(&self, language: Language, is_direct: bool) -> String {
        let message = if is_direct { BLOCKS_DIRECT } else { BLOCKS_CACHED };
        language.fill(&message, &[("pattern", &self.pattern.name())])
    }

    fn access(&self) -> Access {
        // Jobs have parts of one file or device.
        let has_own_files = Some(false);
        Access { pattern: self.pattern(), has_own_files, is_collective: None }
    }
}

/// Reads one from the keys of a workload.
pub(crate) fn load(table: &Table<'_>, _metrics: &[Metric]) -> Result<Arc<dyn Load>, Error> {
    Ok(Arc::new(Blocks { pattern: table.need_choice("rw", &Pattern::ALL)? }))
}
