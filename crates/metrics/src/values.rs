//! Numbers from other parts of the program, which are read for a snapshot.

use serde::{Deserialize, Serialize};
use std::sync::{Mutex, PoisonError};

/// A number with its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Value {
    /// Its name, without the prefix of this program.
    pub name: String,
    /// Its description, for people.
    pub help: String,
    /// Whether it only grows.
    pub is_counter: bool,
    /// Names and values of its labels.
    pub labels: Vec<(String, String)>,
    /// The number.
    pub value: u64,
}

impl Value {
    /// Returns a number that only grows.
    pub fn counter(name: &str, help: &str, value: u64) -> Value {
        Value { name: name.into(), help: help.into(), is_counter: true, labels: Vec::new(), value }
    }

    /// Returns a number that goes up and down.
    pub fn gauge(name: &str, help: &str, value: u64) -> Value {
        Value { is_counter: false, ..Value::counter(name, help, value) }
    }

    /// Adds a label.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Value {
        self.labels.push((name.into(), value.into()));
        self
    }
}

/// A function that reads numbers. It runs on the thread that takes a snapshot, and must not wait.
pub type Source = Box<dyn Fn() -> Vec<Value> + Send>;

static SOURCES: Mutex<Vec<Source>> = Mutex::new(Vec::new());

/// Adds a source for the rest of the process's life.
pub fn add_source(source: Source) {
    SOURCES.lock().unwrap_or_else(PoisonError::into_inner).push(source);
}

/// A function that returns sentences about problems. It runs on the thread that takes a snapshot,
/// and must not wait.
pub type Notes = Box<dyn Fn() -> Vec<String> + Send>;

static NOTES: Mutex<Vec<Notes>> = Mutex::new(Vec::new());

/// Adds a source of sentences about problems, for the rest of the process's life. The sentences may
/// name inodes: Prometheus does not get them.
pub fn add_notes(notes: Notes) {
    NOTES.lock().unwrap_or_else(PoisonError::into_inner).push(notes);
}

/// Returns the sentences of all sources.
pub(crate) fn read_notes() -> Vec<String> {
    let sources = NOTES.lock().unwrap_or_else(PoisonError::into_inner);
    sources.iter().flat_map(|source| source()).collect()
}

/// Returns the numbers of all sources.
pub(crate) fn read() -> Vec<Value> {
    let sources = SOURCES.lock().unwrap_or_else(PoisonError::into_inner);
    sources.iter().flat_map(|source| source()).collect()
}
