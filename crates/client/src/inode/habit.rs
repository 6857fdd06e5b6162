//! How the programs of this node use a file that they write: in small pieces, or in streams.

use std::cell::Cell;

/// A piece of this size or more is part of a stream.
const LARGE_BYTES: usize = 64 << 10;

/// Weight of one large piece, in small ones.
const LARGE_WEIGHT: i16 = 4;

/// Largest weight: it bounds how long a habit is remembered.
const WEIGHT_MAX: i16 = 64;

/// How a file is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Habit {
    /// The file was not used here yet.
    #[default]
    Unknown,
    /// In small pieces, here and there.
    Small,
    /// In large pieces.
    Streams,
}

/// The balance of large pieces and small ones.
#[derive(Debug, Default)]
pub(crate) struct Balance(Cell<i16>);

impl Balance {
    /// Notes a piece of this length.
    pub(crate) fn note(&self, length: usize) {
        let piece = if length >= LARGE_BYTES { LARGE_WEIGHT } else { -1 };
        self.0.set((self.0.get() + piece).clamp(-WEIGHT_MAX, WEIGHT_MAX));
    }

    /// Returns the habit that outweighs.
    pub(crate) fn habit(&self) -> Habit {
        match self.0.get() {
            0 => Habit::Unknown,
            ..0 => Habit::Small,
            1.. => Habit::Streams,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the habit is what was done most and last; a few pieces of the other kind do not change
    /// it.
    #[test]
    fn a_habit_is_what_was_done_most() {
        let balance = Balance::default();
        assert_eq!(balance.habit(), Habit::Unknown);
        (0..100).for_each(|_| balance.note(4096));
        assert_eq!(balance.habit(), Habit::Small);
        balance.note(1 << 20);
        assert_eq!(balance.habit(), Habit::Small, "one large piece");
        (0..16).for_each(|_| balance.note(1 << 20));
        assert_eq!(balance.habit(), Habit::Streams);
    }
}
