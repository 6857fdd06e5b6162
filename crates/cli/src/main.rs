//! `tsumugi`: one binary for every part of the system.

#[macro_use]
mod print;

#[cfg(test)]
mod alone;
mod commands;
mod confine;
mod deploy;
mod descriptors;
mod doctor;
mod engine;
mod keys;
mod load;
mod observe;
mod one_file;
mod output;
mod scrub;
mod signals;
mod staging;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    deploy::service::drop_inherited();
    let result = commands::union::run_by_name(std::env::args_os())
        .or_else(|| engine::print_version(std::env::args_os()))
        .unwrap_or_else(|| commands::run(commands::Cli::parse()));
    let code = match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("tsumugi: {}", print::words(&error));
            return commands::exit_code_of(&error);
        }
    };
    let Some(error) = print::lost() else { return code };
    eprintln!("tsumugi: cannot print: {error}");
    ExitCode::FAILURE
}
