//! The admissions of a target, and the door through which commands of local hosts pass.
//!
//! Hosts write under admissions that are given, renewed and taken, or that lapse, while the machine
//! is sometimes suspended. A command of a host without admission must fail. Once a fence has
//! ended, or a target has admitted a host after other admissions had lapsed, no write of the ended
//! admissions may reach the device any more.

mod hosts;
mod orders;

use crate::random::Random;
use block::{Backing, Device, FileBacking, FileOptions, Incarnation};
use nvme::{HostId, Nsid};
use reactor::sim::{DiskPace, SimConfig, Simulation};
use reactor::time::{boot_time, sleep};
use reactor::{Buffer, File, OpenOptions};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use target::{AdmissionMode, Admissions, Namespace};

const DEVICE_PATH: &str = "/device";
const BLOCK_BYTES: usize = 512;
const BLOCKS: usize = 6;
const HOSTS: u8 = 3;
/// Limit of virtual time; no run needs that long.
const TIME_MAX: Duration = Duration::from_hours(1);

/// An admission: host and epoch.
type Admission = (u8, u64);
/// A write: its admission and its number.
type Stamp = (u8, u64, u64);

/// What must be so.
#[derive(Default)]
struct Model {
    /// The lapse of each host's admission in force, with its epoch.
    in_force: BTreeMap<u8, (u64, u64)>,
    /// The host whose admission is being ordered.
    ordered: Option<u8>,
    /// The last epoch in which each host was fenced.
    fenced: BTreeMap<u8, u64>,
    /// Admissions that have lapsed and whose writes may still be under way.
    lapsed: BTreeSet<Admission>,
    /// Admissions whose writes have all ended.
    ended: BTreeSet<Admission>,
    /// Writes of ended admissions that were on the device when they ended, with their blocks.
    landed: BTreeSet<(usize, Stamp)>,
}

/// State that all tasks share.
struct Shared {
    admissions: Arc<Admissions>,
    namespace: Arc<Namespace>,
    device: Rc<dyn Device>,
    model: RefCell<Model>,
    violations: RefCell<Vec<String>>,
    is_over: Cell<bool>,
}

impl Shared {
    fn violation(&self, text: String) {
        self.violations.borrow_mut().push(text);
    }

    /// Reads the device and checks that no write of an ended admission has come. Then these
    /// admissions have ended, too.
    async fn look(&self, ended: BTreeSet<Admission>) {
        let before = self.model.borrow().ended.clone();
        let mut found = Vec::new();
        for block in 0..BLOCKS {
            let read = self.device.read((block * BLOCK_BYTES) as u64, BLOCK_BYTES).await;
            let bytes = read.expect("the device works").to_bytes().into_owned();
            found.extend(stamp_of(&bytes).map(|stamp| (block, stamp)));
        }
        let mut model = self.model.borrow_mut();
        for (block, stamp) in found {
            let admission = (stamp.0, stamp.1);
            if before.contains(&admission) && !model.landed.contains(&(block, stamp)) {
                self.violation(format!(
                    "block {block} has write {} of host {} in epoch {}, which had ended before",
                    stamp.2, stamp.0, stamp.1
                ));
            }
            if ended.contains(&admission) {
                model.landed.insert((block, stamp));
            }
        }
        model.ended.extend(ended);
    }
}

/// Runs a seed; returns its trace and what is wrong.
pub(super) fn run(seed: u64) -> (u64, Vec<String>) {
    let mut random = Random::new(seed ^ 0x6164_6d69_7373);
    let config = SimConfig { time_max: TIME_MAX, ..SimConfig::default() };
    let mut simulation = Simulation::with_config(seed ^ 0x6164_6d69_7373, config);
    let machine = simulation.node("target");
    // Looks are quick and writes are slow, so that a late write comes after a look.
    let (quick, slow) = (Duration::from_micros(50), Duration::from_millis(40));
    let write = (quick, *random.of(&[slow / 10, slow]));
    let pace = DiskPace { read: (quick, quick * 2), write, sync: write };
    machine.set_disk_pace(Some(pace));
    let result = Rc::new(RefCell::new(Vec::new()));
    let (choices, violations) = (random.next(), Rc::clone(&result));
    let ended = simulation.run(async move {
        let mut process = machine.spawn(process(Random::new(choices), violations));
        while !process.is_finished() {
            sleep(Duration::from_millis(random.between(1, 400))).await;
            if random.chance(30) && !process.is_finished() {
                machine.suspend();
                sleep(Duration::from_millis(random.between(1, 300))).await;
                machine.wake();
            }
        }
        (&mut process).await
    });
    let mut violations = result.take();
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(_)) => violations.push("the target's process has ended".to_owned()),
        Err(stalled) => violations.push(stalled.to_string()),
    }
    (simulation.trace_hash(), violations)
}

/// The target's process.
async fn process(mut random: Random, violations: Rc<RefCell<Vec<String>>>) {
    let backing = open_device().await;
    let device = backing.attach();
    let namespace = Arc::new(Namespace::new(Nsid(1), [7; 16], Arc::new(backing), false));
    let shared = Rc::new(Shared {
        admissions: Admissions::new(AdmissionMode::Controlled),
        namespace,
        device,
        model: RefCell::default(),
        violations: RefCell::default(),
        is_over: Cell::default(),
    });
    let mut tasks = Vec::new();
    for host in 1..=HOSTS {
        let choices = Random::new(random.next());
        tasks.push(reactor::spawn(hosts::write(Rc::clone(&shared), host, choices)));
    }
    orders::give(&shared, random).await;
    shared.is_over.set(true);
    for task in tasks {
        let _ended = task.await;
    }
    shared.look(BTreeSet::new()).await;
    violations.borrow_mut().append(&mut shared.violations.borrow_mut());
}

async fn open_device() -> FileBacking {
    let options = OpenOptions { create: true, ..OpenOptions::READ_WRITE };
    let file = File::open(DEVICE_PATH, options).expect("a new file");
    file.write_at(Buffer::zeroed(BLOCKS * BLOCK_BYTES).freeze(), 0).await.0.expect("a write");
    let options = FileOptions {
        block_size: Some(BLOCK_BYTES as u32),
        direct: true,
        preallocated: true,
        incarnation: Incarnation(1),
    };
    FileBacking::open(DEVICE_PATH, &options).expect("the device opens")
}

fn host_id(host: u8) -> HostId {
    HostId([host; 16])
}

/// Returns a block of a write.
fn block_of((host, epoch, number): Stamp) -> Buffer {
    let mut bytes = vec![0; BLOCK_BYTES];
    bytes[0] = host;
    bytes[8..16].copy_from_slice(&epoch.to_le_bytes());
    bytes[16..24].copy_from_slice(&number.to_le_bytes());
    Buffer::copy_from(&bytes)
}

/// Returns the write of a block, if there was one.
fn stamp_of(bytes: &[u8]) -> Option<Stamp> {
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    (bytes[0] > 0).then(|| (bytes[0], number(8), number(16)))
}

/// Returns whether a lapse has passed.
fn is_past(lapse: u64) -> bool {
    lapse <= boot_time()
}
