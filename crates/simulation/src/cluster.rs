//! The simulated machines and what runs on them.

use crate::fault::Fault;
use crate::kernel::Kernel;
use crate::plan::Plan;
use crate::random::Random;
use block::{FileBacking, FileOptions, Incarnation};
use client::{Client, ClientConfig, SessionConfig};
use meta::service::{Config, Service, StoreChoice, Times};
use meta::store::{CrashPoint, MemoryStore, StoreFault};
use mount::Server;
use node::{Exports, FuseTransport, NodeConfig, NodeDevice};
use protocol::auth::Secret;
use reactor::local::oneshot;
use reactor::sim::{Network, Node, Simulation};
use reactor::time::sleep;
use reactor::{Buffer, File, OpenOptions, SocketOptions};
use rpc::{Credential, Guard};
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::rc::Weak;
use std::sync::Arc;
use std::time::Duration;
use target::Namespace;
use uuid::Uuid;

const META_PORT: u16 = 7000;
const DEVICE_PATH: &str = "/device";
const BLOCK_SIZE: u32 = 4096;
/// The byte that fills a new device. No read may return bytes that were never written.
const JUNK: u8 = 0xee;
/// Pause before another attempt to start a process that failed to start.
const RESTART_PAUSE: Duration = Duration::from_millis(200);

/// A machine with a device and a client.
pub(crate) struct Machine {
    pub(crate) index: usize,
    pub(crate) node: Node,
    config: NodeConfig,
    device_bytes: u64,
    uuid: Uuid,
    pub(crate) has_device: bool,
    incarnation: Cell<u128>,
    /// The node where applications run; they survive the process.
    pub(crate) applications: Node,
    /// The client of the running process, once it is up.
    pub(crate) client: RefCell<Option<Rc<Client>>>,
    /// The kernel's side of that process's mount.
    pub(crate) kernel: RefCell<Option<Rc<Kernel>>>,
    kernel_seed: u64,
    /// Notifications about pages that come late.
    late_pages: (u64, Duration),
    /// Whether its client makes and checks checksums.
    has_sums: bool,
    /// Counts starts of the process.
    pub(crate) life: Cell<u64>,
    /// The namespaces that the running process exports.
    namespaces: RefCell<Vec<Arc<Namespace>>>,
}

/// The machine of the metadata service.
pub(crate) struct MetaMachine {
    pub(crate) node: Node,
    store: RefCell<MemoryStore>,
    boot: Cell<Uuid>,
    service: RefCell<Weak<Service>>,
}

/// All machines.
pub(crate) struct Cluster {
    pub(crate) meta: MetaMachine,
    pub(crate) machines: Vec<Machine>,
    /// The node from which the operator works.
    pub(crate) operator: Node,
    pub(crate) network: Network,
    /// Counts of services and targets that have been killed.
    counted: RefCell<Counted>,
}

/// Counts that the shipped code keeps.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    /// Sessions that were fenced.
    pub(crate) fences: u64,
    /// Recalls and invalidations.
    pub(crate) recalls: u64,
    /// Answers that were repeated from reply slots.
    pub(crate) repeated: u64,
    /// Commits dropped because a truncation came first.
    pub(crate) late_commits: u64,
    /// Commands and connections refused at targets.
    pub(crate) refusals: u64,
    /// Blocks that were written more than once.
    pub(crate) rewritten_blocks: u64,
}

/// Returns the job's secret. TLS takes its random numbers from its own library, so no seed controls
/// them.
fn secret() -> Secret {
    Secret::from_hex(&"5a".repeat(32)).expect("64 hexadecimal digits")
}

/// Returns the credential of clients, agents and tools.
pub(crate) fn credential() -> Credential {
    Credential::Plain(secret())
}

