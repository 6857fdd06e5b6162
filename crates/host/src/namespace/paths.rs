//! Several paths to one namespace: controllers of one subsystem, each with its own connections.
//!
//! The policy chooses a working path for each command. A task per path ([`watch`]) checks each new
//! connection before commands may use it: whether the namespace behind it is the same, and which
//! access it has (the ANA log page). The task checks again when the controller reports a change,
//! and when a command was refused. So a repaired path is used again without other help, and no
//! command waits for a path while another one works.
//!
//! *Writes that may have been executed.* When a connection ends, the host does not know whether the
//! target has executed the writes under way. It sends them again on another path, with the same
//! data. Before that it ends the old connection with a reset, which discards what its kernel has
//! not sent, as Linux does. It also waits for [`SETTLE_TIME`], in which a target ends what it has
//! begun. A gap remains: a live target that has received the write and delays it for longer can
//! execute it after a later write to the same blocks through another path. NVMe has no means
//! against this while that target cannot be reached (docs/paths.md).

mod watch;

use super::policy::{Candidate, IoPolicy, choose};
use super::{Found, Inner, Namespace};
use crate::controller::{Controller, Link, Sight};
use crate::error::Error;
use nvme::log_page::AnaState;
use nvme::{Nsid, Status};
use reactor::local::Notify;
use reactor::time::{self, Instant};
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// Maximum number of paths of a namespace.
pub const PATHS_MAX: usize = 32;
/// Pause between the end of a connection and the repetition of a write that was under way on it.
pub(super) const SETTLE_TIME: Duration = Duration::from_millis(100);
/// Time for which a path is not chosen after it has reported an error of the path without a change
/// of access.
const REST_TIME: Duration = Duration::from_millis(100);
/// Longest wait before paths are checked again although none has reported a change.
const LOOK_PERIOD: Duration = Duration::from_millis(20);

/// One path to a namespace.
#[derive(Debug)]
pub(super) struct Path {
    pub(super) controller: Controller,
    /// Number of the link on which the namespace was last verified.
    checked: Cell<Sight>,
    /// Number of the link on which a connection was last lost.
    lost_link: Cell<u64>,
    access: Cell<AnaState>,
    /// Number of reported changes of access that `access` includes.
    ana_changes_seen: Cell<u64>,
    /// Whether a command was refused because of its path, so that `access` has to be read again.
    is_stale: Cell<bool>,
    rests_until: Cell<Option<Instant>>,
    incarnation: Cell<Option<u128>>,
    is_local: Cell<bool>,
    in_flight: Cell<usize>,
    commands: Cell<u64>,
    /// The reason why it cannot be used although it is connected.
    fault: RefCell<Option<Error>>,
}

/// All paths of a namespace.
#[derive(Debug)]
pub(super) struct Paths {
    pub(super) all: Vec<Path>,
    policy: IoPolicy,
    last: Cell<usize>,
    changed: Notify,
    /// Longest time that a command waits for a path; [`None`] means no limit.
    patience: Option<Duration>,
}

/// The state of one path, for reports.
#[derive(Clone, Debug)]
pub struct PathStatus {
    /// Address of the target.
    pub address: SocketAddr,
    /// The access through the path, if it can take commands now.
    pub access: Option<AnaState>,
    /// Number of commands sent on it so far, including repeated ones.
    pub commands: u64,
    /// Number of its reconnects.
    pub reconnects: u64,
}

/// The chosen path of a command. The command counts as under way until this is dropped.
pub(super) struct Route<'a> {
    pub(super) link: Rc<Link>,
    /// [`None`] for a namespace with a single path, which this module does not manage.
    pub(super) path: Option<&'a Path>,
}

impl<'a> Route<'a> {
    pub(super) fn new(link: Rc<Link>, path: Option<&'a Path>) -> Self {
        if let Some(path) = path {
            path.in_flight.set(path.in_flight.get() + 1);
            path.commands.set(path.commands.get() + 1);
        }
        Self { link, path }
    }
}

impl Drop for Route<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.path {
            path.in_flight.set(path.in_flight.get() - 1);
        }
    }
}

/// The time at which a command first had no path or failed because of its path.
#[derive(Debug, Default)]
pub(super) struct Trouble(Option<Instant>);

