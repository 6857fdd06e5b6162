//! The report about a change of a running target.

use nvme::Nqn;
use serde::Serialize;
use std::fmt;
use std::net::SocketAddr;
use target::Namespace;

/// The result of a change.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    /// Each change in words.
    pub(super) changes: Vec<String>,
    /// What failed, or takes effect later.
    pub(super) warnings: Vec<String>,
    /// Number of controllers that were ended because their hosts lost access or had not
    /// authenticated.
    pub(super) controllers_ended: usize,
    /// Namespaces that were added or resized.
    pub(super) namespaces: Vec<NamespaceReport>,
    /// New addresses on which the target listens.
    pub(super) listeners: Vec<SocketAddr>,
    /// Subsystems that were added.
    pub(super) subsystems: Vec<String>,
}

/// A namespace that was added or resized.
#[derive(Debug, Serialize)]
pub(super) struct NamespaceReport {
    subsystem: String,
    nsid: u32,
    uuid: String,
    size_bytes: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<&str> =
            self.changes.iter().chain(&self.warnings).map(String::as_str).collect();
        f.write_str(if all.is_empty() { "nothing has changed" } else { "" })?;
        f.write_str(&all.join("; "))
    }
}

impl Report {
    /// Adds the result of another change.
    pub(super) fn add(&mut self, other: Self) {
        self.changes.extend(other.changes);
        self.warnings.extend(other.warnings);
        self.controllers_ended += other.controllers_ended;
        self.namespaces.extend(other.namespaces);
        self.listeners.extend(other.listeners);
        self.subsystems.extend(other.subsystems);
    }

    /// Adds a namespace that was added or resized.
    pub(super) fn note(&mut self, subsystem: &Nqn, namespace: &Namespace) {
        self.namespaces.push(NamespaceReport {
            subsystem: subsystem.to_string(),
            nsid: namespace.nsid().get(),
            uuid: uuid::Uuid::from_bytes(namespace.uuid()).to_string(),
            size_bytes: namespace.blocks() << namespace.block_shift(),
        });
    }
}
