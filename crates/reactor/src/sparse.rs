//! Log lines that a stranger can cause, limited so that they cannot fill a disk.

use crate::time::{Instant, now};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Number of lines that are written at once after a quiet period.
const LINES_FIRST: u32 = 5;
/// Period of one further line.
const PERIOD: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct State {
    since: Option<Instant>,
    left: u32,
    suppressed: u64,
}

/// Decides for each event of one kind whether it is worth a line: the first five are, and then one
/// in ten seconds, which states how many were left out.
///
/// ```
/// static REFUSALS: reactor::Sparse = reactor::Sparse::new();
/// if let Some(suppressed) = REFUSALS.pass() {
///     println!("a connection is refused ({suppressed} more since the last line)");
/// }
/// ```
#[derive(Debug)]
pub struct Sparse(Mutex<State>);

impl Sparse {
    /// Makes one that has counted no event.
    #[allow(clippy::new_without_default, reason = "it is for statics")]
    pub const fn new() -> Self {
        Self(Mutex::new(State { since: None, left: LINES_FIRST, suppressed: 0 }))
    }

    /// Counts an event. Returns the number of events that were left out since the last line if this
    /// one is worth a line.
    pub fn pass(&self) -> Option<u64> {
        self.pass_at(now())
    }

    fn pass_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A simulation's clock starts again with each simulation.
        let is_over = |since: Instant| now < since || now.since(since) >= PERIOD;
        if state.since.is_none_or(is_over) {
            state.since = Some(now);
            state.left = if state.suppressed > 0 { 1 } else { LINES_FIRST };
        }
        if state.left == 0 {
            state.suppressed += 1;
            return None;
        }
        state.left -= 1;
        Some(std::mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the first events are lines, a flood is one line per period with the number of the
    /// others, and every event is counted once.
    #[test]
    fn floods_are_counted() {
        let (sparse, begin) = (Sparse::new(), now());
        let mut lines = Vec::new();
        for number in 0..40_000_u32 {
            // A thousand a second.
            lines.extend(sparse.pass_at(begin + Duration::from_millis(number.into())));
        }
        assert_eq!(lines, [0, 0, 0, 0, 0, 9_995, 9_999, 9_999]);
        // The first line after the flood states what it left out, and then no more lines follow.
        let later = begin + Duration::from_mins(1);
        assert_eq!(sparse.pass_at(later), Some(9_999));
        assert_eq!(sparse.pass_at(later), None);
        assert_eq!(sparse.pass_at(later + PERIOD), Some(1));
        let peace = later + 2 * PERIOD;
        assert!((0..LINES_FIRST).all(|_| sparse.pass_at(peace) == Some(0)));
    }
}
