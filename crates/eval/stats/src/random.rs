//! Random numbers that follow from a seed: the same plan on every machine and after every restart.
//!
//! `SplitMix64` (Steele, Lea, Flood, OOPSLA 2014): one word of state, so that a round's order follows
//! from the plan's seed and the round's number alone and a resumed experiment needs no saved state.

/// A generator.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates a generator with this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the generator of one part of a seeded whole: parts do not follow from each other.
    pub fn of(seed: u64, part: u64) -> Self {
        let mut mixed = Self(seed ^ part.wrapping_mul(0xd134_2543_de82_ef95));
        Self(mixed.next_u64())
    }

    /// Returns 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Returns a uniform number in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a uniform number in [0, `bound`); 0 for an empty range. The bias of the remainder is below
    /// `bound` / 2⁶⁴.
    pub fn below(&mut self, bound: usize) -> usize {
        if bound == 0 { 0 } else { (self.next_u64() % bound as u64) as usize }
    }

    /// Returns a normal number with mean 0 and deviation 1 (Box and Muller 1958).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Puts the items in a random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            items.swap(end, self.below(end + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an order follows from the seed, every item stays, and all orders occur.
    #[test]
    fn shuffles_are_permutations() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let mut items = [0, 1, 2, 3];
            Random::of(7, seed).shuffle(&mut items);
            let mut again = [0, 1, 2, 3];
            Random::of(7, seed).shuffle(&mut again);
            assert_eq!(items, again);
            seen.insert(items);
        }
        assert_eq!(seen.len(), 24);
    }

    /// Goal: normal numbers have mean 0 and deviation 1.
    #[test]
    fn normal_numbers_are_normal() {
        let mut random = Random::new(3);
        let values: Vec<f64> = (0..20_000).map(|_| random.normal()).collect();
        let mean = values.iter().sum::<f64>() / 20_000.0;
        let square = values.iter().map(|value| value * value).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 0.03 && (square - 1.0).abs() < 0.05, "{mean} {square}");
    }
}
