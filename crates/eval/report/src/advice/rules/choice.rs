//! One answer from several comparisons of ways with each other.
//!
//! Each comparison knows two of the ways only: that tmpfs beats ext4 and ext4 beats xfs must not become
//! "take tmpfs" and "take ext4". Wins are the edges of a graph; advised are the ways that win somewhere and
//! lose nowhere. Where each loses somewhere, comparisons contradict each other and nothing is advised.

use super::{Told, share};
use base::statistics::Verdict;
use std::collections::BTreeSet;

/// What two ways are to each other over some rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// All rows are equivalent.
    Same,
    /// The other is faster somewhere, and nowhere slower.
    Other,
    /// The baseline is.
    Baseline,
    /// Each is faster somewhere.
    Depends,
    /// Nothing is proven.
    Unproven,
}

impl Way {
    /// What rows say.
    pub(super) fn of(rows: &[Told<'_>]) -> Self {
        let matters = |told: &Told<'_>| told.row.verdict == Verdict::DifferentMatters;
        let wins = rows.iter().any(|told| matters(told) && told.gain() > 0.0);
        let losses = rows.iter().any(|told| matters(told) && told.gain() < 0.0);
        let is_same = share(rows, |told| told.row.verdict == Verdict::Equivalent) >= 1.0;
        match (wins, losses) {
            (false, false) if is_same && !rows.is_empty() => Self::Same,
            (false, false) => Self::Unproven,
            (true, false) => Self::Other,
            (false, true) => Self::Baseline,
            (true, true) => Self::Depends,
        }
    }
}

/// Wins among ways, which are named by their index.
#[derive(Clone, Debug, Default)]
pub(super) struct Choice {
    /// The better and the worse.
    wins: BTreeSet<(usize, usize)>,
    /// Each of them is better somewhere.
    open: BTreeSet<usize>,
}

impl Choice {
    /// Adds what a comparison found.
    pub(super) fn add(&mut self, baseline: usize, other: usize, way: Way) {
        match way {
            Way::Other => self.wins.extend([(other, baseline)]),
            Way::Baseline => self.wins.extend([(baseline, other)]),
            Way::Depends => self.open.extend([baseline, other]),
            Way::Same | Way::Unproven => {}
        }
    }

    /// Those that win somewhere and lose nowhere, if none of them is better in some cells only.
    pub(super) fn best(&self) -> Vec<usize> {
        let losers: BTreeSet<usize> = self.wins.iter().map(|(_, worse)| *worse).collect();
        let winners: BTreeSet<usize> = self.wins.iter().map(|(better, _)| *better).collect();
        let best: Vec<usize> = winners.difference(&losers).copied().collect();
        if best.iter().any(|way| self.open.contains(way)) { Vec::new() } else { best }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::statistics::random::Random;

    /// Goal: a chain has one answer, a cycle none, two that were never compared are both named, and what
    /// depends on the cell is not advised.
    #[test]
    fn comparisons_agree_on_one_answer() {
        let best = |wins: &[(usize, usize, Way)]| {
            let mut choice = Choice::default();
            for (a, b, way) in wins {
                choice.add(*a, *b, *way);
            }
            choice.best()
        };
        assert_eq!(best(&[(0, 1, Way::Other), (1, 2, Way::Other)]), [2]);
        assert_eq!(best(&[(0, 1, Way::Baseline), (2, 1, Way::Baseline)]), [0, 2]);
        let cycle = [(0, 1, Way::Other), (1, 2, Way::Other), (2, 0, Way::Other)];
        assert_eq!(best(&cycle), [0_usize; 0]);
        assert_eq!(best(&[(0, 1, Way::Other), (1, 2, Way::Depends)]), [0_usize; 0]);
        assert_eq!(best(&[(0, 1, Way::Same)]), [0_usize; 0]);
    }

    /// Goal: whatever comparisons find, no way is advised that loses to another.
    #[test]
    fn no_way_that_loses_is_advised() {
        let ways = [Way::Same, Way::Other, Way::Baseline, Way::Depends, Way::Unproven];
        for trial in 0..2000 {
            let mut random = Random::of(3, trial);
            let found: Vec<(usize, usize, Way)> = (0..random.below(8))
                .map(|_| (random.below(5), random.below(5), ways[random.below(5)]))
                .filter(|(a, b, _)| a != b)
                .collect();
            let mut choice = Choice::default();
            for (a, b, way) in &found {
                choice.add(*a, *b, *way);
            }
            for best in choice.best() {
                assert!(found.iter().all(|(a, b, way)| match way {
                    Way::Other => *a != best,
                    Way::Baseline => *b != best,
                    Way::Depends => *a != best && *b != best,
                    Way::Same | Way::Unproven => true,
                }));
            }
        }
    }
}
