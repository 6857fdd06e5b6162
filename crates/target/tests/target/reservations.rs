//! Reservations: notifications of hosts, restarts, commands in flight, and hostile commands.

use crate::basics::{pair, pattern, rw};
use crate::client::{Client, Got, HostIdentity, Transfer};
use crate::reservation_hosts::{Gate, Host};
use crate::server::{BLOCK, SIZE, TestServer};
use block::MemoryBacking;
use nvme::async_event::AsyncEvent;
use nvme::command::{
    AcquireAction, Feature, GetLogPage, Identify, RegisterAction, ReservationRelease,
    ReservationReport, SetFeatures,
};
use nvme::feature::fid;
use nvme::identify::{IdentifyController, IdentifyNamespace, cns};
use nvme::log_page::lid;
use nvme::opcode::NvmOpcode;
use nvme::reservation::{
    ReservationNotice, ReservationNotification, ReservationType, notification_mask, rescap,
};
use nvme::{Nsid, Status, SubmissionQueueEntry, U32};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use target::{Error, Reservations};

const WE: ReservationType = ReservationType::WriteExclusive;
const EA: ReservationType = ReservationType::ExclusiveAccess;
const WERO: ReservationType = ReservationType::WriteExclusiveRegistrantsOnly;

fn server(reservations: Reservations) -> TestServer {
    let memory = Arc::new(MemoryBacking::new(SIZE, BLOCK).unwrap());
    TestServer::reservable(1, memory, reservations)
}

fn open(path: &Path, uuid: u8) -> Result<Reservations, Error> {
    let mut runtime = reactor::Runtime::new(&reactor::Config::default()).unwrap();
    runtime.block_on(Reservations::open(path, [uuid; 16]))
}

/// A directory that is removed with the test.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tsumugi-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn identify(admin: &mut Client) -> (IdentifyController, IdentifyNamespace) {
    let mut page = |cns, nsid| {
        let sqe = Identify { cns, ..Identify::default() }.encode(nsid);
        admin.command(sqe, None, 4096).1
    };
    let controller = *IdentifyController::from_prefix(&page(cns::CONTROLLER, Nsid(0))).unwrap();
    (controller, *IdentifyNamespace::from_prefix(&page(cns::NAMESPACE, Nsid(1))).unwrap())
}

fn set(admin: &mut Client, fid: u8, dword11: u32, nsid: Nsid) -> Status {
    let sqe = SetFeatures { fid, dword11, ..SetFeatures::default() }.encode(nsid);
    admin.command(sqe, None, 0).0.status()
}

fn get(admin: &mut Client, fid: u8) -> u32 {
    let sqe = Feature { fid, ..Feature::default() }.encode(Nsid(1));
    let (cqe, _) = admin.command(sqe, None, 0);
    assert!(cqe.status().is_success(), "{}", cqe.status());
    cqe.dword0()
}

fn notification(admin: &mut Client) -> (u64, u8, u8, u32) {
    let get =
        GetLogPage { lid: lid::RESERVATION_NOTIFICATION, dwords: 16, ..GetLogPage::default() };
    let (cqe, data) = admin.command(get.encode(Nsid::BROADCAST).unwrap(), None, 64);
    assert!(cqe.status().is_success(), "{}", cqe.status());
    let page = ReservationNotification::from_prefix(&data).unwrap();
    (page.lpc.get(), page.rnlpt, page.nalp, page.nsid.get())
}

/// Goal: Identify announces reservations for namespaces that have them; on others no trace of them
/// exists.
#[test]
fn reservations_are_announced_where_they_are() {
    let with = server(Reservations::new());
    let mut host = Host::new(&with, 1);
    let (controller, namespace) = identify(&mut host.admin);
    assert_ne!(controller.oncs.get() & IdentifyController::ONCS_RESERVATIONS, 0);
    assert_eq!(namespace.rescap, rescap::ALL_TYPES | rescap::IGNORE_EXISTING_KEY);
    assert_eq!(namespace.nmic, IdentifyNamespace::NMIC_SHARED);
    with.stop();

    let without = TestServer::start();
    let mut host = Host::new(&without, 1);
    let (controller, namespace) = identify(&mut host.admin);
    assert_eq!(controller.oncs.get() & IdentifyController::ONCS_RESERVATIONS, 0);
    assert_eq!(namespace.rescap, 0);
    assert!(host.register(1).is(Status::INVALID_OPCODE));
    let status = set(&mut host.admin, fid::RESERVATION_NOTIFICATION_MASK, 0, Nsid(1));
    assert!(status.is(Status::INVALID_FIELD));
    without.stop();
}

