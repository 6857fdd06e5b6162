//! The record of a run, a story of numbered lines: calls and answers of each worker, and faults.
//!
//! It is stored outside the run, so that it survives a panic of the run.

use crate::kept::StepKey;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Largest number of printed lines of a story; half of them are from its begin.
const LINES_MAX: usize = 400;

/// The record that a run leaves behind, whether it ends or panics.
#[derive(Debug, Default)]
pub(crate) struct Story {
    keeps_lines: bool,
    kept: Mutex<Parts>,
}

#[derive(Debug, Default)]
struct Parts {
    lines: Vec<String>,
    /// Calls under way, by caller, with the number of lines when they began.
    open: BTreeMap<String, (String, usize)>,
    steps: Vec<StepKey>,
    /// Number of violations so far; the next field is the number of lines at the first one.
    wrong: usize,
    until: Option<usize>,
}

impl Story {
    /// Returns an empty story. Without `keeps_lines` it records only the steps that were taken.
    pub(crate) fn new(keeps_lines: bool) -> Story {
        Story { keeps_lines, ..Story::default() }
    }

    /// Whether lines are kept.
    pub(crate) fn keeps_lines(&self) -> bool {
        self.keeps_lines
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        // The record of a run that panicked is wanted too.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an event.
    pub(crate) fn record(&self, text: impl FnOnce() -> String) {
        if self.keeps_lines {
            let text = text();
            self.parts().lines.push(text);
        }
    }

    /// Records violations. The first ones end the story.
    pub(crate) fn wrong(&self, wrong: &[String]) {
        let mut parts = self.parts();
        if parts.wrong < wrong.len() {
            let new = wrong[parts.wrong..].iter().map(|wrong| format!("WRONG: {wrong}"));
            parts.lines.extend(new);
            parts.wrong = wrong.len();
            let lines = parts.lines.len();
            parts.until.get_or_insert(lines);
        }
    }

    /// Records the begin of a call.
    pub(crate) fn begin(&self, caller: impl FnOnce() -> String, call: &str) {
        if self.keeps_lines {
            let (caller, mut parts) = (caller(), self.parts());
            let lines = parts.lines.len();
            let before = parts.open.insert(caller.clone(), (call.to_owned(), lines));
            if let Some((call, since)) = before {
                let text =
                    format!("{caller}: {call}: without an answer (begun after line {since})");
                parts.lines.push(text);
            }
        }
    }

    /// Adds details to the present call of a caller.
    pub(crate) fn add(&self, caller: impl FnOnce() -> String, more: impl FnOnce() -> String) {
        if self.keeps_lines {
            let (caller, more) = (caller(), more());
            if let Some((call, _)) = self.parts().open.get_mut(&caller) {
                call.push_str(&more);
            }
        }
    }

    /// Records the end of a caller's call. Returns the call with the number of lines at its begin.
    pub(crate) fn end(&self, caller: &str) -> Option<(String, usize)> {
        self.parts().open.remove(caller)
    }

    /// Returns the number of lines.
    pub(crate) fn lines(&self) -> usize {
        self.parts().lines.len()
    }

    /// Records that a worker takes a step.
    pub(crate) fn step(&self, step: StepKey) {
        self.parts().steps.push(step);
    }

    /// Returns the steps that were taken.
    pub(crate) fn steps(&self) -> Vec<StepKey> {
        self.parts().steps.clone()
    }

    /// Returns the numbered lines up to the first violation, the calls that had not ended, and the
    /// other violations.
    pub(crate) fn text(&self, wrong: &[String]) -> Vec<String> {
        let parts = self.parts();
        let until = parts.until.unwrap_or(parts.lines.len());
        let is_open = |(_, (_, since)): &(&String, &(String, usize))| {
            parts.until.is_none() && *since <= until
        };
        let open = parts.open.iter().filter(is_open).map(|(caller, (call, since))| {
            format!("{caller}: {call}: without an answer (begun after line {since})")
        });
        let lines = &parts.lines[..until];
        let mut more: Vec<String> = wrong.iter().map(|wrong| format!("WRONG: {wrong}")).collect();
        more.dedup();
        more.retain(|wrong| !lines.contains(wrong));
        let lines = lines.iter().cloned().chain(open).chain(more);
        let mut lines: Vec<String> =
            lines.enumerate().map(|(at, line)| format!("{:4}. {line}", at + 1)).collect();
        if lines.len() > LINES_MAX {
            let left_out = LINES_MAX / 2..lines.len() - LINES_MAX / 2;
            let text = format!("      ({} lines are left out)", left_out.len());
            lines.splice(left_out, [text]);
        }
        lines
    }
}
