//! Control of a running target: its present state, the requested state, and the change from one to
//! the other.
//!
//! A change starts from a complete new [`Settings`], from the control socket ([`request`]) or from
//! the configuration file at a SIGHUP. The difference to the present settings is prepared, then
//! applied ([`apply`]). Changes are made one after the other. They run on the thread of the
//! connection that asks, with a reactor of its own, so that opening a file or taking memory delays
//! neither I/O nor requests that only read the state.

mod apply;
mod closing;
mod difference;
mod file;
mod listen;
mod report;
mod request;
mod server;
mod show;
mod volumes;
mod wanted;

pub(super) use listen::Orders;
pub(in crate::commands) use request::Request;
pub(super) use server::{LINE_BYTES_MAX, Socket, directory, path_for};

use super::args::TargetArgs;
use super::config::Settings;
use super::hosts;
use anyhow::{Context, bail};
use closing::Closings;
use nvme::{Nqn, Nsid};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;
use target::{Cores, HostProof, HostTls, NAMESPACES_MAX, Server, Target};

/// How long the end of the target waits for a change in progress: longer than
/// [`closing::CLOSE_PATIENCE`], and time for flushes.
const CHANGE_PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two looks at a change in progress.
const CHANGE_PAUSE: Duration = Duration::from_millis(5);

/// The present state of the target.
#[derive(Clone)]
pub(super) struct Live {
    /// The settings that would produce this state; each namespace has its identifier.
    settings: Settings,
    /// The names of the subsystems, in the order of the settings.
    names: Vec<Nqn>,
    /// Addresses as requested, and as they are.
    listeners: Vec<(SocketAddr, SocketAddr)>,
    proofs: BTreeMap<Nqn, HostProof>,
    tls: BTreeMap<Nqn, HostTls>,
}

/// A controlled target.
pub(super) struct Control {
    target: Arc<Target>,
    cores: Cores,
    args: TargetArgs,
    live: Mutex<Live>,
    closings: Arc<Closings>,
    listeners: reactor::mailbox::Sender<listen::Order>,
    is_ending: AtomicBool,
    /// A SIGHUP has come that no reading of the file has answered yet.
    is_reload_waiting: AtomicBool,
}

impl Control {
    /// Returns the control of a target that was just started with `settings`; its subsystems have
    /// the NQNs `names`. The orders are for the task that owns the server.
    ///
    /// # Errors
    /// If the settings do not match the target.
    pub(super) fn new(
        server: &Server,
        mut settings: Settings,
        names: Vec<Nqn>,
        args: TargetArgs,
    ) -> anyhow::Result<(Arc<Self>, Orders)> {
        number_namespaces(&mut settings)?;
        let wanted = settings.listen.iter().copied();
        let hosts = || settings.subsystems.iter().flat_map(|subsystem| &subsystem.hosts);
        let live = Live {
            listeners: wanted.zip(server.addresses().iter().copied()).collect(),
            proofs: hosts::proofs(hosts())?,
            tls: hosts::tls(hosts())?,
            settings,
            names,
        };
        let (listeners, orders) = listen::channel();
        let control = Self {
            target: Arc::clone(server.target()),
            cores: server.cores(),
            args,
            live: Mutex::new(live),
            closings: Arc::default(),
            listeners,
            is_ending: AtomicBool::new(false),
            is_reload_waiting: AtomicBool::new(false),
        };
        Ok((Arc::new(control), orders))
    }

    fn live(&self) -> MutexGuard<'_, Live> {
        // Writers replace the value as a whole, so a panic leaves it valid.
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a change on this thread, after earlier changes. The end of the target waits for it, so
    /// that it is not left halfway.
    fn change<T>(&self, change: impl AsyncFnOnce(&Self) -> anyhow::Result<T>) -> anyhow::Result<T> {
        // After a panic during a change, `live` still describes the target.
        let _alone = self.closings.changing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_ending() {
            bail!("the target ends");
        }
        let mut runtime = reactor::Runtime::new(&reactor::Config::default())
            .context("cannot make the reactor of a change")?;
        runtime.block_on(change(self))
    }

    fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    /// Carries out a step of a change that may be left halfway. Drops it when the target ends.
    async fn unless_ending<T>(
        &self,
        step: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        let end = async {
            while !self.is_ending() {
                reactor::time::sleep(CHANGE_PAUSE).await;
            }
        };
        match reactor::race(std::pin::pin!(step), std::pin::pin!(end)).await {
            reactor::Either::First(result) => result,
            reactor::Either::Second(()) => bail!("the target ends"),
        }
    }

    /// Reads the configuration file again and applies the difference, on a thread of its own, which
    /// reports to standard error.
    pub(super) fn reload_in_background(self: &Arc<Self>) {
        if self.is_reload_waiting.swap(true, Ordering::SeqCst) {
            return;
        }
        let this = Arc::clone(self);
        let reload = move || match this.reload() {
            Ok(report) => eprintln!("tsumugi: the configuration file was read again: {report}"),
            Err(error) => eprintln!(
                "tsumugi: the configuration file was read again, and not applied: {}",
                crate::print::words(&error)
            ),
        };
        if let Err(error) = std::thread::Builder::new().name("reload".into()).spawn(reload) {
            self.is_reload_waiting.store(false, Ordering::SeqCst);
            eprintln!("tsumugi: cannot start a thread for the configuration file: {error}");
        }
    }

    /// Reads the configuration file again and applies the difference.
    fn reload(&self) -> anyhow::Result<report::Report> {
        if self.args.config.is_none() {
            bail!("the target was started without a configuration file");
        }
        self.change(async |this| {
            // A later change of the file needs another signal.
            this.is_reload_waiting.store(false, Ordering::SeqCst);
            let mut settings = this.args.settings()?;
            number_namespaces(&mut settings)?;
            let wanted = difference::Wanted::of_file(&this.live(), settings);
            this.apply(wanted).await
        })
    }

    /// Writes the present state as a configuration file. Returns the file's path.
    fn write(&self, path: &Path) -> anyhow::Result<PathBuf> {
        let _alone = self.closings.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let live = self.live().clone();
        file::write(path, &live.settings, &live.names)
    }

    /// Refuses further changes and waits for the end of one in progress. The caller must drop the
    /// orders before.
    pub(super) async fn end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
        let deadline = reactor::time::now() + CHANGE_PATIENCE;
        let changing = &self.closings.changing;
        let is_changing = || matches!(changing.try_lock(), Err(TryLockError::WouldBlock));
        while is_changing() && reactor::time::now() < deadline {
            reactor::time::sleep(CHANGE_PAUSE).await;
        }
    }

    /// Makes the data of removed namespaces durable that no change could flush before the end. The
    /// server must have ended, and with it all commands.
    ///
    /// # Errors
    /// The first failure; the others are flushed all the same.
    pub(super) async fn flush_removed(&self) -> Result<(), block::Error> {
        self.closings.flush().await
    }
}

/// Gives each namespace without an identifier the next one after its predecessor's, as at the start
/// of a target.
///
/// # Errors
/// If two namespaces of a subsystem have one identifier, or one is out of range.
pub(super) fn number_namespaces(settings: &mut Settings) -> anyhow::Result<()> {
    for subsystem in &mut settings.subsystems {
        let mut next = 1;
        let mut known = std::collections::BTreeSet::new();
        for namespace in &mut subsystem.namespaces {
            let nsid = *namespace.nsid.get_or_insert(next);
            next = nsid.saturating_add(1);
            if nsid == 0 || nsid > NAMESPACES_MAX || !known.insert(nsid) {
                bail!(
                    "{} is not possible: identifiers are 1 to {NAMESPACES_MAX}, each at most once",
                    Nsid(nsid)
                );
            }
        }
    }
    Ok(())
}
