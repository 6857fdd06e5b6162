//! A change of a file removes set-user-ID and set-group-ID, and the kernel has the new mode before
//! the data changes.
//!
//! execve(2) takes a file's mode from the kernel's inode, where it may be a day old. It is not
//! enough to clear the mode on disk and to invalidate the kernel's copy: a program that passed the
//! permission check before the write reads the old mode after it, and the new data. So the kernel
//! has to have the new mode before the data changes, under the lock that the writer holds. It
//! requests this itself: with `HANDLE_KILLPRIV_V2`, a request that names no attribute comes before
//! each write, fallocate and copy that takes privileges ([`fuse::SetAttributes::names_nothing`]),
//! and the mode in its answer is the inode's from then on. Writes past the kernel's cache
//! (`FOPEN_DIRECT_IO`) send no such request. So a file with privileges is never open in that way
//! for writing, and one that gets them while it is does not show them until it is closed.
//!
//! chown(2) without an owner and a group sends the same request, for any caller. So while a file is
//! open for writing the request only *disarms* it: every answer shows the mode without the bits
//! until the file is closed or a write removes them for good. A file that is open for writing
//! cannot be executed, so such requests of an unprivileged user harm no other user.
//!
//! Capabilities are removed by the kernel, which sends `REMOVEXATTR`.

use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use fuse::Request;
use rustix::io::Errno;

use super::Union;
use crate::copyup::Keep;
use crate::sys::Stat;
use crate::tree::Node;
use crate::tree::OpenFile;

/// The number of `CAP_FSETID`: its holder's changes leave set-user-ID and set-group-ID.
const CAP_FSETID: u32 = 4;
/// The number of the capability to read and set `trusted.*` attributes, among much else.
const CAP_SYS_ADMIN: u32 = 21;
/// The number of the capability to set and remove files' capabilities.
const CAP_SETFCAP: u32 = 31;
/// The target of `/proc/PID/ns/user` in the initial user namespace (`PROC_USER_INIT_INO`), in which
/// the kernel asks for that capability.
const INITIAL_USER_NAMESPACE: &str = "user:[4026531837]";

/// The thread that asks for a change.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Caller {
    uid: u32,
    gid: u32,
    thread: u32,
}

impl Caller {
    pub(crate) fn of(request: &Request) -> Self {
        Self { uid: request.uid, gid: request.gid, thread: request.pid }
    }

    /// Returns whether the thread belongs to a group. A thread that cannot be looked at does not.
    fn is_in_group(self, gid: u32) -> bool {
        let is_listed = || {
            let groups = self.status("Groups:")?;
            Some(groups.split_whitespace().any(|group| group.parse() == Ok(gid)))
        };
        self.gid == gid || is_listed().unwrap_or(false)
    }

    /// Returns whether the thread's changes leave set-user-ID and set-group-ID.
    fn keeps_privileges(self) -> bool {
        self.has(CAP_FSETID)
    }

    /// Returns whether the thread may see `trusted.*` attributes.
    pub(super) fn administrates(self) -> bool {
        self.has(CAP_SYS_ADMIN)
    }

    /// Returns whether the thread has a capability in the initial user namespace, as far as can be
    /// seen.
    fn has(self, capability: u32) -> bool {
        let namespace = std::fs::read_link(format!("/proc/{}/ns/user", self.thread));
        let is_initial = namespace.is_ok_and(|it| it.as_os_str() == INITIAL_USER_NAMESPACE);
        let effective = || u64::from_str_radix(self.status("CapEff:")?.trim(), 16).ok();
        is_initial && effective().is_some_and(|bits| bits & (1 << capability) != 0)
    }

    /// One line of the thread's status.
    fn status(self, key: &str) -> Option<String> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.thread)).ok()?;
        status.lines().find_map(|line| line.strip_prefix(key)).map(str::to_owned)
    }
}

/// Set-user-ID and set-group-ID.
const PRIVILEGES: u32 = libc::S_ISUID | libc::S_ISGID;

/// How the kernel announces that a change takes privileges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Announced {
    /// By a flag of the request.
    ByFlag(bool),
    /// By an earlier request only (fallocate and copies), and before Linux 6.1 not at all.
    Earlier,
}

/// The thread that opens a file, and whether the kernel announces that this takes privileges.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Opener {
    caller: Caller,
    is_announced: bool,
}

impl Opener {
    pub(crate) fn new(caller: Caller, is_announced: bool) -> Self {
        Self { caller, is_announced }
    }
}

