//! `tsumugi scrub`: reads all data of a running pool at a bounded rate and compares it with its
//! checksums.

use crate::deploy::admin::Access;
use crate::deploy::job::JobDir;
use crate::deploy::scrub_record::{ScrubRecord, Tally, json_of};
use crate::deploy::size::{human, parse};
use crate::deploy::state::State;
use crate::print::words;
use crate::scrub::Progress;
use crate::scrub::reader::{self, Look};
use crate::signals;
use ::meta::check::Finding;
use anyhow::{Context, bail};
use clap::Args;
use protocol::admin::{Answer, Call};
use reactor::Runtime;
use std::cell::Cell;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;

/// Exit code: not all data was read.
const UNREAD: u8 = 2;

/// Read all data of a running pool at a bounded rate, and compare it with its checksums.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
    tsumugi scrub training --rate 50M          beside the job's work
    tsumugi scrub training --json > found      an object per finding

Reads each file as a mount reads it: over the network, from all devices. If a block does not match \
its checksum, the scrub reads it once more, then reports its device, block, file and bytes. \
`tsumugi status` shows the progress and the findings, also after the end. Changes nothing. The \
scrub may leave out data that is written while it runs. It reads a file that is being written \
after a commit, as any reader on another node does.

It runs on the machine of the metadata service, and ends with the job. SIGINT and SIGTERM end it \
cleanly.

Exit codes:
    0  all data was read, and nothing was found
    1  findings are printed
    2  wrong usage, or not all data was read; the reason is printed")]
pub(crate) struct ScrubArgs {
    /// Name of the job (default: `$TSUMUGI_JOB`, else the Slurm job's number, else "default")
    #[arg(value_name = "JOB")]
    job: Option<String>,
    /// Bytes to read per second, at most, for example 50M [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = parse)]
    rate: Option<u64>,
    /// Base of the jobs' directories [default: the user's runtime directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print JSON: an object per finding
    #[arg(long)]
    json: bool,
}

/// Runs `tsumugi scrub`.
pub(crate) fn run(args: &ScrubArgs) -> ExitCode {
    crate::confine::keep_files_private();
    match scrub(args) {
        Ok((tally, 0)) => {
            eprintln!("{}: nothing was found", done(&tally));
            ExitCode::SUCCESS
        }
        Ok((tally, count)) => {
            let noun = if count == 1 { "finding" } else { "findings" };
            eprintln!("{}: {count} {noun}", done(&tally));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("tsumugi: not all data was read: {}", words(&error));
            ExitCode::from(UNREAD)
        }
    }
}

/// Returns the line that sums up the bytes read and the blocks compared.
pub(super) fn done(tally: &Tally) -> String {
    let Tally { files, read_bytes, compared_blocks, unsummed_blocks, repaired_blocks } = tally;
    let read = human(*read_bytes);
    let unsummed = match unsummed_blocks {
        0 => String::new(),
        count => format!(", {count} without a checksum"),
    };
    let repaired = match repaired_blocks {
        0 => String::new(),
        count => format!(", {count} changed on the way and right when read again"),
    };
    format!("{files} files, {read} read, {compared_blocks} blocks compared{unsummed}{repaired}")
}

/// Prints a finding.
pub(super) fn print(finding: &Finding, as_json: bool) {
    if as_json {
        println!("{}", json_of(finding));
    } else {
        println!("{}: {}", finding.path.as_deref().unwrap_or("-"), finding.what);
    }
}

fn scrub(args: &ScrubArgs) -> anyhow::Result<(Tally, u64)> {
    let dir = JobDir::new(args.job.as_deref(), args.dir.as_deref())?;
    let Some(state) = State::read(&dir)? else {
        bail!("there is no job {} ({})", dir.job(), dir.path().display());
    };
    if let Some(other) = ScrubRecord::read(&dir)?.filter(ScrubRecord::is_running) {
        bail!("a scrub of job {} runs already (process {})", dir.job(), other.process.pid);
    }
    let access = access(&dir, &state)?;
    let mut record = ScrubRecord::begin(args.rate)?;
    record.write(&dir)?;
    let mut signals = signals::watch(&[])?;
    let interrupted = Rc::new(Cell::new(false));
    let mut progress = Progress::new();
    let watch = |look: Look| {
        for finding in &look.found {
            record.note(finding);
            progress.aside(|| print(finding, args.json));
        }
        (record.tally, record.live_bytes) = (look.tally, look.live_bytes);
        progress.show(look.tally.read_bytes, look.live_bytes, record.findings_count);
        if !dir.join("state.json").exists() {
            bail!("the job has ended");
        }
        if interrupted.get() {
            bail!("it was interrupted");
        }
        record.write(&dir)
    };
    let result = Runtime::new(&reactor::Config::default())?.block_on(async {
        let noted = Rc::clone(&interrupted);
        // The watch sees this, and the session ends cleanly.
        reactor::spawn(async move {
            signals::termination(&mut signals).await;
            noted.set(true);
        });
        read(&access, args.rate, watch).await
    });
    progress.end();
    record.end(result.as_ref().err().map(words));
    if dir.path().exists() {
        record.write(&dir)?;
    }
    Ok((result?, record.findings_count))
}

/// Returns how to reach the service of a job, which must run on this machine.
pub(super) fn access(dir: &JobDir, state: &State) -> anyhow::Result<Access> {
    let Some(meta) = &state.meta else {
        bail!(
            "the metadata service of job {} is not on this machine: run this on its machine",
            dir.job()
        );
    };
    Access::new(meta, &dir.join("secret"))
}

/// Reads all data of a pool.
pub(super) async fn read(
    access: &Access,
    rate: Option<u64>,
    watch: impl FnMut(Look) -> anyhow::Result<()>,
) -> anyhow::Result<Tally> {
    let status = access.call(&Call::Status).await?;
    let Answer::Status { plain, .. } = status else {
        bail!("the metadata service answered {status:?}")
    };
    let read = reader::read_all(access, !plain.is_empty(), rate, watch);
    Box::pin(read).await.context("cannot read the pool")
}
