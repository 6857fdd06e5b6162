//! Namespaces that only some hosts see.

use crate::basics::{pattern, rw};
use crate::client::{Client, HostIdentity};
use crate::server::{BLOCK, SIZE, TestServer, nqn};
use block::MemoryBacking;
use nvme::async_event::AsyncEvent;
use nvme::command::{GetLogPage, Identify, ReadWrite, SetFeatures};
use nvme::feature::{AsyncEventConfig, fid};
use nvme::identify::{IDENTIFY_BYTES, IdentifyNamespace, cns};
use nvme::log_page::lid;
use nvme::opcode::NvmOpcode;
use nvme::{ControllerId, Nsid, Status, SubmissionQueueEntry};
use std::sync::Arc;
use target::{HostAccess, Namespace};

/// A host's queue pairs, with reports of changed namespaces enabled.
struct Host {
    admin: Client,
    io: Client,
    event: u16,
}

impl Host {
    fn new(server: &TestServer, number: u8) -> Self {
        let identity = HostIdentity::number(number);
        let (mut admin, id): (_, ControllerId) = Client::admin(server.address, &identity, &nqn());
        let mut io = Client::open(server.address);
        io.connect(&identity, &nqn(), (1, id), (32, 0, 0)).unwrap();
        let dword11 = AsyncEventConfig::NAMESPACE_ATTRIBUTES;
        let set = SetFeatures { fid: fid::ASYNC_EVENT_CONFIG, dword11, ..SetFeatures::default() };
        assert!(admin.command(set.encode(Nsid(0)), None, 0).0.status().is_success());
        let event = admin.submit(SubmissionQueueEntry::async_event_request(), None, 0);
        Self { admin, io, event }
    }

    fn identify(&mut self, cns: u8, nsid: Nsid) -> Result<Vec<u8>, Status> {
        let identify = Identify { cns, ..Identify::default() }.encode(nsid);
        let (cqe, data) = self.admin.command(identify, None, IDENTIFY_BYTES as u32);
        if cqe.status().is_success() { Ok(data) } else { Err(cqe.status()) }
    }

    /// Returns the namespaces that the host can list, and checks that its access to each agrees
    /// with the list.
    fn sees(&mut self) -> Vec<u32> {
        let list = self.identify(cns::ACTIVE_NAMESPACES, Nsid(0)).unwrap();
        let ids = list.chunks(4).map(|id| u32::from_le_bytes(id.try_into().unwrap()));
        let listed: Vec<u32> = ids.take_while(|id| *id != 0).collect();
        for nsid in 1..=3 {
            let is_listed = listed.contains(&nsid);
            let page = self.identify(cns::NAMESPACE, Nsid(nsid)).unwrap();
            let blocks = IdentifyNamespace::from_prefix(&page).unwrap().nsze.get();
            assert_eq!(blocks != 0, is_listed);
            assert_eq!(self.identify(cns::NAMESPACE_DESCRIPTORS, Nsid(nsid)).is_ok(), is_listed);
            let read = ReadWrite { blocks: 1, ..ReadWrite::default() };
            let read = read.encode(NvmOpcode::READ, Nsid(nsid)).unwrap();
            let status = self.io.command(read, None, BLOCK).0.status();
            assert_eq!(status.is_success(), is_listed, "{nsid}: {status}");
            assert!(is_listed || status.is(Status::INVALID_NAMESPACE));
        }
        listed
    }

    /// Checks that the event has arrived. Returns the namespaces in the log page, and requests
    /// another event.
    fn hears(&mut self) -> Vec<u32> {
        let (cqe, _) = self.admin.wait(self.event);
        assert_eq!(cqe.dword0(), AsyncEvent::NAMESPACE_ATTRIBUTES_CHANGED.to_dword());
        let get =
            GetLogPage { lid: lid::CHANGED_NAMESPACES, dwords: 1024, ..GetLogPage::default() };
        let (cqe, page) = self.admin.command(get.encode(Nsid(0)).unwrap(), None, 4096);
        assert!(cqe.status().is_success());
        self.event = self.admin.submit(SubmissionQueueEntry::async_event_request(), None, 0);
        let ids = page.chunks(4).map(|id| u32::from_le_bytes(id.try_into().unwrap()));
        ids.take_while(|id| *id != 0).collect()
    }

