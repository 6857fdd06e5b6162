//! State that the unions of one thread share.

use std::rc::Rc;

use super::privileges::is_kept_on_disk;
use crate::copier::Copier;
use crate::durability::Committer;
use crate::free_run::FreeRun;
use crate::partial::Worker;
use crate::tree::KeptOpen;

/// State that the unions of one thread share; each union takes references to the parts.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(super) kept: Rc<KeptOpen>,
    pub(super) committer: Rc<Committer>,
    /// The thread that fills partial files.
    pub(super) filling: Rc<Worker>,
    pub(super) free_run: Rc<FreeRun>,
    /// Whether this process's writes leave set-user-ID and set-group-ID on disk.
    pub(super) keeps_privileges: bool,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            kept: Rc::default(),
            committer: Rc::default(),
            filling: Rc::default(),
            free_run: Rc::default(),
            keeps_privileges: is_kept_on_disk(),
        }
    }
}

impl Shared {
    /// Makes the state for unions whose files this copier copies.
    pub(crate) fn with_copier(copier: Copier) -> Self {
        let committer = Rc::new(Committer::with_copier(copier));
        Self { committer, ..Self::default() }
    }

    pub(crate) fn kept(&self) -> &Rc<KeptOpen> {
        &self.kept
    }

    /// Returns the copier of the thread.
    pub(crate) fn copier(&self) -> &Copier {
        self.committer.copier()
    }
}
