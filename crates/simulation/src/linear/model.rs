//! The effects of calls on names and files, given their answers.

use super::locks::Locks;
use super::{Answer, Call, Kind, Mode, Op};
use std::collections::BTreeMap;

/// What a name stands for, or the content of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Value {
    /// Nothing; for a file: never written.
    Absent,
    /// This inode or content.
    Known(u64),
    /// Something whose number no answer has shown yet: a lost call made it, or it survived a loss.
    Fresh(usize),
    /// Something or nothing.
    Any(usize),
    /// For the locks of a file: these locks, by their number in [`Locks`].
    Held(usize),
}

/// The calls of a group of names, and what is known about them.
pub(super) struct Model<'a> {
    pub(super) calls: Vec<&'a Call>,
    pub(super) names: Vec<&'a String>,
    numbers: BTreeMap<&'a String, usize>,
    /// Kinds by inode number.
    kinds: BTreeMap<u64, Kind>,
    /// Inodes made by calls that were answered.
    made: BTreeMap<u64, usize>,
    locks: Locks,
}

type Names = Vec<Value>;

impl<'a> Model<'a> {
    pub(super) fn new(calls: &[&'a Call]) -> Model<'a> {
        let mut model = Model {
            calls: calls.to_vec(),
            names: Vec::new(),
            numbers: BTreeMap::new(),
            kinds: BTreeMap::new(),
            made: BTreeMap::new(),
            locks: Locks::default(),
        };
        for (index, call) in calls.iter().enumerate() {
            for path in call.op.paths() {
                if !model.numbers.contains_key(path) {
                    model.numbers.insert(path, model.names.len());
                    model.names.push(path);
                }
            }
            if let Answer::Inode(inode, kind) = call.answer {
                let is_maker = made_kind(&call.op).is_some()
                    && !matches!(call.op, Op::Create { exclusive: false, .. });
                if is_maker {
                    model.made.insert(inode, index);
                }
                let kind = if is_maker { made_kind(&call.op) } else { kind };
                model.kinds.extend(kind.map(|kind| (inode, kind)));
            }
        }
        model
    }

    /// Returns the number of the unknown content of a name after a loss.
    pub(super) fn unknown(&self, loss: usize, name: usize) -> usize {
        self.calls.len() + loss * self.names.len() + name
    }

    /// Returns the possible states of names, as text.
    pub(super) fn text(&self, names: &[Value], paths: &[&String]) -> String {
        let text = |path: &&String| format!("{path}: {:?}", names[self.numbers[*path]]);
        paths.iter().map(text).collect::<Vec<_>>().join(", ")
    }

    /// Returns the possible states of names after a call has taken effect; none if it cannot take
    /// effect now with its answer.
    pub(super) fn made(&self, call: usize, names: &[Value]) -> Vec<Names> {
        let Call { op, answer, .. } = self.calls[call];
        match op {
            Op::Create { path, exclusive } => {
                let mut after = self.make(call, self.at(path), names);
                if let (false, Answer::Inode(inode, _)) = (exclusive, *answer) {
                    after.extend(self.found(self.at(path), inode, names));
                }
                after
            }
            Op::Mkdir { path } | Op::Symlink { path } | Op::Link { path, .. } => {
                self.make(call, self.at(path), names)
            }
            Op::Unlink { path } => self.remove(*answer, self.at(path), names, false),
            Op::Rmdir { path } => self.remove(*answer, self.at(path), names, true),
            Op::Rename { from, to, mode } => {
                self.rename(*answer, (self.at(from), self.at(to)), *mode, names)
            }
            Op::Lookup { path } => self.look(*answer, self.at(path), names),
            Op::Write { file, value } => vec![with(names, self.at(file), Value::Known(*value))],
            Op::Swap { file, old, new } => {
                let file = self.at(file);
                let before = self.read(file, *old, names);
                before.into_iter().map(|names| with(&names, file, Value::Known(*new))).collect()
            }
            Op::Read { file, .. } => match answer {
                Answer::Value(value) => self.read(self.at(file), *value, names),
                _ => Vec::new(),
            },
            Op::Lock { file, lock } | Op::Unlock { file, lock } | Op::TestLock { file, lock } => {
                let at = self.at(file);
                let held = match names[at] {
                    Value::Held(held) => Some(held),
                    Value::Absent => None,
                    // After a loss the held locks are unknown.
                    Value::Known(_) | Value::Fresh(_) | Value::Any(_) => {
                        return vec![names.to_vec()];
                    }
                };
                let after = match op {
                    Op::Unlock { .. } => Some(self.locks.without(held, lock)),
                    _ => self.locks.asked(held, lock, *answer),
                };
                let value = |held: Option<usize>| held.map_or(Value::Absent, Value::Held);
                after.into_iter().map(|held| with(names, at, value(held))).collect()
            }
        }
    }

    fn at(&self, path: &String) -> usize {
        self.numbers[path]
    }

    fn kind(&self, value: Value) -> Option<Kind> {
        match value {
            Value::Known(inode) => self.kinds.get(&inode).copied(),
            Value::Fresh(call) => self.calls.get(call).and_then(|call| made_kind(&call.op)),
            Value::Absent | Value::Any(_) | Value::Held(_) => None,
        }
    }

    fn may_be_directory(&self, value: Value) -> bool {
        self.kind(value).is_none_or(|kind| kind == Kind::Directory)
    }

    fn may_be_other(&self, value: Value) -> bool {
        self.kind(value) != Some(Kind::Directory)
    }

    /// Gives a name to a new inode.
    fn make(&self, call: usize, at: usize, names: &[Value]) -> Vec<Names> {
        let value = match (&self.calls[call].op, self.calls[call].answer) {
            (_, Answer::Exists) => return exists(names, at),
            (Op::Create { .. }, Answer::IsDirectory) => {
                return exists(names, at)
                    .into_iter()
                    .filter(|it| self.may_be_directory(it[at]))
                    .collect();
            }
            (Op::Link { inode, .. }, Answer::Done | Answer::Inode(..) | Answer::Lost) => {
                Value::Known(*inode)
            }
            (_, Answer::Inode(inode, _)) => Value::Known(inode),
            (_, Answer::Done | Answer::Lost) => Value::Fresh(call),
            _ => return Vec::new(),
        };
        absent(names, at).into_iter().map(|names| with(&names, at, value)).collect()
    }

    fn remove(&self, answer: Answer, at: usize, names: &[Value], is_rmdir: bool) -> Vec<Names> {
        let fits =
            |value| if is_rmdir { self.may_be_directory(value) } else { self.may_be_other(value) };
        let misfits =
            |value| if is_rmdir { self.may_be_other(value) } else { self.may_be_directory(value) };
        let there = exists(names, at).into_iter();
        match answer {
            Answer::Done | Answer::Lost => {
                let there = there.filter(|names| fits(names[at]));
                there.map(|names| with(&names, at, Value::Absent)).collect()
            }
            Answer::Absent => absent(names, at),
            Answer::IsDirectory | Answer::NotDirectory => {
                there.filter(|names| misfits(names[at])).collect()
            }
            Answer::NotEmpty => there.collect(),
            Answer::Inode(..) | Answer::Some | Answer::Value(_) | Answer::Exists => Vec::new(),
        }
    }

    fn rename(
        &self,
        answer: Answer,
        (from, to): (usize, usize),
        mode: Mode,
        names: &[Value],
    ) -> Vec<Names> {
        let both = || exists(names, from).into_iter().flat_map(|names| exists(&names, to));
        match answer {
            Answer::Done | Answer::Lost => exists(names, from)
                .into_iter()
                .flat_map(|names| self.move_name((from, to), mode, &names))
                .collect(),
            Answer::Absent => {
                let mut after = absent(names, from);
                if mode == Mode::Exchange {
                    after.extend(absent(names, to));
                }
                after
            }
            Answer::Exists => exists(names, to),
            Answer::NotEmpty => both().collect(),
            Answer::IsDirectory | Answer::NotDirectory => {
                let differ = |one, other| self.may_be_directory(one) && self.may_be_other(other);
                both().filter(|it| differ(it[from], it[to]) || differ(it[to], it[from])).collect()
            }
            Answer::Inode(..) | Answer::Some | Answer::Value(_) => Vec::new(),
        }
    }

    /// Moves what `from` stands for.
    fn move_name(&self, (from, to): (usize, usize), mode: Mode, names: &[Value]) -> Vec<Names> {
        let (old, new) = (names[from], names[to]);
        let moved = || with(&with(names, from, Value::Absent), to, old);
        match mode {
            Mode::Exchange => exists(names, to)
                .into_iter()
                .map(|names| with(&with(&names, from, names[to]), to, old))
                .collect(),
            Mode::NoReplace => absent(names, to)
                .into_iter()
                .map(|names| with(&with(&names, from, Value::Absent), to, old))
                .collect(),
            // Both are names of one file: rename does nothing.
            Mode::Replace if old == new => vec![names.to_vec()],
            Mode::Replace if matches!(new, Value::Absent | Value::Any(_)) => vec![moved()],
            Mode::Replace => {
                let is_allowed = self.may_be_directory(old) && self.may_be_directory(new)
                    || self.may_be_other(old) && self.may_be_other(new);
                let is_unseen = |value| matches!(value, Value::Fresh(_));
                let mut after = if is_allowed { vec![moved()] } else { Vec::new() };
                // The two may be the same file.
                if let (Value::Known(inode), true) = (new, is_unseen(old)) {
                    after.extend(self.found(from, inode, names));
                }
                if let (Value::Known(inode), true) = (old, is_unseen(new)) {
                    after.extend(self.found(to, inode, names));
                }
                after
            }
        }
    }

    fn look(&self, answer: Answer, at: usize, names: &[Value]) -> Vec<Names> {
        match answer {
            Answer::Inode(inode, _) => self.found(at, inode, names),
            Answer::Some => exists(names, at),
            Answer::Absent => absent(names, at),
            _ => Vec::new(),
        }
    }

    /// Handles an answer that shows a name's inode.
    fn found(&self, at: usize, inode: u64, names: &[Value]) -> Vec<Names> {
        let value = names[at];
        let may_be = match value {
            Value::Absent | Value::Held(_) => false,
            Value::Known(known) => known == inode,
            Value::Any(_) => true,
            Value::Fresh(call) if call >= self.calls.len() => true,
            Value::Fresh(call) => {
                let maker = self.made.get(&inode);
                let kind = self.kinds.get(&inode).copied();
                maker.is_none_or(|maker| *maker == call)
                    && kind.is_none_or(|kind| made_kind(&self.calls[call].op) == Some(kind))
            }
        };
        if !may_be {
            return Vec::new();
        }
        let see = |name: &Value| if *name == value { Value::Known(inode) } else { *name };
        vec![names.iter().map(see).collect()]
    }

    /// Handles an answer that shows a file's content; 0 stands for never written.
    fn read(&self, at: usize, value: u64, names: &[Value]) -> Vec<Names> {
        match names[at] {
            Value::Absent if value == 0 => vec![names.to_vec()],
            Value::Absent => Vec::new(),
            _ => self.found(at, value, names),
        }
    }
}

/// Returns the kind of inode that a call makes.
fn made_kind(op: &Op) -> Option<Kind> {
    match op {
        Op::Create { .. } => Some(Kind::File),
        Op::Mkdir { .. } => Some(Kind::Directory),
        Op::Symlink { .. } => Some(Kind::Symlink),
        Op::Link { .. }
        | Op::Unlink { .. }
        | Op::Rmdir { .. }
        | Op::Rename { .. }
        | Op::Lookup { .. }
        | Op::Write { .. }
        | Op::Swap { .. }
        | Op::Read { .. }
        | Op::Lock { .. }
        | Op::Unlock { .. }
        | Op::TestLock { .. } => None,
    }
}

fn with(names: &[Value], at: usize, value: Value) -> Names {
    let mut names = names.to_vec();
    names[at] = value;
    names
}

/// Returns the names, if this one may be absent.
fn absent(names: &[Value], at: usize) -> Vec<Names> {
    match names[at] {
        Value::Absent | Value::Any(_) => vec![with(names, at, Value::Absent)],
        Value::Known(_) | Value::Fresh(_) | Value::Held(_) => Vec::new(),
    }
}

/// Returns the names, if this one may exist.
fn exists(names: &[Value], at: usize) -> Vec<Names> {
    match names[at] {
        Value::Absent => Vec::new(),
        Value::Any(number) => vec![with(names, at, Value::Fresh(number))],
        Value::Known(_) | Value::Fresh(_) | Value::Held(_) => vec![names.to_vec()],
    }
}
