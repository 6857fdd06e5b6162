//! `tsumugi eval mdtest`: a load of metadata operations by many processes.

use clap::Args;
use eval::metadata::{Files, Load, run as run_load, work};
use eval::units::{parse_bytes, significant};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The work of each process.
#[derive(Clone, Debug, Args)]
struct FilesArgs {
    /// Number of processes
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=256))]
    processes: u32,
    /// Files per process
    #[arg(short = 'i', long, value_name = "N", default_value_t = 1000,
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    items: u32,
    /// Bytes written to each file [mdtest -w]
    #[arg(short = 'w', long, value_name = "BYTES", default_value = "0",
          value_parser = parse_write_bytes)]
    write_bytes: u32,
    /// Give each process its own directory [mdtest -u]
    #[arg(short = 'u', long)]
    own_directories: bool,
    /// Let each process stat, read and remove its neighbour's files [mdtest -N]
    #[arg(short = 'N', long)]
    shift: bool,
    /// Make each file durable before it is closed [mdtest -y]
    #[arg(short = 'y', long)]
    sync: bool,
}

#[derive(Clone, Debug, Args)]
pub(super) struct MdtestArgs {
    #[command(flatten)]
    files: FilesArgs,
    /// Directory in which a new one is created, used and removed; several are names of one directory, for
    /// example mounts of one file system, which the processes use in turn
    #[arg(value_name = "DIRECTORY", required = true)]
    directories: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Debug, Args)]
pub(super) struct WorkerArgs {
    #[command(flatten)]
    files: FilesArgs,
    /// Number of this process
    #[arg(long)]
    rank: u32,
    /// The new directory
    directory: PathBuf,
}

fn parse_write_bytes(text: &str) -> Result<u32, String> {
    let bytes = parse_bytes(text).map_err(|error| error.to_string())?;
    u32::try_from(bytes).ok().filter(|bytes| *bytes <= 1 << 30).ok_or("at most 1GiB".into())
}

impl FilesArgs {
    fn files(&self) -> Files {
        Files {
            items: self.items,
            write_bytes: self.write_bytes,
            has_own_directories: self.own_directories,
            shifts: self.shift,
            syncs: self.sync,
        }
    }

    /// Returns the command of one process.
    fn worker(&self, program: &Path, rank: u32, root: &Path) -> Command {
        let mut command = Command::new(program);
        command.args(["eval", "mdtest-worker", "--rank", &rank.to_string()]);
        command.args(["--processes", &self.processes.to_string()]);
        command.args(["--items", &self.items.to_string()]);
        command.args(["--write-bytes", &self.write_bytes.to_string()]);
        for (flag, is_set) in [
            ("--own-directories", self.own_directories),
            ("--shift", self.shift),
            ("--sync", self.sync),
        ] {
            command.args(is_set.then_some(flag));
        }
        command.arg(root);
        command
    }
}

/// Runs the load.
pub(super) fn run(args: &MdtestArgs) -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe()?;
    let load = Load {
        files: args.files.files(),
        processes: args.files.processes,
        directories: args.directories.clone(),
    };
    let results = run_load(&load, |rank, root| args.files.worker(&program, rank, root))?;
    if args.json {
        println!("{}", serde_json::to_string(&results)?);
        return Ok(ExitCode::SUCCESS);
    }
    println!("{} processes × {} files", load.processes, load.files.items);
    for it in &results {
        println!(
            "{:>7}: {} files/s ({} s; processes {} … {} s)",
            it.phase.name(),
            significant(it.rate),
            significant(it.seconds),
            significant(it.fastest_seconds),
            significant(it.slowest_seconds)
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs as one of the load's processes.
pub(super) fn run_worker(args: &WorkerArgs) -> anyhow::Result<ExitCode> {
    let files = args.files.files();
    let rank = (args.rank, args.files.processes);
    work(&files, rank, &args.directory, std::io::stdin().lock(), std::io::stdout().lock())?;
    Ok(ExitCode::SUCCESS)
}
