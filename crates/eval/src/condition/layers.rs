//! Changeable copies of one set of files, one for each container of a run, fresh in each run.
//!
//! The set is made once, where the data is, and once more in each file system that a scheme needs on a
//! loop device. A container is a process with a mount namespace of its own, so its mounts end with it,
//! however that is; unions are served by a process that nobody else uses.

use super::storage::{Ready, counted};
use super::thin::{self, ThinPool};
use super::{Place, Stage, StageOptions};
use crate::engine::Stop;
use crate::engine::copyup::Container;
use crate::error::Error;
use crate::experiment::{Scheme, Task};
use crate::file_set;
use crate::plan::Plan;
use crate::process;
use std::fs::{self, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Room of a file system on a loop device for itself.
const OWN_BYTES: u64 = 512 << 20;
/// Room for each file that a container changes there: its first block, and what names it.
const CHANGE_BYTES: u64 = 32 << 10;
/// The same in a pool of thin volumes: two blocks of 64 KiB, and what names them.
const THIN_CHANGE_BYTES: u64 = 256 << 10;

/// Where a scheme's files and containers are.
#[derive(Clone, Debug)]
pub struct Layers {
    /// How copies are made.
    pub scheme: Scheme,
    /// The program `tsumugi`.
    program: PathBuf,
    /// The set of files.
    lower: PathBuf,
    /// Has a directory for each container of the run under way.
    containers: PathBuf,
    /// Where the server of unions listens.
    runtime: PathBuf,
    thin: Option<ThinPool>,
}

impl Stage {
    /// Makes the files of a scheme. The inner error is why it is not available.
    pub(super) fn enter_layers(
        &mut self,
        plan: &Plan,
        options: &StageOptions,
        scheme: Scheme,
        own: &Path,
    ) -> Result<Result<Ready, String>, Error> {
        if let Err(why) = check(scheme) {
            return Ok(Err(why));
        }
        let Some(root) = self.directory.as_ref().map(|it| it.path().to_path_buf()) else {
            return Ok(Err("there is no directory to work in".into()));
        };
        let sizes = file_set::sizes(plan.experiment.file_bytes, plan.experiment.seed);
        let base = match scheme.file_system() {
            None => own.to_path_buf(),
            Some(kind) => match self.enter_loop(plan, scheme, kind, own) {
                Ok(mount) => mount,
                Err(error) => return Ok(Err(error.to_string())),
            },
        };
        let mut thin = None;
        if scheme == Scheme::ThinSnapshot {
            let made = self.enter_pool_of_files(plan, own, &sizes);
            match made {
                Ok(made) => thin = Some(made),
                Err(error) => return Ok(Err(error.to_string())),
            }
        }
        let lower =
            if scheme.file_system().is_some() { base.join("lower") } else { root.join("lower") };
        if !lower.exists() {
            make_lower(scheme, &lower)?;
            file_set::make(&lower, &sizes, plan.experiment.seed, &Stop::default())?;
        }
        let runtime = root.join("run");
        if !runtime.exists() {
            let made = fs::DirBuilder::new().mode(0o700).create(&runtime);
            made.map_err(Error::io("cannot make", &runtime))?;
        }
        let containers = base.join("containers");
        fs::create_dir(&containers).map_err(Error::io("cannot make", &containers))?;
        let layers =
            Layers { scheme, program: options.program.clone(), lower, containers, runtime, thin };
        let device = fs::metadata(own).ok().and_then(|found| counted(found.dev()));
        let file = layers.containers.join("file");
        let ready = Ready { layers: Some(layers.clone()), ..Ready::file(file, device) };
        if let Err(error) = self.probe_layers(&layers, &ready) {
            return Ok(Err(error.to_string()));
        }
        let bytes: u64 = sizes.iter().sum();
        self.notes.push(format!(
            "{}: {} files, {}{}",
            scheme.name(),
            sizes.len(),
            crate::units::bytes(bytes),
            version(scheme)
        ));
        Ok(Ok(ready))
    }

    /// Mounts and unmounts one container, which is the only proof that it can be had.
    fn probe_layers(&self, layers: &Layers, ready: &Ready) -> Result<(), Error> {
        let place = Place::of(ready.clone(), None, None, self.owner.clone());
        let scratch = self.scratch().unwrap_or_default();
        let probed = layers.fresh(1).and_then(|at| {
            let container = Container::start(layers, &place, &scratch, &at[0], 1, 0)?;
            container.expect_mounted(&Stop::default())
        });
        let removed = layers.remove();
        probed.and(removed)
    }

    /// A pool of thin volumes, the first with the files.
    fn enter_pool_of_files(
        &mut self,
        plan: &Plan,
        own: &Path,
        sizes: &[u64],
    ) -> Result<ThinPool, Error> {
        let bytes = volume_bytes(plan);
        let seed = plan.experiment.seed;
        let fill = |at: &Path| file_set::make(at, sizes, seed, &Stop::default());
        let pool = self.enter_thin(own, (bytes, changes_max(plan) * THIN_CHANGE_BYTES), fill)?;
        self.notes.push(
            "thin-snapshot: a pool with blocks of 64 KiB on loop devices with direct I/O".into(),
        );
        Ok(pool)
    }

    /// A file system of this kind on a loop device, for all that the runs may write. Gives its mount.
    fn enter_loop(
        &mut self,
        plan: &Plan,
        scheme: Scheme,
        kind: &str,
        own: &Path,
    ) -> Result<PathBuf, Error> {
        let file = own.join("device");
        let made = File::create_new(&file).map_err(Error::io("cannot make", &file))?;
        let bytes = volume_bytes(plan) + changes_max(plan) * CHANGE_BYTES;
        set_room_aside(&made, &file, bytes)?;
        drop(made);
        let device = self.attach_loop(&file)?;
        let words: &[&str] = match scheme {
            Scheme::BtrfsSnapshot => &["-q", "-f", &device],
            _ => &["-q", "-f", "-m", "reflink=1", &device],
        };
        process::output(&format!("mkfs.{kind}"), words)?;
        let mount = self.mount_loop(&device, own)?;
        self.notes.push(format!("{}: {kind} on a loop device with direct I/O", scheme.name()));
        Ok(mount)
    }
}

/// Bytes of a file system for the set of files.
fn volume_bytes(plan: &Plan) -> u64 {
    let files = plan.experiment.file_bytes;
    (files + files / 4 + OWN_BYTES).next_multiple_of(1 << 20)
}

/// Most files that all containers of a run change, each for itself.
fn changes_max(plan: &Plan) -> u64 {
    let changes =
        plan.cells.iter().map(|cell| match plan.experiment.workloads[cell.workload].task {
            Task::CopyUp(load) => u64::from(cell.jobs) * u64::from(load.files),
            _ => 0,
        });
    changes.max().unwrap_or(0)
}

/// Sets room aside on the disk, so that no run is the first to ask for it.
pub(super) fn set_room_aside(file: &File, path: &Path, bytes: u64) -> Result<(), Error> {
    rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, bytes)
        .map_err(|errno| Error::io("cannot set room aside for", path)(errno.into()))
}

