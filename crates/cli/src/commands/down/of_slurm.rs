//! `tsumugi down --slurm-job`: what an epilog runs on each node.
//!
//! Only this machine's part is ended: other machines run an epilog of their own, and ssh between
//! nodes may be forbidden.

use super::{DownArgs, exit_code};
use crate::deploy::cleanup::{self, Report};
use crate::deploy::job::JobDir;
use crate::deploy::jobs::{self, Job};
use crate::deploy::others;
use crate::deploy::users::{GRACE, User};
use crate::output::{plain, print_json};
use crate::print::words;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::process::{ExitCode, Output};
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
    let base = args.find.job.base().map(std::path::absolute).transpose()?;
    let is_wanted =
        |found: &Job| found.state.as_ref().is_some_and(|state| state.slurm_job == Some(job));
    let mut ended = Ended { slurm_job: job, ..Ended::default() };
    let mut all = Report::default();
    for found in jobs::own(base.as_deref()).0.into_iter().filter(is_wanted) {
        let cleaned = JobDir::at(&found.path)
            .and_then(|dir| cleanup::clean(&dir, Instant::now() + args.deadline, false));
        match cleaned {
            Ok(report) => all.merge(&found.name, report),
            Err(error) => all.left.push(format!("{}: {}", found.name, words(&error))),
        }
        ended.jobs.push(found.name);
    }
    if base.is_none() && rustix::process::geteuid().is_root() {
        let others = others::jobs();
        all.left.extend(others.trouble);
        let users: BTreeSet<_> =
            others.jobs.iter().filter(|found| is_wanted(found)).map(|f| f.user).collect();
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
    let user = User::of_uid(user);
    let mut arguments: Vec<OsString> = vec!["down".into(), "--json".into(), "--slurm-job".into()];
    arguments.push(job.to_string().into());
    arguments.extend(["--deadline".into(), format!("{}ms", args.deadline.as_millis()).into()]);
    let output = user.run(&arguments, args.deadline + GRACE)?;
    let there = said(&output)?;
    ended.jobs.extend(there.jobs);
    let report = Report { was_there: true, killed: there.killed, left: there.left };
    all.merge(&user.name, report);
    Ok(())
}

/// Returns what a program that ran as another user has printed, fit for root's terminal: that user
/// can make it print anything.
fn said(output: &Output) -> anyhow::Result<Ended> {
    let there: Ended = serde_json::from_slice(&output.stdout).map_err(|_| {
        anyhow::anyhow!("{}", plain(String::from_utf8_lossy(&output.stderr).trim()))
    })?;
    let fit = |texts: Vec<String>| texts.iter().map(|text| plain(text)).collect();
    let Ended { slurm_job, jobs, killed, left } = there;
    Ok(Ended { slurm_job, jobs: fit(jobs), killed: fit(killed), left: fit(left) })
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    /// Goal: nothing that a user's program prints controls root's terminal.
    #[test]
    fn users_words_are_plain() {
        let output = |stdout: &str, stderr: &str| Output {
            status: ExitStatus::from_raw(0),
            stdout: stdout.into(),
            stderr: stderr.into(),
        };
        let text = r#"["a\u001b]0;x\u0007b\u009b1m"]"#;
        let json = format!(r#"{{"slurm_job":1,"jobs":{text},"killed":{text},"left":{text}}}"#);
        let there = said(&output(&json, "")).unwrap();
        for texts in [there.jobs, there.killed, there.left] {
            assert_eq!(texts, ["a?]0;x?b?1m"]);
        }
        let error = said(&output("", "no \u{1b}]0;x\u{7}")).unwrap_err().to_string();
        assert_eq!(error, "no ?]0;x?");
    }
}
