//! WRITEs that wait. A socket stands for `/dev/fuse`, so no mount is needed: like the device it
//! carries whole messages.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::host_endian_bytes, reason = "messages have the byte order of the machine")]

use fuse::{
    Capabilities, Errno, FileSystem, Negotiated, Operation, Request, Response, Session,
    SessionOptions, Transport, Unmounter,
};
use reactor::local::Notify;
use reactor::time::{sleep, timeout};
use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

const WRITE: u32 = 16;
const STATFS: u32 = 17;
/// Bytes of `fuse_in_header`, `fuse_write_in` and `fuse_out_header`.
const HEADER_BYTES: usize = 40;
const WRITE_BYTES: usize = 40;
const ANSWER_BYTES: usize = 16;
const DATA_BYTES: usize = 4096;
/// The session has received everything that it will after this time.
const SETTLED: Duration = Duration::from_millis(100);
/// A message or an answer that has not come after this time never comes.
const DEADLINE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(1);

/// A file system whose WRITEs wait until it lets them go on, and check their data then.
#[derive(Default)]
struct Waiting {
    /// WRITEs up to this number go on.
    through: Cell<u64>,
    changed: Notify,
}

impl Waiting {
    fn let_go_on(&self, through: u64) {
        self.through.set(through);
        self.changed.notify();
    }
}

impl FileSystem for Waiting {
    async fn handle(self: Rc<Self>, request: Request) -> Response {
        let Operation::Write(write) = &request.operation else {
            return Response::Error(Errno::NOSYS);
        };
        while self.through.get() < request.unique.0 {
            self.changed.notified().await;
        }
        let is_own = write.data.to_bytes().iter().all(|byte| *byte == request.unique.0 as u8);
        assert!(is_own, "{:?} has other data", request.unique);
        Response::Written(write.data.len() as u32)
    }
}

fn message(opcode: u32, unique: u64, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::new();
    message.extend(((HEADER_BYTES + body.len()) as u32).to_ne_bytes());
    message.extend(opcode.to_ne_bytes());
    message.extend(unique.to_ne_bytes());
    message.extend(1_u64.to_ne_bytes());
    message.resize(HEADER_BYTES, 0);
    message.extend(body);
    message
}

/// Returns a WRITE of bytes that all equal its number.
fn write(unique: u64) -> Vec<u8> {
    let mut body = vec![0; WRITE_BYTES];
    body[16..20].copy_from_slice(&(DATA_BYTES as u32).to_ne_bytes());
    body.resize(WRITE_BYTES + DATA_BYTES, unique as u8);
    message(WRITE, unique, &body)
}

/// The kernel's end of the connection.
struct Kernel(OwnedFd);

impl Kernel {
    /// Sends a request as soon as the connection has room for it.
    async fn send(&self, message: &[u8]) {
        let sent = timeout(DEADLINE, async {
            while rustix::io::write(&self.0, message).is_err() {
                sleep(PAUSE).await;
            }
        });
        sent.await.expect("the session receives requests");
    }

    /// Returns the number of the next request that is answered, if one is there.
    fn answered(&self) -> Option<u64> {
        let mut message = [0; 4096];
        while let Ok(length) = rustix::io::read(&self.0, &mut message[..]) {
            assert!(length >= ANSWER_BYTES);
            let unique = u64::from_ne_bytes(message[8..16].try_into().unwrap());
            // 0 is a notification.
            if unique != 0 {
                return Some(unique);
            }
        }
        None
    }

    /// Waits for the next answer.
    async fn answer(&self) -> u64 {
        let answer = timeout(DEADLINE, async {
            loop {
                match self.answered() {
                    Some(unique) => break unique,
                    None => sleep(PAUSE).await,
                }
            }
        });
        answer.await.expect("a request is answered")
    }
}

/// Runs a session between a file system whose WRITEs wait and a test that is the kernel.
fn run(options: &SessionOptions, test: impl AsyncFnOnce(Kernel, Rc<Waiting>) + 'static) {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let kind = SocketType::SEQPACKET;
    let (kernel, device) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
    let agreed = Negotiated {
        minor: 45,
        capabilities: Capabilities::BIG_WRITES,
        max_write_bytes: 1 << 20,
        max_readahead_bytes: 0,
        transport: Transport::Device,
        transport_reason: String::new(),
    };
    let options = SessionOptions { agreed: Some(agreed), ..options.clone() };
    let mut runtime = reactor::Runtime::new(&reactor::Config::default()).unwrap();
    runtime.block_on(async move {
        let unmounter = Unmounter::of(Path::new("/nowhere"), 0);
        let session = Session::adopt(device, unmounter, options).unwrap();
        let waiting = Rc::new(Waiting::default());
        let file_system = Rc::clone(&waiting);
        drop(reactor::spawn(async move { session.run(file_system).await }));
        test(Kernel(kernel), waiting).await;
    });
}

/// Goal: many small WRITEs that wait stop no other request, and keep their data.
#[test]
fn writes_that_wait_stop_no_other_request() {
    const WRITES: u64 = 200;
    run(&SessionOptions::default(), async |kernel, file_system| {
        for unique in 1..=WRITES {
            kernel.send(&write(unique)).await;
        }
        kernel.send(&message(STATFS, WRITES + 1, &[])).await;
        assert_eq!(kernel.answer().await, WRITES + 1);
        for unique in 1..=WRITES {
            file_system.let_go_on(unique);
            assert_eq!(kernel.answer().await, unique);
        }
    });
}

/// Goal: WRITEs that wait hold a bounded number of bytes. Beyond it the session receives nothing
/// until one of them is answered.
#[test]
fn writes_that_wait_hold_bounded_memory() {
    let options = SessionOptions {
        writes_in_flight_max: 2,
        copied_write_bytes_max: 3 * DATA_BYTES,
        ..SessionOptions::default()
    };
    run(&options, async |kernel, file_system| {
        for unique in 1..=4 {
            kernel.send(&write(unique)).await;
        }
        kernel.send(&message(STATFS, 11, &[])).await;
        assert_eq!(kernel.answer().await, 11);
        kernel.send(&write(5)).await;
        kernel.send(&message(STATFS, 12, &[])).await;
        sleep(SETTLED).await;
        assert_eq!(kernel.answered(), None);
        file_system.let_go_on(1);
        assert_eq!([kernel.answer().await, kernel.answer().await], [1, 12]);
        for unique in 2..=5 {
            file_system.let_go_on(unique);
            assert_eq!(kernel.answer().await, unique);
        }
    });
}
