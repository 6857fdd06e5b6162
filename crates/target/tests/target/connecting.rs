//! Which connections become queue pairs, and the addresses in the discovery log.

use crate::basics::rw;
use crate::client::{Client, HostIdentity, Transfer};
use crate::server::{BLOCK, SIZE, TestServer, nqn};
use block::MemoryBacking;
use nvme::command::{GetLogPage, SetFeatures};
use nvme::fabrics::{Connect, ConnectData, ConnectInvalid, PropertyGet, PropertySet};
use nvme::feature::{QueueCounts, fid};
use nvme::log_page::{DISCOVERY_HEADER_BYTES, DiscoveryEntry, DiscoveryHeader, lid};
use nvme::opcode::{FabricsType, NvmOpcode};
use nvme::property::{Configuration, offset};
use nvme::{ControllerId, HostId, Nqn, Nsid, QueueId, Status, SubmissionQueueEntry, U32};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use target::{AdmissionMode, Admissions, HostAccess, Limits, Subsystem};

/// Connects with a host name of arbitrary bytes.
fn connect_as(
    server: &TestServer,
    (qid, cntlid): (u16, ControllerId),
    subsystem: &Nqn,
    name: &[u8],
) -> Result<(Client, ControllerId), (Status, u32)> {
    let connect = Connect { qid: QueueId(qid), sq_entries: 16, ..Connect::default() };
    let mut data = ConnectData::new(HostId([1; 16]), cntlid, subsystem, &nqn());
    data.hostnqn = [0; 256];
    data.hostnqn[..name.len()].copy_from_slice(name);
    let mut client = Client::open(server.address);
    let (cqe, _) =
        client.command(connect.encode().unwrap(), Some((Transfer::InCapsule, data.bytes())), 0);
    let status = cqe.status();
    let id = ControllerId((cqe.dword0() & 0xffff) as u16);
    if status.is_success() { Ok((client, id)) } else { Err((status, cqe.dword0())) }
}

fn set_cc(client: &mut Client, cc: Configuration) {
    let value = u64::from(cc.0);
    let set = PropertySet { offset: offset::CC, is_8_bytes: false, value };
    assert!(client.command(set.encode(), None, 0).0.status().is_success());
}

/// Goal: the target accepts a host without a name (SPDK's perf) if it accepts any host, and only
/// then.
#[test]
fn a_host_without_a_name_is_let_in_where_any_host_is() {
    let dynamic = (0, ControllerId::DYNAMIC);
    let server = TestServer::start();
    let (mut admin, id) = connect_as(&server, dynamic, &nqn(), b"").unwrap();
    admin.enable();
    let (mut io, _) = connect_as(&server, (1, id), &nqn(), b"").unwrap();
    assert!(io.command(rw(NvmOpcode::READ, 0, 1), None, BLOCK).0.status().is_success());
    let named = HostIdentity::number(1).name;
    let (status, dword0) =
        connect_as(&server, (2, id), &nqn(), named.as_str().as_bytes()).err().unwrap();
    assert!(
        status.is(Status::CONNECT_INVALID_PARAMETERS),
        "all queues of a controller belong to one host"
    );
    assert_eq!(ConnectInvalid::from_dword(dword0), ConnectInvalid::HOSTNQN);
    let (status, dword0) = connect_as(&server, dynamic, &nqn(), b"no name").err().unwrap();
    assert!(status.is(Status::CONNECT_INVALID_PARAMETERS));
    assert_eq!(ConnectInvalid::from_dword(dword0), ConnectInvalid::HOSTNQN);
    let only = HostAccess::List([named.clone()].into());
    let listed = Nqn::new("nqn.2026-01.io.tsumugi:listed").unwrap();
    server.target.add_subsystem(Subsystem::new(listed.clone(), "s", "m", only)).unwrap();
    let (status, _) = connect_as(&server, dynamic, &listed, b"").err().unwrap();
    assert!(status.is(Status::CONNECT_INVALID_HOST), "a subsystem's list has no empty name");
    server.stop();

    let mode = AdmissionMode::HostList([named].into());
    let server = TestServer::with(Limits::default(), mode, 1);
    let (status, _) = connect_as(&server, dynamic, &nqn(), b"").err().unwrap();
    assert!(status.is(Status::CONNECT_INVALID_HOST), "a target's list has no empty name");
    server.stop();

    let server = TestServer::with(Limits::default(), AdmissionMode::Controlled, 1);
    let (status, _) = connect_as(&server, dynamic, &nqn(), b"").err().unwrap();
    assert!(status.is(Status::CONNECT_INVALID_HOST), "the identifier is not admitted");
    server.stop();
}

