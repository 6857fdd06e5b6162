//! What a seed decides before a run begins.

use crate::random::Random;
use std::time::Duration;

/// Which misfortunes may befall a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Connections are broken.
    pub resets: bool,
    /// Links are cut and mended.
    pub cuts: bool,
    /// A node's process is killed and started again.
    pub node_kills: bool,
    /// A node's process is stopped for longer than its session lives.
    pub pauses: bool,
    /// Wall clocks are set forward and back, that of the metadata service also while it is away.
    pub clock_steps: bool,
    /// The metadata service is killed and started again.
    pub meta_kills: bool,
    /// What connections carry is held back for long, while new ones work.
    pub holds: bool,
    /// A node with a write on its way is cut off or paused until its session has ended.
    pub strands: bool,
    /// A node's write is stuck on its way to a target until its session has ended, and a little longer.
    pub stragglers: bool,
    /// A node loses power: unflushed writes are lost or torn.
    pub node_power: bool,
    /// The metadata service's machine loses power: what its store has not synced is lost.
    pub meta_power: bool,
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
    /// Workers mostly read few files that others empty and write again, and disks are slow to read:
    /// freed blocks are wanted while reads of them are under way.
    pub is_churning: bool,
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
}

impl Plan {
    /// Whether anything may go wrong.
    pub(crate) fn has_faults(&self) -> bool {
        self.faults != Faults::default()
    }

    /// The plan of a seed: an eighth of all seeds goes without faults, an eighth churns (without faults,
    /// or with stragglers), others have one kind of fault or all.
    pub fn of_seed(seed: u64) -> Plan {
        let mut random = Random::new(seed ^ 0x706c_616e);
        let none = Faults::default();
        let faults = match seed % 8 {
            0 => none,
            4 => Faults { stragglers: seed % 16 == 4, ..none },
            1 => Faults { resets: true, cuts: true, holds: true, ..none },
            2 => Faults { node_kills: true, ..none },
            3 => Faults { pauses: true, cuts: true, strands: true, ..none },
            5 => Faults { meta_kills: true, clock_steps: true, resets: true, holds: true, ..none },
            6 => Faults { node_power: true, meta_power: true, ..none },
            _ => Faults {
                resets: true,
                cuts: true,
                node_kills: true,
                pauses: true,
                clock_steps: true,
                meta_kills: true,
                holds: true,
                strands: true,
                stragglers: false,
                node_power: random.chance(25),
                meta_power: random.chance(25),
            },
        };
        let mut plan = Plan {
            seed,
            nodes: 3,
            workers: random.between(1, 2) as usize,
            steps: random.between(15, 30) as usize,
            pause_max: Duration::from_millis(*random.of(&[5, 100, 4_000])),
            device_bytes: *random.of(&[4, 8, 16]) << 20,
            write_max: *random.of(&[6_000, 48_000, 400_000]),
            spare_bytes: None,
            has_stripes: false,
            has_guest: false,
            is_churning: false,
            disk_latency_max: None,
            has_operator: false,
            faults,
            fault_count: random.between(2, 6) as usize,
            is_logged: false,
        };
        let is_tight = faults.strands && random.chance(80);
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
        plan
    }

    /// Makes it a plan in which freed blocks are wanted at once.
    fn churn(&mut self, random: &mut Random) {
        self.is_churning = true;
        self.has_guest = self.faults.stragglers;
        self.workers = 2;
        self.steps = random.between(30, 60) as usize;
        self.pause_max = Duration::from_millis(*random.of(&[5, 100]));
        self.write_max = 400_000;
        self.device_bytes = 4 << 20;
        self.spare_bytes = Some(*random.of(&[2 << 20, 3 << 20]));
        self.disk_latency_max = Some(Duration::from_millis(*random.of(&[1_000, 3_000])));
    }
}
