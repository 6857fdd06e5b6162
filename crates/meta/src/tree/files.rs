//! `CreateFiles` and `ReadFiles`: whole small files, created and read together.

use super::Outcome;
use super::names::{check_name, describe, is_dots};
use super::transaction::{Context, Transaction};
use crate::records::Inode;
use crate::store::Error;
use protocol::client::{Answer, Creation};
use protocol::files::{NEW_FILES_MAX, NewFile, READ_FILES_MAX, SmallFile};
use protocol::inline::{INLINE_MAX_BYTES, InlineRun};
use protocol::{Attr, Errno, InodeId, Rights};

/// Most bytes of data in one answer.
const READ_BYTES_MAX: usize = 512 << 10;

impl Transaction<'_> {
    /// Creates all of the files, or none.
    pub(crate) fn create_files(
        &mut self,
        context: &Context<'_>,
        parent: InodeId,
        files: &[NewFile],
    ) -> Result<Outcome, Error> {
        if files.is_empty() || files.len() > NEW_FILES_MAX {
            return Err(Errno::EINVAL.into());
        }
        let mut directory = self.living_directory(parent)?;
        let mut made = Vec::with_capacity(files.len());
        for file in files {
            match self.create_file(context, &mut directory, file) {
                Ok(attr) => made.push(attr),
                Err(_) if reactor::mutant!("files-made-in-part") && !made.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        directory.modify(context.now);
        self.put_inode(&directory)?;
        let mut outcome =
            Outcome::of(Answer::Done).changing(directory.attr).granting(parent, Rights::READ);
        for attr in &made {
            outcome = outcome.touching(attr.inode).granting(attr.inode, Rights::READ);
        }
        outcome.answer = Answer::Made(made);
        Ok(outcome)
    }

    /// `ReadFiles`. It recalls nothing because of files that are merely likely to be read.
    pub(crate) fn read_files(&self, ids: &[InodeId]) -> Result<Outcome, Error> {
        if ids.is_empty() || ids.len() > READ_FILES_MAX {
            return Err(Errno::EINVAL.into());
        }
        let mut left = READ_BYTES_MAX;
        let mut files = Vec::with_capacity(ids.len());
        let mut outcome = Outcome::of(Answer::Done);
        for (place, id) in ids.iter().enumerate() {
            let file = match self.small_file(*id, place == 0) {
                Ok(file) => file.filter(|file| file.bytes.0.len() <= left),
                Err(Error::Refused(_)) => None,
                Err(error) => return Err(error),
            };
            if let Some(file) = &file {
                left -= file.bytes.0.len();
                outcome = outcome.granting(*id, Rights::READ);
            }
            files.push(file);
        }
        outcome.answer = Answer::Files(files);
        Ok(outcome)
    }

    /// Returns a file that is completely inline. If it is not wanted yet, its maker may still hold
    /// back changes of it; then it is left out.
    fn small_file(&self, id: InodeId, is_wanted: bool) -> Result<Option<SmallFile>, Error> {
        let inode = self.file(id)?;
        let is_kept_back =
            !is_wanted && inode.sole.is_some() && !reactor::mutant!("files-show-sole");
        let is_whole = inode.attr.allocated_bytes == u64::from(inode.inline)
            && inode.attr.size <= INLINE_MAX_BYTES;
        if is_kept_back || !is_whole {
            return Ok(None);
        }
        let inline = self.inline_record(&inode)?;
        Ok(Some(SmallFile { attr: inode.attr, bytes: inline.bytes, sum: inline.checksum }))
    }

    fn create_file(
        &mut self,
        context: &Context<'_>,
        directory: &mut Inode,
        file: &NewFile,
    ) -> Result<Attr, Error> {
        check_name(&file.name)?;
        let parent = directory.attr.inode;
        if is_dots(&file.name) || self.dentry(parent, &file.name)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        let new = describe(directory, &Creation::File, (file.mode, file.uid, file.gid))?;
        let mut inode = self.new_inode(new, context.now);
        inode.attr.gid = file.gid;
        inode.attr.atime = file.atime;
        inode.attr.mtime = file.mtime;
        if !file.bytes.0.is_empty() {
            let run = InlineRun { offset: 0, bytes: file.bytes.clone(), sum: file.sum };
            inode.attr.size = run.end();
            self.write_inline(&mut inode, &[run])?;
        }
        self.put_inode(&inode)?;
        self.add_entry(directory, &file.name, inode.attr.inode)?;
        Ok(inode.attr)
    }
}
