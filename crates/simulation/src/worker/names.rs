//! Steps that change or look at directory entries.

use super::{Doing, Worker};
use crate::history::Life;
use crate::kernel::Renaming;
use crate::linear::{Answer, Kind, Mode, Op};
use crate::names::{NameCall, NameEffect, NameEvent, Slot, error_answer};
use crate::worker::data::Open;
use protocol::{Errno, InodeId};

/// The mode of new files.
const MADE_MODE: u32 = 0o644;

/// What a name was seen to lead to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) is_file: bool,
}

fn slot(parent: InodeId, name: &str) -> Slot {
    Slot { parent, name: name.to_owned() }
}

/// Returns whether an error describes names at one moment. The kernel looks up the two names of a
/// rename one after the other, and compares their kinds afterwards.
fn is_of_one_moment(op: &Op, errno: Errno) -> bool {
    match op {
        Op::Rename { .. } => !matches!(errno, Errno::EISDIR | Errno::ENOTDIR),
        Op::Lookup { .. } => errno == Errno::ENOENT,
        Op::Create { .. }
        | Op::Mkdir { .. }
        | Op::Symlink { .. }
        | Op::Link { .. }
        | Op::Unlink { .. }
        | Op::Rmdir { .. }
        | Op::Write { .. }
        | Op::Swap { .. }
        | Op::Read { .. }
        | Op::Lock { .. }
        | Op::Unlock { .. }
        | Op::TestLock { .. } => true,
    }
}

fn asked_mode(mode: Mode) -> Renaming {
    match mode {
        Mode::Replace => Renaming::Replace,
        Mode::NoReplace => Renaming::NoReplace,
        Mode::Exchange => Renaming::Exchange,
    }
}

impl Worker {
    /// Records the begin of a call on names.
    pub(super) fn call(&self, life: &Life, op: Op) -> usize {
        let mut history = self.history();
        history.calls.push(NameCall::new(op, life.clone()));
        history.calls.len() - 1
    }

    /// Records the answer to a call on names; `done` converts a successful result.
    pub(super) fn call_ended<T>(
        &self,
        call: usize,
        result: &Result<T, Errno>,
        done: impl FnOnce(&T) -> Answer,
    ) {
        let session = self.session();
        let mut history = self.history();
        let (tick, meta_power_lost) = (history.tick(), history.meta_power_lost);
        let call = &mut history.calls[call];
        let NameCall { op, answer, life, .. } = &mut *call;
        // A call that was repeated in another session may have met its own effect.
        let is_same_session = life.session == session;
        life.returned = Some(tick);
        match result {
            Ok(_) if life.start < meta_power_lost => life.doubt(),
            Ok(_) if op.is_look() && !is_same_session => life.is_void = true,
            Ok(value) => call.done(done(value), tick),
            Err(errno) if super::is_verdict(*errno) && is_same_session => {
                let says = is_of_one_moment(op, *errno);
                *answer = error_answer(op, *errno).filter(|_| says);
                life.is_void = answer.is_none();
            }
            Err(_) => life.doubt(),
        }
    }

    /// Adds the returned inode to the story.
    fn on_inode(&self, inode: Option<InodeId>) {
        if let Some(inode) = inode {
            self.on(|| format!(" = inode {}", inode.0));
        }
    }