/// Goal: a registrant is a host, and stays one when it connects again.
#[test]
fn registrations_survive_a_reconnect() {
    let server = server(Reservations::new());
    let mut first = Host::new(&server, 1);
    assert!(first.register(7).is_success());
    assert!(first.acquire(AcquireAction::Acquire, 7, 0, WE).is_success());
    let identity = first.identity.clone();
    drop(first);
    let mut other = Host::new(&server, 2);
    assert!(other.write(1).is(Status::RESERVATION_CONFLICT));
    assert!(other.read().is_ok());
    let (admin, io) = pair(&server, &identity);
    let mut again = Host { identity, admin, io };
    assert!(again.write(2).is_success());
    let flush_all = SubmissionQueueEntry::flush(Nsid::BROADCAST);
    assert!(other.io.command(flush_all, None, 0).0.status().is(Status::RESERVATION_CONFLICT));
    assert!(again.io.command(flush_all, None, 0).0.status().is_success());
    assert!(again.release(ReservationRelease::Release(WE), 7).is_success());
    assert!(other.write(3).is_success());
    server.stop();
}

/// Goal: hosts get notifications of changes that others make to their registrations and
/// reservation, once for each read of the log page, and none that they mask.
#[test]
fn hosts_are_notified() {
    let server = server(Reservations::new());
    let (mut one, mut two) = (Host::new(&server, 1), Host::new(&server, 2));
    assert_eq!(notification(&mut two.admin), (0, 0, 0, 0), "an empty page");
    let request = SubmissionQueueEntry::async_event_request;
    let first = two.admin.submit(request(), None, 0);
    let second = two.admin.submit(request(), None, 0);
    for host in [&mut one, &mut two] {
        assert!(host.register(u64::from(host.identity.host.0[0])).is_success());
    }
    assert!(one.acquire(AcquireAction::Acquire, 1, 0, WERO).is_success());
    assert!(one.release(ReservationRelease::Release(WERO), 1).is_success());
    let event = AsyncEvent::from_dword(two.admin.wait(first).0.dword0());
    assert_eq!(event, AsyncEvent::RESERVATION_LOG_AVAILABLE);
    assert!(one.acquire(AcquireAction::PreemptAndAbort, 1, 2, WE).is_success());
    two.admin.command(SubmissionQueueEntry::keep_alive(), None, 0);
    assert!(!two.admin.has_ended(second), "masked until the page is read");
    let released = ReservationNotice::ReservationReleased.to_u8();
    assert_eq!(notification(&mut two.admin), (1, released, 1, 1));
    two.admin.wait(second);
    let preempted = ReservationNotice::RegistrationPreempted.to_u8();
    assert_eq!(notification(&mut two.admin), (2, preempted, 0, 1));

    let mask = notification_mask::RESERVATION_PREEMPTED;
    let fid = fid::RESERVATION_NOTIFICATION_MASK;
    assert!(set(&mut two.admin, fid, 1, Nsid(1)).is(Status::INVALID_FIELD));
    assert!(set(&mut two.admin, fid, mask, Nsid(9)).is(Status::INVALID_NAMESPACE));
    assert!(set(&mut two.admin, fid, mask, Nsid::BROADCAST).is_success());
    assert_eq!(get(&mut two.admin, fid), mask);
    assert!(two.register(2).is_success());
    assert!(one.release(ReservationRelease::Clear, 1).is_success());
    assert_eq!(notification(&mut two.admin), (0, 0, 0, 0), "it is masked");
    assert!(one.register(1).is_success() && two.register(2).is_success());
    assert!(two.release(ReservationRelease::Clear, 2).is_success());
    let cleared = ReservationNotice::ReservationPreempted.to_u8();
    assert_eq!(notification(&mut one.admin), (1, cleared, 0, 1));
    server.stop();
}

