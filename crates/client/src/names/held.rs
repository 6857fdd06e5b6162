//! Holding a directory's names: while a [`NamesHeld`] lives, only its owner adds names.
//!
//! A front end that walks a path and then acts on what it found (the kernel, over FUSE) may find
//! the directory changed by another node in between, and its second walk as well. [`NamesHeld`]
//! keeps other nodes from adding names to a directory, so that a name that a walk has found absent
//! can be created. It is SIZE over the directory: a new name makes the directory longer. The answer
//! to a recall of SIZE waits for the last [`NamesHeld`], so its holders bound how long they keep
//! one, far below the deadline of a recall.

use crate::client::Client;
use protocol::client::{Answer, Call, SessionCall};
use protocol::{Errno, InodeId, Rights};
use reactor::local::{InFlight, Permit};
use std::rc::Rc;

/// While it lives, only its owner adds names to a directory.
#[derive(Debug)]
pub struct NamesHeld {
    directory: InodeId,
    _held: InFlight,
    _turn: Permit,
}

impl NamesHeld {
    /// Returns the directory.
    pub fn directory(&self) -> InodeId {
        self.directory
    }
}

impl Client {
    /// Keeps others from adding names to a directory. Waits for earlier holders first.
    ///
    /// # Errors
    /// ENOENT or ESTALE if the directory is gone, ETIMEDOUT, those of a call.
    pub async fn hold_names(self: &Rc<Self>, directory: InodeId) -> Result<NamesHeld, Errno> {
        let inode = self.inode(directory);
        // One at a time: a second holder that waits for the service could keep this client from
        // answering the recall that the service waits for.
        let turn = inode.append_lock.acquire(1).await;
        let rounds = self.rounds();
        loop {
            rounds.begin()?;
            // A recall that has begun takes the right away as soon as it is answered.
            while inode.is_leaving(Rights::SIZE) {
                reactor::yield_now().await;
            }
            // Counted before the call: the recall that follows a grant already waits.
            let held = inode.names_held.enter();
            if inode.state.borrow().lacks(Rights::SIZE) {
                let call =
                    Call::Session(SessionCall::Acquire { inode: directory, rights: Rights::SIZE });
                match self.session.call(call).await? {
                    Answer::Attr(_) => {}
                    _ => return Err(Errno::EPROTO),
                }
            }
            let has = !inode.state.borrow().lacks(Rights::SIZE) || inode.is_leaving(Rights::SIZE);
            if has {
                return Ok(NamesHeld { directory, _held: held, _turn: turn });
            }
        }
    }

    /// Waits until another task of this client that holds a directory's names has used them.
    pub(crate) async fn wait_for_names(&self, directory: InodeId) {
        if let Some(inode) = self.known_inode(directory) {
            inode.names_held.wait_zero().await;
        }
    }
}
