//! Confining a process to the files that it needs, by Landlock (Linux 5.13; no privileges needed).
//!
//! The service of a job talks to the network. If an attacker takes it over, it can still open only
//! the files named here. Landlock binds the calling thread and the threads and programs that it
//! starts from then on, so a process confines itself first, before it starts a thread. A confined
//! process cannot mount or unmount (Landlock denies all changes of mounts), which is why the
//! process that mounts is not confined by this.

use anyhow::Context;
use landlock::{
    ABI, Access, AccessFs, RestrictionStatus, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetStatus, path_beneath_rules,
};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::path::Path;

/// The version of the interface to use; an older kernel enforces the rights that it knows.
const WANTED: ABI = ABI::V5;

/// Makes new files and directories of this process accessible only to its user, regardless of the
/// umask at its start. For processes that create no files on behalf of others.
pub(crate) fn keep_files_private() {
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
}

/// Keeps the memory of this process and of those it starts out of core files and of the kernel's
/// pipe to a core handler, because the process holds keys. A limit of 0 bytes would leave the pipe
/// open; at 1 the kernel writes nothing (`do_coredump`). `/proc/PID` stays accessible to the
/// process's own user, unlike with `PR_SET_DUMPABLE`: `down` and `gc` find the processes of a job
/// there.
pub(crate) fn keep_out_of_core_files() {
    let one = Rlimit { current: Some(1), maximum: Some(1) };
    if let Err(error) = setrlimit(Resource::Core, one) {
        // A limit of 0 cannot be raised, and prevents core files; only a handler would get the
        // memory.
        tracing::info!(%error, "core files are limited by who started this process");
    }
}

/// How well this process is confined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confinement {
    /// To the given files.
    Full,
    /// To the given files, but the kernel does not know some kinds of access.
    Partial,
    /// Not at all: the kernel has no Landlock, or it is not enabled.
    None,
}

/// The files that a confined process opens; paths that do not exist are ignored.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Files<'a> {
    /// Opened, created and removed: these and all below them.
    pub(crate) writable: &'a [&'a Path],
    /// Read: these and all below them.
    pub(crate) readable: &'a [&'a Path],
    /// Devices below these directories: read, written and controlled. None is created, because a
    /// device file of root's gives access to any device.
    pub(crate) devices: &'a [&'a Path],
}

/// Confines this thread, and threads and programs that it starts: they open only these files. Open
/// files stay open.
///
/// # Errors
/// If the kernel has Landlock but refuses the rules.
pub(crate) fn confine(files: Files<'_>) -> anyhow::Result<Confinement> {
    let Files { writable, readable, devices } = files;
    let of_devices =
        AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::WriteFile | AccessFs::IoctlDev;
    let result = (|| {
        Ruleset::default()
            .handle_access(AccessFs::from_all(WANTED))?
            .create()?
            .add_rules(path_beneath_rules(writable, AccessFs::from_all(WANTED)))?
            .add_rules(path_beneath_rules(readable, AccessFs::from_read(WANTED)))?
            .add_rules(path_beneath_rules(devices, of_devices))?
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

/// As [`confine`], but prints a warning on standard error if the kernel cannot.
pub(crate) fn confine_or_say(files: Files<'_>) -> anyhow::Result<()> {
    if confine(files)? == Confinement::None {
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

    /// Goal: given files can be used as given, devices can be opened but not made or removed, all
    /// others cannot be opened, and open files stay open. (On a thread, so that other tests are not confined.)
    #[test]
    fn only_named_files_open() {
        let base = tempfile::tempdir().unwrap();
        for name in ["own", "shown", "devices", "other"] {
            fs::create_dir(base.path().join(name)).unwrap();
            fs::write(base.path().join(name).join("file"), "x").unwrap();
        }
        let path = base.path().to_path_buf();
        let confined = std::thread::spawn(move || {
            let (own, shown) = (path.join("own"), path.join("shown"));
            let open = fs::File::open(path.join("other/file")).unwrap();
            let devices = path.join("devices");
            let files = Files {
                writable: &[&own, &path.join("missing")],
                readable: &[&shown],
                devices: &[&devices],
            };
            let confinement = confine(files).unwrap();
            if confinement == Confinement::None {
                println!("skipped: no Landlock");
                return;
            }
            fs::write(own.join("new"), "y").unwrap();
            assert_eq!(fs::read(shown.join("file")).unwrap(), b"x");
            assert!(fs::write(shown.join("file"), "z").is_err());
            fs::OpenOptions::new().read(true).write(true).open(devices.join("file")).unwrap();
            assert!(fs::write(devices.join("new"), "z").is_err());
            assert!(fs::remove_file(devices.join("file")).is_err());
            assert!(fs::read(path.join("other/file")).is_err());
            assert_eq!(std::io::read_to_string(open).unwrap(), "x");
        });
        confined.join().unwrap();
        assert!(fs::read(base.path().join("other/file")).is_ok());
    }
}
