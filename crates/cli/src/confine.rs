//! Confining a process to the files that it needs, by Landlock (Linux 5.13; no privileges needed).
//!
//! A service of a job speaks to the network; should it be taken over, it can still open nothing but
//! what is named here. Landlock binds the calling thread and the threads and programs it starts
//! from then on, so this comes first in a process, before any thread. A confined process cannot
//! mount or unmount (Landlock denies all changes of mounts), which is why the process that mounts
//! is not confined by this.

use anyhow::Context;
use landlock::{
    ABI, Access, AccessFs, RestrictionStatus, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetStatus, path_beneath_rules,
};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::path::Path;

/// The interface whose rights are asked for; an older kernel enforces those it knows.
const WANTED: ABI = ABI::V5;

/// From now on files and directories that this process makes are its user's alone, whatever umask
/// it was started with. For processes that make no files on behalf of others.
pub(crate) fn keep_files_private() {
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
}

/// From now on the kernel writes no memory of this process, nor of those it starts, to a core file,
/// and pipes none to a handler of such: the process holds keys. A limit of 0 bytes would leave the
/// pipe open; at 1 the kernel writes nothing (`do_coredump`). Nothing else is taken away:
/// `/proc/PID` stays as it is for the process's own user, as `PR_SET_DUMPABLE` would not leave it,
/// by whose entries `down` and `gc` find what belongs to a job.
pub(crate) fn keep_out_of_core_files() {
    let one = Rlimit { current: Some(1), maximum: Some(1) };
    if let Err(error) = setrlimit(Resource::Core, one) {
        // A limit of 0 may not be raised, and lets no core file be written; only a handler would
        // get it.
        tracing::info!(%error, "core files are limited by who started this process");
    }
}

/// How well this process is confined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confinement {
    /// To the named files.
    Full,
    /// To the named files, but the kernel does not know some kinds of access.
    Partial,
    /// Not at all: the kernel has no Landlock, or it is not enabled.
    None,
}

/// From now on this thread, and what it starts, opens only files below `writable`, and for reading
/// those below `readable`. What is open stays open. Paths that do not exist are left out.
///
/// # Errors
/// If the kernel has Landlock but refuses the rules.
pub(crate) fn confine(writable: &[&Path], readable: &[&Path]) -> anyhow::Result<Confinement> {
    let result = (|| {
        Ruleset::default()
            .handle_access(AccessFs::from_all(WANTED))?
            .create()?
            .add_rules(path_beneath_rules(writable, AccessFs::from_all(WANTED)))?
            .add_rules(path_beneath_rules(readable, AccessFs::from_read(WANTED)))?
            .restrict_self()
    })();
    let status: RestrictionStatus =
        result.map_err(anyhow::Error::new).context("cannot confine this process by Landlock")?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced => Confinement::Full,
        RulesetStatus::PartiallyEnforced => Confinement::Partial,
        RulesetStatus::NotEnforced => Confinement::None,
    })
}

/// As [`confine`], and says so on standard error where the kernel cannot.
pub(crate) fn confine_or_say(writable: &[&Path], readable: &[&Path]) -> anyhow::Result<()> {
    if confine(writable, readable)? == Confinement::None {
        eprintln!(
            "tsumugi: this kernel has no Landlock enabled, so this process can open all files of \
             its user (add landlock to the kernel's parameter lsm=)"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Goal: what is named can be used as named, everything else cannot be opened, and what was
    /// open stays so. (On a thread: it binds nobody else.)
    #[test]
    fn only_named_files_open() {
        let base = tempfile::tempdir().unwrap();
        for name in ["own", "shown", "other"] {
            fs::create_dir(base.path().join(name)).unwrap();
            fs::write(base.path().join(name).join("file"), "x").unwrap();
        }
        let path = base.path().to_path_buf();
        let confined = std::thread::spawn(move || {
            let (own, shown) = (path.join("own"), path.join("shown"));
            let open = fs::File::open(path.join("other/file")).unwrap();
            let confinement = confine(&[&own, &path.join("missing")], &[&shown]).unwrap();
            if confinement == Confinement::None {
                println!("skipped: no Landlock");
                return;
            }
            fs::write(own.join("new"), "y").unwrap();
            assert_eq!(fs::read(shown.join("file")).unwrap(), b"x");
            assert!(fs::write(shown.join("file"), "z").is_err());
            assert!(fs::read(path.join("other/file")).is_err());
            assert_eq!(std::io::read_to_string(open).unwrap(), "x");
        });
        confined.join().unwrap();
        assert!(fs::read(base.path().join("other/file")).is_ok());
    }
}
