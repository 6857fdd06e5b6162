//! What a seed decides before a run begins.

use crate::fault::{Fault, Faults};
use crate::kept::{Feature, Kept};
use crate::random::Random;
use std::collections::BTreeSet;
use std::time::Duration;

/// How long a call takes at most where disks are quick,
const NORMAL_WAIT: Duration = Duration::from_secs(5);
/// and of how many operations of a slow disk it waits for the end besides.
const NORMAL_OPERATIONS: u32 = 8;

/// Nodes of a cluster.
const NODES: usize = 3;

/// What workers mostly do in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Focus {
    /// A little of everything.
    #[default]
    Nothing,
    /// They lock, write and read one file.
    Locks,
    /// They make, move and remove few names.
    Names,
}

/// All that a run depends on.
#[derive(Clone, Debug)]
pub struct Plan {
    /// From where all choices come.
    pub seed: u64,
    /// Nodes with a device and a client.
    pub nodes: usize,
    /// Workers on each client.
    pub workers: usize,
    /// Steps that each worker takes.
    pub steps: usize,
    /// Longest pause of a worker between two steps.
    pub pause_max: Duration,
    /// Bytes of each device.
    pub device_bytes: u64,
    /// Longest write in bytes.
    pub write_max: u64,
    /// Space that a file which nobody touches leaves free, in bytes; `None` without that file. With
    /// little of it, freed blocks are used again at once.
    pub spare_bytes: Option<u64>,
    /// One directory's files are spread over all devices.
    pub has_stripes: bool,
    /// The last node has no device: its data is always on others.
    pub has_guest: bool,
    /// The last node is not there at the start: it comes with a misfortune, or at the end.
    pub has_late_node: bool,
    /// Workers mostly read few files that others empty and write again, and disks are slow to read:
    /// freed blocks are wanted while reads of them are under way.
    pub is_churning: bool,
    /// What workers mostly do, where they do not churn.
    pub focus: Focus,
    /// Longest that an operation of a slow disk takes; disks are slow by phases. `None`: never.
    pub disk_latency_max: Option<Duration>,
    /// An operator asks for the pool's state all the time.
    pub has_operator: bool,
    /// Misfortunes.
    pub faults: Faults,
    /// Misfortunes in a run, if there are any.
    pub fault_count: usize,
    /// Calls, answers and misfortunes are printed as they happen.
    pub is_logged: bool,
    /// Which parts of it are left.
    pub kept: Kept,
}

impl Plan {
    /// Whether anything may go wrong.
    pub(crate) fn has_faults(&self) -> bool {
        !self.faults.is_none()
    }

    /// Whether what was committed and not synced may be lost.
    pub(crate) fn may_lose_data(&self) -> bool {
        self.faults.has(Fault::NodePower) || self.faults.has(Fault::DeviceBroken)
    }

    /// How long a call may take without a misfortune. Each of a chain of recalls, commits and flushes waits
    /// for a disk, which may be slow. Where space is tight, sessions may be waited for that are asked for some.
    pub(crate) fn normal_wait(&self) -> Duration {
        let asked = self.spare_bytes.map(|_| protocol::times::SPACE_DEADLINE).unwrap_or_default();
        NORMAL_WAIT + asked + self.disk_latency_max.unwrap_or_default() * NORMAL_OPERATIONS
    }

    /// Whether the file that takes space up is read, too, when a node has gone: it is most of a pool.
    pub(crate) fn reads_ballast(&self) -> bool {
        self.spare_bytes.is_some() && self.seed.is_multiple_of(16)
    }

    /// The kinds of misfortunes of a seed with their weights.
    fn faults_of_seed(seed: u64, random: &mut Random) -> Faults {
        use Fault::{
            ClockStep, CrashTwice, Cut, CutOneWay, DeviceBroken, DeviceFull, Duplicate, Flip, Hold,
            Leave, LongHold, MetaKill, MetaPower, NodeKill, NodePower, Onlook, Pause, Reset,
            SlowLink, StoreBroken, StoreFull, Straggle, Strand, Suspend,
        };
        let network = Faults::of(&[
            (Reset, 3),
            (Cut, 3),
            (CutOneWay, 3),
            (SlowLink, 3),
            (Hold, 3),
            (LongHold, 1),
            (Duplicate, 3),
        ]);
        match seed % 8 {
            4 if seed % 16 == 4 => Faults::of(&[(Straggle, 1)]),
            1 => network,
            2 => {
                Faults::of(&[(NodeKill, 3), (CrashTwice, 1), (Leave, 2), (Duplicate, 2), (Flip, 3)])
            }
            3 => Faults::of(&[
                (Pause, 3),
                (Suspend, 2),
                (Cut, 3),
                (CutOneWay, 1),
                (Strand, 3),
                (Onlook, 12),
            ]),
            5 => Faults::of(&[
                (MetaKill, 4),
                (ClockStep, 3),
                (Reset, 3),
                (Hold, 3),
                (Duplicate, 2),
                (CrashTwice, 2),
                (StoreFull, 2),
                (StoreBroken, 2),
            ]),
            6 if random.chance(60) => Faults::of(&[(NodePower, 1), (MetaPower, 2)]),
            6 => Faults::of(&[(DeviceBroken, 4), (DeviceFull, 1), (NodeKill, 1), (NodePower, 2)]),
            7 => {
                let others = [NodeKill, MetaKill, CrashTwice, Leave, Pause, Suspend, ClockStep];
                let others =
                    others.into_iter().chain([Strand, Onlook, StoreFull, StoreBroken, DeviceFull]);
                let mut all = others.fold(network, |faults, fault| faults.with(fault, 3));
                for fault in [NodePower, MetaPower, DeviceBroken] {
                    all = all.with(fault, if random.chance(25) { 3 } else { 0 });
                }
                all
            }
            _ => Faults::default(),
        }
    }

