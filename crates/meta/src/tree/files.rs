//! `CreateFiles`: whole small files, made together.

use super::Outcome;
use super::names::{check_name, describe, is_dots};
use super::transaction::{Context, Transaction};
use crate::records::Inode;
use crate::store::Error;
use protocol::client::{Answer, Creation};
use protocol::files::{NEW_FILES_MAX, NewFile};
use protocol::inline::InlineRun;
use protocol::{Attr, Errno, InodeId, Rights};

impl Transaction<'_> {
    /// Makes all of the files, or none.
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
                Err(_) if ring::mutant!("files-made-in-part") && !made.is_empty() => break,
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
            let run = InlineRun { offset: 0, bytes: file.bytes.clone() };
            inode.attr.size = run.end();
            self.write_inline(&mut inode, &[run])?;
        }
        self.put_inode(&inode)?;
        self.add_entry(directory, &file.name, inode.attr.inode)?;
        Ok(inode.attr)
    }
}
