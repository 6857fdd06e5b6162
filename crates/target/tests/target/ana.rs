//! Asymmetric access: its announcements, the effect of states on commands, and notifications of
//! hosts.

use crate::client::{Client, HostIdentity, Transfer};
use crate::server::{BLOCK, SIZE, TestServer, nqn};
use block::MemoryBacking;
use nvme::async_event::AsyncEvent;
use nvme::command::{GetLogPage, Identify, ReadWrite, SetFeatures};
use nvme::feature::{AsyncEventConfig, fid};
use nvme::identify::{
    IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, IdentifyNamespaceIndependent, cns,
};
use nvme::log_page::{AnaGroup, AnaHeader, AnaState, SupportedPages, lid};
use nvme::opcode::NvmOpcode;
use nvme::{ControllerId, Nsid, Status, SubmissionQueueEntry};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use target::{
    ANA_GROUPS_MAX, AdmissionMode, Admissions, AnaGroupId, HostAccess, Limits, Namespace,
    Subsystem, Target,
};

/// The groups of namespaces 1, 2 and 3.
const GROUPS: [u32; 3] = [1, 7, 7];

fn group(number: u32) -> AnaGroupId {
    AnaGroupId::new(number).unwrap()
}

fn subsystem(has_ana: bool) -> Subsystem {
    let mut subsystem = Subsystem::new(nqn(), "serial", "model", HostAccess::Any);
    if has_ana {
        let initial = BTreeMap::from([(group(7), AnaState::NonOptimized)]);
        subsystem = subsystem.with_ana(&initial);
    }
    for (nsid, number) in (1..).zip(GROUPS) {
        let memory = Arc::new(MemoryBacking::new(SIZE, BLOCK).unwrap());
        let namespace = Namespace::new(Nsid(nsid), [nsid as u8; 16], memory, false);
        subsystem.add_namespace(namespace.with_ana_group(group(number))).unwrap();
    }
    subsystem
}

fn start(has_ana: bool, limits: Limits) -> TestServer {
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let admissions = Admissions::new(AdmissionMode::AnyHost);
    TestServer::serving(subsystem(has_ana), listen, limits, admissions, 1)
}

fn identify(admin: &mut Client, cns: u8, nsid: Nsid) -> Vec<u8> {
    let sqe = Identify { cns, ..Identify::default() }.encode(nsid);
    let (cqe, data) = admin.command(sqe, None, IDENTIFY_BYTES as u32);
    assert!(cqe.status().is_success(), "{}", cqe.status());
    data
}

fn ana_page(admin: &mut Client, lsp: u8, is_event_retained: bool) -> Result<Vec<u8>, Status> {
    let get =
        GetLogPage { lid: lid::ANA, lsp, is_event_retained, dwords: 64, ..GetLogPage::default() };
    let (cqe, page) = admin.command(get.encode(Nsid(0)).unwrap(), None, 256);
    if cqe.status().is_success() { Ok(page) } else { Err(cqe.status()) }
}

/// Returns group, state and members of each descriptor, in the order of the page.
fn groups(page: &[u8]) -> Vec<(u32, AnaState, Vec<u32>)> {
    let header = AnaHeader::from_prefix(page).unwrap();
    let mut rest = &page[16..];
    let mut groups = Vec::new();
    for _ in 0..header.ngrps.get() {
        let descriptor = *AnaGroup::from_prefix(rest).unwrap();
        assert!(descriptor.chgcnt.get() > 0 && descriptor.chgcnt <= header.chgcnt);
        let (ids, behind) = rest[32..].split_at(4 * descriptor.nnsid.get() as usize);
        let ids = ids.chunks(4).map(|id| u32::from_le_bytes(id.try_into().unwrap())).collect();
        groups.push((descriptor.agid.get(), descriptor.ana_state().unwrap(), ids));
        rest = behind;
    }
    groups
}

fn io_queue(address: SocketAddr, controller: ControllerId) -> Client {
    let mut io = Client::open(address);
    io.connect(&HostIdentity::number(1), &nqn(), (1, controller), (32, 0, 0)).unwrap();
    io
}

