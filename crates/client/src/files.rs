//! Open files: open, close, truncate, fallocate, sharing ranges, finding data and holes.

use crate::client::Client;
use crate::failures::Told;
use crate::holds::{NamesHeld, Pin};
use crate::inode::Inode;
use crate::names::Setting;
use crate::read::{Ahead, Asked};
use crate::session::life::SessionStamp;
use protocol::attr::AttrChanges;
use protocol::client::{Answer, Call, ChangeCall, Creation, FallocateMode, SessionCall};
use protocol::lease::Return;
use protocol::{Attr, Errno, FILE_SIZE_MAX_BYTES, FileKind, InodeId, Rights};
use std::rc::Rc;

/// Up to so many bytes are copied by reading and writing them: a call to the service that takes rights
/// from all writers costs more.
pub const COPIED_HERE_BYTES: u64 = 64 << 10;

/// What a file is opened for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenMode {
    /// Data will be written.
    pub write: bool,
    /// Every write goes to the end (`O_APPEND`).
    pub append: bool,
    /// Every write is durable when it returns (`O_SYNC`, `O_DSYNC`).
    pub sync: bool,
}

/// An open file.
#[derive(Debug)]
pub struct Handle {
    pub(crate) inode: Rc<Inode>,
    /// What it was opened for.
    pub mode: OpenMode,
    /// Session in which it was opened for writing: what was written before a loss is lost.
    pub(crate) session: SessionStamp,
    /// What failed and need not be told any more.
    pub(crate) told: Told,
}

impl Handle {
    /// The inode.
    pub fn inode(&self) -> InodeId {
        self.inode.id
    }
}

