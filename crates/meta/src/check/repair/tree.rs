//! Inodes and the tree: each inode in use has a name and correct counts.

use super::Repair;
use super::data::{Data, Held};
use super::names::{Entry, EntryKey};
use super::sessions::Known;
use crate::records::{Inode, Key, Mark, Truncation, key_number};
use crate::store::Error;
use crate::tree::{FIRST_COOKIE, NewInode};
use protocol::{FILE_SIZE_MAX_BYTES, FileKind, InodeId, Layout, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// The directory for inodes that have lost their names.
const LOST_AND_FOUND: &[u8] = b"lost+found";

/// Inodes and names after the repair.
pub(super) struct Tree {
    pub(super) inodes: BTreeMap<InodeId, Inode>,
    pub(super) names: BTreeMap<EntryKey, Entry>,
    lost_and_found: Option<InodeId>,
    next_inode: u64,
    /// User and group of new inodes.
    owner: (u32, u32),
}

impl Repair {
    /// Repairs names, and the counts of names and data.
    pub(super) fn tree(&mut self, data: &Data, sessions: &Known) -> Result<(), Error> {
        let stored = self.stored_names()?;
        let parents = stored.parents();
        let inodes = self.inodes(data, &parents)?;
        let names = stored.settle(&inodes);
        let counted = self.stored_counters()?.map_or(0, |counters| counters.next_inode);
        let next_inode = counted.max(inodes.keys().last().map_or(0, |last| last.0) + 1);
        let owner = self.owner;
        let mut tree = Tree { inodes, names, lost_and_found: None, next_inode, owner };
        self.drop_strays(&mut tree, &parents);
        self.rebuild(&mut tree, data);
        self.drop_dangling(&mut tree);
        self.reach(&mut tree);
        self.settle_unnamed(&mut tree, sessions)?;
        self.write_names(&mut tree)?;
        tree.count_names();
        self.write_inodes(&tree)
    }

    /// Reads inodes, and settles contradictions within each of them.
    fn inodes(
        &mut self,
        data: &Data,
        parents: &BTreeSet<InodeId>,
    ) -> Result<BTreeMap<InodeId, Inode>, Error> {
        let records = self.all::<Inode>(&Key::Inode(InodeId(0)), 1)?;
        let (mut inodes, mut strays) = (BTreeMap::new(), Vec::new());
        for key in &records.bad {
            self.remove(key)?;
            self.note("an inode's record that makes no sense was removed");
        }
        for (key, inode) in records.sound {
            let id = InodeId(key_number(&key, 0)?);
            if inode.attr.inode == id && key == Key::Inode(id).encode() {
                inodes.insert(id, inode);
            } else {
                strays.push((key, inode));
            }
        }
        for (key, inode) in strays {
            self.remove(&key)?;
            let id = inode.attr.inode;
            let is_known = inodes.contains_key(&id);
            if !is_known && (1..1 << 62).contains(&id.0) {
                self.note(format!("the record of {id} was moved to its place"));
                inodes.insert(id, inode);
            }
        }
        let mut hopeless = Vec::new();
        for (id, inode) in &mut inodes {
            self.found.flush_epoch = self.found.flush_epoch.max(inode.flush_epoch);
            let held = data.held.get(id).copied().unwrap_or_default();
            mend(inode, held, parents.contains(id));
            if is_faulty(inode, *id) {
                // A count that is too low is better than a record that keeps its directory from
                // being listed.
                mend(inode, Held { is_damaged: false, ..held }, parents.contains(id));
            }
            if is_faulty(inode, *id) {
                hopeless.push(*id);
            }
        }
        for id in hopeless {
            inodes.remove(&id);
            self.remove(&Key::Inode(id).encode())?;
            self.note(format!("the record of {id}, which makes no sense, was removed"));
        }
        Ok(inodes)
    }

    /// Removes names in directories that do not exist if their inodes have names elsewhere: strays
    /// of damaged keys. The directories in `parents` exist even without a readable record, because
    /// two records agree on a name in each.
    fn drop_strays(&mut self, tree: &mut Tree, parents: &BTreeSet<InodeId>) {
        let Tree { inodes, names, .. } = tree;
        let is_there = |id: &InodeId| inodes.contains_key(id) || parents.contains(id);
        let placed: BTreeSet<InodeId> = names
            .iter()
            .filter(|((parent, _), _)| is_there(parent))
            .map(|(_, entry)| entry.inode)
            .collect();
        let before = names.len();
        names.retain(|(parent, _), entry| is_there(parent) || !placed.contains(&entry.inode));
        if names.len() < before {
            self.note(format!("{} names in no directory were removed", before - names.len()));
        }
    }

    /// Rebuilds inodes that have data or entries, but no record.
    fn rebuild(&mut self, tree: &mut Tree, data: &Data) {
        let parents: BTreeSet<InodeId> = tree.names.keys().map(|(parent, _)| *parent).collect();
        let with_data =
            data.held.iter().filter(|(_, held)| held.bytes > 0 || held.inline.is_some());
        let mut missing: BTreeMap<InodeId, (FileKind, Held)> =
            with_data.map(|(id, held)| (*id, (FileKind::File, *held))).collect();
        for parent in parents.into_iter().chain([InodeId::ROOT]) {
            missing.insert(parent, (FileKind::Directory, Held::default()));
        }
        missing.retain(|id, _| !tree.inodes.contains_key(id) && (1..1 << 62).contains(&id.0));
        for (id, (kind, held)) in missing {
            let mode = match (id, kind) {
                (InodeId::ROOT, _) => 0o755,
                (_, FileKind::Directory) => 0o700,
                _ => 0o600,
            };
            let mut inode = new_inode(kind, mode, self.owner).build(id, Timestamp(0));
            inode.attr.allocated_bytes = held.bytes;
            mend(&mut inode, held, false);
            self.note(format!(
                "{id} was rebuilt for the data that belongs to it, with mode {mode:o} and the owner of the store"
            ));
            tree.next_inode = tree.next_inode.max(id.0 + 1);
            tree.inodes.insert(id, inode);
        }
    }

    /// Removes names that cannot lead anywhere, and further names of directories.
    fn drop_dangling(&mut self, tree: &mut Tree) {
        let inodes = &tree.inodes;
        let is_directory =
            |id: &InodeId| inodes.get(id).is_some_and(|it| it.attr.kind == FileKind::Directory);
        let before = tree.names.len();
        tree.names.retain(|(parent, _), entry| {
            let is_root = entry.inode == InodeId::ROOT;
            is_directory(parent) && inodes.contains_key(&entry.inode) && !is_root
        });
        if tree.names.len() < before {
            let count = before - tree.names.len();
            self.note(format!("{count} names that lead to nothing were removed"));
        }
        let mut of_directories: BTreeMap<InodeId, Vec<EntryKey>> = BTreeMap::new();
        for (place, entry) in &tree.names {
            if is_directory(&entry.inode) {
                of_directories.entry(entry.inode).or_default().push(place.clone());
            }
        }
        for (id, places) in of_directories {
            let parent = tree.inodes[&id].parent;
            let kept = places.iter().position(|place| place.0 == parent).unwrap_or(0);
            for (_, place) in places.iter().enumerate().filter(|(at, _)| *at != kept) {
                tree.names.remove(place);
                self.note(format!("a further name of the directory {id} was removed"));
            }
        }
    }

    /// Gives a name in lost+found to directories that cannot be reached from the root.
    fn reach(&mut self, tree: &mut Tree) {
        loop {
            let mut below: BTreeMap<InodeId, Vec<InodeId>> = BTreeMap::new();
            let mut named = BTreeMap::new();
            for ((parent, _), entry) in &tree.names {
                below.entry(*parent).or_default().push(entry.inode);
                named.insert(entry.inode, *parent);
            }
            let mut reached = BTreeSet::from([InodeId::ROOT]);
            let mut todo = vec![InodeId::ROOT];
            while let Some(id) = todo.pop() {
                for child in below.get(&id).into_iter().flatten() {
                    if reached.insert(*child) {
                        todo.push(*child);
                    }
                }
            }
            // A directory that has entries is in use, regardless of its link count.
            let lost = |id: &&InodeId| {
                let is_used = tree.inodes[*id].attr.nlink > 0 || below.contains_key(*id);
                tree.inodes[*id].attr.kind == FileKind::Directory
                    && is_used
                    && !reached.contains(*id)
            };
            let all: Vec<InodeId> = tree.inodes.keys().filter(lost).copied().collect();
            let unnamed: Vec<InodeId> =
                all.iter().filter(|id| !named.contains_key(id)).copied().collect();
            for id in &unnamed {
                self.attach(tree, *id);
            }
            if !unnamed.is_empty() {
                continue;
            }
            let Some(first) = all.first() else { return };
            // If each of them has a name, there is a loop above each of them. It may be cut
            // anywhere.
            let (mut id, mut passed) = (*first, BTreeSet::new());
            while passed.insert(id)
                && let Some(parent) = named.get(&id)
            {
                id = *parent;
            }
            tree.names.retain(|_, entry| entry.inode != id);
            self.attach(tree, id);
        }
    }

    /// Gives an inode a name in lost+found.
    fn attach(&mut self, tree: &mut Tree, id: InodeId) {
        let directory = tree.lost_and_found();
        let mut name = format!("inode-{}", id.0);
        while tree.names.contains_key(&(directory, name.clone().into_bytes())) {
            name.push('+');
        }
        self.note(format!("{id} got the name /lost+found/{name}"));
        tree.names.insert((directory, name.into_bytes()), Entry { inode: id, cookie: 0 });
    }

    /// Settles inodes that have no name, and inodes that are marked dead and have one.
    fn settle_unnamed(&mut self, tree: &mut Tree, sessions: &Known) -> Result<(), Error> {
        let named: BTreeSet<InodeId> = tree.names.values().map(|entry| entry.inode).collect();
        let mut lost = Vec::new();
        for (id, inode) in &mut tree.inodes {
            let is_open = sessions.opens.contains_key(id);
            if *id == InodeId::ROOT || named.contains(id) {
                inode.is_dead = false;
                for key in sessions.opens.get(id).into_iter().flatten() {
                    self.remove(key)?;
                }
            } else if inode.attr.nlink > 0 {
                inode.is_dead = false;
                lost.push(*id);
            } else {
                let is_dead = inode.is_dead || !is_open;
                if is_dead && !inode.is_dead {
                    self.note(format!("{id}, which was deleted, will be freed"));
                }
                inode.is_dead = is_dead;
            }
        }
        for id in lost {
            self.attach(tree, id);
            for key in sessions.opens.get(&id).into_iter().flatten() {
                self.remove(key)?;
            }
        }
        for (id, keys) in &sessions.opens {
            let is_kept = tree.inodes.get(id).is_some_and(|inode| !inode.is_dead);
            for key in keys.iter().filter(|_| !is_kept) {
                self.remove(key)?;
            }
        }
        Ok(())
    }

    /// Writes inodes that have changed, and the marks of the work that they still need.
    fn write_inodes(&mut self, tree: &Tree) -> Result<(), Error> {
        let mut changed = 0;
        let (mut dead, mut truncating) = (BTreeSet::new(), BTreeSet::new());
        for (id, inode) in &tree.inodes {
            changed += usize::from(self.put(&Key::Inode(*id), inode)?);
            if inode.is_dead {
                dead.insert(*id);
            }
            if inode.truncating.is_some() {
                truncating.insert(*id);
            }
        }
        if changed > 0 {
            self.note(format!("{changed} inodes were recounted"));
        }
        self.marks(&Key::Dead(InodeId(0)), Key::Dead, &dead)?;
        self.marks(&Key::Truncating(InodeId(0)), Key::Truncating, &truncating)?;
        self.found.inodes = tree.inodes.len() as u64;
        self.found.last_inode = tree.inodes.keys().last().map_or(0, |last| last.0);
        Ok(())
    }

    fn marks(
        &mut self,
        any: &Key<'_>,
        key: impl Fn(InodeId) -> Key<'static>,
        wanted: &BTreeSet<InodeId>,
    ) -> Result<(), Error> {
        let marks = self.all::<Mark>(any, 1)?;
        self.remove_bad(&marks.bad, "work to be done")?;
        for (stored, _) in marks.sound {
            if !wanted.contains(&InodeId(key_number(&stored, 0)?)) {
                self.remove(&stored)?;
            }
        }
        for id in wanted {
            self.put(&key(*id), &Mark)?;
        }
        Ok(())
    }
}

impl Tree {
    /// Returns the directory for inodes that have lost their names; creates it if it is missing.
    fn lost_and_found(&mut self) -> InodeId {
        if let Some(id) = self.lost_and_found {
            return id;
        }
        let mut name = LOST_AND_FOUND.to_vec();
        let id = loop {
            let place = (InodeId::ROOT, name.clone());
            match self.names.get(&place).map(|entry| entry.inode) {
                Some(id) if self.inodes[&id].attr.kind == FileKind::Directory => break id,
                Some(_) => name.push(b'+'),
                None => {
                    let id = InodeId(self.next_inode);
                    self.next_inode += 1;
                    let directory = new_inode(FileKind::Directory, 0o700, self.owner);
                    self.inodes.insert(id, directory.build(id, Timestamp(0)));
                    self.names.insert(place, Entry { inode: id, cookie: 0 });
                    break id;
                }
            }
        };
        self.lost_and_found = Some(id);
        id
    }

    /// Recounts names, entries and subdirectories.
    fn count_names(&mut self) {
        let mut names: BTreeMap<InodeId, (u32, InodeId)> = BTreeMap::new();
        let mut entries: BTreeMap<InodeId, (u64, u32)> = BTreeMap::new();
        for ((parent, _), entry) in &self.names {
            let is_directory = self.inodes[&entry.inode].attr.kind == FileKind::Directory;
            let named = names.entry(entry.inode).or_insert((0, *parent));
            named.0 += 1;
            let counts = entries.entry(*parent).or_default();
            counts.0 += 1;
            counts.1 += u32::from(is_directory);
        }
        for (id, inode) in &mut self.inodes {
            let (count, parent) = names.get(id).copied().unwrap_or((0, InodeId::ROOT));
            if inode.attr.kind != FileKind::Directory {
                inode.attr.nlink = count;
                continue;
            }
            let (size, below) = entries.get(id).copied().unwrap_or_default();
            let is_named = count > 0 || *id == InodeId::ROOT;
            inode.attr.nlink = if is_named { 2 + below } else { 0 };
            inode.attr.size = size;
            if count > 0 {
                inode.parent = parent;
            }
        }
    }
}

fn new_inode(kind: FileKind, mode: u16, (uid, gid): (u32, u32)) -> NewInode {
    NewInode {
        kind,
        mode,
        uid,
        gid,
        rdev: 0,
        layout: Layout::NEAR,
        parent: InodeId::ROOT,
        target: Vec::new(),
    }
}

/// Returns whether a field of the inode makes no sense, except those that its names decide.
fn is_faulty(inode: &Inode, id: InodeId) -> bool {
    let mut named = Inode { is_dead: false, ..inode.clone() };
    named.attr.nlink = 2;
    named.fault(id).is_some()
}

/// Settles contradictions of an inode with itself and with its content.
fn mend(inode: &mut Inode, held: Held, has_entries: bool) {
    let has_data = inode.attr.allocated_bytes > 0 && (held.bytes > 0 || held.inline.is_some());
    let kind = match (has_data, has_entries, inode.target.is_empty()) {
        (true, false, true) => FileKind::File,
        (false, true, true) => FileKind::Directory,
        (false, false, false) => FileKind::Symlink,
        // The target of the link is lost.
        (false, false, true) if inode.attr.kind == FileKind::Symlink => FileKind::File,
        _ => inode.attr.kind,
    };
    inode.attr.kind = kind;
    inode.attr.mode &= 0o7777;
    inode.next_cookie = inode.next_cookie.max(FIRST_COOKIE);
    if kind == FileKind::Symlink {
        inode.attr.size = inode.target.len() as u64;
    }
    let is_sound = |it: &Truncation| it.from < it.to && it.to <= FILE_SIZE_MAX_BYTES;
    let is_cut = |it: &Truncation| kind == FileKind::File && is_sound(it);
    inode.truncating = inode.truncating.filter(is_cut);
    if kind != FileKind::File {
        // An extent page under this number belongs to another inode: it stays, and so does its
        // finding.
        (inode.inline, inode.attr.allocated_bytes) = (0, 0);
        if !inode.is_dead && !held.is_damaged {
            inode.xattrs = held.xattrs;
        }
        return;
    }
    // The size of the unreadable part is not known.
    let with_inline = held.bytes.saturating_add(u64::from(inode.inline));
    let lacks_inline = held.inline.is_none() && inode.inline > 0;
    if held.is_damaged || lacks_inline && inode.attr.allocated_bytes == with_inline {
        return;
    }
    let count = held.inline.unwrap_or(0);
    inode.inline = count;
    inode.attr.allocated_bytes = held.bytes.saturating_add(u64::from(count));
    if !inode.is_dead {
        inode.xattrs = held.xattrs;
    }
    if inode.attr.size > FILE_SIZE_MAX_BYTES {
        inode.attr.size = 0;
    }
    let end = if inode.truncating.is_some() || inode.is_dead { 0 } else { held.end };
    inode.attr.size = inode.attr.size.max(end).max(u64::from(count));
}
