//! Failed syncs of the journal.
//!
//! Linux reports a failed sync once to each open file, and marks the pages clean: a later sync
//! succeeds although the disk lacks the data, and a reopened journal reads it from memory. So a
//! failed sync must never be followed by a successful one.
//!
//! - The engine syncs its journal on its own thread, too, and reports no more than that it has
//!   stopped. The [`Witness`] is another open file of the journal, which gets its own report of a
//!   failure. An engine is reopened only if the witness can be synced.
//! - The *mark* is a file beside the store. The service writes it before it ends because of a
//!   failed sync. A start that finds it writes all records to tables and begins an empty journal
//!   before it uses the store ([`rewrite`]).
//!
//! If the mark cannot be written, or the process is killed before it learns of the failure, only a
//! restart of the machine shows what the disk lacks.

use super::engine::{Engine, Workers, store_error};
use crate::store::{Error, journal, room};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The mark's name in the store's directory.
const NAME: &str = "unsynced";

/// An open file of the newest journal.
#[derive(Debug)]
pub(super) struct Witness {
    directory: PathBuf,
    path: PathBuf,
    pub(super) file: File,
}

fn newest(directory: &Path) -> io::Result<PathBuf> {
    let newest = journal::paths(directory)?.pop();
    newest.ok_or_else(|| io::Error::other("the store has no journal"))
}

impl Witness {
    /// Opens the newest journal of an open store.
    pub(super) fn new(directory: &Path) -> io::Result<Witness> {
        let path = newest(directory)?;
        Ok(Witness { directory: directory.into(), file: File::open(&path)?, path })
    }

    /// Follows the engine to a new journal. The engine has synced the one before.
    pub(super) fn renew(&mut self) {
        if let Ok(path) = newest(&self.directory)
            && path != self.path
            && let Ok(file) = File::open(&path)
        {
            (self.path, self.file) = (path, file);
        }
    }

    /// Checks that no sync of the journal has failed since this file was opened.
    ///
    /// # Errors
    /// If one has failed, or if the engine has begun another journal meanwhile and its disk is not
    /// full, which would explain why it stopped.
    pub(super) fn check(&self) -> io::Result<()> {
        if newest(&self.directory)? != self.path && !room::is_low(&self.directory) {
            return Err(io::Error::other("the engine stopped after it had begun a new journal"));
        }
        self.file.sync_all()
    }
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Records, as well as possible, that the journal cannot be trusted.
pub(super) fn mark(directory: &Path, why: &dyn std::error::Error) {
    tracing::error!(%why, "the metadata store's journal may not be synced: the next start writes all records anew");
    let path = directory.join(NAME);
    let mut options = OpenOptions::new();
    options.create(true).write(true).truncate(false).mode(0o600);
    let marked = options.open(path).and_then(|file| file.sync_all());
    if let Err(error) = marked.and_then(|()| sync_directory(directory)) {
        tracing::error!(%error, "this cannot be recorded");
    }
}

/// Returns whether the last life of the service has marked the journal.
pub(super) fn is_marked(directory: &Path) -> bool {
    directory.join(NAME).exists()
}

/// Makes all records of a marked store durable anew, and removes the mark.
pub(super) fn rewrite(directory: &Path, engine: Engine) -> Result<Engine, Error> {
    tracing::warn!("the metadata store's journal may not be synced: all records are written anew");
    let failed = store_error("replace the journal");
    engine.write_out()?;
    drop(engine);
    replace_journals(directory).map_err(&failed)?;
    let engine = Engine::open(directory, Workers::Running)?;
    std::fs::remove_file(directory.join(NAME)).map_err(&failed)?;
    sync_directory(directory).map_err(&failed)?;
    Ok(engine)
}

/// Replaces the journals, whose records are all in tables, by an empty one.
fn replace_journals(directory: &Path) -> io::Result<()> {
    let old = journal::numbered(directory)?;
    let next = old.last().map_or(0, |(number, _)| number + 1);
    let mut options = OpenOptions::new();
    options.create_new(true).write(true).mode(0o600);
    options.open(directory.join(format!("{next}.jnl")))?.sync_all()?;
    sync_directory(directory)?;
    // The oldest first, so that what is left is the end of the chain.
    for (_, path) in old {
        std::fs::remove_file(path)?;
    }
    sync_directory(directory)
}
