//! `tsumugi union status MOUNTPOINT`: the state of a mounted union.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use rustix::io::Errno;
use serde_json::{Map, Value};

/// Prints the state. Returns `None` if no union of ours is mounted there.
pub(super) fn status(place: &Path, json: bool) -> anyhow::Result<Option<ExitCode>> {
    let not_ours = [Errno::NOTTY, Errno::INVAL, Errno::OPNOTSUPP, Errno::NOSYS];
    let text = match ::union::mount_status(place) {
        Ok(text) => text,
        Err(error) if Errno::from_io_error(&error).is_some_and(|it| not_ours.contains(&it)) => {
            return Ok(None);
        }
        Err(error) => return Err(error).with_context(|| format!("cannot ask {}", place.display())),
    };
    if json {
        println!("{text}");
        return Ok(Some(ExitCode::SUCCESS));
    }
    let facts: Map<String, Value> =
        serde_json::from_str(&text).context("the union's answer is not JSON")?;
    for (key, value) in facts.iter().filter(|(_, value)| !value.is_null()) {
        println!("{}: {value}", key.replace('_', " "));
    }
    Ok(Some(ExitCode::SUCCESS))
}
