//! Start and end of a client, and its write-back in the background.

use crate::absent_names::AbsentNames;
use crate::client::{Client, ClientConfig};
use crate::devices::Devices;
use crate::inode::Inode;
use crate::locks::waits::LockWaits;
use crate::removals::Removals;
use crate::session::Session;
use crate::small_pieces::Compaction;
use crate::small_reads::AllBlocks;
use crate::stream::working::WorkingOn;
use crate::sums::mismatches::Mismatches;
use crate::write_back::{SYNCS_MAX, WriteBack};
use protocol::Errno;
use reactor::local::{Semaphore, WaitGroup};
use reactor::time::{now, sleep};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Most bytes of written data that wait in memory for their devices.
const DIRTY_BYTES_MAX: usize = 128 << 20;

impl Client {
    /// Starts a session. Must be called on a `reactor` runtime; the client stays on it.
    ///
    /// # Errors
    /// A text that says what failed.
    pub async fn start(config: ClientConfig) -> Result<Rc<Client>, String> {
        let client = Client::new(config);
        let session = Rc::clone(&client.session);
        let handler: Rc<dyn crate::session::Handler> = client.clone();
        session.start(Rc::downgrade(&handler)).await?;
        reactor::spawn(Rc::clone(&client).write_back());
        Ok(client)
    }

    /// Returns a client whose session has not started.
    pub(crate) fn new(config: ClientConfig) -> Rc<Client> {
        Rc::new(Client {
            devices: Devices::new(config.local, config.plain_data, config.session.node.clone()),
            session: Session::new(config.session),
            inodes: RefCell::default(),
            space: RefCell::default(),
            dirty_budget: Semaphore::new(DIRTY_BYTES_MAX),
            dirty_inodes: RefCell::default(),
            write_back: WriteBack::default(),
            changes: config.changes,
            inline_bytes: config.inline_bytes.min(protocol::inline::INLINE_MAX_BYTES),
            checksum: config.checksum,
            mismatches: Mismatches::default(),
            heads: RefCell::default(),
            absent_names: AbsentNames::default(),
            returns: RefCell::default(),
            working_on: WorkingOn::default(),
            open_files: Cell::new(0),
            removals: Removals::default(),
            own_locks: RefCell::default(),
            lock_waits: LockWaits::default(),
            locked_inodes: RefCell::default(),
            commits: Cell::new(0),
            listings: Cell::new(0),
            lending: Cell::default(),
            lent_counts: Cell::default(),
            lent_until: Cell::new(now()),
            own_taking_back: WaitGroup::new(),
            read_ahead: Rc::default(),
            blocks: AllBlocks::default(),
            compaction: Compaction::default(),
            closed: Cell::new(false),
        })
    }

    /// Commits everything, makes it durable, and ends the session.
    ///
    /// # Errors
    /// The first failure; the session ends all the same.
    pub async fn end(self: &Rc<Self>) -> Result<(), Errno> {
        let result = self.sync_all().await;
        self.return_unused_space().await;
        self.closed.set(true);
        self.session.end().await;
        self.devices.close().await;
        result
    }

    /// Commits all dirty data and makes it durable, of several files at once.
    ///
    /// # Errors
    /// A failure, after all inodes were tried.
    pub async fn sync_all(self: &Rc<Self>) -> Result<(), Errno> {
        let dirty: Vec<Rc<Inode>> = self.dirty_inodes.borrow().values().cloned().collect();
        let at_once = dirty.len().min(SYNCS_MAX);
        let rest = Rc::new(RefCell::new(dirty.into_iter()));
        let sync_in_turn = || {
            let (client, rest) = (Rc::clone(self), Rc::clone(&rest));
            reactor::spawn(async move {
                let mut result = Ok(());
                loop {
                    let next = rest.borrow_mut().next();
                    let Some(inode) = next else { return result };
                    result = result.and(client.commit(&inode, true).await);
                }
            })
        };
        let syncing: Vec<_> = (0..at_once).map(|_| sync_in_turn()).collect();
        let mut result = Ok(());
        for synced in syncing {
            // A task without a result has panicked, or the reactor ends.
            result = result.and(synced.await.unwrap_or(Err(Errno::EIO)));
        }
        result
    }

    /// Commits what has been dirty for long, returns rights, and bounds the table of inodes.
    async fn write_back(self: Rc<Self>) {
        while !self.closed.get() {
            // Half of the time: the service takes the other half to have the devices flushed.
            sleep(self.session.times().writeback / 2).await;
            self.commit_dirty_files();
            self.compact_due();
            self.return_idle_locks();
            self.forget_expired_names();
            self.give_back().await;
            self.evict();
        }
    }

    /// Starts to commit all files that are dirty now, except those whose commit has not ended. Does
    /// not wait, because a commit may.
    fn commit_dirty_files(self: &Rc<Self>) {
        for inode in self.dirty_inodes.borrow().values() {
            self.write_back.add(inode);
        }
        while let Some(inode) = self.write_back.begin() {
            reactor::spawn(Rc::clone(self).commit_in_turn(inode));
        }
    }

    /// Commits files until none is due. A failure stays with the file; close or fsync reports it.
    async fn commit_in_turn(self: Rc<Self>, first: Rc<Inode>) {
        let mut next = Some(first);
        while let Some(inode) = next {
            let _ = self.commit(&inode, false).await;
            next = self.write_back.end(inode.id);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::session::config::SessionConfig;
    use protocol::auth::Secret;
    use reactor::SocketOptions;
    use rpc::Credential;

    /// Returns a client without a service.
    pub(crate) fn alone() -> Rc<Client> {
        let session = SessionConfig {
            meta: std::net::SocketAddr::from(([127, 0, 0, 1], 1)),
            credential: Credential::Plain(Secret([7; 32])),
            node: "node".into(),
            times: protocol::times::Times::default(),
            sockets: SocketOptions::default(),
        };
        Client::new(ClientConfig {
            session,
            local: Box::new(|_, _, _| None),
            plain_data: true,
            changes: None,
            inline_bytes: 0,
            checksum: false,
        })
    }
}
