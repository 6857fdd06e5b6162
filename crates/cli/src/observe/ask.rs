//! Requests to a running service about itself.

use super::socket;
use crate::deploy::find;
use anyhow::{Context, bail};
use metrics::Snapshot;
use metrics::trace::Look;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum bytes of an answer.
const BYTES_MAX: u64 = 64 << 20;

/// Sends a request. Returns the connection, from which the body of the answer can be read.
fn get(path: &Path, what: &str) -> anyhow::Result<BufReader<UnixStream>> {
    let no_answer = || format!("no answer at {}: is its process alive?", path.display());
    let mut stream = socket::connect(path).with_context(no_answer)?;
    stream.set_read_timeout(Some(PATIENCE)).with_context(no_answer)?;
    let request = format!("GET {what} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).with_context(no_answer)?;
    let mut answer = BufReader::new(stream);
    let mut status = String::new();
    answer.read_line(&mut status).with_context(no_answer)?;
    let mut line = String::new();
    while answer.read_line(&mut line).with_context(no_answer)? > 0 && !line.trim().is_empty() {
        line.clear();
    }
    match status.split(' ').nth(1) {
        Some("200") => Ok(answer),
        Some(_) => {
            let mut reason = String::new();
            let _ = answer.take(1024).read_to_string(&mut reason);
            bail!("{}: {}", path.display(), reason.trim())
        }
        None => bail!("{}", no_answer()),
    }
}

fn text(path: &Path, what: &str) -> anyhow::Result<String> {
    let mut text = String::new();
    let read = get(path, what)?.take(BYTES_MAX).read_to_string(&mut text);
    read.with_context(|| format!("cannot read the answer of {}", path.display()))?;
    Ok(text)
}

/// Returns the counters and the activity of a service.
pub(crate) fn snapshot(path: &Path) -> anyhow::Result<Snapshot> {
    serde_json::from_str(&text(path, "/snapshot")?).with_context(|| {
        format!("{} sent an answer that is unknown to this version", path.display())
    })
}

/// Returns the metrics in the text format of Prometheus.
pub(crate) fn prometheus(path: &Path) -> anyhow::Result<String> {
    text(path, "/metrics")
}

/// Returns operations as they end.
pub(crate) fn trace(path: &Path) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Look>>> {
    let lines = get(path, "/trace")?.lines();
    Ok(lines.map(|line| Ok(serde_json::from_str(&line?)?)))
}

/// Returns the socket of the process that serves a mount.
pub(crate) fn socket_of_mount(mount: &Path) -> anyhow::Result<PathBuf> {
    let mount =
        std::path::absolute(mount).with_context(|| format!("cannot find {}", mount.display()))?;
    let mut jobs = find::own(None).0;
    if rustix::process::geteuid().is_root() {
        jobs.extend(find::of_others());
    }
    for state in jobs.into_iter().filter_map(|job| job.state) {
        let mut nodes = state.nodes.iter();
        if let Some(node) = nodes.find(|node| mount.starts_with(&node.mount)) {
            return Ok(state.node_socket(&node.name));
        }
    }
    bail!(
        "{} is not in a mount of a job of this user on this machine (see `tsumugi list`)",
        mount.display()
    )
}
