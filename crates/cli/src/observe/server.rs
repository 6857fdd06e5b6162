//! A service's answers about itself: HTTP/1.1, only GET, one request per connection, everything
//! bounded.
//!
//! The server has threads of its own, which sleep without requests. So even a service with stuck
//! threads shows what they wait for. `/metrics` is for Prometheus; `/snapshot` and `/trace` are for
//! the commands of this program, and only on the socket in the job's directory, because they name
//! processes and inodes.

use super::socket;
use super::text::{self, Part};
use anyhow::Context;
use metrics::trace::Tracer;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Maximum number of connections of a listener at a time. Each listener has its own: users of an open
/// port must not keep the owner from the socket.
const CONNECTIONS_MAX: usize = 16;
/// Maximum bytes of a request's head.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Maximum number of header lines of a request.
const HEADERS_MAX: usize = 64;
/// How long a request's head or a write may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause after a failed accept, for example when there are no free descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// Interval at which a trace sends the operations that have ended.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Listeners, created before a process confines itself.
#[derive(Debug)]
pub(crate) struct Listeners {
    own: Option<UnixListener>,
    open: Option<TcpListener>,
}

impl Listeners {
    /// Listens on a socket, and on a TCP address for Prometheus, if they are given.
    ///
    /// # Errors
    /// If an address or path cannot be used.
    pub(crate) fn new(own: Option<&Path>, open: Option<SocketAddr>) -> anyhow::Result<Listeners> {
        let own = own.map(socket::listen).transpose()?;
        let open = open.map(|address| {
            TcpListener::bind(address)
                .with_context(|| format!("cannot listen at {address} for Prometheus"))
        });
        Ok(Listeners { own, open: open.transpose()? })
    }

    /// Answers until the process ends. `part` names the process within its job.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(crate) fn serve(self, job: &str, part: &str) -> anyhow::Result<()> {
        let (job, name) = (job.to_owned(), part.to_owned());
        let text = move || {
            let (job, name) = (job.clone(), name.clone());
            text::of(vec![Part { job, name, snapshot: metrics::snapshot() }])
        };
        let shared = Shared::new(text);
        if let Some(listener) = self.own {
            let accept = move || listener.accept().map(|(stream, _)| stream);
            start(&shared, accept, |stream: &UnixStream, shared| {
                stream.set_write_timeout(Some(PATIENCE))?;
                answer(stream, shared, true)
            })?;
        }
        if let Some(listener) = self.open {
            let accept = move || listener.accept().map(|(stream, _)| stream);
            start(&shared, accept, answer_others)?;
        }
        Ok(())
    }
}

/// Answers `/metrics` with a text, on this thread.
pub(crate) fn serve_text(
    listener: &TcpListener,
    text: impl Fn() -> String + Send + Sync + 'static,
) -> ! {
    let accept = || listener.accept().map(|(stream, _)| stream);
    accept_all(&Shared::new(text), accept, answer_others)
}

fn answer_others(stream: &TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    answer(stream, shared, false)
}

/// A connection whose reads can be limited.
trait Limited {
    fn limit_reads(&self, within: Duration) -> io::Result<()>;
}

impl Limited for UnixStream {
    fn limit_reads(&self, within: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(within))
    }
}

impl Limited for TcpStream {
    fn limit_reads(&self, within: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(within))
    }
}

struct Shared {
    /// Returns the text for Prometheus.
    text: Box<dyn Fn() -> String + Send + Sync>,
}

impl Shared {
    fn new(text: impl Fn() -> String + Send + Sync + 'static) -> Arc<Shared> {
        Arc::new(Shared { text: Box::new(text) })
    }
}

/// Starts a thread that accepts connections; each gets a thread of its own.
fn start<S: Send + 'static>(
    shared: &Arc<Shared>,
    accept: impl Fn() -> io::Result<S> + Send + 'static,
    work: fn(&S, &Shared) -> io::Result<()>,
) -> anyhow::Result<()> {
    let shared = Arc::clone(shared);
    std::thread::Builder::new()
        .name("metrics".into())
        .spawn(move || accept_all(&shared, accept, work))
        .map(drop)
        .context("cannot start the thread that answers about this process")
}

