//! A check of a store that no service has open. Writes that come with opening it go to memory only.

use super::{Area, Finding, paths};
use crate::records::{Counters, Key, decode};
use crate::store::overlay::Overlay;
use crate::store::{Batch, Error, FjallStore, Pair, Scan, Store, Syncer};
use crate::tree::{Boot, Core};
use protocol::Timestamp;
use std::path::Path;
use uuid::Uuid;

/// The result of a check.
#[derive(Clone, Debug)]
pub struct Checked {
    /// Number of inodes of the file system.
    pub inodes: u64,
    /// The number of the newest commit, if it is known.
    pub commits: Option<u64>,
    /// All contradictions.
    pub findings: Vec<Finding>,
    /// Only the first contradiction is known: a service could not open the store because of it.
    pub is_partial: bool,
}

/// Checks that no commit is missing in the store in a directory, and that all records agree with
/// each other.
///
/// # Errors
/// If there is no store, a service has it open, or it cannot be read.
pub fn check(directory: &Path) -> Result<Checked, Error> {
    let failed = |source| Error::Store {
        operation: "read /proc/sys/kernel/random/boot_id",
        source: Box::new(source),
    };
    let boot = crate::store::boot_id().map_err(failed)?;
    match FjallStore::read(directory, boot) {
        Ok((store, checked)) => {
            let found = check_records(store)?;
            Ok(Checked { commits: Some(checked.head.sequence), ..found })
        }
        Err(Error::Lost(loss)) => {
            let finding = |what: &String| Finding::general(Area::Commits, what.clone());
            let mut findings: Vec<Finding> = loss.findings.iter().map(finding).collect();
            if let Some(missing) = loss.commits() {
                findings.insert(0, finding(&format!("{missing} commits are missing")));
            }
            Ok(Checked { inodes: 0, commits: None, findings, is_partial: true })
        }
        // Its files exist, but the engine refuses them.
        Err(error @ Error::Store { .. }) if directory.join("version").exists() => {
            let finding = Finding::general(Area::Commits, error.to_string());
            Ok(Checked { inodes: 0, commits: None, findings: vec![finding], is_partial: true })
        }
        Err(error) => Err(error),
    }
}

/// Checks the records of a store without writing to it.
///
/// # Errors
/// If the store cannot be read, or is of another version.
pub fn check_records(store: Box<dyn Store>) -> Result<Checked, Error> {
    let mut checked = Checked { inodes: 0, commits: None, findings: Vec::new(), is_partial: true };
    let key = Key::Counters.encode();
    let Some(value) = store.get(&key)? else {
        let what = "the counters are missing: nothing else can be checked".to_owned();
        checked.findings.push(Finding::general(Area::Counts, what));
        return Ok(checked);
    };
    // `open_frozen` refuses counters of another version.
    let counters = decode::<Counters>(&key, &value).ok();
    let core = match open_frozen(store) {
        Ok(core) => core,
        Err(error @ Error::Corrupt { .. }) => {
            checked.findings.push(Finding::of_record(&error));
            return Ok(checked);
        }
        Err(error) => return Err(error),
    };
    checked.is_partial = false;
    checked.inodes = counters.map_or(0, |counters| counters.inodes);
    checked.findings = core.findings()?;
    paths::fill(&core, &mut checked.findings)?;
    Ok(checked)
}

/// Opens a store as a service would, without writing to it.
pub(super) fn open_frozen(store: Box<dyn Store>) -> Result<Core, Error> {
    let key = Key::Counters.encode();
    let value = store.get(&key)?;
    let counters = value.and_then(|value| decode::<Counters>(&key, &value).ok());
    let boot = Boot {
        // With its own boot identifier a store keeps its sessions.
        boot: counters.map_or(Uuid::nil(), |counters| counters.boot),
        file_system: Uuid::nil(),
        now: Timestamp(0),
        root: (0o755, 0, 0),
    };
    let frozen = Frozen { lower: store, upper: Overlay::default() };
    Core::open(Box::new(frozen), &boot).map(|(core, _)| core)
}

/// Returns a store whose changes go to memory only.
pub(super) fn frozen_over(lower: Box<dyn Store>, upper: Overlay) -> Box<dyn Store> {
    Box::new(Frozen { lower, upper })
}

/// A store whose changes stay in memory.
struct Frozen {
    lower: Box<dyn Store>,
    upper: Overlay,
}

impl Store for Frozen {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        match self.upper.get(key) {
            Some(value) => Ok(value.clone()),
            None => self.lower.get(key),
        }
    }

    fn scan(&self, scan: Scan<'_>) -> Result<Vec<Pair>, Error> {
        self.upper.scan(scan, |scan| self.lower.scan(scan))
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), Error> {
        for (key, value) in &batch.writes {
            self.upper.set(key.clone(), value.clone());
        }
        Ok(())
    }

    fn syncer(&self) -> Box<dyn Syncer> {
        Box::new(Nothing)
    }
}

/// A syncer that does nothing: changes in memory are never durable.
struct Nothing;

impl Syncer for Nothing {
    fn sync(&self) -> Result<(), Error> {
        Ok(())
    }
}
