//! One machine's part of creating a job, step by step: prepare, start the metadata service, start
//! nodes.
//!
//! Each step writes the state before it creates anything. Nothing here undoes a step: the caller of
//! the steps calls [`super::cleanup`] when one fails.

use super::files::{self, Claim};
use super::job::JobDir;
use super::mounts::{self, Condition};
use super::place::{self, Trust};
use super::plan::Plan;
use super::prepare::{self, Backing};
use super::service::Service;
use super::services::{self, ReadyNode};
use super::state::{MetaState, State};
use super::stop::Stop;
use super::users::User;
use super::{data_fabric, fabric, fuse_uring, keeper, lease, record};
use crate::deploy::site::devices::{self, Chosen};
use crate::deploy::site::{self, Site};
use anyhow::{Context, bail};
use serde::Serialize;
use std::fs::{File, OpenOptions, Permissions};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long an existing mount at the mount point may take to show whether it is alive.
const LOOK_WITHIN: Duration = Duration::from_secs(1);

/// A node's configuration, in the form that `tsumugi node` reads.
#[derive(Debug, Serialize)]
struct NodeFile<'a> {
    name: &'a str,
    meta: SocketAddr,
    secret: &'a Path,
    #[serde(skip_serializing_if = "Option::is_none")]
    network_namespace: Option<&'a Path>,
    listen: SocketAddr,
    mount: &'a Path,
    allow_other: bool,
    transport: &'a str,
    poll_us: reactor::Spin,
    pid_file: &'a Path,
    plain_data: bool,
    fabric: data_fabric::Kind,
    checksum: &'a str,
    device: [DeviceEntry<'a>; 1],
}

#[derive(Debug, Serialize)]
struct DeviceEntry<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a Path>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
}

/// A machine during its setup. Holds the job's lock.
#[derive(Debug)]
pub(crate) struct Machine {
    dir: JobDir,
    plan: Plan,
    /// The nodes' devices, in the plan's order.
    devices: Vec<Chosen>,
    state: State,
    stop: Stop,
    services: Vec<Service>,
    _lock: File,
}

impl Machine {
    /// Creates the job's directory, takes its lock, and writes the first state and the keys. If
    /// this fails after it created the directory, the caller must still clean up
    /// ([`JobDir::is_made_here`]).
    pub(crate) fn begin(dir: &JobDir, plan: Plan, stop: Stop) -> anyhow::Result<Machine> {
        dir.refuse_existing()?;
        let mut state = State::of_plan(dir, &plan)?;
        let site = Site::read()?;
        site.check_owner(&plan.owner())?;
        let devices = devices::choose(&plan, &site)
            .with_context(|| format!("no device for a node on {}", site::host_name()))?;
        check(&plan, &state, &devices)?;
        dir.create()?;
        let Some(lock) = dir.try_lock()? else {
            bail!("another tsumugi works on {}", dir.path().display());
        };
        state.write(dir)?;
        record::write_or_say(&state);
        if let Some(owner) = &plan.owner {
            open_to(dir, owner)?;
        }
        if let Some(secret) = &plan.secret {
            write_private(&dir.join("secret"), secret.as_str())?;
        }
        for node in &plan.nodes {
            write_private(&key_file(dir, &node.name), node.key.as_str())?;
        }
        keeper::start(dir, &mut state)?;
        let dir = dir.clone();
        Ok(Machine { dir, plan, devices, state, stop, services: Vec::new(), _lock: lock })
    }

    /// Returns the job's identifier on this machine.
    pub(crate) fn id(&self) -> &str {
        &self.plan.id
    }

    /// Creates directories and backing files. Reports to `progress` the bytes done, and the bytes
    /// of all.
    pub(crate) fn prepare(&mut self, progress: impl FnMut(u64, u64)) -> anyhow::Result<()> {
        if self.plan.fuse_uring
            && let Some(change) = fuse_uring::ask(&self.plan.id)?
        {
            eprintln!("tsumugi: {change}; `tsumugi down` undoes it");
        }
        let files = self.name_devices();
        self.make_directories(&files)?;
        let mut claims = Vec::new();
        for (index, file) in &files {
            claims.push(Claim::take(&Backing::unfinished(&file.path))?);
            self.state.nodes[*index].is_device_made = !files::find_own(&file.path)?;
        }
        if !files.is_empty() {
            self.state.write(&self.dir)?;
            record::write_or_say(&self.state);
        }
        let backings: Vec<_> = files.into_iter().map(|(_, file)| file).collect();
        prepare::prepare(&backings, self.plan.fill(), &self.stop, progress)?;
        drop(claims);
        backings.iter().try_for_each(|file| files::remove_part(&Backing::unfinished(&file.path)))
    }

