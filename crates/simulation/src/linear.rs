//! Checks whether one order of all calls on names explains their answers.
//!
//! A call takes effect at one moment between its begin and its end. A call whose answer was lost
//! may have taken effect, may not, or may do so much later. The search is that of J. Wing and C.
//! Gong with the just-in-time rule of G. Lowe: it places calls into the order only when one of them
//! has to have ended, and keeps all *configurations* that are possible then. A configuration
//! consists of what the names stand for and of the calls under way that have already taken effect.
//! Equal configurations are merged. Names that no rename joins are searched separately.
//!
//! Usually the order in which calls ended, or a similar one, explains all answers. So a search
//! first keeps few configurations, those with the fewest calls that took effect earlier than
//! needed. If one is left at the end, its order explains everything. Only if none is left does the
//! search keep more. A search that grows too large reports that it is undecided, and proves
//! nothing.

mod locks;
mod model;
mod records;

pub use records::{Recorded, check_lines};

pub(crate) use locks::Lockable;

use model::{Model, Value};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::fmt::{self, Display};

/// Configurations that quick searches keep. Each of these searches looks at `QUICK_LOOKS_MAX` in
/// all.
const KEPT_AT_FIRST: [usize; 2] = [1, 32];
const QUICK_LOOKS_MAX: usize = 10_000;
/// Largest number of configurations that a search keeps.
const CONFIGURATIONS_MAX: usize = 2_000;
/// Largest number of configurations that one search looks at in all.
const LOOKS_MAX: usize = 100_000;
/// Calls that a violation names.
const NAMED_MAX: usize = 16;

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// A regular file, or anything else except directories and symbolic links.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
}

/// How a rename treats a file that has the new name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Mode {
    /// Replaces it.
    Replace,
    /// Fails.
    NoReplace,
    /// Gives it the old name.
    Exchange,
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub(crate) enum Op {
    /// A file is created. Without `exclusive` an existing one is opened.
    Create { path: String, exclusive: bool },
    /// A directory is made.
    Mkdir { path: String },
    /// A symbolic link is made.
    Symlink { path: String },
    /// A file gets another name.
    Link { inode: u64, path: String },
    /// A file loses a name.
    Unlink { path: String },
    /// An empty directory is removed.
    Rmdir { path: String },
    /// A file gets another name in place of the old one.
    Rename { from: String, to: String, mode: Mode },
    /// A name is looked up.
    Lookup { path: String },
    /// The whole content of a file, one number, is written, and the file is closed.
    Write { file: String, value: u64 },
    /// The content is read and replaced under a lock that excludes all others.
    Swap { file: String, old: u64, new: u64 },
    /// A file is opened and its content is read. Without `locked`, concurrent readers may see
    /// changes in different orders.
    Read { file: String, locked: bool },
    /// A lock is taken, or an owner's lock on the range becomes stronger or weaker.
    Lock { file: String, lock: Lockable },
    /// An owner releases its locks on a range.
    Unlock { file: String, lock: Lockable },
    /// A caller tests whether a lock could be taken.
    TestLock { file: String, lock: Lockable },
}

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Answer {
    /// Success.
    Done,
    /// The call made or found this inode.
    Inode(u64, Option<Kind>),
    /// The call found something. For a test: another owner has a conflicting lock.
    Some,
    /// The call read this.
    Value(u64),
    /// EEXIST. For a lock: another owner has a conflicting lock.
    Exists,
    /// ENOENT. For a test: the lock could be taken.
    Absent,
    /// EISDIR.
    IsDirectory,
    /// ENOTDIR.
    NotDirectory,
    /// ENOTEMPTY.
    NotEmpty,
    /// Unknown: the call may have taken effect, or will until its end.
    Lost,
}

/// A call with its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Call {
    /// The caller.
    pub(crate) who: String,
    /// The operation.
    #[serde(flatten)]
    pub(crate) op: Op,
    /// The result.
    pub(crate) answer: Answer,
    /// The time of the call.
    pub(crate) begin: u64,
    /// The time of the answer. For a lost call: the time from which it can no longer take effect;
    /// `None` if it always can.
    pub(crate) end: Option<u64>,
}

/// A moment from which on the state of some names is unknown.
#[derive(Clone, Debug)]
pub(crate) struct Loss {
    /// The moment.
    pub(crate) at: u64,
    /// The names.
    pub(crate) paths: BTreeSet<String>,
}

/// The result of a check.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Answers that no order explains.
    pub violations: Vec<String>,
    /// Number of groups of names that were searched completely.
    pub decided: u64,
    /// Number of groups whose search grew too large.
    pub undecided: u64,
}

impl Op {
    /// Returns the names that the call concerns.
    pub(crate) fn paths(&self) -> Vec<&String> {
        match self {
            Op::Create { path, .. }
            | Op::Mkdir { path }
            | Op::Symlink { path }
            | Op::Link { path, .. }
            | Op::Unlink { path }
            | Op::Rmdir { path }
            | Op::Lookup { path } => vec![path],
            Op::Rename { from, to, .. } => vec![from, to],
            Op::Write { file, .. }
            | Op::Swap { file, .. }
            | Op::Read { file, .. }
            | Op::Lock { file, .. }
            | Op::Unlock { file, .. }
            | Op::TestLock { file, .. } => vec![file],
        }
    }