impl Path {
    fn new(
        controller: &Controller,
        (link, sight): (&Link, Sight),
        found: &Found,
        access: AnaState,
    ) -> Self {
        Self {
            controller: controller.clone(),
            checked: Cell::new(sight),
            lost_link: Cell::new(0),
            access: Cell::new(access),
            ana_changes_seen: Cell::new(0),
            is_stale: Cell::new(false),
            rests_until: Cell::new(None),
            incarnation: Cell::new(found.identity.incarnation),
            is_local: Cell::new(link.is_local()),
            in_flight: Cell::new(0),
            commands: Cell::new(0),
            fault: RefCell::new(None),
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.controller.options().address
    }

    /// Returns the live link, if commands may use it.
    fn usable(&self) -> Option<Rc<Link>> {
        let controller = self.controller.inner();
        let link = controller.live_link_now().ok().flatten()?;
        let is_checked = controller.sight(&link) == self.checked.get();
        if !is_checked || link.number == self.lost_link.get() || self.fault.borrow().is_some() {
            return None;
        }
        if let Some(until) = self.rests_until.get() {
            if time::now() < until {
                return None;
            }
            self.rests_until.set(None);
        }
        Some(link)
    }

    /// Records that a connection of the link has ended.
    pub(super) fn note_lost(&self, link: &Link) {
        self.lost_link.set(self.lost_link.get().max(link.number));
    }

    /// Records that a command ended with a status of the path.
    pub(super) fn note_status(&self, link: &Link, status: Status) {
        let access = if status.is(Status::ANA_INACCESSIBLE) {
            AnaState::Inaccessible
        } else if status.is(Status::ANA_PERSISTENT_LOSS) {
            AnaState::PersistentLoss
        } else if status.is(Status::ANA_TRANSITION) {
            AnaState::Change
        } else {
            return self.rests_until.set(Some(time::now() + REST_TIME));
        };
        // A later link was checked again since.
        if link.number == self.checked.get().link {
            self.access.set(access);
            self.is_stale.set(true);
            self.wake_watcher();
        }
    }

    fn wake_watcher(&self) {
        self.controller.inner().link_changed.notify();
    }
}

impl Paths {
    fn pick(&self) -> Option<Route<'_>> {
        let usable = self.all.iter().enumerate().filter(|(_, path)| path.usable().is_some());
        let candidates = usable.map(|(index, path)| Candidate {
            index,
            access: path.access.get(),
            is_local: path.is_local.get(),
            in_flight: path.in_flight.get(),
        });
        let index = choose(self.policy, &candidates, self.last.get())?;
        self.last.set(index);
        let path = &self.all[index];
        path.usable().map(|link| Route::new(link, Some(path)))
    }

    /// Returns the error of a path if all controllers were given up.
    fn given_up(&self) -> Option<Error> {
        let mut last = None;
        for path in &self.all {
            last = Some(path.controller.inner().live_link_now().err()?);
        }
        last
    }

    /// Waits for a change of any path.
    async fn wait(&self, deadline: Option<Instant>) {
        let look = time::now() + LOOK_PERIOD;
        let until = deadline.map_or(look, |deadline| look.min(deadline));
        // The caller checks everything, whether a change or the timeout ends the wait.
        let _ = time::timeout_at(until, self.changed.notified()).await;
    }

    /// Replaces the incarnation `was` of paths by `now`.
    pub(super) fn adopt(&self, was: u128, now: u128) {
        for path in &self.all {
            if path.incarnation.get() == Some(was) {
                path.incarnation.set(Some(now));
            }
            path.checked.set(Sight::default());
            path.wake_watcher();
        }
    }
}

