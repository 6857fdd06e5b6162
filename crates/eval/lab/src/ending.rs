//! How experiments end, and how far they are.

use base::messages::Message;
use serde::{Deserialize, Serialize};

/// How far an experiment is: the run that was begun last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Round, from 1; 0 is warming up.
    pub round: u32,
    /// Cell by name.
    pub cell: String,
    /// Condition by name.
    pub condition: String,
    /// Runs that are done.
    pub done: u64,
    /// Runs up to the next look.
    pub total: u64,
    /// About how long until the next look.
    pub seconds_left: f64,
    /// When it began.
    pub begun_unix_ms: i64,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Every comparison is decided.
    Decided,
    /// The last look has been taken.
    AllRounds,
    /// A limit of the experiment was reached.
    Limit(Limit),
    /// The user ended it.
    Interrupted,
}

/// Limits of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Time.
    Time,
    /// Bytes that runs have written.
    Written,
}

impl Ending {
    /// For the report.
    pub fn message(self) -> Message {
        match self {
            Self::Decided => Message::EndedDecided,
            Self::AllRounds => Message::EndedAllRounds,
            Self::Limit(Limit::Time) => Message::EndedTime,
            Self::Limit(Limit::Written) => Message::EndedWritten,
            Self::Interrupted => Message::EndedInterrupted,
        }
    }

    /// The same in English, as it is stored.
    pub fn label(self) -> &'static str {
        self.message().english()
    }

    /// Whether an ending that was stored is for good: what was interrupted, or had no more time, can be
    /// gone on with.
    pub fn is_for_good(stored: &str) -> bool {
        [Self::Interrupted, Self::Limit(Limit::Time)].iter().all(|it| it.label() != stored)
    }
}