/// Returns the statuses of a write by each kind of transfer, a read and a flush.
fn statuses(io: &mut Client, nsid: Nsid) -> Vec<Status> {
    let fields = ReadWrite { blocks: 1, ..ReadWrite::default() };
    let data = vec![3; BLOCK as usize];
    let write = fields.encode(NvmOpcode::WRITE, nsid).unwrap();
    let read = fields.encode(NvmOpcode::READ, nsid).unwrap();
    let mut all: Vec<Status> = [Transfer::InCapsule, Transfer::R2t]
        .map(|transfer| io.command(write, Some((transfer, &data)), 0).0.status())
        .into();
    all.push(io.command(read, None, BLOCK).0.status());
    all.push(io.command(SubmissionQueueEntry::flush(nsid), None, 0).0.status());
    all
}

/// Goal: a target without ANA announces none, and refuses the log page and the notice.
#[test]
fn without_it_nothing_is_announced() {
    let server = start(false, Limits::default());
    let (mut admin, id) = Client::admin(server.address, &HostIdentity::number(1), &nqn());
    assert_eq!(id, ControllerId(1));
    let page = identify(&mut admin, cns::CONTROLLER, Nsid(0));
    let controller = IdentifyController::from_prefix(&page).unwrap();
    assert_eq!(controller.cmic & IdentifyController::CMIC_ANA, 0);
    assert_eq!(controller.oaes.get() & IdentifyController::OAES_ANA_CHANGE, 0);
    assert_eq!((controller.anatt, controller.anacap), (0, 0));
    assert_eq!((controller.anagrpmax.get(), controller.nanagrpid.get()), (0, 0));
    let page = identify(&mut admin, cns::NAMESPACE, Nsid(2));
    assert_eq!(IdentifyNamespace::from_prefix(&page).unwrap().anagrpid.get(), 0);
    assert!(ana_page(&mut admin, 0, false).unwrap_err().is(Status::INVALID_LOG_PAGE));
    let dword11 = AsyncEventConfig::ANA_CHANGE;
    let sqe = SetFeatures { fid: fid::ASYNC_EVENT_CONFIG, dword11, ..SetFeatures::default() };
    let status = admin.command(sqe.encode(Nsid(0)), None, 0).0.status();
    assert!(status.is(Status::INVALID_FIELD));
    assert_eq!(server.subsystem.ana_state(group(1)), None);
    assert!(server.subsystem.set_ana_state(group(1), AnaState::Change).is_err());
    server.stop();
}

/// Goal: the target announces groups and states, in Identify and in the log page with and without
/// members.
#[test]
fn groups_are_announced() {
    let server = start(true, Limits::default());
    let (mut admin, _) = Client::admin(server.address, &HostIdentity::number(1), &nqn());
    let page = identify(&mut admin, cns::CONTROLLER, Nsid(0));
    let controller = *IdentifyController::from_prefix(&page).unwrap();
    assert_ne!(controller.cmic & IdentifyController::CMIC_ANA, 0);
    assert_ne!(controller.oaes.get() & IdentifyController::OAES_ANA_CHANGE, 0);
    assert!(controller.anatt > 0);
    assert_eq!(controller.anacap & 0x1f, 0x1f, "all states are possible");
    assert_eq!(controller.anagrpmax.get(), ANA_GROUPS_MAX);
    assert_eq!(controller.nanagrpid.get(), ANA_GROUPS_MAX);
    for (nsid, number) in (1..).zip(GROUPS) {
        let page = identify(&mut admin, cns::NAMESPACE, Nsid(nsid));
        assert_eq!(IdentifyNamespace::from_prefix(&page).unwrap().anagrpid.get(), number);
        let page = identify(&mut admin, cns::NAMESPACE_INDEPENDENT, Nsid(nsid));
        let independent = *IdentifyNamespaceIndependent::from_prefix(&page).unwrap();
        assert_eq!(independent.anagrpid.get(), number);
    }
    let first = (1, AnaState::Optimized, vec![1]);
    let second = (7, AnaState::NonOptimized, vec![2, 3]);
    assert_eq!(groups(&ana_page(&mut admin, 0, false).unwrap()), [first, second]);
    let alone: Vec<_> = groups(&ana_page(&mut admin, 1, false).unwrap());
    assert_eq!(alone, [(1, AnaState::Optimized, vec![]), (7, AnaState::NonOptimized, vec![])]);
    let get = GetLogPage { lid: lid::SUPPORTED_PAGES, dwords: 256, ..GetLogPage::default() };
    let (_, page) = admin.command(get.encode(Nsid(0)).unwrap(), None, 1024);
    let pages = SupportedPages::from_prefix(&page).unwrap();
    assert_ne!(pages.lids[usize::from(lid::ANA)].get(), 0);
    server.stop();
}

