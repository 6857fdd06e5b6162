//! Changeable copies of one set of files, one for each container of a run, fresh in each run.
//!
//! The sets of all loads are made once, where the data is, and once more in each file system that a scheme
//! needs on a loop device. What containers see is mounted by us, before they are started ([`shares`]):
//! so any runtime can have it, bound into its container as any directory. Unions are served by a process
//! that nobody else uses.

mod room;
mod shares;

use super::storage::Ready;
use super::thin::{self, ThinPool};
use super::{Place, Stage, StageOptions};
use crate::guard::Source;
use crate::own::Owner;
use crate::plan::Plan;
use base::{Error, Stop};
use loads::copyup::Container;
use loads::crowd::{Base, Shares};
use loads::file_set;
use loads::place::Place as _;
use loads::process;
use loads::scheme::Scheme;
use std::fs::{self, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) use room::set_room_aside;

/// Name of the file in the scratch directory with names and sizes of the set of files.
const NAMES: &str = "files";
/// Where a container's directory shows what it sees.
const MOUNT: &str = "mount";

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
    owner: Option<Owner>,
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
        let base = match scheme.file_system() {
            None => own.to_path_buf(),
            Some(kind) => match self.enter_loop(plan, scheme, kind, own) {
                Ok(mount) => mount,
                Err(error) => return Ok(Err(error.to_string())),
            },
        };
        let mut thin = None;
        if scheme == Scheme::ThinSnapshot {
            match self.enter_pool_of_files(plan, own) {
                Ok(made) => thin = Some(made),
                Err(error) => return Ok(Err(error.to_string())),
            }
        }
        let lower =
            if scheme.file_system().is_some() { base.join("lower") } else { root.join("lower") };
        if !lower.exists() {
            make_lower(scheme, &lower)?;
            fill(plan, &lower)?;
        }
        self.list_names(&lower)?;
        let runtime = root.join("run");
        if !runtime.exists() {
            let made = fs::DirBuilder::new().mode(0o700).create(&runtime);
            made.map_err(Error::io("cannot make", &runtime))?;
        }
        let containers = base.join("containers");
        fs::create_dir(&containers).map_err(Error::io("cannot make", &containers))?;
        let program = options.program.clone();
        let owner = self.owner.clone();
        let layers = Layers { scheme, program, lower, containers, runtime, thin, owner };
        let source = Source::of_file(own);
        let file = layers.containers.join("file");
        let shares: Arc<dyn Shares> = Arc::new(layers.clone());
        let (shares, of_run) = (Some(shares), Some(layers.clone()));
        let ready = Ready { layers: of_run, shares, ..Ready::file(file, source) };
        let place = Place::of(ready.clone(), None, None, self.owner.clone());
        if let Err(error) = self.probe_layers(&layers, &place) {
            return Ok(Err(error.to_string()));
        }
        self.notes.push(format!("{}: {}{}", scheme.name(), contents(plan), version(scheme)));
        Ok(Ok(ready))
    }

    /// Lets one container write to one file, which is the only proof that it can be had.
    pub(super) fn probe_layers(
        &self,
        layers: &dyn loads::place::Layers,
        place: &Place,
    ) -> Result<(), Error> {
        let (scratch, stop) = (self.scratch().unwrap_or_default(), Stop::default());
        let instances = place.instances(1, &Base { key: "", fill: &|_| Ok(()) }, &stop)?;
        let probed = Container::start(layers, instances.places()[0], &scratch, (1, 0))
            .and_then(|mut container| container.try_once(&stop));
        if probed.is_err() {
            place.end_loads()?;
        }
        let removed = instances.take_back();
        probed.and(removed)
    }

    /// Names and sizes of all files, for containers to choose from; the same for all schemes.
    fn list_names(&self, lower: &Path) -> Result<(), Error> {
        let path = self.scratch().unwrap_or_default().join(NAMES);
        if path.exists() {
            return Ok(());
        }
        let line = |(name, bytes): &(PathBuf, u64)| format!("{} {bytes}\n", name.display());
        let text: String = file_set::list(lower)?.iter().map(line).collect();
        fs::write(&path, text).map_err(Error::io("cannot write", &path))
    }

    /// A pool of thin volumes, the first with the files.
    fn enter_pool_of_files(&mut self, plan: &Plan, own: &Path) -> Result<ThinPool, Error> {
        let room = (room::volume_bytes(plan), room::changes_max(plan, true));
        let pool = self.enter_thin(own, room, |at| fill(plan, at))?;
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
        let bytes = room::volume_bytes(plan) + room::changes_max(plan, false);
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

/// What the machine lacks for a scheme, as far as this is visible without trying.
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

/// The version of the program that serves a scheme, unless the kernel does.
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

/// Makes the files that the plan's loads begin with, those of each profile in a directory of its own.
fn fill(plan: &Plan, lower: &Path) -> Result<(), Error> {
    for load in &plan.experiment.workloads {
        load.task.copies().map_or(Ok(()), |copies| copies.make(lower, plan.data()))?;
    }
    file_set::sync(lower)
}

/// What containers begin with, for the report.
fn contents(plan: &Plan) -> String {
    let copies = plan.experiment.workloads.first().and_then(|load| load.task.copies());
    copies.map_or(String::new(), |copies| copies.describe(plan.data()))
}
