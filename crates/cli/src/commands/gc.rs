//! `tsumugi gc`: removes what dead jobs left.

use crate::deploy::gc::{self, Collected};
use crate::deploy::others;
use crate::deploy::users::{GRACE, User};
use crate::output::{plain, print_json};
use crate::print::words;
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Remove what dead jobs left, for example after a reboot.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
    tsumugi gc --dry-run           show what would be removed
    tsumugi gc                     remove it

Removes the backing files, stores, dead mounts, records and directories of this user's jobs that \
have no process on this machine. As root it does so for all users' jobs, with the rights of each \
job's user. Never touches a job with a running process. Files that `up --keep-devices` kept stay.

Exit codes:
    0  nothing removable is left
    1  something could not be removed; the output names it
    2  wrong usage")]
pub(crate) struct GcArgs {
    /// Show what would be removed, and remove nothing
    #[arg(long, short = 'n')]
    dry_run: bool,
    /// Only jobs with their directory in DIR
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Give up on a job after this time
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    deadline: Duration,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs `tsumugi gc`.
pub(crate) fn run(args: &GcArgs) -> anyhow::Result<ExitCode> {
    let base = args.dir.as_deref().map(std::path::absolute).transpose()?;
    let mut all = gc::collect(base.as_deref(), args.dry_run, args.deadline);
    if base.is_none() && rustix::process::geteuid().is_root() {
        collect_of_others(args, &mut all);
    }
    if args.json {
        print_json(&serde_json::to_value(&all)?)?;
    } else {
        print(args, &all);
    }
    Ok(if all.left.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Removes what other users' jobs left, with each user's rights.
fn collect_of_others(args: &GcArgs, all: &mut Collected) {
    let mut words: Vec<OsString> = vec!["gc".into(), "--json".into()];
    words.extend(args.dry_run.then(|| "--dry-run".into()));
    for uid in others::users() {
        match collect_as(uid, &words, args.deadline + GRACE) {
            Ok((name, there)) => {
                let named = |text: String| format!("{name}: {text}");
                all.removed.extend(there.removed.into_iter().map(named));
                all.kept.extend(there.kept.into_iter().map(named));
                all.left.extend(there.left.into_iter().map(named));
            }
            Err(error) => all.left.push(format!("user {uid}: {}", self::words(&error))),
        }
    }
}

fn collect_as(
    uid: u32,
    words: &[OsString],
    within: Duration,
) -> anyhow::Result<(String, Collected)> {
    let user = User::of_uid(uid);
    let output = user.run(words, within)?;
    let there = serde_json::from_slice(&output.stdout).map_err(|_| {
        anyhow::anyhow!("{}", plain(String::from_utf8_lossy(&output.stderr).trim()))
    })?;
    Ok((user.name, there))
}

fn print(args: &GcArgs, all: &Collected) {
    let verb = if args.dry_run { "would remove" } else { "removed" };
    for item in &all.removed {
        println!("{verb} {}", plain(item));
    }
    for item in &all.kept {
        println!("kept {}", plain(item));
    }
    for item in &all.left {
        eprintln!("tsumugi: left behind: {}", plain(item));
    }
    if *all == Collected::default() {
        println!("nothing is left of dead jobs");
    }
}
