//! The metadata service: sessions, rights and calls over the transaction core, on one ring thread.
//!
//! The service processes a call in this order: it finds conflicts; if there are none, it executes
//! the call at once, otherwise it recalls all conflicting rights, waits, and looks for conflicts
//! again. Execution never waits. Everything that leaves the service (answers, recalls, admissions)
//! goes through one *outbox*. At the end of a loop turn the service flushes all finished
//! transactions as one batch of the store, and only then sends the outbox, in order. So it sends
//! nothing that a killed process could forget, grants and recalls keep their order, and many calls
//! share one commit. Only answers that promise durability wait longer, for a sync on a thread of
//! its own.
//!
//! Every wait has a deadline. The service ends a session that does not answer a recall, and answers
//! ETIMEDOUT to a call that cannot be executed within [`protocol::times::REQUEST_DEADLINE`]. Only a
//! blocking file lock waits for as long as its session lives.

mod admin;
mod agent;
mod background;
mod call;
mod check;
mod client;
mod durable;
mod end;
mod execute;
mod handshakes;
mod lock;
mod outbox;
mod shared;
mod space;
mod sync;
mod unheard;

use crate::store::{Error, FjallStore, Opening, Store, boot_id};
use crate::tree::{Boot, Core};
use protocol::Timestamp;
use protocol::admin::MetaCounts;
pub use protocol::times::Times;
use reactor::SocketOptions;
use rpc::Guard;
use shared::Shared;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use thiserror::Error;
use tls::JobKey;
use uuid::Uuid;

/// A call under way, as its session stores it.
pub(crate) type WorkRef = Rc<call::Work>;

/// The place of the store.
pub enum StoreChoice {
    /// The embedded store, in a directory of the local file system.
    Directory {
        /// The directory.
        path: PathBuf,
        /// Open it even if commits are missing; they are given up.
        accept_loss: bool,
    },
    /// A store that is open already (tests, simulations).
    Open(Box<dyn Store>),
}

impl std::fmt::Debug for StoreChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StoreChoice::Directory { path, accept_loss } => f
                .debug_struct("Directory")
                .field("path", path)
                .field("accept_loss", accept_loss)
                .finish(),
            StoreChoice::Open(_) => f.write_str("Open(..)"),
        }
    }
}

/// Settings of a metadata service.
#[derive(Debug)]
pub struct Config {
    /// Address to listen at; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Network namespace of the listening socket (such as `/run/netns/node1`).
    pub network_namespace: Option<PathBuf>,
    /// Where the store is.
    pub store: StoreChoice,
    /// The keys of the peers that may connect; all others are refused.
    pub guard: Guard,
    /// The key from which the keys of sessions at targets are derived; without it the service uses
    /// only targets that take data in the clear.
    pub data_keys: Option<JobKey>,
    /// Permission bits, owner and group of the root directory of a new file system.
    pub root: (u16, u32, u32),
    /// The machine's boot identifier; `None` asks the kernel.
    pub boot: Option<Uuid>,
    /// The times.
    pub times: Times,
}

/// The reason why a service could not start, or had to end.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The service cannot listen at the address.
    #[error("metadata service cannot listen at {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The store failed; its content is intact as of its last commit.
    #[error(transparent)]
    Store(#[from] Error),
    /// The machine's boot identifier cannot be read.
    #[error("cannot read /proc/sys/kernel/random/boot_id: {0}")]
    Boot(std::io::Error),
    /// The thread that syncs the store cannot be started.
    #[error("cannot start the sync thread: {0}")]
    Thread(std::io::Error),
}

/// A running service. Dropping it has the effect of a crash: nothing is synced.
#[derive(Debug)]
pub struct Service {
    shared: Rc<Shared>,
    address: SocketAddr,
}

impl Service {
    /// Opens the store and starts serving on this ring thread. Sessions in the store may resume;
    /// the service is in grace until each of them has resumed or ended.
    ///
    /// # Errors
    /// Any [`ServeError`].
    pub fn start(config: Config) -> Result<Service, ServeError> {
        let options = SocketOptions {
            network_namespace: config.network_namespace.clone(),
            ..SocketOptions::default()
        };
        let listener = rpc::Listener::bind(config.listen, &options)
            .map_err(|source| ServeError::Listen { address: config.listen, source })?;
        let address = listener.local_addr();
        let boot = config.boot.map_or_else(boot_id, Ok).map_err(ServeError::Boot)?;
        let store: Box<dyn Store> = match config.store {
            StoreChoice::Directory { path, accept_loss } => {
                Box::new(FjallStore::open(&path, Opening { boot, accept_loss })?)
            }
            StoreChoice::Open(store) => store,
        };
        let boot = Boot {
            boot,
            file_system: random_uuid(),
            now: Timestamp(reactor::time::system_time() as i64),
            root: config.root,
        };
        let (core, opened) = Core::open(store, &boot)?;
        tracing::info!(%address, is_new = opened.is_new, "metadata service is up");
        let shared = Shared::new(core, config.guard, config.data_keys, config.times)?;
        shared.run(listener);
        Ok(Service { shared, address })
    }

    /// Returns the address at which it listens, with the actual port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the service's counts since its start.
    pub fn counts(&self) -> MetaCounts {
        self.shared.counts()
    }

    /// Checks that all stored records agree with each other and with what is kept in memory.
    /// Returns a sentence for each contradiction. It reads the whole store: for tests.
    ///
    /// # Errors
    /// [`Error::Store`] if the store cannot be read.
    pub fn check(&self) -> Result<Vec<String>, Error> {
        self.shared.core.borrow().check()
    }

    /// Completes when the service has to end: an administrator asked for it, or the store failed.
    ///
    /// # Errors
    /// [`ServeError::Store`] if the store failed.
    pub async fn ended(&self) -> Result<(), ServeError> {
        self.shared.ended().await
    }

    /// Ends cleanly: takes no more calls, answers the executed ones, and syncs the store. Sessions
    /// stay, and can be resumed after the next start.
    ///
    /// # Errors
    /// [`ServeError::Store`] if the store failed.
    pub async fn stop(self) -> Result<(), ServeError> {
        self.shared.stop().await
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.shared.abort("the metadata service ends");
    }
}

/// Serves until `shutdown` completes, an administrator asks for the end, or the store fails; then
/// ends cleanly. It needs a ring thread of its own.
///
/// # Errors
/// Any [`ServeError`].
pub async fn serve(config: Config, shutdown: impl Future<Output = ()>) -> Result<(), ServeError> {
    let service = Service::start(config)?;
    let shutdown = std::pin::pin!(shutdown);
    let ended = {
        let ended = std::pin::pin!(service.ended());
        match reactor::race(shutdown, ended).await {
            reactor::Either::First(()) => Ok(()),
            reactor::Either::Second(result) => result,
        }
    };
    ended.and(service.stop().await)
}

fn random_uuid() -> Uuid {
    let mut bytes = [0; 16];
    reactor::random::fill(&mut bytes);
    uuid::Builder::from_random_bytes(bytes).into_uuid()
}
