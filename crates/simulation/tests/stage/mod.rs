//! The stage for scenes: a metadata service and nodes as shipped, with a client each, on a
//! simulated ring.

#![allow(dead_code, reason = "each test uses a part of it")]

#[path = "../power_cut/cluster.rs"]
mod cluster;
pub(crate) mod flip;
pub(crate) mod gate;

use block::{Backing, Fault, FaultPlan, Incarnation, MemoryBacking};
use client::{Client, OpenMode, Setting};
pub(crate) use cluster::Changes;
#[allow(unused_imports, reason = "each test uses a part of it")]
pub(crate) use cluster::{CHECKSUMS, INLINE_BYTES};
use cluster::{machines, start_meta, start_node_with};
use meta::store::{CrashPoint, MemoryStore};
use node::NodeDevice;
use protocol::{Errno, InodeId};
use reactor::sim::{Network, Node};
use reactor::{Buffer, Chunk, JoinHandle};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use uuid::Uuid;

/// Block size of all devices, in bytes.
pub(crate) const BLOCK_BYTES: u32 = 4096;
/// Size of each device, in bytes.
pub(crate) const DEVICE_BYTES: u64 = 4 << 20;

/// Attributes of new files.
pub(crate) const SETTING: Setting = Setting { mode: 0o644, uid: 0, gid: 0 };
/// To write.
pub(crate) const WRITE: OpenMode = OpenMode { write: true, append: false, sync: false };
/// To append.
pub(crate) const APPEND: OpenMode = OpenMode { append: true, ..WRITE };

/// A cluster without faults until the scene adds some.
pub(crate) struct Stage {
    pub(crate) network: Network,
    /// The metadata service's machine.
    pub(crate) meta: Node,
    store: RefCell<MemoryStore>,
    pub(crate) nodes: Vec<Node>,
    clients: RefCell<Vec<Rc<Client>>>,
    /// The device of the first node.
    pub(crate) device: Fault,
}

impl Stage {
    /// Returns the store of the metadata service's process; a restart makes another.
    pub(crate) fn store(&self) -> MemoryStore {
        self.store.borrow().clone()
    }

    /// Kills the metadata service's process, and starts it with its committed data.
    pub(crate) fn restart_meta(&self) {
        self.meta.kill();
        let store = self.store.borrow().crashed(CrashPoint::Process);
        self.store.replace(store.clone());
        start_meta(&self.meta, Box::new(store), 1);
    }

    /// Kills a node's process, and starts it with this device, or with none.
    pub(crate) async fn restart_node(&self, node: usize, device: Option<NodeDevice>) {
        self.nodes[node].kill();
        let machine = (self.meta.clone(), self.nodes[node].clone());
        let devices = device.into_iter().collect();
        let client = start_node_with(&machine, node, devices, None).await;
        self.clients.borrow_mut()[node] = client;
    }

    /// Starts a task on a node, with its client.
    pub(crate) fn begin<F: Future + 'static>(
        &self,
        node: usize,
        act: impl FnOnce(Rc<Client>) -> F,
    ) -> JoinHandle<F::Output> {
        let client = Rc::clone(&self.clients.borrow()[node]);
        self.nodes[node].spawn(act(client))
    }

    /// Runs a task on a node, with its client.
    pub(crate) async fn on<F: Future + 'static>(
        &self,
        node: usize,
        act: impl FnOnce(Rc<Client>) -> F,
    ) -> F::Output {
        self.begin(node, act).await.unwrap()
    }
}

/// Plays a scene on this number of nodes.
pub(crate) fn play<F: Future<Output = ()>>(nodes: usize, scene: impl FnOnce(Stage) -> F) {
    let memory = Arc::new(MemoryBacking::new(DEVICE_BYTES, BLOCK_BYTES).unwrap());
    play_on(Fault::new(memory, 1, FaultPlan::default()), nodes, scene);
}

/// Returns a node's device in one of its lives.
pub(crate) fn device(node: usize, backing: Arc<dyn Backing>, incarnation: u128) -> NodeDevice {
    NodeDevice {
        uuid: Uuid::from_u128(100 + node as u128),
        incarnation: Incarnation(incarnation),
        is_volatile: false,
        backing,
    }
}

/// Like [`play`], with this device on the first node.
pub(crate) fn play_on<F: Future<Output = ()>>(
    device: Fault,
    nodes: usize,
    scene: impl FnOnce(Stage) -> F,
) {
    play_where(device, nodes, true, |_| None, scene);
}

/// Like [`play_on`], with all data on that device. Each client reports changes to the function that
/// `changes` returns for its node.
pub(crate) fn play_on_one<F: Future<Output = ()>>(
    device: Arc<dyn Backing>,
    nodes: usize,
    changes: impl Fn(usize) -> Option<Changes>,
    scene: impl FnOnce(Stage) -> F,
) {
    play_where(Fault::new(device, 1, FaultPlan::default()), nodes, false, changes, scene);
}

fn play_where<F: Future<Output = ()>>(
    first: Fault,
    nodes: usize,
    all_have_devices: bool,
    changes: impl Fn(usize) -> Option<Changes>,
    scene: impl FnOnce(Stage) -> F,
) {
    let (mut simulation, meta, nodes) = machines(1, nodes);
    let network = simulation.network();
    let store = MemoryStore::new();
    let whole = async move {
        start_meta(&meta, Box::new(store.clone()), 1);
        let mut clients = Vec::new();
        for (index, node) in nodes.iter().enumerate() {
            let memory = || Arc::new(MemoryBacking::new(DEVICE_BYTES, BLOCK_BYTES).unwrap());
            let devices = match index {
                0 => vec![device(0, Arc::new(first.clone()), 1)],
                _ if all_have_devices => vec![device(index, memory(), 1)],
                _ => Vec::new(),
            };
            let machine = (meta.clone(), node.clone());
            clients.push(start_node_with(&machine, index, devices, changes(index)).await);
        }
        let (store, clients) = (RefCell::new(store), RefCell::new(clients));
        scene(Stage { network, meta, store, nodes, clients, device: first }).await;
    };
    simulation.run(whole).unwrap();
}

/// Returns this number of bytes of one value.
pub(crate) fn filled(byte: u8, length: usize) -> Chunk {
    Chunk::from(Buffer::copy_from(&vec![byte; length]))
}

/// Returns the bytes of a range of a file.
pub(crate) async fn bytes_of(
    client: &Rc<Client>,
    inode: InodeId,
    range: std::ops::Range<u64>,
) -> Result<Vec<u8>, Errno> {
    let length = (range.end - range.start) as usize;
    let chunks = client.read(inode, range.start, length, None).await?;
    Ok(chunks.iter().flat_map(|chunk| chunk.to_bytes().into_owned()).collect())
}

/// Makes a file under the root with this number of bytes of one value, committed.
pub(crate) async fn make(client: &Rc<Client>, name: &[u8], byte: u8, length: usize) -> InodeId {
    let (handle, attr) = client.create(InodeId::ROOT, name, SETTING, WRITE).await.unwrap();
    client.write(&handle, 0, filled(byte, length), false).await.unwrap();
    client.release(&handle).await.unwrap();
    attr.inode
}
