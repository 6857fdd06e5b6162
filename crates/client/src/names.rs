//! Names and attributes: what needs no data.

use crate::client::Client;
use crate::entries::Known;
use crate::inode::Inode;
use crate::removals::Removal;
use protocol::attr::AttrChanges;
use protocol::client::{
    Answer, Call, ChangeCall, Creation, Entry, OpenTold, ReadCall, RenameMode, XattrMode,
};
use protocol::{Attr, CAPABILITY_XATTR, Errno, InodeId, Rights};
use std::rc::Rc;

/// Entries asked for at once when a directory is listed.
const LISTING_ENTRIES: u32 = 1024;

/// Entries fetched of a directory in which many names are looked up.
const FETCHED_ENTRIES_MAX: usize = 32768;

/// A part of a directory's listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Entries in the order of their cookies; `.` and `..` are not among them.
    pub entries: Vec<Entry>,
    /// No entry comes after these.
    pub end: bool,
}

/// What a rename has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renamed {
    /// The inode that has the new name now.
    pub moved: InodeId,
    /// With an exchange: the one that has the old name.
    pub other: Option<InodeId>,
}

/// Who makes something new, and with which permission bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Permission bits (`07777`), umask already taken off.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// The attributes an answer carries.
fn attr_of(answer: &Answer) -> Result<Attr, Errno> {
    match answer {
        Answer::Attr(attr) | Answer::Entry(attr) => Ok(*attr),
        _ => Err(Errno::EPROTO),
    }
}

impl Client {
    /// The inode that a directory has under a name; takes a reference to it.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENAMETOOLONG, those of a call.
    pub async fn lookup(self: &Rc<Self>, parent: InodeId, name: &[u8]) -> Result<Attr, Errno> {
        check_name(name)?;
        let known = self.cached_entry(parent, name);
        let attr = match known {
            Known::Absent => return Err(Errno::ENOENT),
            Known::Inode(id) => self.attr(id).await?,
            Known::Unknown => {
                self.note_miss(parent);
                let before = self.commits.get();
                let call = Call::Read(ReadCall::Lookup { parent, name: name.to_vec() });
                match self.session.call(call).await? {
                    Answer::Entry(attr) => self.shown(attr, before).await?,
                    Answer::NoEntry => return Err(Errno::ENOENT),
                    _ => return Err(Errno::EPROTO),
                }
            }
        };
        self.refer(attr.inode);
        Ok(attr)
    }

    /// What is known of a name; nothing without contact to the service, as the session may have ended
    /// and others have changed it.
    fn cached_entry(&self, parent: InodeId, name: &[u8]) -> Known {
        match self.known_inode(parent) {
            Some(directory)
                if self.session.life.is_alive() || reactor::mutant!("names-without-contact") =>
            {
                directory.state.borrow().entry(name)
            }
            _ => Known::Unknown,
        }
    }

    /// Counts a lookup that had to ask; after a few in one directory all of it is fetched.
    fn note_miss(self: &Rc<Self>, parent: InodeId) {
        let Some(directory) = self.known_inode(parent) else { return };
        let number = self.listings.get() + 1;
        let mut state = directory.state.borrow_mut();
        let wants = state.entries_mut().is_some_and(|entries| entries.wants_listing(number));
        drop(state);
        if wants {
            self.listings.set(number);
            reactor::spawn(Rc::clone(self).fetch_entries(directory, number));
        }
    }

    /// Lists a directory from start to end, for the cache that the answers fill.
    async fn fetch_entries(self: Rc<Self>, directory: Rc<Inode>, number: u64) {
        let mut after = 0;
        let mut fetched = 0;
        let is_whole = loop {
            let Ok(listing) = self.list(directory.id, after).await else { break false };
            fetched += listing.entries.len();
            match listing.entries.last() {
                _ if listing.end => break true,
                Some(last) if fetched < FETCHED_ENTRIES_MAX => after = last.cookie,
                _ => break false,
            }
        };
        if let Some(entries) = directory.state.borrow_mut().entries_mut() {
            entries.end_listing(number, is_whole);
        }
    }

