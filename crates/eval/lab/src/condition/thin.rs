//! Thin snapshots by the kernel's device mapper: a pool on two loop devices, one volume with the set of
//! files, and a snapshot of it, which is mounted, for each container.

use super::Stage;
use base::Error;
use loads::process;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Sectors of 512 bytes that are copied at the first write to them: 64 KiB, the least there is.
const BLOCK_SECTORS: u64 = 128;
/// Bytes of the pool's records, which is far more than our volumes need.
const RECORD_BYTES: u64 = 64 << 20;
/// The volume with the set of files.
const BASE: u32 = 0;

/// A pool with the volume that snapshots are made of.
#[derive(Clone, Debug)]
pub(super) struct ThinPool {
    /// What names of our devices begin with.
    name: String,
    volume_bytes: u64,
}

/// What the kernel or the machine lacks for it.
pub(super) fn check() -> Result<(), String> {
    let targets = process::output("dmsetup", &["targets"]);
    let targets = targets.map_err(|error| {
        let said = error.to_string();
        let said = said.lines().next().unwrap_or_default();
        format!("{said} (Debian: dmsetup; modprobe dm-mod)")
    })?;
    let has = targets.lines().any(|line| line.starts_with("thin-pool"));
    has.then_some(()).ok_or("the kernel has no thin pools (modprobe dm-thin-pool)".into())
}

fn dmsetup(words: &[&str]) -> Result<(), Error> {
    // There may be no udev to wait for.
    let all: Vec<&str> = words.iter().copied().chain(["--noudevsync"]).collect();
    process::output("dmsetup", &all).map(drop)
}

impl Stage {
    /// Makes a pool whose volumes have so many bytes each, with room for `changed_bytes` beside one of
    /// them, and lets `fill` put files into the first.
    pub(super) fn enter_thin(
        &mut self,
        own: &Path,
        (volume_bytes, changed_bytes): (u64, u64),
        fill: impl FnOnce(&Path) -> Result<(), Error>,
    ) -> Result<ThinPool, Error> {
        let name = format!("tsumugi-eval-{}-{}", std::process::id(), self.leave.len());
        let pool = ThinPool { name, volume_bytes };
        let mounts = own.join("containers").display().to_string();
        // Noted first: being killed meanwhile must leave nothing.
        let leave = pool.leave(&mounts);
        if let Some(directory) = &self.directory {
            directory.note_leave(&leave)?;
        }
        let records = self.loop_of(&own.join("records"), RECORD_BYTES)?;
        let data = self.loop_of(&own.join("device"), volume_bytes + changed_bytes)?;
        self.leave.push(leave);
        let sectors = (volume_bytes + changed_bytes) / 512 / BLOCK_SECTORS * BLOCK_SECTORS;
        let table = format!(
            "0 {sectors} thin-pool {records} {data} {BLOCK_SECTORS} 0 1 skip_block_zeroing"
        );
        dmsetup(&["create", &pool.name, "--table", &table])?;
        pool.tell(&format!("create_thin {BASE}"))?;
        let device = pool.activate(BASE)?;
        let options = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
        process::output("mkfs.ext4", &["-q", "-F", "-b", "4096", "-E", options, &device])?;
        let mount = own.join("base");
        fs::create_dir(&mount).map_err(Error::io("cannot make", &mount))?;
        let at = mount.display().to_string();
        process::output("mount", &["-o", "noatime", &device, &at])?;
        let filled = fill(&mount);
        process::output("umount", &[&at])?;
        // Snapshots of a volume that nobody writes need no pause of it.
        pool.deactivate(BASE)?;
        filled.map(|()| pool)
    }

    /// A loop device on a new file of so many bytes.
    fn loop_of(&mut self, path: &Path, bytes: u64) -> Result<String, Error> {
        let file = File::create_new(path).map_err(Error::io("cannot make", path))?;
        super::layers::set_room_aside(&file, path, bytes)?;
        self.attach_loop(path)
    }
}

impl ThinPool {
    fn tell(&self, message: &str) -> Result<(), Error> {
        dmsetup(&["message", &self.name, "0", message])
    }

    fn volume(&self, number: u32) -> String {
        format!("{}-{number}", self.name)
    }

    fn activate(&self, number: u32) -> Result<String, Error> {
        let sectors = self.volume_bytes / 512;
        let table = format!("0 {sectors} thin /dev/mapper/{} {number}", self.name);
        dmsetup(&["create", &self.volume(number), "--table", &table])?;
        Ok(format!("/dev/mapper/{}", self.volume(number)))
    }

    fn deactivate(&self, number: u32) -> Result<(), Error> {
        dmsetup(&["remove", "--retry", &self.volume(number)])
    }

    /// Mounts a snapshot of the files for a container, from 0.
    pub(super) fn mount(&self, container: u32, at: &Path) -> Result<(), Error> {
        let number = container + 1;
        self.tell(&format!("create_snap {number} {BASE}"))?;
        let device = self.activate(number)?;
        process::output("mount", &["-o", "noatime", &device, &at.display().to_string()]).map(drop)
    }

    /// Undoes it, as far as it was done.
    pub(super) fn unmount(&self, container: u32, at: &Path) -> Result<(), Error> {
        let number = container + 1;
        if !super::mounts_below(at)?.is_empty() {
            process::output("umount", &[&at.display().to_string()])?;
        }
        if PathBuf::from(format!("/dev/mapper/{}", self.volume(number))).exists() {
            self.deactivate(number)?;
        }
        self.tell(&format!("delete {number}"))
    }

    /// A shell command that takes everything away, in whatever state it is; mounts are below `mounts`.
    fn leave(&self, mounts: &str) -> String {
        let name = &self.name;
        format!(
            "for m in $(grep -o ' {mounts}/[^ ]*' /proc/self/mounts); do umount \"$m\"; done; \
             for d in $(dmsetup ls | grep -o '^{name}-[0-9]*'); do \
             dmsetup remove --retry --noudevsync \"$d\"; done; \
             ! dmsetup info {name} >/dev/null 2>&1 || dmsetup remove --retry --noudevsync {name}"
        )
    }
}
