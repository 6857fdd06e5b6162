//! What scenes are set up on: a metadata service and nodes as shipped, with a client each, on a simulated
//! ring.

#![allow(dead_code, reason = "each test uses a part of it")]

#[path = "../power_cut/cluster.rs"]
mod cluster;

use block::{Backing, Fault, FaultPlan, MemoryBacking};
use client::Client;
use cluster::{machines, start_meta, start_node};
use meta::store::{CrashPoint, MemoryStore};
use ring::JoinHandle;
use ring::sim::{Network, Node};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Block size of all devices, in bytes.
pub(crate) const BLOCK_BYTES: u32 = 4096;
/// Size of each device, in bytes.
pub(crate) const DEVICE_BYTES: u64 = 4 << 20;

/// A cluster on which all is well until the scene says otherwise.
pub(crate) struct Stage {
    pub(crate) network: Network,
    /// The metadata service's machine.
    pub(crate) meta: Node,
    store: RefCell<MemoryStore>,
    pub(crate) nodes: Vec<Node>,
    clients: Vec<Rc<Client>>,
    /// The device of the first node.
    pub(crate) device: Fault,
}

impl Stage {
    /// What the metadata service's process stores to; another once it is restarted.
    pub(crate) fn store(&self) -> MemoryStore {
        self.store.borrow().clone()
    }

    /// Kills the metadata service's process, and starts it on what it had committed.
    pub(crate) fn restart_meta(&self) {
        self.meta.kill();
        let store = self.store.borrow().crashed(CrashPoint::Process);
        self.store.replace(store.clone());
        start_meta(&self.meta, Box::new(store), 1);
    }

    /// Begins something on a node, with its client.
    pub(crate) fn begin<F: Future + 'static>(
        &self,
        node: usize,
        act: impl FnOnce(Rc<Client>) -> F,
    ) -> JoinHandle<F::Output> {
        self.nodes[node].spawn(act(Rc::clone(&self.clients[node])))
    }

    /// Does something on a node, with its client.
    pub(crate) async fn on<F: Future + 'static>(
        &self,
        node: usize,
        act: impl FnOnce(Rc<Client>) -> F,
    ) -> F::Output {
        self.begin(node, act).await.unwrap()
    }
}

/// Plays a scene on so many nodes.
pub(crate) fn play<F: Future<Output = ()>>(nodes: usize, scene: impl FnOnce(Stage) -> F) {
    let memory = Arc::new(MemoryBacking::new(DEVICE_BYTES, BLOCK_BYTES).unwrap());
    play_on(Fault::new(memory, 1, FaultPlan::default()), nodes, scene);
}

/// As [`play`], on this device of the first node.
pub(crate) fn play_on<F: Future<Output = ()>>(
    device: Fault,
    nodes: usize,
    scene: impl FnOnce(Stage) -> F,
) {
    let (mut simulation, meta, nodes) = machines(1, nodes);
    let network = simulation.network();
    let store = MemoryStore::new();
    let whole = async move {
        start_meta(&meta, Box::new(store.clone()), 1);
        let mut clients = Vec::new();
        for (index, node) in nodes.iter().enumerate() {
            let backing: Arc<dyn Backing> = match index {
                0 => Arc::new(device.clone()),
                _ => Arc::new(MemoryBacking::new(DEVICE_BYTES, BLOCK_BYTES).unwrap()),
            };
            let machine = (meta.clone(), node.clone());
            clients.push(start_node(&machine, index, backing, 1).await);
        }
        let store = RefCell::new(store);
        scene(Stage { network, meta, store, nodes, clients, device }).await;
    };
    simulation.run(whole).unwrap();
}
