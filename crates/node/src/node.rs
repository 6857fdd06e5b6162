//! The lifecycle of a node.

use crate::agent::{Agent, AgentConfig};
use crate::config::{Fabric, NodeConfig};
use crate::devices::{NodeDevice, namespace, open_devices};
use crate::error::NodeError;
use crate::local::Local;
use crate::mounting::{Mounting, Progress, Served, Unmounted};
use fuse::Mounter;
use metrics::Value;
use nvme::Nqn;
use protocol::agent::Demand;
use protocol::space::{DeviceAddress, DeviceInfo, Transport};
use protocol::{DeviceId, Incarnation};
use reactor::{Either, Either3, SocketOptions, mailbox};
use rpc::Credential;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;
use target::{
    AdmissionMode, Admissions, HostAccess, Limits, Namespace, Server, ServerOptions, Subsystem,
    Target,
};

/// How long to wait for an address that a killed predecessor still holds.
const PORT_PATIENCE: Duration = Duration::from_secs(5);

/// A node's configuration and credential.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its configuration.
    pub config: NodeConfig,
    /// The credential.
    pub credential: Credential,
    /// The process that mounts, if this process is confined and cannot.
    pub mounter: Option<Arc<Mounter>>,
}

/// A node that is up.
#[derive(Clone, Debug)]
pub struct Ready {
    /// Address on which the target listens.
    pub target: SocketAddr,
    /// NQN of the node's subsystem.
    pub subnqn: String,
    /// The mount point, if the node mounts. The mount answers by now.
    pub mount: Option<PathBuf>,
    /// The transport of the mount's requests, and the reason for it.
    pub transport: Option<(fuse::Transport, String)>,
}

/// The node's target with its namespaces and admissions.
#[derive(Debug)]
pub struct Exports {
    pub(crate) server: Server,
    address: SocketAddr,
    admissions: Arc<Admissions>,
    pub(crate) demand: Demand,
    namespaces: Vec<Arc<Namespace>>,
    pub(crate) infos: Vec<DeviceInfo>,
    subnqn: String,
}

/// Runs a node with existing devices until `shutdown` completes or the file system is unmounted
/// from outside. Then ends everything in order: mount, session, target. Needs a running reactor.
///
/// # Errors
/// Any [`NodeError`]; everything that was started is ended.
pub async fn run(
    node: &Node,
    ready: impl FnOnce(&Ready),
    shutdown: impl Future<Output = ()>,
) -> Result<(), NodeError> {
    let devices = open_devices(&node.config).await?;
    let exports = Exports::start(&node.config, &devices).await?;
    exports.show_counts();
    let result = serve(node, &exports, ready, shutdown).await;
    let flushed = exports.server.shutdown().await;
    result?;
    let path = || node.config.name.clone().into();
    flushed.map_err(|source| NodeError::Device { path: path(), source })
}

fn sockets(config: &NodeConfig) -> SocketOptions {
    let network_namespace = config.network_namespace.clone();
    SocketOptions { network_namespace, ..SocketOptions::default() }
}

