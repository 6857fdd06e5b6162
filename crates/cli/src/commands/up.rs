//! `tsumugi up`: creates a job's file system from its nodes' SSDs.

use crate::deploy::cleanup;
use crate::deploy::data_fabric::{self, DataFabric, Kind, Look, Wanted};
use crate::deploy::job::JobDir;
use crate::deploy::machine::Machine;
use crate::deploy::options::{Netns, Outcome, UpArgs, show};
use crate::deploy::plan::Plan;
use crate::deploy::remote::{self, Launcher};
use crate::deploy::site::{self, Site};
use crate::deploy::stop::{Stop, Stopped};
use crate::output::{plain, print_json};
use crate::print::words;
use anyhow::bail;
use serde_json::json;
use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Runs `tsumugi up`.
pub(crate) fn run(args: &UpArgs) -> anyhow::Result<ExitCode> {
    crate::confine::keep_files_private();
    let dir = args.job.dir()?;
    let stop = Stop::on_signals()?;
    if let Some(node) = &args.agent {
        return Ok(remote::serve(&dir, &stop, node));
    }
    match make(args, &dir, &stop) {
        Ok(outcome) => report(args, &dir, &outcome),
        Err(error) => {
            if !error.is::<Stopped>() {
                return Err(error);
            }
            eprintln!("tsumugi: {error}; undone");
            Ok(ExitCode::from(130))
        }
    }
}

/// Creates a job on this machine or on others.
pub(crate) fn make(args: &UpArgs, dir: &JobDir, stop: &Stop) -> anyhow::Result<Outcome> {
    let args = args.clone().with(&Site::read()?);
    if args.insecure {
        eprintln!(
            "tsumugi: --insecure has no effect: data between nodes is encrypted. Use --plain-data \
            to send it in the clear"
        );
    }
    match &args.nodes {
        Some(nodes) => remote::up(&args, dir, &Launcher::Ssh(nodes.clone()), stop),
        None if args.slurm => remote::up(&args, dir, &Launcher::slurm_here()?, stop),
        None => up_local(&args, dir, stop),
    }
}

fn up_local(args: &UpArgs, dir: &JobDir, stop: &Stop) -> anyhow::Result<Outcome> {
    let count = usize::from(args.local.unwrap_or(1));
    let (data, data_fabric) = local_fabric(args)?;
    let has_fabric = data.is_none() && args.has_fabric()?;
    let plan = Plan { data_fabric, ..args.plan(has_fabric, count, data)? };
    let result = drive_local(args, dir, plan, stop);
    if result.is_err() {
        cleanup::undo(dir);
    }
    result
}

/// Returns the fabric for data between nodes of this machine. With RDMA they share an address of the
/// machine, because a process uses RDMA only in its own network namespace.
fn local_fabric(args: &UpArgs) -> anyhow::Result<(Option<IpAddr>, DataFabric)> {
    if let Some(choice) = data_fabric::of_options(args.fabric, args.plain_data)? {
        return Ok((None, choice));
    }
    if args.netns == Netns::Always {
        let why = "network namespaces (--netns) have no RDMA";
        if args.fabric == Wanted::Rdma {
            bail!("--fabric rdma: {why}: leave out --netns");
        }
        return Ok((None, DataFabric { transport: Kind::Tcp, reason: why.into() }));
    }
    let data = Site::read()?.data_address();
    let (address, device) = match data_fabric::device_here(data) {
        Ok((address, device)) => (address, Ok(device)),
        Err(why) => (Ipv4Addr::LOCALHOST.into(), Err(why)),
    };
    let look = Look { node: site::host_name(), address, device };
    let choice = data_fabric::of_nodes(args.fabric, &[look])?;
    Ok(((choice.transport == Kind::Rdma).then_some(address), choice))
}

fn drive_local(args: &UpArgs, dir: &JobDir, plan: Plan, stop: &Stop) -> anyhow::Result<Outcome> {
    let start = Instant::now();
    let data_fabric = plan.data_fabric.clone();
    let mut machine = Machine::begin(dir, plan, stop.clone())?;
    let bar = args.bar();
    machine.prepare(|done, all| show(&bar, done, all))?;
    bar.finish_and_clear();
    let prepared = start.elapsed();
    let start = Instant::now();
    let deadline = start + args.ready_within;
    match machine.connect() {
        Err(error) if args.netns == Netns::Auto && !error.is::<Stopped>() => {
            eprintln!("tsumugi: nodes use loopback ports: {}", words(&error));
            machine.leave_fabric()?;
        }
        result => result?,
    }
    let meta = machine.start_meta(deadline)?;
    let nodes = machine.start_nodes(meta, deadline)?;
    machine.finish()?;
    Ok(Outcome { nodes, prepared, ready: start.elapsed(), data_fabric })
}

fn report(args: &UpArgs, dir: &JobDir, outcome: &Outcome) -> anyhow::Result<ExitCode> {
    if args.json {
        print_json(&json!({
            "job": dir.job(),
            "dir": dir.path(),
            "prepare_seconds": outcome.prepared.as_secs_f64(),
            "ready_seconds": outcome.ready.as_secs_f64(),
            "fabric": outcome.data_fabric,
            "nodes": outcome.nodes,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if outcome.prepared > Duration::from_millis(100) {
        println!("backing files written in {:.2} s", outcome.prepared.as_secs_f64());
    }
    let (count, seconds) = (outcome.nodes.len(), outcome.ready.as_secs_f64());
    println!("job {}: {count} nodes ready in {seconds:.2} s", dir.job());
    if args.fabric != Wanted::Tcp {
        let DataFabric { transport, reason } = &outcome.data_fabric;
        println!("data between nodes travels over {transport}: {}", plain(reason));
    }
    for node in &outcome.nodes {
        let transport = node.transport.as_deref().unwrap_or("-");
        let mount = node.mount.display();
        println!("  {}  mount {mount}  target {}  transport {transport}", node.name, node.target);
    }
    Ok(ExitCode::SUCCESS)
}
