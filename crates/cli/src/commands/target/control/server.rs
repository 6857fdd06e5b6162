//! The control socket: its access control and its bounds.
//!
//! A thread serves each connection, so a slow or silent peer delays only itself. Everything has a
//! bound: connections, the length of a line, the time for a line.

use super::Control;
use super::request::Request;
use crate::deploy::job::default_base;
use crate::deploy::place::{Trust, make_directories};
use crate::observe::socket;
use anyhow::{Context, bail};
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Maximum number of connections at a time.
const CONNECTIONS_MAX: usize = 16;
/// Maximum bytes of a request, with the end of its line.
pub(in crate::commands::target) const LINE_BYTES_MAX: usize = 64 << 10;
/// How long a connection may be silent between requests.
const IDLE: Duration = Duration::from_mins(1);
/// How long a request may take to arrive, from its first byte.
const LINE_PATIENCE: Duration = Duration::from_secs(10);
/// How long the peer may take to receive an answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
/// Pause after a failed accept, for example when there are no free descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Returns the directory of the sockets of this user's targets.
pub(in crate::commands::target) fn directory() -> PathBuf {
    default_base()
}

/// Returns the default path of a process's control socket.
pub(in crate::commands::target) fn path_for(pid: u32) -> PathBuf {
    directory().join(format!("target-{pid}.sock"))
}

/// A listening socket; its file is removed when it is dropped.
pub(in crate::commands::target) struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

/// Removes the file of a socket when dropped.
#[derive(Debug)]
pub(in crate::commands::target) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Socket {
    /// Listens at `path`, or at the default path of this process.
    ///
    /// # Errors
    /// If another target answers there, or the socket cannot be created.
    pub(in crate::commands::target) fn new(path: Option<&Path>) -> anyhow::Result<Self> {
        let path = if let Some(path) = path {
            std::path::absolute(path).with_context(|| format!("cannot find {}", path.display()))?
        } else {
            make_directories(&directory(), 0o700, Trust::Own)?;
            path_for(std::process::id())
        };
        if socket::connect(&path).is_ok() {
            bail!(
                "another process answers at {}: give another path with --control",
                path.display()
            );
        }
        Ok(Self { listener: socket::listen(&path)?, path })
    }

    /// Returns the path of the socket.
    pub(in crate::commands::target) fn path(&self) -> &Path {
        &self.path
    }

    /// Answers until the process ends. Dropping the returned value removes the file.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(in crate::commands::target) fn serve(
        self,
        control: &Arc<Control>,
    ) -> anyhow::Result<SocketFile> {
        let (control, listener) = (Arc::clone(control), self.listener);
        let file = SocketFile(self.path);
        std::thread::Builder::new()
            .name("control".into())
            .spawn(move || accept(&listener, &control))
            .context("cannot start the thread of the control socket")?;
        Ok(file)
    }
}

fn accept(listener: &UnixListener, control: &Arc<Control>) -> ! {
    let count = Arc::new(AtomicUsize::new(0));
    loop {
        let Ok((stream, _)) = listener.accept() else {
            std::thread::sleep(PAUSE);
            continue;
        };
        if count.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            count.fetch_sub(1, Ordering::Relaxed);
            refuse(&stream, "too many connections are open at the control socket");
            continue;
        }
        let (own, control) = (Arc::clone(&count), Arc::clone(control));
        let one = move || {
            // A peer that has gone needs no answer.
            let _ = Conversation::new(&stream).hold(&control);
            own.fetch_sub(1, Ordering::Relaxed);
        };
        if std::thread::Builder::new().name("control".into()).spawn(one).is_err() {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Tries to send the reason for closing a connection, without waiting for the peer.
fn refuse(stream: &UnixStream, reason: &str) {
    let _ = stream.set_nonblocking(true);
    let _ = write_answer(stream, &json!({ "ok": false, "error": reason }));
}

fn write_answer(mut stream: &UnixStream, answer: &Value) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Returns whether the peer is root or the user of this process.
fn is_allowed(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(stream)
        .is_ok_and(|peer| peer.uid.is_root() || peer.uid == own)
}

/// What arrived on a connection.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Whole(Vec<u8>),
    TooLong,
    /// The peer has closed the connection, or is too slow.
    End,
}

struct Conversation<'a> {
    stream: &'a UnixStream,
    /// The received bytes of the next lines.
    received: Vec<u8>,
}

impl<'a> Conversation<'a> {
    fn new(stream: &'a UnixStream) -> Self {
        Self { stream, received: Vec::new() }
    }