/// What the machine lacks for a scheme, as far as it can be told without trying.
fn check(scheme: Scheme) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("only root may mount for containers".into());
    }
    let systems = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let has =
        |name: &str| systems.lines().any(|line| line.trim_start_matches("nodev").trim() == name);
    let lacks = |name: &str| Err(format!("the kernel has no {name} (modprobe {name})"));
    match scheme {
        Scheme::Overlay | Scheme::OverlayVolatile | Scheme::OverlayReflink if !has("overlay") => {
            return lacks("overlay");
        }
        Scheme::ThinSnapshot => thin::check()?,
        Scheme::FuseOverlayfs => {
            let found = process::output("fuse-overlayfs", &["--version"]);
            found.map_err(|error| format!("{error} (Debian: fuse-overlayfs)"))?;
        }
        _ => {}
    }
    let Some(kind) = scheme.file_system() else { return Ok(()) };
    if !has(kind) {
        return lacks(kind);
    }
    let package = if kind == "xfs" { "xfsprogs" } else { "btrfs-progs" };
    let found = process::output(&format!("mkfs.{kind}"), &["-V"]);
    found.map(drop).map_err(|error| format!("{error} (Debian: {package})"))
}

/// The version of what serves a scheme, where it is not the kernel's.
fn version(scheme: Scheme) -> String {
    if scheme != Scheme::FuseOverlayfs {
        return String::new();
    }
    let said = process::output("fuse-overlayfs", &["--version"]).unwrap_or_default();
    said.lines().find(|line| line.contains("version")).map_or(String::new(), |it| format!(", {it}"))
}

