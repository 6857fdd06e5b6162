//! Steps that change or look at directory entries.

use super::{Doing, Worker};
use crate::history::Life;
use crate::linear::{Answer, Mode, Op};
use crate::names::{NameCall, NameEffect, NameEvent, Slot, error_answer, inode_answer};
use client::{Handle, OpenMode, Setting};
use protocol::client::{Creation, Entry, RenameMode};
use protocol::{Attr, Errno, FileKind, InodeId};

const SETTING: Setting = Setting { mode: 0o644, uid: 0, gid: 0 };

fn asked_mode(mode: Mode) -> RenameMode {
    match mode {
        Mode::Replace => RenameMode::Replace,
        Mode::NoReplace => RenameMode::NoReplace,
        Mode::Exchange => RenameMode::Exchange,
    }
}

fn slot(parent: InodeId, name: &str) -> Slot {
    Slot { parent, name: name.to_owned() }
}

impl Worker {
    /// Enters an event with the fate that the call's answer tells; `seen` are what an answer says
    /// of entries.
    fn event<T>(
        &self,
        life: &Life,
        result: &Result<T, Errno>,
        changes: Vec<(Slot, NameEffect)>,
        seen: Vec<(Slot, NameEffect)>,
    ) {
        let mut history = self.history();
        let tick = history.tick();
        let is_same_session = life.session == self.session();
        let mut life = life.clone();
        life.returned = Some(tick);
        for (slot, effect) in changes {
            let mut life = life.clone();
            match result {
                // The answer was under way when the service lost power, and this with it, perhaps.
                Ok(_) if life.start < history.meta_power_lost => life.doubt(),
                Ok(_) => life.apply(tick),
                Err(errno) if super::is_verdict(*errno) && is_same_session => life.is_void = true,
                Err(_) => life.doubt(),
            }
            history.names.push(NameEvent { slot, effect, life });
        }
        // A call that was asked again in another session may have met its own effect.
        if is_same_session {
            for (slot, effect) in seen {
                history.names.push(NameEvent { slot, effect, life: life.clone() });
            }
        }
    }

    /// A call on names begins.
    fn call(&self, life: &Life, op: Op) -> usize {
        let mut history = self.history();
        history.calls.push(NameCall { op, answer: None, life: life.clone() });
        history.calls.len() - 1
    }

    /// A call on names was answered; `done` is what success says.
    fn call_ended<T>(
        &self,
        call: usize,
        result: &Result<T, Errno>,
        done: impl FnOnce(&T) -> Answer,
    ) {
        let session = self.session();
        let mut history = self.history();
        let (tick, meta_power_lost) = (history.tick(), history.meta_power_lost);
        let NameCall { op, answer, life } = &mut history.calls[call];
        // What was asked again in another session may have met its own effect.
        let is_same_session = life.session == session;
        life.returned = Some(tick);
        match result {
            Ok(_) if life.start < meta_power_lost => life.doubt(),
            Ok(_) if op.is_look() && !is_same_session => life.is_void = true,
            Ok(value) => {
                *answer = Some(done(value));
                life.apply(tick);
            }
            Err(errno) if super::is_verdict(*errno) && is_same_session => {
                *answer = error_answer(op, *errno);
                life.is_void = answer.is_none();
            }
            Err(_) => life.doubt(),
        }
    }

    /// Says which inode it is answered.
    fn on_inode(&self, attr: Option<&Attr>) {
        if let Some(attr) = attr {
            self.on(|| format!(" = inode {} ({:?})", attr.inode.0, attr.kind));
        }
    }

    pub(super) async fn lookup(&self, parent: InodeId, name: &str) -> Option<Attr> {
        let life = self.begin("lookup");
        self.on_name(parent, name);
        let call = self.call(&life, Op::Lookup { path: self.shared.path(parent, name) });
        let result = self.client.lookup(parent, name.as_bytes()).await;
        self.call_ended(call, &result, inode_answer);
        self.on_inode(result.as_ref().ok());
        self.answered("lookup", &result);
        let seen = match &result {
            Ok(attr) => {
                self.file(attr.inode);
                vec![(slot(parent, name), NameEffect::Saw(Some(attr.inode)))]
            }
            Err(Errno::ENOENT) => vec![(slot(parent, name), NameEffect::Saw(None))],
            Err(_) => Vec::new(),
        };
        self.event(&life, &result, Vec::new(), seen);
        result.ok()
    }

    /// Makes a file and opens it for writing.
    pub(super) async fn create(
        &self,
        parent: InodeId,
        name: &str,
        mode: OpenMode,
    ) -> Option<(Handle, InodeId)> {
        let life = self.begin("create");
        self.on_name(parent, name);
        // What a killed or failing call made is not known by number: it is whatever turns up.
        let index = self.unknown_change(&life, slot(parent, name));
        let op = Op::Create { path: self.shared.path(parent, name), exclusive: true };
        let call = self.call(&life, op);
        let result = self.client.create(parent, name.as_bytes(), SETTING, mode).await;
        self.call_ended(call, &result, |(_, attr)| inode_answer(attr));
        self.on_inode(result.as_ref().ok().map(|(_, attr)| attr));
        self.answered("create", &result);
        self.forget_change(index);
        match &result {
            Ok((_, attr)) => {
                self.history().born(attr.inode, life.start);
                let set = NameEffect::Set(Some(attr.inode));
                self.event(&life, &result, vec![(slot(parent, name), set)], Vec::new());
            }
            Err(errno) => self.create_failed(&life, slot(parent, name), *errno),
        }
        result.ok().map(|(handle, attr)| (handle, attr.inode))
    }

