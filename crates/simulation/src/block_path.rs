//! The block path alone: one host and one target, the shipped code of both.
//!
//! The clients of a cluster use only a small part of what host and target can do. Here workers on
//! one host read, write (from one block to more than one command may carry), zero, discard and
//! flush a device. Another worker requests discovery, log pages and features, and namespaces come
//! and go. Meanwhile connections break, and the target is killed or loses power. Each sector that
//! is read must have a possible content ([`sectors`]), and each answer of the target must be
//! correct.

mod requests;
mod sectors;
mod tool;

use crate::random::Random;
use block::{FileBacking, FileOptions, Incarnation, MemoryBacking};
use host::{ConnectOptions, Controller, Namespace};
use nvme::{Nqn, Nsid};
use reactor::sim::{DiskPace, Moment, Network, Node, SimConfig, Simulation};
use reactor::time::{now, sleep, timeout};
use reactor::{Buffer, File, OpenOptions};
use requests::Worker;
use sectors::SECTOR_BYTES;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use target::{
    AdmissionMode, Admissions, HostAccess, Limits, Server, ServerOptions, Subsystem, Target,
};

const PORT: u16 = 4420;
const DEVICE_PATH: &str = "/device";
const NQN: &str = "nqn.2026-11.simulation:device";
const NAMESPACE: Nsid = Nsid(1);
/// A namespace that comes and goes.
const GUEST: Nsid = Nsid(2);
const GUEST_BYTES: u64 = 1 << 20;
/// Limit of virtual time; no run needs that long.
const TIME_MAX: Duration = Duration::from_hours(2);
/// Pause between attempts to start or to connect.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Percentage of faults that wait for a moment at which they are likely to reveal a bug.
const AIMED_PERCENT: u64 = 75;
/// How long such a fault waits.
const PATIENCE: Duration = Duration::from_secs(5);
/// Smallest message, in bytes, that counts as one that carries data of a write.
const DATA_BYTES: usize = 2_000;
/// Largest number of violations that are kept.
const VIOLATIONS_MAX: usize = 20;

/// Parameters of a run, chosen from the seed before it begins.
#[derive(Clone, Debug)]
struct RunParameters {
    workers: u64,
    steps: u64,
    pause_max: Duration,
    /// Bytes of the part of the device that belongs to one worker.
    part_bytes: u64,
    block_size: u32,
    /// Whether discarded blocks read as zeros. Otherwise they keep their content, and the target
    /// does not promise anything to hosts.
    discards: bool,
    transfer_bytes_max: u32,
    has_resets: bool,
    has_kills: bool,
    has_power_losses: bool,
    disk_latency_max: Duration,
    faults: u64,
}

impl RunParameters {
    fn new(seed: u64, random: &mut Random) -> RunParameters {
        let kind = seed % 4;
        RunParameters {
            workers: random.between(1, 3),
            steps: random.between(20, 60),
            pause_max: Duration::from_millis(*random.of(&[2, 50, 1_000])),
            part_bytes: *random.of(&[256 << 10, 1 << 20, 3 << 20]),
            block_size: *random.of(&[512, 4096]),
            discards: random.chance(50),
            transfer_bytes_max: *random.of(&[64 << 10, 256 << 10, 1 << 20]),
            has_resets: kind == 1 || kind == 3,
            has_kills: kind == 2 || kind == 3,
            has_power_losses: kind == 3,
            disk_latency_max: Duration::from_millis(*random.of(&[1, 20, 500])),
            faults: if kind == 0 { 0 } else { random.between(2, 8) },
        }
    }

    fn device_bytes(&self) -> u64 {
        self.part_bytes * self.workers
    }
}

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockOutcome {
    /// The same for two runs of one seed.
    pub trace_hash: u64,
    /// Observations that break a rule; empty if all is well.
    pub violations: Vec<String>,
    /// Numbers of events, by name.
    pub counts: BTreeMap<&'static str, u64>,
}

/// State that all tasks of a run share.
struct Shared {
    parameters: RunParameters,
    host: Node,
    machine: Node,
    network: Network,
    incarnation: Cell<u128>,
    /// The target of the running process.
    target: RefCell<Option<Arc<Target>>>,
    /// Counts power losses.
    losses: Cell<u64>,
    /// Faults that have not ended yet. Workers continue until there are none.
    faults_left: Cell<u64>,
    is_over: Cell<bool>,
    is_logged: bool,
    violations: RefCell<Vec<String>>,
    counts: RefCell<BTreeMap<&'static str, u64>>,
}

impl Shared {
    fn violation(&self, text: String) {
        self.log(|| text.clone());
        let mut violations = self.violations.borrow_mut();
        if violations.len() < VIOLATIONS_MAX {
            violations.push(text);
        }
    }

    fn count(&self, what: &'static str) {
        *self.counts.borrow_mut().entry(what).or_default() += 1;
    }

