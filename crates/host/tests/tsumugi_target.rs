//! Goal: host and target of this project work together over loopback: data of all sizes, with and
//! without digests, several queues, discovery, events, and a restart of the target during a load.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use block::{Backing, Device, MemoryBacking};
use host::{ConnectOptions, Controller, ControllerEvent, Error, Namespace};
use nvme::{Nqn, Nsid};
use reactor::{Buffer, Chunk, Runtime, Segment, Segments};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use target::{
    AdmissionMode, Admissions, HostAccess, Limits, Server, ServerOptions, Subsystem, Target,
};

const BYTES: u64 = 16 << 20;
const NQN: &str = "nqn.2026-11.test:disk";

fn nqn() -> Nqn {
    Nqn::new(NQN).unwrap()
}

fn run<F: Future>(future: F) -> F::Output {
    let mut runtime = Runtime::new(&reactor::Config::default()).unwrap();
    runtime.block_on(async {
        reactor::time::timeout(Duration::from_mins(1), future).await.expect("the test hangs")
    })
}

fn try_start(
    backing: &Arc<dyn Backing>,
    address: SocketAddr,
) -> Result<(Arc<Target>, Server), target::Error> {
    let admissions = Admissions::new(AdmissionMode::AnyHost);
    let target = Target::new(Limits::default(), admissions).unwrap();
    let subsystem = Subsystem::new(nqn(), "SERIAL", "Test", HostAccess::Any);
    let subsystem = target.add_subsystem(subsystem).unwrap();
    let namespace = target::Namespace::new(Nsid(1), [5; 16], Arc::clone(backing), false);
    subsystem.add_namespace(namespace).unwrap();
    let options = ServerOptions { listen: vec![address], ..ServerOptions::default() };
    let server = Server::start(&target, &options)?;
    Ok((target, server))
}

fn start(backing: &Arc<dyn Backing>, address: SocketAddr) -> (Arc<Target>, Server) {
    try_start(backing, address).unwrap()
}

