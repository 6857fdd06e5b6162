//! `tsumugi doctor`: checks whether machines are ready for a job.

use crate::deploy::hosts;
use crate::deploy::reach::ReachArgs;
use crate::deploy::remote::Errand;
use crate::deploy::site::{SIZE_DEFAULT, Site};
use crate::deploy::size;
use crate::deploy::state::HostState;
use crate::doctor::{self, Level, NodeStorage, Report};
use crate::output::print_json;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Exit code: something is slow or unsafe, nothing is missing.
const WARNED: u8 = 3;
/// How long the checks of a machine may take.
const CHECK_WITHIN: Duration = Duration::from_mins(2);

/// Check machines: what is missing, slow or unsafe for a job, and how to fix it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
    tsumugi doctor                               check this machine
    tsumugi doctor --nodes node1,node2,node3     check these by ssh, and compare them
    tsumugi doctor --device-dir /nvme --size 500G

Checks the kernel, io_uring, FUSE, limits, the site's file, leftovers of dead jobs, and a node's \
storage. Measures the storage for about a second: in a directory it writes 64 MiB to an unnamed file, a \
device it only reads.

Exit codes:
    0  all is well
    1  something is missing: `tsumugi up` would fail
    2  wrong usage
    3  nothing is missing, but something is slow or unsafe")]
pub(crate) struct DoctorArgs {
    /// Machines to reach by ssh: a file, or names separated by commas, as for `tsumugi up`
    #[arg(long, value_name = "FILE|HOST,...")]
    nodes: Option<String>,
    /// Directory for backing files [default: the site's devices, else /var/tmp]
    #[arg(long, value_name = "DIR")]
    device_dir: Option<PathBuf>,
    /// Block device, file or directory, or a pattern that matches one
    #[arg(long, value_name = "PATTERN", conflicts_with = "device_dir")]
    device: Vec<String>,
    /// Size of a node's backing file [default: the site's, else 2G]
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    size: Option<u64>,
    /// Skip the measurement of storage
    #[arg(long)]
    no_measure: bool,
    #[command(flatten)]
    reach: ReachArgs,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs `tsumugi doctor`.
pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let reports = match &args.nodes {
        Some(nodes) => ask(args, nodes)?,
        None => vec![doctor::of_machine(&args.storage(), !args.no_measure)],
    };
    match (args.json, &args.nodes, reports.as_slice()) {
        (true, None, [report]) => print_json(&serde_json::to_value(report)?)?,
        (true, ..) => print_json(&serde_json::json!({ "nodes": reports }))?,
        (false, _, reports) => reports.iter().for_each(print),
    }
    Ok(match reports.iter().map(Report::level).max().unwrap_or(Level::Ok) {
        Level::Ok => ExitCode::SUCCESS,
        Level::Slow | Level::Unsafe => ExitCode::from(WARNED),
        Level::Missing => ExitCode::FAILURE,
    })
}

impl DoctorArgs {
    /// Returns the storage that `up` would give a node of this machine.
    fn storage(&self) -> NodeStorage {
        // An unusable site file is a separate finding.
        let size = self.size.or(Site::read().ok().and_then(|site| site.defaults.size));
        NodeStorage {
            patterns: self.device.clone(),
            directory: self.device_dir.clone(),
            size: size.unwrap_or(SIZE_DEFAULT),
        }
    }
}

/// Runs the checks on the machines.
fn ask(args: &DoctorArgs, nodes: &str) -> anyhow::Result<Vec<Report>> {
    let hosts = hosts::read(nodes)?;
    let reach = args.reach.clone().with(&Site::read()?.defaults);
    let reached: Vec<_> = hosts
        .iter()
        .map(|host| HostState {
            host: host.ssh_name.clone(),
            name: host.name.clone(),
            ssh: reach.ssh(),
            binary: reach.remote_binary(),
            base: None,
            run: None,
            fan_out: reach.fan_out(),
        })
        .collect();
    let mut words = vec!["doctor".to_string(), "--json".into()];
    if args.no_measure {
        words.push("--no-measure".into());
    }
    for pattern in &args.device {
        words.extend(["--device".into(), pattern.clone()]);
    }
    if let Some(directory) = &args.device_dir {
        words.extend(["--device-dir".into(), directory.to_string_lossy().into_owned()]);
    }
    if let Some(size) = args.size {
        words.extend(["--size".into(), size.to_string()]);
    }
    Ok(doctor::of_hosts(&hosts, &reached, &Errand { job: None, words, within: CHECK_WITHIN }))
}

fn print(report: &Report) {
    println!("{}", report.host);
    for finding in &report.findings {
        println!("  {:<8} {:<13} {}", finding.level.name(), finding.what, finding.found);
        if let Some(fix) = &finding.fix {
            println!("  {:<8} {:<13} fix: {fix}", "", "");
        }
    }
}
