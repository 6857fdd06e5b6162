//! A file system of its own on a storage: a loop device on the storage's file, formatted and mounted.
//!
//! Local and remote then differ in what lies below the loop device only, so that their pairs compare
//! what the kernel's file system gets, as on a remote disk. Root only.

use super::Stage;
use super::storage::{self, Ready, make_file, shell};
use base::Error;
use loads::level::FileSystem;
use loads::process;
use std::path::{Path, PathBuf};

/// Room for the file system's own data beside the file that is worked on.
const OWN_BYTES: u64 = 128 << 20;

/// Bytes that the storage has to have for a file of this many.
pub(super) fn storage_bytes(file_bytes: u64) -> u64 {
    (file_bytes + file_bytes / 8 + OWN_BYTES).next_multiple_of(1 << 20)
}

impl Stage {
    /// Puts a file system on a storage that is ready, below `own`, with a file of this size.
    pub(super) fn enter_file_system(
        &mut self,
        below: &Ready,
        kind: FileSystem,
        own: &Path,
        file_bytes: u64,
    ) -> Result<Ready, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("only root may mount a file system on a loop device".into());
        }
        self.format(below, kind, own, file_bytes).map_err(|error| error.to_string())
    }

    fn format(
        &mut self,
        below: &Ready,
        kind: FileSystem,
        own: &Path,
        file_bytes: u64,
    ) -> Result<Ready, Error> {
        let device = self.attach_loop(&below.file)?;
        let queue =
            storage::device(Path::new(&device)).map_err(|why| Error::program("losetup", why))?;
        match kind {
            // Tables are written now, not by a thread during the runs; discarding would punch holes
            // into the file below.
            FileSystem::Ext4 => {
                let options = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
                process::output("mkfs.ext4", &["-q", "-F", "-b", "4096", "-E", options, &device])?;
            }
        }
        let mount = self.mount_loop(&device, own)?;
        self.notes.push(format!(
            "{}: {} on a loop device (direct I/O) on it",
            own.file_name().unwrap_or_default().display(),
            kind.name()
        ));
        let made = make_file(&mount.join("file"), file_bytes)?;
        shell("sync")?;
        // What reaches storage is counted there, not at the loop device.
        Ok(Ready { queue: queue.queue, ..Ready::file(made.file, below.source.clone()) })
    }

    /// Mounts the file system of a loop device below `own`. Gives the mount.
    pub(super) fn mount_loop(&mut self, device: &str, own: &Path) -> Result<PathBuf, Error> {
        let mount = own.join("mount");
        std::fs::create_dir(&mount).map_err(Error::io("cannot make", &mount))?;
        let at = mount.display().to_string();
        process::output("mount", &["-o", "noatime", device, &at])?;
        self.leave.push(format!("umount '{at}'"));
        Ok(mount)
    }

    /// A loop device with direct I/O on a file.
    pub(super) fn attach_loop(&mut self, file: &Path) -> Result<String, Error> {
        let file = file.display().to_string();
        // Sectors as large as the blocks of our namespaces, which take nothing smaller.
        let options = ["--find", "--show", "--direct-io=on", "--sector-size=4096", &file];
        let device = process::output("losetup", &options)?.trim().to_string();
        self.leave.push(format!("losetup --detach {device}"));
        Ok(device)
    }
}
