//! Holding what a caller has looked up until it acts on it.
//!
//! A front end that walks a path and then acts on what it found (the kernel, over FUSE) may find both
//! changed by another node in between, and its second walk as well. A [`Pin`] keeps an inode alive that
//! a walk has found. [`NamesHeld`] keeps a directory from getting new names from elsewhere, so that a
//! name that a walk has found absent can be created. It is SIZE over the directory: whoever adds a name
//! makes the directory longer. The answer to a recall of SIZE waits for the last [`NamesHeld`], so its
//! holders bound how long they keep one, far below the deadline of a recall.

use crate::client::Client;
use crate::inode::Inode;
use protocol::client::{Answer, Call, SessionCall};
use protocol::{Errno, InodeId, Rights};
use reactor::local::{InFlight, Permit};
use std::rc::Rc;

/// Keeps an inode alive, whatever happens to its names.
pub struct Pin {
    client: Rc<Client>,
    inode: Rc<Inode>,
    is_kept: bool,
}

impl std::fmt::Debug for Pin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pin").field("inode", &self.inode.id).finish_non_exhaustive()
    }
}

impl Pin {
    /// The inode.
    pub fn inode(&self) -> InodeId {
        self.inode.id
    }

    /// Leaves the end of the open to [`Client::end_open`].
    pub(crate) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if !self.is_kept {
            self.client.end_open(&self.inode);
        }
    }
}

/// While it lives, only its owner adds names to a directory.
#[derive(Debug)]
pub struct NamesHeld {
    directory: InodeId,
    _held: InFlight,
    _turn: Permit,
}

impl NamesHeld {
    /// The directory.
    pub fn directory(&self) -> InodeId {
        self.directory
    }
}

impl Client {
    /// Keeps an inode of any kind alive.
    ///
    /// # Errors
    /// ESTALE if it is gone, those of a call.
    pub async fn pin(self: &Rc<Self>, id: InodeId) -> Result<Pin, Errno> {
        let pin = self.begin_pin(&self.inode(id));
        self.tell_open(&pin.inode).await?;
        Ok(pin)
    }

    /// Counts an open of an inode until the answer is dropped.
    pub(crate) fn begin_pin(self: &Rc<Self>, inode: &Rc<Inode>) -> Pin {
        self.begin_open(inode);
        Pin { client: Rc::clone(self), inode: Rc::clone(inode), is_kept: false }
    }

    /// Has the service know that an inode of any kind is open here.
    pub(crate) async fn tell_open(self: &Rc<Self>, inode: &Inode) -> Result<(), Errno> {
        let rounds = self.rounds();
        while inode.state.borrow().lacks(Rights::OPEN) {
            rounds.begin()?;
            self.session
                .call(Call::Session(SessionCall::Acquire { inode: inode.id, rights: Rights::OPEN }))
                .await?;
        }
        Ok(())
    }

    /// Keeps others from adding names to a directory; waits for holders before.
    ///
    /// # Errors
    /// ENOENT or ESTALE if the directory is gone, ETIMEDOUT, those of a call.
    pub async fn hold_names(self: &Rc<Self>, directory: InodeId) -> Result<NamesHeld, Errno> {
        let inode = self.inode(directory);
        // One at a time: a second one that waits for the service could else keep this client from
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