    fn create_failed(&self, life: &Life, slot: Slot, errno: Errno) {
        let seen = match errno {
            Errno::EEXIST => vec![(slot.clone(), NameEffect::SawSome)],
            _ => Vec::new(),
        };
        let made = vec![(slot, NameEffect::SetSome)];
        self.event(life, &Err::<(), _>(errno), made, seen);
    }

    /// Enters a change whose outcome is open for as long as the call has not returned.
    fn unknown_change(&self, life: &Life, slot: Slot) -> usize {
        self.open_changes(life, vec![(slot, NameEffect::SetSome)])
    }

    fn open_changes(&self, life: &Life, changes: Vec<(Slot, NameEffect)>) -> usize {
        let mut history = self.history();
        let first = history.names.len();
        for (slot, effect) in changes {
            history.names.push(NameEvent { slot, effect, life: life.clone() });
        }
        first
    }

    /// The call has returned: its outcome is entered anew.
    fn forget_change(&self, index: usize) {
        self.history().names[index].life.is_void = true;
    }

    pub(super) async fn unlink(&mut self) {
        let (parent, name) = self.any_place();
        self.unlink_name(parent, &name).await;
    }

    pub(super) async fn unlink_name(&self, parent: InodeId, name: &str) {
        let life = self.begin("unlink");
        self.on_name(parent, name);
        self.does(Doing::Changes);
        let at = slot(parent, name);
        let index = self.open_changes(&life, vec![(at.clone(), NameEffect::Set(None))]);
        let call = self.call(&life, Op::Unlink { path: self.shared.path(parent, name) });
        let result = self.client.unlink(parent, name.as_bytes()).await;
        self.call_ended(call, &result, |()| Answer::Done);
        self.answered("unlink", &result);
        self.forget_change(index);
        let seen = match &result {
            Ok(()) => vec![(at.clone(), NameEffect::SawSome)],
            Err(Errno::ENOENT) => vec![(at.clone(), NameEffect::Saw(None))],
            Err(_) => Vec::new(),
        };
        self.event(&life, &result, vec![(at, NameEffect::Set(None))], seen);
    }

    pub(super) async fn rename(&mut self) {
        let (parent, name) = self.place();
        let (new_parent, new_name) = self.place();
        if (parent, &name) == (new_parent, &new_name) {
            return;
        }
        let mode = match self.random.below(4) {
            0 => Mode::NoReplace,
            1 => Mode::Exchange,
            _ => Mode::Replace,
        };
        let (from, to) = (slot(parent, &name), slot(new_parent, &new_name));
        let old = match mode {
            Mode::Exchange => NameEffect::MovedFrom(to.clone()),
            _ => NameEffect::Set(None),
        };
        let life = self.begin("rename");
        self.on_name(parent, &name);
        self.on_name(new_parent, &new_name);
        self.on(|| format!(" {mode:?}"));
        self.does(Doing::Changes);
        let changes = vec![(from.clone(), old), (to.clone(), NameEffect::MovedFrom(from.clone()))];
        let index = self.open_changes(&life, changes.clone());
        let paths = (self.shared.path(parent, &name), self.shared.path(new_parent, &new_name));
        let call = self.call(&life, Op::Rename { from: paths.0, to: paths.1, mode });
        let result = self
            .client
            .rename((parent, name.as_bytes()), (new_parent, new_name.as_bytes()), asked_mode(mode))
            .await
            .map(drop);
        self.call_ended(call, &result, |()| Answer::Done);
        self.answered("rename", &result);
        self.forget_change(index);
        self.forget_change(index + 1);
        let seen = match (&result, mode) {
            (Ok(()), _) => vec![(from, NameEffect::SawSome)],
            (Err(Errno::ENOENT), Mode::Replace | Mode::NoReplace) => {
                vec![(from, NameEffect::Saw(None))]
            }
            (Err(Errno::EEXIST), Mode::NoReplace) => vec![(to, NameEffect::SawSome)],
            _ => Vec::new(),
        };
        self.event(&life, &result, changes, seen);
    }

