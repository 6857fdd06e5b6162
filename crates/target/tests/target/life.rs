//! The life of a controller: events, aborts, features, log pages, keep alive, reset, discovery.

use crate::basics::{pair, rw};
use crate::client::{Client, HostIdentity, Transfer};
use crate::server::{BLOCK, TestServer, nqn};
use block::{Backing, Fault, FaultPlan, FileBacking, FileOptions, Incarnation, MemoryBacking};
use nvme::async_event::AsyncEvent;
use nvme::command::{Abort, Feature, GetLogPage, SetFeatures};
use nvme::fabrics::PropertySet;
use nvme::feature::{AsyncEventConfig, QueueCounts, fid};
use nvme::log_page::{DISCOVERY_HEADER_BYTES, DiscoveryEntry, DiscoveryHeader, SmartHealth, lid};
use nvme::opcode::NvmOpcode;
use nvme::property::{Configuration, offset};
use nvme::{CommandId, ControllerId, Nqn, Nsid, QueueId, Status, SubmissionQueueEntry};
use std::sync::Arc;
use std::time::Duration;
use target::{AdmissionMode, HostAccess, Limits, Namespace, Subsystem};

fn set_feature(client: &mut Client, fid: u8, dword11: u32) -> Status {
    let sqe = SetFeatures { fid, dword11, ..SetFeatures::default() }.encode(Nsid(0));
    client.command(sqe, None, 0).0.status()
}

fn log_page(client: &mut Client, lid: u8, bytes: u32) -> Vec<u8> {
    let get = GetLogPage { lid, dwords: u64::from(bytes / 4), ..GetLogPage::default() };
    let (cqe, data) = client.command(get.encode(Nsid::BROADCAST).unwrap(), None, bytes);
    assert!(cqe.status().is_success(), "{}", cqe.status());
    data
}

/// An event reports a new namespace once, until its log page has been read.
#[test]
fn namespace_changes_are_reported() {
    let server = TestServer::start();
    let (mut admin, _) = Client::admin(server.address, &HostIdentity::number(1), &nqn());
    let config = AsyncEventConfig::NAMESPACE_ATTRIBUTES;
    assert!(set_feature(&mut admin, fid::ASYNC_EVENT_CONFIG, config).is_success());
    let first = admin.submit(SubmissionQueueEntry::async_event_request(), None, 0);
    let second = admin.submit(SubmissionQueueEntry::async_event_request(), None, 0);
    let add = |nsid| {
        let memory = Arc::new(MemoryBacking::new(1 << 20, BLOCK).unwrap());
        let namespace = Namespace::new(Nsid(nsid), [nsid as u8; 16], memory, false);
        server.subsystem.add_namespace(namespace).unwrap();
        server.target.notify_controllers();
    };
    add(2);
    let (cqe, _) = admin.wait(first);
    assert_eq!(AsyncEvent::from_dword(cqe.dword0()), AsyncEvent::NAMESPACE_ATTRIBUTES_CHANGED);
    add(3);
    admin.command(SubmissionQueueEntry::keep_alive(), None, 0);
    assert!(!admin.has_ended(second), "the event is masked until the page is read");
    let page = log_page(&mut admin, lid::CHANGED_NAMESPACES, 4096);
    assert_eq!(page[..12], [2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
    server.subsystem.remove_namespace(Nsid(2)).unwrap();
    server.target.notify_controllers();
    admin.wait(second);
    let page = log_page(&mut admin, lid::CHANGED_NAMESPACES, 4096);
    assert_eq!(page[..8], [2, 0, 0, 0, 0, 0, 0, 0]);
    server.stop();
}

/// Event requests are bounded and can be aborted. Other commands cannot, and end normally.
#[test]
fn event_requests_are_bounded_and_aborted() {
    let server = TestServer::start();
    let (mut admin, _) = Client::admin(server.address, &HostIdentity::number(1), &nqn());
    let held: Vec<u16> = (0..4)
        .map(|_| admin.submit(SubmissionQueueEntry::async_event_request(), None, 0))
        .collect();
    let (cqe, _) = admin.command(SubmissionQueueEntry::async_event_request(), None, 0);
    assert!(cqe.status().is(Status::ASYNC_EVENT_LIMIT_EXCEEDED));
    let abort = |cid| Abort { sqid: QueueId::ADMIN, cid: CommandId(cid) }.encode();
    let (cqe, _) = admin.command(abort(held[2]), None, 0);
    assert_eq!((cqe.status().is_success(), cqe.dword0()), (true, 0));
    assert!(admin.wait(held[2]).0.status().is(Status::ABORT_REQUESTED));
    let (cqe, _) = admin.command(abort(999), None, 0);
    assert_eq!((cqe.status().is_success(), cqe.dword0()), (true, 1), "there is no such command");
    server.stop();
}

/// Without keep alive commands the controller ends with all its queue pairs; other commands count
/// as keep alive.
#[test]
fn keep_alive_expires() {
    let server = TestServer::start();
    let identity = HostIdentity::number(1);
    let mut admin = Client::open(server.address);
    let dynamic = ControllerId::DYNAMIC;
    let result = admin.connect(&identity, &nqn(), (0, dynamic), (32, 0, 300)).unwrap();
    admin.enable();
    let mut io = Client::open(server.address);
    io.connect(&identity, &nqn(), (1, result.cntlid), (32, 4, 0)).unwrap();
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(100));
        io.command(rw(NvmOpcode::READ, 0, 1), None, BLOCK);
    }
    assert!(io.wait_closed(Duration::from_secs(10)), "the I/O queue pair ends with the controller");
    assert!(admin.wait_closed(Duration::from_secs(10)));
    assert!(server.target.controllers().is_empty());
    server.stop();
}

