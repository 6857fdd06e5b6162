//! `tsumugi cp`: stages files in and out.

use crate::deploy::size::human;
use crate::deploy::stop::Stop;
use crate::output::print_json;
use crate::staging::{self, Options, Tally};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Copy files and trees with many threads, in or out.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
    tsumugi cp -r --checksum inputs /mnt/job/           stage in
    tsumugi cp -r --checksum /mnt/job/results .         stage out

Keeps modes, times, symbolic and hard links, holes, extended attributes (user.*; as root also trusted.* \
and capabilities) and, as root, owners. Does not keep access control lists. A file gets its name when it \
is complete, so an interrupted copy leaves no partial file under it.

Exit codes:
    0    everything was copied
    1    something could not be copied; the output names it
    2    wrong usage
    130  stopped by Ctrl-C or a signal")]
pub(crate) struct CpArgs {
    /// Files and directories to copy
    #[arg(value_name = "SRC", required = true)]
    sources: Vec<PathBuf>,
    /// Destination: a directory to copy into, otherwise the new name
    #[arg(value_name = "DST")]
    target: PathBuf,
    /// Copy directories with their content
    #[arg(short, long)]
    recursive: bool,
    /// Number of copying threads
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Read each copy back and compare its BLAKE3 digest with that of the source
    #[arg(long)]
    checksum: bool,
    /// Do not copy extended attributes
    #[arg(long)]
    no_xattrs: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs `tsumugi cp`.
pub(crate) fn run(args: &CpArgs) -> anyhow::Result<ExitCode> {
    let stop = Stop::on_signals()?;
    let pairs = staging::pairs(&args.sources, &args.target)?;
    let options = Options {
        threads: usize::from(args.threads),
        checksum: args.checksum,
        recursive: args.recursive,
        xattrs: !args.no_xattrs,
    };
    let tally = Tally::default();
    let start = Instant::now();
    let bar = if args.json { ProgressBar::hidden() } else { bar() };
    std::thread::scope(|scope| {
        let copying = scope.spawn(|| staging::copy(&pairs, &options, &tally, &stop));
        while !copying.is_finished() {
            bar.set_length(tally.bytes_found.load(Ordering::Relaxed));
            bar.set_position(tally.bytes_done.load(Ordering::Relaxed));
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    bar.finish_and_clear();
    report(args, &tally, &stop, start.elapsed())
}

fn report(args: &CpArgs, tally: &Tally, stop: &Stop, taken: Duration) -> anyhow::Result<ExitCode> {
    let summary = tally.summary();
    let seconds = taken.as_secs_f64();
    let rate = (summary.bytes as f64 / seconds.max(1e-9)) as u64;
    if args.json {
        print_json(&json!({ "files": summary.files, "bytes": summary.bytes, "seconds": seconds,
            "bytes_per_second": rate, "verified": summary.verified,
            "failures": summary.failures, "errors": summary.errors }))?;
    } else {
        for failure in &summary.errors {
            eprintln!("tsumugi: {}: {}", failure.path, failure.error);
        }
        let more = summary.failures - summary.errors.len() as u64;
        if more > 0 {
            eprintln!("tsumugi: and {more} more that could not be copied");
        }
        let verified =
            if args.checksum { format!(", {} verified", summary.verified) } else { String::new() };
        println!(
            "{} files, {} in {seconds:.2} s: {}/s{verified}",
            summary.files,
            human(summary.bytes),
            human(rate)
        );
    }
    if let Err(stopped) = stop.check() {
        eprintln!("tsumugi: {stopped}: the copy is not complete");
        return Ok(ExitCode::from(130));
    }
    Ok(if summary.failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    let form = "{bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(form) {
        bar.set_style(style);
    }
    bar
}
