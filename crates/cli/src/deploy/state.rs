//! The state file of a job: everything that the job has created, or is about to create, on this
//! machine.
//!
//! It is replaced as a whole (written beside, then renamed), so that a reader sees one state or the
//! next, even after a kill. It is not flushed: after a power cut there is nothing left to undo but
//! files, and those are listed in the last state that reached the disk, or are in the job's own
//! directory.

use super::data_fabric::DataFabric;
use super::job::JobDir;
use super::life::Holder;
use super::place;
use super::plan::Plan;
use super::process::{self, Process};
use super::slurm::{SlurmRun, SlurmStep};
use super::users::User;
use anyhow::{Context, bail};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Version of the file's layout.
const VERSION: u32 = 1;
const FILE: &str = "state.json";
/// The copy for the user for whom root created the job. Only that user reads it.
const SHOWN: &str = "shown.json";
/// Longest file.
const BYTES_MAX: u64 = 16 << 20;

/// A job's state on one machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct State {
    /// [`VERSION`].
    pub(crate) version: u32,
    /// The job's name.
    pub(crate) job: String,
    /// The job's identifier, which marks its processes.
    pub(crate) id: String,
    /// The boot from which start times of processes count.
    pub(crate) boot: String,
    /// The PID namespace of its process numbers; 0 if it is not known.
    #[serde(default)]
    pub(crate) pid_namespace: u64,
    /// The `tsumugi up` that creates or created it.
    pub(crate) up: Process,
    /// All nodes were ready.
    pub(crate) is_ready: bool,
    /// Whether backing files stay.
    pub(crate) keep_devices: bool,
    /// The metadata service, if it runs here.
    pub(crate) meta: Option<MetaState>,
    /// The nodes of this machine.
    pub(crate) nodes: Vec<NodeState>,
    /// The job's machines that ssh or srun reaches.
    pub(crate) hosts: Vec<HostState>,
    /// Directories outside the job's own; they are removed if they are empty, last first.
    pub(crate) directories: Vec<PathBuf>,
    /// The job's own directory.
    #[serde(default)]
    pub(crate) dir: PathBuf,
    /// The user for whom root created it.
    #[serde(default)]
    pub(crate) owner: Option<User>,
    /// The fabric that carries data between its nodes.
    #[serde(default)]
    pub(crate) data_fabric: DataFabric,
    /// Whether it asked for FUSE over `io_uring` on this machine.
    #[serde(default)]
    pub(crate) fuse_uring: bool,
    /// The engine that its processes must use, if one is required.
    #[serde(default)]
    pub(crate) engine: Option<String>,
    /// Whether dead processes are restarted.
    #[serde(default)]
    pub(crate) is_kept: bool,
    /// The process that ends the job by its own end.
    #[serde(default)]
    pub(crate) owner_process: Option<Process>,
    /// How long the lease lasts without a renewal.
    #[serde(default)]
    pub(crate) lease_seconds: Option<u64>,
    /// The run of a Slurm job that ends the job by its own end.
    #[serde(default)]
    pub(crate) owner_run: Option<SlurmRun>,
    /// The step that ends the job by its own end.
    #[serde(default)]
    pub(crate) owner_step: Option<SlurmStep>,
    /// The Slurm job that created it, itself or by its prolog.
    #[serde(default)]
    pub(crate) slurm_job: Option<u32>,
    /// The keeper's process.
    #[serde(default)]
    pub(crate) keeper: Option<Process>,
    /// A process is being started, and may run without a record. Files of earlier versions lack
    /// this field.
    #[serde(default = "is_unknown")]
    pub(crate) is_starting: bool,
}

fn is_unknown() -> bool {
    true
}

/// The metadata service.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MetaState {
    /// Its address, once known.
    pub(crate) address: Option<SocketAddr>,
    /// Its process, once started.
    pub(crate) process: Option<Process>,
    /// Network namespace of its sockets.
    pub(crate) namespace: Option<PathBuf>,
    /// Its store, on a disk: alone in a directory, with its life file.
    #[serde(default)]
    pub(crate) store: PathBuf,
}

impl MetaState {
    /// Returns the directory that is removed with the job, unless it is the job's own directory.
    pub(crate) fn directory(&self) -> Option<&Path> {
        let named = |path: &&Path| {
            path.file_name().is_some_and(|name| name.as_encoded_bytes().contains(&b'@'))
        };
        self.store.parent().filter(named)
    }
}