/// The features and log pages that hosts request while they connect exist and are correct.
#[test]
fn features_and_log_pages() {
    let server = TestServer::start();
    let (mut admin, mut io) = pair(&server, &HostIdentity::number(1));
    io.command(rw(NvmOpcode::READ, 0, 1), None, BLOCK);
    drop(io);
    let counts = QueueCounts::pairs(1000).to_dword();
    let sqe = SetFeatures { fid: fid::NUMBER_OF_QUEUES, dword11: counts, ..SetFeatures::default() };
    let (cqe, _) = admin.command(sqe.encode(Nsid(0)), None, 0);
    let is_in_use = cqe.status().is(Status::COMMAND_SEQUENCE_ERROR);
    assert!(is_in_use || QueueCounts::from_dword(cqe.dword0()) == QueueCounts::pairs(64));
    let get = |fid| Feature { fid, ..Feature::default() }.encode(Nsid(0));
    assert!(set_feature(&mut admin, fid::KEEP_ALIVE_TIMER, 5050).is_success());
    assert_eq!(admin.command(get(fid::KEEP_ALIVE_TIMER), None, 0).0.dword0(), 5100);
    assert!(set_feature(&mut admin, fid::HOST_ID, 1).is(Status::COMMAND_SEQUENCE_ERROR));
    assert!(set_feature(&mut admin, 0xee, 0).is(Status::INVALID_FIELD));
    let sqe = Feature { fid: fid::HOST_ID, dword11: 1, ..Feature::default() }.encode(Nsid(0));
    assert_eq!(admin.command(sqe, None, 16).1, [1; 16]);
    let stamp = [1, 2, 3, 4, 5, 0, 0, 0];
    let sqe = SetFeatures { fid: fid::TIMESTAMP, ..SetFeatures::default() }.encode(Nsid(0));
    for transfer in [Transfer::InCapsule, Transfer::R2t] {
        assert!(
            admin.command(sqe, Some((transfer, &stamp)), 0).0.status().is_success(),
            "{transfer:?}"
        );
    }
    assert_eq!(admin.command(get(fid::TIMESTAMP), None, 8).1[2..6], stamp[2..6]);
    let page = log_page(&mut admin, lid::SMART_HEALTH, 512);
    let health = SmartHealth::from_prefix(&page).unwrap();
    assert_eq!((health.hrc.get(), health.dur.get()), (1, 1));
    let errors = log_page(&mut admin, lid::ERROR, 64);
    assert_ne!(errors[0], 0, "the failed Set Features is in the error log");
    for page in [lid::SUPPORTED_PAGES, lid::FIRMWARE_SLOTS, lid::COMMAND_EFFECTS] {
        log_page(&mut admin, page, 512);
    }
    let get = GetLogPage { lid: 0xfe, dwords: 1, ..GetLogPage::default() };
    let (cqe, _) = admin.command(get.encode(Nsid::BROADCAST).unwrap(), None, 4);
    assert!(cqe.status().is(Status::INVALID_LOG_PAGE));
    server.stop();
}

