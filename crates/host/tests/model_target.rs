//! Goal: over real sockets, a host connects to a small model target, and all its functions work:
//! I/O of all sizes, digests, queues, discovery, events, reconnecting, deadlines.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod model;

use host::{
    ConnectOptions, ConnectionEnd, Controller, ControllerEvent, Error, InterruptedWrites, Namespace,
};
use model::{Knobs, Model, Shared};
use nvme::opcode::NvmOpcode;
use nvme::{Nqn, Nsid, Status};
use reactor::local::Notify;
use reactor::{Buffer, Chunk, Runtime, SocketOptions, TcpListener, TcpStream};
use std::cell::RefCell;
use std::net::{Shutdown, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

const BYTES: usize = 8 << 20;

struct Server {
    address: SocketAddr,
    streams: Rc<RefCell<Vec<TcpStream>>>,
    poke: Rc<Notify>,
    accept: reactor::JoinHandle<()>,
}

impl Server {
    async fn start(shared: &Rc<Shared>, address: &str) -> Self {
        let listener = loop {
            // The kernel may still be closing the former listener.
            match TcpListener::bind(address.parse().unwrap(), &SocketOptions::default()) {
                Ok(listener) => break listener,
                Err(_) => reactor::time::sleep(Duration::from_millis(5)).await,
            }
        };
        let address = listener.local_addr();
        let streams = Rc::new(RefCell::new(Vec::new()));
        let poke = Rc::new(Notify::new());
        let (shared, kept, poked) = (Rc::clone(shared), Rc::clone(&streams), Rc::clone(&poke));
        let accept = reactor::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                kept.borrow_mut().push(stream.clone());
                let _serve = reactor::spawn(serve(stream, Model::new(&shared), Rc::clone(&poked)));
            }
        });
        Self { address, streams, poke, accept }
    }

    /// Closes the listener and all connections.
    async fn kill(&self) {
        self.accept.abort();
        for stream in self.streams.take() {
            let _ = stream.shutdown(Shutdown::Both).await;
        }
    }
}

async fn serve(stream: TcpStream, mut model: Model, poke: Rc<Notify>) {
    let mut receive = stream.recv(Buffer::with_capacity(65_536), 0..65_536);
    loop {
        let woken = reactor::race(&mut receive, poke.notified()).await;
        if let reactor::Either::First((result, mut buffer)) = woken {
            let n = result.unwrap_or(0);
            if n == 0 {
                return;
            }
            model.feed(&buffer[..n]);
            buffer.clear();
            receive = stream.recv(buffer, 0..65_536);
        }
        let output = model.output();
        let (result, _) = stream.send_vectored(vec![Chunk::copy_from(&output)]).await;
        if result.is_err() {
            return;
        }
    }
}

fn options(address: SocketAddr) -> ConnectOptions {
    let nqn = Nqn::new("nqn.2026-11.test:model").unwrap();
    let mut options = ConnectOptions::new(address, nqn);
    options.reconnect_delay = Duration::from_millis(100);
    options
}

fn run<F: Future>(future: F) -> F::Output {
    let mut runtime = Runtime::new(&reactor::Config::default()).unwrap();
    runtime.block_on(async {
        reactor::time::timeout(Duration::from_mins(1), future).await.expect("the test hangs")
    })
}

fn pattern(seed: usize, len: usize) -> Buffer {
    let bytes: Vec<u8> = (0..len).map(|i| ((i / 512 + seed) * 7 + i) as u8).collect();
    Buffer::copy_from(&bytes)
}

fn blank(len: usize) -> Buffer {
    let mut buffer = Buffer::with_capacity(len);
    buffer.set_len(len);
    buffer.fill(0xee);
    buffer
}

async fn check_sizes(namespace: &Namespace) {
    for (index, len) in [512, 4096, 8192, 8704, 131_072, 1 << 20, 3_000_320].into_iter().enumerate()
    {
        let offset = (index as u64) * 512;
        let bytes = pattern(index, len);
        namespace.write(offset, Buffer::copy_from(&bytes).freeze()).await.unwrap();
        let read = namespace.read(offset, blank(len)).await.unwrap();
        assert!(read[..] == bytes[..], "{len} bytes at {offset}");
    }
}

