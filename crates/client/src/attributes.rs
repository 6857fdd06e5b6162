//! Attributes of inodes as this client's users see them.

use crate::client::Client;
use crate::inode::Inode;
use protocol::attr::Layout;
use protocol::client::{Answer, Call, ReadCall};
use protocol::{Attr, Errno, InodeId};
use std::rc::Rc;

/// Returns the attributes that an answer carries.
pub(crate) fn attr_of(answer: &Answer) -> Result<Attr, Errno> {
    match answer {
        Answer::Attr(attr) | Answer::Entry(attr) => Ok(*attr),
        _ => Err(Errno::EPROTO),
    }
}

impl Client {
    /// Returns attributes, with this client's own uncommitted writes.
    ///
    /// # Errors
    /// ESTALE, those of a call.
    pub async fn attr(self: &Rc<Self>, id: InodeId) -> Result<Attr, Errno> {
        self.inode_attr(&self.inode(id)).await
    }

    /// As [`Client::attr`].
    pub(crate) async fn inode_attr(self: &Rc<Self>, inode: &Inode) -> Result<Attr, Errno> {
        let rounds = self.rounds();
        loop {
            if let Some(attr) = inode.committed_attr()
                && (self.session.life.is_alive() || reactor::mutant!("attributes-without-contact"))
            {
                return Ok(inode.local_attr(attr));
            }
            rounds.begin()?;
            let before = self.commits.get();
            let attr = match (
                self.session.call(Call::Read(ReadCall::GetAttr(inode.id))).await,
                inode.unnamed_attr(),
            ) {
                // A process may have a removed directory as its working directory, for example.
                (Err(Errno::ESTALE), Some(attr)) => attr,
                (answer, _) => attr_of(&answer?)?,
            };
            if inode.last_commit.get() <= before {
                return Ok(inode.local_attr(attr));
            }
            // A commit may have ended since: dirty data then is neither here nor in these
            // attributes.
        }
    }

    /// Returns attributes as this client's users see them. The service was asked for `attr` when
    /// the commit numbered `before` was the last that had ended.
    pub(crate) async fn shown(self: &Rc<Self>, attr: Attr, before: u64) -> Result<Attr, Errno> {
        let inode = self.inode(attr.inode);
        if inode.last_commit.get() <= before {
            Ok(inode.local_attr(attr))
        } else {
            self.inode_attr(&inode).await
        }
    }

    /// Returns the layout of a file.
    pub(crate) async fn layout(self: &Rc<Self>, inode: &Inode) -> Result<Layout, Errno> {
        Ok(self.inode_attr(inode).await?.layout)
    }
}
