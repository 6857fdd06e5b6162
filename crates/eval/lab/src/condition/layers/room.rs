//! How much room a scheme needs on a device of its own.

use crate::plan::Plan;
use base::Error;
use loads::workload::Cell;
use rustix::fs::FallocateFlags;
use std::fs::File;
use std::path::Path;

/// Room of a file system on a loop device for itself.
const OWN_BYTES: u64 = 512 << 20;
/// What a change of a file takes beside its bytes, at each end of them: what names them, and their blocks'
/// first part.
const CHANGE_BYTES: u64 = 32 << 10;
/// The same in a pool of thin volumes: two blocks of 64 KiB, and what names them.
const THIN_CHANGE_BYTES: u64 = 256 << 10;

/// Bytes of a file system for the set of files.
pub(super) fn volume_bytes(plan: &Plan) -> u64 {
    let files = set_bytes(plan);
    (files + files / 4 + OWN_BYTES).next_multiple_of(1 << 20)
}

/// Bytes of the files that containers begin with, at most.
fn set_bytes(plan: &Plan) -> u64 {
    let loads = plan.experiment.workloads.iter();
    let profiles: Vec<u64> = loads.filter_map(|load| load.task.copies()?.bytes()).collect();
    if profiles.is_empty() { plan.experiment.file_bytes } else { profiles.iter().sum() }
}

/// Most bytes that all containers of a run may change, each for itself.
pub(super) fn changes_max(plan: &Plan, is_thin: bool) -> u64 {
    let around = if is_thin { THIN_CHANGE_BYTES } else { CHANGE_BYTES };
    let of_cell = |cell: &Cell| {
        let copies = plan.experiment.workloads[cell.workload].task.copies();
        let each = copies.map_or(0, |copies| copies.changed_bytes(around));
        u64::from(cell.jobs) * each
    };
    plan.cells.iter().map(of_cell).max().unwrap_or(0)
}

/// Sets room aside on the disk, so that no run is the first to ask for it.
pub(in crate::condition) fn set_room_aside(
    file: &File,
    path: &Path,
    bytes: u64,
) -> Result<(), Error> {
    rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes)
        .map_err(|errno| Error::io("cannot set room aside for", path)(errno.into()))
}