    /// Whether the call changes nothing.
    pub(crate) fn is_look(&self) -> bool {
        matches!(self, Op::Lookup { .. } | Op::Read { .. } | Op::TestLock { .. })
    }
}

impl Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Call { who, op, answer, begin, end } = self;
        write!(f, "{op:?} = {answer:?} by {who} (ticks {begin}..")?;
        match end {
            Some(end) => write!(f, "{end})"),
            None => write!(f, ")"),
        }
    }
}

/// Checks calls. Before the first call all names are absent.
pub(crate) fn check(calls: &[Call], losses: &[Loss]) -> Verdict {
    let mut verdict = Verdict::default();
    for group in groups(calls) {
        let is_weak = |call: &&Call| matches!(call.op, Op::Read { locked: false, .. });
        let (weak, strong): (Vec<&Call>, Vec<&Call>) = group.iter().partition(|call| is_weak(call));
        let searched = search(&strong, losses);
        let is_explained = matches!(searched, Outcome::Explained);
        verdict.add(searched);
        // Each read that need not agree with other reads is checked separately.
        for read in weak.into_iter().filter(|_| is_explained) {
            let calls: Vec<&Call> = strong.iter().copied().chain([read]).collect();
            verdict.add(search(&calls, losses));
        }
    }
    verdict
}

/// Searches for an order, first with few configurations.
fn search(calls: &[&Call], losses: &[Loss]) -> Outcome {
    let is_found =
        |kept: &usize| matches!(Search::new(calls, losses, Some(*kept)).run(), Outcome::Explained);
    if KEPT_AT_FIRST.iter().any(is_found) {
        return Outcome::Explained;
    }
    Search::new(calls, losses, None).run()
}

impl Verdict {
    fn add(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Explained => self.decided += 1,
            Outcome::Unexplained(text) => {
                self.decided += 1;
                self.violations.push(text);
            }
            Outcome::TooLarge => self.undecided += 1,
        }
    }
}

/// Groups calls by the names that renames join.
fn groups(calls: &[Call]) -> Vec<Vec<&Call>> {
    let mut group_of: BTreeMap<&String, usize> = BTreeMap::new();
    let mut members: BTreeMap<usize, Vec<&String>> = BTreeMap::new();
    for call in calls {
        let mut joined: Option<usize> = None;
        for path in call.op.paths() {
            let next = group_of.len();
            let own = *group_of.entry(path).or_insert_with(|| {
                members.insert(next, vec![path]);
                next
            });
            let Some(first) = joined.filter(|first| *first != own) else {
                joined = Some(own);
                continue;
            };
            for path in members.remove(&own).unwrap_or_default() {
                group_of.insert(path, first);
                members.entry(first).or_default().push(path);
            }
        }
    }
    let mut groups: BTreeMap<usize, Vec<&Call>> = BTreeMap::new();
    for call in calls {
        if let Some(path) = call.op.paths().first() {
            groups.entry(group_of[*path]).or_default().push(call);
        }
    }
    groups.into_values().collect()
}

/// A possible state at a moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Configuration {
    names: Vec<Value>,
    /// Calls under way that have taken effect, in order.
    made: Vec<usize>,
}

enum Outcome {
    Explained,
    Unexplained(String),
    TooLarge,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Begin(usize),
    Loss(usize),
    End(usize),
}

struct Search<'a> {
    model: Model<'a>,
    losses: &'a [Loss],
    /// Calls under way.
    open: Vec<usize>,
    possible: HashSet<Configuration>,
    /// Largest number of configurations that are kept. Others are dropped, so the search may miss
    /// an order.
    kept: Option<usize>,
    looks: usize,
}

impl<'a> Search<'a> {
    fn new(calls: &[&'a Call], losses: &'a [Loss], kept: Option<usize>) -> Search<'a> {
        let model = Model::new(calls);
        let start =
            Configuration { names: vec![Value::Absent; model.names.len()], made: Vec::new() };
        Search { model, losses, open: Vec::new(), possible: [start].into(), kept, looks: 0 }
    }

    fn events(&self) -> Vec<Event> {
        let calls = self.model.calls.iter().enumerate();
        let mut events: Vec<(u64, Event)> = Vec::new();
        for (index, call) in calls {
            events.push((call.begin, Event::Begin(index)));
            events.extend(call.end.map(|end| (end, Event::End(index))));
        }
        let losses = self.losses.iter().enumerate();
        events.extend(losses.map(|(index, loss)| (loss.at, Event::Loss(index))));
        events.sort_unstable();
        events.into_iter().map(|(_, event)| event).collect()
    }

