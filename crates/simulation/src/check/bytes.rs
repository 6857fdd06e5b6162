//! Checks every byte of every read.

use super::View;
use crate::history::{Change, Effect, FileKey, History, Read, SizeSeen};
use crate::pattern;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;
use std::rc::Rc;

/// Largest number of copies that are followed from a byte to its source.
const COPY_DEPTH_MAX: usize = 4;

/// What a byte of a file may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// The file ends before it.
    End,
    Zero,
    /// Byte `at` of a write.
    Data {
        stamp: pattern::Stamp,
        at: u64,
    },
    /// Not followed further; any value is allowed.
    Any,
}

struct Checker<'a> {
    history: &'a History,
    /// Changes by file.
    changes: Vec<Vec<&'a Change>>,
    /// What is known of copies: what bytes of their sources may be, and where that changes.
    copied: RefCell<HashMap<(CopyKey, u64), Contents>>,
    copied_borders: RefCell<HashMap<CopyKey, Rc<[u64]>>>,
}

/// A copy, and how many copies led to it.
type CopyKey = (*const Change, usize);

/// What a byte may be.
type Contents = Rc<[Content]>;

/// Checks all reads. Returns the violations.
pub(super) fn check(history: &History) -> Vec<String> {
    let mut changes = vec![Vec::new(); history.file_inodes.len()];
    for change in history.changes.iter().filter(|change| !change.life.is_void) {
        changes[change.file].push(change);
    }
    let (copied, copied_borders) = Default::default();
    let checker = Checker { history, changes, copied, copied_borders };
    let wrong = history.reads.iter().filter_map(|read| checker.check_read(read));
    let sizes = history.sizes.iter().filter_map(|seen| checker.check_size(*seen));
    wrong.chain(sizes).chain(checker.unreadable()).collect()
}