/// Goal: no queue pair has more outstanding commands than the controller announces (MAXCMD); with a
/// controller that announces no limit, the depth of the queues is used.
#[test]
fn queues_are_as_deep_as_the_controller_allows() {
    run(async {
        for (maxcmd, depth) in [(0, 64), (5, 5), (1000, 64)] {
            let shared = Shared::new(Knobs { maxcmd, ..Knobs::default() }, BYTES);
            let server = Server::start(&shared, "127.0.0.1:0").await;
            let mut options = options(server.address);
            options.queue_size = 64;
            let controller = Controller::connect(options).await.unwrap();
            assert_eq!(controller.info().unwrap().queue_size, depth, "MAXCMD {maxcmd}");
            let namespace = Namespace::open(&controller, Nsid(1)).await.unwrap();
            check_sizes(&namespace).await;
            controller.disconnect().await.unwrap();
        }
    });
}

/// Goal: reads return the written data, for all sizes, digests, PDU limits and queue counts.
#[test]
fn reads_return_what_writes_wrote() {
    for (digests, capsule, pieces, queues) in [
        (false, 8192, 131_072, 1),
        (true, 0, 4096, 1),
        (true, 4096, 20_480, 3),
        (false, 0, 16_384, 2),
    ] {
        run(async {
            let knobs = Knobs {
                has_header_digest: digests,
                has_data_digest: digests,
                in_capsule_bytes: capsule,
                maxh2cdata_bytes: pieces,
                r2t_bytes: pieces * 2,
                c2h_bytes: pieces,
                uses_success: !digests,
                cpda: if digests { 7 } else { 0 },
                ..Knobs::default()
            };
            let shared = Shared::new(knobs, BYTES);
            let server = Server::start(&shared, "127.0.0.1:0").await;
            let mut options = options(server.address);
            (options.hdr_digest, options.data_digest) = (digests, digests);
            options.nr_io_queues = queues;
            let controller = Controller::connect(options).await.unwrap();
            let info = controller.info().unwrap();
            assert_eq!((info.hdr_digest, info.data_digest), (digests, digests));
            assert_eq!(info.nr_io_queues, queues);
            let namespace = Namespace::open(&controller, Nsid(1)).await.unwrap();
            check_sizes(&namespace).await;
            controller.disconnect().await.unwrap();
        });
    }
}

/// Goal: flush, discard and write zeroes reach the target, and zeros are read afterwards.
#[test]
fn zeroes_discards_and_flushes_work() {
    run(async {
        let shared = Shared::new(Knobs::default(), BYTES);
        let server = Server::start(&shared, "127.0.0.1:0").await;
        let controller = Controller::connect(options(server.address)).await.unwrap();
        let namespace = Namespace::open(&controller, Nsid(1)).await.unwrap();
        namespace.write(0, pattern(1, 1 << 20).freeze()).await.unwrap();
        namespace.write_zeroes(4096, 8192).await.unwrap();
        namespace.discard(65_536, 4096).await.unwrap();
        namespace.flush().await.unwrap();
        assert_eq!(shared.flushes.get(), 1);
        let read = namespace.read(0, blank(1 << 20)).await.unwrap();
        let mut expected = pattern(1, 1 << 20);
        expected[4096..12_288].fill(0);
        expected[65_536..69_632].fill(0);
        assert!(read[..] == expected[..]);
    });
}

/// Goal: a controller may be disconnected right after it was connected, many times.
#[test]
fn connecting_and_disconnecting_is_orderly() {
    run(async {
        let shared = Shared::new(Knobs::default(), BYTES);
        let server = Server::start(&shared, "127.0.0.1:0").await;
        for _ in 0..20 {
            let controller = Controller::connect(options(server.address)).await.unwrap();
            controller.disconnect().await.unwrap();
        }
    });
}

/// Goal: the host refuses invalid ranges with an error that states the fault.
#[test]
fn impossible_requests_are_refused() {
    run(async {
        let shared = Shared::new(Knobs::default(), BYTES);
        let server = Server::start(&shared, "127.0.0.1:0").await;
        let controller = Controller::connect(options(server.address)).await.unwrap();
        let namespace = Namespace::open(&controller, Nsid(1)).await.unwrap();
        let commands = shared.commands.get();
        for (offset, len) in [(1, 512), (0, 100), (BYTES as u64, 512), (u64::MAX - 511, 512)] {
            let result = namespace.read(offset, blank(len)).await;
            assert!(matches!(result, Err(Error::InvalidRequest { .. })), "{result:?}");
        }
        assert_eq!(shared.commands.get(), commands);
        let missing = Namespace::open(&controller, Nsid(9)).await;
        assert!(matches!(missing, Err(Error::NoSuchNamespace(Nsid(9)))), "{missing:?}");
    });
}