/// What `lseek(2)` looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTo {
    /// `SEEK_DATA`.
    Data,
    /// `SEEK_HOLE`.
    Hole,
}

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

    pub(crate) fn end_open(&self, inode: &Inode) {
        let open_files = self.open_files.get();
        assert!(open_files > 0, "a handle of {} is closed, and none is open", inode.id);
        self.open_files.set(open_files - 1);
        let mut state = inode.state.borrow_mut();
        assert!(state.opens > 0, "a handle of {} is closed that is not counted", inode.id);
        state.opens -= 1;
        if state.opens > 0 {
            return;
        }
        state.ahead = Ahead::default();
        let may_be_told = std::mem::take(&mut state.may_be_told);
        // Without READ no recall would ask whether it is still open: say that it is not.
        if may_be_told
            || state.rights.contains(Rights::OPEN)
            || !state.rights.contains(Rights::READ)
        {
            state.rights = state.rights - Rights::OPEN;
            let (inode, rights, stamp) = (inode.id, Rights::OPEN, state.stamp);
            self.returns.borrow_mut().push(Return { inode, rights, stamp });
        }
        drop(state);
        self.drop_if_idle(inode);
    }

    /// Counts an open of an inode.
    pub(crate) fn begin_open(&self, inode: &Inode) {
        inode.state.borrow_mut().opens += 1;
        self.open_files.set(self.open_files.get() + 1);
    }

    /// Whether a write that is not committed yet clears suid and sgid.
    pub fn kills_privileges(&self, id: InodeId) -> bool {
        self.known_inode(id).is_some_and(|inode| inode.dirty.borrow().kill_privileges)
    }

    /// Changes the size together with other attributes.
    ///
    /// # Errors
    /// EFBIG, EINVAL, EISDIR, those of a call and of a commit.
    pub async fn truncate(
        self: &Rc<Self>,
        id: InodeId,
        changes: AttrChanges,
    ) -> Result<Attr, Errno> {
        let size = changes.size.ok_or(Errno::EINVAL)?;
        if size > FILE_SIZE_MAX_BYTES {
            return Err(Errno::EFBIG);
        }
        let inode = self.inode(id);
        self.alone(&inode, Call::Change(ChangeCall::SetAttr { inode: id, changes })).await?;
        inode.dirty.borrow_mut().truncate(size);
        self.attr(id).await
    }

    /// `fallocate(2)`.
    ///
    /// # Errors
    /// ENOSPC, EFBIG, those of a call and of a commit.
    pub async fn fallocate(
        self: &Rc<Self>,
        id: InodeId,
        offset: u64,
        length: u64,
        mode: FallocateMode,
    ) -> Result<(), Errno> {
        if length == 0 {
            return Err(Errno::EINVAL);
        }
        if offset.checked_add(length).is_none_or(|end| end > FILE_SIZE_MAX_BYTES) {
            return Err(Errno::EFBIG);
        }
        let inode = self.inode(id);
        self.alone(&inode, Call::Change(ChangeCall::Fallocate { inode: id, offset, length, mode }))
            .await
            .map(drop)
    }

    /// Makes a call that must see all of this client's writes and none that come after: keeps writers
    /// out until the answer is there, and commits. The commit lock is not held meanwhile: the call may
    /// wait for another session whose commit waits for a right that is recalled from this one.
    async fn alone(self: &Rc<Self>, inode: &Rc<Inode>, call: Call) -> Result<Answer, Errno> {
        let _change = (!reactor::mutant!("change-not-alone")).then(|| inode.changes.enter());
        self.commit(inode, false).await?;
        // The service takes these rights from everybody: they come back with the next write.
        self.session.call(call).await
    }

    /// Copies a range of one file to another, as far as the source reaches. Answers the bytes. A little is
    /// read and written here, and goes with the next commit; of more the service shares the blocks.
    ///
    /// # Errors
    /// As [`Client::copy_range`], and those of reading and writing.
    pub async fn copy(
        self: &Rc<Self>,
        source: (InodeId, u64),
        destination: (&Handle, u64),
        length: u64,
    ) -> Result<u64, Errno> {
        let (to, at) = destination;
        let available = self.attr(source.0).await?.size.saturating_sub(source.1);
        let is_small = length.min(available) <= COPIED_HERE_BYTES;
        if !is_small || source.0 == to.inode() {
            match self.copy_range(source, (to.inode(), at), length).await {
                // The first bytes of the source lie with the service, and cannot be shared.
                Err(Errno::EXDEV) => {}
                copied => return copied,
            }
        }
        let length = length.min(available).min(COPIED_HERE_BYTES) as usize;
        let mut copied = 0;
        for chunk in self.read(source.0, source.1, length, None).await? {
            let bytes = chunk.len() as u64;
            self.write_at(to, at + copied, chunk, false).await?;
            copied += bytes;
        }
        Ok(copied)
    }

    /// Shares a range of one file with another, as far as the source reaches. Answers the bytes.
    ///
    /// # Errors
    /// EINVAL for ranges of one file that overlap, ENOSPC, those of a call and of a commit.
    pub async fn copy_range(
        self: &Rc<Self>,
        source: (InodeId, u64),
        destination: (InodeId, u64),
        length: u64,
    ) -> Result<u64, Errno> {
        let from = self.inode(source.0);
        let to = self.inode(destination.0);
        if source.0 != destination.0 {
            self.commit(&from, false).await?;
        }
        let call = Call::Change(ChangeCall::CopyRange {
            source: source.0,
            source_offset: source.1,
            destination: destination.0,
            destination_offset: destination.1,
            length,
        });
        match self.alone(&to, call).await {
            Ok(Answer::Copied { length, .. }) => Ok(length),
            Ok(_) => Err(Errno::EPROTO),
            Err(errno) => Err(errno),
        }
    }

    /// `lseek(2)` with `SEEK_DATA` or `SEEK_HOLE`.
    ///
    /// # Errors
    /// ENXIO past the end, or if no data follows; those of a call.
    pub async fn seek(self: &Rc<Self>, id: InodeId, offset: u64, to: SeekTo) -> Result<u64, Errno> {
        let inode = self.inode(id);
        self.commit(&inode, false).await?;
        let mut at = offset;
        if at >= FILE_SIZE_MAX_BYTES {
            return Err(Errno::ENXIO);
        }
        loop {
            let length = FILE_SIZE_MAX_BYTES - at;
            let Asked { extents, covered_to, inline, attr, .. } =
                self.ask_extents(&inode, at, length).await?;
            if at >= attr.size {
                return Err(Errno::ENXIO);
            }
            let inline_end = inline.len() as u64;
            let mut data: Vec<_> = extents.iter().map(|e| (e.offset, e.end())).collect();
            if at < inline_end {
                data.insert(0, (0, inline_end));
            }
            for (start, end) in data {
                match to {
                    SeekTo::Data => return Ok(start.max(offset)),
                    SeekTo::Hole if start > at => return Ok(at),
                    SeekTo::Hole => at = at.max(end),
                }
            }
            if to == SeekTo::Hole && at < covered_to.min(attr.size) {
                return Ok(at);
            }
            if to == SeekTo::Hole && at >= attr.size {
                return Ok(attr.size);
            }
            at = at.max(covered_to);
            if at >= attr.size {
                return Err(Errno::ENXIO);
            }
        }
    }
}

/// Whether the service has to be told of an open: nobody asks whether it is open here before its last
/// name goes, or nobody has asked.
fn is_untold(inode: &Inode, attr: &Attr, is_removing: bool) -> bool {
    let is_removing = is_removing && !reactor::mutant!("own-removal-untold");
    attr.nlink == 0 || is_removing || inode.state.borrow().rights.is_empty()
}
