//! `tsumugi down`: ends a job's file system and removes every trace of it.

mod of_slurm;

use crate::deploy::cleanup::{self, Report};
use crate::deploy::find::{self, FoundJob, JobName};
use crate::deploy::job::{FindArgs, JobDir};
use crate::deploy::jobs;
use crate::deploy::logs::Logs;
use crate::deploy::remote;
use crate::deploy::users::{self, REMOTE_GRACE, User};
use crate::output::{print_json, relay};
use crate::print::words;
use anyhow::bail;
use clap::Args;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Number of a user's jobs that root waits for until their deadlines.
const JOBS_MAX: u32 = 20;

/// End a job's file system and remove every trace of it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
    tsumugi down                          end the job of this shell, see --job
    tsumugi down 4711                     this job; root also finds another user's job, and ends it as \
that user
    tsumugi down --keep-logs ./logs       keep the logs of its services
    tsumugi down --all                    end every job of this user on this machine
    tsumugi down --slurm-job 4711         in an epilog: end this machine's part of the jobs made in \
Slurm job 4711

Nodes commit their data and end. The command kills processes that have not ended after --deadline. \
Then the command removes mounts, network namespaces, backing files and the job's directory, and \
reverts the changes that `up` made to the machine. You can repeat it; it works after any crash and \
after a reboot.

Exit codes:
    0  the job is gone (or did not exist)
    1  a process or file is left; the output names it, and you can repeat `tsumugi down`
    2  wrong usage
    3  the job is gone, but a process had to be killed: its uncommitted data is lost")]
