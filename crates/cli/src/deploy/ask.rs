//! Requests to a running service about itself.
//!
//! Root never connects to a service of another user, who decides where the socket's path leads and
//! what comes out of it: this program asks as the user ([`AskArgs`]).

use crate::deploy::bounded::{NoLine, Running};
use crate::deploy::jobs::{self, Job};
use crate::deploy::others;
use crate::deploy::users::User;
use crate::observe::socket;
use crate::output::plain;
use anyhow::{Context, bail};
use clap::Args;
use metrics::Snapshot;
use metrics::trace::Look;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long an answer may take, and each line of a trace.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a program that asks as another user may take.
const USER_PATIENCE: Duration = Duration::from_secs(20);
/// Maximum bytes of an answer.
const BYTES_MAX: u64 = 64 << 20;
/// Maximum bytes of the head of an answer.
const HEAD_BYTES_MAX: u64 = 64 << 10;
/// Maximum bytes of a line of a trace.
const LINE_BYTES_MAX: u64 = 16 << 20;
/// Maximum bytes of a program's errors.
const ERROR_BYTES_MAX: usize = 64 << 10;

/// A service that can be asked.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    socket: PathBuf,
    /// Its user, if root asks another user's service.
    user: Option<User>,
}

impl Service {
    /// Returns the service with a socket, which belongs to a user.
    pub(crate) fn new(socket: PathBuf, uid: u32) -> Service {
        let is_root = rustix::process::geteuid().is_root();
        Service { socket, user: (is_root && uid != 0).then(|| User::of_uid(uid)) }
    }

    /// Returns the service for a path: that of the path itself if it is a socket, else that of the
    /// mount that contains it.
    pub(crate) fn at(place: &Path) -> anyhow::Result<Service> {
        // A call to a mount that does not answer would hang.
        if place.extension().is_some_and(|extension| extension == "sock")
            && let Ok(data) = place.metadata()
            && data.file_type().is_socket()
        {
            let socket = std::path::absolute(place)
                .with_context(|| format!("cannot find {}", place.display()))?;
            return Ok(Service::new(socket, data.uid()));
        }
        Service::of_mount(place)
    }

    /// Returns the service of the process that serves a mount.
    fn of_mount(mount: &Path) -> anyhow::Result<Service> {
        let mount = std::path::absolute(mount)
            .with_context(|| format!("cannot find {}", mount.display()))?;
        if let Some(own) = serving(&jobs::own(None).0, &mount) {
            return Ok(own);
        }
        if rustix::process::geteuid().is_root() {
            let found = others::jobs();
            found.trouble.iter().for_each(|text| eprintln!("tsumugi: {}", plain(text)));
            if let Some(service) = serving(&found.jobs, &mount) {
                return Ok(service);
            }
        }
        bail!(
            "{} is not in a mount of a job of this user on this machine (see `tsumugi list`)",
            mount.display()
        )
    }

    fn text(&self, what: &str) -> anyhow::Result<String> {
        let Some(user) = &self.user else { return text(&self.socket, what) };
        let output = user.run_for(&self.words(what), BYTES_MAX as usize, USER_PATIENCE)?;
        if !output.status.success() {
            bail!("{}", plain(String::from_utf8_lossy(&output.stderr).trim()));
        }
        String::from_utf8(output.stdout).context("the answer is no text")
    }

    fn words(&self, what: &str) -> Vec<OsString> {
        vec!["ask".into(), what.into(), self.socket.clone().into_os_string()]
    }

    /// Returns the counters and the activity of the service.
    pub(crate) fn snapshot(&self) -> anyhow::Result<Snapshot> {
        serde_json::from_str(&self.text("/snapshot")?).with_context(|| {
            format!("{} sent an answer that is unknown to this version", self.socket.display())
        })
    }

    /// Returns the metrics in the text format of Prometheus.
    pub(crate) fn prometheus(&self) -> anyhow::Result<String> {
        self.text("/metrics")
    }

    /// Returns operations as they end.
    pub(crate) fn trace(&self) -> anyhow::Result<Box<dyn Iterator<Item = anyhow::Result<Look>>>> {
        let look = |line: anyhow::Result<String>| Ok(serde_json::from_str(&line?)?);
        let Some(user) = &self.user else {
            return Ok(Box::new(lines(get(&self.socket, "/trace")?).map(look)));
        };
        let mut program = user.program(&self.words("/trace"));
        let running = Running::start(&mut program, LINE_BYTES_MAX, ERROR_BYTES_MAX, drop)
            .with_context(|| format!("cannot run this program as {}", user.name))?;
        let mut running = Some(running);
        let next = move || {
            let line = running.as_ref()?.line(Instant::now() + USER_PATIENCE);
            match line {
                Ok(line) => Some(Ok(line)),
                Err(NoLine::Late) => Some(Err(anyhow::anyhow!("no answer within {PATIENCE:?}"))),
                Err(NoLine::Ended) => {
                    let (_, errors) = running.take()?.end(Instant::now() + PATIENCE);
                    Some(Err(anyhow::anyhow!("{}", plain(&errors))))
                }
            }
        };
        Ok(Box::new(std::iter::from_fn(next).map(look)))
    }
}

/// Returns the counters and the activity of this user's service at a socket, if it answers.
pub(crate) fn snapshot(socket: &Path) -> Option<Snapshot> {
    Service { socket: socket.into(), user: None }.snapshot().ok()
}

