//! The distribution of queue pairs over cores.

use crate::basics::rw;
use crate::client::{Client, HostIdentity, Transfer};
use crate::server::{BLOCK, TestServer, nqn};
use nvme::fabrics::{Connect, ConnectData};
use nvme::opcode::NvmOpcode;
use nvme::tcp::{Encoder, HEADER_BYTES_MAX, IcReq};
use nvme::{CommandId, ControllerId, QueueId, SglDescriptor, Status};
use std::io::Write;
use target::{AdmissionMode, Limits, QueuePairs};

fn server(cores: usize) -> TestServer {
    TestServer::with(Limits::default(), AdmissionMode::AnyHost, cores)
}

/// Connects a host with an admin queue pair, which comes first in the list, and `io_queues` I/O
/// queue pairs.
fn host(server: &TestServer, number: u8, io_queues: u16) -> Vec<Client> {
    let identity = HostIdentity::number(number);
    let (admin, id) = Client::admin(server.address, &identity, &nqn());
    let mut clients = vec![admin];
    for qid in 1..=io_queues {
        let mut io = Client::open(server.address);
        io.connect(&identity, &nqn(), (qid, id), (32, 4, 0)).unwrap();
        assert!(io.command(rw(NvmOpcode::READ, 0, 1), None, BLOCK).0.status().is_success());
        clients.push(io);
    }
    clients
}

/// Waits until the counts match: connections end a moment after their peer has closed them.
fn settle(server: &TestServer, wanted: impl Fn(&[QueuePairs]) -> bool) {
    for _ in 0..2000 {
        if wanted(&server.cores.queue_pairs()) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("the queue pairs stay as they are: {:?}", server.cores.queue_pairs());
}

/// Goal: I/O queue pairs are distributed evenly over the cores, with any admin queue pairs between
/// them.
#[test]
fn io_queue_pairs_are_spread() {
    for cores in [1, 2, 3] {
        let server = server(cores);
        let mut hosts: Vec<Vec<Client>> = (1..=6).map(|n| host(&server, n, 1)).collect();
        let each = QueuePairs { admin: 6 / cores, io: 6 / cores };
        assert_eq!(server.cores.queue_pairs(), vec![each; cores], "one I/O queue pair each");
        hosts.push(host(&server, 7, 6));
        let io: Vec<usize> = server.cores.queue_pairs().iter().map(|core| core.io).collect();
        assert_eq!(io, vec![12 / cores; cores], "and one host with six");
        drop(hosts);
        settle(&server, |all| all.iter().all(|core| *core == QueuePairs::default()));
        server.stop();
    }
}

/// Goal: a new connection goes to the core that others have left, not to the next one in turn.
#[test]
fn a_newcomer_goes_to_the_core_that_has_least() {
    let server = server(2);
    let mut clients = host(&server, 1, 4);
    assert!(server.cores.queue_pairs().iter().all(|core| core.io == 2));
    // The queue pairs were distributed in turn: these two belong to one core.
    drop(clients.remove(4));
    drop(clients.remove(2));
    settle(&server, |all| all.iter().map(|core| core.io).sum::<usize>() == 2);
    assert!(server.cores.queue_pairs().iter().any(|core| core.io == 0));
    let _others = host(&server, 2, 2);
    assert!(server.cores.queue_pairs().iter().all(|core| core.io == 2));
    server.stop();
}

/// Goal: a connection that requests one kind of queue pair and becomes another counts as the
/// latter, and one that fails does not stay in the counts.
#[test]
fn what_a_connection_became_counts() {
    let server = server(2);
    let identity = HostIdentity::number(1);
    let (_admin, id) = Client::admin(server.address, &identity, &nqn());
    let mut client = Client::open(server.address);
    let refused = client.connect(&identity, &nqn(), (9999, id), (32, 4, 0)).unwrap_err();
    assert!(refused.0.is(Status::CONNECT_INVALID_PARAMETERS));
    client.connect(&identity, &nqn(), (0, ControllerId::DYNAMIC), (32, 0, 0)).unwrap();
    let sum = |all: &[QueuePairs]| {
        (all.iter().map(|it| it.admin).sum::<usize>(), all.iter().map(|it| it.io).sum::<usize>())
    };
    assert_eq!(sum(&server.cores.queue_pairs()), (2, 0));
    let mut failed = Client::open(server.address);
    failed.connect(&identity, &nqn(), (9999, id), (32, 4, 0)).unwrap_err();
    drop(failed);
    drop(client);
    settle(&server, |all| sum(all) == (1, 0));
    server.stop();
}

/// Goal: a connection reaches its core with all the bytes that arrived with its Connect: all in one
/// piece, cut anywhere, and followed by a command at once.
#[test]
fn nothing_is_lost_on_the_way() {
    let server = server(2);
    let identity = HostIdentity::number(1);
    let (_admin, id) = Client::admin(server.address, &identity, &nqn());
    let data = ConnectData::new(identity.host, id, &nqn(), &identity.name);
    let mut bytes = IcReq::new(0, false, false, 0).bytes().to_vec();
    let connect = Connect { qid: QueueId(1), sq_entries: 16, cattr: 4, keep_alive_ms: 0 };
    let mut out = [0; HEADER_BYTES_MAX];
    let sgl = SglDescriptor::in_capsule(0, 1024);
    let sqe = connect.encode().unwrap().with_sgl(sgl);
    let n = Encoder::INITIAL.capsule_cmd(&mut out, &sqe, 1024).unwrap();
    bytes.extend_from_slice(&out[..n]);
    bytes.extend_from_slice(data.bytes());
    let connect_ends = bytes.len();
    let flush = nvme::SubmissionQueueEntry::flush(nvme::Nsid(1)).with_command_id(CommandId(1));
    let n = Encoder::INITIAL.capsule_cmd(&mut out, &flush, 0).unwrap();
    bytes.extend_from_slice(&out[..n]);
    for cut in [1, 127, 128, 129, 136, 200, 300, connect_ends, connect_ends + 1, bytes.len()] {
        let mut client = Client::raw(server.address);
        let (first, rest) = bytes.split_at(cut);
        client.stream.write_all(first).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(5));
        client.stream.write_all(rest).unwrap();
        client.expect_ic_resp();
        assert!(client.wait(0).0.status().is_success(), "Connect, cut at {cut}");
        assert!(client.wait(1).0.status().is_success(), "Flush, cut at {cut}");
        client.skip_command_ids(2);
        let block = vec![7; BLOCK as usize];
        let write = rw(NvmOpcode::WRITE, 0, 1);
        assert!(client.command(write, Some((Transfer::R2t, &block)), 0).0.status().is_success());
        drop(client);
        settle(&server, |all| all.iter().all(|core| core.io == 0));
    }
    server.stop();
}
