//! The generator behind `srandom`, `random`, `srand` and `rand` of the GNU C library, from which IOR
//! draws its orders: readers and offsets follow from a seed exactly as they do there.
//!
//! Additive feedback: o(i) = o(i-3) + o(i-31) over 32 bits, shown without its lowest bit. The first
//! 31 words come from the minimal standard generator (Park and Miller 1988), and the first 310
//! results are thrown away.

const WORDS: usize = 31;
const LAG: usize = 3;
const DISCARDED: usize = 310;
const MODULUS: i64 = 2_147_483_647;

/// A generator.
#[derive(Clone, Debug)]
pub(super) struct LibcRandom {
    words: [u32; WORDS],
    next: usize,
}

impl LibcRandom {
    /// As after `srandom(seed)`.
    pub(super) fn new(seed: u32) -> Self {
        let mut words = [0; WORDS];
        // The seed is signed there; 0 counts as 1.
        let mut word = i64::from(seed.max(1) as i32);
        for slot in &mut words {
            *slot = word as u32;
            word = (16807 * word) % MODULUS;
            if word < 0 {
                word += MODULUS;
            }
        }
        let mut random = Self { words, next: LAG };
        for _ in 0..DISCARDED {
            random.draw();
        }
        random
    }

    /// As `random()`: 31 bits.
    pub(super) fn draw(&mut self) -> u32 {
        let behind = (self.next + WORDS - LAG) % WORDS;
        self.words[self.next] = self.words[self.next].wrapping_add(self.words[behind]);
        let drawn = self.words[self.next] >> 1;
        self.next = (self.next + 1) % WORDS;
        drawn
    }

    /// `random() % bound`; 0 for an empty range.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { u64::from(self.draw()) % bound }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: numbers are those of the C library (values printed by a C program with glibc 2.36).
    #[test]
    fn numbers_are_those_of_the_c_library() {
        for (seed, expected) in EXPECTED {
            let mut random = LibcRandom::new(seed);
            let drawn: Vec<u32> = (0..5).map(|_| random.draw()).collect();
            assert_eq!(drawn, expected, "seed {seed}");
        }
        let mut random = LibcRandom::new(1);
        let thousandth = (0..1000).map(|_| random.draw()).last();
        assert_eq!(thousandth, Some(THOUSANDTH));
    }

    const EXPECTED: [(u32, [u32; 5]); 6] = [
        (0, [1_804_289_383, 846_930_886, 1_681_692_777, 1_714_636_915, 1_957_747_793]),
        (1, [1_804_289_383, 846_930_886, 1_681_692_777, 1_714_636_915, 1_957_747_793]),
        (2, [1_505_335_290, 1_738_766_719, 190_686_788, 260_874_575, 747_983_061]),
        (42, [71_876_166, 708_592_740, 1_483_128_881, 907_283_241, 442_951_012]),
        (1_795_213_138, [1_226_017_961, 100_430_505, 2_026_311_118, 315_126_142, 1_028_493_368]),
        (4_294_967_295, [254_925_627, 1_205_188_300, 366_127_624, 1_401_405_153, 76_053_476]),
    ];
    const THOUSANDTH: u32 = 1_143_565_421;
}
