//! Changes of a running target: namespaces, hosts, keys, subsystems and listeners are added and
//! removed.

use crate::basics::{pair, pattern, rw};
use crate::client::{Client, HostIdentity, Transfer};
use crate::server::{BLOCK, SIZE, TestServer, nqn};
use block::{Backing, Device, Geometry, Incarnation, IoFuture, Joined, MemoryBacking};
use nvme::async_event::AsyncEvent;
use nvme::command::{GetLogPage, Identify, SetFeatures};
use nvme::feature::{AsyncEventConfig, fid};
use nvme::identify::{IdentifyController, IdentifyNamespace, cns};
use nvme::log_page::lid;
use nvme::opcode::NvmOpcode;
use nvme::{ControllerId, Nqn, Nsid, Status, SubmissionQueueEntry};
use reactor::{Chunk, Segments};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use target::{
    AdmissionMode, Admissions, HostAccess, Limits, Namespace, RateLimits, Server, ServerOptions,
    Subsystem, Target,
};

const PATIENCE: Duration = Duration::from_secs(10);
const BLOCKS: u64 = SIZE / BLOCK as u64;

/// Memory whose reads wait until a gate is opened.
#[derive(Clone)]
struct Gated {
    memory: MemoryBacking,
    is_open: Arc<AtomicBool>,
}

impl Backing for Gated {
    fn geometry(&self) -> Geometry {
        Backing::geometry(&self.memory)
    }

    fn incarnation(&self) -> Incarnation {
        Backing::incarnation(&self.memory)
    }

    fn attach(&self) -> Rc<dyn Device> {
        Rc::new(self.clone())
    }
}

impl Device for Gated {
    fn geometry(&self) -> Geometry {
        Backing::geometry(&self.memory)
    }

    fn incarnation(&self) -> Incarnation {
        Backing::incarnation(&self.memory)
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Chunk> {
        let this = self.clone();
        IoFuture::boxed(async move {
            while !this.is_open.load(Ordering::SeqCst) {
                reactor::time::sleep(Duration::from_millis(1)).await;
            }
            this.memory.read(offset, len).await
        })
    }

    fn read_into(&self, offset: u64, segments: Segments) -> IoFuture<Segments> {
        self.memory.read_into(offset, segments)
    }

    fn write(&self, offset: u64, chunk: Chunk) -> IoFuture<()> {
        self.memory.write(offset, chunk)
    }

    fn write_chunks(&self, offset: u64, chunks: Vec<Chunk>) -> IoFuture<()> {
        self.memory.write_chunks(offset, chunks)
    }

    fn flush(&self) -> IoFuture<()> {
        self.memory.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.memory.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.memory.write_zeroes(offset, len)
    }
}

fn memory(blocks: u64) -> Arc<dyn Backing> {
    Arc::new(MemoryBacking::new(blocks * u64::from(BLOCK), BLOCK).unwrap())
}

fn on(opcode: NvmOpcode, nsid: u32, lba: u64) -> SubmissionQueueEntry {
    let mut sqe = rw(opcode, lba, 1);
    sqe.nsid.set(nsid);
    sqe
}

fn read(io: &mut Client, nsid: u32, lba: u64) -> Status {
    io.command(on(NvmOpcode::READ, nsid, lba), None, BLOCK).0.status()
}

fn identify(admin: &mut Client, cns: u8, nsid: u32) -> Vec<u8> {
    let sqe = Identify { cns, ..Identify::default() }.encode(Nsid(nsid));
    let (cqe, data) = admin.command(sqe, None, 4096);
    assert!(cqe.status().is_success());
    data
}

/// Waits until a value is dropped. Returns false if that takes too long.
fn closes<T: ?Sized>(weak: &Weak<T>) -> bool {
    (0..1000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        weak.strong_count() == 0
    })
}

fn dynamic(address: SocketAddr, identity: &HostIdentity, subsystem: &Nqn) -> Result<(), Status> {
    let mut client = Client::open(address);
    let result = client.connect(identity, subsystem, (0, ControllerId::DYNAMIC), (32, 0, 0));
    result.map(drop).map_err(|(status, _)| status)
}

