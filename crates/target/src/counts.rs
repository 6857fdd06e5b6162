//! What a namespace has served, in bytes and commands.
//!
//! A queue pair gathers its own numbers in a [`Tally`] and adds them to the shared [`Counters`]
//! once per loop turn, before the responses leave. So no command touches memory of another core, and yet a host
//! that has seen a response finds it counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// A snapshot of a namespace's counters since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct NamespaceCounts {
    /// Bytes read by clients of the same node, past the socket.
    pub read_local_bytes: u64,
    /// Bytes read over NVMe/TCP.
    pub read_remote_bytes: u64,
    /// Bytes written by clients of the same node, past the socket.
    pub written_local_bytes: u64,
    /// Bytes written over NVMe/TCP.
    pub written_remote_bytes: u64,
    /// Read and compare commands.
    pub read_commands: u64,
    /// Write and write-zeroes commands.
    pub write_commands: u64,
    /// Commands of all kinds.
    pub commands: u64,
    /// Commands that ended with an error of the medium.
    pub media_errors: u64,
    /// Commands and connections refused because their host was not admitted.
    pub refused: u64,
}

/// Where the bytes of a command went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A client of the same node, past the socket.
    Local,
    /// A host on the fabric.
    Remote,
}

/// The counters of one namespace.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    read_local_bytes: AtomicU64,
    read_remote_bytes: AtomicU64,
    written_local_bytes: AtomicU64,
    written_remote_bytes: AtomicU64,
    read_commands: AtomicU64,
    write_commands: AtomicU64,
    commands: AtomicU64,
    media_errors: AtomicU64,
    refused: AtomicU64,
}

/// Numbers that are yet to be added to a namespace's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) read_commands: u64,
    pub(crate) write_commands: u64,
    pub(crate) commands: u64,
    pub(crate) media_errors: u64,
    pub(crate) refused: u64,
}

impl Counters {
    pub(crate) fn add(&self, tally: &Tally, origin: Origin) {
        let (read_bytes, written_bytes) = match origin {
            Origin::Local => (&self.read_local_bytes, &self.written_local_bytes),
            Origin::Remote => (&self.read_remote_bytes, &self.written_remote_bytes),
        };
        for (counter, number) in [
            (read_bytes, tally.read_bytes),
            (written_bytes, tally.written_bytes),
            (&self.read_commands, tally.read_commands),
            (&self.write_commands, tally.write_commands),
            (&self.commands, tally.commands),
            (&self.media_errors, tally.media_errors),
            (&self.refused, tally.refused),
        ] {
            if number != 0 {
                counter.fetch_add(number, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn snapshot(&self) -> NamespaceCounts {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        NamespaceCounts {
            read_local_bytes: load(&self.read_local_bytes),
            read_remote_bytes: load(&self.read_remote_bytes),
            written_local_bytes: load(&self.written_local_bytes),
            written_remote_bytes: load(&self.written_remote_bytes),
            read_commands: load(&self.read_commands),
            write_commands: load(&self.write_commands),
            commands: load(&self.commands),
            media_errors: load(&self.media_errors),
            refused: load(&self.refused),
        }
    }
}
