//! `tsumugi target --engine kernel`: the kernel's own target (nvmet), set up from the same
//! settings.
//!
//! The kernel serves. This process creates the objects in configfs, locks the backing files and
//! devices, and waits. It notes each object in a journal before it creates the object. A second
//! process, the [`keeper`], removes the objects in the journal when the first one ends, also after
//! kill -9. If the keeper was killed too, the next start removes the rest.

mod configfs;
pub(crate) mod keeper;
mod plan;

use super::args::TargetArgs;
use super::config::Settings;
use super::fabric::Fabric;
use super::{hosts, size};
use crate::signals::Signals;
use anyhow::{Context, bail, ensure};
use block::Backing;
use configfs::{ROOT, Tree};
use keeper::Keeper;
use plan::{Export, Exported, Store};
use reactor::Runtime;
use serde_json::json;
use signal_hook::consts::SIGUSR1;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;

/// Exports until SIGINT or SIGTERM.
pub(super) fn run(settings: &Settings, args: &TargetArgs) -> anyhow::Result<ExitCode> {
    let fabric = args.fabric.unwrap_or(Fabric::Tcp);
    plan::check(settings)?;
    hosts::proofs(settings.subsystems.iter().flat_map(|subsystem| &subsystem.hosts))?;
    ensure!(
        rustix::process::geteuid().is_root(),
        "the kernel's target is set up by root alone: run as root, or leave out --engine kernel"
    );
    prepare(settings, fabric)?;
    let signals = crate::signals::watch(&[SIGUSR1])?;
    let mut runtime = Runtime::new(&reactor::Config::default())?;
    runtime.block_on(export(settings, fabric, args, signals))?;
    Ok(ExitCode::SUCCESS)
}

/// Loads the modules and finds configfs.
fn prepare(settings: &Settings, fabric: Fabric) -> anyhow::Result<()> {
    load(&format!("nvmet-{}", fabric.name()), &[])?;
    // Without a device the kernel would listen and accept no host.
    let has_adapter =
        || std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut it| it.next().is_some());
    ensure!(
        fabric != Fabric::Rdma || has_adapter(),
        "not available: this machine has no RDMA device (/sys/class/infiniband is empty); load the adapter's \
         driver, make one by soft-RoCE (modprobe rdma_rxe; rdma link add), or use --fabric tcp"
    );
    if settings.subsystems.iter().flat_map(|it| &it.namespaces).any(|it| !it.is_persistent()) {
        load("null_blk", &["nr_devices=0"])?;
    }
    if !Path::new(ROOT).join("nvmet").is_dir() {
        let mounted = Command::new("mount").args(["-t", "configfs", "none", ROOT]).output();
        let mounted = mounted.context("cannot start mount")?;
        ensure!(
            Path::new(ROOT).join("nvmet").is_dir(),
            "{ROOT}/nvmet is not there, and mounting configfs does not help: {}",
            String::from_utf8_lossy(&mounted.stderr).trim()
        );
    }
    Ok(())
}

/// Loads a kernel module, unless it is loaded.
fn load(module: &str, options: &[&str]) -> anyhow::Result<()> {
    if Path::new("/sys/module").join(module.replace('-', "_")).is_dir() {
        return Ok(());
    }
    let done = Command::new("modprobe").arg(module).args(options).output();
    let done = done.with_context(|| format!("cannot start modprobe to load {module}"))?;
    ensure!(
        done.status.success(),
        "not available: this kernel has no {module} ({}); install the package with the kernel's modules, \
         or leave out --engine kernel",
        String::from_utf8_lossy(&done.stderr).trim()
    );
    Ok(())
}