impl Checker<'_> {
    /// Returns a violation for each unreadable file with completely synced content. No loss of
    /// power or of a device may lose such a file.
    fn unreadable(&self) -> Vec<String> {
        let is_safe = |file: &&FileKey| {
            let changes = &self.changes[**file];
            !changes.is_empty() && changes.iter().all(|change| change.life.is_safe())
        };
        let files: BTreeSet<&FileKey> = self.history.unreadable.iter().filter(is_safe).collect();
        let text = |file: &FileKey| {
            let inode = self.history.file_inodes[*file].0;
            let mut text =
                format!("read of inode {inode} fails for good, and all of it was synced:");
            self.add_changes(&mut text, *file, |_| true);
            text
        };
        files.into_iter().map(text).collect()
    }

    fn check_read(&self, read: &Read) -> Option<String> {
        let own = Some((read.actor, read.session));
        let fresh = read.fresh.filter(|_| read.is_cached);
        let view = View { start: read.start, end: read.end, own, fresh };
        let end = read.offset + read.bytes.len() as u64;
        let mut borders = BTreeSet::from([read.offset, end]);
        self.add_borders(read.file, view, (read.offset, end), &mut borders, 0);
        let mut borders = borders.into_iter();
        let mut from = borders.next()?;
        for to in borders {
            let start = (from - read.offset) as usize;
            let found = &read.bytes[start..start + (to - from) as usize];
            let mut allowed = self.allowed(read.file, from, view, 0);
            if read.is_cached && allowed.contains(&Content::End) {
                // A page that was read when the file was shorter ends in zeros, up to the end that
                // the kernel knew before.
                allowed.push(Content::Zero);
            }
            if let Some(wrong) = first_wrong(found, &allowed) {
                if self.is_unplaced(read.file, &found[wrong..]) {
                    return None;
                }
                return Some(self.describe(read, from + wrong as u64, &allowed));
            }
            from = to;
        }
        let is_short = (read.bytes.len() as u64) < read.asked;
        let view = View { start: read.ends_since, fresh: None, ..view };
        if is_short && !self.allowed(read.file, end, view, 0).contains(&Content::End) {
            return Some(self.describe_end(read, end, view));
        }
        None
    }

    /// Checks that a file may have ended where stat(2) says.
    fn check_size(&self, seen: SizeSeen) -> Option<String> {
        let SizeSeen { file, actor, session, start, end, size } = seen;
        let files = self.with_sources(file);
        if self.history.unplaced.iter().any(|(other, ..)| files.contains(other)) {
            return None;
        }
        let view = View { start, end, own: Some((actor, session)), fresh: None };
        let ends = self.allowed(file, size, view, 0).contains(&Content::End);
        let is_byte = |content: &Content| *content != Content::End;
        let reaches = size == 0 || self.allowed(file, size - 1, view, 0).iter().any(is_byte);
        if ends && reaches {
            return None;
        }
        let inode = self.history.file_inodes[file].0;
        let what = if ends { "reach that far" } else { "end there" };
        let mut text = format!(
            "size of inode {inode} on node{} (ticks {start}..{end}) is {size}, but it cannot {what}:",
            actor.machine
        );
        self.add_changes(&mut text, file, |change| view.may_have(&change.life));
        Some(text)
    }

    /// Adds the offsets from `first` to `last` at which the allowed content may change.
    fn add_borders(
        &self,
        file: FileKey,
        view: View,
        (first, last): (u64, u64),
        borders: &mut BTreeSet<u64>,
        depth: usize,
    ) {
        for change in self.changes[file].iter().filter(|change| view.may_have(&change.life)) {
            let range = change.effect.range();
            let ends = [range.start, range.end, change.effect.reach()];
            borders.extend(ends.into_iter().filter(|at| (first..=last).contains(at)));
            if depth == COPY_DEPTH_MAX || range.end < first || range.start > last {
                continue;
            }
            if let Effect::Copy { source, source_offset, offset, .. } = change.effect {
                let inner = self.borders_of_copy(change, (source, source_offset), depth);
                let places = inner.iter().map(|at| at - source_offset + offset);
                borders.extend(places.filter(|at| (first..=last).contains(at)));
            }
        }
    }

    /// Returns the offsets in the source of a copy at which its content may change.
    fn borders_of_copy(
        &self,
        change: &Change,
        (source, source_offset): (FileKey, u64),
        depth: usize,
    ) -> Rc<[u64]> {
        let key = (std::ptr::from_ref(change), depth);
        if let Some(known) = self.copied_borders.borrow().get(&key) {
            return Rc::clone(known);
        }
        let range = change.effect.range();
        let span = (source_offset, source_offset + (range.end - range.start));
        let mut borders = BTreeSet::new();
        self.add_borders(source, of_copy(change), span, &mut borders, depth + 1);
        let borders: Rc<[u64]> = borders.into_iter().collect();
        self.copied_borders.borrow_mut().insert(key, Rc::clone(&borders));
        borders
    }

    /// Returns what the byte at `at` may be.
    fn allowed(&self, file: FileKey, at: u64, view: View, depth: usize) -> Vec<Content> {
        let seen = || self.changes[file].iter().filter(|change| view.may_have(&change.life));
        let setters: Vec<&Change> =
            seen().filter(|change| change.effect.range().contains(&at)).copied().collect();
        let is_replaced = |old: &Change| {
            setters.iter().any(|new| old.life.is_before(&new.life) && view.has(&new.life))
        };
        let fills =
            |change: &Change| matches!(change.effect, Effect::Write { .. } | Effect::Copy { .. });
        let mut allowed = Vec::new();
        let mut ends: Vec<Option<&Change>> = Vec::new();
        if !setters.iter().any(|new| fills(new) && view.has(&new.life)) {
            ends.push(None);
        }
        for change in &setters {
            if matches!(change.effect, Effect::Truncate { .. }) {
                let is_filled = setters.iter().any(|new| {
                    fills(new) && change.life.is_before(&new.life) && view.has(&new.life)
                });
                if !is_filled {
                    ends.push(Some(change));
                }
                continue;
            }
            if is_replaced(change) {
                continue;
            }
            match change.effect {
                Effect::Write { offset, stamp, .. } => {
                    allowed.push(Content::Data { stamp, at: at - offset });
                }
                Effect::Copy { source, source_offset, offset, .. } => {
                    let at = at - offset + source_offset;
                    for content in &*self.copied(change, (source, at), depth) {
                        if !allowed.contains(content) {
                            allowed.push(*content);
                        }
                    }
                }
                _ => allowed.push(Content::Zero),
            }
        }
        let extenders: Vec<&Change> =
            seen().filter(|change| change.effect.reach() > at).copied().collect();
        for end in ends {
            let is_after = |change: &&&Change| end.is_none_or(|e| e.life.is_before(&change.life));
            let is_extended = extenders.iter().filter(is_after).any(|x| view.has(&x.life));
            if !is_extended {
                allowed.push(Content::End);
            }
            if extenders.iter().any(|x| end.is_none_or(|end| !x.life.is_before(&end.life))) {
                allowed.push(Content::Zero);
            }
        }
        allowed
    }

    /// Returns what a byte of a copy's source may have been.
    fn copied(&self, change: &Change, (source, at): (FileKey, u64), depth: usize) -> Rc<[Content]> {
        if depth == COPY_DEPTH_MAX {
            return Rc::new([Content::Any]);
        }
        let key = ((std::ptr::from_ref(change), depth), at);
        if let Some(known) = self.copied.borrow().get(&key) {
            return Rc::clone(known);
        }
        let mut allowed = self.allowed(source, at, of_copy(change), depth + 1);
        allowed.retain(|content| *content != Content::End);
        let allowed: Rc<[Content]> = allowed.into();
        self.copied.borrow_mut().insert(key, Rc::clone(&allowed));
        allowed
    }

    fn name(&self, read: &Read) -> String {
        format!(
            "read of inode {} at {}..{} on node{} (ticks {}..{}): {} bytes,",
            self.history.file_inodes[read.file].0,
            read.offset,
            read.offset + read.asked,
            read.actor.machine,
            read.start,
            read.end,
            read.bytes.len(),
        )
    }

    fn describe(&self, read: &Read, at: u64, allowed: &[Content]) -> String {
        let found = &read.bytes[(at - read.offset) as usize..];
        let found = &found[..found.len().min(64)];
        let origin = self.origin(found);
        let mut text = format!("{} byte {at} is {origin}, allowed: {allowed:?}", self.name(read));
        self.add_changes(&mut text, read.file, |change| {
            change.effect.range().contains(&at) && change.life.start <= read.end
        });
        text
    }

    fn describe_end(&self, read: &Read, end: u64, view: View) -> String {
        let mut text = format!("{} ends at {end}, where it must have bytes:", self.name(read));
        self.add_changes(&mut text, read.file, |change| {
            let reach = change.effect.reach().max(change.effect.range().end);
            reach > end && view.may_have(&change.life)
        });
        text
    }

    /// Appends the relevant changes of a file: when they were called, returned and became certain,
    /// and since when they may be undone.
    fn add_changes(&self, text: &mut String, file: FileKey, matters: impl Fn(&Change) -> bool) {
        for change in self.changes[file].iter().filter(|change| matters(change)) {
            let (life, effect) = (&change.life, change.effect);
            let (machine, start) = (life.actor.machine, life.start);
            let (returned, applied, latest) = (life.returned, life.applied, life.latest);
            let _ = write!(
                text,
                " [{effect:?} node{machine} {start}..{returned:?}, certain {applied:?}, at latest {latest:?}"
            );
            let _ = match life.undone {
                Some(undone) => write!(text, ", undone {undone}]"),
                None => write!(text, "]"),
            };
        }
    }

    /// Returns the file and the files that it may have copies of.
    fn with_sources(&self, file: FileKey) -> BTreeSet<FileKey> {
        let mut files = BTreeSet::from([file]);
        for _ in 0..COPY_DEPTH_MAX {
            let copies = files.iter().flat_map(|file| &self.changes[*file]);
            let sources: Vec<FileKey> = copies
                .filter_map(|change| match change.effect {
                    Effect::Copy { source, .. } => Some(source),
                    Effect::Write { .. }
                    | Effect::Truncate { .. }
                    | Effect::Punch { .. }
                    | Effect::Extend { .. } => None,
                })
                .collect();
            files.extend(sources);
        }
        files
    }

    /// Whether bytes belong to an append with an unknown place, in this file or in a source of its
    /// copies.
    fn is_unplaced(&self, file: FileKey, found: &[u8]) -> bool {
        let looked = &found[..found.len().min(8)];
        let files = self.with_sources(file);
        let unplaced = self.history.unplaced.iter().filter(|(other, ..)| files.contains(other));
        let is_of = |stamp, length| {
            (0..length).any(|at| pattern::agreeing(stamp, at, looked) == looked.len())
        };
        unplaced.into_iter().any(|(_, stamp, length)| is_of(*stamp, *length))
    }

    /// Returns the write that bytes belong to.
    fn origin(&self, found: &[u8]) -> String {
        if found.iter().all(|byte| *byte == found[0]) {
            return format!("{:#04x} (and so on)", found[0]);
        }
        for change in &self.history.changes {
            let Effect::Write { offset, length, stamp } = change.effect else { continue };
            let looked = found.len().min(8);
            for at in 0..length {
                if pattern::agreeing(stamp, at, &found[..looked]) == looked {
                    let inode = self.history.file_inodes[change.file].0;
                    let life = &change.life;
                    return format!(
                        "byte {at} of write {stamp} to inode {inode} at {offset} (node{}, ticks {}..{:?}, applied {:?})",
                        life.actor.machine, life.start, life.returned, life.applied
                    );
                }
            }
        }
        format!("of no write: {:02x?}", &found[..found.len().min(16)])
    }
}

