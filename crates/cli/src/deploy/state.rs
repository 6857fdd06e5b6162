//! The state file of a job: what was made, or was about to be made, on this machine.
//!
//! It is replaced as a whole (written beside, then renamed), so that a reader sees one state or the
//! next, whoever was killed when. It is not flushed: after a power cut there is nothing left to undo
//! but files, and those are named by the last state that reached the disk or are in the job's own
//! directory.

use super::job::JobDir;
use super::plan::Plan;
use super::process::{self, Process};
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Layout of the file.
const VERSION: u32 = 1;
const FILE: &str = "state.json";

/// A job's state on one machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct State {
    /// [`VERSION`].
    pub(crate) version: u32,
    /// The job's name.
    pub(crate) job: String,
    /// The job's identifier, which marks its processes.
    pub(crate) id: String,
    /// The boot that process start times count from.
    pub(crate) boot: String,
    /// The `tsumugi up` that makes or made it.
    pub(crate) up: Process,
    /// All nodes were ready.
    pub(crate) is_ready: bool,
    /// Backing files stay.
    pub(crate) keep_devices: bool,
    /// The metadata service, if it runs here.
    pub(crate) meta: Option<MetaState>,
    /// The nodes of this machine.
    pub(crate) nodes: Vec<NodeState>,
    /// The job's machines that are reached by ssh.
    pub(crate) hosts: Vec<HostState>,
    /// Directories outside of the job's own, removed if they are empty, last first.
    pub(crate) directories: Vec<PathBuf>,
}

/// The metadata service.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MetaState {
    /// Where it listens, once known.
    pub(crate) address: Option<SocketAddr>,
    /// Its process, once started.
    pub(crate) process: Option<Process>,
    /// Network namespace of its sockets.
    pub(crate) namespace: Option<PathBuf>,
}

/// A node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NodeState {
    /// Its name.
    pub(crate) name: String,
    /// Its process, once started.
    pub(crate) process: Option<Process>,
    /// Where it mounts.
    pub(crate) mount: PathBuf,
    /// Its backing file or device, if it has one.
    pub(crate) device: Option<PathBuf>,
    /// The backing file was made for this job.
    pub(crate) is_device_made: bool,
    /// Where its target listens, once known.
    pub(crate) target: Option<SocketAddr>,
    /// Network namespace of its sockets.
    pub(crate) namespace: Option<PathBuf>,
}

/// A machine reached by ssh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostState {
    /// What ssh calls it.
    pub(crate) host: String,
    /// What the pool calls it.
    pub(crate) name: String,
    /// The command that reaches it, up to the host's name.
    pub(crate) ssh: Vec<String>,
    /// The program there.
    pub(crate) binary: String,
    /// The base of the job's directory there, if it was chosen.
    pub(crate) base: Option<PathBuf>,
}

impl State {
    /// Of a job that has nothing yet.
    pub(crate) fn new(dir: &JobDir, id: &str, keep_devices: bool) -> anyhow::Result<State> {
        Ok(State {
            version: VERSION,
            job: dir.job().into(),
            id: id.into(),
            boot: process::boot_id(),
            up: Process::current().context("cannot find this process in /proc")?,
            is_ready: false,
            keep_devices,
            meta: None,
            nodes: Vec::new(),
            hosts: Vec::new(),
            directories: Vec::new(),
        })
    }

    /// As the plan wants it.
    pub(crate) fn of_plan(dir: &JobDir, plan: &Plan) -> anyhow::Result<State> {
        let mut state = State::new(dir, &plan.id, plan.keep_devices)?;
        let namespace = |name: &str| plan.has_fabric.then(|| dir.join("netns").join(name));
        state.meta = plan.meta.as_ref().map(|_| MetaState {
            address: None,
            process: None,
            namespace: namespace("meta"),
        });
        for node in &plan.nodes {
            state.nodes.push(NodeState {
                name: node.name.clone(),
                process: None,
                mount: node.mount.clone().unwrap_or_else(|| dir.join("mnt").join(&node.name)),
                device: None,
                is_device_made: false,
                target: None,
                namespace: namespace(&node.name),
            });
        }
        Ok(state)
    }

    /// Replaces the file.
    pub(crate) fn write(&self, dir: &JobDir) -> anyhow::Result<()> {
        let path = dir.join(FILE);
        let beside = dir.join("state.json.new");
        let text = serde_json::to_vec_pretty(self)?;
        std::fs::write(&beside, text)
            .and_then(|()| std::fs::rename(&beside, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Reads the file; `None` if there is none.
    pub(crate) fn read(dir: &JobDir) -> anyhow::Result<Option<State>> {
        let path = dir.join(FILE);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        let state: State = serde_json::from_slice(&text)
            .with_context(|| format!("{} is not a job's state", path.display()))?;
        if state.version != VERSION {
            bail!(
                "{} has version {}, this program knows {VERSION}: use the program that made it",
                path.display(),
                state.version
            );
        }
        Ok(Some(state))
    }

    /// A process of the state, if it still runs.
    pub(crate) fn living(&self, process: Option<Process>) -> Option<Process> {
        process.filter(|process| self.boot == process::boot_id() && process.is_alive())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Goal: what is written is read; nothing, rubbish and later versions are told apart.
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
