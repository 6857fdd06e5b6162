//! Durability: one ticket covers everything that was appended before it.

use super::Journal;
use super::error::JournalError;
use super::storage::Storage;
use super::types::{Kind, SegmentId, Sequence};

/// The flushes that make everything durable that was appended so far. The flushes may run in any
/// order and at once; all must succeed.
#[derive(Debug)]
pub struct Ticket<H> {
    /// The last record that the flushes cover.
    pub upto: Sequence,
    /// To fdatasync.
    pub data: Vec<H>,
    /// To fsync: directories and the marker.
    pub names: Vec<H>,
    newest: Option<SegmentId>,
    names_mark: u64,
    markers_mark: u64,
}

impl<H> Ticket<H> {
    /// Returns whether there is nothing to flush.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty() && self.names.is_empty()
    }
}

impl<S: Storage> Journal<S> {
    /// Returns the flushes that are due now. The marker is made first, if a partial file is there.
    pub fn ticket(&mut self) -> Result<Ticket<S::Handle>, JournalError> {
        if self.log.is_poisoned {
            return Err(JournalError::Poisoned);
        }
        if self.has_partial() {
            self.log.mark()?;
        }
        let log = &self.log;
        let opened = |error| JournalError::io("opening what is to be flushed", error);
        let data: Result<Vec<_>, _> = log.dirty().map(|id| log.storage.handle(id)).collect();
        let mut data = data.map_err(opened)?;
        let mut names = Vec::new();
        if log.dirt.names > log.dirt.names_synced {
            names.extend(log.storage.directory_handles().map_err(opened)?);
        }
        if log.dirt.markers > log.dirt.markers_synced && log.has_marker {
            names.extend(log.storage.marker_handles().map_err(opened)?);
            data.extend(log.storage.marker_data().map_err(opened)?);
        }
        Ok(Ticket {
            upto: log.appended,
            data,
            names,
            newest: log.dirty().next(),
            names_mark: log.dirt.names,
            markers_mark: log.dirt.markers,
        })
    }

    /// Notes that all flushes of the ticket succeeded. The marker is removed when the last partial
    /// file's end is durable.
    pub fn synced<H>(&mut self, ticket: &Ticket<H>) -> Result<(), JournalError> {
        if self.log.is_poisoned {
            return Err(JournalError::Poisoned);
        }
        let log = &mut self.log;
        assert!(
            ticket.upto <= log.appended
                && ticket.names_mark <= log.dirt.names
                && ticket.markers_mark <= log.dirt.markers,
            "a flush covers {:?}, and {:?} is the last record ({:?})",
            ticket.upto,
            log.appended,
            log.dirt
        );
        log.durable = log.durable.max(ticket.upto);
        if let Some(newest) = ticket.newest {
            log.headers_durable(newest);
        }
        log.remember()?;
        log.dirt.names_synced = log.dirt.names_synced.max(ticket.names_mark);
        log.dirt.markers_synced = log.dirt.markers_synced.max(ticket.markers_mark);
        if log.durable == log.appended && log.has_marker && !self.has_partial() {
            self.unmark()?;
        }
        Ok(())
    }

    /// Returns the handle of the file that says how far the journal is durable. Nothing depends on
    /// its flush, but after it a loss of power cannot hide how much a damaged journal lacks.
    pub fn marks_handle(&self) -> Option<S::Handle> {
        self.log.storage.marks_handle()
    }

    /// Notes that a flush failed: bytes written since the last success may be lost, so nothing is
    /// acknowledged any more.
    pub fn sync_failed(&mut self) {
        self.log.is_poisoned = true;
    }

    /// Flushes everything appended so far.
    pub fn sync(&mut self) -> Result<(), JournalError> {
        let ticket = self.ticket()?;
        let dirty: Vec<_> = self.log.dirty().collect();
        for segment in dirty.into_iter().filter(|_| !reactor::mutant!("journal-segments-unsynced"))
        {
            self.log.sync_segment(segment)?;
        }
        if !reactor::mutant!("journal-names-unsynced") {
            self.log.sync_names()?;
        }
        let dirt = self.log.dirt;
        if dirt.markers > dirt.markers_synced && self.log.has_marker {
            let result = self.log.storage.sync_marker();
            self.log.flushed(result)?;
        }
        self.synced(&ticket)
    }

    /// At opening: the marker is there exactly if a partial file is.
    pub(super) fn restore_marker(&mut self) -> Result<(), JournalError> {
        let marker = self.log.storage.marker();
        self.log.has_marker =
            marker.map_err(|error| JournalError::io("reading the marker", error))?;
        if self.has_partial() {
            self.log.mark()?;
            // An existing marker may have been made just before a kill, and may not be durable.
            self.log.dirt.markers += 1;
        } else if self.log.has_marker {
            self.unmark()?;
        }
        Ok(())
    }

    fn unmark(&mut self) -> Result<(), JournalError> {
        let result = self.log.storage.set_marker(false);
        result.map_err(|error| JournalError::io("removing the marker", error))?;
        self.log.has_marker = false;
        Ok(())
    }

    fn has_partial(&self) -> bool {
        let is_partial =
            |kind: &Kind| *kind == Kind::Partial && !reactor::mutant!("journal-marker-goes-early");
        self.state.files.values().any(|state| is_partial(&state.base.kind))
    }
}
