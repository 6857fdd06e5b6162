//! The kinds of misfortunes, and how often each befalls a cluster.

use protocol::times;
use std::time::Duration;

/// What may befall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Fault {
    /// Connections are broken.
    Reset,
    /// A link is cut, or all of a node's, and mended.
    Cut,
    /// One direction of a link is cut and mended.
    CutOneWay,
    /// A link, or all of a node's, takes up to seconds one way.
    SlowLink,
    /// What connections carry is held back, while new ones work.
    Hold,
    /// The same for minutes: longer than any session lives.
    LongHold,
    /// What a node has sent over a connection, which may have ended, arrives again over another one.
    Duplicate,
    /// A node's process is killed and started again.
    NodeKill,
    /// The metadata service is killed and started again.
    MetaKill,
    /// While one of them recovers from being killed, it or another one is killed.
    CrashTwice,
    /// A node ends its session, goes, and comes back; or a node comes that was not there yet.
    Leave,
    /// A node's process is stopped, perhaps for longer than its session lives.
    Pause,
    /// A machine, also that of the metadata service, is suspended: disk and network stand still too.
    Suspend,
    /// A wall clock is set forward or back, that of the metadata service also while it is away.
    ClockStep,
    /// A node with a write on its way is cut off from where it goes and from the metadata service,
    /// or paused, until its session has ended, but not until its admission lapses by itself.
    Strand,
    /// One connection is stuck with a write on it, and its node cut off from the metadata service, until
    /// its session has ended; the write arrives before the target has missed its host.
    Straggle,
    /// A node that the metadata service does not reach goes on looking at what it knows, while others change it.
    Onlook,
    /// A node loses power: unflushed writes are lost or torn.
    NodePower,
    /// The metadata service's machine loses power: what its store has not synced is lost.
    MetaPower,
    /// A device answers reads, writes or flushes with EIO.
    DeviceBroken,
    /// A device answers writes with ENOSPC.
    DeviceFull,
    /// Bits of what is read from a device flip on the way.
    Flip,
    /// The store of the metadata service has no room.
    StoreFull,
    /// A commit or a sync of the store fails with EIO; the metadata service ends and is started again.
    StoreBroken,
    /// Disks are slow by phases, so much that commands miss their deadline. This is not chosen by weight: see
    /// [`Plan::disk_latency_max`](crate::Plan).
    SlowDisk,
}

/// How long after its end a misfortune explains errors and waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach {
    /// `None`: it explains no error.
    pub(crate) errors: Option<Duration>,
    /// `None`: it explains no wait.
    pub(crate) waits: Option<Duration>,
}

/// After a misfortune the session of who was silent lives for its deadline; then it is fenced, and a target that
/// cannot be asked for that has to let its admission lapse.
const RECOVERED_AFTER: Duration = times::SESSION_DEADLINE.saturating_add(times::ADMISSION_LAPSE);
/// How long a connection that was broken takes to be noticed, made again and to carry what was lost.
const RECONNECTED_AFTER: Duration = times::TARGET_DEADLINE.saturating_mul(2);

impl Fault {
    /// All kinds, in the order of their numbers, with their names in counts.
    pub(crate) const ALL: [(Fault, &'static str); 25] = [
        (Fault::Reset, "resets"),
        (Fault::Cut, "cuts"),
        (Fault::CutOneWay, "one_way_cuts"),
        (Fault::SlowLink, "slow_links"),
        (Fault::Hold, "holds"),
        (Fault::LongHold, "long_holds"),
        (Fault::Duplicate, "duplicates"),
        (Fault::NodeKill, "node_kills"),
        (Fault::MetaKill, "meta_kills"),
        (Fault::CrashTwice, "double_crashes"),
        (Fault::Leave, "leaves"),
        (Fault::Pause, "pauses"),
        (Fault::Suspend, "suspends"),
        (Fault::ClockStep, "clock_steps"),
        (Fault::Strand, "strands"),
        (Fault::Straggle, "stragglers"),
        (Fault::Onlook, "onlookers"),
        (Fault::NodePower, "node_power_losses"),
        (Fault::MetaPower, "meta_power_losses"),
        (Fault::DeviceBroken, "broken_devices"),
        (Fault::DeviceFull, "full_devices"),
        (Fault::Flip, "flipping_devices"),
        (Fault::StoreFull, "full_stores"),
        (Fault::StoreBroken, "broken_stores"),
        (Fault::SlowDisk, "slow_disks"),
    ];

    /// What it explains.
    pub(crate) fn reach(self) -> Reach {
        let (errors, waits) = match self {
            Fault::ClockStep => (None, None),
            // A host that seems to connect anew loses its earlier connections.
            Fault::Reset | Fault::Duplicate => (None, Some(RECONNECTED_AFTER)),
            // What was lost is lost for good.
            Fault::NodePower | Fault::MetaPower | Fault::DeviceBroken => {
                (Some(Duration::MAX), Some(RECOVERED_AFTER))
            }
            _ => (Some(RECOVERED_AFTER), Some(RECOVERED_AFTER)),
        };
        Reach { errors, waits }
    }
}

/// Which misfortunes may befall a cluster, and how often each in proportion to the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults([u32; Fault::ALL.len()]);

impl Faults {
    /// These, by their weights.
    pub fn of(weights: &[(Fault, u32)]) -> Faults {
        let mut faults = Faults::default();
        for (fault, weight) in weights {
            faults.0[*fault as usize] = *weight;
        }
        faults
    }

    /// With another one, or with another weight of it.
    #[must_use]
    pub fn with(mut self, fault: Fault, weight: u32) -> Faults {
        self.0[fault as usize] = weight;
        self
    }

    /// Whether it may befall.
    pub fn has(&self, fault: Fault) -> bool {
        self.0[fault as usize] > 0
    }

    /// Whether nothing may.
    pub fn is_none(&self) -> bool {
        *self == Faults::default()
    }

    /// The sum of all weights.
    pub(crate) fn total(&self) -> u64 {
        self.0.iter().map(|weight| u64::from(*weight)).sum()
    }

    /// The kind that a number below [`Faults::total`] stands for.
    pub(crate) fn pick(&self, mut number: u64) -> Option<Fault> {
        for (fault, _) in Fault::ALL {
            let weight = u64::from(self.0[fault as usize]);
            if number < weight {
                return Some(fault);
            }
            number -= weight;
        }
        None
    }
}
