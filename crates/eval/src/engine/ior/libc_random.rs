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
        (0, [1804289383, 846930886, 1681692777, 1714636915, 1957747793]),
        (1, [1804289383, 846930886, 1681692777, 1714636915, 1957747793]),
        (2, [1505335290, 1738766719, 190686788, 260874575, 747983061]),
        (42, [71876166, 708592740, 1483128881, 907283241, 442951012]),
        (1795213138, [1226017961, 100430505, 2026311118, 315126142, 1028493368]),
        (4294967295, [254925627, 1205188300, 366127624, 1401405153, 76053476]),
    ];
    const THOUSANDTH: u32 = 1143565421;
}
