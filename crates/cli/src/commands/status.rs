//! `tsumugi status`: what a job's file system is made of and how it does.
//!
//! Works when parts are dead: what this machine knows is told in any case, and what the metadata
//! service would know is told if it answers.

use crate::deploy::job::JobArgs;
use crate::deploy::output::print_json;
use crate::deploy::remote;
use crate::deploy::size::human;
use crate::deploy::status::Status;
use clap::Args;
use std::process::ExitCode;

/// Show what a job's file system is made of and how it does.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes:
    0  all is well
    1  there is no such job, or its state cannot be read
    2  wrong usage
    3  something is dead or offline; the rest is shown")]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Runs `tsumugi status`.
pub(crate) fn run(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let status = remote::status(&args.job.dir()?)?;
    if args.json {
        print_json(&serde_json::to_value(&status)?)?;
    } else {
        print(&status);
    }
    Ok(if status.is_well() { ExitCode::SUCCESS } else { ExitCode::from(3) })
}

fn print(status: &Status) {
    let state = if status.ready { "ready" } else { "not ready" };
    println!("job {} ({state}) in {}", status.job, status.dir.display());
    if let Some(meta) = &status.meta {
        let address = meta.address.map_or("-".into(), |address| address.to_string());
        println!("metadata service {address}: {}", life(meta.alive, meta.pid));
    }
    if let Some(trouble) = &status.trouble {
        println!("  {trouble}");
    }
    println!("nodes");
    for node in &status.nodes {
        let target = node.target.map_or("-".into(), |address| address.to_string());
        let mount = if node.mounted { "mounted" } else { "not mounted" };
        println!(
            "  {}  {}  target {target}  {} ({mount})",
            node.name,
            life(node.alive, node.pid),
            node.mount.display()
        );
    }
    print_devices(status);
    if let Some(space) = &status.space {
        println!(
            "space {} free of {}, {} inodes",
            human(space.free_bytes),
            human(space.total_bytes),
            space.inodes
        );
    }
    for session in &status.sessions {
        println!(
            "session {} on {}, silent for {} ms",
            session.session, session.node, session.silent_ms
        );
    }
    for file in &status.files_hit {
        println!("file hit: {} (device {})", file.path, file.device);
    }
}

fn print_devices(status: &Status) {
    if status.devices.is_empty() {
        return;
    }
    println!(
        "{:16} {:>9} {:>10} {:>11} {:>13} {:>14} {:>7}",
        "device of",
        "size",
        "read local",
        "read remote",
        "written local",
        "written remote",
        "refused"
    );
    for device in &status.devices {
        println!(
            "{:>3} {:12} {:>9} {:>10} {:>11} {:>13} {:>14} {:>7}{}",
            device.device,
            device.node,
            human(device.size_bytes),
            human(device.read_local_bytes),
            human(device.read_remote_bytes),
            human(device.written_local_bytes),
            human(device.written_remote_bytes),
            device.refused,
            if device.online { "" } else { "  OFFLINE" }
        );
    }
}

fn life(is_alive: bool, pid: Option<i32>) -> String {
    match (is_alive, pid) {
        (true, Some(pid)) => format!("alive (process {pid})"),
        (_, Some(pid)) => format!("DEAD (was process {pid})"),
        (_, None) => "never started".into(),
    }
}