fn make_lower(scheme: Scheme, lower: &Path) -> Result<(), Error> {
    match scheme {
        Scheme::BtrfsSnapshot => {
            process::output("btrfs", &["subvolume", "create", &lower.display().to_string()])
                .map(drop)
        }
        _ => fs::create_dir(lower).map_err(Error::io("cannot make", lower)),
    }
}

impl Layers {
    /// Makes directories for so many containers; nothing of an earlier run is in them.
    pub fn fresh(&self, count: u32) -> Result<Vec<PathBuf>, Error> {
        let mut made = Vec::new();
        for number in 0..count {
            let at = self.containers.join(number.to_string());
            let wrong = || Error::io("cannot make", &at);
            fs::create_dir(&at).map_err(wrong())?;
            for name in ["mount", "work"] {
                fs::create_dir(at.join(name)).map_err(wrong())?;
            }
            let upper = at.join("upper");
            if self.scheme == Scheme::BtrfsSnapshot {
                let (lower, upper) =
                    (self.lower.display().to_string(), upper.display().to_string());
                process::output("btrfs", &["subvolume", "snapshot", &lower, &upper])?;
            } else {
                fs::create_dir(&upper).map_err(wrong())?;
            }
            if let Some(pool) = &self.thin {
                pool.mount(number, &upper)?;
            }
            made.push(at);
        }
        Ok(made)
    }

    /// Removes what a run has left, and waits until the disk has done with it.
    pub fn remove(&self) -> Result<(), Error> {
        let wrong = || Error::io("cannot remove", &self.containers);
        for entry in fs::read_dir(&self.containers).map_err(wrong())? {
            let at = entry.map_err(wrong())?.path();
            let number = at.file_name().and_then(|name| name.to_str()?.parse().ok());
            if let (Some(pool), Some(number)) = (&self.thin, number) {
                pool.unmount(number, &at.join("upper"))?;
            }
            if self.scheme == Scheme::BtrfsSnapshot && at.join("upper").exists() {
                let upper = at.join("upper").display().to_string();
                process::output("btrfs", &["subvolume", "delete", &upper])?;
            }
            fs::remove_dir_all(&at).map_err(wrong())?;
        }
        self.sync()
    }

    /// Reads the set of files, so that each run finds it in memory.
    pub fn warm(&self) -> Result<(), Error> {
        file_set::warm(&self.lower)
    }

    /// Makes all that was written to upper directories and snapshots durable (syncfs).
    pub fn sync(&self) -> Result<(), Error> {
        if self.thin.is_some() {
            let wrong = || Error::io("cannot list", &self.containers);
            for entry in fs::read_dir(&self.containers).map_err(wrong())? {
                file_set::sync(&entry.map_err(wrong())?.path().join("upper"))?;
            }
        }
        file_set::sync(&self.containers)
    }

    /// The command of one container, which mounts below `at` and waits to be told.
    pub fn command(&self, at: &Path, files: u32, seed: u64) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "--"]).arg(&self.program);
        command.args(["union", "bench-container", "--condition", self.condition()]);
        command.arg("--lower").arg(&self.lower).arg("--at").arg(at);
        command.args(["--operations", &files.to_string(), "--seed", &seed.to_string()]);
        command.env("XDG_RUNTIME_DIR", &self.runtime);
        command
    }

    /// What `union bench` calls it.
    fn condition(&self) -> &'static str {
        match self.scheme {
            Scheme::Overlay | Scheme::OverlayReflink => "kernel",
            Scheme::OverlayVolatile => "kernel-volatile",
            Scheme::FuseOverlayfs => "fuse-overlayfs",
            Scheme::UnionKeep => "keep",
            Scheme::UnionBackground => "background",
            Scheme::UnionWhole => "whole",
            Scheme::BtrfsSnapshot | Scheme::ThinSnapshot => "bind",
        }
    }

    /// What is executed for each container, for the report.
    pub fn shown(&self, files: u32) -> String {
        process::shown(&self.command(&self.containers.join("N"), files, 0))
    }
}
