//! One answer from several comparisons of alternatives.
//!
//! Each comparison has two of the alternatives only: if tmpfs beats ext4 and ext4 beats xfs, the advice must
//! not contain both tmpfs and ext4. Wins are the edges of a graph. The advice names the alternatives that win
//! somewhere and lose nowhere. If each loses somewhere, the comparisons contradict each other and there is no
//! advice.

use super::{Told, share};
use base::statistics::Verdict;
use std::collections::BTreeSet;

/// The relation of two alternatives over some rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// All rows are equivalent.
    Same,
    /// The other is faster somewhere, and never slower.
    Other,
    /// The baseline is faster somewhere, and never slower.
    Baseline,
    /// Each is faster somewhere.
    Depends,
    /// No difference is proven.
    Unproven,
}

impl Way {
    /// Returns the relation that rows show.
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

/// Wins among alternatives, which an index names.
#[derive(Clone, Debug, Default)]
pub(super) struct Choice {
    /// The better and the worse.
    wins: BTreeSet<(usize, usize)>,
    /// Alternatives in a pair in which each is better somewhere.
    open: BTreeSet<usize>,
}

impl Choice {
    /// Adds the finding of a comparison.
    pub(super) fn add(&mut self, baseline: usize, other: usize, way: Way) {
        match way {
            Way::Other => self.wins.extend([(other, baseline)]),
            Way::Baseline => self.wins.extend([(baseline, other)]),
            Way::Depends => self.open.extend([baseline, other]),
            Way::Same | Way::Unproven => {}
        }
    }

    /// Returns the alternatives that win somewhere and lose nowhere, if none of them is better in some cells
    /// only.
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

    /// Goal: a chain has one answer, a cycle none; two alternatives that were never compared are both named;
    /// an alternative that is better in some cells only is not advised.
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

    /// Goal: no alternative is advised that loses to another, whatever the comparisons find.
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
