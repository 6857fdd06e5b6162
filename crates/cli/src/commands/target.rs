//! `tsumugi target`: exports files, block devices or memory over NVMe/TCP and NVMe/RDMA.
//!
//! Options and configuration file have the same settings. Both become one [`Settings`], which is
//! checked before anything is opened. What a script needs goes to standard output: the addresses,
//! then the namespaces. Progress and messages go to standard error.

mod ana;
mod args;
mod config;
mod control;
mod cores;
mod ctl;
mod fabric;
mod hosts;
mod identity;
pub(crate) mod kernel;
mod limits;
mod namespace;
mod report;
pub(super) mod size;

pub(super) use args::TargetArgs;
pub(super) use control::Request;
pub(super) use ctl::Target as RunningTarget;

use crate::engine::Engine;
use crate::signals::Signals;
use anyhow::{Context, bail};
use args::TargetCommand;
use config::{Settings, SubsystemSettings};
use control::{Control, Socket};
use cores::CoreCount;
use namespace::NamespaceSettings;
use nvme::{Nqn, Nsid};
use reactor::{Either, Runtime, SocketOptions};
use signal_hook::consts::{SIGHUP, SIGUSR1};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use target::{AdmissionMode, Admissions, Namespace, Server, ServerOptions, Subsystem, Target};
use uuid::Uuid;

