//! The parameters of a run, chosen from the seed before it begins.

mod focused;

use crate::fault::{Fault, Faults};
use crate::kept::{Feature, Kept};
use crate::random::Random;
use crate::world::World;
use std::collections::BTreeSet;
use std::time::Duration;

/// Longest time of a call when disks are fast: what kernels were lent may have to expire, and
/// messages go before and after that.
const NORMAL_WAIT: Duration = Duration::from_millis(5100);
/// Number of operations of a slow disk that a call may additionally wait for.
const NORMAL_OPERATIONS: u32 = 8;

/// Number of nodes of a cluster.
const NODES: usize = 3;

/// The main activity of workers in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Focus {
    /// A little of everything.
    #[default]
    Nothing,
    /// Locking, writing and reading one file.
    Locks,
    /// Making, moving and removing a few names.
    Names,
}

/// All parameters of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed of all random choices.
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
    /// Free space, in bytes, beside a file that no worker touches; `None` without that file. With
    /// little free space, freed blocks are soon used again.
    pub spare_bytes: Option<u64>,
    /// Whether the files of one directory are striped over all devices.
    pub has_stripes: bool,
    /// Whether the last node has no device: its data is always on other nodes.
    pub has_guest: bool,
    /// Whether the last node is absent at the start. It joins with a fault, or at the end.
    pub has_late_node: bool,
    /// Whether workers mostly read few files that others empty and write again, on disks that are
    /// slow to read. Then freed blocks are allocated again while reads of them are under way.
    pub is_churning: bool,
    /// The main activity of workers, unless they churn.
    pub focus: Focus,
    /// The focused world; `None` for a large run.
    pub world: Option<World>,
    /// Longest operation of a slow disk; disks have slow phases. `None`: never slow.
    pub disk_latency_max: Option<Duration>,
    /// Whether an operator requests the pool's state all the time.
    pub has_operator: bool,
    /// Kinds of faults.
    pub faults: Faults,
    /// Number of faults in a run, if there are any.
    pub fault_count: usize,
    /// Whether calls, answers and faults are printed as they happen.
    pub is_logged: bool,
    /// The parts of the plan that are kept.
    pub kept: Kept,
}

impl Plan {
    /// Whether any fault may strike.
    pub(crate) fn has_faults(&self) -> bool {
        !self.faults.is_none()
    }

    /// Whether committed but unsynced data may be lost.
    pub(crate) fn may_lose_data(&self) -> bool {
        self.faults.has(Fault::NodePower) || self.faults.has(Fault::DeviceBroken)
    }

    /// Returns how long a call may take without a fault. Each of a chain of recalls, commits and
    /// flushes waits for a disk, which may be slow. With little space left, a call may also wait
    /// until sessions return reserved space.
    pub(crate) fn normal_wait(&self) -> Duration {
        let asked = self.spare_bytes.map(|_| protocol::times::SPACE_DEADLINE).unwrap_or_default();
        NORMAL_WAIT + asked + self.disk_latency_max.unwrap_or_default() * NORMAL_OPERATIONS
    }

    /// Whether the file that occupies space is also read when a node is removed: it is most of a
    /// pool.
    pub(crate) fn reads_ballast(&self) -> bool {
        self.spare_bytes.is_some() && self.seed.is_multiple_of(16)
    }

    /// Returns the kinds of faults of a seed with their weights.
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

    /// Returns the plan of a seed. An eighth of all seeds runs without faults, an eighth churns
    /// (without faults, or with stragglers), others have one kind of fault or all.
    pub fn of_seed(seed: u64) -> Plan {
        let mut random = Random::new(seed ^ 0x706c_616e);
        let faults = Plan::faults_of_seed(seed, &mut random);
        let mut plan = Plan {
            seed,
            workers: random.between(1, 2) as usize,
            steps: random.between(15, 30) as usize,
            pause_max: Duration::from_millis(*random.of(&[5, 100, 4_000])),
            device_bytes: *random.of(&[4, 8, 16]) << 20,
            write_max: *random.of(&[6_000, 48_000, 400_000]),
            fault_count: random.between(2, 6) as usize,
            ..Plan::plain(faults)
        };
        let is_tight = faults.has(Fault::Strand) && random.chance(80);
        plan.has_stripes = is_tight || random.chance(60);
        if is_tight || random.chance(60) {
            plan.device_bytes = 4 << 20;
            plan.spare_bytes = Some(*random.of(&[1 << 20, 2 << 20, 4 << 20]));
        }
        if random.chance(75) {
            // Without faults no operation may take longer than its caller waits.
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

    /// Returns a plan with these faults and nothing else that is special.
    pub(crate) fn plain(faults: Faults) -> Plan {
        Plan {
            seed: 0,
            nodes: NODES,
            workers: 1,
            steps: 0,
            pause_max: Duration::ZERO,
            device_bytes: 4 << 20,
            write_max: 1,
            spare_bytes: None,
            has_stripes: false,
            has_guest: false,
            has_late_node: false,
            is_churning: false,
            focus: Focus::Nothing,
            world: None,
            disk_latency_max: None,
            has_operator: false,
            faults,
            fault_count: 0,
            is_logged: false,
            kept: Kept::default(),
        }
    }

    /// Returns the plan with only the kept parts.
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

    /// Returns the number of a node in the seed's plan, on which its choices depend.
    pub(crate) fn key_of(&self, node: usize) -> usize {
        let keys = self.kept.nodes.as_ref();
        keys.and_then(|keys| keys.iter().nth(node)).copied().unwrap_or(node)
    }

    /// Returns the node with this number in the seed's plan, or another one in its place.
    pub(crate) fn node_of(&self, key: usize) -> usize {
        (0..self.nodes).find(|node| self.key_of(*node) == key).unwrap_or(key % self.nodes)
    }

    /// Returns the number of nodes in the seed's plan.
    pub(crate) fn nodes_of_seed(&self) -> usize {
        NODES.max(self.nodes)
    }

    /// Returns how many pieces a step writes or reads.
    pub(crate) fn pieces(&self, pieces: u64) -> u64 {
        if self.kept.off.contains(&Feature::Pieces) { pieces.min(1) } else { pieces }
    }

    /// Changes the plan to one in which freed blocks are soon used again.
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
