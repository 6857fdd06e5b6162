//! `tsumugi manual`: writes man pages, shell completions and the reference of commands.

mod reference;

use super::Cli;
use anyhow::Context;
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use std::path::PathBuf;
use std::process::ExitCode;

/// Write man pages, shell completions and the reference of commands.
#[derive(Debug, Args)]
pub(crate) struct ManualArgs {
    /// Directory to write into: man1/, completions/ and commands.md
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Runs `tsumugi manual`.
pub(crate) fn run(args: &ManualArgs) -> anyhow::Result<ExitCode> {
    let (pages, completions) = (args.directory.join("man1"), args.directory.join("completions"));
    for directory in [&pages, &completions] {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
    }
    clap_mangen::generate_to(Cli::command(), &pages)
        .with_context(|| format!("cannot write pages to {}", pages.display()))?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut Cli::command(), "tsumugi", &completions)
            .with_context(|| format!("cannot write completions to {}", completions.display()))?;
    }
    let page = args.directory.join("commands.md");
    std::fs::write(&page, reference::page())
        .with_context(|| format!("cannot write {}", page.display()))?;
    Ok(ExitCode::SUCCESS)
}
