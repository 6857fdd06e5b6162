//! `tsumugi list`: the jobs of this machine.

use crate::deploy::jobs::{self, Condition, Job};
use crate::deploy::others;
use crate::deploy::users::User;
use crate::output::{plain, print_json};
use clap::Args;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// List the jobs on this machine, including those that a reboot or crash left.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
    tsumugi list                   this user's jobs; as root, all users' jobs
    tsumugi list --json            for programs

States:
    running     all its processes on this machine run
    damaged     some of them are dead: `tsumugi status` shows which, `tsumugi restart` starts them \
    again
    starting    `tsumugi up` is creating it
    unfinished  `tsumugi up` was killed: end the job with `tsumugi down`
    remote      its nodes are on other machines
    elsewhere   it was started in another PID namespace, for example on a container's host
    dead        no process is left: `tsumugi gc` removes the rest

Exit codes:
    0  listed
    1  something could not be read; the rest is listed
    2  wrong usage")]
pub(crate) struct ListArgs {
    /// Only jobs with their directory in DIR
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Only jobs of this user
    #[arg(long, value_name = "USER")]
    owner: Option<String>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Print what root asks of a user
    #[arg(long, hide = true)]
    for_root: bool,
}

/// Runs `tsumugi list`.
pub(crate) fn run(args: &ListArgs) -> anyhow::Result<ExitCode> {
    if args.for_root {
        print_json(&serde_json::to_value(jobs::own_for_root())?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let base = args.dir.as_deref().map(std::path::absolute).transpose()?;
    let (mut jobs, mut trouble) = jobs::own(base.as_deref());
    if base.is_none() && rustix::process::geteuid().is_root() {
        let found = others::jobs();
        jobs.extend(found.jobs);
        trouble.extend(found.trouble);
    }
    if let Some(owner) = args.owner.as_deref().map(User::find).transpose()? {
        jobs.retain(|job| job.user == owner.uid || made_for(job) == Some(owner.name.as_str()));
    }
    if args.json {
        print_json(&json!({ "jobs": jobs.iter().map(value).collect::<Vec<_>>(),
            "trouble": &trouble }))?;
    } else {
        print(&jobs);
    }
    for text in &trouble {
        eprintln!("tsumugi: {}", plain(text));
    }
    Ok(if trouble.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn made_for(job: &Job) -> Option<&str> {
    job.state.as_ref()?.owner.as_ref().map(|owner| owner.name.as_str())
}

fn nodes(job: &Job) -> usize {
    job.state.as_ref().map_or(0, |state| state.nodes.len() + state.hosts.len())
}

fn value(job: &Job) -> Value {
    json!({
        "job": job.name,
        "owner": User::name_of(job.user),
        "uid": job.user,
        "made_for": made_for(job),
        "state": job.condition,
        "nodes": nodes(job),
        "dir": job.path,
        "mounts": job.state.as_ref().map_or_else(Vec::new, |state| {
            state.nodes.iter().map(|node| node.mount.clone()).collect()
        }),
        "devices": job.state.as_ref().map_or_else(Vec::new, |state| {
            state.nodes.iter().filter_map(|node| node.device.clone()).collect()
        }),
    })
}

fn print(jobs: &[Job]) {
    if jobs.is_empty() {
        println!("there are no jobs");
        return;
    }
    println!("{:20} {:12} {:10} {:>5}  directory", "job", "owner", "state", "nodes");
    for job in jobs {
        let state = match job.condition {
            Condition::Running => "running",
            Condition::Damaged => "damaged",
            Condition::Starting => "starting",
            Condition::Unfinished => "unfinished",
            Condition::Remote => "remote",
            Condition::Elsewhere => "elsewhere",
            Condition::Dead => "dead",
        };
        let owner = match made_for(job) {
            Some(user) => format!("{} for {user}", User::name_of(job.user)),
            None => User::name_of(job.user),
        };
        let path = plain(&job.path.to_string_lossy());
        let count = nodes(job);
        println!("{:20} {:12} {state:10} {count:>5}  {path}", plain(&job.name), plain(&owner));
    }
}