impl Namespace {
    /// Opens a namespace through several controllers of one subsystem. Commands use the path that
    /// `policy` chooses. When a path fails, its commands are sent again on another one. The caller
    /// sees an error only after no path has worked for the longest `ctrl_loss_tmo` of all
    /// controllers.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] if there are no controllers, or more than [`PATHS_MAX`].
    /// [`Error::PathMismatch`] if the controllers belong to several subsystems or hosts, or do not
    /// lead to the same namespace. The errors of [`Self::open`].
    pub async fn open_paths(
        controllers: &[Controller],
        nsid: Nsid,
        policy: IoPolicy,
    ) -> Result<Self, Error> {
        check_controllers(controllers)?;
        let mut paths = Vec::new();
        let mut common: Option<Found> = None;
        for controller in controllers {
            let link = controller.link(None).await?;
            let sight = controller.inner().sight(&link);
            let found = Found::look(&link, nsid).await?;
            let access = watch::access(&link, nsid, found.ana_group).await?;
            controller.inner().is_path.set(true);
            paths.push(Path::new(controller, (&link, sight), &found, access));
            common = Some(match common {
                None if found.identity.uuid.or(found.identity.nguid.map(uuid_of)).is_none() => {
                    return Err(mismatch(controller, "it has neither a UUID nor an NGUID"));
                }
                None => found,
                Some(common) => common.merge(found).map_err(|what| mismatch(controller, what))?,
            });
        }
        let (Some(common), Some(first)) = (common, controllers.first()) else {
            return Err(no_paths());
        };
        let link = first.link(None).await?;
        let sight = first.inner().sight(&link);
        let losses = controllers.iter().map(|it| it.options().ctrl_loss_tmo);
        let patience = losses.collect::<Option<Vec<_>>>().and_then(|it| it.into_iter().max());
        let paths =
            Paths { all: paths, policy, last: Cell::new(0), changed: Notify::new(), patience };
        let inner = Rc::new(Inner::new(first, nsid, common, sight, Some(paths)));
        for index in 0..controllers.len() {
            watch::start(&inner, index);
        }
        Ok(Self(inner))
    }

    /// Returns the states of the paths. The list is empty for a namespace that was opened through
    /// one controller alone.
    pub fn paths(&self) -> Vec<PathStatus> {
        let paths = self.0.paths.as_ref().map_or(&[][..], |paths| &paths.all);
        let status = |path: &Path| PathStatus {
            address: path.address(),
            access: path.usable().map(|_| path.access.get()),
            commands: path.commands.get(),
            reconnects: path.controller.reconnects(),
        };
        paths.iter().map(status).collect()
    }

    /// Returns the link for the next command, after a wait for a working path.
    pub(super) async fn route(
        &self,
        deadline: Option<Instant>,
        trouble: &mut Trouble,
    ) -> Result<Route<'_>, Error> {
        let Some(paths) = &self.0.paths else {
            return Ok(Route::new(self.link(deadline).await?, None));
        };
        loop {
            if let Some(error) = &*self.0.failed.borrow() {
                return Err(error.clone());
            }
            if let Some(route) = paths.pick() {
                return Ok(route);
            }
            if let Some(error) = paths.given_up() {
                return Err(error);
            }
            self.check_patience(trouble)?;
            if deadline.is_some_and(|deadline| time::now() >= deadline) {
                return Err(self.too_late());
            }
            paths.wait(deadline).await;
        }
    }

    /// Fails a command that has been without a working path for too long.
    pub(super) fn check_patience(&self, trouble: &mut Trouble) -> Result<(), Error> {
        let patience = self.0.paths.as_ref().and_then(|paths| paths.patience);
        let since = *trouble.0.get_or_insert_with(time::now);
        match patience {
            Some(patience) if since.elapsed() >= patience => Err(Error::NoPath(patience)),
            _ => Ok(()),
        }
    }
}

fn uuid_of(id: [u8; 16]) -> uuid::Uuid {
    uuid::Uuid::from_bytes(id)
}

fn no_paths() -> Error {
    Error::InvalidOption { option: "path", why: "a namespace has 1 to 32 paths" }
}

fn mismatch(controller: &Controller, what: &'static str) -> Error {
    Error::PathMismatch { address: controller.options().address, what }
}

fn check_controllers(controllers: &[Controller]) -> Result<(), Error> {
    if controllers.len() > PATHS_MAX {
        return Err(no_paths());
    }
    let first = controllers.first().ok_or_else(no_paths)?.options();
    for (index, controller) in controllers.iter().enumerate() {
        let options = controller.options();
        if options.subsystem_nqn != first.subsystem_nqn {
            return Err(mismatch(controller, "it belongs to another subsystem"));
        }
        if (options.hostid, &options.hostnqn) != (first.hostid, &first.hostnqn) {
            return Err(mismatch(controller, "it was connected as another host"));
        }
        if controllers[..index].iter().any(|it| Rc::ptr_eq(it.inner(), controller.inner())) {
            return Err(mismatch(controller, "the same controller is given twice"));
        }
    }
    Ok(())
}