    fn run(mut self) -> Outcome {
        for event in self.events() {
            match event {
                Event::Begin(call) => {
                    self.open.push(call);
                    let possible = std::mem::take(&mut self.possible);
                    self.possible = possible.into_iter().map(|it| self.settled(it)).collect();
                }
                Event::Loss(loss) => self.lose(loss),
                Event::End(call) => {
                    let before: Vec<Configuration> = self.possible.iter().cloned().collect();
                    self.end(call);
                    if self.possible.is_empty() && self.looks <= self.looks_max() {
                        return Outcome::Unexplained(self.describe(call, before));
                    }
                }
            }
            self.forget_some();
            if self.possible.len() > CONFIGURATIONS_MAX || self.looks > self.looks_max() {
                return Outcome::TooLarge;
            }
        }
        Outcome::Explained
    }

    fn looks_max(&self) -> usize {
        if self.kept.is_some() { QUICK_LOOKS_MAX } else { LOOKS_MAX }
    }

    /// Keeps the configurations with the fewest calls that took effect earlier than needed.
    fn forget_some(&mut self) {
        let Some(kept) = self.kept.filter(|kept| self.possible.len() > *kept) else { return };
        let mut possible: Vec<Configuration> = self.possible.drain().collect();
        possible
            .sort_unstable_by(|one, other| (one.made.len(), one).cmp(&(other.made.len(), other)));
        self.possible = possible.into_iter().take(kept).collect();
    }

    /// Applies all calls that change nothing now: applying them later gains nothing.
    fn settled(&self, mut configuration: Configuration) -> Configuration {
        for call in &self.open {
            let is_lost = self.model.calls[*call].answer == Answer::Lost;
            let Err(place) = configuration.made.binary_search(call) else { continue };
            if !is_lost
                && self.model.made(*call, &configuration.names).contains(&configuration.names)
            {
                configuration.made.insert(place, *call);
            }
        }
        configuration
    }

    fn lose(&mut self, loss: usize) {
        let paths = &self.losses[loss].paths;
        let lost: Vec<usize> = (0..self.model.names.len())
            .filter(|name| paths.contains(self.model.names[*name]))
            .collect();
        let unknown = |name| Value::Any(self.model.unknown(loss, name));
        let possible = std::mem::take(&mut self.possible).into_iter().map(|mut it| {
            for name in &lost {
                it.names[*name] = unknown(*name);
            }
            it
        });
        self.possible = possible.collect();
    }

    /// Handles the end of a call. Where it has not taken effect, it does so now, if necessary after
    /// others.
    fn end(&mut self, call: usize) {
        let is_lost = self.model.calls[call].answer == Answer::Lost;
        let mut ended = HashSet::new();
        for mut configuration in std::mem::take(&mut self.possible) {
            match configuration.made.binary_search(&call) {
                Ok(place) => {
                    configuration.made.remove(place);
                    ended.insert(configuration);
                }
                Err(_) if is_lost => {
                    // It took effect unobserved, or never.
                    self.make(call, configuration.clone(), &mut ended);
                    ended.insert(configuration);
                }
                Err(_) => self.make(call, configuration, &mut ended),
            }
        }
        self.open.retain(|open| *open != call);
        self.possible = ended;
    }

    fn make(&mut self, call: usize, from: Configuration, ended: &mut HashSet<Configuration>) {
        let mut seen = HashSet::from([from.clone()]);
        // Configurations with the fewest applied calls come first.
        let mut left = VecDeque::from([from]);
        let enough = self.kept.map_or(usize::MAX, |kept| ended.len() + kept);
        while let Some(configuration) = left.pop_front() {
            if ended.len() >= enough {
                return;
            }
            self.looks += 1;
            if self.looks > self.looks_max() {
                return;
            }
            for next in &self.open {
                let Err(place) = configuration.made.binary_search(next) else { continue };
                // A lost call that changes nothing now may take effect later or never.
                let is_lost = *next != call && self.model.calls[*next].answer == Answer::Lost;
                for names in self.model.made(*next, &configuration.names) {
                    if is_lost && names == configuration.names {
                        continue;
                    }
                    let mut made = configuration.made.clone();
                    made.insert(place, *next);
                    let mut after = self.settled(Configuration { names, made });
                    if let Ok(place) = after.made.binary_search(&call) {
                        after.made.remove(place);
                        ended.insert(after);
                    } else if seen.insert(after.clone()) {
                        left.push_back(after);
                    }
                }
            }
        }
    }

    fn describe(&self, call: usize, mut before: Vec<Configuration>) -> String {
        let ended = self.model.calls[call];
        let paths = ended.op.paths();
        before.sort_unstable();
        let states: BTreeSet<String> =
            before.iter().map(|it| self.model.text(&it.names, &paths)).collect();
        let states: Vec<String> = states.into_iter().take(NAMED_MAX).collect();
        let touches = |other: &&&Call| {
            other.begin <= ended.end.unwrap_or(u64::MAX)
                && !other.op.is_look()
                && other.op.paths().iter().any(|path| paths.contains(path))
        };
        let others: Vec<&&Call> = self.model.calls.iter().filter(touches).collect();
        let first = others.len().saturating_sub(NAMED_MAX);
        let others: Vec<String> = others[first..].iter().map(|call| format!("[{call}]")).collect();
        format!(
            "no order of calls explains {ended}; without it there may be: {}; changes: {}",
            states.join(" or "),
            others.join(" ")
        )
    }
}

#[cfg(test)]
mod tests;