/// Goal: each state affects commands as the specification requires, and only those of its own
/// group; the host may retry a refused command elsewhere (no Do Not Retry), and it writes nothing.
#[test]
fn states_decide_over_commands() {
    let server = start(true, Limits::default());
    let (_admin, id) = Client::admin(server.address, &HostIdentity::number(1), &nqn());
    let mut io = io_queue(server.address, id);
    for (state, refusal) in [
        (AnaState::Inaccessible, Some(Status::ANA_INACCESSIBLE)),
        (AnaState::Optimized, None),
        (AnaState::PersistentLoss, Some(Status::ANA_PERSISTENT_LOSS)),
        (AnaState::Change, Some(Status::ANA_TRANSITION)),
        (AnaState::NonOptimized, None),
    ] {
        server.target.set_ana_state(&nqn(), group(7), state).unwrap();
        assert_eq!(server.subsystem.ana_state(group(7)), Some(state));
        for nsid in [2, 3] {
            for status in statuses(&mut io, Nsid(nsid)) {
                assert_eq!(status, refusal.unwrap_or(Status::SUCCESS), "{state:?}");
            }
        }
        assert!(statuses(&mut io, Nsid(1)).iter().all(|status| status.is_success()));
        let all = io.command(SubmissionQueueEntry::flush(Nsid::BROADCAST), None, 0).0.status();
        assert_eq!(all, refusal.unwrap_or(Status::SUCCESS), "a flush of all namespaces");
    }
    server.stop();
}

/// Goal: a write whose data was requested before the change of state is refused too.
#[test]
fn a_change_overtakes_the_data_of_a_write() {
    let server = start(true, Limits::default());
    let (_admin, id) = Client::admin(server.address, &HostIdentity::number(1), &nqn());
    let mut io = io_queue(server.address, id);
    io.hold_r2ts = true;
    let fields = ReadWrite { blocks: 1, ..ReadWrite::default() };
    let write = fields.encode(NvmOpcode::WRITE, Nsid(2)).unwrap();
    let data = vec![9; BLOCK as usize];
    let cid = io.submit(write, Some((Transfer::R2t, &data)), 0);
    while io.r2ts.is_empty() {
        io.receive();
    }
    server.target.set_ana_state(&nqn(), group(7), AnaState::Inaccessible).unwrap();
    let (_, tag, offset, length) = io.r2ts[0];
    io.answer_r2t(cid, tag, offset, length);
    assert_eq!(io.wait(cid).0.status(), Status::ANA_INACCESSIBLE);
    server.target.set_ana_state(&nqn(), group(7), AnaState::Optimized).unwrap();
    let read = fields.encode(NvmOpcode::READ, Nsid(2)).unwrap();
    assert!(io.command(read, None, BLOCK).1.iter().all(|byte| *byte == 0), "nothing was written");
    server.stop();
}