/// Returns the bits of a mode that a change by this caller takes: set-user-ID, and set-group-ID
/// unless it only marks mandatory locking (no execution by the group) for a member of the group.
fn bits_lost(mode: u32, is_member: impl FnOnce() -> bool) -> u32 {
    let group = mode & libc::S_ISGID;
    let keeps_group = group != 0 && mode & libc::S_IXGRP == 0 && is_member();
    (mode & libc::S_ISUID) | if keeps_group { 0 } else { group }
}

impl Union {
    /// Returns the bits of a shown mode and group that a change by this caller takes.
    fn lost(&self, stat: &Stat, caller: Caller) -> u32 {
        let is_member = || {
            caller.is_in_group(self.tree.options().shown_gid(stat.gid)) || caller.keeps_privileges()
        };
        bits_lost(stat.mode, is_member)
    }

    /// Returns a request that names no attribute: a change is about to come, or the caller changes
    /// the owner to no other one.
    ///
    /// # Errors
    /// `EPERM` where chown(2) gives it: the file has privileges that the caller may not take.
    pub(crate) async fn announce_change(
        self: &Rc<Self>,
        node: &Rc<Node>,
        caller: Caller,
    ) -> Result<(), Errno> {
        let Some(state) = node.file() else { return Ok(()) };
        let stat = self.tree.stat(node)?;
        let lost = self.lost(&stat, caller);
        let is_written = state.writers.get() > 0;
        if lost == 0 {
            // As overlayfs does for a change of the owner.
            return if is_written {
                Ok(())
            } else {
                self.copy_up.make_changeable(node, Keep::Written).await
            };
        }
        let is_owner = caller.uid == self.tree.options().shown_uid(stat.uid);
        // Root's request may also precede a write that takes capabilities and nothing else.
        let is_kept_by_root = caller.uid == 0 && is_written && caller.keeps_privileges();
        if !is_kept_by_root && (is_owner || caller.uid == 0) {
            self.copy_up.make_changeable(node, Keep::All).await?;
            let object = self.tree.object(node)?;
            return self.take(node, object.as_fd(), lost);
        }
        if !is_written {
            return Err(Errno::PERM);
        }
        state.disarmed.set(state.disarmed.get() | lost);
        Ok(())
    }

    /// Checks whether a caller may take a file's capabilities: the kernel removes them before it
    /// sends a change of size or owner, for any caller.
    ///
    /// # Errors
    /// `EPERM` for a caller that is not the owner, if only the owner may write and no program has
    /// the file open for writing.
    pub(crate) fn check_taking_capabilities(
        &self,
        node: &Rc<Node>,
        caller: Caller,
    ) -> Result<(), Errno> {
        let Some(state) = node.file() else { return Ok(()) };
        let stat = self.tree.stat(node)?;
        let is_owner = caller.uid == 0 || caller.uid == self.tree.options().shown_uid(stat.uid);
        let may_write = stat.mode & (libc::S_IWGRP | libc::S_IWOTH) != 0 || state.writers.get() > 0;
        if is_owner || may_write || caller.has(CAP_SETFCAP) { Ok(()) } else { Err(Errno::PERM) }
    }

    /// Removes the privileges that a change of the data removes, before the change.
    pub(crate) fn take_privileges(
        self: &Rc<Self>,
        node: &Rc<Node>,
        object: BorrowedFd<'_>,
        caller: Caller,
        announced: Announced,
    ) -> Result<(), Errno> {
        let Some(state) = node.file() else { return Ok(()) };
        let is_disarmed = state.disarmed.get() != 0;
        // A server without the capability loses the bits on disk by its own write.
        if announced == Announced::ByFlag(false) && self.mount.keeps_privileges {
            return Ok(());
        }
        let stat = self.tree.upper_stat(object)?;
        let lost = self.lost(&stat, caller);
        let is_taken = match announced {
            Announced::ByFlag(_) => true,
            Announced::Earlier => {
                (is_disarmed && caller.uid != 0)
                    || !self.mount.keeps_privileges
                    || (lost != 0 && !caller.keeps_privileges())
            }
        };
        if is_taken { self.take(node, object, lost) } else { Ok(()) }
    }

    /// Removes the bits of a file that its open truncates, which the kernel announces since Linux
    /// 5.11.
    pub(crate) fn take_at_open(
        self: &Rc<Self>,
        node: &Rc<Node>,
        object: BorrowedFd<'_>,
        Opener { caller, is_announced }: Opener,
    ) -> Result<(), Errno> {
        let announced = if is_announced || self.mount.announces_opens.get() {
            Announced::ByFlag(is_announced)
        } else {
            Announced::Earlier
        };
        self.take_privileges(node, object, caller, announced)
    }

