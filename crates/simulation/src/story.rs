//! What happened in a run, as a story of numbered lines: what each worker asked for and was answered, and
//! what befell.
//!
//! It lies outside the run, so that it is there when the run panics.

use crate::kept::StepKey;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lines of a story that are printed at most: half of them from its begin.
const LINES_MAX: usize = 400;

/// What a run leaves behind, whether it ends or panics.
#[derive(Debug, Default)]
pub(crate) struct Story {
    is_told: bool,
    kept: Mutex<Parts>,
}

#[derive(Debug, Default)]
struct Parts {
    lines: Vec<String>,
    /// Calls that are under way, by who makes them, with the number of lines when they began.
    open: BTreeMap<String, (String, usize)>,
    steps: Vec<StepKey>,
    /// What was wrong so far, and how many lines there were when something first was.
    wrong: usize,
    until: Option<usize>,
}

impl Story {
    /// A story; without `is_told` it keeps no lines, only which steps were taken.
    pub(crate) fn new(is_told: bool) -> Story {
        Story { is_told, ..Story::default() }
    }

    /// Whether lines are kept.
    pub(crate) fn is_told(&self) -> bool {
        self.is_told
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        // What a run that panicked has left is what is wanted.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something happens.
    pub(crate) fn tell(&self, text: impl FnOnce() -> String) {
        if self.is_told {
            let text = text();
            self.parts().lines.push(text);
        }
    }

    /// So much has been wrong so far: what is new is told, and ends the story.
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

    /// Somebody begins a call.
    pub(crate) fn begin(&self, who: impl FnOnce() -> String, call: &str) {
        if self.is_told {
            let (who, mut parts) = (who(), self.parts());
            let lines = parts.lines.len();
            let before = parts.open.insert(who.clone(), (call.to_owned(), lines));
            if let Some((call, since)) = before {
                let text = format!("{who}: {call}: without an answer (begun after line {since})");
                parts.lines.push(text);
            }
        }
    }

    /// More about the call that somebody has begun.
    pub(crate) fn add(&self, who: impl FnOnce() -> String, more: impl FnOnce() -> String) {
        if self.is_told {
            let (who, more) = (who(), more());
            if let Some((call, _)) = self.parts().open.get_mut(&who) {
                call.push_str(&more);
            }
        }
    }

    /// Somebody's call ends; answers it with the number of lines that were there when it began.
    pub(crate) fn end(&self, who: &str) -> Option<(String, usize)> {
        self.parts().open.remove(who)
    }

    /// So many lines are there.
    pub(crate) fn lines(&self) -> usize {
        self.parts().lines.len()
    }

    /// A worker takes a step.
    pub(crate) fn step(&self, step: StepKey) {
        self.parts().steps.push(step);
    }

    /// The steps that were taken.
    pub(crate) fn steps(&self) -> Vec<StepKey> {
        self.parts().steps.clone()
    }

    /// All lines up to what was wrong first, numbered, with the calls that had not ended, and all else that is
    /// wrong.
    pub(crate) fn told(&self, wrong: &[String]) -> Vec<String> {
        let parts = self.parts();
        let until = parts.until.unwrap_or(parts.lines.len());
        let is_open = |(_, (_, since)): &(&String, &(String, usize))| {
            parts.until.is_none() && *since <= until
        };
        let open = parts.open.iter().filter(is_open).map(|(who, (call, since))| {
            format!("{who}: {call}: without an answer (begun after line {since})")
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
