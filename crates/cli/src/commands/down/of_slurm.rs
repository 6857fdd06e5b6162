//! `tsumugi down --slurm-job`: what an epilog runs on each node.
//!
//! Only this machine's part is ended: other machines run an epilog of their own, and ssh between
//! nodes may be forbidden.

use super::{DownArgs, exit_code};
use crate::deploy::cleanup::{self, Report};
use crate::deploy::find::{self, Job};
use crate::deploy::job::JobDir;
use crate::deploy::output::print_json;
use crate::deploy::users::{GRACE, User};
use crate::print::words;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Instant;

/// What `down --slurm-job --json` prints.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Ended {
    slurm_job: u32,
    jobs: Vec<String>,
    killed: Vec<String>,
    left: Vec<String>,
}

/// Ends this machine's part of all jobs of a Slurm job.
pub(super) fn down(args: &DownArgs, job: u32) -> anyhow::Result<ExitCode> {
    let base = args.find.job.dir.as_deref().map(std::path::absolute).transpose()?;
    let is_wanted =
        |found: &Job| found.state.as_ref().is_some_and(|state| state.slurm_job == Some(job));
    let mut ended = Ended { slurm_job: job, ..Ended::default() };
    let mut all = Report::default();
    for found in find::own(base.as_deref()).0.into_iter().filter(is_wanted) {
        let cleaned = JobDir::at(&found.path)
            .and_then(|dir| cleanup::clean(&dir, Instant::now() + args.deadline, false));
        match cleaned {
            Ok(report) => all.merge(&found.name, report),
            Err(error) => all.left.push(format!("{}: {}", found.name, words(&error))),
        }
        ended.jobs.push(found.name);
    }
    if base.is_none() && rustix::process::geteuid().is_root() {
        let others = find::of_others();
        let users: BTreeSet<_> =
            others.iter().filter(|found| is_wanted(found)).map(|f| f.user).collect();
        for user in users {
            if let Err(error) = down_as(args, job, user, &mut ended, &mut all) {
                all.left.push(format!("user {user}: {}", words(&error)));
            }
        }
    }
    ended.killed.clone_from(&all.killed);
    ended.left.clone_from(&all.left);
    print(args, &ended)?;
    Ok(exit_code(&all))
}

/// Ends another user's jobs, as that user.
fn down_as(
    args: &DownArgs,
    job: u32,
    user: u32,
    ended: &mut Ended,
    all: &mut Report,
) -> anyhow::Result<()> {
    let user = User::find(&user.to_string())?;
    let mut arguments: Vec<OsString> = vec!["down".into(), "--json".into(), "--slurm-job".into()];
    arguments.push(job.to_string().into());
    arguments.extend(["--deadline".into(), format!("{}ms", args.deadline.as_millis()).into()]);
    let output = user.run(&arguments, args.deadline + GRACE)?;
    let there: Ended = serde_json::from_slice(&output.stdout)
        .map_err(|_| anyhow::anyhow!("{}", String::from_utf8_lossy(&output.stderr).trim()))?;
    ended.jobs.extend(there.jobs);
    let report = Report { was_there: true, killed: there.killed, left: there.left };
    all.merge(&user.name, report);
    Ok(())
}

fn print(args: &DownArgs, ended: &Ended) -> anyhow::Result<()> {
    if args.json {
        return print_json(&serde_json::to_value(ended)?);
    }
    for name in &ended.killed {
        eprintln!("tsumugi: killed {name}");
    }
    for left in &ended.left {
        eprintln!("tsumugi: left behind: {left}");
    }
    match (ended.jobs.is_empty(), ended.left.is_empty()) {
        (true, true) => println!("Slurm job {} has nothing here", ended.slurm_job),
        (false, true) => println!("gone: {}", ended.jobs.join(", ")),
        (_, false) => {}
    }
    Ok(())
}