impl Exports {
    /// Starts the target on these devices. It admits no host yet.
    ///
    /// # Errors
    /// [`NodeError::Target`].
    pub async fn start(config: &NodeConfig, devices: &[NodeDevice]) -> Result<Exports, NodeError> {
        let admissions = Admissions::new(AdmissionMode::Controlled);
        let target = Target::new(Limits::default(), Arc::clone(&admissions))?;
        let demand = config.demand();
        match demand {
            Demand::Identifier => {}
            Demand::Tls => target.require_admission_keys()?,
            Demand::Proof => target.require_admission_proofs()?,
        }
        let mut identity = [0; 16];
        reactor::random::fill(&mut identity);
        let identity = uuid::Builder::from_random_bytes(identity).into_uuid();
        let nqn = Nqn::from_uuid(*identity.as_bytes());
        let serial = &identity.simple().to_string()[..20];
        let subsystem = Subsystem::new(nqn.clone(), serial, "Tsumugi node", HostAccess::Any);
        let subsystem = target.add_subsystem(subsystem)?;
        let mut namespaces = Vec::new();
        for (index, device) in devices.iter().enumerate() {
            namespaces.push(subsystem.add_namespace(namespace(index, device))?);
        }
        let (listen, listen_rdma) = match config.fabric {
            Fabric::Tcp => (vec![config.listen], Vec::new()),
            Fabric::Rdma => (Vec::new(), vec![config.listen]),
        };
        let options = ServerOptions {
            listen,
            listen_rdma,
            socket: sockets(config),
            ..ServerOptions::default()
        };
        let server = Server::start_patiently(&target, &options, PORT_PATIENCE).await?;
        let (address, transport) = match config.fabric {
            Fabric::Tcp => (server.addresses()[0], Transport::Tcp),
            Fabric::Rdma => (server.rdma_addresses()[0], Transport::Rdma),
        };
        let traddr = address.to_string();
        let subnqn = nqn.to_string();
        let infos = devices.iter().zip(&namespaces).map(|(device, namespace)| DeviceInfo {
            device: DeviceId(0),
            uuid: device.uuid,
            node: config.name.clone(),
            address: DeviceAddress {
                traddr: traddr.clone(),
                subnqn: subnqn.clone(),
                nsid: namespace.nsid().0,
                transport,
            },
            block_size: 1 << namespace.block_shift(),
            blocks: namespace.blocks(),
            incarnation: Incarnation(device.incarnation.0),
            is_volatile: device.is_volatile,
            online: true,
        });
        let infos = infos.collect();
        Ok(Exports { server, address, admissions, demand, namespaces, infos, subnqn })
    }

    /// Registers the devices with the metadata service. A task keeps in contact for ever.
    ///
    /// # Errors
    /// [`NodeError::Agent`] if the service does not accept them, or is out of reach.
    pub async fn join(
        &self,
        config: &NodeConfig,
        credential: &Credential,
    ) -> Result<reactor::JoinHandle<()>, NodeError> {
        let agent_config = AgentConfig {
            meta: config.meta,
            sockets: sockets(config),
            credential: credential.clone(),
            times: config.times(),
            node: config.name.clone(),
            devices: self.infos.clone(),
            namespaces: self.namespaces.clone(),
            admissions: Arc::clone(&self.admissions),
            demand: self.demand,
        };
        let (agent, connection) = Agent::start(agent_config).await.map_err(NodeError::Agent)?;
        Ok(reactor::spawn(agent.keep(connection)))
    }

    /// Returns the access without a socket for clients in this process.
    pub fn local(&self) -> Local {
        let uuids = self.infos.iter().map(|info| info.uuid);
        Local {
            admissions: Arc::clone(&self.admissions),
            namespaces: uuids.zip(self.namespaces.iter().cloned()).collect(),
        }
    }

    /// Adds the counts of the namespaces to this process's metrics.
    fn show_counts(&self) {
        let namespaces: Vec<_> = self.namespaces.iter().map(Arc::downgrade).collect();
        metrics::add_source(Box::new(move || {
            let living = namespaces.iter().filter_map(Weak::upgrade);
            living.flat_map(|namespace| values(&namespace)).collect()
        }));
    }

    /// Returns the namespaces, with their counts, in the order of the devices.
    pub fn namespaces(&self) -> &[Arc<Namespace>] {
        &self.namespaces
    }
}

fn values(namespace: &Namespace) -> Vec<Value> {
    let counts = namespace.counts();
    let nsid = namespace.nsid().to_string();
    let help = "Bytes of the node's own devices, by its own node or by others over the network";
    let bytes = |access: &str, way: &str, value| {
        let value = Value::counter("device_bytes", help, value);
        value.with("namespace", &nsid).with("access", access).with("way", way)
    };
    vec![
        bytes("read", "local", counts.read_local_bytes),
        bytes("read", "remote", counts.read_remote_bytes),
        bytes("write", "local", counts.written_local_bytes),
        bytes("write", "remote", counts.written_remote_bytes),
        Value::counter("device_commands", "Commands of the node's own devices", counts.commands)
            .with("namespace", &nsid),
        Value::counter("device_refused", "Commands of hosts that are not admitted", counts.refused)
            .with("namespace", &nsid),
    ]
}

