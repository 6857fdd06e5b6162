//! The changes: each checks, appends one record (a long write: several), and applies it.

use std::ops::Range;

use super::Journal;
use super::base::{Base, check_name, check_size, check_xattr, check_xattrs_bytes, too_large};
use super::error::JournalError;
use super::record::{CHANGES_MAX, DATA_BYTES_MAX, Record};
use super::state::{FileState, is_at};
use super::storage::Storage;
use super::types::{
    Attributes, Creation, FileId, Kind, NAME_BYTES_MAX, NAMES_MAX, NameChange, Stage, Time, Xattr,
    within,
};

impl<S: Storage> Journal<S> {
    /// Records a new copy-up.
    pub fn create(&mut self, creation: Creation) -> Result<FileId, JournalError> {
        let base = Base::new(creation)?;
        for (index, name) in base.names.iter().enumerate() {
            if let Some(holder) = self.lookup(&name.parent, &name.name) {
                return Err(JournalError::NameTaken(holder));
            }
            if base.names[..index].iter().any(|other| is_at(other, &name.parent, &name.name)) {
                return Err(JournalError::NameTaken(FileId(self.state.next_file)));
            }
        }
        let file = FileId(self.state.next_file.max(1));
        self.append(file, Record::Create(base), &[])?;
        Ok(file)
    }

    /// Stores `data` at `offset` of a partial file, which grows if needed. Returns the number of
    /// bytes stored: all, or those before an error that concerned a later part.
    pub fn write(
        &mut self,
        file: FileId,
        offset: u64,
        data: &[u8],
        mtime: Time,
    ) -> Result<u64, JournalError> {
        self.partial(file)?;
        check_size(offset.saturating_add(data.len() as u64))?;
        let mut written = 0;
        for part in data.chunks(DATA_BYTES_MAX) {
            let record = Record::Write { offset: offset + written, mtime };
            let result = self.room_in_maps().and_then(|()| self.append(file, record, part));
            match result {
                Err(error) if written == 0 => return Err(error),
                Err(_) => break,
                Ok(()) => written += part.len() as u64,
            }
        }
        Ok(written)
    }

    /// Makes a range read as zeros (punched or zeroed); the size stays.
    pub fn zero(
        &mut self,
        file: FileId,
        range: Range<u64>,
        mtime: Time,
    ) -> Result<(), JournalError> {
        self.partial(file)?;
        check_size(range.end)?;
        if range.is_empty() {
            return Ok(());
        }
        self.room_in_maps()?;
        let ranges = vec![(range.start, range.end)];
        self.append(file, Record::Zero { ranges, mtime: Some(mtime) }, &[])
    }

    /// Sets the size. What was behind a smaller size is gone: growing again gives zeros.
    pub fn truncate(
        &mut self,
        file: FileId,
        size_bytes: u64,
        mtime: Time,
    ) -> Result<(), JournalError> {
        self.open_file(file)?;
        check_size(size_bytes)?;
        self.append(file, Record::Truncate { size_bytes, mtime }, &[])
    }

    /// Sets mode, owner and times.
    pub fn set_attributes(
        &mut self,
        file: FileId,
        attributes: Attributes,
    ) -> Result<(), JournalError> {
        self.open_file(file)?;
        self.append(file, Record::Attributes(attributes), &[])
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&mut self, file: FileId, xattr: Xattr) -> Result<(), JournalError> {
        check_xattr(&xattr)?;
        let others = self.open_file(file)?.base.xattrs.iter().filter(|x| x.name != xattr.name);
        check_xattrs_bytes(others.map(Xattr::size).sum::<usize>() + xattr.size())?;
        self.append(file, Record::SetXattr(xattr), &[])
    }

    /// Removes an extended attribute, if it is there.
    pub fn remove_xattr(&mut self, file: FileId, name: &[u8]) -> Result<(), JournalError> {
        within("xattr name", name.len(), NAME_BYTES_MAX)?;
        self.open_file(file)?;
        self.append(file, Record::RemoveXattr(name.into()), &[])
    }

    /// Adds and removes names, all or none. Removals come first. The record is durable with any
    /// next ticket: a removal may be recorded only when the upper directory durably shows that the
    /// name is gone; otherwise a crash could leave neither the file nor its end.
    pub fn change_names(&mut self, changes: Vec<NameChange>) -> Result<(), JournalError> {
        if changes.is_empty() {
            return Ok(());
        }
        if changes.len() > CHANGES_MAX {
            return Err(too_large("number of name changes", changes.len(), CHANGES_MAX));
        }
        let mut is_partial = false;
        for (index, change) in changes.iter().enumerate() {
            let file = self.check_change(change, &changes, index)?;
            is_partial |= self.open_file(file)?.base.kind == Kind::Partial;
        }
        if is_partial {
            self.log.mark()?;
        }
        let (NameChange::Add(first, _) | NameChange::Remove(first, ..)) = &changes[0];
        self.append(*first, Record::Names(changes), &[])
    }