/// Write protection refuses changes, and can be removed.
#[test]
fn write_protection_holds() {
    let server = TestServer::start();
    let (mut admin, mut io) = pair(&server, &HostIdentity::number(1));
    let protect = |value| {
        let fid = fid::WRITE_PROTECTION;
        SetFeatures { fid, dword11: value, ..SetFeatures::default() }.encode(Nsid(1))
    };
    assert!(admin.command(protect(1), None, 0).0.status().is_success());
    let zeroes = rw(NvmOpcode::WRITE_ZEROES, 0, 1);
    assert!(io.command(zeroes, None, 0).0.status().is(Status::NAMESPACE_WRITE_PROTECTED));
    assert!(admin.command(protect(0), None, 0).0.status().is_success());
    assert!(io.command(zeroes, None, 0).0.status().is_success());
    server.stop();
}

/// What was written is durable before write protection is acknowledged (base, "Namespace Write
/// Protection"). A flush that fails leaves the namespace writable.
#[test]
fn write_protection_flushes_first() {
    let path = std::env::temp_dir().join(format!("tsumugi-protect-{}", std::process::id()));
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    let options = FileOptions {
        block_size: Some(BLOCK),
        direct: false,
        preallocated: false,
        incarnation: Incarnation(1),
    };
    let file = Arc::new(FileBacking::open(&path, &options).unwrap());
    std::fs::remove_file(&path).unwrap();
    let plan = FaultPlan { flush_error_ppm: 1_000_000, ..FaultPlan::default() };
    let device = Fault::new(Arc::clone(&file) as Arc<dyn Backing>, 1, plan);
    let (limits, mode) = (Limits::default(), AdmissionMode::AnyHost);
    let server = TestServer::with_backing(limits, mode, 1, Arc::new(device.clone()));
    let (mut admin, mut io) = pair(&server, &HostIdentity::number(1));
    let zeroes = rw(NvmOpcode::WRITE_ZEROES, 0, 1);
    assert!(io.command(zeroes, None, 0).0.status().is_success());
    let fid = fid::WRITE_PROTECTION;
    let protect = SetFeatures { fid, dword11: 1, ..SetFeatures::default() }.encode(Nsid(1));
    assert!(admin.command(protect, None, 0).0.status().is(Status::INTERNAL_ERROR));
    assert!(io.command(zeroes, None, 0).0.status().is_success(), "it is not protected");
    device.set_plan(FaultPlan::default());
    let before = file.syncs();
    assert!(admin.command(protect, None, 0).0.status().is_success());
    assert_eq!(file.syncs(), before + 1);
    assert!(io.command(zeroes, None, 0).0.status().is(Status::NAMESPACE_WRITE_PROTECTED));
    server.stop();
}

/// A reset ends the I/O queue pairs; a shutdown completes; commands need an enabled controller.
#[test]
fn reset_and_shutdown() {
    let server = TestServer::start();
    let (mut admin, mut io) = pair(&server, &HostIdentity::number(1));
    let set = |client: &mut Client, cc: Configuration| {
        let value = u64::from(cc.0);
        let set = PropertySet { offset: offset::CC, is_8_bytes: false, value };
        assert!(client.command(set.encode(), None, 0).0.status().is_success());
    };
    set(&mut admin, Configuration(0));
    assert!(io.wait_closed(Duration::from_secs(10)));
    let (cqe, _) = admin.command(SubmissionQueueEntry::keep_alive(), None, 0);
    assert!(cqe.status().is(Status::COMMAND_SEQUENCE_ERROR));
    admin.enable();
    set(&mut admin, Configuration::ENABLE.with_shn(1));
    assert_eq!(admin.property(offset::CSTS, false) >> 2 & 3, 2, "shutdown is complete");
    server.stop();
}

