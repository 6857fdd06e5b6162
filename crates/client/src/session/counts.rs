//! What a session's calls to the metadata service cost: how many of which kind, and their bytes.

use protocol::client::Call;
use rpc::Traffic;
use serde::Serialize;
use std::collections::BTreeMap;

/// Calls to the metadata service, counted since the client's start; one that was sent again after a
/// lost connection counts again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CallCounts {
    /// All of them.
    #[serde(rename = "meta_calls")]
    pub calls: u64,
    /// By kind.
    #[serde(rename = "meta_calls_by_kind")]
    pub by_kind: BTreeMap<&'static str, u64>,
    /// Bytes sent to the service, with those of answers to recalls.
    #[serde(rename = "meta_sent_bytes")]
    pub sent_bytes: u64,
    /// Bytes received from it.
    #[serde(rename = "meta_received_bytes")]
    pub received_bytes: u64,
    /// Extents that commits named.
    pub committed_extents: u64,
}

impl CallCounts {
    /// Counts a call that is sent.
    pub(super) fn note(&mut self, call: &Call) {
        self.calls += 1;
        *self.by_kind.entry(kind(call)).or_default() += 1;
        if let Call::Commit { extents, .. } = call {
            self.committed_extents += extents.0.len() as u64;
        }
    }

    /// Adds what went over a connection.
    pub(super) fn add(&mut self, traffic: Traffic) {
        self.sent_bytes += traffic.sent_bytes;
        self.received_bytes += traffic.received_bytes;
    }
}

fn kind(call: &Call) -> &'static str {
    match call {
        Call::Heartbeat { .. } => "heartbeat",
        Call::Admit(_) => "admit",
        Call::PoolUse => "pool_use",
        Call::Lookup { .. } => "lookup",
        Call::GetAttr(_) => "get_attr",
        Call::ReadDir { .. } => "read_dir",
        Call::ReadLink(_) => "read_link",
        Call::Acquire { .. } => "acquire",
        Call::GiveBack(_) => "give_back",
        Call::SetAttr { .. } => "set_attr",
        Call::Create { .. } => "create",
        Call::Link { .. } => "link",
        Call::Unlink { .. } => "unlink",
        Call::Rmdir { .. } => "rmdir",
        Call::Rename { .. } => "rename",
        Call::GetXattr { .. } => "get_xattr",
        Call::ListXattr(_) => "list_xattr",
        Call::SetXattr { .. } => "set_xattr",
        Call::RemoveXattr { .. } => "remove_xattr",
        Call::ReadExtents { .. } => "read_extents",
        Call::Commit { .. } => "commit",
        Call::Fallocate { .. } => "fallocate",
        Call::CopyRange { .. } => "copy_range",
        Call::Sync { .. } => "sync",
        Call::LeaseSpace { .. } => "lease_space",
        Call::ReturnSpace { .. } => "return_space",
        Call::SetLock { .. } | Call::CancelLock { .. } | Call::Unlock(_) | Call::TestLock(_) => {
            "lock"
        }
        _ => "other",
    }
}