/// Goal: a namespace that grows and shrinks keeps its identity, data, counts and protection; hosts
/// get an event, see the new size, and can access exactly that size.
#[test]
fn namespaces_are_resized() {
    let server = TestServer::start();
    let (mut admin, mut io) = pair(&server, &HostIdentity::number(1));
    let config = AsyncEventConfig::NAMESPACE_ATTRIBUTES;
    let set =
        SetFeatures { fid: fid::ASYNC_EVENT_CONFIG, dword11: config, ..SetFeatures::default() };
    assert!(admin.command(set.encode(Nsid(0)), None, 0).0.status().is_success());
    let data = pattern(3, 1);
    io.command(rw(NvmOpcode::WRITE, 5, 1), Some((Transfer::InCapsule, &data)), 0);
    let namespace = server.subsystem.namespace(Nsid(1)).unwrap();
    let joined: Arc<dyn Backing> =
        Arc::new(Joined::new(Arc::clone(namespace.backing()), memory(8)).unwrap());
    for (blocks, backing) in
        [(BLOCKS + 8, Arc::clone(&joined)), (8, joined.resized(8 * u64::from(BLOCK)).unwrap())]
    {
        let event = admin.submit(SubmissionQueueEntry::async_event_request(), None, 0);
        server.subsystem.replace_namespace(namespace.on_backing(backing)).unwrap();
        server.target.notify_controllers();
        let (cqe, _) = admin.wait(event);
        assert_eq!(AsyncEvent::from_dword(cqe.dword0()), AsyncEvent::NAMESPACE_ATTRIBUTES_CHANGED);
        let get =
            GetLogPage { lid: lid::CHANGED_NAMESPACES, dwords: 1024, ..GetLogPage::default() };
        let (_, page) = admin.command(get.encode(Nsid::BROADCAST).unwrap(), None, 4096);
        assert_eq!(page[..8], [1, 0, 0, 0, 0, 0, 0, 0]);
        let page = identify(&mut admin, cns::NAMESPACE, 1);
        let seen = IdentifyNamespace::from_prefix(&page).unwrap();
        assert_eq!((seen.nsze.get(), seen.nguid), (blocks, [7; 16]));
        assert!(io.command(rw(NvmOpcode::READ, 5, 1), None, BLOCK).1 == data);
        assert!(read(&mut io, 1, blocks - 1).is_success());
        assert!(read(&mut io, 1, blocks).is(Status::LBA_OUT_OF_RANGE));
    }
    let counts = server.subsystem.namespace(Nsid(1)).unwrap().counts();
    assert_eq!((counts.write_commands, counts.read_commands), (1, 4));
    let none = Namespace::new(Nsid(9), [9; 16], memory(1), false);
    assert!(server.subsystem.replace_namespace(none).is_err(), "there is no namespace to replace");
    server.stop();
}

/// Goal: commands that run on a namespace when it is removed or replaced end normally, later ones
/// do not reach it, and its device is closed then: with other commands running, and on an idle
/// connection.
#[test]
fn a_removed_namespace_is_closed_after_its_last_command() {
    for cores in [1, 2] {
        let server = TestServer::with(Limits::default(), AdmissionMode::AnyHost, cores);
        let (admin, id) = Client::admin(server.address, &HostIdentity::number(1), &nqn());
        let [mut idle, mut io] = [1, 2].map(|qid| {
            let mut io = Client::open(server.address);
            io.connect(&HostIdentity::number(1), &nqn(), (qid, id), (128, 4, 0)).unwrap();
            io
        });
        let [gate, other] = [2, 3].map(|nsid| {
            let inner = MemoryBacking::new(SIZE, BLOCK).unwrap();
            let gated = Gated { memory: inner, is_open: Arc::default() };
            let gate = Arc::clone(&gated.is_open);
            let namespace = Namespace::new(Nsid(nsid), [2; 16], Arc::new(gated), false);
            server.subsystem.add_namespace(namespace).unwrap();
            gate
        });
        server.target.notify_controllers();
        assert!(read(&mut idle, 1, 0).is_success());
        let running = io.submit(on(NvmOpcode::READ, 2, 0), None, BLOCK);
        let beside = io.submit(on(NvmOpcode::READ, 3, 0), None, BLOCK);
        assert!(read(&mut io, 1, 0).is_success());
        let removed = Arc::downgrade(&server.subsystem.remove_namespace(Nsid(2)).unwrap());
        server.target.notify_controllers();
        assert!(read(&mut io, 2, 0).is(Status::INVALID_NAMESPACE));
        assert!(read(&mut idle, 2, 0).is(Status::INVALID_NAMESPACE));
        std::thread::sleep(Duration::from_millis(50));
        assert!(removed.strong_count() > 0, "a command runs on it");
        gate.store(true, Ordering::SeqCst);
        assert!(io.wait(running).0.status().is_success());
        assert!(closes(&removed), "no command runs on it, although one runs on another namespace");
        // Its identifier is free, and a new namespace may take its entry while a command runs on
        // another.
        let again = Namespace::new(Nsid(2), [3; 16], memory(4), false);
        server.subsystem.add_namespace(again).unwrap();
        server.target.notify_controllers();
        assert!(
            read(&mut io, 2, 3).is_success() && read(&mut io, 2, 4).is(Status::LBA_OUT_OF_RANGE)
        );
        assert!(read(&mut idle, 2, 3).is_success(), "this connection is idle from now on");
        let idle_only = Arc::downgrade(&server.subsystem.remove_namespace(Nsid(2)).unwrap());
        server.target.notify_controllers();
        assert!(closes(&idle_only));
        other.store(true, Ordering::SeqCst);
        assert!(io.wait(beside).0.status().is_success());
        drop((admin, idle));
        server.stop();
    }
}

