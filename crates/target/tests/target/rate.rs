//! Limits of a namespace's rate.

use crate::basics::rw;
use crate::client::{Client, HostIdentity, Transfer};
use crate::server::{BLOCK, TestServer, nqn};
use nvme::SubmissionQueueEntry;
use nvme::opcode::NvmOpcode;
use std::time::{Duration, Instant};
use target::{AdmissionMode, Limits, Namespace, RateLimits};

fn commands(a_second: u64) -> RateLimits {
    RateLimits { commands: Some(a_second), bytes: None }
}

/// Connects an admin and an I/O queue pair of a host.
fn host(server: &TestServer, number: u8) -> (Client, Client) {
    let identity = HostIdentity::number(number);
    let (admin, id) = Client::admin(server.address, &identity, &nqn());
    let mut io = Client::open(server.address);
    io.connect(&identity, &nqn(), (1, id), (64, 0, 0)).unwrap();
    (admin, io)
}

/// Sends `count` reads of `blocks` blocks at once.
fn read(io: &mut Client, count: u16, blocks: u32) -> Vec<u16> {
    (0..count).map(|_| io.submit(rw(NvmOpcode::READ, 0, blocks), None, blocks * BLOCK)).collect()
}

fn wait(io: &mut Client, commands: Vec<u16>) {
    for command in commands {
        assert!(io.wait(command).0.status().is_success());
    }
}

/// Checks that what `submit` sends counts its bytes for the limit of the namespace: the first time
/// uses up a limit of one byte per second, and the second time waits until the limit is lifted.
pub fn expect_bytes_are_limited(
    io: &mut Client,
    namespace: &Namespace,
    submit: impl Fn(&mut Client) -> Vec<u16>,
) {
    namespace.set_rate_limits(RateLimits { commands: None, bytes: Some(1) });
    let first = submit(io);
    wait(io, first);
    let held = submit(io);
    // Commands without data go on. The client has answered requests for data before the second one.
    for _ in 0..2 {
        let flush = SubmissionQueueEntry::flush(namespace.nsid());
        assert!(io.command(flush, None, 0).0.status().is_success());
    }
    assert!(held.iter().all(|cid| !io.has_ended(*cid)), "a command passed the limit");
    namespace.set_rate_limits(RateLimits::default());
    wait(io, held);
}

/// Goal: all hosts on all cores together keep to the limit, by commands and by bytes, with any
/// number of commands in flight.
#[test]
fn hosts_share_a_limit() {
    let server = TestServer::with(Limits::default(), AdmissionMode::AnyHost, 2);
    let (mut one, mut other) = (host(&server, 1), host(&server, 2));
    let namespace = server.subsystem.namespaces().remove(0);
    namespace.set_rate_limits(commands(200));
    assert_eq!(namespace.rate_limits(), commands(200));
    let start = Instant::now();
    let sent = (read(&mut one.1, 30, 1), read(&mut other.1, 30, 1));
    wait(&mut one.1, sent.0);
    wait(&mut other.1, sent.1);
    // 60 commands, 4 of them at once.
    assert!(start.elapsed() >= Duration::from_millis(270), "{:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    // By bytes: 40 commands of 64 KiB at 10 MiB/s, with writes by both kinds of transfer.
    namespace.set_rate_limits(RateLimits { commands: None, bytes: Some(10 << 20) });
    let start = Instant::now();
    let data = vec![7; 16 * BLOCK as usize];
    let write = |io: &mut Client| {
        let write = rw(NvmOpcode::WRITE, 16, 16);
        (0..20).map(|_| io.submit(write, Some((Transfer::R2t, &data)), 0)).collect()
    };
    let sent = (read(&mut one.1, 20, 16), write(&mut other.1));
    wait(&mut one.1, sent.0);
    wait(&mut other.1, sent.1);
    assert!(start.elapsed() >= Duration::from_millis(200), "{:?}", start.elapsed());
    namespace.set_rate_limits(RateLimits::default());
    let start = Instant::now();
    let sent = read(&mut one.1, 60, 1);
    wait(&mut one.1, sent);
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    drop((one, other));
    server.stop();
}

/// Goal: waiting commands follow new limits, fail when their namespace is removed, and do not hold
/// up the end of their connection or of the target; they hold no memory meanwhile.
#[test]
fn waiting_commands_follow_changes() {
    let server = TestServer::with(Limits::default(), AdmissionMode::AnyHost, 1);
    let (_admin, mut io) = host(&server, 1);
    let namespace = server.subsystem.namespaces().remove(0);
    namespace.set_rate_limits(commands(1));
    let start = Instant::now();
    let sent = read(&mut io, 10, 1);
    std::thread::sleep(Duration::from_millis(50));
    assert!(server.target.budget().used_bytes() <= 256 << 10);
    namespace.set_rate_limits(RateLimits::default());
    wait(&mut io, sent);
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    namespace.set_rate_limits(commands(1));
    let sent = read(&mut io, 3, 1);
    assert!(io.wait(sent[0]).0.status().is_success());
    server.subsystem.remove_namespace(namespace.nsid()).unwrap();
    for command in &sent[1..] {
        assert!(!io.wait(*command).0.status().is_success(), "its namespace was removed");
    }
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
    server.stop();
}