/// Starts a target at an address whose former listener the kernel may still be closing.
async fn restart(backing: &Arc<dyn Backing>, address: SocketAddr) -> (Arc<Target>, Server) {
    loop {
        match try_start(backing, address) {
            Ok(started) => return started,
            Err(target::Error::Listen { .. }) => {
                reactor::time::sleep(Duration::from_millis(5)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn memory() -> Arc<dyn Backing> {
    Arc::new(MemoryBacking::new(BYTES, 4096).unwrap())
}

fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn options(address: SocketAddr) -> ConnectOptions {
    let mut options = ConnectOptions::new(address, nqn());
    options.reconnect_delay = Duration::from_millis(100);
    options
}

fn pattern(seed: usize, len: usize) -> Buffer {
    let bytes: Vec<u8> = (0..len).map(|i| ((i / 4096 + seed) * 13 + i * 7) as u8).collect();
    Buffer::copy_from(&bytes)
}

/// Goal: reads return the written data, for every combination of digests and queue counts.
#[test]
fn data_survives_transport() {
    for (hdr_digest, data_digest, nr_io_queues) in
        [(false, false, 1), (true, false, 1), (false, true, 2), (true, true, 4)]
    {
        run(async {
            let (_target, server) = start(&memory(), any_port());
            let mut options = options(server.addresses()[0]);
            (options.hdr_digest, options.data_digest) = (hdr_digest, data_digest);
            options.nr_io_queues = nr_io_queues;
            let controller = Controller::connect(options).await.unwrap();
            let info = controller.info().unwrap();
            assert_eq!((info.hdr_digest, info.data_digest), (hdr_digest, data_digest));
            assert_eq!(info.nr_io_queues, nr_io_queues);
            let namespace = Namespace::open(&controller, Nsid(1)).await.unwrap();
            assert_eq!(namespace.geometry().size(), BYTES);
            for (index, len) in
                [4096, 8192, 12_288, 131_072, 1 << 20, 5 << 20].into_iter().enumerate()
            {
                let offset = index as u64 * 4096;
                let bytes = pattern(index, len);
                namespace.write(offset, Buffer::copy_from(&bytes).freeze()).await.unwrap();
                let read = namespace.read(offset, Buffer::zeroed(len)).await.unwrap();
                assert!(read[..] == bytes[..], "{len} bytes at {offset}");
            }
            namespace.write_zeroes(8192, 65_536).await.unwrap();
            namespace.flush().await.unwrap();
            let read = namespace.read(8192, Buffer::zeroed(65_536)).await.unwrap();
            assert!(read.iter().all(|byte| *byte == 0));
            controller.disconnect().await.unwrap();
        });
    }
}

/// Goal: the namespace is a block device like any other: segments, chunks, incarnation.
#[test]
fn a_namespace_is_a_device() {
    run(async {
        let backing = memory();
        let (_target, server) = start(&backing, any_port());
        let controller = Controller::connect(options(server.addresses()[0])).await.unwrap();
        let namespace = Namespace::open(&controller, Nsid(1)).await.unwrap();
        let device: &dyn Device = &namespace;
        assert_eq!(device.incarnation(), backing.incarnation());
        let bytes = pattern(3, 3 << 20);
        let chunks = bytes.chunks(1000).map(Chunk::copy_from).collect();
        device.write_chunks(4096, chunks).await.unwrap();
        let whole = device.read(4096, 3 << 20).await.unwrap();
        assert!(*whole.to_bytes() == bytes[..]);
        let region = reactor::Region::new(65_536).unwrap();
        let mut segments = Segments::new();
        segments.push(Segment::Buffer(Buffer::with_capacity(1 << 20), 4096..4096 + (1 << 19)));
        segments.push(Segment::Region(region.range(4096, 8192)));
        let filled = device.read_into(4096, segments).await.unwrap();
        let buffer = filled.into_iter().next().and_then(Segment::into_buffer).unwrap();
        assert!(buffer[4096..] == bytes[..1 << 19]);
        assert_eq!(region.range(4096, 8192).to_buffer()[..], bytes[1 << 19..(1 << 19) + 8192]);
        // The request is sent before its future is polled.
        let write = device.write(0, Chunk::from(pattern(9, 4096)));
        reactor::time::sleep(Duration::from_millis(50)).await;
        let read = device.read(0, 4096).await.unwrap();
        assert!(*read.to_bytes() == pattern(9, 4096)[..]);
        write.await.unwrap();
        assert!(device.read(BYTES, 4096).await.is_err());
        device.flush().await.unwrap();
    });
}

/// Goal: discovery shows the subsystem and its address.
#[test]
fn discovery_finds_the_subsystem() {
    run(async {
        let (_target, server) = start(&memory(), any_port());
        let address = server.addresses()[0];
        let mut options = options(address);
        options.subsystem_nqn = Nqn::discovery();
        let controller = Controller::connect_discovery(options).await.unwrap();
        let log = controller.discover().await.unwrap();
        let entry = log
            .entries
            .iter()
            .find(|entry| entry.subsystem_nqn().is_ok_and(|nqn| nqn.as_str() == NQN))
            .unwrap();
        assert_eq!(entry.service(), address.port().to_string());
        controller.disconnect().await.unwrap();
    });
}

/// Goal: the user gets an event for an added namespace, and finds it in the list.
#[test]
fn a_new_namespace_is_announced() {
    run(async {
        let (target, server) = start(&memory(), any_port());
        let controller = Controller::connect(options(server.addresses()[0])).await.unwrap();
        assert_eq!(controller.namespace_ids().await.unwrap(), [Nsid(1)]);
        let subsystem = target.subsystems().into_iter().find(|it| it.nqn().as_str() == NQN);
        let namespace = target::Namespace::new(Nsid(2), [6; 16], memory(), false);
        subsystem.unwrap().add_namespace(namespace).unwrap();
        target.notify_controllers();
        let event = controller.next_event().await;
        assert!(matches!(&event, ControllerEvent::NamespacesChanged(list) if *list == [Nsid(2)]));
        assert_eq!(controller.namespace_ids().await.unwrap(), [Nsid(1), Nsid(2)]);
    });
}

/// Goal: a handle never writes to another namespace that took its identifier, while the connection
/// stays; one that grows, or that sees others come, is used on.
#[test]
fn a_replaced_namespace_is_noticed_on_a_living_connection() {
    run(async {
        let (target, server) = start(&memory(), any_port());
        let subsystem = target.subsystem(&nqn()).unwrap();
        let controller = Controller::connect(options(server.addresses()[0])).await.unwrap();
        let namespace = Namespace::open(&controller, Nsid(1)).await.unwrap();
        let write = |seed| namespace.write(0, pattern(seed, 4096).freeze());
        write(1).await.unwrap();

        let other = target::Namespace::new(Nsid(2), [6; 16], memory(), false);
        subsystem.add_namespace(other).unwrap();
        target.notify_controllers();
        changed(&controller).await;
        write(2).await.unwrap();

        subsystem.remove_namespace(Nsid(1)).unwrap();
        let foreign = memory();
        let second = target::Namespace::new(Nsid(1), [7; 16], Arc::clone(&foreign), false);
        subsystem.add_namespace(second).unwrap();
        target.notify_controllers();
        changed(&controller).await;
        let error = write(3).await.unwrap_err();
        assert!(matches!(error, Error::NamespaceReplaced(Nsid(1))), "{error}");
        let bytes = foreign.attach().read(0, 4096).await.unwrap().into_shared();
        assert!(bytes.iter().all(|byte| *byte == 0), "the new namespace was written to");
        assert_eq!(controller.reconnects(), 0);
    });
}

/// Goal: a handle does not discard or zero other bytes than asked for, after the namespace has got
/// other blocks under the same identifiers.
#[test]
fn a_namespace_with_other_blocks_is_not_the_one_that_was_opened() {
    run(async {
        let (target, server) = start(&memory(), any_port());
        let subsystem = target.subsystem(&nqn()).unwrap();
        let small: Arc<dyn Backing> = Arc::new(MemoryBacking::new(BYTES, 512).unwrap());
        let exchange = |backing: &Arc<dyn Backing>| {
            drop(subsystem.remove_namespace(Nsid(1)));
            let same = target::Namespace::new(Nsid(1), [7; 16], Arc::clone(backing), false);
            subsystem.add_namespace(same).unwrap();
            target.notify_controllers();
        };
        exchange(&small);
        let controller = Controller::connect(options(server.addresses()[0])).await.unwrap();
        let namespace = Namespace::open(&controller, Nsid(1)).await.unwrap();
        namespace.write(65536, pattern(1, 65536).freeze()).await.unwrap();

        let large = memory();
        large.attach().write(0, Chunk::from(pattern(2, 1 << 20))).await.unwrap();
        exchange(&large);
        changed(&controller).await;
        let error = namespace.discard(65536, 65536).await.unwrap_err();
        assert!(matches!(error, Error::NamespaceReplaced(Nsid(1))), "{error}");
        let bytes = large.attach().read(0, 1 << 20).await.unwrap().into_shared();
        assert!(bytes[..] == pattern(2, 1 << 20)[..], "other bytes were discarded");
    });
}

/// Waits until the controller has reported a change of namespaces.
async fn changed(controller: &Controller) {
    while !matches!(controller.next_event().await, ControllerEvent::NamespacesChanged(_)) {}
}

/// Goal: a load continues after the target's restart if the device is the same incarnation.
#[test]
fn a_load_survives_the_targets_restart() {
    run(async {
        let backing = memory();
        let (_target, mut server) = start(&backing, any_port());
        let address = server.addresses()[0];
        let controller = Controller::connect(options(address)).await.unwrap();
        let namespace = Namespace::open(&controller, Nsid(1)).await.unwrap();
        let tasks: Vec<_> = (0..4_u64)
            .map(|task| {
                let namespace = namespace.clone();
                reactor::spawn(async move {
                    for round in 0..80 {
                        let bytes = pattern(round, 131_072);
                        let offset = task << 20;
                        let written = Buffer::copy_from(&bytes).freeze();
                        namespace.write(offset, written).await.unwrap();
                        let read = namespace.read(offset, Buffer::zeroed(131_072)).await.unwrap();
                        assert!(read[..] == bytes[..]);
                    }
                })
            })
            .collect();
        for _ in 0..2 {
            reactor::time::sleep(Duration::from_millis(30)).await;
            server.shutdown().await.unwrap();
            (_, server) = restart(&backing, address).await;
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert!(controller.reconnects() >= 1);
    });
}

/// Goal: the host notices that a target has returned with another memory device.
#[test]
fn a_fresh_memory_device_is_not_taken_for_the_old_one() {
    run(async {
        let (_target, server) = start(&memory(), any_port());
        let address = server.addresses()[0];
        let controller = Controller::connect(options(address)).await.unwrap();
        let namespace = Namespace::open(&controller, Nsid(1)).await.unwrap();
        namespace.write(0, pattern(1, 4096).freeze()).await.unwrap();
        server.shutdown().await.unwrap();
        let (_target, _server) = restart(&memory(), address).await;
        let read = namespace.read(0, Buffer::zeroed(4096)).await;
        assert!(matches!(read, Err(Error::WritesLost { .. })), "{read:?}");
    });
}

/// Goal: a host that is not admitted gets the reason and does not retry.
#[test]
fn strangers_get_a_reason() {
    run(async {
        let admissions = Admissions::new(AdmissionMode::Controlled);
        let target = Target::new(Limits::default(), admissions).unwrap();
        target.add_subsystem(Subsystem::new(nqn(), "SERIAL", "Test", HostAccess::Any)).unwrap();
        let listen = ServerOptions { listen: vec![any_port()], ..ServerOptions::default() };
        let server = Server::start(&target, &listen).unwrap();
        let result = Controller::connect(options(server.addresses()[0])).await;
        assert!(matches!(result, Err(Error::Refused { .. })), "{result:?}");
        let mut wrong = options(server.addresses()[0]);
        wrong.subsystem_nqn = Nqn::new("nqn.2026-11.test:nothing").unwrap();
        let result = Controller::connect(wrong).await;
        assert!(matches!(result, Err(Error::Refused { .. })), "{result:?}");
    });
}