/// Goal: a write that waits for its data, for memory or because of a limit fails if its namespace
/// is removed meanwhile. It does not reach another namespace that then has the same identifier.
#[test]
fn a_waiting_write_does_not_reach_a_namespace_of_the_same_identifier() {
    let mib = (1 << 20) / BLOCK;
    let data = pattern(1, mib);
    let on_second = |opcode| {
        let mut sqe = rw(opcode, 0, mib);
        sqe.nsid.set(2);
        sqe
    };
    // Memory is for one command, so the others wait for memory, or because of the limit.
    let limits = Limits { data_bytes_in_flight_max: 1 << 20, ..Limits::default() };
    for first in [RateLimits::default(), RateLimits { commands: Some(1), bytes: None }] {
        let server = TestServer::with(limits.clone(), AdmissionMode::AnyHost, 1);
        let (_admin, mut io) = pair(&server, &HostIdentity::number(1));
        let add = |limits| {
            let namespace = Namespace::new(Nsid(2), [2; 16], memory(512), false);
            namespace.set_rate_limits(limits);
            server.subsystem.add_namespace(namespace).unwrap();
            server.target.notify_controllers();
        };
        add(first);
        io.hold_r2ts = true;
        let write = |io: &mut Client| {
            io.submit(on_second(NvmOpcode::WRITE), Some((Transfer::R2t, &data)), 0)
        };
        let waiting: Vec<u16> = (0..8).map(|_| write(&mut io)).collect();
        while io.r2ts.is_empty() {
            io.receive();
        }
        // The target has received all of them.
        assert!(io.command(SubmissionQueueEntry::flush(Nsid(1)), None, 0).0.status().is_success());
        server.subsystem.remove_namespace(Nsid(2)).unwrap();
        add(RateLimits::default());
        let (cid, tag, offset, length) = io.r2ts[0];
        io.answer_r2t(cid, tag, offset, length);
        for cid in waiting {
            let status = io.wait(cid).0.status();
            assert!(status.is(Status::INVALID_NAMESPACE), "{cid}: {status}");
            assert!(status.is_do_not_retry(), "{cid}: {status}");
        }
        assert_eq!(io.r2ts.len(), 1, "no other data is requested");
        io.hold_r2ts = false;
        let (cqe, back) = io.command(on_second(NvmOpcode::READ), None, 1 << 20);
        assert!(cqe.status().is_success());
        assert!(back.iter().all(|&byte| byte == 0), "the new namespace is untouched");
        // The memory of the failed commands is free.
        let last = write(&mut io);
        assert!(io.wait(last).0.status().is_success());
        server.stop();
    }
}