    /// Takes a reference to an inode, to be given back by [`Client::forget`].
    pub fn refer(&self, id: InodeId) {
        self.inode(id).state.borrow_mut().references += 1;
    }

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
    async fn shown(self: &Rc<Self>, attr: Attr, before: u64) -> Result<Attr, Errno> {
        let inode = self.inode(attr.inode);
        if inode.last_commit.get() <= before {
            Ok(inode.local_attr(attr))
        } else {
            self.inode_attr(&inode).await
        }
    }

    /// Changes attributes other than the size (for that see [`Client::truncate`]).
    ///
    /// # Errors
    /// EPERM, EINVAL, those of a call.
    pub async fn set_attr(
        self: &Rc<Self>,
        id: InodeId,
        changes: AttrChanges,
    ) -> Result<Attr, Errno> {
        let inode = self.inode(id);
        if let Some(attr) = self.defer(&inode, &changes) {
            return Ok(attr);
        }
        // Times of uncommitted writes must not come after, and overwrite, what is set now, nor may the
        // suid and sgid that they clear.
        let (clean, kills, waits) = {
            let dirty = inode.dirty.borrow();
            (dirty.is_clean(), dirty.kill_privileges, !dirty.deferral.is_empty())
        };
        let is_before = changes.mtime.is_some() || changes.layout.is_some() || waits;
        if !clean && (is_before || kills && changes.mode.is_some()) {
            self.commit(&inode, false).await?;
        }
        let before = self.commits.get();
        let answer =
            self.session.call(Call::Change(ChangeCall::SetAttr { inode: id, changes })).await?;
        self.shown(attr_of(&answer)?, before).await
    }

    /// Makes a directory, symbolic link, FIFO, socket or device node; takes a reference to it.
    ///
    /// # Errors
    /// EEXIST, ENOENT, ENOTDIR, ENAMETOOLONG, those of a call.
    pub async fn make(
        self: &Rc<Self>,
        parent: InodeId,
        name: &[u8],
        creation: Creation,
        setting: Setting,
    ) -> Result<Attr, Errno> {
        self.wait_for_names(parent).await;
        self.create_with(parent, name, creation, setting, Rights::READ).await
    }

    pub(crate) async fn create_with(
        self: &Rc<Self>,
        parent: InodeId,
        name: &[u8],
        creation: Creation,
        setting: Setting,
        rights: Rights,
    ) -> Result<Attr, Errno> {
        check_name(name)?;
        let Setting { mode, uid, gid } = setting;
        let name = name.to_vec();
        let call =
            Call::Change(ChangeCall::Create { parent, name, creation, mode, uid, gid, rights });
        let attr = attr_of(&self.session.call(call).await?)?;
        self.refer(attr.inode);
        Ok(attr)
    }

    /// `link(2)`; takes a reference to the inode.
    ///
    /// # Errors
    /// EEXIST, EPERM for a directory, EMLINK, those of a call.
    pub async fn link(
        self: &Rc<Self>,
        id: InodeId,
        parent: InodeId,
        name: &[u8],
    ) -> Result<Attr, Errno> {
        check_name(name)?;
        self.wait_for_names(parent).await;
        let before = self.commits.get();
        let call = Call::Change(ChangeCall::Link { inode: id, parent, name: name.to_vec() });
        let attr = attr_of(&self.session.call(call).await?)?;
        let attr = self.shown(attr, before).await?;
        self.refer(id);
        Ok(attr)
    }

    /// `unlink(2)`.
    ///
    /// # Errors
    /// ENOENT, EISDIR, those of a call.
    pub async fn unlink(self: &Rc<Self>, parent: InodeId, name: &[u8]) -> Result<(), Errno> {
        check_name(name)?;
        let mut removal = self.removals.begin();
        let told = self.register_open(&mut removal, parent, name).await?;
        let call = Call::Change(ChangeCall::Unlink { parent, name: name.to_vec(), told });
        self.removed(call).await
    }