/// Goal: errors contain the status of the command; transient ones are retried, those with Do Not
/// Retry are not.
#[test]
fn statuses_decide_on_retries() {
    run(async {
        let shared = Shared::new(Knobs::default(), BYTES);
        let server = Server::start(&shared, "127.0.0.1:0").await;
        let controller = Controller::connect(options(server.address)).await.unwrap();
        let namespace = Namespace::open(&controller, Nsid(1)).await.unwrap();
        shared.status.set(Some(Status::COMMAND_INTERRUPTED));
        namespace.read(0, blank(512)).await.unwrap();
        shared.status.set(Some(Status::COMMAND_INTERRUPTED.do_not_retry()));
        let result = namespace.read(0, blank(512)).await;
        assert!(matches!(result, Err(Error::Io { .. })), "{result:?}");
        shared.status.set(Some(Status::UNRECOVERED_READ_ERROR));
        let result = namespace.read(512, blank(512)).await;
        assert!(result.unwrap_err().to_string().contains("Unrecovered Read Error"));
    });
}

/// Goal: discovery returns all entries, also when the page changes between reads.
#[test]
fn discovery_lists_what_is_there() {
    run(async {
        let shared = Shared::new(Knobs::default(), BYTES);
        let server = Server::start(&shared, "127.0.0.1:0").await;
        for index in 0..20 {
            shared.add_entry(&format!("nqn.2026-11.test:{index}"), server.address);
        }
        let mut options = options(server.address);
        options.subsystem_nqn = Nqn::discovery();
        let controller = Controller::connect_discovery(options).await.unwrap();
        let log = controller.discover().await.unwrap();
        assert_eq!(log.entries.len(), 20);
        assert_eq!(log.entries[19].subsystem_nqn().unwrap().as_str(), "nqn.2026-11.test:19");
        assert_eq!(log.entries[0].service(), server.address.port().to_string());
    });
}

/// Goal: asynchronous events reach the user.
#[test]
fn events_are_reported() {
    run(async {
        let shared = Shared::new(Knobs::default(), BYTES);
        let server = Server::start(&shared, "127.0.0.1:0").await;
        let controller = Controller::connect(options(server.address)).await.unwrap();
        shared.event.set(Some(2 | 4 << 16));
        server.poke.notify();
        let event = controller.next_event().await;
        assert!(matches!(event, ControllerEvent::NamespacesChanged(list) if list == [Nsid(1)]));
        shared.event.set(Some(2 | 0xf0 << 8 | 0x70 << 16));
        server.poke.notify();
        assert!(matches!(controller.next_event().await, ControllerEvent::DiscoveryChanged));
    });
}