    fn log(&self, text: impl FnOnce() -> String) {
        if self.is_logged {
            println!("{:?}: {}", now(), text());
        }
    }

    fn has_faults(&self) -> bool {
        self.parameters.faults > 0
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::new(self.machine.address(), PORT)
    }
}

/// Runs a seed in this thread. With `is_logged` it prints each request and each fault.
pub fn run_block_path(seed: u64, is_logged: bool) -> BlockOutcome {
    let mut random = Random::new(seed ^ 0x626c_6f63_6b73);
    let parameters = RunParameters::new(seed, &mut random);
    let config = SimConfig { time_max: TIME_MAX, ..SimConfig::default() };
    let mut simulation = Simulation::with_config(seed, config);
    let shared = Rc::new(Shared {
        faults_left: Cell::new(parameters.faults),
        parameters,
        host: simulation.node("host"),
        machine: simulation.node("target"),
        network: simulation.network(),
        incarnation: Cell::new(random.next().into()),
        target: RefCell::default(),
        losses: Cell::default(),
        is_over: Cell::default(),
        is_logged,
        violations: RefCell::default(),
        counts: RefCell::default(),
    });
    let ended = simulation.run(whole(Rc::clone(&shared), random));
    if let Err(stalled) = ended {
        shared.violation(stalled.to_string());
    }
    BlockOutcome {
        trace_hash: simulation.trace_hash(),
        violations: shared.violations.take(),
        counts: shared.counts.take(),
    }
}

async fn whole(shared: Rc<Shared>, mut random: Random) {
    start_target(&shared);
    // Faults begin once the device exists.
    while shared.target.borrow().is_none() {
        sleep(Duration::from_millis(1)).await;
    }
    let choices = Random::new(random.next());
    let faults = reactor::spawn(faults(Rc::clone(&shared), Random::new(random.next())));
    let guests = reactor::spawn(guests(Rc::clone(&shared), Random::new(random.next())));
    let work = shared.host.spawn(work(Rc::clone(&shared), choices));
    work.await.expect("the host is never killed");
    faults.abort();
    guests.abort();
}

/// Runs the host's process.
async fn work(shared: Rc<Shared>, mut random: Random) {
    let options = connect_options(&shared, &mut random);
    let (controller, namespace) = loop {
        match open(&options).await {
            Ok(opened) => break opened,
            Err(error) if shared.has_faults() => {
                shared.log(|| format!("cannot connect: {error}"));
                sleep(RETRY_PAUSE).await;
            }
            Err(error) => return shared.violation(format!("cannot connect: {error}")),
        }
    };
    let tool = tool::Tool::new(&shared, &controller, Random::new(random.next()));
    let tool = reactor::spawn(tool.run());
    let mut workers = Vec::new();
    for number in 0..shared.parameters.workers {
        let random = Random::new(random.next());
        let worker = Worker::new(&shared, &namespace, number, random);
        workers.push(reactor::spawn(worker.run()));
    }
    for worker in workers {
        worker.await.expect("the task lives");
    }
    shared.is_over.set(true);
    tool.await.expect("the task lives");
    for _ in 0..controller.reconnects() {
        shared.count("reconnects");
    }
    drop(namespace);
    if let Err(error) = controller.disconnect().await
        && !shared.has_faults()
    {
        shared.violation(format!("cannot disconnect: {error}"));
    }
}

fn connect_options(shared: &Shared, random: &mut Random) -> ConnectOptions {
    let nqn = Nqn::new(NQN).expect("a valid name");
    let mut options = ConnectOptions::new(shared.address(), nqn);
    options.nr_io_queues = random.between(1, 3) as u16;
    options.queue_size = *random.of(&[1, 4, 64]);
    options.reconnect_delay = Duration::from_secs(1);
    options.ctrl_loss_tmo = None;
    options.hdr_digest = random.chance(50);
    options.data_digest = random.chance(50);
    if random.chance(30) {
        options.fast_io_fail_tmo = Some(Duration::from_secs(20));
    }
    options
}

async fn open(options: &ConnectOptions) -> Result<(Controller, Namespace), host::Error> {
    let controller = Controller::connect(options.clone()).await?;
    let namespace = Namespace::open(&controller, NAMESPACE).await?;
    Ok((controller, namespace))
}

/// Starts the target's process.
fn start_target(shared: &Rc<Shared>) {
    let this = Rc::clone(shared);
    drop(shared.machine.spawn(async move {
        let backing = open_device(&this).await;
        let limits =
            Limits { transfer_bytes_max: this.parameters.transfer_bytes_max, ..Limits::default() };
        let admissions = Admissions::new(AdmissionMode::AnyHost);
        let target = Target::new(limits, admissions).expect("limits that are possible");
        let nqn = Nqn::new(NQN).expect("a valid name");
        let subsystem = Subsystem::new(nqn, "SERIAL", "Simulated", HostAccess::Any);
        let subsystem = target.add_subsystem(subsystem).expect("the first");
        let namespace = target::Namespace::new(NAMESPACE, [7; 16], Arc::new(backing), false);
        subsystem.add_namespace(namespace).expect("the first");
        let listen = vec![this.address()];
        let options = ServerOptions { listen, ..ServerOptions::default() };
        let _server = Server::start(&target, &options).expect("the port is free");
        *this.target.borrow_mut() = Some(target);
        std::future::pending::<()>().await;
    }));
}

