//! The content of a store that is not open, and whether commits are missing from it.

use super::chain::Head;
use super::journal::{self, Journals};
use super::watermark::{self, Recorded};
use super::{Error, tables};
use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};
use uuid::Uuid;

/// Commits that should be in a store but are missing.
#[derive(Clone, Debug)]
pub struct Loss {
    /// The store.
    pub directory: PathBuf,
    /// The last commit in the store, if it is known.
    pub last: Option<Head>,
    /// The last commit that should be in the store, if it is known.
    pub expected: Option<Head>,
    /// The findings: a sentence each.
    pub findings: Vec<String>,
    /// Whether the store can be opened without the missing commits (`--accept-loss`).
    pub can_go_on: bool,
}

impl Loss {
    /// Returns the number of missing commits, if it is known.
    pub fn commits(&self) -> Option<u64> {
        let expected = self.expected?.sequence;
        let last = self.last.map_or(0, |head| head.sequence);
        expected.checked_sub(last).filter(|missing| *missing > 0)
    }
}

fn time_of(head: &Head) -> String {
    let time = UNIX_EPOCH + Duration::from_nanos(head.time_ns);
    humantime::format_rfc3339_seconds(time).to_string()
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store = self.directory.display();
        match self.commits() {
            Some(commits) => write!(f, "metadata store {store}: {commits} commits are missing")?,
            None => write!(f, "metadata store {store} is damaged")?,
        }
        if let Some(last) = self.last.filter(|last| last.sequence > 0) {
            write!(
                f,
                "; the last that is there is number {}, of {}",
                last.sequence,
                time_of(&last)
            )?;
        }
        if let Some(expected) = &self.expected {
            let (number, time) = (expected.sequence, time_of(expected));
            write!(f, "; number {number}, of {time}, had been acknowledged")?;
        }
        for finding in &self.findings {
            write!(f, "\n  {finding}")?;
        }
        write!(f, "\nNothing was changed. Restore the directory from a backup")?;
        if self.can_go_on {
            write!(
                f,
                ", or start with --accept-loss: all changes from then on are lost, sessions end as \
                 after a loss of power, and files that were changed since may hold bytes of others"
            )
        } else {
            write!(
                f,
                "; without these files the store cannot be used (without a backup: end the job with \
                 `tsumugi down` and start a new one)"
            )
        }
    }
}

/// A store as it lies on disk.
#[derive(Debug)]
pub(super) struct Inspection {
    /// The store has been created before.
    pub(super) exists: bool,
    pub(super) recorded: Option<Recorded>,
    pub(super) journals: Journals,
    /// The missing commits, as far as visible from outside.
    pub(super) loss: Option<Loss>,
}

fn failed(operation: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| Error::Store { operation, source: Box::new(source) }
}

/// Inspects a store without changing it. `boot` is the machine's present boot: a commit of the same
/// boot cannot have been lost with its power.
pub(super) fn inspect(directory: &Path, boot: Uuid) -> Result<Inspection, Error> {
    let exists = directory.join("version").exists();
    let recorded = watermark::read(directory).map_err(failed("read the watermark"))?;
    let marks = recorded.map(|recorded| [recorded.synced, recorded.live]).unwrap_or_default();
    let wanted: Vec<u64> = marks.iter().flatten().map(|mark| mark.head.sequence).collect();
    let journals = journal::read(directory, &wanted).map_err(failed("read the journals"))?;
    let mut inspection = Inspection { exists, recorded, journals, loss: None };
    inspection.loss = if exists {
        let problems = tables::check(directory).map_err(failed("read the tables"))?;
        inspection.compare(directory, boot, problems)
    } else {
        inspection.missing_marker(directory)
    };
    Ok(inspection)
}

impl Inspection {
    fn is_untouched(&self) -> bool {
        self.recorded.is_none() && self.journals.last.is_none() && self.journals.unchained == 0
    }

    fn missing_marker(&self, directory: &Path) -> Option<Loss> {
        let has_files = !self.journals.paths.is_empty() || directory.join("keyspaces").exists();
        if self.recorded.is_none() && !has_files {
            return None;
        }
        Some(Loss {
            directory: directory.into(),
            last: None,
            expected: self.recorded.and_then(|recorded| recorded.synced).map(|mark| mark.head),
            findings: vec![format!("{} is missing", directory.join("version").display())],
            can_go_on: false,
        })
    }