    /// Checks that no event has arrived by the end of a command that was sent after the change.
    fn hears_nothing(&mut self) {
        self.identify(cns::CONTROLLER, Nsid(0)).unwrap();
        assert!(!self.admin.has_ended(self.event));
    }
}

/// Goal: a host sees, lists and reads the namespaces that are visible to it, and no others, and
/// gets reports of them alone. That follows changes while it is connected, and survives a resize.
#[test]
fn hosts_see_what_is_for_them() {
    let server = TestServer::start();
    let subsystem = &server.subsystem;
    let only = |numbers: &[u8]| {
        HostAccess::List(numbers.iter().map(|number| HostIdentity::number(*number).name).collect())
    };
    let namespace = |nsid: u32| {
        let memory = Arc::new(MemoryBacking::new(SIZE, BLOCK).unwrap());
        Namespace::new(Nsid(nsid), [nsid as u8; 16], memory, false)
    };
    let masked = subsystem.add_namespace(namespace(2).with_hosts(only(&[1]))).unwrap();
    assert_eq!(masked.hosts(), only(&[1]));
    let (mut one, mut two) = (Host::new(&server, 1), Host::new(&server, 2));
    assert_eq!((one.sees(), two.sees()), (vec![1, 2], vec![1]));
    let change = |change: &dyn Fn()| {
        change();
        server.target.notify_controllers();
    };
    change(&|| drop(subsystem.add_namespace(namespace(3).with_hosts(only(&[2]))).unwrap()));
    assert_eq!((two.hears(), two.sees(), one.sees()), (vec![3], vec![1, 2 + 1], vec![1, 2]));
    one.hears_nothing();
    change(&|| assert!(subsystem.set_namespace_hosts(Nsid(2), only(&[1, 2]))));
    // The other host gets a report of a namespace that has not changed for it; it only costs one
    // more look.
    assert_eq!((one.hears(), two.hears()), (vec![2], vec![2]));
    assert_eq!((one.sees(), two.sees()), (vec![1, 2], vec![1, 2, 3]));
    change(&|| assert!(subsystem.set_namespace_hosts(Nsid(2), only(&[2]))));
    assert_eq!((one.hears(), two.hears()), (vec![2], vec![2]));
    assert_eq!((one.sees(), two.sees()), (vec![1], vec![1, 2, 3]));
    let smaller = Arc::new(MemoryBacking::new(SIZE / 2, BLOCK).unwrap());
    change(&|| drop(subsystem.replace_namespace(masked.on_backing(smaller.clone())).unwrap()));
    assert_eq!((two.hears(), two.sees(), one.sees()), (vec![2], vec![1, 2, 3], vec![1]));
    one.hears_nothing();
    change(&|| assert!(subsystem.set_namespace_hosts(Nsid(2), HostAccess::Any)));
    assert_eq!((one.hears(), one.sees()), (vec![2], vec![1, 2]));
    assert!(!subsystem.set_namespace_hosts(Nsid(9), HostAccess::Any));
    let write = rw(NvmOpcode::WRITE, 0, 1);
    let data = pattern(1, 1);
    let transfer = Some((crate::client::Transfer::InCapsule, &data[..]));
    assert!(one.io.command(write, transfer, 0).0.status().is_success());
    drop((one, two));
    server.stop();
}

/// Goal: `both` allows exactly the hosts that each of two accesses allows.
#[test]
fn both_allows_the_hosts_of_each() {
    let names =
        ["nqn.2014-08.org.example:a", "nqn.2014-08.org.example:b", "nqn.2014-08.org.example:c"];
    let hosts: Vec<nvme::Nqn> = names.iter().map(|it| it.parse().unwrap()).collect();
    let list = |of: &[usize]| HostAccess::List(of.iter().map(|&it| hosts[it].clone()).collect());
    let accesses = [HostAccess::Any, list(&[]), list(&[0]), list(&[0, 1]), list(&[1, 2])];
    for one in &accesses {
        for two in &accesses {
            let both = one.both(two);
            for host in hosts.iter().map(Some).chain([None]) {
                assert_eq!(
                    both.allows(host),
                    one.allows(host) && two.allows(host),
                    "{one:?} {two:?} {host:?}"
                );
            }
        }
    }
}
