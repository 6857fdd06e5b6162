//! The choice of a path for the next command.

use nvme::log_page::AnaState;
use std::str::FromStr;

/// Policies that distribute commands over the paths of a namespace, named as in Linux. An optimized
/// path always goes before one that is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoPolicy {
    /// The path to a target on this machine if there is one, otherwise the first. The other paths
    /// are spare.
    #[default]
    Numa,
    /// The paths in turn.
    RoundRobin,
    /// The path with the fewest commands under way.
    QueueDepth,
}

impl IoPolicy {
    /// All policies.
    pub const ALL: [Self; 3] = [Self::Numa, Self::RoundRobin, Self::QueueDepth];

    /// Returns the name, as Linux spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Numa => "numa",
            Self::RoundRobin => "round-robin",
            Self::QueueDepth => "queue-depth",
        }
    }
}

impl FromStr for IoPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let policy = Self::ALL.into_iter().find(|policy| policy.name() == text);
        let names = Self::ALL.map(Self::name).join(", ");
        policy.ok_or_else(|| format!("{text:?} is not a policy; use one of {names}"))
    }
}

/// A working path, with the properties that decide the choice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    /// Its index among all paths.
    pub(super) index: usize,
    pub(super) access: AnaState,
    pub(super) is_local: bool,
    /// Number of commands under way.
    pub(super) in_flight: usize,
}

/// Returns the path for the next command. `last` is the index of the previous path. [`None`] if no
/// candidate may be used.
pub(super) fn choose(
    policy: IoPolicy,
    candidates: &(impl Iterator<Item = Candidate> + Clone),
    last: usize,
) -> Option<usize> {
    [AnaState::Optimized, AnaState::NonOptimized].into_iter().find_map(|wanted| {
        let of_state = candidates.clone().filter(|candidate| candidate.access == wanted);
        let chosen = match policy {
            // The first of the smallest: false is less than true.
            IoPolicy::Numa => of_state.min_by_key(|it| !it.is_local),
            IoPolicy::RoundRobin => of_state.min_by_key(|it| (it.index <= last, it.index)),
            IoPolicy::QueueDepth => {
                of_state.min_by_key(|it| (it.in_flight, it.index <= last, it.index))
            }
        };
        chosen.map(|candidate| candidate.index)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(index: usize, access: AnaState, is_local: bool, in_flight: usize) -> Candidate {
        Candidate { index, access, is_local, in_flight }
    }

    /// Goal: each policy prefers optimized paths, and then the paths that its name says.
    #[test]
    fn policies_choose() {
        use AnaState::{Change, Inaccessible, NonOptimized, Optimized, PersistentLoss};
        use IoPolicy::{Numa, QueueDepth, RoundRobin};
        let pick = |policy, paths: &[Candidate], last| choose(policy, &paths.iter().copied(), last);
        let paths = [
            candidate(0, NonOptimized, true, 0),
            candidate(1, Optimized, false, 3),
            candidate(2, Optimized, true, 5),
            candidate(3, Optimized, false, 1),
        ];
        assert_eq!(pick(Numa, &paths, 0), Some(2));
        assert_eq!(pick(Numa, &paths[1..2], 0), Some(1));
        assert_eq!(pick(QueueDepth, &paths, 0), Some(3));
        let mut last = 0;
        let turns: Vec<usize> = (0..6)
            .map(|_| {
                last = pick(RoundRobin, &paths, last).unwrap();
                last
            })
            .collect();
        assert_eq!(turns, [1, 2, 3, 1, 2, 3]);
        let idle = [candidate(0, Optimized, true, 0), candidate(1, Optimized, true, 0)];
        assert_eq!((pick(QueueDepth, &idle, 0), pick(QueueDepth, &idle, 1)), (Some(1), Some(0)));
        for policy in IoPolicy::ALL {
            assert_eq!(pick(policy, &paths[..1], 0), Some(0), "better than none");
            let closed = [Inaccessible, PersistentLoss, Change].map(|it| candidate(0, it, true, 0));
            assert_eq!(pick(policy, &closed, 0), None);
            assert_eq!(policy.name().parse(), Ok(policy));
        }
        assert!("best".parse::<IoPolicy>().is_err());
    }
}
