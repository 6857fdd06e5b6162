//! The rights of other sessions that conflict with a call (the table of docs/protocol.md).

use super::Core;
use super::rename::Rename;
use super::transaction::Transaction;
use crate::records::Inode;
use crate::store::Error;
use protocol::client::{
    Answer, Call, ChangeCall, FallocateMode, Name, OpenTold, ReadCall, RenameMode, SessionCall,
};
use protocol::files::NewFile;
use protocol::inline::InlineRun;
use protocol::{Errno, Extent, FileKind, Generation, InodeId, Rights, SessionId};

/// The request to the holders of a conflicting right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConflictKind {
    /// Give these rights back.
    Recall(Rights),
    /// Forget these entries of the directory, and its attributes (or, if many sessions hold READ,
    /// give it back).
    Invalidate(Vec<Name>),
    /// Report whether the inode is open: sent to the caller, which has not reported it.
    AskCaller,
}

/// Rights over an inode that conflict with a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The inode.
    pub inode: InodeId,
    /// The request to the holders.
    pub kind: ConflictKind,
}

/// Truncation-like calls end all caching and writing of an inode.
const READ_WRITE_SIZE: Rights = Rights(Rights::READ.0 | Rights::WRITE.0 | Rights::SIZE.0);

/// Recalls rights. A recall of READ recalls SOLE as well, so that the holder first sends the
/// changes that it has held back.
fn recall(inode: InodeId, rights: Rights) -> Conflict {
    let rights = if rights.contains(Rights::READ) { rights | Rights::SOLE } else { rights };
    Conflict { inode, kind: ConflictKind::Recall(rights) }
}

fn invalidate(inode: InodeId, names: Vec<Name>) -> Conflict {
    Conflict { inode, kind: ConflictKind::Invalidate(names) }
}

/// Returns the conflicts of new entries with rights over their directory.
fn new_entries(parent: InodeId, names: Vec<Name>) -> Vec<Conflict> {
    let entries = invalidate(parent, names);
    if reactor::mutant!("create-spares-names-held") {
        return vec![entries];
    }
    vec![entries, recall(parent, Rights::SIZE)]
}

/// Adds the conflicts of the loss of one name of an inode. The call has reported the opens of
/// `told`.
fn losing_name(conflicts: &mut Vec<Conflict>, inode: &Inode, told: OpenTold) {
    let id = inode.attr.inode;
    let is_last = (inode.attr.nlink <= 1 && !reactor::mutant!("last-name-asks-nobody"))
        || inode.attr.kind == FileKind::Directory;
    conflicts.push(recall(id, if is_last { Core::ALL } else { Rights::READ }));
    if is_last
        && inode.attr.kind != FileKind::Directory
        && !(told.covers(id) || reactor::mutant!("told-covers-all") && told != OpenTold::OfNone)
        && !reactor::mutant!("remover-not-asked")
    {
        conflicts.push(Conflict { inode: id, kind: ConflictKind::AskCaller });
    }
}

/// Returns the end of the data that a commit brings.
fn end_of(extents: &[Extent], inline: &[InlineRun]) -> u64 {
    let ends = extents.iter().map(Extent::end);
    ends.chain(inline.iter().map(InlineRun::end)).max().unwrap_or(0)
}

/// Returns the conflicts of a call about a session: SIZE has one holder.
fn session_conflicts(call: &SessionCall) -> Vec<Conflict> {
    match call {
        SessionCall::Acquire { inode, rights }
            if rights.intersects(Rights::SIZE) && !reactor::mutant!("size-shared") =>
        {
            vec![recall(*inode, Rights::SIZE | Rights::SOLE)]
        }
        SessionCall::Acquire { inode, rights }
            if rights.intersects(Rights::WRITE) && reactor::mutant!("write-recalls-read") =>
        {
            vec![recall(*inode, Rights::READ)]
        }
        SessionCall::Acquire { inode, rights }
            if rights.intersects(Rights::WRITE) && reactor::mutant!("write-recalls-write") =>
        {
            vec![recall(*inode, Rights::WRITE)]
        }
        SessionCall::Acquire { inode, .. } => vec![recall(*inode, Rights::SOLE)],
        SessionCall::Start { .. }
        | SessionCall::Reclaim { .. }
        | SessionCall::Heartbeat { .. }
        | SessionCall::Pulse { .. }
        | SessionCall::End
        | SessionCall::Devices
        | SessionCall::Admit(_)
        | SessionCall::GiveBack(_)
        | SessionCall::Sync(_)
        | SessionCall::CancelLock { .. }
        | SessionCall::ReportLocks { .. } => Vec::new(),
    }
}

impl Core {
    /// Returns the rights that must be recalled from other sessions before a call is executed; none
    /// for a call that will be refused anyway. EIO if the store cannot be read.
    pub fn conflicts(&self, session: SessionId, call: &Call) -> Result<Vec<Conflict>, Errno> {
        let transaction = Transaction::begin(&self.base);
        match transaction.conflicts(call) {
            Ok(conflicts) => Ok(conflicts),
            Err(Error::Refused(_)) => Ok(Vec::new()),
            Err(error) => {
                tracing::error!(%error, session = session.0, "cannot find conflicts");
                Err(error.to_errno())
            }
        }
    }
}

