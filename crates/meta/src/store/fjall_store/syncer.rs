//! Syncs of the journal, from any thread.

use super::engine::Workers;
use super::{Shared, locked, room};
use crate::store::chain::Head;
use crate::store::{Error, Syncer};
use std::sync::{Arc, Mutex};

/// Makes a store's commits durable.
pub(super) struct FjallSyncer {
    shared: Arc<Shared>,
    /// The synced commit that is not recorded yet.
    synced: Mutex<Option<Head>>,
}

impl FjallSyncer {
    pub(super) fn new(shared: &Arc<Shared>) -> FjallSyncer {
        FjallSyncer { shared: Arc::clone(shared), synced: Mutex::new(None) }
    }

    fn try_sync(&self) -> Result<Result<Head, fjall::Error>, Error> {
        self.shared.with(|engine| {
            let head = locked(&self.shared.commits).newest;
            Ok(engine.persist().map(|()| head))
        })
    }

    /// Handles an engine whose own thread has stopped, mostly because the disk is full. All commits
    /// are in the journal; no sync of it may have failed.
    fn sync_again(&self, error: fjall::Error) -> Result<Head, Error> {
        if !room::is_low(&self.shared.directory) && !self.shared.may_revive() {
            return Err(self.shared.not_synced(error));
        }
        tracing::warn!(%error, "the metadata store's engine has stopped and is being reopened");
        self.shared.revive(Workers::None)?;
        self.try_sync()?.map_err(|error| self.shared.not_synced(error))
    }
}

impl Syncer for FjallSyncer {
    fn sync(&self) -> Result<(), Error> {
        let head = match self.try_sync()? {
            Ok(head) => head,
            Err(error @ fjall::Error::Poisoned) => self.sync_again(error)?,
            Err(error) => return Err(self.shared.not_synced(error)),
        };
        *locked(&self.synced) = Some(head);
        Ok(())
    }

    fn remember(&self) {
        let Some(head) = locked(&self.synced).take() else { return };
        let Some(watermark) = locked(&self.shared.watermark).clone() else { return };
        if let Err(error) = watermark.note_synced(head) {
            tracing::warn!(%error, "the watermark of the metadata store cannot be written");
        }
    }
}
