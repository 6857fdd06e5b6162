//! The choice of the core that serves a connection.
//!
//! I/O queue pairs do nearly all the work, so each goes to the core that has the fewest of them.
//! Admin queue pairs do little and are distributed separately. A connection's Connect shows which
//! of the two it becomes. So with several cores a connection starts on the listener's reactor and
//! moves to its core when its first command has arrived.

use super::connection::{Arrival, Connection};
use super::{Connections, HANDOVER_MAX};
use crate::error::Error;
use crate::target::Target;
use reactor::Config;
use reactor::mailbox::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Numbers of queue pairs that a core serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct QueuePairs {
    /// Admin queue pairs.
    pub admin: usize,
    /// I/O queue pairs.
    pub io: usize,
}

/// The kind of queue pair that a connection is or requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Admin,
    Io,
}

/// The queue pairs of each core.
#[derive(Debug)]
pub(super) struct Loads {
    cores: Mutex<Vec<QueuePairs>>,
}

impl Loads {
    pub(super) fn new(cores: usize) -> Self {
        Self { cores: Mutex::new(vec![QueuePairs::default(); cores.max(1)]) }
    }

    fn cores(&self) -> MutexGuard<'_, Vec<QueuePairs>> {
        self.cores.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more queue pair of a kind on the core that has the fewest of this kind, and among
    /// equals on the one that has the fewest of the other kind. Returns the core.
    fn choose(&self, kind: Kind) -> usize {
        let mut cores = self.cores();
        let key = |load: &QueuePairs| match kind {
            Kind::Admin => (load.admin, load.io),
            Kind::Io => (load.io, load.admin),
        };
        let chosen = (0..cores.len()).min_by_key(|&core| key(&cores[core])).unwrap_or_default();
        *cores[chosen].of(kind) += 1;
        chosen
    }
}

impl QueuePairs {
    fn of(&mut self, kind: Kind) -> &mut usize {
        match kind {
            Kind::Admin => &mut self.admin,
            Kind::Io => &mut self.io,
        }
    }
}

/// The core of a connection, and the kind as which the core's load counts it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CoreAssignment {
    core: usize,
    kind: Option<Kind>,
}

impl CoreAssignment {
    /// Assigns a connection of this kind to the best core. Returns the core.
    pub(super) fn choose(&mut self, loads: &Loads, kind: Kind) -> usize {
        self.leave(loads);
        (self.core, self.kind) = (loads.choose(kind), Some(kind));
        self.core
    }

    /// Counts the connection, which has become a queue pair of this kind, on its present core.
    pub(super) fn settle(&mut self, loads: &Loads, kind: Kind) {
        self.leave(loads);
        *loads.cores()[self.core].of(kind) += 1;
        self.kind = Some(kind);
    }

    /// Takes the connection out of its core's load.
    pub(super) fn leave(&mut self, loads: &Loads) {
        if let Some(kind) = self.kind.take() {
            *loads.cores()[self.core].of(kind) -= 1;
        }
    }
}

/// A view of what a running target's cores serve. It stays valid while the target ends.
#[derive(Clone, Debug)]
pub struct Cores {
    pub(super) connections: Arc<Connections>,
}

impl Cores {
    /// Returns the queue pairs of each core. A connection whose Connect is under way counts as the
    /// kind that it requests.
    pub fn queue_pairs(&self) -> Vec<QueuePairs> {
        self.connections.loads.cores().clone()
    }
}

/// The cores' threads, for the listeners' reactor.
#[derive(Debug)]
pub(super) struct Threads {
    senders: Vec<Sender<Arrival>>,
}

impl Threads {
    pub(super) fn new(senders: Vec<Sender<Arrival>>) -> Self {
        Self { senders }
    }

    /// Sends a connection to the best core for it.
    pub(super) async fn send(&self, mut arrival: Arrival) {
        let core = arrival.choose_core();
        if self.senders[core].send(arrival).await.is_err() {
            tracing::error!("a core's thread has ended: its connection is dropped");
        }
    }
}

/// Starts the thread of a core.
pub(super) fn start(
    target: &Arc<Target>,
    index: usize,
    config: &Config,
) -> Result<(Sender<Arrival>, reactor::thread::JoinHandle<()>), Error> {
    let (sender, mut receiver): (_, Receiver<Arrival>) = channel(HANDOVER_MAX);
    let target = Arc::clone(target);
    let name = format!("target-{index}");
    let thread = reactor::thread::spawn(&name, config, move || async move {
        let tasks = reactor::local::WaitGroup::new();
        while let Some(arrival) = receiver.recv().await {
            let in_flight = tasks.enter();
            let connection = Connection::resume(&target, arrival);
            reactor::spawn(async move {
                connection.run().await;
                drop(in_flight);
            });
        }
        tasks.wait_zero().await;
    });
    Ok((sender, thread.map_err(Error::Thread)?))
}
