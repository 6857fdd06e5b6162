//! Names: each is stored twice, by name and by cookie, so one of the two records is enough.

use super::Repair;
use super::tree::Tree;
use crate::records::{CookieEntry, Dentry, Inode, Key, key_number, key_tail};
use crate::store::Error;
use crate::tree::{FIRST_COOKIE, check_name, is_dots};
use protocol::{FileKind, InodeId};
use std::collections::{BTreeMap, BTreeSet};

/// A directory, and a name in it.
pub(super) type EntryKey = (InodeId, Vec<u8>);

/// The inode and cookie of a name; cookie 0 if it has none yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) inode: InodeId,
    pub(super) cookie: u64,
}

/// Both kinds of records of names, as stored.
pub(super) struct Stored {
    by_name: BTreeMap<EntryKey, Entry>,
    by_cookie: BTreeMap<(InodeId, u64), (Vec<u8>, InodeId)>,
}

impl Stored {
    /// Returns the directories that have a name on which both records agree; a single record may be
    /// a stray.
    pub(super) fn parents(&self) -> BTreeSet<InodeId> {
        let is_twin = |((parent, name), entry): &(&EntryKey, &Entry)| {
            let twin = self.by_cookie.get(&(*parent, entry.cookie));
            twin.is_some_and(|(twin, inode)| twin == name && *inode == entry.inode)
        };
        self.by_name.iter().filter(is_twin).map(|((parent, _), _)| *parent).collect()
    }

    /// Chooses one inode and cookie for each name.
    pub(super) fn settle(self, inodes: &BTreeMap<InodeId, Inode>) -> BTreeMap<EntryKey, Entry> {
        let mut named: BTreeMap<InodeId, u32> = BTreeMap::new();
        for entry in self.by_name.values() {
            *named.entry(entry.inode).or_default() += 1;
        }
        // Returns whether an inode has fewer names than its link count.
        let lacks = |id: &InodeId, named: &BTreeMap<InodeId, u32>| {
            let count = named.get(id).copied().unwrap_or(0);
            inodes.get(id).is_some_and(|inode| match inode.attr.kind {
                FileKind::Directory => count == 0,
                _ => inode.attr.nlink > count,
            })
        };
        let mut names = self.by_name.clone();
        for ((parent, cookie), (name, inode)) in &self.by_cookie {
            let place = (*parent, name.clone());
            let other = Entry { inode: *inode, cookie: *cookie };
            match names.get(&place).copied() {
                None => {
                    // The second record of a name counts once more than it should.
                    *named.entry(*inode).or_default() += 1;
                    names.insert(place, other);
                }
                Some(entry) if entry.inode == *inode => {
                    let twin = self.by_cookie.get(&(*parent, entry.cookie));
                    if twin.is_none_or(|(twin, _)| twin != name) {
                        names.insert(place, other);
                    }
                }
                Some(entry) => {
                    let is_better = !inodes.contains_key(&entry.inode)
                        || entry.cookie != *cookie && lacks(inode, &named)
                        || lacks(inode, &named) && !lacks(&entry.inode, &named);
                    if inodes.contains_key(inode) && is_better {
                        *named.entry(*inode).or_default() += 1;
                        names.insert(place, other);
                    }
                }
            }
        }
        names
    }
}

impl Repair {
    /// Reads both kinds of records of names.
    pub(super) fn stored_names(&self) -> Result<Stored, Error> {
        let is_name = |name: &[u8]| check_name(name).is_ok() && !is_dots(name);
        let mut by_name = BTreeMap::new();
        for (key, Dentry { inode, cookie }) in
            self.all::<Dentry>(&Key::Dentry(InodeId(0), b""), 1)?.sound
        {
            let (parent, name) = (InodeId(key_number(&key, 0)?), key_tail(&key, 1).to_vec());
            if is_name(&name) {
                by_name.insert((parent, name), Entry { inode, cookie });
            }
        }
        let mut by_cookie = BTreeMap::new();
        for (key, CookieEntry { inode, name }) in
            self.all::<CookieEntry>(&Key::Cookie(InodeId(0), 0), 2)?.sound
        {
            let place = (InodeId(key_number(&key, 0)?), key_number(&key, 1)?);
            if is_name(&name) && place.1 >= FIRST_COOKIE {
                by_cookie.insert(place, (name, inode));
            }
        }
        Ok(Stored { by_name, by_cookie })
    }

    /// Gives each name a cookie, writes both its records, and removes all other records of names.
    pub(super) fn write_names(&mut self, tree: &mut Tree) -> Result<(), Error> {
        let mut used: BTreeMap<InodeId, BTreeSet<u64>> = BTreeMap::new();
        let mut due = Vec::new();
        for (place, entry) in &tree.names {
            let cookies = used.entry(place.0).or_default();
            if entry.cookie < FIRST_COOKIE || !cookies.insert(entry.cookie) {
                due.push(place.clone());
            }
        }
        for place in due {
            let cookies = used.entry(place.0).or_default();
            let cookie = cookies.last().map_or(FIRST_COOKIE, |last| last.saturating_add(1));
            cookies.insert(cookie);
            if let Some(entry) = tree.names.get_mut(&place) {
                entry.cookie = cookie;
            }
        }
        let (mut wanted, mut written, mut removed) = (BTreeSet::new(), 0, 0);
        for ((parent, name), Entry { inode, cookie }) in &tree.names {
            let (inode, cookie) = (*inode, *cookie);
            if let Some(directory) = tree.inodes.get_mut(parent) {
                directory.next_cookie = directory.next_cookie.max(cookie.saturating_add(1));
            }
            let (by_name, by_cookie) = (Key::Dentry(*parent, name), Key::Cookie(*parent, cookie));
            wanted.extend([by_name.encode(), by_cookie.encode()]);
            written += usize::from(self.put(&by_name, &Dentry { inode, cookie })?);
            let entry = CookieEntry { inode, name: name.clone() };
            written += usize::from(self.put(&by_cookie, &entry)?);
        }
        for any in [Key::Dentry(InodeId(0), b""), Key::Cookie(InodeId(0), 0)] {
            let mut stale = Vec::new();
            self.layers.each(&any.prefix(0), |key, _| {
                if !wanted.contains(key) {
                    stale.push(key.to_vec());
                }
                Ok(())
            })?;
            for key in stale {
                removed += usize::from(self.remove(&key)?);
            }
        }
        if written + removed > 0 {
            self.note(format!("{written} records of names were rebuilt, {removed} removed"));
        }
        Ok(())
    }
}
