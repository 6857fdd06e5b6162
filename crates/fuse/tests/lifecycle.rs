//! The lifecycle of a session: interrupts, notifications, bounds, and every kind of end.
#![allow(unsafe_code, reason = "poll, ioctl and mmap of a mounted file are called directly")]

mod support;

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use fuse::{Name, NodeId, SessionOptions, TransportChoice};
use support::harness::{self, Mounted, transports, with_all};
use support::memory::{self, Behaviour, HANGING, IOCTL_REVERSE};

/// Waits for a condition, at most ten seconds.
fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(10), "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

fn options(transport: TransportChoice) -> SessionOptions {
    SessionOptions { transport, ..memory::options() }
}

fn send_signal(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, signal).expect("the child is signalled");
}

/// Goal: a signal to a caller that waits for a lock reaches the handler, whose answer frees the
/// caller.
#[test]
fn interrupts_reach_the_handler() {
    with_all(|mounted| {
        let path = mounted.join("locked");
        let file = File::create(&path).expect("create");
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).expect("flock");
        let mut child = Command::new("flock").arg(&path).arg("true").spawn().expect("flock(1)");
        thread::sleep(Duration::from_millis(100));
        assert_eq!(mounted.observed.cancelled.load(Ordering::SeqCst), 0);
        assert!(child.try_wait().expect("wait").is_none(), "it waits for the lock");
        send_signal(&child, rustix::process::Signal::TERM);
        assert!(!child.wait().expect("wait").success());
        eventually("the handler is cancelled", || {
            mounted.observed.cancelled.load(Ordering::SeqCst) == 1
        });
    });
}

/// Goal: the kernel keeps pages, names and stored pages until a notification drops them.
#[test]
fn notifications_drop_what_is_cached() {
    for transport in transports() {
        let behaviour = Behaviour { valid: Duration::from_hours(1), ..Behaviour::default() };
        let mounted = Mounted::new(options(transport), behaviour);
        let path = mounted.join("cached");
        fs::write(&path, b"before").expect("write");
        let file = File::open(&path).expect("open");
        let node = NodeId(rustix::fs::fstat(&file).expect("stat").st_ino);
        let read = || {
            let mut bytes = [0; 6];
            file.read_exact_at(&mut bytes, 0).expect("read");
            bytes
        };
        assert_eq!(&read(), b"before");
        *mounted.observed.bytes_behind.lock().expect("not poisoned") = Some(b"after!".to_vec());
        assert_eq!(&read(), b"before", "cached");
        mounted.notifier.invalidate_inode(node, 0, 0).expect("notify");
        assert_eq!(&read(), b"after!");
        assert!(mounted.notifier.store(node, 2, b"or").expect("notify"));
        assert_eq!(&read(), b"aforr!");

        let name = Name::new(b"cached").expect("a name");
        let parent = NodeId::ROOT;
        mounted.notifier.invalidate_entry(parent, &name).expect("notify");
        mounted.notifier.expire_entry(parent, &name).expect("notify");
        assert_eq!(fs::metadata(&path).expect("found again").len(), 6);
        mounted.notifier.delete(parent, node, &name).expect("notify");
        let unknown = Name::new(b"never seen").expect("a name");
        mounted.notifier.invalidate_entry(parent, &unknown).expect("not cached is no error");
        drop(file);
        mounted.unmount();
    }
}

/// Goal: poll sleeps until the daemon wakes it, and ioctl carries data both ways.
#[test]
fn poll_and_ioctl() {
    with_all(|mounted| {
        let path = mounted.join("p");
        fs::write(&path, b"x").expect("write");
        let file = File::open(&path).expect("open");
        let descriptor = file.as_raw_fd();
        let poll = move |timeout_ms| {
            let mut poll = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
            // SAFETY: one `pollfd` that lives through the call.
            unsafe { libc::poll(&raw mut poll, 1, timeout_ms) }
        };
        assert_eq!(poll(0), 0, "not ready");
        thread::scope(|scope| {
            let waiter = scope.spawn(move || poll(10_000));
            thread::sleep(Duration::from_millis(30));
            let observed = &mounted.observed;
            observed.is_poll_ready.store(true, Ordering::SeqCst);
            let handle = observed.poll.lock().expect("not poisoned").expect("the kernel asked");
            mounted.notifier.wake_poll(handle).expect("notify");
            assert_eq!(waiter.join().expect("no panic"), 1);
        });
        let mut data = *b"abcdefgh";
        // SAFETY: the command's number says that eight bytes are read and written.
        let result = unsafe { libc::ioctl(descriptor, IOCTL_REVERSE.into(), data.as_mut_ptr()) };
        assert_eq!((result, &data), (7, b"hgfedcba"));
    });
}

