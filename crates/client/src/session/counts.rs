//! Counts of a session's calls to the metadata service: how many of each kind, and their bytes.

use protocol::client::{Call, ChangeCall, ReadCall, SessionCall};
use rpc::Traffic;
use serde::Serialize;
use std::collections::BTreeMap;

/// Calls to the metadata service since the client's start. A call that was sent again after a lost
/// connection counts again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CallCounts {
    /// All of them.
    #[serde(rename = "meta_calls")]
    pub calls: u64,
    /// By kind.
    #[serde(rename = "meta_calls_by_kind")]
    pub by_kind: BTreeMap<&'static str, u64>,
    /// Bytes sent to the service, including answers to recalls.
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
        if let Call::Change(ChangeCall::Commit { extents, .. }) = call {
            self.committed_extents += extents.0.len() as u64;
        }
    }

    /// Adds the traffic of a connection.
    pub(super) fn add(&mut self, traffic: Traffic) {
        self.sent_bytes += traffic.sent_bytes;
        self.received_bytes += traffic.received_bytes;
    }
}

fn kind(call: &Call) -> &'static str {
    match call {
        Call::Session(call) => session_kind(call),
        Call::Read(call) => read_kind(call),
        Call::Change(call) => change_kind(call),
    }
}

fn session_kind(call: &SessionCall) -> &'static str {
    match call {
        SessionCall::Heartbeat { .. } => "heartbeat",
        SessionCall::Admit(_) => "admit",
        SessionCall::Acquire { .. } => "acquire",
        SessionCall::GiveBack(_) => "give_back",
        SessionCall::Sync(_) => "sync",
        SessionCall::CancelLock { .. } | SessionCall::ReportLocks { .. } => "lock",
        SessionCall::Start { .. }
        | SessionCall::Reclaim { .. }
        | SessionCall::Pulse { .. }
        | SessionCall::End
        | SessionCall::Devices => "other",
    }
}

fn read_kind(call: &ReadCall) -> &'static str {
    match call {
        ReadCall::PoolUse => "pool_use",
        ReadCall::Lookup { .. } => "lookup",
        ReadCall::GetAttr(_) => "get_attr",
        ReadCall::ReadDir { .. } => "read_dir",
        ReadCall::ReadLink(_) => "read_link",
        ReadCall::GetXattr { .. } => "get_xattr",
        ReadCall::ListXattr(_) => "list_xattr",
        ReadCall::ReadExtents { .. } => "read_extents",
        ReadCall::TestLock(_) => "lock",
        ReadCall::ReadFiles(_) => "read_files",
    }
}

fn change_kind(call: &ChangeCall) -> &'static str {
    match call {
        ChangeCall::SetAttr { .. } => "set_attr",
        ChangeCall::Create { .. } => "create",
        ChangeCall::CreateFiles { .. } => "create_files",
        ChangeCall::Link { .. } => "link",
        ChangeCall::Unlink { .. } => "unlink",
        ChangeCall::Rmdir { .. } => "rmdir",
        ChangeCall::Rename { .. } => "rename",
        ChangeCall::SetXattr { .. } => "set_xattr",
        ChangeCall::RemoveXattr { .. } => "remove_xattr",
        ChangeCall::Commit { .. } => "commit",
        ChangeCall::Fallocate { .. } => "fallocate",
        ChangeCall::CopyRange { .. } => "copy_range",
        ChangeCall::Compact { .. } => "compact",
        ChangeCall::LeaseSpace { .. } => "lease_space",
        ChangeCall::ReturnSpace { .. } => "return_space",
        ChangeCall::SetLock { .. } | ChangeCall::Unlock(_) => "lock",
    }
}