    /// Before a name goes: if this client has what it names open, the service must know, for it asks
    /// only the others. Who opens it from now on sees that its `removal` is under way. Answers what has
    /// been told: if the name names something else by the time it goes, this client is asked.
    async fn register_open(
        self: &Rc<Self>,
        removal: &mut Removal<'_>,
        parent: InodeId,
        name: &[u8],
    ) -> Result<OpenTold, Errno> {
        let found = match self.cached_entry(parent, name) {
            Known::Inode(id) => Some(id),
            Known::Absent => None,
            Known::Unknown if self.open_files.get() == 0 => return Ok(OpenTold::OfAny),
            Known::Unknown => {
                let call = Call::Read(ReadCall::Lookup { parent, name: name.to_vec() });
                match self.session.call(call).await? {
                    Answer::Entry(attr) => Some(attr.inode),
                    _ => None,
                }
            }
        };
        removal.found(found);
        let Some(id) = found else { return Ok(OpenTold::OfNone) };
        if let Some(inode) = self.known_inode(id) {
            let is_open = inode.state.borrow().opens > 0;
            if is_open && !reactor::mutant!("removal-untold") {
                match self.tell_open(&inode).await {
                    // It is gone: nothing of it has to be kept.
                    Err(Errno::ESTALE) => {}
                    told => told?,
                }
            }
        }
        Ok(OpenTold::Of(id))
    }

    /// `rmdir(2)`.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, ENOTEMPTY, those of a call.
    pub async fn rmdir(self: &Rc<Self>, parent: InodeId, name: &[u8]) -> Result<(), Errno> {
        check_name(name)?;
        self.removed(Call::Change(ChangeCall::Rmdir { parent, name: name.to_vec() })).await
    }

    async fn removed(self: &Rc<Self>, call: Call) -> Result<(), Errno> {
        match self.session.call(call).await? {
            Answer::Removed { inode, left } => {
                self.lost_name(inode, left.is_none());
                Ok(())
            }
            _ => Err(Errno::EPROTO),
        }
    }

    /// An inode lost a name, perhaps its last: data that nobody can reach need not be written.
    fn lost_name(&self, id: InodeId, was_last: bool) {
        if !was_last {
            return;
        }
        if let Some(inode) = self.known_inode(id)
            && inode.state.borrow().opens == 0
        {
            self.discard_dirty(&inode);
        }
    }

    /// `renameat2(2)`.
    ///
    /// # Errors
    /// ENOENT, EEXIST, ENOTEMPTY, EINVAL for a directory into itself, those of a call.
    pub async fn rename(
        self: &Rc<Self>,
        from: (InodeId, &[u8]),
        to: (InodeId, &[u8]),
        mode: RenameMode,
    ) -> Result<Renamed, Errno> {
        check_name(from.1)?;
        check_name(to.1)?;
        self.wait_for_names(to.0).await;
        let replaces = mode == RenameMode::Replace || mode == RenameMode::Whiteout;
        let mut removal = replaces.then(|| self.removals.begin());
        let told = match &mut removal {
            Some(removal) => self.register_open(removal, to.0, to.1).await?,
            None => OpenTold::OfNone,
        };
        let call = Call::Change(ChangeCall::Rename {
            parent: from.0,
            name: from.1.to_vec(),
            new_parent: to.0,
            new_name: to.1.to_vec(),
            mode,
            told,
        });
        match self.session.call(call).await? {
            Answer::Renamed { moved, other, replaced } => {
                if let Some((inode, left)) = replaced {
                    self.lost_name(inode, left.is_none());
                }
                self.move_lent(from, to);
                if other.is_some() {
                    self.move_lent(to, from);
                }
                Ok(Renamed { moved: moved.inode, other: other.map(|attr| attr.inode) })
            }
            _ => Err(Errno::EPROTO),
        }
    }