/// Goal: the discovery log of a target that listens at a wildcard address names the address by
/// which the host has connected, never the wildcard.
#[test]
fn discovery_names_the_address_by_which_the_host_came() {
    for (listen, connect, named) in [
        ("0.0.0.0:0", "127.0.0.1", "127.0.0.1"),
        ("0.0.0.0:0", "127.0.0.2", "127.0.0.2"),
        ("[::]:0", "::1", "::1"),
        ("[::]:0", "127.0.0.3", "127.0.0.3"),
    ] {
        let memory = Arc::new(MemoryBacking::new(SIZE, BLOCK).unwrap());
        let admissions = Admissions::new(AdmissionMode::AnyHost);
        let listen = listen.parse().unwrap();
        let server = TestServer::listening(listen, Limits::default(), admissions, 1, memory);
        let address = SocketAddr::new(connect.parse().unwrap(), server.address.port());
        let (mut admin, _) = Client::admin(address, &HostIdentity::number(1), &Nqn::discovery());
        let get = GetLogPage { lid: lid::DISCOVERY, dwords: 4096, ..GetLogPage::default() };
        let (_, page) = admin.command(get.encode(Nsid(0)).unwrap(), None, 16 << 10);
        let count = DiscoveryHeader::from_prefix(&page).unwrap().numrec.get() as usize;
        assert_eq!(count, 2, "the subsystem and discovery itself");
        let entries = page[DISCOVERY_HEADER_BYTES..].chunks_exact(DiscoveryEntry::BYTES);
        for entry in entries.take(count) {
            let entry = DiscoveryEntry::from_prefix(entry).unwrap();
            assert_eq!(entry.address(), named, "of a target at {listen}");
            assert_eq!(entry.service(), address.port().to_string());
            assert_eq!(entry.adrfam, if named.contains(':') { 2 } else { 1 });
        }
        server.stop();
    }
}

/// Goal: only granted queue identifiers become I/O queue pairs, each once, of an enabled
/// controller.
#[test]
fn queues_are_those_that_were_granted() {
    let server = TestServer::start();
    let identity = HostIdentity::number(1);
    let mut admin = Client::open(server.address);
    let id =
        admin.connect(&identity, &nqn(), (0, ControllerId::DYNAMIC), (32, 0, 0)).unwrap().cntlid;
    let attempt = |qid, entries| {
        let mut client = Client::open(server.address);
        client.connect(&identity, &nqn(), (qid, id), (entries, 4, 0)).map(|_| client)
    };
    let sequence = |result: Result<Client, (Status, u32)>| {
        assert!(result.err().unwrap().0.is(Status::COMMAND_SEQUENCE_ERROR));
    };
    let invalid = |result: Result<Client, (Status, u32)>| {
        let (status, dword0) = result.err().unwrap();
        assert!(status.is(Status::CONNECT_INVALID_PARAMETERS), "{status}");
        ConnectInvalid::from_dword(dword0)
    };
    sequence(attempt(1, 32));
    admin.enable();
    let dword11 = QueueCounts::pairs(2).to_dword();
    let sqe = SetFeatures { fid: fid::NUMBER_OF_QUEUES, dword11, ..SetFeatures::default() };
    let (cqe, _) = admin.command(sqe.encode(Nsid(0)), None, 0);
    assert_eq!(QueueCounts::from_dword(cqe.dword0()), QueueCounts::pairs(2));
    assert_eq!(invalid(attempt(3, 32)), ConnectInvalid::QID);
    assert_eq!(invalid(attempt(u16::MAX, 32)), ConnectInvalid::QID);
    assert_eq!(invalid(attempt(0, 32)), ConnectInvalid::CNTLID, "queue 0 makes a new controller");
    assert_eq!(invalid(attempt(1, 129)), ConnectInvalid::SQSIZE);
    let first = attempt(1, 128).unwrap();
    sequence(attempt(1, 32));
    let second = attempt(2, 2).unwrap();
    let mut sqe =
        Connect { qid: QueueId(1), sq_entries: 2, ..Connect::default() }.encode().unwrap();
    sqe.cdw11 = U32::new(0);
    let data = ConnectData::new(identity.host, id, &nqn(), &identity.name);
    let mut client = Client::open(server.address);
    let (cqe, _) = client.command(sqe, Some((Transfer::InCapsule, data.bytes())), 0);
    assert_eq!(
        (cqe.status().is(Status::CONNECT_INVALID_PARAMETERS), cqe.dword0()),
        (true, ConnectInvalid::SQSIZE.to_dword()),
        "a queue of one entry"
    );
    drop((first, second));
    server.stop();
}