/// Returns the view in which a copy read its source.
fn of_copy(change: &Change) -> View {
    let life = &change.life;
    let end = life.returned.or(life.latest).unwrap_or(u64::MAX);
    View { start: life.start, end, own: Some((life.actor, life.session)), fresh: None }
}

/// Returns the position of the first byte that is not allowed.
fn first_wrong(found: &[u8], allowed: &[Content]) -> Option<usize> {
    let mut at = 0;
    while at < found.len() {
        let rest = &found[at..];
        let agreeing = |content: &Content| match content {
            Content::End => 0,
            Content::Zero => rest.iter().position(|byte| *byte != 0).unwrap_or(rest.len()),
            Content::Data { stamp, at: first } => {
                pattern::agreeing(*stamp, first + at as u64, rest)
            }
            Content::Any => rest.len(),
        };
        match allowed.iter().map(agreeing).max() {
            None | Some(0) => return Some(at),
            Some(count) => at += count,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Actor;
    use protocol::InodeId;

    /// Goal: a read with an outdated size may end where the file ended when it was opened, because
    /// the kernel dropped the answer with the present size. The bytes before that end must be fresh
    /// (seed 2026). No other read may end early.
    #[test]
    fn an_old_end_excuses_no_old_bytes() {
        let (writer, reader) = (Actor { machine: 0, life: 0 }, Actor { machine: 1, life: 0 });
        let mut history = History::default();
        let file = history.file(InodeId(20));
        let write = |history: &mut History, offset, length, stamp| {
            let life = history.begin("write", writer, None);
            let write = history.change(file, Effect::Write { offset, length, stamp }, life);
            let (returned, asked) = (history.tick(), history.tick());
            history.changes[write].life.returned = Some(returned);
            history.committed(file, writer, asked, false);
        };
        write(&mut history, 0, 100, 1);
        let opened = history.tick();
        write(&mut history, 0, 50, 2);
        write(&mut history, 100, 100, 3);
        let (start, end) = (history.tick(), history.tick());
        let mut violations = |ends_since, first| {
            let mut bytes = pattern::bytes(first, 0, 50);
            bytes.extend(pattern::bytes(1, 50, 50));
            let (actor, session, offset, asked, is_cached) = (reader, None, 0, 1000, false);
            let read = Read {
                file,
                actor,
                session,
                start,
                end,
                ends_since,
                offset,
                asked,
                bytes,
                is_cached,
                fresh: None,
            };
            history.reads = vec![read];
            check(&history).len()
        };
        assert_eq!(violations(opened, 2), 0, "the end may be old");
        assert_eq!(violations(start, 2), 1, "an end that was asked for may not");
        assert_eq!(violations(opened, 1), 1, "bytes may not be old");
    }

    /// Goal: a file that cannot be read after all faults are repaired is a violation if and only if
    /// everything that any client wrote to it was synced, by any client.
    #[test]
    fn what_was_synced_can_be_read() {
        let writer = Actor { machine: 0, life: 0 };
        let mut history = History::default();
        let file = history.file(InodeId(20));
        history.unreadable = vec![file];
        let write = |history: &mut History, stamp| {
            let life = history.begin("write", writer, None);
            let write = history.change(file, Effect::Write { offset: 0, length: 10, stamp }, life);
            let (returned, asked) = (history.tick(), history.tick());
            history.changes[write].life.returned = Some(returned);
            history.committed(file, writer, asked, false);
        };
        write(&mut history, 1);
        assert_eq!(check(&history), [""; 0], "closed, not synced");
        let asked = history.tick();
        history.synced(file, asked);
        assert_eq!(check(&history).len(), 1);
        write(&mut history, 2);
        assert_eq!(check(&history), [""; 0], "the last write was not synced");
    }
}
