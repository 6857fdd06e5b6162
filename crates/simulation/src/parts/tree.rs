//! Names in the core of the metadata service, and the rights that each call takes from other
//! sessions.
//!
//! The model knows all entries. Before each call it says, by the table of docs/protocol.md (T1 to
//! T9) and rule R3, which rights other sessions must give back; afterwards, whether the call
//! succeeds and what every name means.

mod table;

use super::service::fixture::{Fixture, create};
use crate::random::{Random, mix};
use meta::store::CrashPoint;
use protocol::attr::AttrChanges;
use protocol::client::FallocateMode;
use protocol::client::{
    Answer, Call, ChangeCall, Creation, OpenTold, ReadCall, RenameMode, SessionCall,
};
use protocol::{Errno, InodeId, Rights};
use std::collections::BTreeMap;
use table::{Takes, taken};

const STEPS: (u64, u64) = (60, 120);
const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const DIRECTORIES_MAX: usize = 4;

/// An inode of the model.
#[derive(Clone, Debug)]
struct Inode {
    is_directory: bool,
    links: u32,
}

/// All names.
#[derive(Debug)]
struct Tree {
    inodes: BTreeMap<InodeId, Inode>,
    entries: BTreeMap<(InodeId, String), InodeId>,
}

struct Names {
    fixture: Fixture,
    random: Random,
    tree: Tree,
    trace: u64,
}

/// Runs a seed; returns its trace and what is wrong. It panics where an answer is wrong.
pub(super) fn run(seed: u64) -> (u64, Vec<String>) {
    let root = Inode { is_directory: true, links: 1 };
    let tree = Tree { inodes: BTreeMap::from([(InodeId::ROOT, root)]), entries: BTreeMap::new() };
    let random = Random::new(seed ^ 0x6e61_6d65_7300);
    let mut names = Names { fixture: Fixture::new(), random, tree, trace: seed };
    for _ in 0..names.random.between(STEPS.0, STEPS.1) {
        names.step();
    }
    names.fixture.check();
    (names.trace, Vec::new())
}

impl Tree {
    fn at(&self, parent: InodeId, name: &str) -> Option<InodeId> {
        self.entries.get(&(parent, name.to_owned())).copied()
    }

    fn is_directory(&self, inode: InodeId) -> bool {
        self.inodes[&inode].is_directory
    }

    fn is_empty(&self, directory: InodeId) -> bool {
        !self.entries.keys().any(|(parent, _)| *parent == directory)
    }

    /// Whether a directory is `above`, or lies somewhere in it.
    fn is_within(&self, directory: InodeId, above: InodeId) -> bool {
        let parent = |of: InodeId| self.entries.iter().find(|(_, it)| **it == of).map(|it| it.0.0);
        let mut at = Some(directory);
        while let Some(here) = at {
            if here == above {
                return true;
            }
            at = parent(here);
        }
        false
    }

    fn add(&mut self, parent: InodeId, name: &str, inode: InodeId) {
        self.entries.insert((parent, name.to_owned()), inode);
    }

    /// Takes an entry away; the inode is gone with its last name.
    fn remove(&mut self, parent: InodeId, name: &str) {
        let inode = self.entries.remove(&(parent, name.to_owned())).expect("an entry");
        let known = self.inodes.get_mut(&inode).expect("an inode");
        known.links -= 1;
        if known.links == 0 {
            self.inodes.remove(&inode);
        }
    }
}

impl Names {
    fn step(&mut self) {
        match self.random.below(100) {
            0..20 => self.make(),
            20..30 => self.link(),
            30..46 => self.remove(),
            46..76 => self.rename(),
            76..97 => self.other(),
            _ => {
                self.fixture.core.flush().expect("a commit");
                self.fixture.reopen(CrashPoint::Process);
            }
        }
        self.compare();
    }

