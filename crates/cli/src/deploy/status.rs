//! The output of `tsumugi status --json`. New versions only add fields.

use super::admin::{self, FileHit};
use super::data_fabric::{self, DataFabric};
use super::job::JobDir;
use super::keeper::KeeperRecord;
use super::lease;
use super::life::Holder;
use super::mounts::{self, Condition};
use super::state::State;
use crate::deploy::ask;
use crate::deploy::scrub_record::ScrubRecord;
use crate::print::words;
use anyhow::bail;
use metrics::Snapshot;
use protocol::admin::Answer;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How long a mount may take to answer.
const MOUNT_WITHIN: Duration = Duration::from_secs(2);

/// The state of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Life {
    /// Its machine does not answer, or the process is out of sight.
    #[default]
    Unreachable,
    /// It was never started.
    NotStarted,
    /// It is running.
    Running,
    /// It was started and has ended.
    Dead,
}

impl Life {
    /// Returns the state of a process; `pid` if it was ever started.
    fn new(state: &State, pid: Option<i32>, is_alive: bool) -> Life {
        match (is_alive, pid) {
            (true, _) => Life::Running,
            (false, Some(_)) if state.is_of_another_namespace() => Life::Unreachable,
            (false, Some(_)) => Life::Dead,
            (false, None) => Life::NotStarted,
        }
    }
}

/// A job's state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Status {
    /// Its name.
    pub(crate) job: String,
    /// Its directory on this machine.
    pub(crate) dir: PathBuf,
    /// Whether `tsumugi up` has finished.
    pub(crate) ready: bool,
    /// The metadata service, if it is known here.
    pub(crate) meta: Option<MetaStatus>,
    /// The user for whom root created it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<String>,
    /// Parts that this user cannot see, with the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
    /// Why the metadata service's part below is missing, if it is.
    pub(crate) trouble: Option<String>,
    /// The fabric that carries data between nodes, with the reason for it.
    #[serde(default)]
    pub(crate) fabric: DataFabric,
    /// Nodes.
    pub(crate) nodes: Vec<NodeStatus>,
    /// The keeper of the job on this machine, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) keeper: Option<KeeperStatus>,
    /// The last scrub, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) scrub: Option<ScrubStatus>,
    /// Devices, with the targets' own counts since their start.
    pub(crate) devices: Vec<DeviceStatus>,
    /// Sessions.
    pub(crate) sessions: Vec<SessionStatus>,
    /// Space of the pool.
    pub(crate) space: Option<Space>,
    /// Files with data on offline devices (at most 1000).
    pub(crate) files_hit: Vec<FileHit>,
    /// Why files may be missing there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) files_hit_trouble: Option<String>,
}

/// A scrub, in progress or ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ScrubStatus {
    /// Whether it is running.
    pub(crate) running: bool,
    /// Its progress and findings.
    #[serde(flatten)]
    pub(crate) record: ScrubRecord,
}

/// The keeper of a job on a machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct KeeperStatus {
    /// Its process.
    pub(crate) pid: i32,
    /// Whether it is running.
    pub(crate) alive: bool,
    /// Whether it restarts dead processes.
    pub(crate) restarts_dead: bool,
    /// The process that ends the job by its own end.
    pub(crate) owner_pid: Option<i32>,
    /// The Slurm job that ends the job by its own end, or by the end of its step.
    #[serde(default)]
    pub(crate) owner_slurm_job: Option<u32>,
    /// Seconds until the lease lapses without a renewal.
    pub(crate) lease_left_seconds: Option<u64>,
    /// The restarts, and the parts that died too often and stay dead.
    #[serde(flatten)]
    pub(crate) record: KeeperRecord,
}