    /// Removes bits from the mode of an upper file, and from the mode that the kernel has.
    fn take(
        self: &Rc<Self>,
        node: &Rc<Node>,
        object: BorrowedFd<'_>,
        lost: u32,
    ) -> Result<(), Errno> {
        if let Some(state) = node.file() {
            state.disarmed.set(state.disarmed.get() & !lost);
        }
        let mode = self.tree.upper_stat(object)?.mode;
        if mode & lost == 0 {
            return Ok(());
        }
        self.tree.set_mode(object, mode & !lost)?;
        self.durability.note_dirty(node);
        self.tree.invalidate_attributes(node);
        Ok(())
    }

    /// Returns the bits that a change of the owner by this caller takes.
    pub(crate) fn lost_by_chown(&self, node: &Rc<Node>, caller: Caller) -> Result<u32, Errno> {
        let stat = self.tree.stat(node)?;
        Ok(self.lost(&stat, caller))
    }

    /// Removes bits that a file still has after a change of its owner.
    pub(crate) fn take_left(&self, object: BorrowedFd<'_>, lost: u32) -> Result<(), Errno> {
        let mode = self.tree.upper_stat(object)?.mode;
        if mode & lost == 0 { Ok(()) } else { self.tree.set_mode(object, mode & !lost) }
    }

    /// Returns whether a handle reads and writes past the kernel's cache: asked to by `O_DIRECT`,
    /// and for writing only a file without privileges, since such writes are not announced.
    pub(crate) fn goes_past_cache(&self, open: &OpenFile, flags: u32) -> bool {
        let is_asked = flags as i32 & libc::O_DIRECT != 0;
        if !is_asked || !open.for_writing {
            return is_asked;
        }
        let Some(state) = open.node.file() else { return false };
        // Whether it has capabilities in an attribute of ours is not looked for.
        let is_plain = self.tree.layers().owners().is_none()
            && self.tree.stat(&open.node).is_ok_and(|stat| stat.mode & PRIVILEGES == 0);
        state.is_written_directly.set(state.is_written_directly.get() || is_plain);
        is_plain
    }

    /// Notes a handle for writing that an earlier server has opened: whether it writes past the
    /// kernel's cache is not known.
    pub(crate) fn note_restored_writer(&self, node: &Rc<Node>) {
        if let Some(state) = node.file() {
            state.is_written_directly.set(true);
            // What cannot be looked at shows nothing.
            let mode = self.tree.stat(node).map_or(PRIVILEGES, |stat| stat.mode);
            note_mode(node, mode);
        }
    }

    /// Shows a file's real mode again when no program has it open for writing any more.
    pub(crate) fn rearm(&self, node: &Rc<Node>) {
        let Some(state) = node.file() else { return };
        if state.writers.get() > 0 {
            return;
        }
        state.is_written_directly.set(false);
        if state.disarmed.replace(0) != 0 {
            self.tree.invalidate_attributes(node);
        }
    }
}

/// Notes that a file has got another mode. Bits that unannounced writes could take do not show
/// while it is open for such.
pub(crate) fn note_mode(node: &Node, mode: u32) {
    if let Some(state) = node.file() {
        let is_unannounced = state.is_written_directly.get();
        state.disarmed.set(if is_unannounced { mode & PRIVILEGES } else { 0 });
    }
}

/// Returns whether changes by this process leave set-user-ID and set-group-ID on disk.
pub(crate) fn is_kept_on_disk() -> bool {
    Caller { uid: 0, gid: 0, thread: std::process::id() }.keeps_privileges()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the bits that a change takes are those that the kernel's `setattr_should_drop_suidgid`
    /// names.
    #[test]
    fn a_mark_of_locking_stays_for_members_only() {
        let lost = |mode, is_member| bits_lost(mode, || is_member);
        assert_eq!(lost(0o104_755, true), 0o4000);
        assert_eq!(lost(0o102_755, true), 0o2000);
        assert_eq!(lost(0o102_745, true), 0);
        assert_eq!(lost(0o102_745, false), 0o2000);
        assert_eq!(lost(0o106_777, true), 0o6000);
        assert_eq!(lost(0o106_767, true), 0o4000);
        assert_eq!(lost(0o101_777, false), 0);
    }
}
