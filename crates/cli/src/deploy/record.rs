//! Records of jobs that outlive the machine's boot.
//!
//! A job's directory is usually in memory and gone after a reboot, while its backing files stay. So
//! before a job creates any, it is also recorded on disk: a copy of its state in
//! `/var/lib/tsumugi/jobs` (root) or `/var/tmp/tsumugi-UID/jobs` (others), removed with the job.
//! From it `tsumugi list`, `down` and `gc` find the leftovers of a reboot, or of a removed
//! directory.

use super::place::{self, Trust};
use super::state::{State, read_file};
use crate::print::words;
use anyhow::Context;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Once;

/// Returns the directory of this user's records.
pub(crate) fn directory() -> PathBuf {
    directory_of(rustix::process::geteuid().as_raw())
}

/// Returns the directory of a user's records.
pub(crate) fn directory_of(uid: u32) -> PathBuf {
    match uid {
        0 => "/var/lib/tsumugi/jobs".into(),
        uid => format!("/var/tmp/tsumugi-{uid}/jobs").into(),
    }
}

fn path_of(id: &str) -> PathBuf {
    directory().join(format!("{id}.json"))
}

/// Records a job, durably.
fn write(state: &State) -> anyhow::Result<()> {
    let path = path_of(&state.id);
    let beside = path.with_extension("new");
    let result = (|| {
        place::make_directories(&directory(), 0o700, Trust::Own)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let opened =
            rustix::fs::open(&beside, flags | OFlags::NOFOLLOW, Mode::from_raw_mode(0o600))?;
        let mut file = File::from(opened);
        file.write_all(&serde_json::to_vec_pretty(state)?)?;
        file.sync_all()?;
        std::fs::rename(&beside, &path)?;
        File::open(directory())?.sync_all()?;
        anyhow::Ok(())
    })();
    result.with_context(|| {
        format!("cannot record the job in {}, which shows its files after a reboot", path.display())
    })
}

/// Records a job, or prints a warning once if that fails: the job works without a record.
pub(crate) fn write_or_say(state: &State) {
    static SAID: Once = Once::new();
    if let Err(error) = write(state) {
        SAID.call_once(|| {
            eprintln!("tsumugi: {}; `tsumugi gc` will not find them", words(&error));
        });
    }
}

/// Removes a job's record; the directories are removed with the last one.
pub(crate) fn remove(id: &str) {
    let _ = std::fs::remove_file(path_of(id));
    let _ = std::fs::remove_file(path_of(id).with_extension("new"));
    let directory = directory();
    if std::fs::remove_dir(&directory).is_ok()
        && let Some(above) = directory.parent()
    {
        let _ = std::fs::remove_dir(above);
    }
}

/// Returns this user's recorded jobs, and what could not be read.
pub(crate) fn all() -> (Vec<State>, Vec<String>) {
    let (mut states, mut trouble) = (Vec::new(), Vec::new());
    let directory = directory();
    if let Err(error) = place::check(&directory, Trust::Own) {
        return (states, vec![words(&error)]);
    }
    let Ok(entries) = std::fs::read_dir(&directory) else { return (states, trouble) };
    for entry in entries.flatten() {
        if entry.path().extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        match read_file(&entry.path()) {
            Ok(Some(state)) => states.push(state),
            Ok(None) => {}
            Err(error) => trouble.push(words(&error)),
        }
    }
    states.sort_by(|one, other| (&one.job, &one.id).cmp(&(&other.job, &other.id)));
    (states, trouble)
}

/// Returns the recorded jobs of this directory, present and former.
pub(crate) fn of_directory(path: &Path) -> Vec<State> {
    all().0.into_iter().filter(|state| state.dir == path).collect()
}