/// The metadata service.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MetaStatus {
    /// Its process.
    pub(crate) pid: Option<i32>,
    /// Whether it is running.
    pub(crate) alive: bool,
    /// The same in more detail.
    #[serde(default)]
    pub(crate) state: Life,
    /// Its address.
    pub(crate) address: Option<SocketAddr>,
    /// The engine of its reactors: `io_uring` or `epoll`.
    #[serde(default)]
    pub(crate) engine: Option<String>,
    /// The reason for the engine.
    #[serde(default)]
    pub(crate) engine_reason: Option<String>,
    /// Network namespace of its sockets.
    pub(crate) namespace: Option<PathBuf>,
    /// Its store.
    #[serde(default)]
    pub(crate) store: PathBuf,
    /// Calls answered since its start.
    pub(crate) calls: u64,
    /// Recalls and invalidations sent.
    pub(crate) recalls: u64,
    /// Store transactions committed.
    pub(crate) transactions: u64,
    /// Store syncs.
    pub(crate) syncs: u64,
    /// Sessions fenced.
    pub(crate) fenced: u64,
    /// Its counters and activity, if they were requested and it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) activity: Option<Snapshot>,
}

/// A node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct NodeStatus {
    /// Its name.
    pub(crate) name: String,
    /// Its machine's name for ssh; absent for this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) host: Option<String>,
    /// Its process.
    pub(crate) pid: Option<i32>,
    /// Whether it is running.
    pub(crate) alive: bool,
    /// The same in more detail.
    #[serde(default)]
    pub(crate) state: Life,
    /// Its mount point.
    pub(crate) mount: PathBuf,
    /// Whether a FUSE file system is mounted there and answers.
    pub(crate) mounted: bool,
    /// The same in more detail.
    #[serde(default)]
    pub(crate) mount_state: Condition,
    /// The FUSE transport of the mount: `device` or `io_uring`.
    #[serde(default)]
    pub(crate) transport: Option<String>,
    /// The reason for the transport.
    #[serde(default)]
    pub(crate) transport_reason: Option<String>,
    /// The engine of its reactors: `io_uring` or `epoll`.
    #[serde(default)]
    pub(crate) engine: Option<String>,
    /// The reason for the engine.
    #[serde(default)]
    pub(crate) engine_reason: Option<String>,
    /// The address of its target.
    pub(crate) target: Option<SocketAddr>,
    /// Network namespace of its sockets.
    pub(crate) namespace: Option<PathBuf>,
    /// Its backing file or device.
    pub(crate) device: Option<PathBuf>,
    /// Its counters and activity, if they were requested and it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) activity: Option<Snapshot>,
}

/// A device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DeviceStatus {
    /// Its number.
    pub(crate) device: u32,
    /// Its node.
    pub(crate) node: String,
    /// Its UUID.
    pub(crate) uuid: String,
    /// Address and port of its target.
    pub(crate) address: String,
    /// The transport of connections to its target: `tcp` or `rdma`.
    #[serde(default)]
    pub(crate) transport: data_fabric::Kind,
    /// NQN of its subsystem.
    pub(crate) subnqn: String,
    /// Its namespace identifier there.
    pub(crate) nsid: u32,
    /// Its size.
    pub(crate) size_bytes: u64,
    /// Its block size.
    pub(crate) block_size_bytes: u32,
    /// Whether its target is in contact with the metadata service.
    pub(crate) online: bool,
    /// Whether its target accepts data only under TLS; not known while it is offline.
    #[serde(default)]
    pub(crate) encrypted: Option<bool>,
    /// Bytes that its own node has read.
    pub(crate) read_local_bytes: u64,
    /// Bytes that others have read over the network.
    pub(crate) read_remote_bytes: u64,
    /// Bytes that its own node has written.
    pub(crate) written_local_bytes: u64,
    /// Bytes that others have written over the network.
    pub(crate) written_remote_bytes: u64,
    /// Number of commands of all kinds.
    pub(crate) commands: u64,
    /// Number of refused commands, whose host was not admitted.
    pub(crate) refused: u64,
}

/// A session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SessionStatus {
    /// Its number.
    pub(crate) session: u64,
    /// The node of its client.
    pub(crate) node: String,
    /// Time since its last heartbeat.
    pub(crate) silent_ms: u64,
}

/// Space of the pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Space {
    /// Bytes of all devices.
    pub(crate) total_bytes: u64,
    /// Bytes that are free, reserved or dead.
    pub(crate) free_bytes: u64,
    /// Bytes of blocks with data of files.
    #[serde(default)]
    pub(crate) live_bytes: u64,
    /// Bytes of blocks without data, which rest until no reader uses them.
    #[serde(default)]
    pub(crate) dead_bytes: u64,
    /// Bytes set aside for writers.
    #[serde(default)]
    pub(crate) reserved_bytes: u64,
    /// Number of inodes in use.
    pub(crate) inodes: u64,
}