/// Returns the service of the job that has a path in a mount.
fn serving(jobs: &[Job], path: &Path) -> Option<Service> {
    jobs.iter().find_map(|job| {
        let state = job.state.as_ref()?;
        let node = state.nodes.iter().find(|node| path.starts_with(&node.mount))?;
        Some(Service::new(state.node_socket(&node.name), job.user))
    })
}

/// Print a service's answer as it is; root starts this as the service's user.
#[derive(Debug, Args)]
pub(crate) struct AskArgs {
    /// The path of the request
    what: String,
    /// The service's socket
    socket: PathBuf,
}

/// Runs `tsumugi ask`.
pub(crate) fn run(args: &AskArgs) -> anyhow::Result<ExitCode> {
    let answer = get(&args.socket, &args.what)?;
    if args.what != "/trace" {
        let mut answer = answer;
        print!("{}", read(&mut answer, &args.socket)?);
        return Ok(ExitCode::SUCCESS);
    }
    for line in lines(answer) {
        // `print!` would panic when root's trace, which reads this, has ended.
        let mut out = io::stdout().lock();
        out.write_all(line?.as_bytes()).and_then(|()| out.flush())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A connection on which the other side may take only so long, however it spreads its bytes.
struct Patient {
    stream: UnixStream,
    deadline: Instant,
}

impl Read for Patient {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(bytes)
    }
}

/// Sends a request. Returns the connection, from which the body of the answer can be read.
fn get(path: &Path, what: &str) -> anyhow::Result<BufReader<Patient>> {
    let no_answer = || format!("no answer at {}: is its process alive?", path.display());
    let deadline = Instant::now() + PATIENCE;
    let mut stream = socket::connect(path).with_context(no_answer)?;
    stream.set_write_timeout(Some(PATIENCE)).with_context(no_answer)?;
    let request = format!("GET {what} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).with_context(no_answer)?;
    let mut answer = BufReader::new(Patient { stream, deadline });
    let mut head = (&mut answer).take(HEAD_BYTES_MAX);
    let mut status = String::new();
    head.read_line(&mut status).with_context(no_answer)?;
    let mut line = String::new();
    while head.read_line(&mut line).with_context(no_answer)? > 0 && !line.trim().is_empty() {
        line.clear();
    }
    if head.limit() == 0 {
        bail!("{} sent a head without an end", path.display());
    }
    match status.split(' ').nth(1) {
        Some("200") => Ok(answer),
        Some(_) => {
            let mut reason = String::new();
            let _ = answer.take(1024).read_to_string(&mut reason);
            bail!("{}: {}", path.display(), plain(reason.trim()))
        }
        None => bail!("{}", no_answer()),
    }
}

fn text(path: &Path, what: &str) -> anyhow::Result<String> {
    read(&mut get(path, what)?, path)
}

fn read(answer: &mut BufReader<Patient>, path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let mut answer = answer.take(BYTES_MAX);
    answer
        .read_to_string(&mut text)
        .with_context(|| format!("cannot read the answer of {}", path.display()))?;
    if answer.limit() == 0 {
        bail!("{} sent an answer without an end", path.display());
    }
    Ok(text)
}

/// Returns the lines of a trace, with their ends. Each may take its time.
fn lines(mut answer: BufReader<Patient>) -> impl Iterator<Item = anyhow::Result<String>> {
    std::iter::from_fn(move || {
        answer.get_mut().deadline = Instant::now() + PATIENCE;
        let mut line = String::new();
        match (&mut answer).take(LINE_BYTES_MAX).read_line(&mut line) {
            Ok(0) => None,
            Ok(_) if line.ends_with('\n') => Some(Ok(line)),
            Ok(_) => Some(Err(anyhow::anyhow!("a line of the answer has no end"))),
            Err(error) => Some(Err(error.into())),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// Answers each connection with a head, and then repeats a text until the peer closes.
    fn flood(path: &Path, head: &'static str, again: &'static str) {
        let listener = UnixListener::bind(path).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _ = stream.read(&mut [0; 1024]);
                let _ = stream.write_all(head.as_bytes());
                let text = again.repeat(64 << 10);
                while stream.write_all(text.as_bytes()).is_ok() {}
            }
        });
    }

    /// Goal: a service that sends without an end, in the head, the body or a line of a trace, gets
    /// an error, and fills no memory.
    #[test]
    fn endless_answers_have_an_end() {
        let base = tempfile::tempdir().unwrap();
        let ok = "HTTP/1.1 200 OK\r\n\r\n";
        let mut said = Vec::new();
        for (name, head, again) in [
            ("status.sock", "", "x"),
            ("head.sock", "HTTP/1.1 200 OK\r\n", "a: b\r\n"),
            ("body.sock", ok, "x"),
        ] {
            let path = base.path().join(name);
            flood(&path, head, again);
            let uid = rustix::process::geteuid().as_raw();
            let service = Service::new(path, uid);
            said.push(service.prometheus().unwrap_err().to_string());
            if name == "body.sock" {
                let line = service.trace().unwrap().next().unwrap();
                said.push(line.unwrap_err().to_string());
            }
        }
        assert!(said.iter().all(|said| said.contains("end")), "{said:?}");
    }

    /// Goal: the reason of a refusal cannot control the terminal.
    #[test]
    fn reasons_are_plain() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("a.sock");
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]);
            stream.write_all(b"HTTP/1.1 409 Conflict\r\n\r\nno \x1b[2J").unwrap();
        });
        let error = text(&path, "/trace").unwrap_err().to_string();
        assert!(error.ends_with("no ?[2J"), "{error:?}");
    }
}