async fn serve(
    node: &Node,
    exports: &Exports,
    ready: impl FnOnce(&Ready),
    shutdown: impl Future<Output = ()>,
) -> Result<(), NodeError> {
    let config = &node.config;
    let agent = exports.join(config, &node.credential).await?;
    let up = Ready {
        target: exports.address,
        subnqn: exports.subnqn.clone(),
        mount: config.mount.clone(),
        transport: None,
    };
    let result = match &config.mount {
        None => {
            ready(&up);
            shutdown.await;
            Ok(())
        }
        Some(mountpoint) => {
            let mounting = mounting(node, mountpoint, exports);
            let ready = |transport| ready(&Ready { transport: Some(transport), ..up });
            serve_mount(mounting, ready, shutdown).await
        }
    };
    agent.abort();
    result
}

fn mounting(node: &Node, mountpoint: &Path, exports: &Exports) -> Mounting {
    Mounting {
        config: node.config.clone(),
        mountpoint: mountpoint.to_owned(),
        mounter: node.mounter.clone(),
        credential: node.credential.clone(),
        local: exports.local(),
    }
}

async fn serve_mount(
    mounting: Mounting,
    ready: impl FnOnce((fuse::Transport, String)),
    shutdown: impl Future<Output = ()>,
) -> Result<(), NodeError> {
    let (sender, mut receiver) = mailbox::channel(4);
    let mountpoint = mounting.mountpoint.clone();
    let mut thread = mounting.start(sender)?;
    let served = match receiver.recv().await {
        Some(Progress::Mounted(served)) => served,
        Some(Progress::Failed(error)) => return Err(NodeError::Mount(error)),
        None => return Err(NodeError::Mount("its thread has ended".into())),
    };
    let mut shutdown = pin!(shutdown);
    let answers = probe(mountpoint)?;
    let ended = match reactor::race3(answers, &mut thread, shutdown.as_mut()).await {
        Either3::First(answer) => {
            if let Err(error) = answer.unwrap_or_else(|_| Err("the thread panicked".into())) {
                // The reason why it does not answer is more useful than how it ended.
                let _ = end_mount(&served, thread).await;
                return Err(NodeError::Mount(error));
            }
            ready((served.agreed.transport, served.agreed.transport_reason.clone()));
            match reactor::race(shutdown, &mut thread).await {
                // The file system was unmounted from outside.
                Either::Second(ended) => ended,
                Either::First(()) => end_mount(&served, thread).await?,
            }
        }
        Either3::Second(ended) => ended,
        Either3::Third(()) => end_mount(&served, thread).await?,
    };
    if let Ok(Progress::Failed(error)) = receiver.try_recv() {
        return Err(NodeError::Mount(error));
    }
    ended.map_err(|_| NodeError::Mount("its thread has panicked".into()))
}

/// Asks the mount for its root's attributes, on a thread that may wait for it.
fn probe(
    mountpoint: PathBuf,
) -> Result<reactor::thread::JoinHandle<Result<(), String>>, NodeError> {
    let ask = move || async move {
        std::fs::metadata(&mountpoint).map(drop).map_err(|error| {
            format!("{} is mounted but does not answer: {error}", mountpoint.display())
        })
    };
    reactor::thread::spawn("probe", &reactor::Config::default(), ask).map_err(NodeError::Thread)
}

/// Unmounts, and waits for the mount's thread.
async fn end_mount(
    served: &Served,
    thread: reactor::thread::JoinHandle<()>,
) -> Result<Result<(), reactor::Aborted>, NodeError> {
    served.unmounter.unmount().map_err(|error| NodeError::Mount(error.to_string()))?;
    // It fails if the thread has ended meanwhile.
    let _ = served.unmounted.send(Unmounted).await;
    Ok(thread.await)
}