/// Goal: after a shutdown the controller accepts no I/O queue pair and no command until a reset.
/// The reset ends the event requests that it held, and reports when nothing is in flight any more.
#[test]
fn a_controller_that_was_shut_down_takes_nothing() {
    let server = TestServer::start();
    let identity = HostIdentity::number(1);
    let (mut admin, id) = Client::admin(server.address, &identity, &nqn());
    let attempt = |qid| {
        let mut client = Client::open(server.address);
        client.connect(&identity, &nqn(), (qid, id), (32, 4, 0)).map(|_| client).map_err(|it| it.0)
    };
    let mut io = attempt(1).unwrap();
    let event = admin.submit(SubmissionQueueEntry::async_event_request(), None, 0);
    set_cc(&mut admin, Configuration::ENABLE.with_shn(1));
    assert!(io.wait_closed(Duration::from_secs(10)));
    while admin.property(offset::CSTS, false) >> 2 & 3 != 2 {}
    assert!(attempt(2).err().unwrap().is(Status::COMMAND_SEQUENCE_ERROR), "shut down");
    let (cqe, _) = admin.command(SubmissionQueueEntry::keep_alive(), None, 0);
    assert!(cqe.status().is(Status::COMMAND_SEQUENCE_ERROR));
    set_cc(&mut admin, Configuration::ENABLE);
    assert!(attempt(2).err().unwrap().is(Status::COMMAND_SEQUENCE_ERROR), "not reset yet");
    set_cc(&mut admin, Configuration(0));
    assert!(admin.wait(event).0.status().is(Status::ABORT_REQUESTED), "the reset ends the request");
    let abort = nvme::command::Abort::default().encode();
    let (cqe, _) = admin.command(abort, None, 0);
    assert!(
        cqe.status().is(Status::COMMAND_SEQUENCE_ERROR),
        "Abort is refused like other commands"
    );
    while admin.property(offset::CSTS, false) & 1 != 0 {}
    admin.enable();
    let mut io = attempt(1).unwrap();
    assert!(io.command(rw(NvmOpcode::READ, 0, 1), None, BLOCK).0.status().is_success());
    server.stop();
}

/// Goal: an I/O queue pair refuses commands that manage a controller because of their opcode, not
/// because of a missing namespace; it also refuses unknown opcodes.
#[test]
fn fabrics_commands_are_for_the_admin_queue() {
    let server = TestServer::start();
    let (mut admin, mut io) = crate::basics::pair(&server, &HostIdentity::number(1));
    let get = PropertyGet { offset: offset::CSTS, is_8_bytes: false }.encode();
    let set = PropertySet { offset: offset::CC, is_8_bytes: false, value: 0 }.encode();
    let of = |kind| SubmissionQueueEntry::fabrics(FabricsType(kind));
    let connect = Connect { qid: QueueId(1), sq_entries: 16, ..Connect::default() };
    for (sqe, status) in [
        (get, Status::INVALID_OPCODE),
        (set, Status::INVALID_OPCODE),
        (of(FabricsType::DISCONNECT.0), Status::INVALID_OPCODE),
        (of(0xc0), Status::INVALID_OPCODE),
        (connect.encode().unwrap(), Status::COMMAND_SEQUENCE_ERROR),
    ] {
        let (cqe, _) = io.command(sqe, None, 0);
        assert!(cqe.status().is(status), "{} is not {status}", cqe.status());
    }
    let mut unknown = rw(NvmOpcode(0x7d), 0, 1);
    unknown.nsid.set(77);
    assert!(io.command(unknown, None, 0).0.status().is(Status::INVALID_OPCODE));
    assert!(admin.command(of(0xc0), None, 0).0.status().is(Status::INVALID_OPCODE));
    let (cqe, _) = admin.command(connect.encode().unwrap(), None, 0);
    assert!(cqe.status().is(Status::COMMAND_SEQUENCE_ERROR), "a queue pair connects once");
    assert!(io.command(rw(NvmOpcode::READ, 0, 1), None, BLOCK).0.status().is_success());
    server.stop();
}