fn want_events(admin: &mut Client) -> u16 {
    let dword11 = AsyncEventConfig::ANA_CHANGE;
    let sqe = SetFeatures { fid: fid::ASYNC_EVENT_CONFIG, dword11, ..SetFeatures::default() };
    assert!(admin.command(sqe.encode(Nsid(0)), None, 0).0.status().is_success());
    admin.submit(SubmissionQueueEntry::async_event_request(), None, 0)
}

/// Goal: a change is reported once, and again only after the page was read with RAE cleared;
/// setting the same state is no change; the change count grows; a new namespace is a change too.
#[test]
fn changes_are_reported() {
    let server = start(true, Limits::default());
    let (mut admin, _) = Client::admin(server.address, &HostIdentity::number(1), &nqn());
    let set = |state| server.target.set_ana_state(&nqn(), group(1), state).unwrap();
    let count = |page: &[u8]| AnaHeader::from_prefix(page).unwrap().chgcnt.get();
    let event = want_events(&mut admin);
    assert!(!set(AnaState::Optimized));
    let before = count(&ana_page(&mut admin, 0, true).unwrap());
    assert!(!admin.has_ended(event));
    assert!(set(AnaState::Inaccessible));
    let event_of = |cqe: nvme::CompletionQueueEntry| AsyncEvent::from_dword(cqe.dword0());
    assert_eq!(event_of(admin.wait(event).0), AsyncEvent::ANA_CHANGED);
    let event = admin.submit(SubmissionQueueEntry::async_event_request(), None, 0);
    set(AnaState::Optimized);
    let after = count(&ana_page(&mut admin, 0, true).unwrap());
    assert!(after > before && !admin.has_ended(event), "masked until the page is read");
    ana_page(&mut admin, 0, false).unwrap();
    assert!(!admin.has_ended(event), "the page has shown that change already");
    set(AnaState::Change);
    assert_eq!(event_of(admin.wait(event).0), AsyncEvent::ANA_CHANGED);
    let event = admin.submit(SubmissionQueueEntry::async_event_request(), None, 0);
    ana_page(&mut admin, 0, false).unwrap();
    let memory = Arc::new(MemoryBacking::new(SIZE, BLOCK).unwrap());
    let namespace = Namespace::new(Nsid(4), [4; 16], memory, false).with_ana_group(group(9));
    server.subsystem.add_namespace(namespace).unwrap();
    server.target.notify_controllers();
    assert_eq!(event_of(admin.wait(event).0), AsyncEvent::ANA_CHANGED);
    assert_eq!(groups(&ana_page(&mut admin, 0, false).unwrap()).last().unwrap().0, 9);
    server.stop();
}

/// Goal: controllers get only identifiers of the range, each once, even after the search has
/// wrapped around; when all are taken, the target refuses further controllers.
#[test]
fn identifiers_stay_in_their_range() {
    let server = start(true, Limits { controller_ids: 500..=502, ..Limits::default() });
    let mut admins = Vec::new();
    for n in 0..7 {
        let (admin, id) = Client::admin(server.address, &HostIdentity::number(n + 1), &nqn());
        assert!((500..=502).contains(&id.get()), "{id}");
        admins.push((admin, id));
        let ids: BTreeSet<u16> = admins.iter().map(|(_, id)| id.get()).collect();
        assert_eq!(ids.len(), admins.len());
        if admins.len() == 3 {
            let mut client = Client::open(server.address);
            let refused = client.connect(
                &HostIdentity::number(99),
                &nqn(),
                (0, ControllerId::DYNAMIC),
                (32, 0, 0),
            );
            assert!(refused.unwrap_err().0.is(Status::CONNECT_CONTROLLER_BUSY));
            admins.remove(usize::from(n % 3));
            while server.target.controllers().len() > 2 {
                std::thread::yield_now();
            }
        }
    }
    server.stop();
    let admissions = || Admissions::new(AdmissionMode::AnyHost);
    for wrong in [0..=5, 5..=65_520, std::ops::RangeInclusive::new(7, 6)] {
        let limits = Limits { controller_ids: wrong, ..Limits::default() };
        assert!(Target::new(limits, admissions()).is_err());
    }
}
