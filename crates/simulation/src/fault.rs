//! The kinds of faults, and how often each strikes a cluster.

use protocol::times;
use std::time::Duration;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Fault {
    /// Connections are broken.
    Reset,
    /// A link, or all links of a node, are cut and later repaired.
    Cut,
    /// One direction of a link is cut and later repaired.
    CutOneWay,
    /// A link, or all links of a node, delay messages by up to seconds.
    SlowLink,
    /// Messages of existing connections are held back, while new connections work.
    Hold,
    /// The same for minutes: longer than any session lives.
    LongHold,
    /// Messages that a node has sent over a connection arrive again over another one. The first
    /// connection may have ended.
    Duplicate,
    /// A node's process is killed and started again.
    NodeKill,
    /// The metadata service is killed and started again.
    MetaKill,
    /// While a process recovers from being killed, it or another process is killed.
    CrashTwice,
    /// A node ends its session, leaves and comes back; or a new node joins.
    Leave,
    /// A node's process is stopped, perhaps for longer than its session lives.
    Pause,
    /// A machine, possibly that of the metadata service, is suspended; disk and network stop too.
    Suspend,
    /// A wall clock is set forward or back. That of the metadata service may be set while the
    /// service is down.
    ClockStep,
    /// A node with a write on its way is cut off from the target and from the metadata service, or
    /// paused. This lasts until its session has ended, but not until its admission lapses.
    Strand,
    /// One connection is stuck with a write on it, and its node is cut off from the metadata
    /// service until its session has ended. The write arrives before the target notices that the
    /// host is silent.
    Straggle,
    /// A node that the metadata service cannot reach continues to read what it has cached, while
    /// other nodes change it.
    Onlook,
    /// A node loses power: unflushed writes are lost or torn.
    NodePower,
    /// The metadata service's machine loses power: unsynced data of its store are lost.
    MetaPower,
    /// A device answers reads, writes or flushes with EIO.
    DeviceBroken,
    /// A device answers writes with ENOSPC.
    DeviceFull,
    /// Bits of data flip while they are read from a device.
    Flip,
    /// The store of the metadata service has no space left.
    StoreFull,
    /// A commit or sync of the store fails with EIO. The metadata service ends and is restarted.
    StoreBroken,
    /// Disks have slow phases in which commands miss their deadline. This kind is not chosen by
    /// weight: see [`Plan::disk_latency_max`](crate::Plan).
    SlowDisk,
}

/// How long after its end a fault explains errors and waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach {
    /// `None`: the fault explains no error.
    pub(crate) errors: Option<Duration>,
    /// `None`: the fault explains no wait.
    pub(crate) waits: Option<Duration>,
}

/// After a fault a silent client's session lives until its deadline. Then the service fences it. If
/// the service cannot reach a target to do so, it waits until the admission there lapses.
const RECOVERED_AFTER: Duration = times::SESSION_DEADLINE.saturating_add(times::ADMISSION_LAPSE);
/// Time until a host notices a broken connection, connects again and repeats the lost messages.
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

    /// Returns what the fault explains.
    pub(crate) fn reach(self) -> Reach {
        let (errors, waits) = match self {
            Fault::ClockStep => (None, None),
            // A target ends a host's earlier connections when the host seems to connect again.
            Fault::Reset | Fault::Duplicate => (None, Some(RECONNECTED_AFTER)),
            // Lost data stay lost.
            Fault::NodePower | Fault::MetaPower | Fault::DeviceBroken => {
                (Some(Duration::MAX), Some(RECOVERED_AFTER))
            }
            _ => (Some(RECOVERED_AFTER), Some(RECOVERED_AFTER)),
        };
        Reach { errors, waits }
    }
}

/// The kinds of faults that may strike a cluster, with their relative frequencies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults([u32; Fault::ALL.len()]);

impl Faults {
    /// Returns these kinds with their weights.
    pub fn of(weights: &[(Fault, u32)]) -> Faults {
        let mut faults = Faults::default();
        for (fault, weight) in weights {
            faults.0[*fault as usize] = *weight;
        }
        faults
    }

    /// Returns the set with this kind added, or with its weight replaced.
    #[must_use]
    pub fn with(mut self, fault: Fault, weight: u32) -> Faults {
        self.0[fault as usize] = weight;
        self
    }

    /// Whether this kind may strike.
    pub fn has(&self, fault: Fault) -> bool {
        self.0[fault as usize] > 0
    }

    /// Whether the set is empty.
    pub fn is_none(&self) -> bool {
        *self == Faults::default()
    }

    /// Returns the sum of all weights.
    pub(crate) fn total(&self) -> u64 {
        self.0.iter().map(|weight| u64::from(*weight)).sum()
    }

    /// Returns the kind for a number below [`Faults::total`].
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
