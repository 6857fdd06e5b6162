//! The shared state of an open pool.

use crate::error::Error;
use crate::lane::{Entrance, Epoch, Lane};
use crate::layout::Layout;
use crate::state::State;
use block::{Backing, Incarnation};
use reactor::time::{now, sleep};
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use uuid::Uuid;

/// Longest wait for commands in flight.
const QUIET_PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two checks.
const QUIET_PAUSE: Duration = Duration::from_millis(1);

/// An open pool.
pub(crate) struct Shared {
    pub(crate) inner: Arc<dyn Backing>,
    pub(crate) layout: Layout,
    pub(crate) uuid: Uuid,
    /// Changes with each opening, because changes that are not durable are lost with the process.
    pub(crate) incarnation: Incarnation,
    pub(crate) epoch: Arc<Epoch>,
    state: Mutex<State>,
    /// Number of changes of the metadata; changes under the lock.
    changes: AtomicU64,
    /// Number of those that are durable; changes under the lock.
    durable: AtomicU64,
    has_failed: AtomicBool,
}

impl Shared {
    pub(crate) fn new(inner: Arc<dyn Backing>, layout: Layout, uuid: Uuid, state: State) -> Self {
        Self {
            inner,
            layout,
            uuid,
            incarnation: Incarnation::random(),
            epoch: Arc::default(),
            state: Mutex::new(state),
            changes: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether everything is durable except data written in place, and nothing has failed.
    pub(crate) fn is_clean(&self) -> bool {
        self.durable.load(Ordering::SeqCst) == self.changes.load(Ordering::SeqCst)
            && !self.has_failed.load(Ordering::SeqCst)
    }

    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Ordering::SeqCst)
    }

    /// Counts a change of the metadata. Returns its number.
    pub(crate) fn changed(&self, _locked: &mut State) -> u64 {
        self.changes.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Records that all changes up to this one are durable.
    pub(crate) fn set_durable(&self, locked: &mut State, change: u64) {
        self.durable.store(change, Ordering::SeqCst);
        self.reclaim(locked);
    }

    /// Makes all later commits and flushes fail.
    pub(crate) fn fail(&self, locked: &mut State, error: block::Error) {
        locked.failure.get_or_insert(error);
        self.has_failed.store(true, Ordering::SeqCst);
    }

    /// Frees the clusters that can be freed now. Returns how many references were dropped.
    pub(crate) fn reclaim(&self, locked: &mut State) -> usize {
        if !locked.clusters.has_retired() {
            return 0;
        }
        locked.lanes.retain(|lane| !lane.is_over());
        self.epoch.advance(&locked.lanes);
        locked.clusters.reclaim(self.durable(), self.epoch.now())
    }

    /// Drops a reference as a part of the last change.
    pub(crate) fn retire(&self, locked: &mut State, cluster: u32, change: u64) {
        locked.clusters.retire(cluster, change, self.epoch.grace());
    }

    /// Returns a lane for the calling thread.
    pub(crate) fn entrance(&self) -> Rc<Entrance> {
        let lane = Arc::new(Lane::default());
        let mut state = self.lock();
        state.lanes.retain(|lane| !lane.is_over());
        state.lanes.push(Arc::clone(&lane));
        drop(state);
        Entrance::new(Arc::clone(&self.epoch), lane)
    }

    /// Waits until no command runs that began before now.
    ///
    /// # Errors
    /// [`Error::Busy`] after half a minute.
    pub(crate) async fn quiet(&self) -> Result<(), Error> {
        let grace = self.epoch.grace();
        let deadline = now() + QUIET_PATIENCE;
        loop {
            {
                let state = self.lock();
                self.epoch.advance(&state.lanes);
            }
            if self.epoch.now() >= grace {
                return Ok(());
            }
            if now() > deadline {
                return Err(Error::Busy);
            }
            sleep(QUIET_PAUSE).await;
        }
    }

    /// Waits until `f` returns a value. It is called again after each change that a task may wait
    /// for.
    pub(crate) fn until<T, F: FnMut(&mut State) -> Option<T> + Unpin>(&self, f: F) -> Until<'_, F> {
        Until { shared: self, f }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("uuid", &self.uuid).finish_non_exhaustive()
    }
}

/// The future of [`Shared::until`].
pub(crate) struct Until<'a, F> {
    shared: &'a Shared,
    f: F,
}

impl<T, F: FnMut(&mut State) -> Option<T> + Unpin> Future for Until<'_, F> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let shared = self.shared;
        let mut state = shared.lock();
        if let Some(answer) = (self.f)(&mut state) {
            return Poll::Ready(answer);
        }
        if !state.waiters.iter().any(|waker| waker.will_wake(cx.waker())) {
            state.waiters.push(cx.waker().clone());
        }
        Poll::Pending
    }
}