/// A node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NodeState {
    /// Its name.
    pub(crate) name: String,
    /// Its process, once started.
    pub(crate) process: Option<Process>,
    /// Its mount point.
    pub(crate) mount: PathBuf,
    /// Its backing file or device, if it has one.
    pub(crate) device: Option<PathBuf>,
    /// Whether the backing file was created for this job.
    pub(crate) is_device_made: bool,
    /// The temporary name of the backing file, locked while it is written.
    #[serde(default)]
    pub(crate) part: Option<PathBuf>,
    /// The FUSE transport of its mount, once known.
    #[serde(default)]
    pub(crate) transport: Option<String>,
    /// The reason for the transport.
    #[serde(default)]
    pub(crate) transport_reason: Option<String>,
    /// The address of its target, once known.
    pub(crate) target: Option<SocketAddr>,
    /// Network namespace of its sockets.
    pub(crate) namespace: Option<PathBuf>,
}

/// A machine reached by ssh or srun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostState {
    /// Its name for ssh.
    pub(crate) host: String,
    /// Its name in the pool.
    pub(crate) name: String,
    /// The command that reaches it, up to the host's name.
    pub(crate) ssh: Vec<String>,
    /// The program's name or path on that machine.
    pub(crate) binary: String,
    /// The base of the job's directory on that machine, if it was chosen.
    pub(crate) base: Option<PathBuf>,
    /// The Slurm job through which it is reached, instead of ssh.
    #[serde(default)]
    pub(crate) run: Option<SlurmRun>,
    /// Number of machines that one machine reaches directly; each of those reaches some of the
    /// rest.
    #[serde(default = "one_by_one")]
    pub(crate) fan_out: u16,
}

/// Returns the fan-out of earlier versions.
fn one_by_one() -> u16 {
    u16::MAX
}

impl State {
    /// Returns the state of a job that has created nothing yet.
    pub(crate) fn new(dir: &JobDir, id: &str, keep_devices: bool) -> anyhow::Result<State> {
        Ok(State {
            version: VERSION,
            job: dir.job().into(),
            id: id.into(),
            boot: process::boot_id(),
            pid_namespace: process::pid_namespace(),
            up: Process::current().context("cannot find this process in /proc")?,
            is_ready: false,
            keep_devices,
            meta: None,
            nodes: Vec::new(),
            hosts: Vec::new(),
            directories: Vec::new(),
            dir: dir.path().into(),
            owner: None,
            data_fabric: DataFabric::default(),
            fuse_uring: false,
            engine: None,
            is_kept: false,
            owner_process: None,
            lease_seconds: None,
            owner_run: None,
            owner_step: None,
            slurm_job: None,
            keeper: None,
            is_starting: false,
        })
    }

    /// Returns the state for a plan.
    pub(crate) fn of_plan(dir: &JobDir, plan: &Plan) -> anyhow::Result<State> {
        let mut state = State::new(dir, &plan.id, plan.keep_devices)?;
        state.owner.clone_from(&plan.owner);
        state.data_fabric.clone_from(&plan.data_fabric);
        state.fuse_uring = plan.fuse_uring;
        state.engine.clone_from(&plan.engine);
        state.is_kept = plan.is_kept;
        state.owner_process = plan.owner_process;
        state.lease_seconds = plan.lease_seconds;
        state.owner_run.clone_from(&plan.owner_run);
        state.slurm_job = plan.slurm_job;
        let namespace = |name: &str| plan.has_fabric.then(|| dir.join("netns").join(name));
        // The identifier distinguishes it from leftovers of an earlier job of this name.
        let store = plan.device_dir().join(format!("{}@meta-{}", dir.job(), plan.id)).join("store");
        state.meta = plan.meta.as_ref().map(|_| MetaState {
            address: None,
            process: None,
            namespace: namespace("meta"),
            store,
        });
        for node in &plan.nodes {
            state.nodes.push(NodeState {
                name: node.name.clone(),
                process: None,
                mount: node.mount.clone().unwrap_or_else(|| dir.join("mnt").join(&node.name)),
                device: None,
                is_device_made: false,
                part: None,
                transport: None,
                transport_reason: None,
                target: None,
                namespace: namespace(&node.name),
            });
        }
        Ok(state)
    }