    /// The plan of a seed: an eighth of all seeds goes without faults, an eighth churns (without faults,
    /// or with stragglers), others have one kind of fault or all.
    pub fn of_seed(seed: u64) -> Plan {
        let mut random = Random::new(seed ^ 0x706c_616e);
        let faults = Plan::faults_of_seed(seed, &mut random);
        let mut plan = Plan {
            seed,
            nodes: NODES,
            workers: random.between(1, 2) as usize,
            steps: random.between(15, 30) as usize,
            pause_max: Duration::from_millis(*random.of(&[5, 100, 4_000])),
            device_bytes: *random.of(&[4, 8, 16]) << 20,
            write_max: *random.of(&[6_000, 48_000, 400_000]),
            spare_bytes: None,
            has_stripes: false,
            has_guest: false,
            has_late_node: false,
            is_churning: false,
            focus: Focus::Nothing,
            disk_latency_max: None,
            has_operator: false,
            faults,
            fault_count: random.between(2, 6) as usize,
            is_logged: false,
            kept: Kept::default(),
        };
        let is_tight = faults.has(Fault::Strand) && random.chance(80);
        plan.has_stripes = is_tight || random.chance(60);
        if is_tight || random.chance(60) {
            plan.device_bytes = 4 << 20;
            plan.spare_bytes = Some(*random.of(&[1 << 20, 2 << 20, 4 << 20]));
        }
        if random.chance(75) {
            // Without faults nothing may take longer than what waits for it.
            let longest = if plan.has_faults() { 25_000 } else { 3_000 };
            let max_ms = *random.of(&[5, 100, 1_000, longest]);
            plan.disk_latency_max = Some(Duration::from_millis(max_ms));
        }
        if seed % 8 == 4 {
            plan.churn(&mut random);
        }
        plan.has_operator = random.chance(50);
        plan.has_late_node = faults.has(Fault::Leave) && random.chance(50);
        if !plan.is_churning {
            plan.focus = *random.of(&[Focus::Nothing, Focus::Locks, Focus::Names]);
        }
        plan
    }

    /// The plan without what is not kept.
    #[must_use]
    pub fn keep(mut self, kept: Kept) -> Plan {
        let last = self.nodes - 1;
        let has_last = kept.nodes.as_ref().is_none_or(|nodes| nodes.contains(&last));
        let has = |feature| !kept.off.contains(&feature);
        self.has_operator &= has(Feature::Operator);
        self.disk_latency_max = self.disk_latency_max.filter(|_| has(Feature::SlowDisks));
        self.spare_bytes = self.spare_bytes.filter(|_| has(Feature::Ballast));
        self.has_stripes &= has(Feature::Stripes);
        self.has_late_node &= has(Feature::LateNode) && has_last;
        self.has_guest &= has(Feature::Guest) && has_last;
        self.nodes = kept.nodes.as_ref().map_or(self.nodes, BTreeSet::len);
        self.kept = kept;
        self
    }

    /// The number that a node has in the seed's plan: its choices depend on it.
    pub(crate) fn key_of(&self, node: usize) -> usize {
        let keys = self.kept.nodes.as_ref();
        keys.and_then(|keys| keys.iter().nth(node)).copied().unwrap_or(node)
    }

    /// The node that has this number in the seed's plan, or another one in its place.
    pub(crate) fn node_of(&self, key: usize) -> usize {
        (0..self.nodes).find(|node| self.key_of(*node) == key).unwrap_or(key % self.nodes)
    }

    /// Nodes that the seed's plan has.
    pub(crate) fn nodes_of_seed(&self) -> usize {
        NODES.max(self.nodes)
    }

    /// How many pieces a step writes or reads, of so many.
    pub(crate) fn pieces(&self, pieces: u64) -> u64 {
        if self.kept.off.contains(&Feature::Pieces) { pieces.min(1) } else { pieces }
    }

    /// Makes it a plan in which freed blocks are wanted at once.
    fn churn(&mut self, random: &mut Random) {
        self.is_churning = true;
        self.has_guest = self.faults.has(Fault::Straggle);
        self.workers = 2;
        self.steps = random.between(30, 60) as usize;
        self.pause_max = Duration::from_millis(*random.of(&[5, 100]));
        self.write_max = 400_000;
        self.device_bytes = 4 << 20;
        self.spare_bytes = Some(*random.of(&[2 << 20, 3 << 20]));
        self.disk_latency_max = Some(Duration::from_millis(*random.of(&[1_000, 3_000])));
    }
}