    /// A part of a directory's listing, after a cookie (0 = from the start). Takes no references.
    ///
    /// # Errors
    /// ENOTDIR, those of a call.
    pub async fn list(self: &Rc<Self>, id: InodeId, after: u64) -> Result<Listing, Errno> {
        let before = self.commits.get();
        let call = Call::Read(ReadCall::ReadDir { inode: id, after, count_max: LISTING_ENTRIES });
        match self.session.call(call).await? {
            Answer::Entries { mut entries, end } => {
                for entry in &mut entries {
                    if self.known_inode(entry.attr.inode).is_some() {
                        match self.shown(entry.attr, before).await {
                            Ok(attr) => entry.attr = attr,
                            // It was removed after it was listed.
                            Err(Errno::ESTALE) => {}
                            Err(errno) => return Err(errno),
                        }
                    }
                }
                Ok(Listing { entries, end })
            }
            _ => Err(Errno::EPROTO),
        }
    }

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// EINVAL if it is none, those of a call.
    pub async fn read_link(self: &Rc<Self>, id: InodeId) -> Result<Rc<[u8]>, Errno> {
        let inode = self.inode(id);
        if let Some(target) = &inode.state.borrow().target {
            return Ok(Rc::clone(target));
        }
        match self.session.call(Call::Read(ReadCall::ReadLink(id))).await? {
            Answer::Bytes(bytes) => {
                let target: Rc<[u8]> = bytes.into();
                inode.state.borrow_mut().target = Some(Rc::clone(&target));
                Ok(target)
            }
            _ => Err(Errno::EPROTO),
        }
    }

    /// One extended attribute.
    ///
    /// # Errors
    /// ENODATA, those of a call.
    pub async fn xattr(self: &Rc<Self>, id: InodeId, name: &[u8]) -> Result<Vec<u8>, Errno> {
        if self.has_no_xattrs(id) || name == CAPABILITY_XATTR && self.has_written(id) {
            return Err(Errno::ENODATA);
        }
        let call = Call::Read(ReadCall::GetXattr { inode: id, name: name.to_vec() });
        match self.session.call(call).await? {
            Answer::Bytes(bytes) => Ok(bytes),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Whether an inode is known to have no extended attributes. (The kernel asks for the file
    /// capabilities of each file that is truncated or changes its owner.)
    fn has_no_xattrs(&self, id: InodeId) -> bool {
        let inode = self.known_inode(id);
        inode.is_some_and(|inode| inode.state.borrow().has_no_xattrs)
            && self.session.life.is_alive()
    }

    /// Whether data was written that is not committed: its commit removes file capabilities.
    fn has_written(&self, id: InodeId) -> bool {
        self.known_inode(id).is_some_and(|inode| !inode.dirty.borrow().is_clean())
    }

    /// Names of all extended attributes.
    ///
    /// # Errors
    /// Those of a call.
    pub async fn xattrs(self: &Rc<Self>, id: InodeId) -> Result<Vec<Vec<u8>>, Errno> {
        if self.has_no_xattrs(id) {
            return Ok(Vec::new());
        }
        match self.session.call(Call::Read(ReadCall::ListXattr(id))).await? {
            Answer::Names(mut names) => {
                if self.has_written(id) {
                    names.retain(|name| name != CAPABILITY_XATTR);
                }
                Ok(names)
            }
            _ => Err(Errno::EPROTO),
        }
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// EEXIST, ENODATA (by `mode`), E2BIG, ERANGE, those of a call.
    pub async fn set_xattr(
        self: &Rc<Self>,
        id: InodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Errno> {
        if let Some(inode) = self.known_inode(id) {
            if name == CAPABILITY_XATTR {
                // What was written before must not remove it.
                self.commit(&inode, false).await?;
            }
            inode.state.borrow_mut().has_no_xattrs = false;
        }
        let call = Call::Change(ChangeCall::SetXattr {
            inode: id,
            name: name.to_vec(),
            value: value.to_vec(),
            mode,
        });
        self.session.call(call).await.map(drop)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// ENODATA, those of a call.
    pub async fn remove_xattr(self: &Rc<Self>, id: InodeId, name: &[u8]) -> Result<(), Errno> {
        let call = Call::Change(ChangeCall::RemoveXattr { inode: id, name: name.to_vec() });
        self.session.call(call).await.map(drop)
    }
}

pub(crate) fn check_name(name: &[u8]) -> Result<(), Errno> {
    if name.len() > protocol::NAME_MAX_BYTES {
        return Err(Errno::ENAMETOOLONG);
    }
    if name.is_empty() || name.iter().any(|byte| matches!(byte, 0 | b'/')) {
        return Err(Errno::EINVAL);
    }
    Ok(())
}