/// Goal: with persistence, registrants, reservation and the setting itself survive a restart;
/// without it nothing survives.
#[test]
fn persistent_reservations_survive_a_restart() {
    let directory = Directory::new("ptpl");
    let path = directory.0.join("reservations");
    let first = server(open(&path, 7).unwrap());
    let mut one = Host::new(&first, 1);
    let (_, namespace) = identify(&mut one.admin);
    assert_ne!(namespace.rescap & rescap::PERSIST, 0);
    assert!(one.change((RegisterAction::Register, false, Some(true)), 0, 0xabc).is_success());
    assert!(one.acquire(AcquireAction::Acquire, 0xabc, 0, EA).is_success());
    assert_eq!(get(&mut one.admin, fid::RESERVATION_PERSISTENCE), 1);
    first.stop();

    let second = server(open(&path, 7).unwrap());
    let (mut one, mut two) = (Host::new(&second, 1), Host::new(&second, 2));
    let (status, entries) = two.report();
    assert_eq!((status.ptpls, status.rtype, status.generation.get()), (1, EA.to_u8(), 0));
    assert_eq!((entries[0].hostid, entries[0].rkey.get(), entries[0].rcsts), ([1; 16], 0xabc, 1));
    assert!(two.read().unwrap_err().is(Status::RESERVATION_CONFLICT));
    assert!(one.write(1).is_success());
    let fid = fid::RESERVATION_PERSISTENCE;
    assert!(set(&mut two.admin, fid, 2, Nsid(1)).is(Status::INVALID_FIELD));
    assert!(set(&mut two.admin, fid, 0, Nsid(1)).is_success());
    assert!(two.read().unwrap_err().is(Status::RESERVATION_CONFLICT), "only a restart ends it");
    second.stop();

    let third = server(open(&path, 7).unwrap());
    let mut two = Host::new(&third, 2);
    assert_eq!(two.report().0.regctl.get(), 0);
    assert!(two.read().is_ok());
    third.stop();
}

/// Goal: a request for persistence without a file is refused and changes nothing.
#[test]
fn persistence_needs_a_file() {
    let volatile = server(Reservations::new());
    let mut host = Host::new(&volatile, 1);
    let persist = |value| (RegisterAction::Register, false, Some(value));
    assert!(host.change(persist(true), 0, 1).is(Status::INVALID_FIELD));
    assert!(host.change(persist(false), 0, 1).is_success());
    let fid = fid::RESERVATION_PERSISTENCE;
    assert!(set(&mut host.admin, fid, 1, Nsid(1)).is(Status::INVALID_FIELD));
    assert!(set(&mut host.admin, fid, 0, Nsid::BROADCAST).is_success());
    volatile.stop();

    let directory = Directory::new("ptpl-gone");
    let persistent = server(open(&directory.0.join("file"), 7).unwrap());
    let mut host = Host::new(&persistent, 1);
    std::fs::remove_dir_all(&directory.0).unwrap();
    assert!(host.change(persist(true), 0, 1).is(Status::INTERNAL_ERROR));
    assert_eq!(host.report().0.regctl.get(), 0, "a change that was not stored has no effect");
    assert!(host.register(1).is_success());
    persistent.stop();
}

/// Goal: any damage to the file, a truncation, and the file of another namespace are errors.
#[test]
fn damaged_files_are_refused() {
    let directory = Directory::new("ptpl-damage");
    let path = directory.0.join("reservations");
    let server = server(open(&path, 7).unwrap());
    let mut host = Host::new(&server, 1);
    assert!(host.change((RegisterAction::Register, false, Some(true)), 0, 5).is_success());
    assert!(host.acquire(AcquireAction::Acquire, 5, 0, WE).is_success());
    server.stop();
    let good = std::fs::read(&path).unwrap();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        std::fs::write(&path, &bad).unwrap();
        let error = open(&path, 7).expect_err("a flipped bit is noticed");
        assert!(error.to_string().contains("reservations"), "{error}");
        std::fs::write(&path, &good[..at]).unwrap();
        assert!(open(&path, 7).is_err(), "a file of {at} bytes is refused");
    }
    std::fs::write(&path, &good).unwrap();
    let error = open(&path, 8).unwrap_err();
    assert!(error.to_string().contains("belongs to namespace"), "{error}");
    assert!(open(&path, 7).is_ok());
    let nowhere = directory.0.join("no/such/directory");
    assert!(open(&nowhere, 7).is_err());
}