    pub(super) async fn link(&mut self) {
        let (parent, name) = self.place();
        let Some(attr) = self.lookup(parent, &name).await else { return };
        if attr.kind == FileKind::File {
            let (new_parent, _) = self.place();
            // Names of their own: a rename of one link onto another of the same file does nothing.
            let new_name = (*self.random.of(&super::LINK_NAMES)).to_owned();
            let at = slot(new_parent, &new_name);
            let life = self.begin("link");
            self.on(|| format!(" of inode {}", attr.inode.0));
            self.on_name(new_parent, &new_name);
            let set = NameEffect::Set(Some(attr.inode));
            let index = self.open_changes(&life, vec![(at.clone(), set.clone())]);
            let path = self.shared.path(new_parent, &new_name);
            let call = self.call(&life, Op::Link { inode: attr.inode.0, path });
            let result = self.client.link(attr.inode, new_parent, new_name.as_bytes()).await;
            self.call_ended(call, &result, |_| Answer::Done);
            self.answered("link", &result);
            self.forget_change(index);
            let seen = match &result {
                Ok(_) => {
                    self.client.forget(attr.inode, 1);
                    Vec::new()
                }
                Err(Errno::EEXIST) => vec![(at.clone(), NameEffect::SawSome)],
                Err(_) => Vec::new(),
            };
            self.event(&life, &result, vec![(at, set)], seen);
        }
        self.client.forget(attr.inode, 1);
    }

    /// Lists a directory; what it has not is seen as absent.
    pub(super) async fn list(&mut self) {
        let (parent, _) = self.place();
        self.list_directory(parent).await;
    }

    pub(crate) async fn list_directory(&self, parent: InodeId) -> Option<Vec<(String, InodeId)>> {
        let life = self.begin("list");
        self.on_name(parent, "");
        let mut found = Vec::new();
        let mut after = 0;
        loop {
            let result = self.client.list(parent, after).await;
            if let Ok(listing) = &result {
                let name = |entry: &Entry| String::from_utf8_lossy(&entry.name).into_owned();
                self.on(|| format!(" {:?}", listing.entries.iter().map(name).collect::<Vec<_>>()));
            }
            self.answered("list", &result);
            let listing = result.ok()?;
            after = listing.entries.last().map_or(after, |entry| entry.cookie);
            for entry in listing.entries {
                let name = String::from_utf8_lossy(&entry.name).into_owned();
                if name != "." && name != ".." && name != super::BALLAST {
                    found.push((name, entry.attr.inode));
                }
            }
            if listing.end {
                break;
            }
        }
        let mut seen = Vec::new();
        for name in super::NAMES.into_iter().chain(super::LINK_NAMES) {
            let inode = found.iter().find(|(other, _)| other == name).map(|(_, inode)| *inode);
            seen.push((slot(parent, name), NameEffect::Saw(inode)));
        }
        for (_, inode) in &found {
            self.file(*inode);
        }
        // Entries of one listing may be seen at different moments.
        for (at, effect) in &seen {
            let call = self.call(&life, Op::Lookup { path: self.shared.path(parent, &at.name) });
            let answer = match effect {
                NameEffect::Saw(Some(inode)) => Answer::Inode(inode.0, None),
                _ => Answer::Absent,
            };
            self.call_ended(call, &Ok::<_, Errno>(()), |()| answer);
        }
        self.event(&life, &Ok::<_, Errno>(()), Vec::new(), seen);
        Some(found)
    }

    /// Makes or removes a directory under a name that files use too.
    pub(super) async fn directory(&mut self) {
        let (parent, name) = self.place();
        let at = slot(parent, &name);
        if self.random.chance(50) {
            let life = self.begin("mkdir");
            self.on_name(parent, &name);
            let index = self.unknown_change(&life, at.clone());
            let call = self.call(&life, Op::Mkdir { path: self.shared.path(parent, &name) });
            let result = self
                .client
                .make(
                    parent,
                    name.as_bytes(),
                    Creation::Directory,
                    Setting { mode: 0o755, ..SETTING },
                )
                .await;
            self.call_ended(call, &result, inode_answer);
            self.on_inode(result.as_ref().ok());
            self.answered("mkdir", &result);
            self.forget_change(index);
            match &result {
                Ok(attr) => {
                    self.history().born(attr.inode, life.start);
                    let set = NameEffect::Set(Some(attr.inode));
                    self.event(&life, &result, vec![(at, set)], Vec::new());
                    self.client.forget(attr.inode, 1);
                }
                Err(errno) => self.create_failed(&life, at, *errno),
            }
            return;
        }
        let life = self.begin("rmdir");
        self.on_name(parent, &name);
        let index = self.open_changes(&life, vec![(at.clone(), NameEffect::Set(None))]);
        let call = self.call(&life, Op::Rmdir { path: self.shared.path(parent, &name) });
        let result = self.client.rmdir(parent, name.as_bytes()).await;
        self.call_ended(call, &result, |()| Answer::Done);
        self.answered("rmdir", &result);
        self.forget_change(index);
        let seen = match &result {
            Ok(()) | Err(Errno::ENOTDIR) => vec![(at.clone(), NameEffect::SawSome)],
            Err(Errno::ENOENT) => vec![(at.clone(), NameEffect::Saw(None))],
            Err(_) => Vec::new(),
        };
        self.event(&life, &result, vec![(at, NameEffect::Set(None))], seen);
    }
}