async fn open_device(shared: &Shared) -> FileBacking {
    // The kernel holds the file of a killed program until its I/O has ended.
    while shared.machine.disk_operations() > 0 {
        sleep(Duration::from_millis(1)).await;
    }
    if File::open(DEVICE_PATH, OpenOptions::READ_WRITE).is_err() {
        let options = OpenOptions { create: true, ..OpenOptions::READ_WRITE };
        let file = File::open(DEVICE_PATH, options).expect("a new file");
        let zeros = Buffer::zeroed(64 << 10).freeze();
        for offset in (0..shared.parameters.device_bytes()).step_by(zeros.len()) {
            file.write_at(zeros.clone(), offset).await.0.expect("a write");
        }
        file.sync_all().await.expect("a flush");
    }
    let options = FileOptions {
        block_size: Some(shared.parameters.block_size),
        direct: true,
        preallocated: !shared.parameters.discards,
        incarnation: Incarnation(shared.incarnation.get()),
    };
    FileBacking::open(DEVICE_PATH, &options).expect("the device opens")
}

/// Adds and removes a namespace, of which hosts are notified.
async fn guests(shared: Rc<Shared>, mut random: Random) {
    loop {
        sleep(Duration::from_millis(random.between(1, 5_000))).await;
        let target = shared.target.borrow().clone();
        let Some(target) = target else { continue };
        let Some(subsystem) = target.subsystems().into_iter().next() else { continue };
        if subsystem.remove_namespace(GUEST).is_none() {
            let backing = MemoryBacking::new(GUEST_BYTES, 4096).expect("a size that is possible");
            let guest = target::Namespace::new(GUEST, [8; 16], Arc::new(backing), false);
            subsystem.add_namespace(guest).expect("it is not there");
        }
        target.notify_controllers();
        shared.count("namespaces_changed");
    }
}

async fn faults(shared: Rc<Shared>, mut random: Random) {
    let most = shared.parameters.disk_latency_max.max(Duration::from_micros(300));
    let range = (Duration::from_micros(10), most);
    shared.machine.set_disk_pace(Some(DiskPace { read: range, write: range, sync: range }));
    for left in (0..shared.parameters.faults).rev() {
        sleep(Duration::from_millis(random.between(1, 4_000))).await;
        if random.chance(AIMED_PERCENT)
            && timeout(PATIENCE, moment(&shared, &mut random)).await.is_ok()
        {
            shared.count("aimed");
        }
        let longest = *random.of(&[50, 3_000, 40_000]);
        let lasting = Duration::from_millis(random.between(1, longest));
        let (host, machine) = (&shared.host, &shared.machine);
        shared.count("faults");
        if shared.parameters.has_kills && (!shared.parameters.has_resets || random.chance(50)) {
            let loses_power = shared.parameters.has_power_losses && random.chance(50);
            shared.log(|| format!("the target is killed, with its power: {loses_power}"));
            shared.target.borrow_mut().take();
            if loses_power {
                machine.lose_power();
                shared.incarnation.set(random.next().into());
                shared.losses.set(shared.losses.get() + 1);
            } else {
                machine.kill();
            }
            sleep(lasting).await;
            start_target(&shared);
            shared.faults_left.set(left);
            continue;
        }
        let kind = random.below(3);
        shared.log(|| format!("fault {kind} of the connections"));
        match kind {
            0 => shared.network.reset(host, machine),
            1 => {
                shared.network.cut(host, machine);
                sleep(lasting).await;
                shared.network.heal(host, machine);
            }
            _ => {
                shared.network.hold_back(host, machine);
                sleep(lasting).await;
                shared.network.let_go(host, machine);
            }
        }
        shared.log(|| "the fault is over".to_owned());
        shared.faults_left.set(left);
    }
}

/// Waits until data or an answer is on its way, or the disk is working.
async fn moment(shared: &Shared, random: &mut Random) {
    let (host, machine) = (&shared.host, &shared.machine);
    let moment = match random.below(5) {
        0 | 1 => Moment::Send { from: host, to: machine, bytes_min: DATA_BYTES },
        2 => Moment::Send { from: machine, to: host, bytes_min: 1 },
        3 => Moment::Write(machine),
        _ => Moment::Flush(machine),
    };
    shared.network.moment(moment).await;
}

// A disk writes a sector as a whole.
const _: () = assert!(SECTOR_BYTES == 512);
