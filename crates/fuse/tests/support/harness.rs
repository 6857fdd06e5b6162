//! Mounts the in-memory file system for one test and serves it on a thread of its own. After a
//! deadline the harness aborts the connection, so that a test that hangs fails instead.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use fuse::{
    FuseError, MountOptions, Negotiated, Notifier, Session, SessionOptions, Transport,
    TransportChoice, Unmounter,
};
use tempfile::TempDir;

use super::memory::{Behaviour, Memory, Observed};

const DEADLINE: Duration = Duration::from_secs(30);

/// Returns whether mounts can be tested here; with `CI=true` they must be.
pub fn can_mount() -> bool {
    let Err(error) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") else {
        return true;
    };
    let is_ci = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(!is_ci, "CI=true, but /dev/fuse cannot be opened: {error}");
    eprintln!("skipped: /dev/fuse cannot be opened: {error}");
    false
}

/// Returns the transports that can be tested here.
pub fn transports() -> Vec<TransportChoice> {
    if !can_mount() {
        return Vec::new();
    }
    let mut transports = vec![TransportChoice::Device];
    let engine = reactor::engine::choice().expect("a reactor can be made");
    if engine.kind == reactor::engine::Kind::Epoll {
        eprintln!("skipped with io_uring: the engine is {engine}");
        return transports;
    }
    match fuse::enable_uring() {
        Ok(()) => transports.push(TransportChoice::IoUring),
        Err(reason) => eprintln!("skipped with io_uring: {reason}"),
    }
    transports
}

/// Calls a test with every transport and both ways of answering, at once and later.
pub fn with_all(test: impl Fn(&Mounted)) {
    for transport in transports() {
        for is_delayed in [false, true] {
            eprintln!("{transport:?}, delayed answers: {is_delayed}");
            let behaviour = Behaviour { is_delayed, ..Behaviour::default() };
            let options = SessionOptions { transport, ..super::memory::options() };
            let mounted = Mounted::new(options, behaviour);
            let expected = match transport {
                TransportChoice::IoUring => Transport::IoUring,
                _ => Transport::Device,
            };
            assert_eq!(mounted.negotiated.transport, expected);
            test(&mounted);
            mounted.unmount();
        }
    }
}

/// A file system that is mounted and served.
pub struct Mounted {
    directory: TempDir,
    pub negotiated: Negotiated,
    pub notifier: Notifier,
    pub unmounter: Unmounter,
    pub observed: Arc<Observed>,
    server: Option<thread::JoinHandle<Result<(), FuseError>>>,
    watchdog: Option<mpsc::Sender<()>>,
}

impl Mounted {
    pub fn new(options: SessionOptions, behaviour: Behaviour) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().to_path_buf();
        let observed = Arc::new(Observed::default());
        let (started, start) = mpsc::channel();
        let seen = Arc::clone(&observed);
        let server = thread::spawn(move || serve(&path, options, behaviour, seen, &started));
        let (notifier, unmounter) = start.recv_timeout(DEADLINE).expect("the mount is made");
        let negotiated = observed.negotiated();
        let (watchdog, stop) = mpsc::channel();
        let aborter = unmounter.clone();
        thread::spawn(move || {
            if stop.recv_timeout(DEADLINE) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("the test takes too long: aborting the connection");
                aborter.abort().expect("the connection is aborted");
            }
        });
        let (server, watchdog) = (Some(server), Some(watchdog));
        Self { directory, negotiated, notifier, unmounter, observed, server, watchdog }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Unmounts and checks that serving ended well.
    pub fn unmount(mut self) {
        self.unmounter.unmount().expect("it is unmounted");
        self.finish();
        assert!(self.observed.is_destroyed(), "the file system was notified of the end");
    }

    /// Waits for the server to end, which it must do without an error.
    pub fn finish(&mut self) {
        let server = self.server.take().expect("it runs");
        server.join().expect("the server does not panic").expect("the session ends cleanly");
        self.watchdog = None;
    }
}

impl Drop for Mounted {
    /// After a failure, frees the callers in this process that still wait; otherwise it could not
    /// end.
    fn drop(&mut self) {
        if self.server.is_some() {
            let _ = self.unmounter.abort();
            let _ = self.unmounter.unmount();
        }
    }
}

/// Mounts and serves a file system on this thread until it is unmounted.
pub fn serve(
    path: &Path,
    options: SessionOptions,
    behaviour: Behaviour,
    observed: Arc<Observed>,
    started: &mpsc::Sender<(Notifier, Unmounter)>,
) -> Result<(), FuseError> {
    let config = reactor::Config { sqe128: true, ..reactor::Config::default() };
    let mut runtime = reactor::Runtime::new(&config).expect("a reactor");
    let session = Session::mount(path, &MountOptions::default(), options)?;
    let handles = Mutex::new(Some((session.notifier(), session.unmounter())));
    let started = started.clone();
    let memory = Rc::new(Memory::new(behaviour, observed, move || {
        let handles = handles.lock().expect("not poisoned").take();
        started.send(handles.expect("started once")).expect("the test waits");
    }));
    runtime.block_on(async {
        allow_runners();
        session.run(memory).await
    })
}

/// Lets a thread for each CPU serve, as mounts of the file system do.
#[allow(unsafe_code, reason = "threads then share what is one thread's alone otherwise")]
fn allow_runners() {
    // SAFETY: the tests' file systems keep no state of threads.
    unsafe { reactor::relay::allow(Vec::new(), reactor::Spin::default()) };
}
