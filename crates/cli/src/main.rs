//! `tsumugi`: one binary for every part of the system.

mod commands;
mod confine;
mod deploy;
mod signals;
mod staging;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = commands::Cli::parse();
    match commands::run(cli) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("tsumugi: {error:#}");
            commands::exit_code_of(&error)
        }
    }
}
