//! `tsumugi union status|complete`: partial files of a union that is not mounted.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Context;

/// Lists them.
pub(super) fn status(options: &[OsString], json: bool) -> anyhow::Result<ExitCode> {
    let files = ::union::partial_files(super::read_options(options)?)?;
    for file in &files {
        let path = file.path.as_ref().map(|path| path.to_string_lossy());
        if json {
            let line = serde_json::json!({
                "path": path,
                "size_bytes": file.size_bytes,
                "stored_bytes": file.stored_bytes,
                "unfilled_bytes": file.unfilled_bytes,
                "is_damaged": file.is_damaged,
            });
            println!("{line}");
            continue;
        }
        let path = path.unwrap_or("(its directory is gone)".into());
        let damaged = if file.is_damaged { ", damaged" } else { "" };
        println!(
            "{path}: {} bytes, {} stored, {} in the lower file only{damaged}",
            file.size_bytes, file.stored_bytes, file.unfilled_bytes
        );
    }
    if !json {
        println!("{} partial files", files.len());
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes them whole.
pub(super) fn complete(options: &[OsString]) -> anyhow::Result<ExitCode> {
    let options = super::read_options(options)?;
    let config = ring::Config { sqe128: false, ..ring::Config::default() };
    let mut runtime = ring::Runtime::new(&config).context("cannot start the reactor")?;
    let count = runtime.block_on(::union::complete_partial_files(options))?;
    println!("{count} files completed");
    Ok(ExitCode::SUCCESS)
}
