//! The rounds after which results are judged, and the cost of judging more than once.
//!
//! Verdicts are computed at pre-set numbers of rounds only. Each of L looks gets an L-th of the error that
//! the whole experiment may make (Bonferroni): whatever the data does, the chance that any look is wrong
//! stays within it. An O'Brien–Fleming split would keep nearly all for the last look, and so could never end
//! an experiment early at n = 6 with the t-distribution's long tails.

/// Looks of full-length experiments: 6 is the smallest n with a finite 95 % interval of a median.
pub const LOOKS_DEFAULT: [u32; 5] = [6, 10, 15, 20, 30];

/// The looks of an experiment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookRule {
    looks: Vec<u32>,
}

impl Default for LookRule {
    fn default() -> Self {
        Self { looks: LOOKS_DEFAULT.to_vec() }
    }
}

impl LookRule {
    /// Creates a single look, at the end.
    pub fn once(rounds: u32) -> Self {
        Self { looks: vec![rounds] }
    }

    /// Looks after these numbers of rounds, which must grow and not be empty.
    pub fn new(looks: Vec<u32>) -> Option<Self> {
        let grows = looks.windows(2).all(|pair| pair[0] < pair[1]);
        (grows && !looks.is_empty()).then_some(Self { looks })
    }

    /// Returns the number of looks.
    pub fn count(&self) -> usize {
        self.looks.len()
    }

    /// Returns the rounds of the last look.
    pub fn rounds_max(&self) -> u32 {
        self.looks.last().copied().unwrap_or_default()
    }

    /// Returns the rounds of the first look.
    pub fn rounds_min(&self) -> u32 {
        self.looks.first().copied().unwrap_or_default()
    }

    /// Returns whether to look after this many rounds.
    pub fn is_look(&self, rounds: u32) -> bool {
        self.looks.contains(&rounds)
    }

    /// Returns the rounds after which to look.
    pub fn rounds(&self) -> &[u32] {
        &self.looks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::{ALPHA, Stake, verdict_of};

    /// Returns how often repeated looks at data without a difference end in "different"; neighbouring rounds
    /// resemble each other a little, as those of real devices do.
    fn false_positives(rule: &LookRule, looks_paid: usize) -> f64 {
        const TRIALS: u64 = 2000;
        let mut wrong = 0;
        for trial in 0..TRIALS {
            let mut random = Random::of(17, trial);
            let mut at = random.normal();
            let mut d = Vec::new();
            for _ in 0..rule.rounds_max() {
                d.push(0.1 * at);
                at = 0.5 * at + 0.75_f64.sqrt() * random.normal();
            }
            wrong += u32::from(rule.rounds().iter().any(|&n| {
                let stake = Stake { alpha: ALPHA, looks: looks_paid, together: 1 };
                verdict_of(&d[..n as usize], 1.05_f64.ln(), stake).is_different()
            }));
        }
        f64::from(wrong) / TRIALS as f64
    }

    /// Goal: five looks stay near 5 % (2000 trials: ± 1 %) although rounds are correlated by 0.5; without the
    /// correction they would not.
    #[test]
    fn looking_five_times_stays_within_the_error() {
        let rule = LookRule::new(LOOKS_DEFAULT.to_vec()).unwrap();
        let paid = false_positives(&rule, rule.count());
        assert!(paid <= 0.065, "{paid}");
        let unpaid = false_positives(&rule, 1);
        assert!(
            unpaid > 0.08 && unpaid > 1.5 * paid,
            "without the split it would not show: {unpaid}"
        );
    }

    /// Goal: looks that do not grow are refused.
    #[test]
    fn looks_must_grow() {
        assert!(LookRule::new(vec![]).is_none());
        assert!(LookRule::new(vec![6, 6]).is_none());
        let rule = LookRule::new(vec![6, 10]).unwrap();
        assert!(rule.is_look(6) && !rule.is_look(7) && rule.rounds_max() == 10);
    }
}
