//! A controller: an admin queue pair and I/O queue pairs, kept connected by a supervisor task.
//!
//! A [`Link`] is one set of live connections. When one of its connections ends, the whole link is
//! closed and a new one is created, because fabrics cannot resume the controller of the old link.
//! The first attempt follows at once, later ones after growing pauses, until `ctrl_loss_tmo`.
//! Requests never hold a link across a reconnect: each time they ask for the live one and wait for
//! it.

mod admin;
mod establish;
mod proof;
mod supervise;

pub use admin::NamespaceIdentity;
pub(crate) use admin::NvmLimits;
pub(crate) use establish::Link;

use crate::error::Error;
use crate::options::ConnectOptions;
use nvme::identify::IdentifyController;
use nvme::property::{Capabilities, Version};
use nvme::{ControllerId, Nsid};
use reactor::local::Notify;
use reactor::time::{self, Instant};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

/// Maximum number of events that are kept for a user that does not fetch them.
const EVENTS_MAX: usize = 256;

/// Events of a controller that the user has not requested.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ControllerEvent {
    /// These namespaces were added, removed or changed. An empty list means more than can be
    /// listed.
    NamespacesChanged(Vec<Nsid>),
    /// The discovery log page has changed.
    DiscoveryChanged,
    /// The asymmetric access of namespaces has changed.
    AnaChanged,
    /// The connection was lost; the host tries to reconnect.
    Disconnected(Error),
    /// The host has reconnected.
    Reconnected,
    /// The host has given the controller up.
    Lost(Error),
    /// Events were dropped because they were not fetched: read everything again.
    Missed,
}

/// Properties of a controller that the host read when it connected.
#[derive(Clone, Debug)]
pub struct ControllerInfo {
    /// Its identifier.
    pub controller_id: ControllerId,
    /// Its capabilities.
    pub capabilities: Capabilities,
    /// Its version.
    pub version: Version,
    /// The data of Identify Controller.
    pub identify: Rc<IdentifyController>,
    /// Number of granted I/O queue pairs.
    pub nr_io_queues: u16,
    /// Maximum number of outstanding commands on each of them.
    pub queue_size: u16,
    /// Whether header digests are in use.
    pub hdr_digest: bool,
    /// Whether data digests are in use.
    pub data_digest: bool,
    /// The stages of connecting, with their durations.
    pub stages: Vec<Stage>,
}

/// A stage of connecting.
#[derive(Clone, Copy, Debug)]
pub struct Stage {
    /// The name of the stage.
    pub name: &'static str,
    /// The duration of the stage.
    pub duration: Duration,
}

pub(crate) enum LinkState {
    Live(Rc<Link>),
    Down,
    Failed(Error),
}

/// A moment in the life of a controller's namespaces: what was found then holds until it changes.
/// The default comes before the first link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sight {
    /// The number of the link.
    pub(crate) link: u64,
    /// Number of changes of namespaces that the controller had reported.
    namespace_changes: u64,
}

/// State that the supervisor and the handles share.
pub(crate) struct Inner {
    pub(crate) options: ConnectOptions,
    pub(crate) is_discovery: bool,
    link: RefCell<LinkState>,
    pub(crate) link_changed: Notify,
    /// Notified when a connection has ended or the user wants to stop.
    attention: Notify,
    /// Whether the controller is being shut down cleanly, so that the end of its connections is not
    /// a loss.
    is_ending: Cell<bool>,
    is_stopping: Cell<bool>,
    events: RefCell<VecDeque<ControllerEvent>>,
    events_changed: Notify,
    reconnects: Cell<u64>,
    /// Number of reported changes of asymmetric access.
    pub(crate) ana_changes: Cell<u64>,
    /// Number of reported changes of namespaces.
    namespace_changes: Cell<u64>,
    /// Whether there are other paths to the same namespace: then a silent path is given up after
    /// `keep_alive_tmo`.
    pub(crate) is_path: Cell<bool>,
}

/// A handle to a connected controller; clones refer to the same one. Dropping the last handle
/// closes the connections without a shutdown; [`Self::disconnect`] shuts the controller down first.
#[derive(Clone)]
pub struct Controller {
    guard: Rc<Guard>,
}

struct Guard(Rc<Inner>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.is_stopping.set(true);
        self.0.attention.notify();
    }
}

impl Controller {
    /// Connects to a subsystem: admin queue pair, enabling, I/O queue pairs. Fails if the first
    /// attempt fails. Later losses are repaired in the background.
    pub async fn connect(options: ConnectOptions) -> Result<Self, Error> {
        Self::connect_as(options, false).await
    }

    /// Connects to a discovery subsystem, which has no I/O queue pairs.
    pub async fn connect_discovery(options: ConnectOptions) -> Result<Self, Error> {
        Self::connect_as(options, true).await
    }