/// Goal: a host that is no longer allowed loses its controllers and gets no new one; another host
/// continues.
#[test]
fn removed_hosts_are_dropped() {
    let server = TestServer::start();
    let hosts = [HostIdentity::number(1), HostIdentity::number(2)];
    let all = HostAccess::List(hosts.iter().map(|identity| identity.name.clone()).collect());
    assert_eq!(server.target.set_access(&server.subsystem, all), 0);
    let (_admin, mut stays) = pair(&server, &hosts[0]);
    let (mut admin, mut goes) = pair(&server, &hosts[1]);
    let one = HostAccess::List([hosts[0].name.clone()].into());
    assert_eq!(server.target.set_access(&server.subsystem, one.clone()), 1);
    assert!(goes.wait_closed(PATIENCE) && admin.wait_closed(PATIENCE));
    assert_eq!(server.subsystem.access(), one);
    assert!(read(&mut stays, 1, 0).is_success());
    let refused = dynamic(server.address, &hosts[1], &nqn()).unwrap_err();
    assert!(refused.is(Status::CONNECT_INVALID_HOST));
    assert!(dynamic(server.address, &hosts[0], &nqn()).is_ok());
    assert_eq!(server.target.set_access(&server.subsystem, HostAccess::Any), 0);
    assert!(dynamic(server.address, &hosts[1], &nqn()).is_ok());
    server.stop();
}

/// Goal: Identify reports a write cache if namespaces with one may be added, although there is none
/// now.
#[test]
fn a_write_cache_may_come() {
    let server = TestServer::start();
    for expected in [0, IdentifyController::VWC_PRESENT] {
        let (mut admin, _) = Client::admin(server.address, &HostIdentity::number(1), &nqn());
        let page = identify(&mut admin, cns::CONTROLLER, 0);
        let vwc = IdentifyController::from_prefix(&page).unwrap().vwc;
        assert_eq!(vwc & IdentifyController::VWC_PRESENT, expected);
        server.subsystem.expect_any_namespace();
    }
    server.stop();
}

/// Goal: listeners are added and removed while connections of other listeners, and of the removed
/// one, are served; hosts reach an added subsystem at once.
#[test]
fn listeners_come_and_go() {
    let config = reactor::Config::default();
    reactor::Runtime::new(&config).unwrap().block_on(async {
        let target =
            Target::new(Limits::default(), Admissions::new(AdmissionMode::AnyHost)).unwrap();
        let add = |name: &Nqn| {
            let subsystem = Subsystem::new(name.clone(), "serial", "model", HostAccess::Any);
            subsystem.add_namespace(Namespace::new(Nsid(1), [7; 16], memory(8), false)).unwrap();
            target.add_subsystem(subsystem).unwrap();
        };
        add(&nqn());
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        for cores in [1, 2] {
            let options = ServerOptions { listen: vec![any], cores, ..ServerOptions::default() };
            let mut server = Server::start(&target, &options).unwrap();
            let first = server.addresses()[0];
            let second = server.listen(any).unwrap();
            assert_eq!(server.addresses(), [first, second]);
            let is_in_use = matches!(server.listen(second), Err(target::Error::Listen { .. }));
            assert!(is_in_use);
            let open =
                move || async move { Client::admin(second, &HostIdentity::number(1), &nqn()).0 };
            let mut client = reactor::thread::spawn("host", &config, open).unwrap().await.unwrap();
            assert!(server.unlisten(second).await && !server.unlisten(second).await);
            assert_eq!(target.listeners(), [first]);
            let mut is_closed = false;
            for _ in 0..5000 {
                // The kernel closes the socket when the reactor has cancelled its accept.
                reactor::time::sleep(Duration::from_millis(2)).await;
                is_closed = std::net::TcpStream::connect(second).is_err();
                if is_closed {
                    break;
                }
            }
            assert!(is_closed, "the target still listens there");
            let other = Nqn::new(&format!("nqn.2026-01.io.tsumugi:other{cores}")).unwrap();
            add(&other);
            let work = move || async move {
                let alive = client.command(SubmissionQueueEntry::keep_alive(), None, 0);
                assert!(alive.0.status().is_success(), "its connection stays");
                Client::admin(first, &HostIdentity::number(1), &other);
            };
            reactor::thread::spawn("host", &config, work).unwrap().await.unwrap();
            assert!(server.unlisten(first).await);
            server.shutdown().await.unwrap();
        }
    });
}
