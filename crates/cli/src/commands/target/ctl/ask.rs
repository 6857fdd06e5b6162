//! Finding the control socket of a running target, and sending requests to it.

use crate::commands::target::control::{self, Request};
use crate::observe::socket;
use anyhow::{Context, bail};
use serde_json::Value;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the answer to a request without a change may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum bytes of an answer.
const BYTES_MAX: u64 = 64 << 20;

/// A running target.
#[derive(Debug)]
pub(in crate::commands) struct Target {
    path: PathBuf,
    stream: BufReader<UnixStream>,
}

impl Target {
    /// Connects to the target at a socket.
    ///
    /// # Errors
    /// If no target answers there.
    pub(super) fn at(path: &Path) -> anyhow::Result<Self> {
        let stream = socket::connect(path)
            .with_context(|| format!("no target answers at {}", path.display()))?;
        Ok(Self { path: path.to_owned(), stream: BufReader::new(stream) })
    }

    /// Connects to the only running target of this user.
    ///
    /// # Errors
    /// If there is none, or several, which are listed.
    pub(super) fn only() -> anyhow::Result<Self> {
        let mut targets = running();
        if targets.len() > 1 {
            let lines: Vec<String> = targets.iter_mut().map(Self::in_words).collect();
            bail!("several targets run: give one of these with --control\n{}", lines.join("\n"));
        }
        targets.pop().with_context(|| {
            format!(
                "no target of this user runs with a control socket in {}: start one, or give its \
                 socket with --control",
                control::directory().display()
            )
        })
    }

    /// Returns the running target that has a pool open: that at `control`, or one of this user's.
    /// `pool` is a canonical path.
    ///
    /// # Errors
    /// If no target answers at `control`.
    pub(in crate::commands) fn with_pool(
        pool: &Path,
        control: Option<&Path>,
    ) -> anyhow::Result<Option<Self>> {
        let targets = match control {
            Some(control) => vec![Self::at(control)?],
            None => running(),
        };
        let has_it = |target: &mut Self| {
            let shown = target.ask(&Request::Show {});
            let pools = shown.map(|it| it["pools"].clone()).unwrap_or_default();
            let mut pools = pools.as_array().into_iter().flatten();
            pools.any(|it| it.as_str().map(Path::new) == Some(pool))
        };
        Ok(targets.into_iter().find_map(|mut target| has_it(&mut target).then_some(target)))
    }

    /// Returns the target's socket and listeners, in words.
    fn in_words(&mut self) -> String {
        let shown = self.ask(&Request::Show {});
        let listeners =
            shown.map_or_else(|error| error.to_string(), |it| it["listeners"].to_string());
        format!("  {} {listeners}", self.path.display())
    }

    /// Sends a request and returns its result.
    ///
    /// # Errors
    /// The target's answer if it refuses or fails; if it does not answer.
    pub(in crate::commands) fn ask(&mut self, request: &Request) -> anyhow::Result<Value> {
        let no_answer = || format!("the target at {} does not answer", self.path.display());
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        if line.len() > control::LINE_BYTES_MAX {
            bail!("the request is too long: {} bytes can be sent", control::LINE_BYTES_MAX);
        }
        let is_quick =
            matches!(request, Request::Show {} | Request::Connections {} | Request::Stats {});
        let stream = self.stream.get_mut();
        // A change may first take memory or write a file.
        stream.set_read_timeout(is_quick.then_some(PATIENCE)).with_context(no_answer)?;
        // The answer may have come already: the reason of a refused connection.
        let sent = stream.write_all(&line);
        let mut answer = String::new();
        let read = self.stream.by_ref().take(BYTES_MAX).read_line(&mut answer);
        if answer.is_empty() {
            sent.and(read.map(drop)).with_context(no_answer)?;
            bail!("{}", no_answer());
        }
        let mut answer: Value = serde_json::from_str(&answer).with_context(|| {
            format!("{} sent an answer that is unknown to this version", self.path.display())
        })?;
        if answer["ok"] != true {
            bail!("{}", answer["error"].as_str().unwrap_or("the target refuses without a reason"));
        }
        Ok(answer["result"].take())
    }
}

/// Returns the running targets with a socket at the default path. Removes the sockets of processes
/// that have ended.
fn running() -> Vec<Target> {
    let entries = std::fs::read_dir(control::directory()).into_iter().flatten();
    let mut found = Vec::new();
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let Some(pid) = pid_of(&path) else { continue };
        match socket::connect(&path) {
            Ok(stream) => found.push(Target { path, stream: BufReader::new(stream) }),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                if !Path::new("/proc").join(pid.to_string()).exists() {
                    let _ = std::fs::remove_file(&path);
                }
            }
            Err(_) => {}
        }
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    found
}

/// Returns the process of a default socket.
fn pid_of(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    let pid = name.strip_prefix("target-")?.strip_suffix(".sock")?.parse().ok()?;
    (control::path_for(pid) == path).then_some(pid)
}