pub(crate) struct DownArgs {
    #[command(flatten)]
    find: FindArgs,
    /// End all jobs of the user
    #[arg(long, conflicts_with_all = ["job", "name"])]
    all: bool,
    /// End this machine's part of all jobs that were created in this Slurm job or its prolog, for
    /// an epilog; as root, of any user
    #[arg(long, value_name = "JOB", conflicts_with_all = ["job", "name", "all"])]
    slurm_job: Option<u32>,
    /// Forget the job even if a part of it cannot be removed; the output names that part
    #[arg(long)]
    forget: bool,
    /// Kill processes that have not ended after this time
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    deadline: Duration,
    /// Keep the logs of the job's processes in this directory, as JOB.PART.log; other machines of
    /// the job keep theirs in a directory of this name
    #[arg(long, value_name = "DIR", conflicts_with = "slurm_job")]
    keep_logs: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs `tsumugi down`.
pub(crate) fn run(args: &DownArgs) -> anyhow::Result<ExitCode> {
    crate::confine::keep_files_private();
    if args.all {
        return down_all(args);
    }
    if let Some(job) = args.slurm_job {
        return of_slurm::down(args, job);
    }
    let dir = match find::job(&args.find)? {
        FoundJob::Own(dir) => dir,
        FoundJob::OfUser(user, name) => {
            return Ok(relay(
                &user.run(&args.words_for(Some(&name)), args.deadline + REMOTE_GRACE)?,
            ));
        }
    };
    refuse_roots(&dir)?;
    let (report, value) = down(args, &dir)?;
    if args.json {
        print_json(&value)?;
    }
    Ok(exit_code(&report))
}

/// Ends all jobs of a user. A job that cannot be ended does not stop the others from ending.
fn down_all(args: &DownArgs) -> anyhow::Result<ExitCode> {
    if let Some(owner) = args.find.owner.as_deref().map(User::find).transpose()?
        && !owner.is_current()
    {
        if !rustix::process::geteuid().is_root() {
            bail!("only root may end the jobs of {}", owner.name);
        }
        return Ok(relay(
            &owner.run(&args.words_for(None), args.deadline * JOBS_MAX + REMOTE_GRACE)?,
        ));
    }
    let base = args.find.job.base().map(std::path::absolute).transpose()?;
    let (jobs, trouble) = jobs::own(base.as_deref());
    let mut all = Report { left: trouble, ..Report::default() };
    let mut values = Vec::new();
    for job in jobs {
        // If the job's head is on this machine too, the head ends the parts on other machines by
        // ssh.
        if !job.path.exists() && job.state.is_none() {
            continue;
        }
        match JobDir::at(&job.path).and_then(|dir| down(args, &dir)) {
            Ok((report, value)) => {
                all.merge(&job.name, report);
                values.push(value);
            }
            Err(error) => {
                eprintln!("tsumugi: job {}: {}", job.name, words(&error));
                all.left.push(format!("{}: {}", job.name, words(&error)));
            }
        }
    }
    if args.json {
        print_json(&json!({ "jobs": values, "left": all.left }))?;
    } else if values.is_empty() && all.left.is_empty() {
        println!("there are no jobs");
    }
    Ok(exit_code(&all))
}

fn down(args: &DownArgs, dir: &JobDir) -> anyhow::Result<(Report, Value)> {
    let start = Instant::now();
    let to = args.keep_logs.as_deref().map(std::path::absolute).transpose()?;
    // Before anything ends: a directory that cannot be used would cost the logs.
    to.as_deref().map(Logs::make_directory).transpose()?;
    let logs = to.as_ref().map(|_| Logs::open(dir)).transpose()?;
    let mut report = remote::down(dir, args.deadline, to.as_deref())?;
    if let (Some(logs), Some(to)) = (logs, &to) {
        let count = logs.keep(dir.job(), to)?;
        if count > 0 && !args.json {
            println!("kept {count} logs in {}", to.display());
        }
    }
    let left = report.left.clone();
    if args.forget && !left.is_empty() {
        cleanup::forget(dir)?;
        report.left.clear();
    }
    let seconds = start.elapsed().as_secs_f64();
    let value = json!({ "job": dir.job(), "seconds": seconds, "was_there": report.was_there,
        "killed": report.killed, "left": left });
    if !args.json {
        for name in &report.killed {
            eprintln!("tsumugi: killed {name}");
        }
        for left in &left {
            eprintln!("tsumugi: left behind: {left}");
        }
        let job = dir.job();
        match (report.was_there, left.is_empty(), args.forget) {
            (false, _, _) => {
                let looked = find::looked_in(&args.find);
                println!("job {job} was not there (looked in {looked})");
            }
            (true, true, _) => println!("job {job} is gone ({seconds:.2} s)"),
            (true, false, true) => println!("job {job} is forgotten ({seconds:.2} s)"),
            (true, false, false) => println!("job {job} is not gone ({seconds:.2} s)"),
        }
    }
    Ok((report, value))
}

/// Refuses to end a job that root created for a user: only root may end it.
fn refuse_roots(dir: &JobDir) -> anyhow::Result<()> {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root && users::is_owned_by(dir.path(), 0) {
        bail!(
            "root made job {} for this user, and only root can end it: `sudo tsumugi down --job \
            {0}`",
            dir.job()
        );
    }
    Ok(())
}

impl DownArgs {
    /// Returns this command's arguments for a `tsumugi` that runs as another user.
    fn words_for(&self, name: Option<&JobName>) -> Vec<OsString> {
        let deadline = format!("{}ms", self.deadline.as_millis());
        let mut words: Vec<OsString> = vec!["down".into(), "--deadline".into(), deadline.into()];
        match name {
            None => words.push("--all".into()),
            Some(JobName { job, base }) => words.extend([
                "--job".into(),
                job.into(),
                "--dir".into(),
                base.clone().into_os_string(),
            ]),
        }
        if let Some(to) = self.keep_logs.as_deref().and_then(|to| std::path::absolute(to).ok()) {
            words.extend(["--keep-logs".into(), to.into_os_string()]);
        }
        for (is_set, option) in [(self.json, "--json"), (self.forget, "--forget")] {
            words.extend(is_set.then(|| option.into()));
        }
        words
    }
}

fn exit_code(report: &Report) -> ExitCode {
    match (report.left.is_empty(), report.killed.is_empty()) {
        (false, _) => ExitCode::FAILURE,
        (true, false) => ExitCode::from(3),
        (true, true) => ExitCode::SUCCESS,
    }
}
