//! The shape of a run of any program: operations, files, sizes, jobs, and the access path to the storage. By
//! it, results with different names can be compared and found.

use crate::plan::Plan;
use loads::level::{LevelKind, Runtime, Storage};
use loads::workload::{Access, Pattern};
use serde::Serialize;

/// A cell under a condition. What is not known is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Shape {
    /// Reads or writes, in order or at random.
    pub pattern: Option<Pattern>,
    /// Whether each job has files of its own, or all share.
    pub has_own_files: Option<bool>,
    /// Bytes per operation; 0 where sizes mean nothing.
    pub block_bytes: u64,
    /// Jobs, ranks or processes.
    pub jobs: u32,
    /// Operations under way per job.
    pub depth: u32,
    /// Whether the load ran in a container.
    pub is_container: Option<bool>,
    /// Whether the storage was reached over a fabric.
    pub is_remote: Option<bool>,
    /// Whether MPI-IO was collective.
    pub is_collective: Option<bool>,
}

impl Shape {
    /// Of a cell under a condition, both by index.
    pub fn of(plan: &Plan, cell: usize, condition: usize) -> Self {
        let (point, load) = (&plan.cells[cell], plan.workload(cell));
        // Of other programs' results it is not known.
        let mut is_container = (!plan.experiment.engine.is_imported()).then_some(false);
        let mut is_remote = None;
        let mut access = load.task.access();
        for level in plan.levels(condition) {
            match &level.kind {
                LevelKind::Runtime(runtime) => {
                    is_container = Some(matches!(runtime, Runtime::Container(_)));
                }
                LevelKind::Storage(Storage::Target { .. } | Storage::Subsystem(_)) => {
                    is_remote = Some(true);
                }
                LevelKind::Storage(Storage::Directory(_) | Storage::BlockDevice { .. }) => {
                    is_remote = Some(false);
                }
                LevelKind::Storage(_) => {}
                LevelKind::Setting(setting) => setting.refine(&level.label, &mut access),
            }
        }
        let Access { pattern, has_own_files, is_collective } = access;
        Self {
            pattern,
            has_own_files,
            block_bytes: point.block_size,
            jobs: point.jobs,
            depth: point.depth,
            is_container,
            is_remote,
            is_collective,
        }
    }

    /// Whether both are of the same work at the same point: what only one of them knows does not count.
    pub fn is_like(&self, other: &Self) -> bool {
        let same = |a: Option<bool>, b: Option<bool>| a.is_none() || b.is_none() || a == b;
        self.pattern.is_some()
            && self.pattern == other.pattern
            && (self.block_bytes, self.jobs, self.depth)
                == (other.block_bytes, other.jobs, other.depth)
            && same(self.has_own_files, other.has_own_files)
            && same(self.is_collective, other.is_collective)
    }
}