impl Status {
    /// Returns whether everything lives and answers.
    pub(crate) fn is_well(&self) -> bool {
        self.ready
            && self.trouble.is_none()
            && self.meta.as_ref().is_none_or(|meta| meta.alive)
            && self.nodes.iter().all(|node| node.alive && node.mounted)
            && self.devices.iter().all(|device| device.online)
    }

    /// Returns the state of this machine's part of the job.
    pub(crate) fn of_machine(dir: &JobDir) -> anyhow::Result<Status> {
        let Some((state, is_own)) = State::read_any(dir)? else {
            bail!("there is no job {} ({})", dir.job(), dir.path().display());
        };
        let mut status = Status {
            job: state.job.clone(),
            dir: dir.path().into(),
            ready: state.is_ready,
            meta: None,
            owner: state.owner.as_ref().map(|owner| owner.name.clone()),
            note: state.is_of_another_namespace().then(|| {
                "the job's processes are in another PID namespace (a container, or the container's host) and \
                 cannot be seen from here"
                    .into()
            }),
            trouble: None,
            fabric: state.data_fabric.clone(),
            nodes: nodes(&state),
            keeper: if is_own { keeper(dir, &state)? } else { None },
            scrub: if is_own { scrub(dir) } else { None },
            devices: Vec::new(),
            sessions: Vec::new(),
            space: None,
            files_hit: Vec::new(),
            files_hit_trouble: None,
        };
        if let Some(meta) = &state.meta {
            let living = state.living_meta();
            let pid = living.or(meta.process).map(|process| process.pid);
            let report = Holder::of(&state.meta_life()).report();
            status.meta = Some(MetaStatus {
                engine: report.as_ref().and_then(|life| life.engine.clone()),
                engine_reason: report.and_then(|life| life.engine_reason),
                pid,
                alive: living.is_some(),
                state: Life::new(&state, pid, living.is_some()),
                address: meta.address,
                namespace: meta.namespace.clone(),
                store: meta.store.clone(),
                calls: 0,
                recalls: 0,
                transactions: 0,
                syncs: 0,
                fenced: 0,
                activity: living.and_then(|_| ask::snapshot(&state.meta_socket())),
            });
            if !is_own {
                status.note = Some("devices and sessions are shown to root only".into());
                status.ask_mounts();
                return Ok(status);
            }
            match admin::ask(meta, &dir.join("secret")) {
                Ok(pool) => status.fill(pool),
                Err(error) => {
                    status.trouble =
                        Some(format!("no answer from the metadata service: {}", words(&error)));
                }
            }
        }
        Ok(status)
    }

    /// Adds the mounts' own answers.
    fn ask_mounts(&mut self) {
        let mounted = self.nodes.iter().find(|node| node.mounted);
        let answer = mounted.and_then(|node| rustix::fs::statvfs(&node.mount).ok());
        self.space = answer.map(|answer| Space {
            total_bytes: answer.f_blocks * answer.f_frsize,
            free_bytes: answer.f_bfree * answer.f_frsize,
            live_bytes: answer.f_blocks.saturating_sub(answer.f_bfree) * answer.f_frsize,
            dead_bytes: 0,
            reserved_bytes: 0,
            inodes: answer.f_files.saturating_sub(answer.f_ffree),
        });
    }