async fn export(
    settings: &Settings,
    fabric: Fabric,
    args: &TargetArgs,
    mut signals: Signals,
) -> anyhow::Result<()> {
    keeper::remove_leftovers()?;
    let opened = {
        let opening = std::pin::pin!(open(settings));
        let signal = std::pin::pin!(signals.recv());
        match reactor::race(opening, signal).await {
            reactor::Either::First(opened) => opened?,
            reactor::Either::Second(_) => bail!("interrupted before the target was ready"),
        }
    };
    let wanted = Export { settings, fabric, offload: args.offload };
    let keeper = Keeper::start()?;
    let mut tree = Tree::new(Path::new(ROOT), keeper.journal()?);
    if let Err(error) = wanted.make(&mut tree, &opened.exported) {
        let removed = keeper.end();
        return Err(error.context(removed.map_or_else(
            |error| format!("the kernel's target cannot be set up, and {error:#}"),
            |()| "the kernel's target cannot be set up".to_owned(),
        )));
    }
    print_started(settings, fabric, &opened.exported, args.json);
    while signals.recv().await == SIGUSR1 {
        eprintln!(
            "tsumugi: no counts are available: the kernel serves, and it does not count per host"
        );
    }
    keeper.end()?;
    drop(opened.held);
    Ok(())
}

/// The exported subsystems, and the locks on their files and devices.
struct Opened {
    exported: Vec<Exported>,
    held: Vec<Arc<dyn Backing>>,
}

/// Creates missing files, names subsystems and namespaces, and locks the files and devices.
async fn open(settings: &Settings) -> anyhow::Result<Opened> {
    let mut opened = Opened { exported: Vec::new(), held: Vec::new() };
    for subsystem in &settings.subsystems {
        let mut stores = Vec::new();
        let mut persistent = Vec::new();
        let mut next = 1;
        for namespace in &subsystem.namespaces {
            ensure!(
                !namespace.has_reservations_file(),
                "reservations= is for our own target: the kernel's keeps none over a restart"
            );
            ensure!(
                !namespace.has_uncorrectable_file(),
                "uncorrectable= is for our own target: the kernel's does not have the command"
            );
            namespace.prepare().await?;
            let uuid = namespace.uuid().await?;
            let nsid = namespace.nsid.unwrap_or(next);
            next = nsid + 1;
            let (bytes, block_bytes) = match namespace.path() {
                Some(_) => {
                    persistent.push(uuid);
                    let held = namespace.open(uuid).await?;
                    let geometry = held.geometry();
                    opened.held.push(held);
                    (geometry.size(), geometry.block_size)
                }
                None => namespace.memory()?,
            };
            let path = namespace.path().map(Path::to_path_buf);
            let is_buffered = namespace.is_buffered();
            stores.push(Store { nsid, uuid, path, bytes, block_bytes, is_buffered });
        }
        let nqn = subsystem.nqn(&persistent)?;
        let serial = subsystem.serial(&nqn);
        opened.exported.push(Exported { nqn, serial, stores });
    }
    Ok(opened)
}

/// Prints where the kernel listens and what it exports, in the form of our own target.
fn print_started(settings: &Settings, fabric: Fabric, exported: &[Exported], is_json: bool) {
    if is_json {
        let line = json!({
            "engine": "kernel",
            "fabric": fabric.name(),
            "listening": settings.listen,
            "subsystems": exported.iter().map(|subsystem| json!({
                "nqn": subsystem.nqn.as_str(),
                "serial": subsystem.serial,
                "namespaces": subsystem.stores.iter().map(|store| json!({
                    "nsid": store.nsid,
                    "uuid": store.uuid,
                    "size_bytes": store.bytes,
                    "block_bytes": store.block_bytes,
                })).collect::<Vec<_>>(),
            })).collect::<Vec<_>>(),
        });
        println!("{line}");
        return;
    }
    for address in &settings.listen {
        for subsystem in exported {
            println!(
                "listening on {address} nqn {} (the kernel's target, {})",
                subsystem.nqn,
                fabric.name()
            );
        }
    }
    for subsystem in exported {
        for store in &subsystem.stores {
            println!(
                "namespace {} of {}: {} in blocks of {}, uuid {}",
                store.nsid,
                subsystem.nqn,
                size::format(store.bytes),
                size::format(u64::from(store.block_bytes)),
                store.uuid,
            );
        }
    }
}
