//! Opening, creating, flushing, syncing and closing files.

use crate::client::Client;
use crate::handle::{Handle, OpenMode};
use crate::inode::Inode;
use crate::names::Setting;
use crate::names::held::NamesHeld;
use crate::opens::Pin;
use protocol::client::{Call, Creation, SessionCall};
use protocol::{Attr, Errno, FileKind, InodeId, Rights};
use std::rc::Rc;

impl Client {
    /// Opens a regular file.
    ///
    /// # Errors
    /// EISDIR or EINVAL if it is none, those of a call.
    pub async fn open(
        self: &Rc<Self>,
        id: InodeId,
        mode: OpenMode,
    ) -> Result<(Handle, Attr), Errno> {
        let inode = self.inode(id);
        // Counted before any call: a recall meanwhile reports the file as open, and so does a
        // removal by this client that begins from now on.
        let pin = self.begin_pin(&inode);
        let is_removing = self.removals.may_concern(id);
        let reported = inode.reported_at_open();
        let session = self.session.life.stamp();
        if mode.write {
            // The service does not always grant READ; a writer needs WRITE.
            self.acquire_with(&inode, Rights::WRITE, Rights::READ).await?;
        }
        let attr = self.attr(id).await?;
        match attr.kind {
            FileKind::File => {}
            FileKind::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        if must_report_open(&inode, &attr, is_removing) {
            self.acquire(&inode, Rights::OPEN).await?;
        }
        pin.keep();
        Ok((Handle { inode, mode, session, reported }, attr))
    }

    /// Opens a directory. It is kept, even without a name, until the returned value is dropped.
    ///
    /// # Errors
    /// ENOTDIR if it is none, those of a call.
    pub async fn open_directory(self: &Rc<Self>, id: InodeId) -> Result<Pin, Errno> {
        let inode = self.inode(id);
        let pin = self.begin_pin(&inode);
        let attr = self.attr(id).await?;
        if attr.kind != FileKind::Directory {
            return Err(Errno::ENOTDIR);
        }
        if must_report_open(&inode, &attr, false) {
            match self.report_open(&inode).await {
                // This client removed it, and keeps what it shows of it.
                Err(Errno::ESTALE) if attr.nlink == 0 => {}
                reported => reported?,
            }
        }
        Ok(pin)
    }

    /// Creates a regular file and opens it; takes a reference to it.
    ///
    /// # Errors
    /// EEXIST, ENOENT, those of a call.
    pub async fn create(
        self: &Rc<Self>,
        parent: InodeId,
        name: &[u8],
        setting: Setting,
        mode: OpenMode,
    ) -> Result<(Handle, Attr), Errno> {
        self.wait_for_names(parent).await;
        self.create_now(parent, name, setting, mode).await
    }

    /// Creates a file as [`Client::create`] does, for the holder of the directory's names: no other
    /// node has created the name since they are held.
    ///
    /// # Errors
    /// As [`Client::create`].
    pub async fn create_held(
        self: &Rc<Self>,
        held: NamesHeld,
        name: &[u8],
        setting: Setting,
        mode: OpenMode,
    ) -> Result<(Handle, Attr), Errno> {
        self.create_now(held.directory(), name, setting, mode).await
    }

    /// Creates a file and opens it.
    async fn create_now(
        self: &Rc<Self>,
        parent: InodeId,
        name: &[u8],
        setting: Setting,
        mode: OpenMode,
    ) -> Result<(Handle, Attr), Errno> {
        let mut rights = Rights::READ | Rights::OPEN;
        if mode.write {
            rights |= Rights::WRITE | Rights::SOLE;
        }
        let attr = self.create_with(parent, name, Creation::File, setting, rights).await?;
        let inode = self.inode(attr.inode);
        self.begin_open(&inode);
        inode.state.borrow_mut().being_opened = false;
        let reported = inode.reported_at_open();
        Ok((Handle { inode, mode, session: self.session.life.stamp(), reported }, attr))
    }

    /// Commits what was written through any handle of the file. Returns the failures that this
    /// handle has not reported yet. For `close(2)`, before [`Client::release`].
    ///
    /// # Errors
    /// EIO, ENOSPC and other errors of a write.
    pub async fn flush(self: &Rc<Self>, handle: &Handle) -> Result<(), Errno> {
        if !handle.mode.write || reactor::mutant!("close-commits-nothing") {
            return Ok(());
        }
        let result = self.commit(&handle.inode, false).await;
        handle.inode.report_failures(&handle.reported).and(result)
    }

    /// Commits what was written through any handle of a file and makes it survive power loss, for
    /// `fsync(2)`.
    ///
    /// # Errors
    /// As [`Client::flush`].
    pub async fn fsync_file(self: &Rc<Self>, handle: &Handle) -> Result<(), Errno> {
        let result = self.make_durable(&handle.inode).await;
        handle.inode.report_failures(&handle.reported).and(result)
    }

    /// Syncs any inode as [`Client::fsync_file`] does, for a caller without a handle. Returns
    /// failures that no handle has reported.
    ///
    /// # Errors
    /// As [`Client::flush`].
    pub async fn fsync(self: &Rc<Self>, id: InodeId) -> Result<(), Errno> {
        let inode = self.inode(id);
        let reported = inode.reported_at_open();
        let result = self.make_durable(&inode).await;
        inode.report_failures(&reported).and(result)
    }

    /// Commits what is dirty and makes it durable. Without dirty data, has the service make earlier
    /// commits durable.
    async fn make_durable(self: &Rc<Self>, inode: &Rc<Inode>) -> Result<(), Errno> {
        if inode.dirty.borrow().is_clean() {
            if reactor::mutant!("clean-fsync-skipped") {
                return Ok(());
            }
            // The service has flushed what was committed without a flush, here or elsewhere.
            return self
                .session
                .call(Call::Session(SessionCall::Sync(Some(inode.id))))
                .await
                .map(drop);
        }
        self.commit(inode, true).await
    }

    /// Ends an open, once for each handle. Commits first, because the kernel may release without a
    /// flush.
    ///
    /// # Errors
    /// As [`Client::flush`]; the open ends all the same.
    pub async fn release(self: &Rc<Self>, handle: &Handle) -> Result<(), Errno> {
        let result = self.flush(handle).await;
        self.end_sole(&handle.inode);
        self.end_open(&handle.inode);
        result
    }

    /// Returns whether an uncommitted write clears suid and sgid.
    pub fn kills_privileges(&self, id: InodeId) -> bool {
        self.known_inode(id).is_some_and(|inode| inode.dirty.borrow().kill_privileges)
    }
}

/// Returns whether the service has to learn of an open, because it will not ask this client before
/// the inode loses its last name, or has not asked.
fn must_report_open(inode: &Inode, attr: &Attr, is_removing: bool) -> bool {
    let is_removing = is_removing && !reactor::mutant!("own-removal-untold");
    attr.nlink == 0 || is_removing || inode.state.borrow().rights.is_empty()
}