    /// Writes the nodes' devices into the state. Returns the backing files, each with its node.
    fn name_devices(&mut self) -> Vec<(usize, Backing)> {
        let mut files = Vec::new();
        for (index, (node, device)) in self.plan.nodes.iter().zip(&self.devices).enumerate() {
            let state = &mut self.state.nodes[index];
            match device {
                Chosen::File { directory, size } => {
                    // Names of jobs and nodes contain no @.
                    let name = format!("{}@{}.device", self.dir.job(), node.name);
                    let path = directory.join(name);
                    state.device = Some(path.clone());
                    state.part = Some(Backing::unfinished(&path));
                    files.push((index, Backing { path, size: *size }));
                }
                Chosen::Existing { path } => state.device = Some(path.clone()),
                Chosen::Memory { .. } => {}
            }
        }
        files
    }

    fn make_directories(&mut self, files: &[(usize, Backing)]) -> anyhow::Result<()> {
        let mount_mode = if self.plan.owner.is_some() { 0o711 } else { 0o700 };
        let mounts = self.state.nodes.iter().map(|node| (node.mount.clone(), mount_mode));
        let mut wanted: Vec<_> = mounts.collect();
        let above = files.iter().filter_map(|(_, file)| file.path.parent());
        wanted.extend(above.map(|directory| (directory.to_path_buf(), 0o700)));
        let store = self.state.meta.as_ref().and_then(MetaState::directory);
        wanted.extend(store.map(|store| (store.to_path_buf(), 0o700)));
        self.state.directories = wanted
            .iter()
            .flat_map(|(path, _)| path.ancestors())
            .filter(|path| !path.exists())
            .map(Path::to_path_buf)
            .collect();
        // Outermost first; creating one twice is harmless.
        self.state.directories.sort();
        self.state.directories.dedup();
        self.state.write(&self.dir)?;
        record::write_or_say(&self.state);
        for (path, mode) in &wanted {
            place::make_directories(path, *mode, Trust::Chosen)?;
        }
        for node in &self.state.nodes {
            check_mount_point(&node.mount)?;
            if let Some(owner) = &self.plan.owner {
                check_reach(&node.mount, owner)?;
            }
        }
        Ok(())
    }

    /// Creates network namespaces, if the plan has any.
    pub(crate) fn connect(&mut self) -> anyhow::Result<()> {
        if !self.plan.has_fabric {
            return Ok(());
        }
        let names: Vec<_> = self.plan.nodes.iter().map(|node| node.name.clone()).collect();
        fabric::make(&self.dir.join("netns"), &names, &self.stop)
    }

    /// Uses loopback ports instead of namespaces that could not be created.
    pub(crate) fn leave_fabric(&mut self) -> anyhow::Result<()> {
        let left = fabric::remove(&self.dir.join("netns"))?;
        if let Some(path) = left.first() {
            bail!("cannot unmount the namespace {}", path.display());
        }
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        self.plan.has_fabric = false;
        if let (Some(plan), Some(state)) = (&mut self.plan.meta, &mut self.state.meta) {
            (plan.listen, state.namespace) = (any, None);
        }
        for (plan, state) in self.plan.nodes.iter_mut().zip(&mut self.state.nodes) {
            (plan.listen, state.namespace) = (any, None);
        }
        self.state.write(&self.dir)
    }

    /// Starts the metadata service. Returns its address.
    pub(crate) fn start_meta(&mut self, deadline: Instant) -> anyhow::Result<SocketAddr> {
        let Some(plan) = &self.plan.meta else {
            bail!("this machine's plan has no metadata service");
        };
        let (dir, state, stop) = (&self.dir, &mut self.state, &self.stop);
        let mut service = services::start_meta(dir, state, plan.listen)?;
        let address = services::await_meta(&mut service, dir, state, deadline, stop)?;
        self.services.push(service);
        Ok(address)
    }

    /// Starts all nodes at the same time and waits until they are ready.
    pub(crate) fn start_nodes(
        &mut self,
        meta: SocketAddr,
        deadline: Instant,
    ) -> anyhow::Result<Vec<ReadyNode>> {
        let mut started = Vec::new();
        for index in 0..self.plan.nodes.len() {
            self.stop.check()?;
            self.write_node_file(index, meta)?;
            started.push(services::start_node(&self.dir, &mut self.state, index)?);
        }
        let mut ready = Vec::new();
        for (index, mut service) in started.into_iter().enumerate() {
            let state = &mut self.state;
            ready.push(services::await_node(&mut service, state, index, deadline, &self.stop)?);
            self.services.push(service);
        }
        self.state.write(&self.dir)?;
        Ok(ready)
    }

