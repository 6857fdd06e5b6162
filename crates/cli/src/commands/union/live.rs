//! `tsumugi union status MOUNTPOINT`: what a mounted union is doing.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use serde_json::{Map, Value};

/// Prints it.
pub(super) fn status(mountpoint: &Path, json: bool) -> anyhow::Result<ExitCode> {
    let at = mountpoint.display();
    let text = ::union::mount_status(mountpoint)
        .with_context(|| format!("cannot ask {at} (is a union of tsumugi mounted there?)"))?;
    if json {
        println!("{text}");
        return Ok(ExitCode::SUCCESS);
    }
    let facts: Map<String, Value> =
        serde_json::from_str(&text).context("the union's answer is no JSON")?;
    for (key, value) in facts.iter().filter(|(_, value)| !value.is_null()) {
        println!("{}: {value}", key.replace('_', " "));
    }
    Ok(ExitCode::SUCCESS)
}