fn accept_all<S: Send + 'static>(
    shared: &Arc<Shared>,
    accept: impl Fn() -> io::Result<S>,
    work: fn(&S, &Shared) -> io::Result<()>,
) -> ! {
    let connections = Arc::new(AtomicUsize::new(0));
    loop {
        let Ok(stream) = accept() else {
            std::thread::sleep(PAUSE);
            continue;
        };
        // Connections beyond the maximum are closed without an answer.
        if connections.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            connections.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (shared, count) = (Arc::clone(shared), Arc::clone(&connections));
        let one = move || {
            // A client that has gone needs no answer.
            let _ = work(&stream, &shared);
            count.fetch_sub(1, Ordering::Relaxed);
        };
        if std::thread::Builder::new().name("metrics".into()).spawn(one).is_err() {
            connections.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Reads a request and answers it.
fn answer<S>(stream: &S, shared: &Shared, is_own: bool) -> io::Result<()>
where
    S: Limited,
    for<'a> &'a S: Read + Write,
{
    let head = requested(stream, Instant::now() + PATIENCE)?;
    let mut stream = stream;
    let Some(path) = head else {
        return whole(&mut stream, "400 Bad Request", "text/plain", "only GET is answered\n");
    };
    match path.as_str() {
        "/metrics" => {
            let text = (shared.text)();
            whole(&mut stream, "200 OK", text::CONTENT_TYPE, &text)
        }
        "/snapshot" if is_own => {
            let text = serde_json::to_string(&metrics::snapshot())?;
            whole(&mut stream, "200 OK", "application/json", &text)
        }
        "/trace" if is_own => trace(&mut stream),
        _ => whole(&mut stream, "404 Not Found", "text/plain", "try /metrics\n"),
    }
}

/// Reads a request's head, which must be complete at the deadline. Returns its path, or `None` if it
/// is not a GET.
fn requested<S>(connection: &S, deadline: Instant) -> io::Result<Option<String>>
where
    S: Limited,
    for<'a> &'a S: Read,
{
    let mut stream = connection;
    let mut head = Vec::new();
    let mut part = [0; 1024];
    loop {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&head) {
            Ok(httparse::Status::Complete(_)) if request.method == Some("GET") => {
                let path = request.path.unwrap_or_default();
                return Ok(Some(path.split('?').next().unwrap_or_default().to_owned()));
            }
            Ok(httparse::Status::Partial) if head.len() < HEAD_BYTES_MAX => {}
            _ => return Ok(None),
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        connection.limit_reads(left)?;
        match stream.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            bytes => head.extend_from_slice(&part[..bytes]),
        }
    }
}

fn whole(stream: &mut impl Write, status: &str, kind: &str, text: &str) -> io::Result<()> {
    let bytes = text.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {bytes}\r\nConnection: \
         close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(text.as_bytes())
}

/// Sends operations as they end, one batch per line, until the client has gone.
fn trace(stream: &mut impl Write) -> io::Result<()> {
    let Some(tracer) = Tracer::begin() else {
        return whole(stream, "409 Conflict", "text/plain", "another trace is running\n");
    };
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nConnection: close\r\n\r\n";
    stream.write_all(head.as_bytes())?;
    loop {
        std::thread::sleep(LOOK_EVERY);
        // An empty batch too: only a write shows whether the client is still there.
        let mut line = serde_json::to_vec(&tracer.look())?;
        line.push(b'\n');
        stream.write_all(&line)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: users of the port for Prometheus do not keep the owner from the socket. Input: as many
    /// connections to the port as it may have, all with half a head. Expected: the socket answers,
    /// and another connection to the port does not.
    #[test]
    fn a_full_port_leaves_the_socket_free() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("a.sock");
        let any = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = any.local_addr().unwrap();
        drop(any);
        Listeners::new(Some(&path), Some(address)).unwrap().serve("j", "part").unwrap();
        let mut slow = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"GET /metrics HT").unwrap();
            slow.push(stream);
        }
        let mut refused = TcpStream::connect(address).unwrap();
        assert!(matches!(refused.read(&mut [0; 1]), Ok(0) | Err(_)), "the port is full");
        let mut own = socket::connect(&path).unwrap();
        own.write_all(b"GET /snapshot HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        own.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer:?}");
        drop(slow);
    }

    /// Goal: a client that sends its head byte by byte has the time of one head in all.
    #[test]
    fn a_head_has_one_deadline() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let drip = std::thread::spawn(move || {
            let mut theirs = theirs;
            let mut sent = 0;
            while sent < HEAD_BYTES_MAX && theirs.write_all(b"G").is_ok() {
                sent += 1;
                std::thread::sleep(Duration::from_millis(20));
            }
            sent
        });
        let error = requested(&ours, Instant::now() + Duration::from_millis(300)).unwrap_err();
        assert!(
            matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock),
            "{error}"
        );
        drop(ours);
        assert!(drip.join().unwrap() < HEAD_BYTES_MAX);
    }
}