/// Goal: a shared mapping is read, changed, and the change is written back.
#[test]
fn shared_mappings() {
    with_all(|mounted| {
        let path = mounted.join("m");
        fs::write(&path, vec![1; 10_000]).expect("write");
        let file = OpenOptions::new().read(true).write(true).open(&path).expect("open");
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping of 10 000 bytes, which the file has and keeps.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), 10_000, prot, flags, file.as_raw_fd(), 0) };
        assert_ne!(address, libc::MAP_FAILED);
        // SAFETY: the mapping is alive and not used elsewhere.
        let bytes = unsafe { std::slice::from_raw_parts_mut(address.cast::<u8>(), 10_000) };
        assert_eq!(bytes[9999], 1);
        bytes[5000] = 2;
        // SAFETY: the mapping is the one made above; it is not used afterwards.
        unsafe {
            assert_eq!(libc::msync(address, 10_000, libc::MS_SYNC), 0);
            assert_eq!(libc::munmap(address, 10_000), 0);
        }
        drop(file);
        assert_eq!(fs::read(&path).expect("read")[4999..5002], [1, 2, 1]);
    });
}

/// Goal: the session takes no more WRITEs from the device than allowed, and serves all. (None may be
/// copied here, so the number of buffers is the bound.)
#[test]
fn writes_in_flight_are_bounded() {
    for transport in transports() {
        if transport != TransportChoice::Device {
            continue;
        }
        let options = SessionOptions {
            writes_in_flight_max: 2,
            copied_write_bytes_max: 0,
            ..options(transport)
        };
        let write_time = Duration::from_millis(5);
        let mounted = Mounted::new(options, Behaviour { write_time, ..Behaviour::default() });
        thread::scope(|scope| {
            for writer in 0..8 {
                let path = mounted.join(&format!("w{writer}"));
                scope.spawn(move || {
                    for _ in 0..5 {
                        fs::write(&path, vec![writer; 5000]).expect("write");
                    }
                });
            }
        });
        assert!(mounted.observed.writes.load(Ordering::SeqCst) >= 40);
        assert_eq!(mounted.observed.writes_max.load(Ordering::SeqCst), 2);
        mounted.unmount();
    }
}

/// Goal: more callers than ring entries may wait (here: for one lock), and the session still serves
/// others, so the caller that holds the lock can release it.
#[test]
fn waiting_requests_do_not_starve_others() {
    for transport in transports() {
        let options = SessionOptions { ring_entries_per_queue: 1, ..options(transport) };
        let mounted = Mounted::new(options, Behaviour::default());
        let path = mounted.join("locked");
        let holder = File::create(&path).expect("create");
        let lock = rustix::fs::FlockOperation::LockExclusive;
        rustix::fs::flock(&holder, lock).expect("flock");
        thread::scope(|scope| {
            for _ in 0..20 {
                let file = File::open(&path).expect("open");
                scope.spawn(move || rustix::fs::flock(&file, lock).expect("granted in the end"));
            }
            thread::sleep(Duration::from_millis(50));
            fs::write(mounted.join("meanwhile"), b"served").expect("write");
            drop(holder);
        });
        mounted.unmount();
    }
}

/// Goal: an abort frees callers, cancels handlers, and ends the session cleanly, with a stubborn
/// handler still running; the mount goes away.
#[test]
fn aborts_end_everything() {
    for transport in transports() {
        let stubborn_time = Duration::from_millis(50);
        let behaviour = Behaviour { stubborn_time, ..Behaviour::default() };
        let mut mounted = Mounted::new(options(transport), behaviour);
        let path = mounted.join(HANGING);
        fs::write(&path, b"never read").expect("write");
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut file = File::open(&path).expect("open");
                file.read(&mut [0; 10]).expect_err("aborted").raw_os_error()
            });
            let observed = &mounted.observed;
            eventually("the read arrives", || observed.hanging.load(Ordering::SeqCst) > 0);
            mounted.unmounter.abort().expect("abort");
            let errno = reader.join().expect("no panic");
            assert!(matches!(errno, Some(libc::ECONNABORTED | libc::ENOTCONN)), "{errno:?}");
        });
        mounted.finish();
        assert!(mounted.observed.cancelled.load(Ordering::SeqCst) > 0);
        assert!(mounted.observed.is_destroyed());
        mounted.unmounter.unmount().expect("unmount");
        assert!(fs::read_dir(mounted.path()).expect("the directory below").next().is_none());
        mounted.unmounter.unmount().expect("twice does no harm");
    }
}