impl Cluster {
    pub(crate) fn new(simulation: &Simulation, plan: &Plan, random: &mut Random) -> Rc<Cluster> {
        let meta = simulation.node("meta");
        let address = SocketAddr::new(meta.address(), META_PORT);
        let mut machines = Vec::new();
        for index in 0..plan.nodes {
            let node = simulation.node(&format!("node{index}"));
            let config = NodeConfig {
                name: format!("node{index}"),
                meta: address,
                secret: PathBuf::new(),
                plain: true,
                checksum: node::Checksum::On,
                fabric: node::Fabric::Tcp,
                plain_data: true,
                network_namespace: None,
                listen: SocketAddr::new(node.address(), 0),
                mount: None,
                allow_other: false,
                transport: FuseTransport::Auto,
                poll_us: reactor::Spin::default(),
                faster: 1,
                stops_itself: true,
                pid_file: None,
                marks: None,
                metrics: None,
                devices: Vec::new(),
            };
            let applications = simulation.node(&format!("applications{index}"));
            let kernel_seed = random.next();
            machines.push(Machine {
                index,
                applications,
                kernel: RefCell::default(),
                kernel_seed,
                late_pages: plan.late_pages(),
                // A few machines make and check no sums, unless only sums can reveal the fault.
                has_sums: kernel_seed & 6 != 0 || plan.faults.has(Fault::Flip),
                node,
                config,
                device_bytes: plan.device_bytes,
                uuid: Uuid::from_u128(random.next().into()),
                has_device: !plan.has_guest || index + 1 < plan.nodes,
                incarnation: Cell::new(random.next().into()),
                client: RefCell::default(),
                life: Cell::new(0),
                namespaces: RefCell::default(),
            });
        }
        let store = RefCell::new(MemoryStore::new());
        let boot = Cell::new(Uuid::from_u128(random.next().into()));
        let meta = MetaMachine { node: meta, store, boot, service: RefCell::default() };
        let network = simulation.network();
        let operator = simulation.node("operator");
        Rc::new(Cluster { meta, machines, operator, network, counted: RefCell::default() })
    }

    /// Returns the address of the metadata service.
    pub(crate) fn meta_address(&self) -> SocketAddr {
        SocketAddr::new(self.meta.node.address(), META_PORT)
    }

    /// Returns the counts of the shipped code so far.
    pub(crate) fn counted(&self) -> Counted {
        let mut counted = *self.counted.borrow();
        self.meta.count(&mut counted);
        for machine in &self.machines {
            machine.count(&mut counted);
            let rewritten = machine.node.pages_written(Path::new(DEVICE_PATH), 2);
            counted.rewritten_blocks += rewritten as u64;
        }
        counted
    }

    /// Starts the metadata service and this number of nodes. Returns when all clients are up.
    pub(crate) async fn start(self: &Rc<Self>, nodes: usize) {
        self.start_meta();
        for index in 0..nodes {
            self.start_node(index);
        }
        self.all_up().await;
    }

    /// Starts the nodes that were never there. Returns when all clients are up.
    pub(crate) async fn complete(self: &Rc<Self>) {
        let never = |index: &usize| self.machines[*index].life.get() == 0;
        (0..self.machines.len()).filter(never).for_each(|index| self.start_node(index));
        self.all_up().await;
    }

