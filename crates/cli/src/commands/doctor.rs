//! `tsumugi doctor`: what machines lack for a job.

use crate::deploy::hosts;
use crate::deploy::output::print_json;
use crate::deploy::size;
use crate::deploy::state::HostState;
use crate::doctor::{self, Level, Place, Report};
use crate::site::Site;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

/// Something is slow or unsafe, nothing is missing.
const WARNED: u8 = 3;
/// Bytes of a node's backing file, as of `tsumugi up`.
const SIZE_DEFAULT: u64 = 2 << 30;

/// Look at machines: what is missing, slow or unsafe for a job, and how to mend it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
    tsumugi doctor                               this machine
    tsumugi doctor --nodes node1,node2,node3     these, by ssh, and whether they fit together
    tsumugi doctor --device-dir /nvme --size 500G

Looks at kernel, io_uring, FUSE, limits, the site's file, what dead jobs left, and where a node would keep
its data. Measures that for about a second: writes 64 MiB to a file without a name in a directory, and
only reads from a device.

Exit codes:
    0  all is well
    1  something is missing: `tsumugi up` would fail
    2  wrong usage
    3  nothing is missing, but something is slow or unsafe")]
pub(crate) struct DoctorArgs {
    /// Machines reached by ssh: a file, or names separated by commas, as of `tsumugi up`
    #[arg(long, value_name = "FILE|HOST,...")]
    nodes: Option<String>,
    /// Directory for backing files [default: the site's devices, else /var/tmp]
    #[arg(long, value_name = "DIR")]
    device_dir: Option<PathBuf>,
    /// Block device, file or directory, or a pattern of some
    #[arg(long, value_name = "PATTERN", conflicts_with = "device_dir")]
    device: Vec<String>,
    /// Size of a node's backing file [default: the site's, else 2G]
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    size: Option<u64>,
    /// Do not measure storage
    #[arg(long)]
    no_measure: bool,
    /// The command that reaches a host [default: the site's, else ssh]
    #[arg(long, value_name = "COMMAND")]
    ssh: Option<String>,
    /// The program on the hosts [default: the site's, else tsumugi]
    #[arg(long, value_name = "PATH")]
    remote_binary: Option<String>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Runs `tsumugi doctor`.
pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let reports = match &args.nodes {
        Some(nodes) => ask(args, nodes)?,
        None => vec![doctor::of_machine(&args.place(), !args.no_measure)],
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
    /// What a node of this machine would be given.
    fn place(&self) -> Place {
        // A site's file that cannot be used is a finding of its own.
        let size = self.size.or(Site::read().ok().and_then(|site| site.defaults.size));
        Place {
            patterns: self.device.clone(),
            directory: self.device_dir.clone(),
            size: size.unwrap_or(SIZE_DEFAULT),
        }
    }
}

/// Asks the machines.
fn ask(args: &DoctorArgs, nodes: &str) -> anyhow::Result<Vec<Report>> {
    let hosts = hosts::read(nodes)?;
    let defaults = Site::read()?.defaults;
    let ssh = args.ssh.clone().or(defaults.ssh).unwrap_or_else(|| "ssh".into());
    let binary =
        args.remote_binary.clone().or(defaults.remote_binary).unwrap_or_else(|| "tsumugi".into());
    let reached: Vec<_> = hosts
        .iter()
        .map(|host| HostState {
            host: host.ssh_name.clone(),
            name: host.name.clone(),
            ssh: ssh.split_ascii_whitespace().map(String::from).collect(),
            binary: binary.clone(),
            base: None,
            run: None,
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
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    Ok(doctor::of_hosts(&hosts, &reached, &words))
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