    fn write_node_file(&self, index: usize, meta: SocketAddr) -> anyhow::Result<()> {
        let (node, state) = (&self.plan.nodes[index], &self.state.nodes[index]);
        let size = match self.devices[index] {
            Chosen::Memory { size } => Some(size),
            Chosen::File { .. } | Chosen::Existing { .. } => None,
        };
        let file = NodeFile {
            name: &node.name,
            meta,
            secret: &key_file(&self.dir, &node.name),
            network_namespace: state.namespace.as_deref(),
            listen: node.listen,
            mount: &state.mount,
            allow_other: may_allow_other(),
            transport: &self.plan.transport,
            poll_us: self.plan.poll_us,
            pid_file: &self.state.node_life(state),
            plain_data: self.plan.plain_data,
            fabric: self.plan.data_fabric.transport,
            checksum: &self.plan.checksum,
            device: [DeviceEntry { path: state.device.as_deref(), size }],
        };
        let path = self.dir.join(&format!("{}.toml", node.name));
        write_private(&path, &toml::to_string(&file)?)
    }

    /// Marks the job as ready: from now on only `down` ends it.
    pub(crate) fn finish(&mut self) -> anyhow::Result<()> {
        self.stop.check()?;
        if let Some(lasts) = self.state.lease() {
            lease::renew(&self.dir, lasts)?;
        }
        self.state.is_ready = true;
        self.state.write(&self.dir)
    }
}

/// Refuses a plan that cannot work, before anything is created.
fn check(plan: &Plan, state: &State, devices: &[Chosen]) -> anyhow::Result<()> {
    if let Some(owner) = &plan.owner
        && !rustix::process::geteuid().is_root()
        && !owner.is_current()
    {
        bail!("only root may create a pool for {}: omit --owner, or run this as root", owner.name);
    }
    // If root mounts at a path, no other user may be able to replace it.
    let mount_trust = if rustix::process::geteuid().is_root() { Trust::Own } else { Trust::Chosen };
    for node in &state.nodes {
        check_mount_point(&node.mount)?;
        place::require_directory(&node.mount)?;
        place::check(&node.mount, mount_trust)?;
    }
    let mut directories: Vec<_> = plan.meta.iter().map(|_| plan.device_dir()).collect();
    directories.extend(devices.iter().filter_map(|device| match device {
        Chosen::File { directory, .. } => Some(directory.clone()),
        Chosen::Existing { .. } | Chosen::Memory { .. } => None,
    }));
    for directory in directories {
        place::require_directory(&directory)?;
        place::check(&directory, Trust::Chosen)?;
    }
    Ok(())
}

/// Refuses to hide one mount behind another.
fn check_mount_point(path: &Path) -> anyhow::Result<()> {
    match mounts::condition(path, LOOK_WITHIN) {
        Condition::NotMounted | Condition::Unknown => Ok(()),
        Condition::Dead => bail!(
            "{} is the mount of a file system that has died: see `tsumugi list`, and remove it \
             with `tsumugi gc` or `umount`",
            path.display()
        ),
        Condition::Mounted | Condition::Silent => bail!(
            "{} is a mount already: choose another --mount-base, or end the job that has it (see \
             `tsumugi list`)",
            path.display()
        ),
    }
}

/// Lets a user pass through the job's directory to its mounts. Files in the directory stay closed.
fn open_to(dir: &JobDir, owner: &User) -> anyhow::Result<()> {
    let mut opened = vec![dir.path()];
    let base = dir.path().parent().unwrap_or(dir.path());
    if base == super::job::default_base() {
        opened.push(base);
    }
    for path in opened {
        std::fs::set_permissions(path, Permissions::from_mode(0o711))
            .with_context(|| format!("cannot open {} to {}", path.display(), owner.name))?;
    }
    Ok(())
}

/// Refuses a mount point that its user could not reach.
fn check_reach(mount: &Path, owner: &User) -> anyhow::Result<()> {
    for path in mount.ancestors().skip(1) {
        let data =
            std::fs::metadata(path).with_context(|| format!("cannot use {}", path.display()))?;
        let needed = match (data.uid() == owner.uid, data.gid() == owner.gid) {
            (true, _) => 0o100,
            (false, true) => 0o010,
            (false, false) => 0o001,
        };
        if data.mode() & needed == 0 {
            bail!(
                "{} could not reach {}: {} is closed to that user. Choose another --mount-base or \
                 --dir, or run `chmod o+x` on it",
                owner.name,
                mount.display(),
                path.display()
            );
        }
    }
    Ok(())
}

/// Returns whether mounts may be open to other users: for root always, for other users if
/// /etc/fuse.conf allows it.
fn may_allow_other() -> bool {
    rustix::process::geteuid().is_root()
        || std::fs::read_to_string("/etc/fuse.conf")
            .is_ok_and(|text| text.lines().any(|line| line.trim() == "user_allow_other"))
}

/// Returns the path of a node's key.
fn key_file(dir: &JobDir, node: &str) -> PathBuf {
    dir.join(&format!("{node}.key"))
}

/// Writes a file that only its owner can read.
fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut options = OpenOptions::new();
    options.create_new(true).write(true).mode(0o600);
    options
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("cannot write {}", path.display()))
}
