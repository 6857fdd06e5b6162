//! Goal: records with any content, whose checksums are right, make the store neither panic nor show
//! what it would not show when opened again.
//!
//! Runs the function of `fuzz/union` for a fixed number of inputs from a fixed seed, so that every
//! build does a little of what coverage-guided fuzzing does at length.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, reason = "tests")]

// Public where it is a library of its own.
#[allow(unreachable_pub)]
#[path = "../../../fuzz/union/src/lib.rs"]
mod fuzz;

const INPUTS: u64 = 200;

/// xorshift64*: enough for inputs, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }
}

/// The body of a new file, or of a snapshot of one.
fn base(random: &mut Random, body: &mut Vec<u8>) {
    let size = random.below(20_000);
    body.extend(size.to_le_bytes());
    body.extend(random.below(size + 1).to_le_bytes());
    body.push(4);
    body.extend([0; 48 + 4 + 4 + 4 + 8]);
    body.extend(size.to_le_bytes());
    body.extend([0; 24]);
    let names = random.below(2) as u32 + u32::from(random.below(2) == 0);
    body.extend(names.to_le_bytes());
    for _ in 0..names {
        body.extend([1, 0, 0, 0, 7, 1, 0, 0, 0, random.below(6) as u8, 0, 0, 0, 0]);
    }
    body.extend([0; 4]);
}

/// A record with a body that is often of the right form.
fn record(random: &mut Random, input: &mut Vec<u8>, is_first: bool) {
    let kind = if is_first { 1 } else { random.below(18) as u8 };
    let mut body = Vec::new();
    let number =
        |random: &mut Random| [0, 1, 100, 4096, 20_000, u64::MAX][random.below(6) as usize];
    match kind {
        3..=7 => {
            for _ in 0..random.below(5) {
                body.extend(number(random).to_le_bytes());
            }
            body.extend([0; 4]);
        }
        8 => body.extend([0; 48]),
        9..=11 | 13 => {
            for _ in 0..=random.below(4) {
                let bytes = random.below(5) as u32;
                body.extend(bytes.to_le_bytes());
                body.extend((0..bytes).map(|byte| byte as u8));
            }
        }
        1 | 2 => base(random, &mut body),
        _ => {}
    }
    if random.below(4) == 0 && !body.is_empty() {
        let at = random.below(body.len() as u64) as usize;
        body[at] = random.next() as u8;
    }
    body.truncate(255);
    let data = random.below(80);
    let choice = if random.below(8) == 0 { random.next() as u8 } else { 0 };
    input.extend([choice, kind, random.below(4) as u8, body.len() as u8, data as u8]);
    input.extend(body);
    input.extend((0..data).map(|byte| byte as u8));
}

#[test]
fn any_records_are_replayed() {
    let mut random = Random(0x7473_756d_7567_6932);
    let mut files = 0;
    for _ in 0..INPUTS {
        let mut input = Vec::new();
        for number in 0..=random.below(12) {
            record(&mut random, &mut input, number == 0);
        }
        files += fuzz::journal(&input);
    }
    assert!(files > INPUTS as usize / 4, "only {files} files: the inputs say nothing");
}
