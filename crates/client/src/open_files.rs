//! Opening, creating, flushing, syncing and closing files.

use crate::client::Client;
use crate::handle::{Handle, OpenMode};
use crate::inode::Inode;
use crate::names::Setting;
use crate::names_held::NamesHeld;
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
        // Counted before anything is asked, so that a recall meanwhile says that it is open, and a
        // removal by this client that begins from now on.
        let pin = self.begin_pin(&inode);
        let is_removing = self.removals.may_concern(id);
        let told = inode.told();
        let session = self.session.life.stamp();
        if mode.write {
            // READ is not always granted; WRITE is what a writer needs.
            self.acquire_with(&inode, Rights::WRITE, Rights::READ).await?;
        }
        let attr = self.attr(id).await?;
        match attr.kind {
            FileKind::File => {}
            FileKind::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        if is_untold(&inode, &attr, is_removing) {
            self.acquire(&inode, Rights::OPEN).await?;
        }
        pin.keep();
        Ok((Handle { inode, mode, session, told }, attr))
    }

    /// Opens a directory: it is kept while the answer lives, also without a name.
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
        if is_untold(&inode, &attr, false) {
            match self.tell_open(&inode).await {
                // This client removed it: what it shows of it is kept here.
                Err(Errno::ESTALE) if attr.nlink == 0 => {}
                told => told?,
            }
        }
        Ok(pin)
    }

    /// Makes a regular file and opens it; takes a reference to it.
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

    /// As [`Client::create`], by the holder of the directory's names: no other node has made the name
    /// since they are held.
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
        let told = inode.told();
        Ok((Handle { inode, mode, session: self.session.life.stamp(), told }, attr))
    }

    /// Commits what was written through any handle of the file, and tells this one what has failed
    /// since it was last told: `close(2)`, before [`Client::release`].
    ///
    /// # Errors
    /// EIO, ENOSPC and what else a write may have met.
    pub async fn flush(self: &Rc<Self>, handle: &Handle) -> Result<(), Errno> {
        if !handle.mode.write || reactor::mutant!("close-commits-nothing") {
            return Ok(());
        }
        let result = self.commit(&handle.inode, false).await;
        handle.inode.tell(&handle.told).and(result)
    }

    /// `fsync(2)` of an open file: what was written through any handle is committed and survives power
    /// loss.
    ///
    /// # Errors
    /// As [`Client::flush`].
    pub async fn fsync_file(self: &Rc<Self>, handle: &Handle) -> Result<(), Errno> {
        let result = self.make_durable(&handle.inode).await;
        handle.inode.tell(&handle.told).and(result)
    }

    /// As [`Client::fsync_file`], of any inode, by a caller without a handle: it is told what nobody was
    /// told.
    ///
    /// # Errors
    /// As [`Client::flush`].
    pub async fn fsync(self: &Rc<Self>, id: InodeId) -> Result<(), Errno> {
        let inode = self.inode(id);
        let told = inode.told();
        let result = self.make_durable(&inode).await;
        inode.tell(&told).and(result)
    }

    async fn make_durable(self: &Rc<Self>, inode: &Rc<Inode>) -> Result<(), Errno> {
        if inode.dirty.borrow().is_clean() {
            if reactor::mutant!("clean-fsync-skipped") {
                return Ok(());
            }
            // What was committed without a flush, here or elsewhere, the service has flushed.
            return self
                .session
                .call(Call::Session(SessionCall::Sync(Some(inode.id))))
                .await
                .map(drop);
        }
        self.commit(inode, true).await
    }

    /// Ends an open, once for each handle. Commits first: the kernel may release without a flush.
    ///
    /// # Errors
    /// As [`Client::flush`]; the open has ended all the same.
    pub async fn release(self: &Rc<Self>, handle: &Handle) -> Result<(), Errno> {
        let result = self.flush(handle).await;
        self.end_sole(&handle.inode);
        self.end_open(&handle.inode);
        result
    }

    /// Whether a write that is not committed yet clears suid and sgid.
    pub fn kills_privileges(&self, id: InodeId) -> bool {
        self.known_inode(id).is_some_and(|inode| inode.dirty.borrow().kill_privileges)
    }
}

/// Whether the service has to be told of an open: nobody asks whether it is open here before its last
/// name goes, or nobody has asked.
fn is_untold(inode: &Inode, attr: &Attr, is_removing: bool) -> bool {
    let is_removing = is_removing && !reactor::mutant!("own-removal-untold");
    attr.nlink == 0 || is_removing || inode.state.borrow().rights.is_empty()
}
