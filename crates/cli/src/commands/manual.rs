//! `tsumugi manual`: writes man pages and shell completions, for packages.

use super::Cli;
use anyhow::Context;
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use std::path::PathBuf;
use std::process::ExitCode;

/// Write man pages and shell completions.
#[derive(Debug, Args)]
pub(crate) struct ManualArgs {
    /// Where to: DIR/man1 and DIR/completions
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Runs `tsumugi manual`.
pub(crate) fn run(args: &ManualArgs) -> anyhow::Result<ExitCode> {
    let (pages, completions) = (args.directory.join("man1"), args.directory.join("completions"));
    for directory in [&pages, &completions] {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
    }
    clap_mangen::generate_to(Cli::command(), &pages)
        .with_context(|| format!("cannot write pages to {}", pages.display()))?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut Cli::command(), "tsumugi", &completions)
            .with_context(|| format!("cannot write completions to {}", completions.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}