    /// Enters an event whose fate depends on the call's answer; `seen` converts an answer to
    /// observations of entries.
    pub(super) fn event<T>(
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
                // The answer was under way when the service lost power, which may have undone the
                // change.
                Ok(_) if life.start < history.meta_power_lost => life.doubt(),
                Ok(_) => life.apply(tick),
                Err(errno) if super::is_verdict(*errno) && is_same_session => life.is_void = true,
                Err(_) => life.doubt(),
            }
            history.names.push(NameEvent { slot, effect, life });
        }
        // A call that was repeated in another session may have met its own effect.
        if is_same_session {
            for (slot, effect) in seen {
                history.names.push(NameEvent { slot, effect, life: life.clone() });
            }
        }
    }

    pub(super) async fn lookup(&self, parent: InodeId, name: &str) -> Option<Found> {
        let life = self.begin("lookup");
        self.on_name(parent, name);
        let call = self.call(&life, Op::Lookup { path: self.shared.path(parent, name) });
        let seen = self.kernel.stat_seen(self.caller(), self.path(parent, name)).await;
        let is_fresh = seen.as_ref().is_ok_and(|(_, is_fresh)| *is_fresh);
        let result = seen.map(|(attributes, _)| attributes);
        self.call_ended(call, &result, |attributes| {
            let kind = match attributes.mode & libc::S_IFMT {
                libc::S_IFDIR => Kind::Directory,
                libc::S_IFLNK => Kind::Symlink,
                _ => Kind::File,
            };
            Answer::Inode(attributes.inode, Some(kind))
        });
        self.on_inode(result.as_ref().ok().map(|attributes| InodeId(attributes.inode)));
        self.answered("lookup", &result);
        let seen = match &result {
            Ok(attributes) => {
                let inode = InodeId(attributes.inode);
                self.file(inode);
                vec![(slot(parent, name), NameEffect::Saw(Some(inode)))]
            }
            Err(Errno::ENOENT) => vec![(slot(parent, name), NameEffect::Saw(None))],
            Err(_) => Vec::new(),
        };
        self.event(&life, &result, Vec::new(), seen);
        let attributes = result.ok()?;
        if is_fresh && attributes.mode & libc::S_IFMT == libc::S_IFREG {
            self.saw_mode(&life, InodeId(attributes.inode), attributes.mode);
            let file = self.file(InodeId(attributes.inode));
            self.saw_size(file, attributes.size, (life.session, life.start));
        }
        Some(Found { is_file: attributes.mode & libc::S_IFMT == libc::S_IFREG })
    }

    /// Opens or creates a file, depending on `flags`.
    pub(super) async fn open(&self, parent: InodeId, name: &str, flags: i32) -> Option<Open> {
        let life = self.begin("open");
        self.on_name(parent, name);
        self.on(|| format!(" with {flags:#o}"));
        let at = slot(parent, name);
        let makes = flags & libc::O_CREAT != 0;
        // The number of a file that a killed or failing call made is unknown until a lookup shows
        // it.
        let index = makes.then(|| self.unknown_change(&life, at.clone()));
        let path = self.shared.path(parent, name);
        let exclusive = flags & libc::O_EXCL != 0;
        let looks = Op::Lookup { path: path.clone() };
        let op = if makes { Op::Create { path, exclusive } } else { looks.clone() };
        let call = self.call(&life, op);
        let result = self.kernel.open(self.caller(), self.path(parent, name), flags).await;
        if let Ok(file) = &result {
            let op = &mut self.history().calls[call].op;
            match op {
                Op::Create { exclusive, .. } if file.is_created => *exclusive = true,
                _ => *op = looks,
            }
        }
        self.call_ended(call, &result, |file| {
            Answer::Inode(file.inode.number().0, Some(Kind::File))
        });
        self.on_inode(result.as_ref().ok().map(|file| file.inode.number()));
        self.answered("open", &result);
        if let Some(index) = index {
            self.forget_change(index);
        }
        match &result {
            Ok(file) if file.is_created => {
                let inode = file.inode.number();
                self.history().born(inode, life.start);
                self.made_with_mode(&life, inode, MADE_MODE);
                let set = NameEffect::Set(Some(inode));
                self.event(&life, &result, vec![(at, set)], Vec::new());
            }
            // It is the file that the name leads to.
            Ok(file) => {
                let seen = vec![(at, NameEffect::Saw(Some(file.inode.number())))];
                self.event(&life, &result, Vec::new(), seen);
            }
            Err(errno) if makes => self.create_failed(&life, at, *errno),
            Err(Errno::ENOENT) => {
                self.event(&life, &result, Vec::new(), vec![(at, NameEffect::Saw(None))]);
            }
            Err(_) => {}
        }
        let file = result.ok()?;
        let key = self.file(file.inode.number());
        Some(Open::new(file, key, &life))
    }

    fn create_failed(&self, life: &Life, slot: Slot, errno: Errno) {
        let seen = match errno {
            Errno::EEXIST => vec![(slot.clone(), NameEffect::SawSome)],
            _ => Vec::new(),
        };
        let made = vec![(slot, NameEffect::SetSome)];
        self.event(life, &Err::<(), _>(errno), made, seen);
    }

    /// Enters a change whose outcome is open until the call returns.
    fn unknown_change(&self, life: &Life, slot: Slot) -> usize {
        self.open_changes(life, vec![(slot, NameEffect::SetSome)])
    }

    pub(super) fn open_changes(&self, life: &Life, changes: Vec<(Slot, NameEffect)>) -> usize {
        let mut history = self.history();
        let first = history.names.len();
        for (slot, effect) in changes {
            history.names.push(NameEvent { slot, effect, life: life.clone() });
        }
        first
    }

    /// Drops such a change when the call has returned. The caller enters its outcome anew.
    pub(super) fn forget_change(&self, index: usize) {
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
        let result = self.kernel.unlink(self.caller(), self.path(parent, name)).await;
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
        self.rename_from(parent, name).await;
    }

    pub(super) async fn rename_from(&mut self, parent: InodeId, name: String) {
        let (new_parent, new_name) = self.place();
        if (parent, &name) == (new_parent, &new_name) {
            return;
        }
        let mode = match self.random.below(4) {
            0 => Mode::NoReplace,
            1 => Mode::Exchange,
            _ => Mode::Replace,
        };
        let how = asked_mode(mode);
        let (from, to) = (slot(parent, &name), slot(new_parent, &new_name));
        let old = match how {
            Renaming::Exchange => NameEffect::MovedFrom(to.clone()),
            _ => NameEffect::Set(None),
        };
        let life = self.begin("rename");
        self.on_name(parent, &name);
        self.on_name(new_parent, &new_name);
        self.on(|| format!(" {how:?}"));
        self.does(Doing::Changes);
        let changes = vec![(from.clone(), old), (to.clone(), NameEffect::MovedFrom(from.clone()))];
        let index = self.open_changes(&life, changes.clone());
        let (old_path, new_path) = (self.path(parent, &name), self.path(new_parent, &new_name));
        let paths = (self.shared.path(parent, &name), self.shared.path(new_parent, &new_name));
        let call = self.call(&life, Op::Rename { from: paths.0, to: paths.1, mode });
        let result = self.kernel.rename(self.caller(), old_path, new_path, how).await;
        self.call_ended(call, &result, |()| Answer::Done);
        self.answered("rename", &result);
        self.forget_change(index);
        self.forget_change(index + 1);
        let seen = match (&result, how) {
            (Ok(()), _) => vec![(from, NameEffect::SawSome)],
            (Err(Errno::ENOENT), Renaming::Replace | Renaming::NoReplace) => {
                vec![(from, NameEffect::Saw(None))]
            }
            (Err(Errno::EEXIST), Renaming::NoReplace) => vec![(to, NameEffect::SawSome)],
            _ => Vec::new(),
        };
        self.event(&life, &result, changes, seen);
    }

    pub(super) async fn link(&mut self) {
        let (parent, name) = self.place();
        let (new_parent, _) = self.place();
        // Links have their own names, because a rename of one link onto another of the same file
        // does nothing.
        let new_name = *self.random.of(&super::LINK_NAMES);
        let (from, at) = (slot(parent, &name), slot(new_parent, new_name));
        let life = self.begin("link");
        self.on_name(parent, &name);
        self.on_name(new_parent, new_name);
        let linked = NameEffect::MovedFrom(from.clone());
        let index = self.open_changes(&life, vec![(at.clone(), linked.clone())]);
        let paths = (self.path(parent, &name), self.path(new_parent, new_name));
        let path = self.shared.path(new_parent, new_name);
        let call = self.call(&life, Op::Link { inode: 0, path: path.clone() });
        let acts = |inode: InodeId| {
            let op = Op::Link { inode: inode.0, path: path.clone() };
            self.history().calls[call].op = op;
        };
        let result = self.kernel.link(self.caller(), paths.0, paths.1, acts).await;
        self.call_ended(call, &result, |_| Answer::Done);
        self.answered("link", &result);
        self.forget_change(index);
        let (effect, seen) = match &result {
            Ok(inode) => {
                (NameEffect::Set(Some(*inode)), vec![(from, NameEffect::Saw(Some(*inode)))])
            }
            Err(Errno::EEXIST) => (linked, vec![(at.clone(), NameEffect::SawSome)]),
            Err(_) => (linked, Vec::new()),
        };
        self.event(&life, &result, vec![(at, effect)], seen);
    }

    /// Lists a directory; names that are not in the listing count as absent.
    pub(super) async fn list(&mut self) {
        let (parent, _) = self.place();
        self.list_directory(parent).await;
    }

    pub(crate) async fn list_directory(&self, parent: InodeId) -> Option<Vec<(String, InodeId)>> {
        let life = self.begin("list");
        self.on_name(parent, "");
        let result = self.kernel.list(self.caller(), self.directory_name(parent)).await;
        if let Ok(found) = &result {
            self.on(|| format!(" {found:?}"));
        }
        self.answered("list", &result);
        let mut found = result.ok()?;
        found.retain(|(name, _)| name != super::BALLAST);
        let mut seen = Vec::new();
        for name in super::NAMES.into_iter().chain(super::LINK_NAMES) {
            let inode = found.iter().find(|(other, _)| other == name).map(|(_, inode)| *inode);
            seen.push((slot(parent, name), NameEffect::Saw(inode)));
        }
        for (_, inode) in &found {
            self.file(*inode);
        }
        // Entries of one listing may be from different moments.
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
            let result = self.kernel.mkdir(self.caller(), self.path(parent, &name)).await;
            self.call_ended(call, &result, |inode| Answer::Inode(inode.0, Some(Kind::Directory)));
            self.answered("mkdir", &result);
            self.forget_change(index);
            match &result {
                Ok(inode) => {
                    self.history().born(*inode, life.start);
                    let set = NameEffect::Set(Some(*inode));
                    self.event(&life, &result, vec![(at, set)], Vec::new());
                    if self.random.chance(50) {
                        // Other kernels still know the directory in its old place, or just look.
                        self.list_directory(parent).await;
                        self.rename_from(parent, name).await;
                    }
                }
                Err(errno) => self.create_failed(&life, at, *errno),
            }
            return;
        }
        let life = self.begin("rmdir");
        self.on_name(parent, &name);
        let index = self.open_changes(&life, vec![(at.clone(), NameEffect::Set(None))]);
        let call = self.call(&life, Op::Rmdir { path: self.shared.path(parent, &name) });
        let result = self.kernel.rmdir(self.caller(), self.path(parent, &name)).await;
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
