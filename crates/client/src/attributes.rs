//! Attributes of inodes as this client's users see them.

use crate::client::Client;
use crate::inode::Inode;
use protocol::attr::Layout;
use protocol::client::{Answer, Call, ReadCall};
use protocol::{Attr, Errno, InodeId};
use std::rc::Rc;

/// The attributes an answer carries.
pub(crate) fn attr_of(answer: &Answer) -> Result<Attr, Errno> {
    match answer {
        Answer::Attr(attr) | Answer::Entry(attr) => Ok(*attr),
        _ => Err(Errno::EPROTO),
    }
}

impl Client {
    /// Attributes, with this client's own uncommitted writes.
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
                // A removed directory is still somebody's working directory, for example.
                (Err(Errno::ESTALE), Some(attr)) => attr,
                (answer, _) => attr_of(&answer?)?,
            };
            if inode.last_commit.get() <= before {
                return Ok(inode.local_attr(attr));
            }
            // What was dirty may be committed since, after these attributes: it would be in neither.
        }
    }

    /// As this client's users see them: attributes that were asked for when the commit numbered
    /// `before` was the last to have ended.
    pub(crate) async fn shown(self: &Rc<Self>, attr: Attr, before: u64) -> Result<Attr, Errno> {
        let inode = self.inode(attr.inode);
        if inode.last_commit.get() <= before {
            Ok(inode.local_attr(attr))
        } else {
            self.inode_attr(&inode).await
        }
    }

    pub(crate) async fn layout(self: &Rc<Self>, inode: &Inode) -> Result<Layout, Errno> {
        Ok(self.inode_attr(inode).await?.layout)
    }
}
