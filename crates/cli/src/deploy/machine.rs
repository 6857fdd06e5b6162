//! One machine's part of bringing a job up, step by step: prepare, start metadata, start nodes.
//!
//! Each step writes the state before it makes anything. Nothing here undoes: whoever drives the
//! steps calls [`super::cleanup`] when one fails.

use super::job::{JobDir, make_directories};
use super::plan::{DevicePlan, NodePlan, Plan};
use super::prepare::{self, Backing};
use super::service::Service;
use super::state::State;
use super::stop::Stop;
use super::{fabric, mounts};
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A node that is ready.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ReadyNode {
    /// Its name.
    pub(crate) name: String,
    /// Where its mount is.
    pub(crate) mount: PathBuf,
    /// Where its target listens.
    pub(crate) target: SocketAddr,
}

/// A node's configuration, as `tsumugi node` reads it.
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
    poll_us: u32,
    device: [DeviceEntry<'a>; 1],
}

#[derive(Debug, Serialize)]
struct DeviceEntry<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a Path>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
}

/// A machine that is being set up. Holds the job's lock.
#[derive(Debug)]
pub(crate) struct Machine {
    dir: JobDir,
    plan: Plan,
    state: State,
    stop: Stop,
    services: Vec<Service>,
    _lock: File,
}

impl Machine {
    /// Makes the job's directory, takes its lock and writes the first state and the secret. If this
    /// fails after the directory was made, the caller still has to clean up.
    pub(crate) fn begin(dir: &JobDir, plan: Plan, stop: Stop) -> anyhow::Result<Machine> {
        if !plan.insecure {
            refuse_exposure(&plan)?;
        }
        let state = State::of_plan(dir, &plan)?;
        dir.create()?;
        let Some(lock) = dir.try_lock()? else {
            bail!("another tsumugi works on {}", dir.path().display());
        };
        state.write(dir)?;
        write_private(&dir.join("secret"), &plan.secret)?;
        Ok(Machine { dir: dir.clone(), plan, state, stop, services: Vec::new(), _lock: lock })
    }

    /// Makes directories and backing files; tells `progress` the bytes done of all.
    pub(crate) fn prepare(&mut self, progress: impl FnMut(u64, u64)) -> anyhow::Result<()> {
        let mut files = Vec::new();
        let device_dir = self.device_dir();
        for (node, state) in self.plan.nodes.iter().zip(&mut self.state.nodes) {
            match &node.device {
                DevicePlan::File { size } => {
                    let path = device_dir.join(format!("{}.device", node.name));
                    state.is_device_made = !path.exists();
                    state.device = Some(path.clone());
                    files.push(Backing { path, size: *size });
                }
                DevicePlan::Existing { path } => state.device = Some(path.clone()),
                DevicePlan::Memory { .. } => {}
            }
        }
        let mut wanted: Vec<_> = self.state.nodes.iter().map(|node| node.mount.clone()).collect();
        if !files.is_empty() {
            wanted.push(device_dir);
        }
        self.state.directories = wanted
            .iter()
            .flat_map(|path| path.ancestors())
            .filter(|path| !path.exists())
            .map(Path::to_path_buf)
            .collect();
        // Outermost first; what is made twice is harmless.
        self.state.directories.sort();
        self.state.directories.dedup();
        self.state.write(&self.dir)?;
        for path in &wanted {
            make_directories(path)?;
        }
        prepare::prepare(&files, &self.stop, progress)
    }

    /// Where this machine's backing files are made.
    fn device_dir(&self) -> PathBuf {
        let chosen = self.plan.device_dir.clone();
        // Not in the job's directory, which may well be in memory.
        chosen.unwrap_or_else(|| format!("/var/tmp/tsumugi-{}", self.plan.id).into())
    }

    /// Makes network namespaces, if there are to be some.
    pub(crate) fn connect(&mut self) -> anyhow::Result<()> {
        if !self.plan.has_fabric {
            return Ok(());
        }
        let names: Vec<_> = self.plan.nodes.iter().map(|node| node.name.clone()).collect();
        fabric::make(&self.dir.join("netns"), &names, &self.stop)
    }