/// Goal: Preempt and Abort completes only when the device works on no write of the preempted host;
/// such a write, and one whose data has not arrived, end as aborted, and the latter changes
/// nothing.
#[test]
fn preempt_and_abort_waits_for_writes_in_flight() {
    for cores in [1, 2] {
        let gate = Gate::new();
        let server = TestServer::reservable(cores, Arc::new(gate.clone()), Reservations::new());
        let (mut one, mut two) = (Host::new(&server, 1), Host::new(&server, 2));
        assert!(one.register(1).is_success() && two.register(2).is_success());
        assert!(two.acquire(AcquireAction::Acquire, 2, 0, WERO).is_success());
        gate.close();
        let running = two.begin_write(1);
        // The R2T is answered; then the write is at the gate.
        assert!(matches!(two.io.receive(), Got::Pdu));
        gate.wait_for(1);
        two.io.hold_r2ts = true;
        let waiting = two.begin_write(2);
        while two.io.r2ts.is_empty() {
            two.io.receive();
        }
        let preempt = one.begin_acquire(AcquireAction::PreemptAndAbort, 1, 2, WE);
        // Its keys are requested; the report shows when it has taken effect.
        assert!(matches!(one.io.receive(), Got::Pdu));
        let mut third = Host::new(&server, 3);
        while third.report().0.rtype != WE.to_u8() {}
        one.io.take_what_has_come();
        assert!(!one.io.has_ended(preempt), "a write of the preempted host is still running");
        assert!(!two.io.has_ended(running));
        gate.open();
        assert!(two.io.wait(running).0.status().is(Status::ABORTED_PREEMPT));
        assert!(one.io.wait(preempt).0.status().is_success());
        assert!(one.write(3).is_success());
        let (cid, tag, offset, length) = two.io.r2ts[0];
        two.io.answer_r2t(cid, tag, offset, length);
        assert!(two.io.wait(waiting).0.status().is(Status::ABORTED_PREEMPT));
        two.io.hold_r2ts = false;
        assert!(two.write(4).is(Status::RESERVATION_CONFLICT));
        assert!(one.read().unwrap() == pattern(3, 1));
        server.stop();
    }
}

/// Goal: hosts that preempt each other with I/O in flight do not block each other, and the end of a
/// connection releases a host that waits for it.
#[test]
fn preempting_each_other_ends() {
    let gate = Gate::new();
    let server = TestServer::reservable(2, Arc::new(gate.clone()), Reservations::new());
    let (mut one, mut two) = (Host::new(&server, 1), Host::new(&server, 2));
    for round in 0..20 {
        gate.close();
        assert!(one.register(1).is_success() && two.register(2).is_success());
        let (a, b) = (one.begin_write(1), two.begin_write(2));
        for host in [&mut one, &mut two] {
            host.io.receive();
        }
        gate.wait_for(2 * (round + 1));
        let first = one.begin_acquire(AcquireAction::PreemptAndAbort, 1, 2, WE);
        let second = two.begin_acquire(AcquireAction::PreemptAndAbort, 2, 1, WE);
        for host in [&mut one, &mut two] {
            host.io.receive();
        }
        gate.open();
        let statuses = [one.io.wait(first).0.status(), two.io.wait(second).0.status()];
        one.io.wait(a);
        two.io.wait(b);
        assert_eq!(statuses.iter().filter(|it| it.is_success()).count(), 1, "{statuses:?}");
        let (winner, key) = if statuses[0].is_success() { (&mut one, 1) } else { (&mut two, 2) };
        assert!(winner.release(ReservationRelease::Clear, key).is_success());
    }
    gate.close();
    assert!(one.register(1).is_success() && two.register(2).is_success());
    two.begin_write(2);
    two.io.receive();
    gate.wait_for(41);
    let preempt = one.begin_acquire(AcquireAction::PreemptAndAbort, 1, 2, WE);
    drop(two);
    one.io.receive();
    one.io.take_what_has_come();
    assert!(!one.io.has_ended(preempt), "the write is still at the device");
    gate.open();
    assert!(one.io.wait(preempt).0.status().is_success());
    server.stop();
}

