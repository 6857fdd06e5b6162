//! The kinds of calls, for counting.

use super::{Call, ChangeCall, ReadCall, SessionCall};
use crate::ids::InodeId;

/// The kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallKind {
    /// The kind's number.
    pub index: u8,
    /// The kind's name.
    pub name: &'static str,
    /// The inode that it mainly concerns; 0 if there is none.
    pub inode: u64,
}

fn kind(index: u8, name: &'static str, inode: impl Into<Option<InodeId>>) -> CallKind {
    CallKind { index, name, inode: inode.into().map_or(0, |inode| inode.0) }
}

impl Call {
    /// Returns the call's kind.
    pub fn kind(&self) -> CallKind {
        match self {
            Call::Session(call) => call.kind(),
            Call::Read(call) => call.kind(),
            Call::Change(call) => call.kind(),
        }
    }
}

impl SessionCall {
    fn kind(&self) -> CallKind {
        match self {
            SessionCall::Start { .. } => kind(0, "start", None),
            SessionCall::Reclaim { .. } => kind(1, "reclaim", None),
            SessionCall::Heartbeat { .. } => kind(2, "heartbeat", None),
            SessionCall::Pulse { .. } => kind(3, "pulse", None),
            SessionCall::End => kind(4, "end", None),
            SessionCall::Devices => kind(5, "devices", None),
            SessionCall::Admit(_) => kind(6, "admit", None),
            SessionCall::Acquire { inode, .. } => kind(7, "acquire", *inode),
            SessionCall::GiveBack(_) => kind(8, "give_back", None),
            SessionCall::Sync(inode) => kind(9, "sync", *inode),
            SessionCall::CancelLock { .. } => kind(10, "cancel_lock", None),
            SessionCall::ReportLocks { .. } => kind(11, "report_locks", None),
        }
    }
}

impl ReadCall {
    fn kind(&self) -> CallKind {
        match self {
            ReadCall::PoolUse => kind(32, "pool_use", None),
            ReadCall::Lookup { parent, .. } => kind(33, "lookup", *parent),
            ReadCall::GetAttr(inode) => kind(34, "get_attr", *inode),
            ReadCall::ReadDir { .. } => kind(35, "read_dir", None),
            ReadCall::ReadLink(inode) => kind(36, "read_link", *inode),
            ReadCall::GetXattr { inode, .. } => kind(37, "get_xattr", *inode),
            ReadCall::ListXattr(inode) => kind(38, "list_xattr", *inode),
            ReadCall::ReadExtents { inode, .. } => kind(39, "read_extents", *inode),
            ReadCall::TestLock(_) => kind(40, "test_lock", None),
            ReadCall::ReadFiles(_) => kind(41, "read_files", None),
        }
    }
}

impl ChangeCall {
    fn kind(&self) -> CallKind {
        match self {
            ChangeCall::SetAttr { inode, .. } => kind(64, "set_attr", *inode),
            ChangeCall::Create { parent, .. } => kind(65, "create", *parent),
            ChangeCall::Link { inode, .. } => kind(66, "link", *inode),
            ChangeCall::Unlink { parent, .. } => kind(67, "unlink", *parent),
            ChangeCall::Rmdir { parent, .. } => kind(68, "rmdir", *parent),
            ChangeCall::Rename { .. } => kind(69, "rename", None),
            ChangeCall::SetXattr { inode, .. } => kind(70, "set_xattr", *inode),
            ChangeCall::RemoveXattr { inode, .. } => kind(71, "remove_xattr", *inode),
            ChangeCall::Commit { inode, .. } => kind(72, "commit", *inode),
            ChangeCall::Fallocate { inode, .. } => kind(73, "fallocate", *inode),
            ChangeCall::CopyRange { destination, .. } => kind(74, "copy_range", *destination),
            ChangeCall::LeaseSpace { .. } => kind(75, "lease_space", None),
            ChangeCall::ReturnSpace { .. } => kind(76, "return_space", None),
            ChangeCall::SetLock { .. } => kind(77, "set_lock", None),
            ChangeCall::Unlock(_) => kind(78, "unlock", None),
            ChangeCall::CreateFiles { .. } => kind(79, "create_files", None),
            ChangeCall::Compact { inode, .. } => kind(80, "compact", *inode),
        }
    }
}
