//! Lines of a profile as clauses with keys; what they mean is not known here.

use super::ProfileError;

/// Clauses in clauses: an aging group in a file system, statistics in a group.
const DEPTH_MAX: usize = 3;

/// Kinds of clause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// What stands outside of all.
    Global,
    FileSystem,
    ThreadGroup,
    Stats,
}

impl Kind {
    const ALL: [(&'static str, Self); 3] = [
        ("filesystem", Self::FileSystem),
        ("threadgroup", Self::ThreadGroup),
        ("stats", Self::Stats),
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Global => "the profile",
            Self::FileSystem => "[filesystem]",
            Self::ThreadGroup => "[threadgroup]",
            Self::Stats => "[stats]",
        }
    }
}

/// A key with its value.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    pub(super) line: usize,
    pub(super) key: String,
    /// Without comment.
    pub(super) value: String,
    /// With what follows a `#`, which FFSB 5 has for a part of some values.
    pub(super) whole: String,
    /// Words after the key instead of `=`.
    pub(super) is_words: bool,
}

impl Pair {
    pub(super) fn error(&self, message: impl Into<String>) -> ProfileError {
        ProfileError { line: self.line, key: self.key.clone(), message: message.into() }
    }
}

/// A clause.
#[derive(Clone, Debug)]
pub(super) struct Clause {
    pub(super) kind: Kind,
    /// Where it begins.
    pub(super) line: usize,
    pub(super) pairs: Vec<Pair>,
    pub(super) clauses: Vec<Clause>,
}

impl Clause {
    fn new(kind: Kind, line: usize) -> Self {
        Self { kind, line, pairs: Vec::new(), clauses: Vec::new() }
    }

    pub(super) fn error(&self, message: impl Into<String>) -> ProfileError {
        ProfileError { line: self.line, key: self.kind.name().into(), message: message.into() }
    }

    /// The last value of a key, as it is the one that counts in both versions.
    pub(super) fn get(&self, key: &str) -> Option<&Pair> {
        self.pairs.iter().rev().find(|pair| pair.key == key)
    }

    /// All values of a key in their order.
    pub(super) fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a Pair> {
        self.pairs.iter().filter(move |pair| pair.key == key)
    }
}

enum Line {
    Begin(Kind),
    End,
    Key(Pair),
}

/// Reads a profile's lines.
pub(super) fn clauses(text: &str) -> Result<Clause, ProfileError> {
    let mut open = vec![Clause::new(Kind::Global, 1)];
    for (index, whole) in text.lines().enumerate() {
        let number = index + 1;
        let Some(line) = read(number, whole)? else { continue };
        let wrong = |message: &str| ProfileError {
            line: number,
            key: whole.trim().into(),
            message: message.into(),
        };
        match line {
            Line::Begin(_) if open.len() > DEPTH_MAX => {
                return Err(wrong("too many clauses in one"));
            }
            Line::Begin(kind) => open.push(Clause::new(kind, number)),
            Line::End => {
                let done = if open.len() > 1 { open.pop() } else { None };
                let done = done.ok_or_else(|| wrong("there is no clause to end"))?;
                if let Some(outer) = open.last_mut() {
                    outer.clauses.push(done);
                }
            }
            Line::Key(pair) => {
                if let Some(clause) = open.last_mut() {
                    clause.pairs.push(pair);
                }
            }
        }
    }
    match open.pop() {
        Some(global) if open.is_empty() => Ok(global),
        Some(clause) => Err(clause.error("has no [end]")),
        None => Ok(Clause::new(Kind::Global, 1)),
    }
}

fn read(line: usize, whole: &str) -> Result<Option<Line>, ProfileError> {
    let text = whole.split('#').next().unwrap_or_default().trim();
    if text.is_empty() {
        return Ok(None);
    }
    let wrong = |message: &str| ProfileError { line, key: text.into(), message: message.into() };
    if let Some(inner) = text.strip_prefix('[') {
        let inner = inner.strip_suffix(']').ok_or_else(|| wrong("has no ]"))?;
        let name = inner.trim().trim_end_matches(|c: char| c.is_ascii_digit()).trim_end();
        if name.eq_ignore_ascii_case("end") {
            return Ok(Some(Line::End));
        }
        let kind = Kind::ALL.iter().find(|(known, _)| name.eq_ignore_ascii_case(known));
        let unknown = "unknown clause: there are [filesystem], [threadgroup], [stats] and [end]";
        return kind.map(|(_, kind)| Some(Line::Begin(*kind))).ok_or_else(|| wrong(unknown));
    }
    let pair = |key: &str, value: &str, whole: &str, is_words| {
        let [key, value, whole] = [key, value, whole].map(|text| text.trim().to_string());
        Ok(Some(Line::Key(Pair { line, key, value, whole, is_words })))
    };
    if let Some((key, value)) = text.split_once('=') {
        let (_, whole) = whole.split_once('=').unwrap_or_default();
        return pair(key, value, whole, false);
    }
    match text.split_once(char::is_whitespace) {
        Some((key, value)) => pair(key, value, value, true),
        None => Err(wrong("is neither KEY=VALUE nor a clause")),
    }
}