    fn check_change(
        &self,
        change: &NameChange,
        changes: &[NameChange],
        index: usize,
    ) -> Result<FileId, JournalError> {
        match change {
            NameChange::Remove(file, parent, name) => {
                let is_there = self.lookup(parent, name) == Some(*file);
                if is_there { Ok(*file) } else { Err(JournalError::NoSuchFile(*file)) }
            }
            NameChange::Add(file, name) => {
                check_name(name)?;
                if self.open_file(*file)?.base.names.len() >= NAMES_MAX {
                    return Err(too_large("number of names", NAMES_MAX + 1, NAMES_MAX));
                }
                let holder = self.lookup(&name.parent, &name.name);
                let leaves = |change: &NameChange| match change {
                    NameChange::Remove(_, parent, entry) => is_at(name, parent, entry),
                    NameChange::Add(..) => false,
                };
                let is_twice = changes[..index].iter().any(|other| match other {
                    NameChange::Add(_, other) => is_at(other, &name.parent, &name.name),
                    NameChange::Remove(..) => false,
                });
                match holder {
                    Some(holder) if !changes.iter().any(leaves) => {
                        Err(JournalError::NameTaken(holder))
                    }
                    _ if is_twice => Err(JournalError::NameTaken(*file)),
                    _ => Ok(*file),
                }
            }
        }
    }

    /// Records that the work file of a pending copy-up is durable.
    pub fn data_durable(&mut self, file: FileId) -> Result<(), JournalError> {
        match self.open_file(file)?.base.kind {
            Kind::Pending(_) => self.append(file, Record::DataDurable, &[]),
            Kind::Partial => Err(JournalError::WrongKind(file, "segments")),
        }
    }

    /// Records that the whole file lies, durable, in the work file `work_name`. Once this record is
    /// durable too, the work file may be renamed to its name. Until [`Self::published`] or
    /// [`Self::unpublish`] the copy-up takes no changes.
    pub fn publish(&mut self, file: FileId, work_name: &[u8]) -> Result<(), JournalError> {
        within("work name", work_name.len(), NAME_BYTES_MAX)?;
        self.open_file(file)?;
        self.append(file, Record::Publishing(work_name.into()), &[])
    }

    /// Gives a publication up, its work file being removed: the copy-up takes changes again.
    pub fn unpublish(&mut self, file: FileId) -> Result<(), JournalError> {
        match self.get(file)?.base.stage {
            Stage::Open => Ok(()),
            Stage::Publishing(_) => self.append(file, Record::Unpublishing, &[]),
        }
    }

    /// Records that the file has its name in the upper, durably, and needs nothing from here.
    pub fn published(&mut self, file: FileId) -> Result<(), JournalError> {
        self.get(file)?;
        self.append(file, Record::Published, &[])
    }

    /// Forgets a copy-up: its last name and its last handle are gone.
    pub fn drop_file(&mut self, file: FileId) -> Result<(), JournalError> {
        self.get(file)?;
        self.append(file, Record::Dropped, &[])
    }

    /// Appends and applies.
    pub(super) fn append(
        &mut self,
        file: FileId,
        record: Record,
        data: &[u8],
    ) -> Result<(), JournalError> {
        let at = self.log.append(file, &record, data, self.state.next_file.max(1))?;
        self.state.apply(at, file, record);
        Ok(())
    }

    pub(super) fn get(&self, file: FileId) -> Result<&FileState, JournalError> {
        self.state.files.get(&file).ok_or(JournalError::NoSuchFile(file))
    }

    /// Returns the file, if it takes changes.
    fn open_file(&self, file: FileId) -> Result<&FileState, JournalError> {
        let state = self.get(file)?;
        match state.base.stage {
            Stage::Open => Ok(state),
            Stage::Publishing(_) => Err(JournalError::Frozen(file)),
        }
    }

    fn partial(&self, file: FileId) -> Result<&FileState, JournalError> {
        let state = self.open_file(file)?;
        match state.base.kind {
            Kind::Partial => Ok(state),
            Kind::Pending(_) => Err(JournalError::WrongKind(file, "a work file")),
        }
    }

    /// A change may split a run and add one.
    fn room_in_maps(&self) -> Result<(), JournalError> {
        if self.state.runs + 2 <= self.log.options.runs_max {
            return Ok(());
        }
        let largest = self.state.files.iter().max_by_key(|(_, state)| state.map.len());
        largest.map_or(Ok(()), |(&id, _)| Err(JournalError::MapsFull(id)))
    }
}