impl Transaction<'_> {
    fn conflicts(&self, call: &Call) -> Result<Vec<Conflict>, Error> {
        match call {
            Call::Session(call) => Ok(session_conflicts(call)),
            // The holder of LOCKS knows the present locks.
            Call::Read(ReadCall::TestLock(lock)) if !reactor::mutant!("test-spares-locks") => {
                Ok(vec![recall(lock.inode, Rights::LOCKS)])
            }
            Call::Read(_) if reactor::mutant!("reads-spare-sole") => Ok(Vec::new()),
            Call::Read(call) => {
                let shown = self.shown_by(call)?;
                Ok(shown.into_iter().map(|inode| recall(inode, Rights::SOLE)).collect())
            }
            Call::Change(call) => self.change_conflicts(call),
        }
    }

    /// Returns the inodes whose attributes or extended attributes a call shows.
    pub(super) fn shown_by(&self, call: &ReadCall) -> Result<Vec<InodeId>, Error> {
        Ok(match call {
            ReadCall::Lookup { parent, name } => {
                let dentry = self.dentry(*parent, name)?;
                dentry.map(|dentry| dentry.inode).into_iter().collect()
            }
            ReadCall::ReadDir { inode, after, count_max } => {
                let outcome = self.read_directory(*inode, *after, *count_max)?;
                match outcome.answer {
                    Answer::Entries { entries, .. } => {
                        entries.iter().map(|entry| entry.attr.inode).collect()
                    }
                    _ => Vec::new(),
                }
            }
            ReadCall::GetAttr(inode)
            | ReadCall::GetXattr { inode, .. }
            | ReadCall::ListXattr(inode)
            | ReadCall::ReadExtents { inode, .. } => vec![*inode],
            ReadCall::ReadFiles(_) if reactor::mutant!("files-spare-sole") => Vec::new(),
            // The answer contains no held-back changes of the other files.
            ReadCall::ReadFiles(inodes) => inodes.first().copied().into_iter().collect(),
            // A symbolic link is no file.
            ReadCall::PoolUse | ReadCall::ReadLink(_) | ReadCall::TestLock(_) => Vec::new(),
        })
    }

    fn change_conflicts(&self, call: &ChangeCall) -> Result<Vec<Conflict>, Error> {
        Ok(match call {
            ChangeCall::SetAttr { .. } if reactor::mutant!("attributes-uninformed") => Vec::new(),
            ChangeCall::SetAttr { inode, changes } => {
                let is_cut = changes.size.is_some() && !reactor::mutant!("truncate-spares-writers");
                let rights = if is_cut { READ_WRITE_SIZE } else { Rights::READ };
                vec![recall(*inode, rights)]
            }
            ChangeCall::Create { parent, name, .. } => self.create_conflicts(*parent, name)?,
            ChangeCall::CreateFiles { parent, files } => self.files_conflicts(*parent, files)?,
            ChangeCall::Link { inode, parent, name } => {
                if self.dentry(*parent, name)?.is_some() || reactor::mutant!("link-uninformed") {
                    return Ok(Vec::new());
                }
                let mut conflicts = new_entries(*parent, vec![name.clone()]);
                conflicts.push(recall(*inode, Rights::READ));
                conflicts
            }
            ChangeCall::Unlink { parent, name, told } => {
                self.removal_conflicts(*parent, name, Some(*told))?
            }
            ChangeCall::Rmdir { parent, name } => self.removal_conflicts(*parent, name, None)?,
            ChangeCall::Rename { parent, name, new_parent, new_name, mode, told } => {
                let (parent, new_parent, mode) = (*parent, *new_parent, *mode);
                self.rename_conflicts(Rename { parent, name, new_parent, new_name, mode }, *told)?
            }
            ChangeCall::Commit { inode, generation, extents, inline, attributes, .. } => {
                let file = self.inode(*inode)?;
                let is_late = *generation != file.attr.generation;
                if reactor::mutant!("commit-uninformed") {
                    return Ok(Vec::new());
                }
                if is_late && attributes.is_none() {
                    // It changes nothing, but its answer shows the file.
                    return Ok(vec![recall(*inode, Rights::SOLE)]);
                }
                let end = end_of(&extents.0, inline);
                let grows = end > file.attr.size && !reactor::mutant!("growth-spares-size");
                vec![recall(*inode, if grows { Rights::READ | Rights::SIZE } else { Rights::READ })]
            }
            ChangeCall::SetXattr { inode, .. }
            | ChangeCall::RemoveXattr { inode, .. }
            | ChangeCall::Fallocate {
                inode,
                mode: FallocateMode::Allocate { keep_size: true },
                ..
            } => {
                vec![recall(*inode, Rights::READ)]
            }
            ChangeCall::Fallocate { .. } if reactor::mutant!("punch-uninformed") => Vec::new(),
            ChangeCall::Fallocate { inode, .. } => vec![recall(*inode, READ_WRITE_SIZE)],
            ChangeCall::CopyRange { source, destination, .. } => {
                if reactor::mutant!("copy-spares-destination") {
                    return Ok(vec![recall(*source, READ_WRITE_SIZE)]);
                }
                let mut conflicts = vec![recall(*destination, READ_WRITE_SIZE)];
                if source != destination && !reactor::mutant!("copy-spares-source") {
                    conflicts.push(recall(*source, READ_WRITE_SIZE));
                }
                conflicts
            }
            ChangeCall::Compact { inode, generation, old, .. } => {
                self.compact_conflicts(*inode, *generation, &old.0)?
            }
            ChangeCall::SetLock { lock, .. } if !reactor::mutant!("lock-spares-locks") => {
                vec![recall(lock.inode, Rights::LOCKS)]
            }
            // Space is not cached under a right. While another session holds LOCKS, this one has no
            // locks to give back.
            ChangeCall::LeaseSpace { .. }
            | ChangeCall::ReturnSpace { .. }
            | ChangeCall::SetLock { .. }
            | ChangeCall::Unlock(_) => Vec::new(),
        })
    }

    /// Returns the conflicts of a compaction that will be executed.
    fn compact_conflicts(
        &self,
        inode: InodeId,
        generation: Generation,
        old: &[Extent],
    ) -> Result<Vec<Conflict>, Error> {
        let file = self.file(inode)?;
        let is_told = self.has_extents(&file, generation, old)?;
        if !is_told || reactor::mutant!("compaction-spares-readers") {
            return Ok(Vec::new());
        }
        Ok(vec![recall(inode, Rights::READ)])
    }

    fn create_conflicts(&self, parent: InodeId, name: &Name) -> Result<Vec<Conflict>, Error> {
        self.directory(parent)?;
        if self.dentry(parent, name)?.is_some() || reactor::mutant!("create-uninformed") {
            return Ok(Vec::new());
        }
        Ok(new_entries(parent, vec![name.clone()]))
    }

    fn files_conflicts(&self, parent: InodeId, files: &[NewFile]) -> Result<Vec<Conflict>, Error> {
        self.directory(parent)?;
        let mut names = Vec::with_capacity(files.len());
        for file in files {
            if self.dentry(parent, &file.name)?.is_some() {
                return Ok(Vec::new());
            }
            names.push(file.name.clone());
        }
        if reactor::mutant!("files-uninformed") {
            names.truncate(1);
        }
        Ok(new_entries(parent, names))
    }

    /// Returns the conflicts of an unlink, with the opens that it has reported, or of an rmdir.
    fn removal_conflicts(
        &self,
        parent: InodeId,
        name: &Name,
        unlink: Option<OpenTold>,
    ) -> Result<Vec<Conflict>, Error> {
        self.directory(parent)?;
        let Some(dentry) = self.dentry(parent, name)? else { return Ok(Vec::new()) };
        let inode = self.named_inode(dentry.inode)?;
        let is_directory = inode.attr.kind == FileKind::Directory;
        if is_directory == unlink.is_some() || (is_directory && inode.attr.size > 0) {
            return Ok(Vec::new());
        }
        let names =
            if reactor::mutant!("removal-uninformed") { vec![] } else { vec![name.clone()] };
        let mut conflicts = vec![invalidate(parent, names)];
        losing_name(&mut conflicts, &inode, unlink.unwrap_or(OpenTold::OfAny));
        Ok(conflicts)
    }

    fn rename_conflicts(&self, rename: Rename<'_>, told: OpenTold) -> Result<Vec<Conflict>, Error> {
        let (found, is_noop) = self.find_rename(rename)?;
        if is_noop {
            return Ok(Vec::new());
        }
        let (name, new_name) = (rename.name.clone(), rename.new_name.clone());
        let mut conflicts = if reactor::mutant!("rename-new-uninformed") {
            vec![invalidate(rename.parent, vec![name])]
        } else if reactor::mutant!("rename-old-uninformed") {
            vec![invalidate(rename.new_parent, vec![new_name])]
        } else if rename.parent == rename.new_parent {
            vec![invalidate(rename.parent, vec![name, new_name])]
        } else {
            vec![
                invalidate(rename.parent, vec![name]),
                invalidate(rename.new_parent, vec![new_name]),
            ]
        };
        if !reactor::mutant!("rename-spares-names-held") {
            conflicts.push(recall(rename.new_parent, Rights::SIZE));
        }
        conflicts.push(recall(found.moved.attr.inode, Rights::READ));
        if let Some((present, _)) = &found.present {
            match rename.mode {
                RenameMode::Exchange => conflicts.push(recall(present.attr.inode, Rights::READ)),
                _ => losing_name(&mut conflicts, present, told),
            }
        }
        Ok(conflicts)
    }
}
