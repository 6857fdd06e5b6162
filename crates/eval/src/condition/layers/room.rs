//! How much room a scheme needs on a device of its own.

use crate::engine::ffsb::profile::ThreadGroup;
use crate::engine::ffsb::{Direction, Operation, Profile};
use crate::experiment::Task;
use crate::plan::Plan;
use rustix::fs::FallocateFlags;
use std::fs::File;
use std::path::Path;

use crate::error::Error;

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
    let of_profile = |task: &Task| match task {
        Task::Ffsb(load) => Some(profile_bytes(&load.profile)),
        _ => None,
    };
    let tasks = plan.experiment.workloads.iter().map(|load| &load.task);
    let profiles: Vec<u64> = tasks.filter_map(of_profile).collect();
    if profiles.is_empty() { plan.experiment.file_bytes } else { profiles.iter().sum() }
}

/// Bytes of a profile's files, at most.
fn profile_bytes(profile: &Profile) -> u64 {
    let sets = profile.file_systems.iter().map(|it| match it.files {
        0 => it.init_bytes + it.largest_bytes(),
        files => u64::from(files) * it.largest_bytes(),
    });
    sets.sum()
}

/// Most bytes that all containers of a run may change, each for itself.
pub(super) fn changes_max(plan: &Plan, is_thin: bool) -> u64 {
    let around = if is_thin { THIN_CHANGE_BYTES } else { CHANGE_BYTES };
    let of_cell = |cell: &crate::plan::Cell| {
        let each = match &plan.experiment.workloads[cell.workload].task {
            Task::CopyUp(load) => u64::from(load.files) * around,
            Task::Ffsb(load) => changed_bytes(&load.profile, around),
            _ => 0,
        };
        u64::from(cell.jobs) * each
    };
    plan.cells.iter().map(of_cell).max().unwrap_or(0)
}

/// Bytes that an instance of a profile may change: all of its files where whole ones are written, otherwise a
/// part of each. The number of new files is unknown; a full device is an error of the run.
fn changed_bytes(profile: &Profile, around: u64) -> u64 {
    let part = profile.groups.iter().map(|group| group.write.size_bytes).max().unwrap_or(0);
    let mut operations = profile.groups.iter().flat_map(ThreadGroup::mix);
    let writes_whole = operations.any(|(operation, _)| {
        operation.direction() == Direction::Write
            && !matches!(operation, Operation::Write | Operation::WriteFsync)
    });
    let files: u64 = profile.file_systems.iter().map(|it| u64::from(it.files.max(1))).sum();
    let whole = profile_bytes(profile) + files * around;
    if writes_whole { whole } else { whole.min(files * (part + around)) }
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