/// The discovery log lists the subsystems that a host may use, and an event reports changes.
#[test]
fn discovery_lists_and_reports() {
    let server = TestServer::start();
    let (mut admin, _) = Client::admin(server.address, &HostIdentity::number(1), &Nqn::discovery());
    let read = |admin: &mut Client| {
        let page = log_page(admin, lid::DISCOVERY, 16 << 10);
        let header = *DiscoveryHeader::from_prefix(&page).unwrap();
        let entries = page[DISCOVERY_HEADER_BYTES..].chunks_exact(DiscoveryEntry::BYTES);
        let entries: Vec<DiscoveryEntry> = entries
            .take(header.numrec.get() as usize)
            .map(|entry| *DiscoveryEntry::from_prefix(entry).unwrap())
            .collect();
        (header.genctr.get(), entries)
    };
    let (generation, entries) = read(&mut admin);
    assert_eq!(entries.len(), 2, "the subsystem and discovery itself");
    assert_eq!(entries[0].subsystem_nqn().unwrap(), nqn());
    assert_eq!(entries[0].service(), server.address.port().to_string());
    let config = AsyncEventConfig::DISCOVERY_CHANGE;
    assert!(set_feature(&mut admin, fid::ASYNC_EVENT_CONFIG, config).is_success());
    let event = admin.submit(SubmissionQueueEntry::async_event_request(), None, 0);
    let only = HostAccess::List([HostIdentity::number(9).name].into());
    let hidden = Nqn::new("nqn.2026-01.io.tsumugi:hidden").unwrap();
    server.target.add_subsystem(Subsystem::new(hidden, "s", "m", only)).unwrap();
    let (cqe, _) = admin.wait(event);
    assert_eq!(AsyncEvent::from_dword(cqe.dword0()), AsyncEvent::DISCOVERY_CHANGED);
    let (next, entries) = read(&mut admin);
    assert!(next > generation && entries.len() == 2, "another host's subsystem is not listed");
    let (mut allowed, _) =
        Client::admin(server.address, &HostIdentity::number(9), &Nqn::discovery());
    assert_eq!(read(&mut allowed).1.len(), 3);
    server.stop();
}

/// Connections are distributed over cores, and the target stops cleanly while they are open.
#[test]
fn several_cores_serve() {
    let server = TestServer::with(target::Limits::default(), target::AdmissionMode::AnyHost, 2);
    let identity = HostIdentity::number(1);
    let (_admin, id) = Client::admin(server.address, &identity, &nqn());
    let mut queues: Vec<Client> = (1..=4)
        .map(|qid| {
            let mut io = Client::open(server.address);
            io.connect(&identity, &nqn(), (qid, id), (32, 4, 0)).unwrap();
            io
        })
        .collect();
    for io in &mut queues {
        assert!(io.command(rw(NvmOpcode::READ, 0, 1), None, BLOCK).0.status().is_success());
    }
    server.stop();
}

/// A target whose address is still in use at its start waits for it for a bounded time.
#[test]
fn an_address_in_use_is_waited_for() {
    use target::{AdmissionMode, Admissions, Error, Limits, Server, ServerOptions, Target};
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = vec![holder.local_addr().unwrap()];
    let options = ServerOptions { listen, ..ServerOptions::default() };
    reactor::Runtime::new(&reactor::Config::default()).unwrap().block_on(async {
        let target = Target::new(Limits::default(), Admissions::new(AdmissionMode::AnyHost));
        let target = target.unwrap();
        let none = Duration::ZERO;
        let result = Server::start_patiently(&target, &options, none).await;
        assert!(matches!(result, Err(Error::Listen { .. })));
        let freed = reactor::spawn(async move {
            reactor::time::sleep(Duration::from_millis(100)).await;
            drop(holder);
        });
        let patience = Duration::from_secs(20);
        let server = Server::start_patiently(&target, &options, patience).await.unwrap();
        freed.await.unwrap();
        server.shutdown().await.unwrap();
    });
}
