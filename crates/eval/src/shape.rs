//! The shape of a run of any program: operations, files, sizes, jobs, and the access path to the storage. By
//! it, results with different names can be compared and found.

use crate::experiment::ior::IorOptions;
use crate::experiment::{LevelKind, Pattern, Runtime, Storage, Task};
use crate::plan::Plan;
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

/// Whether an option of IOR is set; `None` if it is not given.
fn is_set(options: &IorOptions, keyword: &str) -> Option<bool> {
    let found = options.iter().find(|(key, _)| key.eq_ignore_ascii_case(keyword));
    found.map(|(_, value)| value != "0")
}

impl Shape {
    /// Of a cell under a condition, both by index.
    pub fn of(plan: &Plan, cell: usize, condition: usize) -> Self {
        let (point, load) = (&plan.cells[cell], plan.workload(cell));
        let mut shape = Self {
            pattern: load.pattern(),
            block_bytes: point.block_size,
            jobs: point.jobs,
            depth: point.depth,
            is_container: Some(false),
            ..Self::default()
        };
        match &load.task {
            // Jobs have parts of one file or device.
            Task::Blocks(_) | Task::Rate(_) => shape.has_own_files = Some(false),
            Task::Ior(ior) => {
                let is_random = is_set(&ior.options, "randomOffset").unwrap_or(false);
                shape.pattern = Some(match (ior.writes, is_random) {
                    (false, false) => Pattern::Read,
                    (false, true) => Pattern::RandomRead,
                    (true, false) => Pattern::Write,
                    (true, true) => Pattern::RandomWrite,
                });
                shape.has_own_files = Some(is_set(&ior.options, "filePerProc").unwrap_or(false));
                shape.is_collective = Some(is_set(&ior.options, "collective").unwrap_or(false));
            }
            Task::Imported(imported) => {
                shape.has_own_files = imported.has_own_files;
                shape.is_container = None;
            }
            _ => {}
        }
        for (factor, level) in &plan.conditions[condition].levels {
            if let Some(level) = plan.experiment.factors.get(factor).and_then(|it| it.get(level)) {
                shape.with(&level.kind, &level.label);
            }
        }
        shape
    }

    /// What a level adds.
    fn with(&mut self, kind: &LevelKind, label: &str) {
        match kind {
            LevelKind::Runtime(runtime) => {
                self.is_container = Some(matches!(runtime, Runtime::Container(_)));
            }
            LevelKind::Storage(Storage::Target { .. } | Storage::Subsystem(_)) => {
                self.is_remote = Some(true);
            }
            LevelKind::Storage(Storage::Directory(_) | Storage::BlockDevice { .. }) => {
                self.is_remote = Some(false);
            }
            LevelKind::Ior(level) => {
                let of = |keyword| is_set(&level.options, keyword);
                self.has_own_files = of("filePerProc").or(self.has_own_files);
                self.is_collective = of("collective").or(self.is_collective);
            }
            LevelKind::Imported => self.is_collective = Some(label.ends_with(" collective")),
            _ => {}
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