    fn fill(&mut self, pool: admin::Pool) {
        let Answer::Status { devices, plain, counts, sessions, pool_use, meta } = pool.status
        else {
            self.trouble = Some("the metadata service does not report its state".into());
            return;
        };
        for info in devices {
            let counts = counts.iter().find(|counts| counts.device == info.device);
            let counts = counts.copied().unwrap_or_default();
            self.devices.push(DeviceStatus {
                encrypted: info.online.then(|| !plain.contains(&info.device)),
                device: info.device.0,
                node: info.node,
                uuid: info.uuid.to_string(),
                transport: info.address.transport.into(),
                address: info.address.traddr,
                subnqn: info.address.subnqn,
                nsid: info.address.nsid,
                size_bytes: info.blocks * u64::from(info.block_size),
                block_size_bytes: info.block_size,
                online: info.online,
                read_local_bytes: counts.read_local_bytes,
                read_remote_bytes: counts.read_remote_bytes,
                written_local_bytes: counts.written_local_bytes,
                written_remote_bytes: counts.written_remote_bytes,
                commands: counts.commands,
                refused: counts.refused,
            });
        }
        self.sessions.extend(sessions.into_iter().map(|session| SessionStatus {
            session: session.session.0,
            node: session.node,
            silent_ms: session.silent_ms,
        }));
        self.space = Some(Space {
            total_bytes: pool_use.total_bytes,
            free_bytes: pool_use.free_bytes,
            live_bytes: pool_use.total_bytes.saturating_sub(pool_use.free_bytes),
            dead_bytes: pool_use.dead_bytes,
            reserved_bytes: pool_use.reserved_bytes,
            inodes: pool_use.inodes,
        });
        (self.files_hit, self.files_hit_trouble) = (pool.files_hit, pool.files_hit_trouble);
        if let Some(own) = &mut self.meta {
            own.calls = meta.calls;
            own.recalls = meta.recalls;
            own.transactions = meta.transactions;
            own.syncs = meta.syncs;
            own.fenced = meta.fenced;
        }
    }
}

impl NodeStatus {
    /// Returns the state of a node on a machine that does not answer.
    pub(crate) fn unknown(name: &str, host: &str) -> NodeStatus {
        NodeStatus {
            name: name.into(),
            host: Some(host.into()),
            pid: None,
            alive: false,
            state: Life::Unreachable,
            mount: PathBuf::new(),
            mounted: false,
            mount_state: Condition::Unknown,
            transport: None,
            transport_reason: None,
            engine: None,
            engine_reason: None,
            target: None,
            namespace: None,
            device: None,
            activity: None,
        }
    }
}

/// Returns the record of a scrub, if it can be read: a broken one must not hide the state of the
/// job.
fn scrub(dir: &JobDir) -> Option<ScrubStatus> {
    let record = ScrubRecord::read(dir).ok().flatten()?;
    Some(ScrubStatus { running: record.is_running(), record })
}

fn keeper(dir: &JobDir, state: &State) -> anyhow::Result<Option<KeeperStatus>> {
    let Some(process) = state.keeper.filter(|_| !state.is_of_another_namespace()) else {
        return Ok(None);
    };
    let lease_left = if state.lease().is_some() { lease::left(dir)? } else { None };
    let run = state.owner_run.as_ref().map(|run| run.job);
    let step = state.owner_step.as_ref().map(|step| step.job);
    Ok(Some(KeeperStatus {
        pid: process.pid,
        alive: state.living(Some(process)).is_some(),
        restarts_dead: state.is_kept,
        owner_pid: state.owner_process.map(|owner| owner.pid),
        owner_slurm_job: run.or(step),
        lease_left_seconds: lease_left.map(|left| left.as_secs()),
        record: KeeperRecord::read(dir)?,
    }))
}

fn nodes(state: &State) -> Vec<NodeStatus> {
    let mut nodes = Vec::new();
    for node in &state.nodes {
        let living = state.living_node(node);
        let pid = living.or(node.process).map(|process| process.pid);
        let mount_state = mounts::condition(&node.mount, MOUNT_WITHIN);
        // The life file of a node that a user restarted by hand is newer than the state.
        let report = Holder::of(&state.node_life(node)).report();
        let transport = report.as_ref().and_then(|life| life.transport.clone());
        let reason = report.as_ref().and_then(|life| life.transport_reason.clone());
        nodes.push(NodeStatus {
            name: node.name.clone(),
            host: None,
            pid,
            alive: living.is_some(),
            state: Life::new(state, pid, living.is_some()),
            mount: node.mount.clone(),
            mounted: mount_state == Condition::Mounted,
            mount_state,
            transport: transport.or_else(|| node.transport.clone()),
            transport_reason: reason.or_else(|| node.transport_reason.clone()),
            engine: report.as_ref().and_then(|life| life.engine.clone()),
            engine_reason: report.as_ref().and_then(|life| life.engine_reason.clone()),
            target: report.and_then(|life| life.address).or(node.target),
            namespace: node.namespace.clone(),
            device: node.device.clone(),
            activity: living.and_then(|_| ask::snapshot(&state.node_socket(&node.name))),
        });
    }
    nodes
}