/// Goal: a load survives the target's restart: every request succeeds, and reads return the right
/// data.
#[test]
fn a_restarted_target_interrupts_but_does_not_fail() {
    run(async {
        let shared = Shared::new(Knobs::default(), BYTES);
        let server = Server::start(&shared, "127.0.0.1:0").await;
        let controller = Controller::connect(options(server.address)).await.unwrap();
        let namespace = Namespace::open(&controller, Nsid(1)).await.unwrap();
        let tasks: Vec<_> = (0..8)
            .map(|task| {
                let namespace = namespace.clone();
                reactor::spawn(async move {
                    for round in 0..60 {
                        let offset = task * 65_536;
                        let bytes = pattern(round, 65_536);
                        let written = Buffer::copy_from(&bytes).freeze();
                        namespace.write(offset, written).await.unwrap();
                        let read = namespace.read(offset, blank(65_536)).await.unwrap();
                        assert!(read[..] == bytes[..]);
                    }
                })
            })
            .collect();
        let address = server.address.to_string();
        let mut server = server;
        for _ in 0..3 {
            reactor::time::sleep(Duration::from_millis(20)).await;
            server.kill().await;
            reactor::time::sleep(Duration::from_millis(20)).await;
            server = Server::start(&shared, &address).await;
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert!(controller.reconnects() >= 1);
        assert!(matches!(controller.next_event().await, ControllerEvent::Disconnected(_)));
        assert!(matches!(controller.next_event().await, ControllerEvent::Reconnected));
    });
}

/// Goal: a target that returns as another incarnation fails the handle until that incarnation is
/// adopted.
#[test]
fn a_new_incarnation_is_no_silent_loss() {
    run(async {
        let shared = Shared::new(Knobs::default(), BYTES);
        let server = Server::start(&shared, "127.0.0.1:0").await;
        let controller = Controller::connect(options(server.address)).await.unwrap();
        let namespace = Namespace::open(&controller, Nsid(1)).await.unwrap();
        namespace.write(0, pattern(1, 4096).freeze()).await.unwrap();
        server.kill().await;
        shared.incarnation.set(2);
        let server = Server::start(&shared, &server.address.to_string()).await;
        for _ in 0..2 {
            let result = namespace.flush().await;
            assert!(matches!(result, Err(Error::WritesLost { .. })), "{result:?}");
        }
        assert_eq!(shared.flushes.get(), 0, "nothing was sent to the new incarnation");
        namespace.adopt_incarnation();
        namespace.flush().await.unwrap();
        assert_eq!(namespace.incarnation(), Some(2));
        server.kill().await;
    });
}

/// Goal: writes whose connection ended are not repeated if the user forbids it; reads are repeated.
#[test]
fn interrupted_writes_may_be_failed_instead() {
    run(async {
        let shared = Shared::new(Knobs::default(), BYTES);
        let server = Server::start(&shared, "127.0.0.1:0").await;
        let mut options = options(server.address);
        options.interrupted_writes = InterruptedWrites::Fail;
        let controller = Controller::connect(options).await.unwrap();
        let namespace = Namespace::open(&controller, Nsid(1)).await.unwrap();
        shared.blackhole.set(Some(NvmOpcode::WRITE.0));
        let other = namespace.clone();
        let write = reactor::spawn(async move { other.write(0, blank(512).freeze()).await });
        reactor::time::sleep(Duration::from_millis(20)).await;
        server.kill().await;
        shared.blackhole.set(None);
        let server = Server::start(&shared, &server.address.to_string()).await;
        let result = write.await.unwrap();
        assert!(matches!(result, Err(Error::WriteInterrupted(_))), "{result:?}");
        namespace.read(0, blank(512)).await.unwrap();
        server.kill().await;
    });
}

/// Goal: a target that never answers ends the connection at the command's deadline, and with
/// `fast_io_fail_tmo` every request ends in time.
#[test]
fn a_silent_target_is_given_up_in_time() {
    run(async {
        let shared = Shared::new(Knobs::default(), BYTES);
        let server = Server::start(&shared, "127.0.0.1:0").await;
        let mut options = options(server.address);
        options.io_timeout = Duration::from_millis(100);
        options.fast_io_fail_tmo = Some(Duration::from_millis(300));
        let controller = Controller::connect(options).await.unwrap();
        let namespace = Namespace::open(&controller, Nsid(1)).await.unwrap();
        shared.blackhole.set(Some(NvmOpcode::READ.0));
        let result = namespace.read(0, blank(131_072)).await;
        assert!(matches!(result, Err(Error::DeadlineExceeded(_))), "{result:?}");
        let event = controller.next_event().await;
        let ControllerEvent::Disconnected(Error::ConnectionLost(end)) = event else {
            panic!("{event:?}")
        };
        assert!(matches!(end, ConnectionEnd::CommandTimeout(_)), "{end}");
        shared.blackhole.set(None);
        namespace.read(0, blank(131_072)).await.unwrap();
        drop(server);
    });
}

/// Goal: a controller that stays away is given up after `ctrl_loss_tmo`, and its requests fail.
#[test]
fn a_lost_controller_fails_its_requests() {
    run(async {
        let shared = Shared::new(Knobs::default(), BYTES);
        let server = Server::start(&shared, "127.0.0.1:0").await;
        let mut options = options(server.address);
        options.ctrl_loss_tmo = Some(Duration::from_millis(200));
        let controller = Controller::connect(options).await.unwrap();
        let namespace = Namespace::open(&controller, Nsid(1)).await.unwrap();
        server.kill().await;
        let result = namespace.read(0, blank(512)).await;
        assert!(matches!(result, Err(Error::ControllerLost(_))), "{result:?}");
        let gone = Controller::connect(self::options(server.address)).await;
        assert!(matches!(gone, Err(Error::Connect { .. })), "{gone:?}");
    });
}

/// Goal: requests beyond the number of slots wait for their turn, and dropped ones do no harm.
#[test]
fn requests_beyond_the_queue_wait() {
    run(async {
        let shared = Shared::new(Knobs::default(), BYTES);
        let server = Server::start(&shared, "127.0.0.1:0").await;
        let mut options = options(server.address);
        options.queue_size = 3;
        let controller = Controller::connect(options).await.unwrap();
        assert_eq!(controller.info().unwrap().queue_size, 3);
        let namespace = Namespace::open(&controller, Nsid(1)).await.unwrap();
        let tasks: Vec<_> = (0..100_u64)
            .map(|index| {
                let namespace = namespace.clone();
                reactor::spawn(async move {
                    let request = namespace.read(index * 4096, blank(4096));
                    if index % 3 == 0 {
                        // Dropped at some point of its life.
                        let patience = Duration::from_micros(index * 20);
                        let _ = reactor::time::timeout(patience, request).await;
                    } else {
                        request.await.unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        check_sizes(&namespace).await;
    });
}