    /// Waits until every node that was ever started has a client.
    pub(crate) async fn all_up(&self) {
        let is_awaited =
            |machine: &Machine| machine.life.get() > 0 && machine.client.borrow().is_none();
        while self.machines.iter().any(is_awaited) {
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Starts the metadata service with the content of its store.
    pub(crate) fn start_meta(self: &Rc<Self>) {
        let cluster = Rc::clone(self);
        drop(self.meta.node.spawn(async move {
            let meta = &cluster.meta;
            let config = Config {
                listen: SocketAddr::new(meta.node.address(), META_PORT),
                network_namespace: None,
                store: StoreChoice::Open(Box::new(meta.store.borrow().clone())),
                guard: Guard::Plain(secret()),
                data_keys: None,
                root: (0o755, 0, 0),
                boot: Some(meta.boot.get()),
                times: Times::default(),
            };
            let service = Service::start(config).expect("the metadata service starts");
            let service = Rc::new(service);
            *meta.service.borrow_mut() = Rc::downgrade(&service);
            if let Err(error) = service.ended().await {
                assert!(meta.store.borrow().failures() > 0, "the store fails by itself: {error}");
            }
        }));
    }

    /// Returns the violations that the running metadata service finds in its store.
    pub(crate) fn check_store(&self) -> Option<Vec<String>> {
        let service = self.meta.service.borrow().upgrade()?;
        Some(service.check().unwrap_or_else(|error| vec![error.to_string()]))
    }

    /// Kills the metadata service. If `power` is given, the machine loses power too.
    pub(crate) fn kill_meta(&self, power: Option<&mut Random>) {
        let meta = &self.meta;
        meta.count(&mut self.counted.borrow_mut());
        *meta.service.borrow_mut() = Weak::new();
        let Some(random) = power else {
            meta.node.kill();
            let store = meta.store.borrow().crashed(CrashPoint::Process);
            *meta.store.borrow_mut() = store;
            return;
        };
        meta.node.lose_power();
        let unsynced = meta.store.borrow().unsynced().len() as u64;
        let kept = random.between(0, unsynced) as usize;
        let store = meta.store.borrow().crashed(CrashPoint::Power { kept });
        *meta.store.borrow_mut() = store;
        meta.boot.set(Uuid::from_u128(random.next().into()));
    }

    /// Makes the store of the metadata service fail, or ends that.
    pub(crate) fn set_store_fault(&self, fault: Option<StoreFault>) {
        self.meta.store.borrow().set_fault(fault);
    }

    /// Whether a commit or a sync of the store has failed since the last start of the service.
    pub(crate) fn has_store_failed(&self) -> bool {
        self.meta.store.borrow().failures() > 0
    }

    /// Starts a node's process.
    pub(crate) fn start_node(self: &Rc<Self>, index: usize) {
        let cluster = Rc::clone(self);
        let machine = &self.machines[index];
        machine.life.set(machine.life.get() + 1);
        drop(machine.node.spawn(async move { cluster.machines[index].run().await }));
    }

    /// Kills a node's process. If `power` is given, the machine loses power too.
    pub(crate) fn kill_node(&self, index: usize, power: Option<&mut Random>) {
        let machine = &self.machines[index];
        machine.count(&mut self.counted.borrow_mut());
        machine.namespaces.borrow_mut().clear();
        match power {
            None => machine.node.kill(),
            Some(random) => {
                machine.node.lose_power();
                machine.applications.kill();
                machine.incarnation.set(random.next().into());
            }
        }
        machine.client.borrow_mut().take();
        if let Some(kernel) = machine.kernel.borrow_mut().take() {
            kernel.abort();
        }
    }
}

impl MetaMachine {
    fn count(&self, counted: &mut Counted) {
        let Some(service) = self.service.borrow().upgrade() else { return };
        let counts = service.counts();
        counted.fences += counts.fenced;
        counted.recalls += counts.recalls;
        counted.repeated += counts.repeated;
        counted.late_commits += counts.late_commits;
    }
}

/// Has a kernel drop pages, as a thread of a mount does.
fn serve_pages(kernel: Rc<Kernel>, pages: mount::PageQueue) {
    let next = Rc::clone(&kernel);
    let start_another = move |pages| serve_pages(Rc::clone(&next), pages);
    drop(reactor::spawn(async move {
        let drop_pages = async |node: fuse::NodeId| {
            kernel.invalidate_inode(node.0).await;
            Ok(())
        };
        pages.serve(drop_pages, start_another).await;
    }));
}

/// Has a kernel drop names, as a thread of a mount does.
fn serve_names(kernel: Rc<Kernel>, names: mount::NameQueue) {
    let next = Rc::clone(&kernel);
    let start_another = move |names| serve_names(Rc::clone(&next), names);
    drop(reactor::spawn(async move {
        let drop_name = async |directory: fuse::NodeId, name: &fuse::Name, expires_only| {
            kernel.drop_name(directory.0, name.as_bytes(), expires_only).await;
            Ok(())
        };
        names.serve(drop_name, start_another).await;
    }));
}

impl Machine {
    /// Returns the name of its node.
    pub(crate) fn name(&self) -> &str {
        &self.config.name
    }

    /// Whether its device has this UUID.
    pub(crate) fn has(&self, uuid: Uuid) -> bool {
        self.uuid == uuid
    }

    fn count(&self, counted: &mut Counted) {
        for namespace in self.namespaces.borrow().iter() {
            counted.refusals += namespace.counts().refused;
        }
    }

    /// Runs the process: target, agent and client.
    async fn run(&self) {
        let devices = if self.has_device { vec![self.open_device().await] } else { Vec::new() };
        let exports = Exports::start(&self.config, &devices).await.expect("the target starts");
        *self.namespaces.borrow_mut() = exports.namespaces().to_vec();
        let _agent = loop {
            match exports.join(&self.config, &credential()).await {
                Ok(agent) => break agent,
                Err(_) => sleep(RESTART_PAUSE).await,
            }
        };
        let (notices, pages, names, prompt) = mount::notices();
        let client = loop {
            let config = ClientConfig {
                session: SessionConfig {
                    meta: self.config.meta,
                    credential: credential(),
                    times: protocol::times::Times::default(),
                    node: self.config.name.clone(),
                    sockets: SocketOptions::default(),
                },
                local: exports.local().devices(),
                plain_data: true,
                changes: Some(notices.changes()),
                // On every other machine the service keeps the data of small files.
                inline_bytes: (self.kernel_seed & 1) * protocol::inline::INLINE_MAX_BYTES,
                checksum: self.has_sums,
            };
            match Client::start(config).await {
                Ok(client) => break client,
                Err(_) => sleep(RESTART_PAUSE).await,
            }
        };
        let kernel = self.mount(&client, &notices).await;
        *self.client.borrow_mut() = Some(client);
        *self.kernel.borrow_mut() = Some(Rc::clone(&kernel));
        serve_names(Rc::clone(&kernel), names);
        let (notified, all) = (Rc::clone(&kernel), Rc::clone(&kernel));
        drop(reactor::spawn(prompt.serve(
            async move |node| Ok(notified.drop_attributes(node.0).await),
            async move || all.increase_epoch().await,
        )));
        serve_pages(kernel, pages);
        std::future::pending::<()>().await;
    }

    /// Mounts, as the mount's thread does.
    async fn mount(&self, client: &Rc<Client>, notices: &mount::Notices) -> Rc<Kernel> {
        let (agreed, agreement) = oneshot();
        let server = Server::new(Rc::clone(client), agreed, notices);
        let random = Random::new(self.kernel_seed ^ self.life.get());
        let served = (server, Rc::clone(client));
        let kernel =
            Kernel::mount(served, self.node.clone(), &self.applications, random, self.late_pages);
        agreement.await.expect("the server agrees");
        kernel
    }

    async fn open_device(&self) -> NodeDevice {
        // The kernel holds the file of a killed program, and the lock on it, until its I/O has
        // ended.
        while self.node.disk_operations() > 0 {
            sleep(Duration::from_millis(1)).await;
        }
        let is_new = File::open(DEVICE_PATH, OpenOptions::READ_WRITE).is_err();
        if is_new {
            let options = OpenOptions { create: true, ..OpenOptions::READ_WRITE };
            let file = File::open(DEVICE_PATH, options).expect("a new file");
            let mut buffer = Buffer::zeroed(1 << 20);
            buffer.fill(JUNK);
            let junk = buffer.freeze();
            for offset in (0..self.device_bytes).step_by(1 << 20) {
                file.write_at(junk.clone(), offset).await.0.expect("a write");
            }
            file.sync_all().await.expect("a flush");
        }
        let incarnation = Incarnation(self.incarnation.get());
        let options = FileOptions {
            block_size: Some(BLOCK_SIZE),
            direct: true,
            preallocated: true,
            incarnation,
        };
        let backing = FileBacking::open(DEVICE_PATH, &options).expect("the device opens");
        NodeDevice { uuid: self.uuid, incarnation, is_volatile: false, backing: Arc::new(backing) }
    }
}