    /// Replaces the file, and the copy for the job's user.
    pub(crate) fn write(&self, dir: &JobDir) -> anyhow::Result<()> {
        let text = serde_json::to_vec_pretty(self)?;
        replace(&dir.join(FILE), &text, None)?;
        match &self.owner {
            Some(owner) => replace(&dir.join(SHOWN), &text, Some(owner)),
            None => Ok(()),
        }
    }

    /// Starts a process with `start`, and records it with `keep`. In between the state says that
    /// there may be such a process.
    pub(crate) fn start<T>(
        &mut self,
        dir: &JobDir,
        start: impl FnOnce(&State) -> anyhow::Result<T>,
        keep: impl FnOnce(&mut State, &T),
    ) -> anyhow::Result<T> {
        self.is_starting = true;
        self.write(dir)?;
        let started = start(self)?;
        keep(self, &started);
        self.is_starting = false;
        self.write(dir)?;
        Ok(started)
    }

    /// Reads the file; `None` if there is none.
    pub(crate) fn read(dir: &JobDir) -> anyhow::Result<Option<State>> {
        let state = read_file(&dir.join(FILE))?;
        Ok(state.map(|mut state| {
            // Earlier versions did not record the path.
            if let Some(meta) = state.meta.as_mut().filter(|meta| meta.store.as_os_str().is_empty())
            {
                meta.store = dir.join("meta");
            }
            State { dir: dir.path().into(), ..state }
        }))
    }

    /// Reads the file, or else the copy of a job that root created for this user. Returns whether
    /// it was the file.
    pub(crate) fn read_any(dir: &JobDir) -> anyhow::Result<Option<(State, bool)>> {
        match (State::read(dir), read_file(&dir.join(SHOWN))) {
            (Ok(state), _) => Ok(state.map(|state| (state, true))),
            (Err(_), Ok(Some(shown))) => Ok(Some((shown, false))),
            (Err(error), _) => Err(error),
        }
    }

    /// Returns the duration of the job's lease, if it has one.
    pub(crate) fn lease(&self) -> Option<Duration> {
        self.lease_seconds.map(Duration::from_secs)
    }

    /// Returns the life file of the metadata service.
    pub(crate) fn meta_life(&self) -> PathBuf {
        let store =
            self.meta.as_ref().map_or_else(|| self.dir.join("meta"), |meta| meta.store.clone());
        store.with_added_extension("pid")
    }

    /// Returns the socket at which a node answers about itself.
    pub(crate) fn node_socket(&self, node: &str) -> PathBuf {
        self.dir.join(format!("{node}.sock"))
    }

    /// Returns the socket at which the metadata service answers about itself.
    pub(crate) fn meta_socket(&self) -> PathBuf {
        self.dir.join("meta-service.sock")
    }

    /// Returns the life file of a node.
    pub(crate) fn node_life(&self, node: &NodeState) -> PathBuf {
        self.dir.join(format!("{}.pid", node.name))
    }

    /// Returns the metadata service's process, however it was started.
    pub(crate) fn living_meta(&self) -> Option<Process> {
        let meta = self.meta.as_ref()?;
        Holder::of(&self.meta_life()).process().or_else(|| self.living(meta.process))
    }

    /// Returns a node's process, however it was started.
    pub(crate) fn living_node(&self, node: &NodeState) -> Option<Process> {
        Holder::of(&self.node_life(node)).process().or_else(|| self.living(node.process))
    }

    /// Returns whether a part of the job may still run, on this machine or on others that it
    /// reaches.
    pub(crate) fn is_in_use(&self) -> bool {
        !self.hosts.is_empty()
            || (!self.is_ready && self.living(Some(self.up)).is_some())
            || self.is_seen_alive()
    }

    /// Returns whether a process of the job lives on this machine, or may live because a look at it
    /// failed.
    pub(crate) fn is_seen_alive(&self) -> bool {
        let unknown = |path: PathBuf| Holder::of(&path) != Holder::NoProcess;
        let is_marked = || process::marked(&self.id).map_or(true, |found| !found.is_empty());
        unknown(self.meta_life())
            || self.living_meta().is_some()
            || self
                .nodes
                .iter()
                .any(|node| unknown(self.node_life(node)) || self.living_node(node).is_some())
            || is_marked()
    }

    /// Returns whether the job has living processes in another PID namespace. From here they seem
    /// to be dead.
    pub(crate) fn lives_elsewhere(&self) -> bool {
        let is_held = |path: PathBuf| Holder::of(&path) != Holder::NoProcess;
        let node_lives = || self.nodes.iter().any(|node| is_held(self.node_life(node)));
        self.is_of_another_namespace() && (is_held(self.meta_life()) || node_lives())
    }

