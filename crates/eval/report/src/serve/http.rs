//! The part of HTTP/1.1 that a browser needs to view pages: GET and HEAD, one request per connection, all of
//! it bounded. `httparse` parses heads.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The interval at which the server checks whether to stop.
const STOP_LOOK: Duration = Duration::from_millis(100);
/// The time that a client has to close after its answer.
const LINGER: Duration = Duration::from_millis(200);
/// The largest number of header lines of a request.
const HEADERS_MAX: usize = 64;
/// The permissions of pages: their own styles and scripts, and no external resources.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                      img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Limits of requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The largest number of bytes of a request's head.
    pub(super) head_bytes_max: usize,
    /// The time limit of a request.
    pub(super) head_time: Duration,
    /// The time limit of one write of an answer.
    pub(super) write_time: Duration,
    /// The largest number of connections at a time.
    pub(super) connections_max: usize,
}

/// The limits in use.
pub(super) const LIMITS: Limits = Limits {
    head_bytes_max: 8 << 10,
    head_time: Duration::from_secs(5),
    write_time: Duration::from_secs(10),
    connections_max: 32,
};

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Request {
    /// The path as received, not decoded.
    pub(super) path: String,
    /// The part after a question mark.
    pub(super) query: String,
    /// Whether the request wants only the head of the answer.
    is_head: bool,
    /// The requested host, without port.
    host: Option<String>,
    /// The cookies as received.
    cookies: String,
}

impl Request {
    /// Returns a value of the query.
    pub(super) fn query(&self, name: &str) -> Option<&str> {
        let pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.into_iter().find(|(it, _)| *it == name).map(|(_, value)| value)
    }

    /// Returns a cookie's value.
    pub(super) fn cookie(&self, name: &str) -> Option<&str> {
        let pairs = self.cookies.split(';').filter_map(|pair| pair.trim().split_once('='));
        pairs.into_iter().find(|(it, _)| *it == name).map(|(_, value)| value)
    }
}

/// The content of an answer.
#[derive(Debug)]
pub(super) enum Body {
    /// Memory that is shared with others.
    Kept(Arc<Vec<u8>>),
    /// A file, from its start.
    File(File),
}

/// An answer.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) kind: &'static str,
    pub(super) body: Body,
    /// The file name for a download, if it is no page.
    pub(super) download: Option<String>,
    /// The address of a redirection, and its cookie.
    pub(super) moved: Option<(String, String)>,
}

impl Response {
    /// Returns a page.
    pub(super) fn page(text: String) -> Self {
        let body = Body::Kept(Arc::new(text.into_bytes()));
        Self { status: 200, kind: "text/html; charset=utf-8", body, download: None, moved: None }
    }

    /// Returns a line with an error.
    pub(super) fn wrong(status: u16, text: &str) -> Self {
        let body = Body::Kept(Arc::new(format!("{text}\n").into_bytes()));
        Self { status, kind: "text/plain; charset=utf-8", body, download: None, moved: None }
    }

    /// Redirects to this path, with the cookie.
    pub(super) fn moved(path: &str, cookie: String) -> Self {
        // Two slashes at the front would name another host.
        let path = format!("/{}", path.trim_start_matches('/'));
        Self { moved: Some((path, cookie)), ..Self::wrong(303, "it is at another address") }
    }

    /// Returns that there is no such page.
    pub(super) fn not_found() -> Self {
        Self::wrong(404, "there is nothing of this name")
    }
}

/// Answers requests, each connection on a thread of its own, until `stop` is set.
pub(super) fn serve(
    listener: &TcpListener,
    stop: &AtomicBool,
    limits: &Limits,
    answer: impl Fn(&Request) -> Response + Send + Sync + 'static,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let is_loopback = listener.local_addr()?.ip().is_loopback();
    let answer = Arc::new(answer);
    let connections = Arc::new(AtomicUsize::new(0));
    let look = Timespec::try_from(STOP_LOOK).ok();
    while !stop.load(Ordering::Relaxed) {
        let mut set = [PollFd::new(listener, PollFlags::IN)];
        match poll(&mut set, look.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(errno) => return Err(errno.into()),
        }
        // The connection may have ended meanwhile.
        let Ok((stream, _)) = listener.accept() else { continue };
        let (answer, connections) = (Arc::clone(&answer), Arc::clone(&connections));
        let limits = *limits;
        let is_full = connections.fetch_add(1, Ordering::Relaxed) >= limits.connections_max;
        let work = move || {
            let response = |request: &Request| {
                if is_loopback && !is_local(request.host.as_deref()) {
                    return Response::wrong(403, "this is for this machine alone");
                }
                answer(request)
            };
            // A client that has closed its connection gets no answer.
            let _ = if is_full {
                send(&stream, &limits, &Response::wrong(503, "too many at a time"), false)
            } else {
                exchange(&stream, &limits, response)
            };
            connections.fetch_sub(1, Ordering::Relaxed);
        };
        if is_full {
            work();
        } else {
            std::thread::Builder::new().name("page".into()).spawn(work)?;
        }
    }
    Ok(())
}

