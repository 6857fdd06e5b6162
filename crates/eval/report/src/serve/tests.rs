//! The site over real sockets: pages, and refused requests.

use super::*;
use lab::experiment::Mode;
use lab::live::Claim;
use lab::plan::Plan;
use lab::test_support::{experiment, run_synthetic};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A site that serves until it is dropped.
struct Served {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Served {
    fn of(serve: impl FnOnce(&TcpListener, &AtomicBool) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let thread = std::thread::spawn(move || serve(&listener, &flag));
        Self { address, stop, thread: Some(thread) }
    }

    fn site(place: &Path) -> Self {
        let site = Site::new(vec![place.into()], None);
        Self::of(move |listener, stop| site.serve(listener, stop).unwrap())
    }

    /// Sends bytes; returns the whole answer.
    fn send(&self, request: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.write_all(request).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        answer
    }

    /// Returns status, head and body of a path.
    fn get(&self, path: &str) -> (u16, String, Vec<u8>) {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost:1\r\n\r\n");
        split(&self.send(request.as_bytes()))
    }

    fn page(&self, path: &str) -> String {
        let (status, _, body) = self.get(path);
        assert_eq!(status, 200, "{path}");
        String::from_utf8(body).unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn split(answer: &[u8]) -> (u16, String, Vec<u8>) {
    let end = answer.windows(4).position(|it| it == b"\r\n\r\n").expect("an answer has a head");
    let head = String::from_utf8(answer[..end].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head, answer[end + 4..].to_vec())
}

/// Writes results of a synthetic experiment to a directory of this name; returns the directory.
fn results(parent: &Path, name: &str) -> PathBuf {
    let directory = parent.join(name);
    std::fs::create_dir(&directory).unwrap();
    // So quiet that six rounds decide.
    let changes = [("Known truth", "Known <truth>"), ("noise = 0.02", "noise = 0.002")];
    let plan = Plan::new(experiment(&changes, Mode::Quick));
    let database = directory.join(catalog::DATABASE);
    let mut store = Store::create(&database, &plan).unwrap();
    run_synthetic(&plan, &mut store);
    database
}

fn id(place: &Path) -> String {
    catalog::entries(&[place.into()]).found[0].id.clone()
}

/// Goal: stored experiments are listed, shown in both languages, and can be downloaded unchanged.
#[test]
fn stored_experiments_are_shown() {
    let directory = tempfile::tempdir().unwrap();
    let database = results(directory.path(), "first");
    let served = Served::site(directory.path());
    let id = id(directory.path());
    assert!(id.starts_with("first-"), "{id}");
    let index = served.page("/");
    assert!(index.contains(&format!("href=\"{id}/?language=en\">Known &lt;truth&gt;</a>")));
    assert!(index.contains("every comparison was decided"), "{index}");
    let (english, japanese) =
        (served.page(&format!("/{id}/")), served.page(&format!("/{id}/?language=ja")));
    assert!(english.contains("<h2>Verdicts</h2>") && english.contains("<html lang=\"en\">"));
    assert!(japanese.contains("<h2>判定</h2>") && japanese.contains("<html lang=\"ja\">"));
    assert!(!english.contains("http-equiv=\"refresh\""), "what is done does not change");
    for (file, start) in [
        ("results.csv", "round,position"),
        ("results.json", "{"),
        ("report.md", "# Known <truth>"),
        ("experiment.toml", "\nname = \"known\""),
        ("results.sqlite", "SQLite format 3"),
        ("charts/c10-forest.svg", "<svg"),
    ] {
        let (status, head, body) = served.get(&format!("/{id}/{file}"));
        assert_eq!(status, 200, "{file}");
        assert!(body.starts_with(start.as_bytes()), "{file}");
        assert_eq!(head.contains("attachment"), !file.starts_with("charts"), "{file}: {head}");
    }
    let copy = directory.path().join("copy.sqlite");
    std::fs::write(&copy, served.get(&format!("/{id}/results.sqlite")).2).unwrap();
    let runs = |path: &Path| Store::open(path).unwrap().runs().unwrap();
    assert_eq!(runs(&copy), runs(&database), "a copy is whole");
}

/// Goal: an experiment whose results a process has locked is waiting until it begins, also after an earlier
/// run; then it is running; without the lock it is neither.
#[test]
fn what_waits_for_its_turn_is_not_running() {
    let directory = tempfile::tempdir().unwrap();
    let database = results(directory.path(), "turn");
    let path = format!("/{}/", id(directory.path()));
    let served = Served::site(directory.path());
    let claim = Claim::on(&database).unwrap();
    let store = Store::open(&database).unwrap();
    let is_shown_as = |said: &str, others: [&str; 2]| {
        for path in ["/", &path, &format!("{path}report")] {
            let page = served.page(path);
            assert!(page.contains(said), "{path}: {said} is not in {page}");
            assert!(!others.iter().any(|other| page.contains(other)), "{path}: {page}");
        }
    };
    let (waits, runs, was) = ("It waits for its turn.", "It is running", "it was interrupted");
    store.unset("ending").unwrap();
    is_shown_as(waits, [runs, was]);
    assert!(!served.page(&path).contains("<progress"));
    assert!(served.page("/?language=ja").contains("順番を待っている。"));
    store.set("started", "2026-11-22T00:00:00Z").unwrap();
    is_shown_as(runs, [waits, was]);
    store.set("ending", was).unwrap();
    is_shown_as(waits, [runs, "<progress"]);
    store.unset("ending").unwrap();
    is_shown_as(runs, [waits, was]);
    store.set("failure", "no disk").unwrap();
    is_shown_as(waits, [runs, "<progress"]);
    drop(claim);
    assert!(!served.page(&path).contains(waits) && !served.page("/").contains(waits));
}

/// Goal: a running experiment is shown as running, with verdicts so far, on a page that reloads, and reading
/// it does not stop the writer; a killed one is shown as such.
#[test]
fn live_runs_are_shown() {
    let directory = tempfile::tempdir().unwrap();
    let database = results(directory.path(), "live");
    let path = format!("/{}/", id(directory.path()));
    let served = Served::site(directory.path());
    let store = Store::open(&database).unwrap();
    store.set("started", "2026-11-22T00:00:00Z").unwrap();
    store.unset("ending").unwrap();
    let claim = Claim::on(&database).unwrap();
    let page = served.page(&path);
    for part in ["It is running.", "http-equiv=\"refresh\"", "<progress value=", "Verdicts so far"]
    {
        assert!(page.contains(part), "{part} is not in {page}");
    }
    assert!(served.page("/").contains("It is running."));
    assert!(served.page(&format!("{path}report")).contains("this is the report so far"));
    store.set("ending", "it was interrupted").unwrap();
    drop(claim);
    assert!(!served.page(&path).contains("It is running."));
    assert!(served.page("/?language=ja").contains("中断された"));
    std::fs::write(database.with_extension("running"), "").unwrap();
    assert!(served.page(&path).contains("was killed"));
}

/// Goal: no path leads out of the experiments; an unreadable experiment is reported alone.
#[test]
fn paths_lead_nowhere_else() {
    let directory = tempfile::tempdir().unwrap();
    results(directory.path(), "first");
    let id = id(directory.path());
    std::fs::create_dir(directory.path().join("broken")).unwrap();
    std::fs::write(directory.path().join("broken/results.sqlite"), "no database").unwrap();
    let served = Served::site(directory.path());
    for path in [
        "/../../../../../../etc/passwd".to_string(),
        format!("/{id}/../../../../../etc/passwd"),
        format!("/{id}/%2e%2e/%2e%2e/etc/passwd"),
        format!("/{id}/charts/../results.sqlite"),
        format!("/{id}/charts/../../first/results.svg"),
        format!("/{id}/charts//etc/passwd.svg"),
        format!("/{id}/results.sqlite/"),
        format!("/{id}"),
        "//etc/passwd".into(),
        "/first/".into(),
        "/etc/passwd".into(),
    ] {
        assert_eq!(served.get(&path).0, 404, "{path}");
    }
    let index = served.page("/");
    assert!(index.contains("file is not a database") && index.contains("Known &lt;truth&gt;"));
}

/// Starts a server of one page with these limits.
fn bounded(limits: http::Limits) -> Served {
    Served::of(move |listener, stop| {
        http::serve(listener, stop, &limits, |_| Response::page("fine".into())).unwrap();
    })
}

/// Goal: requests are bounded in kind and size, and come from this machine.
#[test]
fn requests_are_bounded() {
    let patient = Duration::from_mins(1);
    let served = bounded(http::Limits { head_bytes_max: 1000, head_time: patient, ..http::LIMITS });
    let status = |request: &[u8]| split(&served.send(request)).0;
    let long = format!("GET / HTTP/1.1\r\nHost: localhost\r\nA: {}\r\n\r\n", "a".repeat(2000));
    for (request, wanted) in [
        ("GET / HTTP/1.1\r\nHost: localhost:8080\r\n\r\n", 200),
        ("GET / HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n", 200),
        ("GET / HTTP/1.1\r\nHost: somewhere.example\r\n\r\n", 403),
        ("GET / HTTP/1.1\r\n\r\n", 403),
        ("POST / HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nabcde", 400),
        ("no request at all\r\n\r\n", 400),
        (long.as_str(), 431),
    ] {
        assert_eq!(status(request.as_bytes()), wanted, "{request}");
    }
    let head = split(&served.send(b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    assert!(head.2.is_empty() && head.1.contains("Content-Length: 4"), "{head:?}");
}

/// Goal: a request that never completes ends; only a fixed number of connections wait at a time.
#[test]
fn waiting_is_bounded() {
    let limits = http::Limits { head_time: Duration::from_millis(50), ..http::LIMITS };
    assert_eq!(split(&bounded(limits).send(b"GET / HTTP/1.1\r\nHost: loc")).0, 408);
    let served = bounded(http::Limits {
        head_time: Duration::from_mins(1),
        connections_max: 2,
        ..http::LIMITS
    });
    let idle: Vec<TcpStream> =
        (0..2).map(|_| TcpStream::connect(served.address).unwrap()).collect();
    assert_eq!(split(&served.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")).0, 503);
    drop(idle);
}

/// Goal: without the token a site shows nothing, not even whether a page exists. The address with the token
/// redirects once to the address without it, with a cookie; the cookie is then sufficient, and a wrong one is
/// not.
#[test]
fn a_token_is_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    results(directory.path(), "one");
    let token = Token::generate();
    let site = Site::new(vec![directory.path().into()], None).with_token(token.clone());
    let served = Served::of(move |listener, stop| site.serve(listener, stop).unwrap());
    let with = |path: &str, cookie: &str| {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost:1\r\nCookie: {cookie}\r\n\r\n");
        split(&served.send(request.as_bytes()))
    };
    for path in ["/", "/nothing", "/?token=", "/?token=0", "/one/results.csv"] {
        let (status, head, body) = with(path, "token=; other=1");
        assert_eq!(status, 401, "{path}");
        assert!(!head.contains("Set-Cookie") && body.len() < 128, "{path}");
    }
    let (status, head, _) = served.get(&format!("//elsewhere/{}", token.query()));
    assert_eq!(status, 303);
    assert!(head.contains("\r\nLocation: /elsewhere/\r\n"), "{head}");
    let cookie = head.split("Set-Cookie: ").nth(1).unwrap().split(';').next().unwrap();
    assert!(head.contains("HttpOnly; SameSite=Strict"), "{head}");
    assert_eq!(with("/", &format!("other=1; {cookie}")).0, 200);
    assert_eq!(with("/nothing", cookie).0, 404);
    let half = &cookie[..cookie.len() - 1];
    assert_eq!(with("/", half).0, 401);
    assert!(!format!("{token:?}").contains(&token.query()[8..]));
}
