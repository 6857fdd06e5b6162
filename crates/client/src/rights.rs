//! Acquiring rights over regular files.

use crate::client::Client;
use crate::inode::Inode;
use protocol::client::{Answer, Call, SessionCall};
use protocol::{Errno, FileKind, Rights};
use std::rc::Rc;

impl Client {
    /// Acquires rights over a regular file unless they are held. A grant may be gone before the
    /// client can use it: recalled, or, for OPEN, returned because the last handle was closed
    /// meanwhile. Then this asks again, for OPEN only while a handle is open.
    ///
    /// # Errors
    /// ETIMEDOUT if the rights are not kept in time, EINVAL if it is no regular file, those of a
    /// call.
    pub(crate) async fn acquire(
        self: &Rc<Self>,
        inode: &Inode,
        rights: Rights,
    ) -> Result<(), Errno> {
        self.acquire_with(inode, rights, Rights::NONE).await
    }

    /// Acquires rights as [`Client::acquire`] does; asks also for the `wished` rights, but does
    /// without them.
    ///
    /// # Errors
    /// As [`Client::acquire`].
    pub(crate) async fn acquire_with(
        self: &Rc<Self>,
        inode: &Inode,
        rights: Rights,
        wished: Rights,
    ) -> Result<(), Errno> {
        let rounds = self.rounds();
        while inode.state.borrow().lacks(rights) {
            rounds.begin()?;
            let call =
                Call::Session(SessionCall::Acquire { inode: inode.id, rights: rights | wished });
            match self.session.call(call).await? {
                Answer::Attr(attr) if attr.kind == FileKind::File => {}
                Answer::Attr(_) => return Err(Errno::EINVAL),
                _ => return Err(Errno::EPROTO),
            }
        }
        Ok(())
    }
}