/// Returns whether a host is a name of this machine's loopback. A foreign page whose name resolves to this
/// machine would use its own name.
fn is_local(host: Option<&str>) -> bool {
    let Some(host) = host else { return false };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Reads a request and answers it.
fn exchange(
    stream: &TcpStream,
    limits: &Limits,
    answer: impl Fn(&Request) -> Response,
) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    match read_request(stream, limits)? {
        Ok(request) => {
            let response = answer(&request);
            send(stream, limits, &response, request.is_head)
        }
        Err(wrong) => send(stream, limits, &wrong, false),
    }
}

/// Returns a request, or its error.
fn read_request(mut stream: &TcpStream, limits: &Limits) -> io::Result<Result<Request, Response>> {
    let until = Instant::now() + limits.head_time;
    let mut head = Vec::new();
    let mut part = [0; 1024];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Err(Response::wrong(408, "the request took too long")));
        }
        stream.set_read_timeout(Some(left))?;
        let count = match stream.read(&mut part) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        head.extend_from_slice(&part[..count]);
        if head.len() > limits.head_bytes_max {
            return Ok(Err(Response::wrong(431, "the head of the request is too long")));
        }
        if let Some(request) = parse(&head) {
            return Ok(request);
        }
    }
}

/// Parses a request from its head; `None` while it is incomplete.
fn parse(head: &[u8]) -> Option<Result<Request, Response>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut headers);
    match parsed.parse(head) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return None,
        Err(error) => return Some(Err(Response::wrong(400, &error.to_string()))),
    }
    let method = parsed.method.unwrap_or_default();
    if !matches!(method, "GET" | "HEAD") {
        return Some(Err(Response::wrong(405, "there is GET and HEAD only")));
    }
    let header = |name: &str| parsed.headers.iter().find(|it| it.name.eq_ignore_ascii_case(name));
    if header("content-length").is_some_and(|it| it.value != b"0")
        || header("transfer-encoding").is_some()
    {
        return Some(Err(Response::wrong(400, "a request to look at pages has no body")));
    }
    let host = header("host").and_then(|it| std::str::from_utf8(it.value).ok());
    let whole = parsed.path.unwrap_or_default();
    let (path, query) = whole.split_once('?').unwrap_or((whole, ""));
    Some(Ok(Request {
        path: path.into(),
        query: query.into(),
        is_head: method == "HEAD",
        host: host.map(|host| without_port(host).into()),
        cookies: header("cookie")
            .map_or_else(String::new, |it| String::from_utf8_lossy(it.value).into_owned()),
    }))
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|it| it.is_ascii_digit()) => name,
        _ => host,
    }
}

fn send(
    mut stream: &TcpStream,
    limits: &Limits,
    response: &Response,
    is_head: bool,
) -> io::Result<()> {
    stream.set_write_timeout(Some(limits.write_time))?;
    let length = match &response.body {
        Body::Kept(bytes) => bytes.len() as u64,
        Body::File(file) => file.metadata()?.len(),
    };
    let reason = match response.status {
        200 => "OK",
        303 => "See Other",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        _ => "Bad Request",
    };
    let mut head = format!(
        "HTTP/1.1 {} {reason}\r\nContent-Type: {}\r\nContent-Length: {length}\r\n\
         Connection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
         Referrer-Policy: no-referrer\r\nContent-Security-Policy: {POLICY}\r\n",
        response.status, response.kind
    );
    if response.status == 405 {
        head.push_str("Allow: GET, HEAD\r\n");
    }
    if let Some(name) = &response.download {
        // Names are of the fixed set: no quotes, no ends of lines.
        let _ = write!(head, "Content-Disposition: attachment; filename=\"{name}\"\r\n");
    }
    if let Some((path, cookie)) = &response.moved {
        // A path of a request has no ends of lines: its parser refuses them.
        let _ = write!(head, "Location: {path}\r\nSet-Cookie: {cookie}\r\n");
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes())?;
    match &response.body {
        _ if is_head => {}
        Body::Kept(bytes) => stream.write_all(bytes)?,
        Body::File(file) => drop(io::copy(&mut file.take(length), &mut stream)?),
    }
    // Closing a connection with unread input may lose the last answer.
    stream.shutdown(Shutdown::Write)?;
    stream.set_read_timeout(Some(LINGER))?;
    io::copy(&mut stream.take(limits.head_bytes_max as u64), &mut io::sink()).map(drop)
}
