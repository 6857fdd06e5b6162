//! A metadata service and nodes as shipped, on a simulated ring, with given stores and devices.

#![allow(dead_code, reason = "each test uses a part of it")]

use block::{Backing, Incarnation};
use client::{Change, Client, ClientConfig, SessionConfig};
use meta::service::{Config, Service, StoreChoice, Times};
use meta::store::Store;
use node::{Exports, FuseTransport, NodeConfig, NodeDevice};
use protocol::auth::Secret;
use reactor::SocketOptions;
use reactor::sim::{Node, Simulation};
use reactor::time::sleep;
use rpc::{Credential, Guard};
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use uuid::Uuid;

const META_PORT: u16 = 7000;

fn secret() -> Secret {
    Secret::from_hex(&"5a".repeat(32)).unwrap()
}

/// Starts the metadata service. It runs until the simulation ends.
pub(crate) fn start_meta(node: &Node, store: Box<dyn Store>, boot: u128) {
    let listen = SocketAddr::new(node.address(), META_PORT);
    drop(node.spawn(async move {
        let config = Config {
            listen,
            network_namespace: None,
            store: StoreChoice::Open(store),
            guard: Guard::Plain(secret()),
            data_keys: None,
            root: (0o755, 0, 0),
            boot: Some(Uuid::from_u128(boot)),
            times: Times::default(),
        };
        Service::start(config).unwrap().ended().await.unwrap();
    }));
}

/// Starts a node with one device. Returns its client.
pub(crate) async fn start_node(
    simulation: &(Node, Node),
    index: usize,
    backing: Arc<dyn Backing>,
    incarnation: u128,
) -> Rc<Client> {
    let device = NodeDevice {
        uuid: Uuid::from_u128(100 + index as u128),
        incarnation: Incarnation(incarnation),
        is_volatile: false,
        backing,
    };
    start_node_with(simulation, index, vec![device], None).await
}

/// A function that a client calls for changes by others.
pub(crate) type Changes = Box<dyn Fn(Change)>;

/// Largest size of files that clients store with the service. 0 unless a test sets another value,
/// because most tests check data on devices.
pub(crate) static INLINE_BYTES: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Bit mask of the nodes with clients that make and check checksums; all, unless a test sets
    /// another value.
    pub(crate) static CHECKSUMS: Cell<u32> = const { Cell::new(u32::MAX) };
}

/// Starts a node with these devices. Returns its client.
pub(crate) async fn start_node_with(
    simulation: &(Node, Node),
    index: usize,
    devices: Vec<NodeDevice>,
    changes: Option<Changes>,
) -> Rc<Client> {
    let (meta, machine) = simulation;
    let config = NodeConfig {
        name: format!("node{index}"),
        meta: SocketAddr::new(meta.address(), META_PORT),
        secret: PathBuf::new(),
        plain: true,
        plain_data: true,
        checksum: node::Checksum::On,
        fabric: node::Fabric::Tcp,
        network_namespace: None,
        listen: SocketAddr::new(machine.address(), 0),
        mount: None,
        allow_other: false,
        transport: FuseTransport::Auto,
        poll_us: reactor::Spin::default(),
        stops_itself: true,
        pid_file: None,
        marks: None,
        metrics: None,
        faster: 1,
        devices: Vec::new(),
    };
    let started: Rc<RefCell<Option<Rc<Client>>>> = Rc::default();
    let up = Rc::clone(&started);
    drop(machine.spawn(async move {
        let exports = Exports::start(&config, &devices).await.unwrap();
        let _agent = exports.join(&config, &Credential::Plain(secret())).await.unwrap();
        let config = ClientConfig {
            session: SessionConfig {
                meta: config.meta,
                credential: Credential::Plain(secret()),
                times: protocol::times::Times::default(),
                node: config.name.clone(),
                sockets: SocketOptions::default(),
            },
            local: exports.local().devices(),
            plain_data: true,
            changes,
            inline_bytes: INLINE_BYTES.load(Ordering::Relaxed),
            checksum: CHECKSUMS.get() & (1 << index) != 0,
        };
        *up.borrow_mut() = Some(Client::start(config).await.unwrap());
        std::future::pending::<()>().await;
    }));
    loop {
        if let Some(client) = started.borrow().clone() {
            return client;
        }
        sleep(Duration::from_millis(5)).await;
    }
}

/// Returns a simulation with a machine for the service and `nodes` others.
pub(crate) fn machines(seed: u64, nodes: usize) -> (Simulation, Node, Vec<Node>) {
    let simulation = Simulation::new(seed);
    let meta = simulation.node("meta");
    let machines = (0..nodes).map(|index| simulation.node(&format!("node{index}"))).collect();
    (simulation, meta, machines)
}