/// Goal: invalid commands get the status for their fault, and change nothing.
#[test]
fn wrong_reservation_commands_are_refused() {
    let server = server(Reservations::new());
    let mut host = Host::new(&server, 1);
    let mut expect = |opcode, cdw10: u32, data: &[u8], bytes, status: Status| {
        let mut sqe = SubmissionQueueEntry::nvm(opcode, Nsid(1));
        sqe.cdw10 = U32::new(cdw10);
        let data = (!data.is_empty()).then_some((Transfer::InCapsule, data));
        let (cqe, _) = host.io.command(sqe, data, bytes);
        assert!(cqe.status().is(status), "{opcode} {cdw10:#x}: {}", cqe.status());
    };
    let (register, acquire) = (NvmOpcode::RESERVATION_REGISTER, NvmOpcode::RESERVATION_ACQUIRE);
    let (release, report) = (NvmOpcode::RESERVATION_RELEASE, NvmOpcode::RESERVATION_REPORT);
    let length = Status::SGL_DATA_LENGTH_INVALID;
    for (opcode, bytes) in [(register, 16), (acquire, 16), (release, 8)] {
        let cdw10 = if opcode == register { 0 } else { 0x100 };
        for wrong in [4, bytes - 1, bytes + 1, 4096] {
            expect(opcode, cdw10, &vec![0; wrong], 0, length);
        }
        expect(opcode, cdw10, &[], 0, length);
        for wrong in [3, 7] {
            expect(opcode, cdw10 | wrong, &vec![0; bytes], 0, Status::INVALID_FIELD);
        }
    }
    expect(register, 1 << 30, &[0; 16], 0, Status::INVALID_FIELD);
    for wrong in [0, 0x700, 0xff00, 0x108] {
        expect(acquire, wrong, &[0; 16], 0, Status::INVALID_FIELD);
        expect(release, wrong, &[0; 8], 0, Status::INVALID_FIELD);
    }
    // Hosts over fabrics have long identifiers.
    expect(report, 15, &[], 64, Status::HOST_ID_INCONSISTENT);
    let reported = |host: &mut Host, dwords: u64, bytes| {
        let sqe = ReservationReport { dwords, is_extended: true }.encode(Nsid(1)).unwrap();
        host.io.command(sqe, None, bytes).0.status()
    };
    assert!(reported(&mut host, 15, 60).is(Status::INVALID_FIELD), "shorter than its header");
    assert!(reported(&mut host, 1 << 32, 64).is(Status::INVALID_FIELD));
    assert!(reported(&mut host, 1 << 20, 4 << 20).is(Status::INVALID_FIELD));
    assert!(reported(&mut host, 32, 64).is(Status::SGL_DATA_LENGTH_INVALID));
    assert!(reported(&mut host, 17, 68).is_success());
    assert_eq!(host.report().0.regctl.get(), 0);
    let mut anonymous = Host::new(&server, 0);
    assert!(anonymous.register(1).is(Status::OPERATION_DENIED));
    let (cqe, _) = host.io.command(rw(NvmOpcode::READ, 0, 1), None, BLOCK);
    assert!(cqe.status().is_success());
    server.stop();
}

/// Goal: the number of registrants is bounded, and a report of all of them is possible.
#[test]
fn registrants_are_bounded() {
    let server = server(Reservations::new());
    let mut admitted = 0;
    for number in 0..=target::REGISTRANTS_MAX as u16 {
        let mut identity = HostIdentity::number(9);
        identity.host.0[..2].copy_from_slice(&number.to_le_bytes());
        let (admin, io) = pair(&server, &identity);
        let mut host = Host { identity, admin, io };
        let status = host.register(1);
        admitted += usize::from(status.is_success());
    }
    assert_eq!(admitted, target::REGISTRANTS_MAX);
    let bytes = 64 * (1 + target::REGISTRANTS_MAX as u32);
    let report = ReservationReport { dwords: u64::from(bytes / 4), is_extended: true };
    let mut host = Host::new(&server, 1);
    let (cqe, data) = host.io.command(report.encode(Nsid(1)).unwrap(), None, bytes);
    assert!(cqe.status().is_success());
    assert_eq!(data[bytes as usize - 40], 9, "the last one is there");
    server.stop();
}