    async fn connect_as(options: ConnectOptions, is_discovery: bool) -> Result<Self, Error> {
        options.check()?;
        let inner = Rc::new(Inner {
            options,
            is_discovery,
            link: RefCell::new(LinkState::Down),
            link_changed: Notify::new(),
            attention: Notify::new(),
            is_ending: Cell::new(false),
            is_stopping: Cell::new(false),
            events: RefCell::default(),
            events_changed: Notify::new(),
            reconnects: Cell::new(0),
            ana_changes: Cell::new(0),
            namespace_changes: Cell::new(0),
            is_path: Cell::new(false),
        });
        let link = establish::establish(&inner, 1).await?;
        supervise::start(&inner, &link);
        *inner.link.borrow_mut() = LinkState::Live(link);
        let _supervisor = reactor::spawn(supervise::supervise(Rc::clone(&inner)));
        Ok(Self { guard: Rc::new(Guard(inner)) })
    }

    pub(crate) fn inner(&self) -> &Rc<Inner> {
        &self.guard.0
    }

    /// Returns the options of the connection.
    pub fn options(&self) -> &ConnectOptions {
        &self.inner().options
    }

    /// Returns the properties of the present connection's controller, or [`None`] while there is no
    /// connection.
    pub fn info(&self) -> Option<ControllerInfo> {
        match &*self.inner().link.borrow() {
            LinkState::Live(link) => Some(link.info.clone()),
            _ => None,
        }
    }

    /// Returns the number of reconnects.
    pub fn reconnects(&self) -> u64 {
        self.inner().reconnects.get()
    }

    /// Waits for the next event and returns it. Events are returned in order.
    pub async fn next_event(&self) -> ControllerEvent {
        let inner = self.inner();
        loop {
            if let Some(event) = inner.events.borrow_mut().pop_front() {
                return event;
            }
            inner.events_changed.notified().await;
        }
    }

    /// Returns the live link, and waits for one until `deadline` if there is none.
    pub(crate) async fn link(&self, deadline: Option<Instant>) -> Result<Rc<Link>, Error> {
        self.inner().live_link(deadline).await
    }

    /// Shuts the controller down (CC.SHN), waits for it, and closes all connections.
    pub async fn disconnect(self) -> Result<(), Error> {
        let inner = Rc::clone(self.inner());
        let link = match &*inner.link.borrow() {
            LinkState::Live(link) => Some(Rc::clone(link)),
            _ => None,
        };
        inner.is_ending.set(true);
        let result = match &link {
            Some(link) => link.shut_down(inner.options.connect_timeout).await,
            None => Ok(()),
        };
        // Only now, because the supervisor would close the link under the commands.
        inner.is_stopping.set(true);
        inner.attention.notify();
        if let Some(link) = link {
            link.close();
            link.admin.ended().await;
        }
        result
    }
}

impl Inner {
    /// Returns the present moment on a link.
    pub(crate) fn sight(&self, link: &Link) -> Sight {
        Sight { link: link.number, namespace_changes: self.namespace_changes.get() }
    }

    /// Returns the live link if there is one, at little cost.
    pub(crate) fn live_link_now(&self) -> Result<Option<Rc<Link>>, Error> {
        match &*self.link.borrow() {
            LinkState::Live(link) => Ok(Some(Rc::clone(link))),
            LinkState::Down => Ok(None),
            LinkState::Failed(error) => Err(error.clone()),
        }
    }

    pub(crate) async fn live_link(&self, deadline: Option<Instant>) -> Result<Rc<Link>, Error> {
        loop {
            if let Some(link) = self.live_link_now()? {
                return Ok(link);
            }
            let changed = self.link_changed.notified();
            match deadline {
                None => changed.await,
                Some(deadline) => {
                    let total = self.options.fast_io_fail_tmo.unwrap_or_default();
                    time::timeout_at(deadline, changed)
                        .await
                        .map_err(|_| Error::DeadlineExceeded(total))?;
                }
            }
        }
    }

    fn set_link(&self, state: LinkState) {
        let before = std::mem::replace(&mut *self.link.borrow_mut(), state);
        let failed = match before {
            LinkState::Failed(error) => Some(error),
            LinkState::Live(_) | LinkState::Down => None,
        };
        assert!(failed.is_none(), "a controller that was given up is used again: {failed:?}");
        self.link_changed.notify();
    }

    fn push_event(&self, event: ControllerEvent) {
        let mut events = self.events.borrow_mut();
        if events.len() >= EVENTS_MAX {
            events.clear();
            events.push_back(ControllerEvent::Missed);
        }
        events.push_back(event);
        drop(events);
        self.events_changed.notify();
    }
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controller")
            .field("subsystem_nqn", &self.options().subsystem_nqn)
            .field("address", &self.options().address)
            .finish_non_exhaustive()
    }
}