    fn compare(&self, directory: &Path, boot: Uuid, problems: Vec<String>) -> Option<Loss> {
        // A store whose creation was cut short has no commit yet.
        let can_go_on = problems.is_empty() || self.is_untouched();
        let mut findings = if can_go_on { Vec::new() } else { problems };
        let mut expected = None;
        if self.journals.paths.is_empty() {
            findings.push("its journal is missing".into());
        }
        if let Some(broken) = &self.journals.broken {
            let (path, offset) = (broken.path.display(), broken.offset);
            findings.push(format!("{path}, byte {offset}: {}", broken.why));
        }
        if let Some(recorded) = &self.recorded {
            let live = recorded.live.filter(|mark| mark.boot == boot);
            let is_torn =
                recorded.synced.is_some_and(|mark| mark.boot == boot) && recorded.live.is_none();
            if recorded.synced.is_none() || is_torn {
                findings.push(format!("{} is damaged", directory.join(watermark::NAME).display()));
            }
            for mark in [recorded.synced, live].into_iter().flatten() {
                findings.extend(self.compare_head(&mark.head));
                if expected.is_none_or(|e: Head| e.sequence < mark.head.sequence) {
                    expected = Some(mark.head);
                }
            }
        } else if self.journals.last.is_some() {
            findings.push(watermark_missing(directory));
        }
        let loss = Loss {
            directory: directory.into(),
            last: self.journals.last,
            expected,
            findings,
            can_go_on,
        };
        (!loss.findings.is_empty()).then_some(loss)
    }

    /// Compares the journals with a commit that must be in the store.
    fn compare_head(&self, head: &Head) -> Option<String> {
        let (Some(first), Some(last)) = (self.journals.first, self.journals.last) else {
            // It must be in the tables, which can be checked only once they are open.
            return None;
        };
        if last.sequence < head.sequence {
            let (path, at) = self.journals.ends.last().cloned().unwrap_or_default();
            let rest =
                if self.journals.broken.is_some() { "" } else { ", where the rest makes no sense" };
            return Some(format!(
                "the journals end with commit {} ({}, byte {at}{rest})",
                last.sequence,
                path.display()
            ));
        }
        let found = self.journals.found.iter().find(|found| found.sequence == head.sequence);
        match found {
            Some(found) if found != head => {
                Some(format!("commit {} is not the acknowledged one", head.sequence))
            }
            None if head.sequence >= first.sequence => {
                Some(format!("commit {} is not in the journals", head.sequence))
            }
            _ => None,
        }
    }

    /// Compares the opened store with the view from outside: its newest commit, and the engine's
    /// number of the newest batch in tables.
    pub(super) fn compare_opened(
        &self,
        directory: &Path,
        boot: Uuid,
        head: Option<Head>,
        engine_in_tables: u64,
    ) -> Option<Loss> {
        let mut findings = Vec::new();
        let mut expected = None;
        let sequence = head.map_or(0, |head| head.sequence);
        if let Some(last) = self.journals.last.filter(|last| Some(*last) != head) {
            findings.push(format!(
                "the tables end with commit {sequence}, the journals with {}",
                last.sequence
            ));
        }
        let first = self.journals.first.map(|first| (first.engine_before, first.sequence));
        if let Some((_, first)) = first.filter(|(before, _)| *before > engine_in_tables) {
            findings.push(format!("commits before {first} are neither in tables nor in journals"));
        }
        match &self.recorded {
            Some(recorded) => {
                let live = recorded.live.filter(|mark| mark.boot == boot);
                for mark in [recorded.synced, live].into_iter().flatten() {
                    if mark.head.sequence > sequence {
                        findings.push(format!("the store ends with commit {sequence}"));
                        expected = Some(mark.head);
                    }
                }
            }
            None if head.is_some() => findings.push(watermark_missing(directory)),
            None => {}
        }
        let directory = directory.into();
        let loss = Loss { directory, last: head, expected, findings, can_go_on: true };
        (!loss.findings.is_empty()).then_some(loss)
    }

    /// Hides the unreadable parts of journals from the engine, which refuses a torn end if a part
    /// of it is readable. Journals after a break of the chain are kept beside, as `N.jnl.lost`.
    pub(super) fn cut(&self) -> io::Result<()> {
        for (path, offset) in &self.journals.ends {
            let file = OpenOptions::new().write(true).open(path)?;
            if file.metadata()?.len() > *offset {
                file.set_len(*offset)?;
                file.sync_all()?;
            }
        }
        let Some(broken) = &self.journals.broken else { return Ok(()) };
        let from = usize::from(broken.offset > 0);
        let later = self.journals.paths.iter().skip_while(|path| **path != broken.path);
        for path in later.skip(from) {
            let mut lost = path.clone().into_os_string();
            lost.push(".lost");
            std::fs::rename(path, lost)?;
        }
        Ok(())
    }
}

fn watermark_missing(directory: &Path) -> String {
    let path = directory.join(watermark::NAME);
    format!("{} is missing, so the last synced commit is not known", path.display())
}