/// Goal: unmounting while files are open ends names at once and the session at the last close.
#[test]
fn unmount_waits_for_open_files() {
    for transport in transports() {
        let mut mounted = Mounted::new(options(transport), Behaviour::default());
        let path = mounted.join("open");
        fs::write(&path, b"kept").expect("write");
        let file = File::open(&path).expect("open");
        mounted.unmounter.unmount().expect("unmount");
        assert!(!path.exists());
        let mut bytes = [0; 4];
        file.read_exact_at(&mut bytes, 0).expect("still served");
        assert_eq!(&bytes, b"kept");
        drop(file);
        mounted.finish();
    }
}

const SERVE: &str = "FUSE_TEST_SERVE";

/// Serves a mount in a process that another test kills; not a test of its own.
#[test]
fn serve_in_a_process_to_be_killed() {
    let Ok(arguments) = std::env::var(SERVE) else { return };
    let (transport, path) = arguments.split_once(':').expect("two arguments");
    let transport = match transport {
        "uring" => TransportChoice::IoUring,
        _ => TransportChoice::Device,
    };
    let (started, start) = mpsc::channel();
    thread::spawn(move || {
        start.recv().expect("it starts");
        println!("ready");
    });
    let (path, behaviour) = (PathBuf::from(path), Behaviour::default());
    harness::serve(&path, options(transport), behaviour, Arc::default(), &started)
        .expect("it serves");
}

/// Goal: when the daemon is killed with requests in flight, callers get an error, and its successor
/// unmounts what it left.
#[test]
fn killed_daemons_leave_nothing() {
    for transport in transports() {
        let directory = tempfile::tempdir().expect("a directory");
        let kind = if transport == TransportChoice::IoUring { "uring" } else { "device" };
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "serve_in_a_process_to_be_killed", "--nocapture"])
            .env(SERVE, format!("{kind}:{}", directory.path().display()))
            .stdout(Stdio::null())
            .spawn()
            .expect("the daemon starts");
        let hanging = directory.path().join(HANGING);
        eventually("it is mounted", || {
            let table = fs::read_to_string("/proc/self/mountinfo").expect("the mount table");
            table.contains(directory.path().to_str().expect("UTF-8"))
        });
        fs::write(&hanging, b"x").expect("write");
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut file = File::open(&hanging).expect("open");
                file.read(&mut [0; 1]).expect_err("the daemon dies").raw_os_error()
            });
            thread::sleep(Duration::from_millis(100));
            child.kill().expect("kill -9");
            child.wait().expect("it is dead");
            let errno = reader.join().expect("no panic");
            assert!(matches!(errno, Some(libc::ECONNABORTED | libc::ENOTCONN)), "{errno:?}");
        });
        assert!(fs::metadata(&hanging).is_err(), "dead, but still mounted");
        fuse::unmount_stale(directory.path()).expect("unmount");
        assert!(fs::read_dir(directory.path()).expect("list").next().is_none());
        fuse::unmount_stale(directory.path()).expect("twice does no harm");
    }
}

/// Goal: impossible mount points are refused with an error that names them.
#[test]
fn bad_mount_points_are_refused() {
    let options = memory::options;
    let missing = PathBuf::from("/nonexistent/place");
    let error = fuse::Session::mount(&missing, &fuse::MountOptions::default(), options());
    let message = error.expect_err("missing").to_string();
    assert!(message.contains("/nonexistent/place"), "{message}");
    let file = tempfile::NamedTempFile::new().expect("a file");
    let error = fuse::Session::mount(file.path(), &fuse::MountOptions::default(), options());
    assert!(matches!(error, Err(fuse::FuseError::MountPoint { .. })), "{error:?}");
    let zero = SessionOptions { max_write_bytes: 5000, ..options() };
    let error = fuse::Session::mount(file.path(), &fuse::MountOptions::default(), zero);
    assert!(matches!(error, Err(fuse::FuseError::Limit { .. })), "{error:?}");
}
