//! Checks a metadata store: that all records agree with each other (`Core::check`).
//!
//! usage: `check_store DIRECTORY`, for the store of a metadata service that has ended or crashed.
//! It prints a line for each contradiction, and fails if there is one. As always when a store is
//! opened after a loss of power, its sessions become void.

use meta::store::{FjallStore, Opening};
use meta::tree::{Boot, Core};
use protocol::Timestamp;
use std::path::Path;
use std::process::ExitCode;
use uuid::Uuid;

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let directory = std::env::args().nth(1).ok_or("usage: check_store DIRECTORY")?;
    let store = FjallStore::open(Path::new(&directory), Opening::here()?)?;
    // No boot of a machine has this number.
    let boot = Boot {
        boot: Uuid::from_u128(0),
        file_system: Uuid::from_u128(0),
        now: Timestamp(0),
        root: (0o755, 0, 0),
    };
    let (core, opened) = Core::open(Box::new(store), &boot)?;
    if opened.is_new {
        return Err(format!("{directory} was empty").into());
    }
    let problems = core.check()?;
    for problem in &problems {
        println!("{problem}");
    }
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