    /// Refuses a job that [lives elsewhere](State::lives_elsewhere).
    ///
    /// # Errors
    /// If it does.
    pub(crate) fn refuse_elsewhere(&self) -> anyhow::Result<()> {
        if self.lives_elsewhere() {
            bail!(
                "job {} was started in another PID namespace (a container, or the container's host): run this \
                 command there",
                self.job
            );
        }
        Ok(())
    }

    /// Returns whether the job was started in another PID namespace, in which its process numbers
    /// have their meaning.
    pub(crate) fn is_of_another_namespace(&self) -> bool {
        let unknown = 0;
        ![unknown, process::pid_namespace()].contains(&self.pid_namespace)
            && self.boot == process::boot_id()
    }

    /// Returns all of the job's processes that are found on this machine, except those that build it.
    pub(crate) fn all_living(&self) -> Vec<Process> {
        let mut all: Vec<_> = self.nodes.iter().filter_map(|n| self.living_node(n)).collect();
        all.extend(self.living_meta());
        all.extend(process::marked(&self.id).unwrap_or_default());
        all.sort_by_key(|process| process.pid);
        all.dedup();
        all
    }

    /// Returns a process of the state, if it is still running.
    pub(crate) fn living(&self, process: Option<Process>) -> Option<Process> {
        let has_meaning = self.boot == process::boot_id() && !self.is_of_another_namespace();
        process.filter(|process| has_meaning && process.is_alive())
    }
}

/// Writes a temporary file and renames it. Only the owner can read it.
pub(crate) fn replace(path: &Path, text: &[u8], owner: Option<&User>) -> anyhow::Result<()> {
    let beside = path.with_extension("json.new");
    let result = (|| {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let opened =
            rustix::fs::open(&beside, flags | OFlags::NOFOLLOW, Mode::from_raw_mode(0o600))?;
        let mut file = File::from(opened);
        file.write_all(text)?;
        if let Some(owner) = owner {
            std::os::unix::fs::fchown(&file, Some(owner.uid), Some(owner.gid))?;
        }
        std::fs::rename(&beside, path)
    })();
    result.with_context(|| format!("cannot write {}", path.display()))
}

/// Reads a state from a regular file; `None` if there is none.
pub(crate) fn read_file(path: &Path) -> anyhow::Result<Option<State>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = rustix::fs::open(path, flags, Mode::empty()).map_err(io::Error::from);
    let file = match opened {
        Ok(file) => File::from(file),
        Err(error) if place::is_absent(&error) => return Ok(None),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {}", path.display()));
        }
    };
    let mut text = Vec::new();
    let is_file = file.metadata().is_ok_and(|data| data.is_file());
    file.take(BYTES_MAX)
        .read_to_end(&mut text)
        .with_context(|| format!("cannot read {}", path.display()))?;
    if !is_file {
        bail!("{} is not a file, so it is not a job's state", path.display());
    }
    let state: State = serde_json::from_slice(&text)
        .with_context(|| format!("{} is not a job's state", path.display()))?;
    if state.version != VERSION {
        bail!(
            "{} has version {}, but this program reads version {VERSION}: use the program that \
             wrote it",
            path.display(),
            state.version
        );
    }
    Ok(Some(state))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a written state is read back; a missing file, invalid content and later versions are
    /// distinguished.
    #[test]
    fn state_is_kept() {
        let base = tempfile::tempdir().unwrap();
        let dir = JobDir::new(Some("j"), Some(base.path())).unwrap();
        dir.create().unwrap();
        assert!(State::read(&dir).unwrap().is_none());
        let mut state = State::new(&dir, "0123", true).unwrap();
        state.directories.push("/x".into());
        state.write(&dir).unwrap();
        let read = State::read(&dir).unwrap().unwrap();
        assert_eq!((read.id.as_str(), read.keep_devices), ("0123", true));
        assert_eq!(read.directories, [Path::new("/x")]);
        assert_eq!(read.living(Some(read.up)), Some(state.up));
        state.boot = "another".into();
        assert_eq!(state.living(Some(state.up)), None, "numbers of another boot mean nothing");
        state.version = 99;
        state.write(&dir).unwrap();
        assert!(State::read(&dir).unwrap_err().to_string().contains("version 99"));
        std::fs::write(dir.join(FILE), "{").unwrap();
        assert!(State::read(&dir).is_err());
    }
}
