//! Creating many small files with one call.

use crate::client::Client;
use crate::names::lookup::check_name;
use protocol::client::{Answer, Call, ChangeCall, Name};
use protocol::files::NewFile;
use protocol::sums::checksum;
use protocol::{Errno, InodeId};
use std::rc::Rc;

impl Client {
    /// Creates whole files in a directory, all of them or none. They are committed when this
    /// returns, and survive power loss after the next [`Client::fsync`] of any inode.
    ///
    /// # Errors
    /// EOPNOTSUPP if a file is too large for the metadata service, or the service takes no data
    /// now; EEXIST if one of the names exists; EINVAL for none or too many files; those of a call.
    pub async fn create_files(
        self: &Rc<Self>,
        parent: InodeId,
        mut files: Vec<NewFile>,
    ) -> Result<(), Errno> {
        for file in &files {
            check_name(&file.name)?;
        }
        let is_small = |file: &NewFile| file.bytes.0.len() as u64 <= self.inline_bytes;
        if !self.session.takes_inline.get() || !files.iter().all(is_small) {
            return Err(Errno::EOPNOTSUPP);
        }
        if self.checksum {
            for file in &mut files {
                file.sum = Some(checksum(&file.bytes.0));
            }
        }
        self.wait_for_names(parent).await;
        let names: Vec<Name> = files.iter().map(|file| file.name.clone()).collect();
        let made = self.session.call(Call::Change(ChangeCall::CreateFiles { parent, files })).await;
        // The kernel has not created these names itself, and may have cached that they are absent.
        let known = self.known_inode(parent).filter(|_| !reactor::mutant!("own-files-stay-absent"));
        let taken = known.and_then(|directory| directory.lent.take_own_names(parent, &names));
        if let Some(taken) = taken {
            self.take_back(taken).await;
        }
        match made? {
            Answer::Made(_) => Ok(()),
            _ => Err(Errno::EPROTO),
        }
    }
}