    /// Starts the metadata service; gives its address.
    pub(crate) fn start_meta(&mut self, deadline: Instant) -> anyhow::Result<SocketAddr> {
        let (Some(plan), Some(state)) = (&self.plan.meta, &mut self.state.meta) else {
            bail!("this machine's plan has no metadata service");
        };
        let (listen, store, secret) =
            (plan.listen.to_string(), self.dir.join("meta"), self.dir.join("secret"));
        let mut arguments: Vec<&OsStr> = vec![
            "meta".as_ref(),
            "--listen".as_ref(),
            listen.as_ref(),
            "--store".as_ref(),
            store.as_ref(),
            "--secret".as_ref(),
            secret.as_ref(),
        ];
        if let Some(namespace) = &state.namespace {
            arguments.extend([OsStr::new("--network-namespace"), namespace.as_ref()]);
        }
        if self.plan.insecure {
            arguments.push("--insecure".as_ref());
        }
        let mut service = Service::start(&self.dir, &self.plan.id, "meta", &arguments)?;
        state.process = Some(service.process);
        self.state.write(&self.dir)?;
        let said = service.wait_for("listening on ", deadline, &self.stop)?;
        self.services.push(service);
        let address: SocketAddr =
            said.parse().with_context(|| format!("{said:?} is not an address"))?;
        if let Some(state) = &mut self.state.meta {
            state.address = Some(address);
        }
        self.state.write(&self.dir)?;
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
            let file = self.write_node_file(index, meta)?;
            let name = &self.plan.nodes[index].name;
            let service =
                Service::start(&self.dir, &self.plan.id, name, &["node".as_ref(), file.as_ref()])?;
            self.state.nodes[index].process = Some(service.process);
            self.state.write(&self.dir)?;
            started.push(service);
        }
        let mut ready = Vec::new();
        for (mut service, state) in started.into_iter().zip(&mut self.state.nodes) {
            let said = service.wait_for("ready mount ", deadline, &self.stop)?;
            self.services.push(service);
            let target = said.rsplit_once(" target ").and_then(|(_, address)| address.parse().ok());
            let Some(target) = target else {
                bail!("{} said {said:?} instead of its mount and target", state.name);
            };
            state.target = Some(target);
            if !mounts::is_mounted(&state.mount) {
                bail!("{} is ready but {} is no mount", state.name, state.mount.display());
            }
            ready.push(ReadyNode { name: state.name.clone(), mount: state.mount.clone(), target });
        }
        self.state.write(&self.dir)?;
        Ok(ready)
    }

    fn write_node_file(&self, index: usize, meta: SocketAddr) -> anyhow::Result<PathBuf> {
        let (node, state) = (&self.plan.nodes[index], &self.state.nodes[index]);
        let size = match node.device {
            DevicePlan::Memory { size } => Some(size),
            DevicePlan::File { .. } | DevicePlan::Existing { .. } => None,
        };
        let file = NodeFile {
            name: &node.name,
            meta,
            secret: &self.dir.join("secret"),
            network_namespace: state.namespace.as_deref(),
            listen: node.listen,
            mount: &state.mount,
            allow_other: may_allow_other(),
            transport: &self.plan.transport,
            poll_us: self.plan.poll_us,
            device: [DeviceEntry { path: state.device.as_deref(), size }],
        };
        let path = self.dir.join(&format!("{}.toml", node.name));
        write_private(&path, &toml::to_string(&file)?)?;
        Ok(path)
    }

    /// Everything is up: from now on only `down` ends it.
    pub(crate) fn finish(&mut self) -> anyhow::Result<()> {
        self.stop.check()?;
        self.state.is_ready = true;
        self.state.write(&self.dir)
    }
}

/// Refuses to listen where strangers could connect.
pub(crate) fn refuse_exposure(plan: &Plan) -> anyhow::Result<()> {
    let nodes = plan.nodes.iter().map(|node: &NodePlan| node.listen);
    let exposed = nodes
        .chain(plan.meta.iter().map(|meta| meta.listen))
        .find(|address| !address.ip().is_loopback());
    match exposed {
        Some(address) if !plan.has_fabric => bail!(
            "{} is beyond loopback. The metadata service asks for the job's secret and targets \
             admit only this job's random host identifiers, but nothing is encrypted, so whoever \
             can listen on that network could read data and take over a host identifier. If only \
             trusted machines are on it, add --insecure",
            address.ip()
        ),
        _ => Ok(()),
    }
}

/// Root may let others in; an ordinary user only if /etc/fuse.conf says so.
fn may_allow_other() -> bool {
    rustix::process::geteuid().is_root()
        || std::fs::read_to_string("/etc/fuse.conf")
            .is_ok_and(|text| text.lines().any(|line| line.trim() == "user_allow_other"))
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
