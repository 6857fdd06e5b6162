//! Looking names up, listing directories, reading symbolic links.

use crate::client::Client;
use crate::inode::Inode;
use crate::inode::entries::Known;
use protocol::client::{Answer, Call, Entry, ReadCall};
use protocol::{Attr, Errno, InodeId};
use std::rc::Rc;

/// Entries that one call of a listing asks for.
const LISTING_ENTRIES: u32 = 1024;

/// Most entries fetched of a directory in which many names are looked up.
const FETCHED_ENTRIES_MAX: usize = 32768;

/// A part of a directory's listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Entries in the order of their cookies, without `.` and `..`.
    pub entries: Vec<Entry>,
    /// Whether no entry comes after these.
    pub end: bool,
}

impl Client {
    /// Returns the inode that a directory has under a name, and takes a reference to it.
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

    /// Returns what is known of a name. Without contact to the service that is nothing, because the
    /// session may have ended and others may have changed the name.
    pub(crate) fn cached_entry(&self, parent: InodeId, name: &[u8]) -> Known {
        match self.known_inode(parent) {
            Some(directory)
                if self.session.life.is_alive() || reactor::mutant!("names-without-contact") =>
            {
                directory.state.borrow().entry(name)
            }
            _ => Known::Unknown,
        }
    }

    /// Counts a lookup that needed a call. After a few in one directory, fetches all of it.
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

    /// Lists a directory from start to end; the answers fill the cache.
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

    /// Returns a part of a directory's listing, after a cookie (0 = from the start). Takes no
    /// references.
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

    /// Returns the target of a symbolic link.
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
}

/// Checks the length and the bytes of a name.
pub(crate) fn check_name(name: &[u8]) -> Result<(), Errno> {
    if name.len() > protocol::NAME_MAX_BYTES {
        return Err(Errno::ENAMETOOLONG);
    }
    if name.is_empty() || name.iter().any(|byte| matches!(byte, 0 | b'/')) {
        return Err(Errno::EINVAL);
    }
    Ok(())
}