    fn hold(mut self, control: &Control) -> io::Result<()> {
        if !is_allowed(self.stream) {
            refuse(self.stream, "only root and the user of the target may control it");
            return Ok(());
        }
        self.stream.set_write_timeout(Some(ANSWER_PATIENCE))?;
        loop {
            let line = match self.line()? {
                Line::Whole(line) => line,
                Line::End => return Ok(()),
                Line::TooLong => {
                    let error = format!("a request has at most {LINE_BYTES_MAX} bytes");
                    return write_answer(self.stream, &json!({ "ok": false, "error": error }));
                }
            };
            write_answer(self.stream, &answer(control, &line))?;
        }
    }

    /// Reads up to the end of a line.
    fn line(&mut self) -> io::Result<Line> {
        let mut deadline = Instant::now() + IDLE;
        if !self.received.is_empty() {
            deadline = deadline.min(Instant::now() + LINE_PATIENCE);
        }
        let mut searched = 0;
        loop {
            if let Some(end) = self.received[searched..].iter().position(|&byte| byte == b'\n') {
                let rest = self.received.split_off(searched + end + 1);
                return Ok(Line::Whole(std::mem::replace(&mut self.received, rest)));
            }
            searched = self.received.len();
            if searched >= LINE_BYTES_MAX {
                return Ok(Line::TooLong);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Line::End);
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut part = [0; 4096];
            let room = part.len().min(LINE_BYTES_MAX - searched);
            let mut stream = self.stream;
            match stream.read(&mut part[..room]) {
                Ok(0) => return Ok(Line::End),
                Ok(bytes) => {
                    if self.received.is_empty() {
                        deadline = deadline.min(Instant::now() + LINE_PATIENCE);
                    }
                    self.received.extend_from_slice(&part[..bytes]);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn answer(control: &Control, line: &[u8]) -> Value {
    let request: Request = match serde_json::from_slice(line) {
        Ok(request) => request,
        Err(error) => {
            return json!({ "ok": false, "error": format!("the request is not understood: {error}") });
        }
    };
    tracing::debug!(?request, "the control socket is asked");
    match control.carry_out(&request) {
        Ok(result) => json!({ "ok": true, "result": result }),
        Err(error) => json!({ "ok": false, "error": crate::print::words(&error) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each line is one request, however its bytes arrive; a line that is too long, or is
    /// never finished, ends the conversation.
    #[test]
    fn lines_are_bounded() {
        let (mut peer, own) = UnixStream::pair().unwrap();
        let mut conversation = Conversation::new(&own);
        peer.write_all(b"one\ntwo\n\nth").unwrap();
        for expected in ["one\n", "two\n", "\n"] {
            assert_eq!(conversation.line().unwrap(), Line::Whole(expected.into()));
        }
        let mut writer = peer.try_clone().unwrap();
        let rest = std::thread::spawn(move || writer.write_all(b"ree\n"));
        assert_eq!(conversation.line().unwrap(), Line::Whole("three\n".into()));
        rest.join().unwrap().unwrap();
        let mut writer = peer.try_clone().unwrap();
        let flood = std::thread::spawn(move || {
            let mut longest = vec![b'x'; LINE_BYTES_MAX - 1];
            longest.push(b'\n');
            writer.write_all(&longest)?;
            writer.write_all(&longest[1..])?;
            writer.write_all(&vec![b'x'; LINE_BYTES_MAX])
        });
        for bytes in [LINE_BYTES_MAX, LINE_BYTES_MAX - 1] {
            let Line::Whole(line) = conversation.line().unwrap() else { panic!("no line") };
            assert_eq!(line.len(), bytes);
        }
        assert_eq!(conversation.line().unwrap(), Line::TooLong);
        drop(peer);
        drop(flood);
        let (mut peer, own) = UnixStream::pair().unwrap();
        peer.write_all(b"{\"do\":").unwrap();
        drop(peer);
        assert_eq!(Conversation::new(&own).line().unwrap(), Line::End);
    }

    /// Goal: a target does not take over a socket at which another process answers; it does replace
    /// a leftover socket.
    #[test]
    fn a_live_socket_is_not_taken() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("target.sock");
        let first = Socket::new(Some(&path)).unwrap();
        assert!(is_allowed(&UnixStream::pair().unwrap().0));
        let refused = Socket::new(Some(&path)).err().unwrap().to_string();
        assert!(refused.contains("--control"), "{refused}");
        drop(first);
        assert!(path.exists());
        assert_eq!(Socket::new(Some(&path)).unwrap().path(), path);
    }
}