/// How long to wait for an address that a killed target still holds.
const LISTEN_PATIENCE: Duration = Duration::from_secs(5);
/// Runs `tsumugi target`.
pub(crate) fn run(args: &TargetArgs) -> anyhow::Result<ExitCode> {
    if let Some(TargetCommand::Ctl(args)) = &args.command {
        return ctl::run(args);
    }
    crate::confine::keep_files_private();
    let settings = args.settings()?;
    if args.engine == Engine::Kernel {
        return kernel::run(&settings, args);
    }
    if args.offload {
        bail!("--offload needs the kernel's target: add --engine kernel");
    }
    let config = reactor::Config {
        spin: settings.poll_us.unwrap_or_default(),
        ..reactor::Config::default()
    };
    // Without a file to read again SIGHUP keeps its default meaning: the terminal has gone.
    let further: &[i32] = if args.config.is_some() { &[SIGUSR1, SIGHUP] } else { &[SIGUSR1] };
    let signals = crate::signals::watch(further)?;
    crate::descriptors::raise_limit();
    check_descriptors(&settings)?;
    let mut runtime = Runtime::new(&config)?;
    runtime.block_on(serve(settings, config, signals, args))?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses a requested number of connections that exceeds the limit of open files.
fn check_descriptors(settings: &Settings) -> anyhow::Result<()> {
    /// Files of the program itself, and of a few namespaces.
    const OTHERS: u64 = 64;
    let Some(connections) = settings.connections_max else { return Ok(()) };
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    if let Some(limit) = limit
        && limit < connections as u64 + OTHERS
    {
        bail!(
            "{connections} connections need {connections} open files, but the limit is {limit}: \
            raise it (ulimit -Hn, LimitNOFILE= of systemd), or lower connections_max"
        );
    }
    Ok(())
}

async fn serve(
    settings: Settings,
    runtime: reactor::Config,
    mut signals: Signals,
    args: &TargetArgs,
) -> anyhow::Result<()> {
    let is_json = args.json;
    let target =
        Target::new(limits::limits_of(&settings)?, Admissions::new(AdmissionMode::AnyHost))?;
    let hosts = settings.subsystems.iter().flat_map(|subsystem| &subsystem.hosts);
    for (host, proof) in hosts::proofs(hosts.clone())? {
        target.require_proof(host, proof)?;
    }
    for (host, tls) in hosts::tls(hosts)? {
        target.require_tls(host, tls)?;
    }
    if settings.auth_discovery {
        target.require_proof_for_discovery();
    }
    let names = add_subsystems(&target, &settings, &mut signals).await?;
    let options = ServerOptions {
        listen: settings.listen.clone(),
        listen_rdma: settings.listen_rdma.clone(),
        cores: settings.cores.map_or(1, CoreCount::get),
        runtime,
        socket: SocketOptions {
            network_namespace: settings.network_namespace.clone(),
            ..SocketOptions::default()
        },
    };
    let mut server = Server::start_patiently(&target, &options, LISTEN_PATIENCE).await?;
    let socket = control_socket(&settings)?;
    let place = socket.as_ref().map(|socket| socket.path().to_owned());
    let (control, mut orders) = Control::new(&server, settings, names, args.clone())?;
    let socket = socket.map(|socket| socket.serve(&control)).transpose()?;
    report::started(&server, place.as_deref(), is_json);
    loop {
        let event = {
            let signal = std::pin::pin!(signals.recv());
            reactor::race(signal, std::pin::pin!(orders.next())).await
        };
        match event {
            Either::First(SIGUSR1) => {
                report::counts(&target, server.connections(), &server.cores(), is_json);
            }
            Either::First(SIGHUP) => control.reload_in_background(),
            Either::First(_) => break,
            Either::Second(order) => order.carry_out(&mut server).await,
        }
    }
    drop((socket, orders));
    control.end().await;
    let (connections, cores) = (server.connections(), server.cores());
    let flushed = server.shutdown().await;
    flushed
        .and(control.flush_removed().await)
        .context("a namespace cannot be flushed: its last writes may be lost")?;
    if is_json {
        report::counts(&target, connections, &cores, true);
    }
    Ok(())
}

/// Opens the subsystems of the settings. Returns their names in the same order.
async fn add_subsystems(
    target: &Target,
    settings: &Settings,
    signals: &mut Signals,
) -> anyhow::Result<Vec<Nqn>> {
    let mut names = Vec::new();
    for subsystem in &settings.subsystems {
        let opened = {
            let opening = std::pin::pin!(open_subsystem(subsystem));
            let signal = std::pin::pin!(signals.recv());
            match reactor::race(opening, signal).await {
                Either::First(opened) => opened?,
                Either::Second(_) => bail!("interrupted before the target was ready"),
            }
        };
        opened.expect_any_namespace();
        names.push(opened.nqn().clone());
        target.add_subsystem(opened)?;
    }
    Ok(names)
}

/// Creates the control socket. If the default directory is missing, the target runs without a
/// socket.
fn control_socket(settings: &Settings) -> anyhow::Result<Option<Socket>> {
    let path = settings.control.as_deref();
    if path == Some(Path::new("none")) {
        return Ok(None);
    }
    match Socket::new(path) {
        Ok(socket) => Ok(Some(socket)),
        Err(error) if path.is_none() => {
            eprintln!(
                "tsumugi: the target runs without the control socket that `tsumugi target ctl` \
                needs: {}; give another path with --control, or --control none",
                crate::print::words(&error)
            );
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

async fn open_subsystem(settings: &SubsystemSettings) -> anyhow::Result<Subsystem> {
    let (mut uuids, mut pools) = (Vec::new(), Vec::new());
    for namespace in &settings.namespaces {
        namespace.prepare().await?;
        pools.push(namespace.hold_pool().await?);
        uuids.push(namespace.uuid().await?);
    }
    let named = settings.namespaces.iter().zip(&uuids);
    let persistent: Vec<Uuid> =
        named.filter(|(it, _)| it.is_persistent()).map(|(_, uuid)| *uuid).collect();
    let nqn = settings.nqn(&persistent)?;
    let serial = settings.serial(&nqn);
    let mut subsystem = Subsystem::new(nqn, &serial, &settings.model(), settings.access());
    if let Some(states) = ana::states(settings)? {
        subsystem = subsystem.with_ana(&states);
    }
    let mut next = 1;
    for (namespace, uuid) in settings.namespaces.iter().zip(uuids) {
        let nsid = Nsid(namespace.nsid.unwrap_or(next));
        next = nsid.get().saturating_add(1);
        let backing = namespace.open(uuid).await?;
        subsystem.add_namespace(namespace_of(namespace, nsid, uuid, backing).await?)?;
    }
    Ok(subsystem)
}

/// Opens a namespace, and creates its file if the settings ask for that.
async fn open_namespace(settings: &NamespaceSettings, nsid: Nsid) -> anyhow::Result<Namespace> {
    settings.prepare().await?;
    let _pool = settings.hold_pool().await?;
    let uuid = settings.uuid().await?;
    let backing = settings.open(uuid).await?;
    namespace_of(settings, nsid, uuid, backing).await
}

async fn namespace_of(
    settings: &NamespaceSettings,
    nsid: Nsid,
    uuid: Uuid,
    backing: Arc<dyn block::Backing>,
) -> anyhow::Result<Namespace> {
    let group = ana::group(settings.ana_group)?;
    let backing = settings.with_marks(uuid, backing).await?;
    let namespace =
        Namespace::new(nsid, uuid.into_bytes(), backing, settings.read_only).with_ana_group(group);
    let namespace = namespace.with_hosts(settings.hosts()?);
    namespace.set_rate_limits(settings.rate_limits()?);
    if settings.is_shared() {
        // Another target that shares the store does not know this target's reservations, nor which
        // blocks it compares.
        return Ok(namespace.with_other_writers());
    }
    Ok(namespace.with_reservations(settings.reservations(uuid).await?))
}