    fn name(&mut self) -> &'static str {
        self.random.of::<&str>(&NAMES)
    }

    fn inode(&mut self, is_directory: bool) -> Option<InodeId> {
        let all = self.tree.inodes.iter().filter(|(_, inode)| inode.is_directory == is_directory);
        let all: Vec<InodeId> = all.map(|(id, _)| *id).collect();
        (!all.is_empty()).then(|| *self.random.of(&all))
    }

    fn directory(&mut self) -> InodeId {
        self.inode(true).expect("the root is there")
    }

    /// Checks what a call takes from others, executes it, and checks whether it is refused.
    fn call(&mut self, call: &Call, takes: &Result<Takes, Errno>) -> Option<Answer> {
        let session = self.fixture.session;
        let found = self.fixture.core.conflicts(session, call).expect("a store that works");
        let wanted = takes.clone().unwrap_or_default();
        assert_eq!(taken(&found), wanted, "what {call:?} takes from other sessions");
        let answer = self.fixture.call(call);
        let text = format!("{answer:?}");
        self.trace = text.bytes().fold(self.trace, |sum, byte| mix(sum ^ u64::from(byte)));
        assert_eq!(answer.as_ref().err(), takes.as_ref().err(), "{call:?}");
        answer.ok()
    }

    fn make(&mut self) {
        let (parent, name) = (self.directory(), self.name());
        let directories = self.tree.inodes.values().filter(|inode| inode.is_directory).count();
        let is_directory = directories < DIRECTORIES_MAX && self.random.chance(40);
        let mut call = create(parent, name);
        if let Call::Change(ChangeCall::Create { creation, .. }) = &mut call
            && is_directory
        {
            *creation = Creation::Directory;
        }
        let takes = match self.tree.at(parent, name) {
            Some(_) => Err(Errno::EEXIST),
            None => Ok(Takes::default().entry(parent, name).add(parent, Rights::SIZE)),
        };
        if let Some(Answer::Entry(attr)) = self.call(&call, &takes) {
            self.tree.inodes.insert(attr.inode, Inode { is_directory, links: 1 });
            self.tree.add(parent, name, attr.inode);
        }
    }

    fn link(&mut self) {
        let (parent, name) = (self.directory(), self.name());
        let Some(inode) = self.inode(false) else { return };
        let takes = if self.tree.at(parent, name).is_some() {
            Err(Errno::EEXIST)
        } else {
            let takes = Takes::default().entry(parent, name).add(parent, Rights::SIZE);
            Ok(takes.add(inode, Rights::READ))
        };
        let call = ChangeCall::Link { inode, parent, name: name.into() };
        if self.call(&Call::Change(call), &takes).is_some() {
            self.tree.inodes.get_mut(&inode).expect("an inode").links += 1;
            self.tree.add(parent, name, inode);
        }
    }

    /// What a client has reported about its opens before it removes a name.
    fn told(&mut self, present: Option<InodeId>) -> OpenTold {
        let other = self.inode(false).unwrap_or(InodeId::ROOT);
        match (self.random.below(4), present) {
            (0, _) => OpenTold::OfAny,
            (1, Some(present)) => OpenTold::Of(present),
            (2, _) => OpenTold::Of(other),
            _ => OpenTold::OfNone,
        }
    }

    fn remove(&mut self) {
        let (parent, name) = (self.directory(), self.name());
        let present = self.tree.at(parent, name);
        let told = self.told(present);
        let is_rmdir = self.random.chance(40);
        let takes = match present {
            None => Err(Errno::ENOENT),
            Some(inode) => match (is_rmdir, self.tree.is_directory(inode)) {
                (true, false) => Err(Errno::ENOTDIR),
                (false, true) => Err(Errno::EISDIR),
                (true, true) if !self.tree.is_empty(inode) => Err(Errno::ENOTEMPTY),
                _ => Ok(self.losing(Takes::default().entry(parent, name), inode, told)),
            },
        };
        let name = name.to_owned();
        let call = if is_rmdir {
            ChangeCall::Rmdir { parent, name: name.clone().into() }
        } else {
            ChangeCall::Unlink { parent, name: name.clone().into(), told }
        };
        if self.call(&Call::Change(call), &takes).is_some() {
            self.tree.remove(parent, &name);
        }
    }

    /// An inode loses a name: with the last one, all rights, and its removing session must have
    /// reported whether it has it open.
    fn losing(&self, takes: Takes, inode: InodeId, told: OpenTold) -> Takes {
        let Inode { is_directory, links } = self.tree.inodes[&inode];
        if links > 1 {
            return takes.add(inode, Rights::READ);
        }
        let is_asked = !is_directory && told != OpenTold::OfAny && told != OpenTold::Of(inode);
        takes.all(inode, is_asked)
    }

    fn rename(&mut self) {
        let (parent, name) = (self.directory(), self.name());
        let (new_parent, new_name) = (self.directory(), self.name());
        let mode = *self.random.of(&[
            RenameMode::Replace,
            RenameMode::Replace,
            RenameMode::NoReplace,
            RenameMode::Exchange,
        ]);
        let (moved, present) = (self.tree.at(parent, name), self.tree.at(new_parent, new_name));
        let told = self.told(present);
        let takes = match moved {
            None => Err(Errno::ENOENT),
            Some(moved) => self.may_rename(moved, present, (parent, new_parent), mode).map(|()| {
                let takes = Takes::default().entry(parent, name).entry(new_parent, new_name);
                let takes = takes.add(new_parent, Rights::SIZE).add(moved, Rights::READ);
                match present {
                    Some(present) if present == moved => Takes::default(),
                    Some(present) if mode == RenameMode::Exchange => {
                        takes.add(present, Rights::READ)
                    }
                    Some(present) => self.losing(takes, present, told),
                    None => takes,
                }
            }),
        };
        let (from, to) = (name.into(), new_name.into());
        let call = ChangeCall::Rename { parent, name: from, new_parent, new_name: to, mode, told };
        if self.call(&Call::Change(call), &takes).is_none() || present == moved {
            return;
        }
        let moved = moved.expect("what was moved");
        match present {
            Some(present) if mode == RenameMode::Exchange => self.tree.add(parent, name, present),
            _ => {
                self.tree.entries.remove(&(parent, name.to_owned()));
                if present.is_some() {
                    self.tree.remove(new_parent, new_name);
                }
            }
        }
        self.tree.add(new_parent, new_name, moved);
    }

    fn may_rename(
        &self,
        moved: InodeId,
        present: Option<InodeId>,
        (parent, new_parent): (InodeId, InodeId),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        match (mode, present) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT),
            _ => {}
        }
        if self.tree.is_directory(moved) && self.tree.is_within(new_parent, moved) {
            return Err(Errno::EINVAL);
        }
        let Some(present) = present.filter(|present| *present != moved) else { return Ok(()) };
        if mode == RenameMode::Exchange {
            let is_loop = self.tree.is_directory(present) && self.tree.is_within(parent, present);
            return if is_loop { Err(Errno::EINVAL) } else { Ok(()) };
        }
        match (self.tree.is_directory(moved), self.tree.is_directory(present)) {
            (true, false) => Err(Errno::ENOTDIR),
            (false, true) => Err(Errno::EISDIR),
            (true, true) if !self.tree.is_empty(present) => Err(Errno::ENOTEMPTY),
            _ => Ok(()),
        }
    }

    /// Calls that change or show a file, and those that acquire rights.
    fn other(&mut self) {
        let (Some(inode), Some(other)) = (self.inode(false), self.inode(false)) else { return };
        let all = Rights::READ | Rights::WRITE | Rights::SIZE;
        let takes = |rights| Takes::default().add(inode, rights);
        let (call, takes) = match self.random.below(8) {
            0 => {
                let rights = *self.random.of(&[Rights::WRITE, Rights::WRITE | Rights::SIZE]);
                let sole = Rights::SOLE | (rights & Rights::SIZE);
                (Call::Session(SessionCall::Acquire { inode, rights }), takes(sole))
            }
            1 => (Call::Read(ReadCall::GetAttr(inode)), takes(Rights::SOLE)),
            2 | 3 if inode != other => {
                let copy = ChangeCall::CopyRange {
                    source: other,
                    source_offset: 0,
                    destination: inode,
                    destination_offset: 0,
                    length: 4096,
                };
                (Call::Change(copy), takes(all).add(other, all))
            }
            4 => {
                let changes = AttrChanges { mode: Some(0o600), ..AttrChanges::default() };
                (Call::Change(ChangeCall::SetAttr { inode, changes }), takes(Rights::READ))
            }
            5 => {
                let mode = FallocateMode::Punch;
                let call = ChangeCall::Fallocate { inode, mode, offset: 0, length: 4096 };
                (Call::Change(call), takes(all))
            }
            _ => {
                let size = Some(self.random.below(3) * 4096);
                let changes = AttrChanges { size, ..AttrChanges::default() };
                (Call::Change(ChangeCall::SetAttr { inode, changes }), takes(all))
            }
        };
        self.call(&call, &Ok(takes));
    }

    /// Compares all names with the model.
    fn compare(&mut self) {
        let directories = self.tree.inodes.iter().filter(|(_, inode)| inode.is_directory);
        let directories: Vec<InodeId> = directories.map(|(id, _)| *id).collect();
        for parent in directories {
            for name in NAMES {
                let lookup = Call::Read(ReadCall::Lookup { parent, name: name.into() });
                let found = match self.fixture.call(&lookup) {
                    Ok(Answer::Entry(attr)) => Some(attr.inode),
                    Ok(Answer::NoEntry) => None,
                    other => panic!("a lookup of {name} in {parent}: {other:?}"),
                };
                assert_eq!(found, self.tree.at(parent, name), "{name} in {parent}");
            }
        }
        for (id, inode) in self.tree.inodes.iter().filter(|(_, inode)| !inode.is_directory) {
            let links = self.fixture.core.attr(*id).expect("a file with a name").nlink;
            assert_eq!(links, inode.links, "names of {id}");
        }
    }
}
