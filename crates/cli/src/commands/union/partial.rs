//! `tsumugi union status|complete`: partial files of an unmounted union.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ::union::Options;
use anyhow::Context;

/// Returns the given options, or else those that the upper directory's last mount has recorded.
fn options_of(upper: Option<&Path>, given: &[OsString]) -> anyhow::Result<Options> {
    match upper {
        Some(upper) => {
            let given = given.join(OsStr::new(","));
            Ok(::union::options_of_upper(upper, given.as_bytes())?)
        }
        None => super::read_options(given),
    }
}

/// Lists the partial files.
pub(super) fn status(
    upper: Option<&Path>,
    options: &[OsString],
    json: bool,
) -> anyhow::Result<ExitCode> {
    let files = ::union::partial_files(options_of(upper, options)?)?;
    for file in &files {
        let path = file.path.as_ref().map(|path| path.to_string_lossy());
        if json {
            let line = serde_json::json!({
                "path": path,
                "size_bytes": file.size_bytes,
                "stored_bytes": file.stored_bytes,
                "unfilled_bytes": file.unfilled_bytes,
                "is_damaged": file.is_damaged,
                "trouble": file.trouble,
            });
            println!("{line}");
            continue;
        }
        let path = path.unwrap_or("(its directory is gone)".into());
        let damaged = if file.is_damaged { ", damaged" } else { "" };
        let trouble = file.trouble.as_ref().map(|words| format!(", which cannot be read: {words}"));
        let trouble = trouble.unwrap_or_default();
        println!(
            "{path}: {} bytes, {} stored, {} in the lower file only{trouble}{damaged}",
            file.size_bytes, file.stored_bytes, file.unfilled_bytes
        );
    }
    if !json {
        println!("{} partial files", files.len());
    }
    Ok(ExitCode::SUCCESS)
}

/// Completes the partial files.
pub(super) fn complete(
    upper: Option<&Path>,
    options: &[OsString],
    accepted: &[PathBuf],
) -> anyhow::Result<ExitCode> {
    let options = options_of(upper, options)?;
    let config = reactor::Config { sqe128: false, ..reactor::Config::default() };
    let mut runtime = reactor::Runtime::new(&config).context("cannot start the reactor")?;
    let count = runtime.block_on(::union::complete_partial_files(options, accepted))?;
    println!("{count} files completed");
    Ok(ExitCode::SUCCESS)
}
