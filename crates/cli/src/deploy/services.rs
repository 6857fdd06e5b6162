//! Starting a job's metadata service and nodes, by `up` and again by `restart`.

use super::job::JobDir;
use super::life::Holder;
use super::mounts::{self, Condition};
use super::service::Service;
use super::state::State;
use super::stop::Stop;
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long a mount may take to answer after its node is ready.
const MOUNT_WITHIN: Duration = Duration::from_secs(10);

/// A ready node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ReadyNode {
    /// Its name.
    pub(crate) name: String,
    /// Its mount point.
    pub(crate) mount: PathBuf,
    /// The address of its target.
    pub(crate) target: SocketAddr,
    /// The FUSE transport of its mount.
    #[serde(default)]
    pub(crate) transport: Option<String>,
}

/// Starts the metadata service and records its process.
pub(crate) fn start_meta(
    dir: &JobDir,
    state: &mut State,
    listen: SocketAddr,
) -> anyhow::Result<Service> {
    let socket = state.meta_socket();
    let Some(meta) = &state.meta else { bail!("the metadata service runs elsewhere") };
    let mut arguments: Vec<OsString> = vec!["meta".into()];
    let mut option = |name: &str, value: &OsStr| {
        arguments.extend([OsString::from(name), value.to_owned()]);
    };
    option("--listen", listen.to_string().as_ref());
    option("--store", meta.store.as_ref());
    option("--secret", dir.join("secret").as_ref());
    option("--socket", socket.as_ref());
    if let Some(namespace) = &meta.namespace {
        option("--network-namespace", namespace.as_ref());
    }
    if let Some(owner) = &state.owner {
        option("--owner", format!("{}:{}", owner.uid, owner.gid).as_ref());
    }
    let arguments: Vec<&OsStr> = arguments.iter().map(OsString::as_os_str).collect();
    state.start(
        dir,
        |state| Service::start(dir, &state.id, state.engine.as_deref(), "meta", &arguments),
        |state, service| {
            state.meta.iter_mut().for_each(|meta| meta.process = Some(service.process));
        },
    )
}

/// Waits until the metadata service listens. Records and returns its address.
pub(crate) fn await_meta(
    service: &mut Service,
    dir: &JobDir,
    state: &mut State,
    deadline: Instant,
    stop: &Stop,
) -> anyhow::Result<SocketAddr> {
    let printed = service.wait_for("listening on ", deadline, stop)?;
    let address: SocketAddr =
        printed.parse().with_context(|| format!("{printed:?} is not an address"))?;
    if let Some(meta) = &mut state.meta {
        meta.address = Some(address);
    }
    state.write(dir)?;
    Ok(address)
}

/// Starts a node with its existing configuration, and records its process.
pub(crate) fn start_node(dir: &JobDir, state: &mut State, index: usize) -> anyhow::Result<Service> {
    let name = state.nodes[index].name.clone();
    let file = dir.join(&format!("{name}.toml"));
    state.start(
        dir,
        |state| {
            let (engine, arguments) = (state.engine.as_deref(), ["node".as_ref(), file.as_ref()]);
            Service::start(dir, &state.id, engine, &name, &arguments)
        },
        |state, service| state.nodes[index].process = Some(service.process),
    )
}

/// Waits until a node is ready and its mount answers; the caller writes the state.
pub(crate) fn await_node(
    service: &mut Service,
    state: &mut State,
    index: usize,
    deadline: Instant,
    stop: &Stop,
) -> anyhow::Result<ReadyNode> {
    let printed = service.wait_for("ready mount ", deadline, stop)?;
    let life = Holder::of(&state.node_life(&state.nodes[index]));
    let node = &mut state.nodes[index];
    let target = printed.rsplit_once(" target ").and_then(|(_, address)| address.parse().ok());
    let Some(target) = target else {
        bail!("{} printed {printed:?} instead of its mount and target", node.name);
    };
    node.target = Some(target);
    let left = deadline.saturating_duration_since(Instant::now());
    match mounts::condition(&node.mount, left.clamp(Duration::from_secs(1), MOUNT_WITHIN)) {
        Condition::Mounted => {}
        Condition::NotMounted | Condition::Unknown => {
            bail!("{} is ready but {} is not a mount", node.name, node.mount.display());
        }
        Condition::Dead | Condition::Silent => {
            bail!("{} is ready but its mount {} does not answer", node.name, node.mount.display());
        }
    }
    if let Holder::Service(life) = life {
        node.transport = life.transport;
        node.transport_reason = life.transport_reason;
    }
    Ok(ReadyNode {
        name: node.name.clone(),
        mount: node.mount.clone(),
        target,
        transport: node.transport.clone(),
    })
}
