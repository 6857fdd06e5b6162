//! `tsumugi union bench`: repeats the study of copy-up on this machine.
//!
//! C containers, each with a mount namespace and a fresh upper directory of its own over one lower
//! directory, write 4 KiB at a random aligned offset of files that they have not touched before.
//! The clock starts with the first write and ends when everything is durable: after `union sync` of
//! every mount (with `fill=background` after the last file is complete) and syncfs(2) of the upper
//! file system. A clock that stops earlier favours the scheme that leaves the most work undone.
//! Conditions take turns within each round, and the result is the median over the rounds, because
//! the speed of a machine's disk changes from minute to minute.

mod condition;
mod container;
mod counters;
mod file_system;
mod files;
mod ground;
mod measured;
mod report;
mod run;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use eval::Stop;
use signal_hook::consts::{SIGINT, SIGTERM};

pub(in crate::commands) use condition::Condition;
use ground::Grounds;
use report::Row;

pub(super) use container::{ContainerArgs, MountArgs, mount_all, run as run_container};

/// Arguments of `tsumugi union bench`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
    tsumugi union bench --quick --directory /mnt/disk
    tsumugi union bench --containers 1,16,200 --rounds 3 --directory /mnt/disk --json > result

Needs root. The last column of a table is the ratio to the kernel's rate in the same rounds.")]
pub(super) struct BenchArgs {
    /// Directory on the disk to measure
    #[arg(long, default_value = ".")]
    directory: PathBuf,
    /// Numbers of containers that write at the same time, one table for each
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16])]
    containers: Vec<usize>,
    /// Conditions to compare [default: all that are available]
    #[arg(long, value_delimiter = ',')]
    conditions: Vec<Condition>,
    /// Number of rounds; in a round each condition runs once
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Set of lower files
    #[arg(long, value_enum, default_value_t = Set::Study)]
    set: Set,
    /// Number of files
    #[arg(long)]
    files: Option<usize>,
    /// Files that each container writes [default: all]
    #[arg(long)]
    operations: Option<usize>,
    /// Seed of file sizes, offsets and orders
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Use 96 files, one and four containers and one round: this checks that the bench works, not
    /// how fast the unions are
    #[arg(long)]
    quick: bool,
    /// Print one JSON object per run and row instead of tables
    #[arg(long)]
    json: bool,
}

/// The files of the lower directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Set {
    /// 1 KB to 4 MB, equally many in each power of two (the study's)
    Study,
    /// 256 MiB each
    Large,
}

/// The settings of a bench after all defaults.
#[derive(Debug)]
struct BenchSettings {
    containers: Vec<usize>,
    conditions: Vec<Condition>,
    rounds: usize,
    operations: usize,
    seed: u64,
}

/// Returns an error if a signal asks for an early end.
fn check_stopped(stopped: &Stop) -> anyhow::Result<()> {
    if stopped.is_requested() {
        bail!("stopped; the bench removes everything that it created");
    }
    Ok(())
}

/// Runs `tsumugi union bench`.
pub(super) fn bench(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    if !rustix::process::geteuid().is_root() {
        bail!("`union bench` needs root, to mount the kernel's overlayfs");
    }
    // Each container takes two pipes.
    crate::descriptors::raise_limit();
    let stopped = Stop::default();
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stopped.0))
            .context("cannot watch for signals")?;
    }
    let directory = std::fs::canonicalize(&args.directory)
        .with_context(|| format!("cannot work in {}", args.directory.display()))?;
    let directory = files::BenchDirectory::new(&directory)?;
    let settings = args.settings(&directory)?;
    let count = args.files.unwrap_or(if args.quick { 96 } else { args.set.files_default() });
    let files = (args.set, count, args.seed);
    let grounds = Grounds::make(&directory, &settings.conditions, files, &stopped)?;
    let runs = run::all(&settings, &grounds, args.json, &stopped)?;
    let rows = Row::of(&runs);
    if args.json {
        rows.iter().try_for_each(report::print_json)?;
    } else if let Some(lower) = grounds.lower() {
        report::print(&rows, lower);
    }
    Ok(ExitCode::SUCCESS)
}

impl BenchArgs {
    fn settings(&self, directory: &files::BenchDirectory) -> anyhow::Result<BenchSettings> {
        let conditions = match &self.conditions[..] {
            [] => Condition::available(directory)?,
            given => given.to_vec(),
        };
        let containers = if self.quick { vec![1, 4] } else { self.containers.clone() };
        if containers.contains(&0) || containers.iter().any(|&count| count > 4096) {
            bail!("--containers takes numbers from 1 to 4096");
        }
        let rounds = if self.quick { 1 } else { self.rounds };
        if rounds == 0 || self.files == Some(0) || self.operations == Some(0) {
            bail!("--rounds, --files and --operations take numbers from 1 on");
        }
        let operations = self.operations.unwrap_or(usize::MAX);
        Ok(BenchSettings { containers, conditions, rounds, operations, seed: self.seed })
    }
}

impl Set {
    fn files_default(self) -> usize {
        match self {
            Self::Study => 1024,
            Self::Large => 16,
        }
    }
}
