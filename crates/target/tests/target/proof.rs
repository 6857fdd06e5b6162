//! Hosts that have to prove themselves: what they may do before, what it costs, and what others see of it.

use crate::basics::rw;
use crate::client::{Client, Way, Who};
use crate::server::{BLOCK, TestServer, nqn};
use auth::{Group, Hash, Host, Key, KeyPair, Names, Policy};
use nvme::auth::{Authentication, MESSAGE_BYTES_MAX};
use nvme::command::Identify;
use nvme::fabrics::PropertyGet;
use nvme::opcode::NvmOpcode;
use nvme::property::offset;
use nvme::{ControllerId, Nsid, Status, SubmissionQueueEntry, U32};
use proptest::prelude::*;
use std::time::Duration;
use target::{AdmissionMode, HostProof, Limits};

const PATIENCE: Duration = Duration::from_secs(10);

fn policy() -> Policy {
    Policy { hashes: vec![Hash::Sha256], groups: vec![Group::Null], concatenation: false }
}

fn key() -> Key {
    Key::generate(None, 32).unwrap()
}

/// A target that asks host 1 for a proof.
fn start(limits: Limits) -> (TestServer, KeyPair) {
    let server = TestServer::with(limits, AdmissionMode::AnyHost, 1);
    let keys = KeyPair { host: key(), controller: None };
    let proof = HostProof { keys: keys.clone(), policy: policy() };
    server.target.require_proof(Who::number(1).name, proof).unwrap();
    (server, keys)
}

/// Connects an admin queue pair of host 1.
fn connect(server: &TestServer) -> (Client, ControllerId) {
    let mut client = Client::open(server.address);
    let options = (32, 0, 0);
    let result = client.connect(&Who::number(1), &nqn(), (0, ControllerId::DYNAMIC), options);
    let result = result.unwrap();
    assert!(result.is_authentication_required && !result.is_secure_channel_required);
    (client, result.cntlid)
}

fn send(client: &mut Client, message: &[u8], way: Way) -> Status {
    let sqe = Authentication { bytes: message.len() as u32 }.send();
    client.command(sqe, Some((way, message)), 0).0.status()
}

fn receive(client: &mut Client, room: u32) -> Result<Vec<u8>, Status> {
    let (cqe, message) = client.command(Authentication { bytes: room }.receive(), None, room);
    if cqe.status().is_success() { Ok(message) } else { Err(cqe.status()) }
}

/// Carries a transaction out with these keys; whether the host was let in.
fn prove(client: &mut Client, keys: &KeyPair) -> bool {
    let names = Names { host: Who::number(1).name, subsystem: nqn() };
    let (host, negotiate) = Host::start(keys.clone(), names, policy(), 5);
    assert!(send(client, &negotiate, Way::InCapsule).is_success());
    let (answered, reply) = host.challenged(&receive(client, 4096).unwrap()).unwrap();
    assert!(send(client, &reply, Way::R2t).is_success());
    let verdict = receive(client, 4096).unwrap();
    assert_eq!(verdict.len(), 4096, "hosts get as many bytes as they have room for");
    answered.judged(&verdict).is_ok()
}

fn get_version(client: &mut Client) -> Status {
    let get = PropertyGet { offset: offset::VS, is_8_bytes: false };
    client.command(get.encode(), None, 0).0.status()
}

/// Goal: nothing is done for a host before its proof, everything after it; I/O queue pairs are asked
/// each for itself.
#[test]
fn the_proof_comes_first() {
    let (server, keys) = start(Limits::default());
    let (mut client, id) = connect(&server);
    let identify = Identify { cns: 1, ..Identify::default() }.encode(Nsid(0));
    for sqe in [identify, SubmissionQueueEntry::keep_alive()] {
        let (cqe, data) = client.command(sqe, None, 4096);
        assert!(cqe.status().is(Status::AUTHENTICATION_REQUIRED) && data.is_empty());
    }
    assert!(get_version(&mut client).is(Status::AUTHENTICATION_REQUIRED));
    assert!(prove(&mut client, &keys));
    client.enable();
    assert_eq!(client.command(identify, None, 4096).1.len(), 4096);
    let mut io = Client::open(server.address);
    let result = io.connect(&Who::number(1), &nqn(), (1, id), (16, 0, 0)).unwrap();
    assert!(result.is_authentication_required);
    let write = rw(NvmOpcode::WRITE, 0, 1);
    let bytes = vec![7; BLOCK as usize];
    for way in [Way::InCapsule, Way::R2t] {
        let (cqe, _) = io.command(write, Some((way, &bytes)), 0);
        assert!(cqe.status().is(Status::AUTHENTICATION_REQUIRED), "{way:?}");
    }
    assert!(prove(&mut io, &keys));
    assert!(io.command(write, Some((Way::R2t, &bytes)), 0).0.status().is_success());
    assert_eq!(io.command(rw(NvmOpcode::READ, 0, 1), None, BLOCK).1, bytes);
    // Again, while it is in use.
    assert!(prove(&mut io, &keys) && prove(&mut client, &keys));
    assert_eq!(io.command(rw(NvmOpcode::READ, 0, 1), None, BLOCK).1, bytes);
}

/// Goal: a host's key is replaced and removed while it is connected: what is connected stays, what connects then needs
/// the new key.
#[test]
fn keys_are_replaced() {
    let (server, keys) = start(Limits::default());
    let (mut earlier, _) = connect(&server);
    assert!(prove(&mut earlier, &keys));
    earlier.enable();
    let new = KeyPair { host: key(), controller: None };
    let proof = HostProof { keys: new.clone(), policy: policy() };
    server.target.require_proof(Who::number(1).name, proof).unwrap();
    assert!(get_version(&mut earlier).is_success());
    assert!(!prove(&mut connect(&server).0, &keys));
    assert!(prove(&mut connect(&server).0, &new));
    assert!(server.target.forget_proof(&Who::number(1).name));
    assert!(!server.target.forget_proof(&Who::number(1).name));
    let mut client = Client::open(server.address);
    let result = client.connect(&Who::number(1), &nqn(), (0, ControllerId::DYNAMIC), (32, 0, 0));
    assert!(!result.unwrap().is_authentication_required);
    assert!(server.target.drop_host(&Who::number(1).name) > 0);
    assert!(earlier.wait_closed(PATIENCE));
}

/// Goal: a wrong proof ends the connection, and until then nothing more is done on it; of a connection
/// that was let in before, too.
#[test]
fn a_wrong_proof_ends_the_connection() {
    let (server, keys) = start(Limits::default());
    let wrong = KeyPair { host: key(), controller: None };
    for is_let_in_before in [false, true] {
        let (mut client, _) = connect(&server);
        if is_let_in_before {
            assert!(prove(&mut client, &keys));
            client.enable();
        }
        assert!(!prove(&mut client, &wrong));
        assert!(get_version(&mut client).is(Status::AUTHENTICATION_REQUIRED));
        assert!(receive(&mut client, 4096).is_err(), "the reason is told once");
        assert!(client.wait_closed(PATIENCE));
    }
}

/// Goal: a host that connects and does nothing does not stay, nor one that stops in the middle, or keeps
/// itself busy with commands.
#[test]
fn proofs_have_a_deadline() {
    let limits = Limits { handshake: Duration::from_millis(300), ..Limits::default() };
    let (server, keys) = start(limits);
    let (mut idle, _) = connect(&server);
    let (mut halfway, _) = connect(&server);
    let names = Names { host: Who::number(1).name, subsystem: nqn() };
    let (_, negotiate) = Host::start(keys.clone(), names, policy(), 5);
    assert!(send(&mut halfway, &negotiate, Way::InCapsule).is_success());
    assert!(idle.wait_closed(PATIENCE) && halfway.wait_closed(PATIENCE));
    // Of a host that was let in, the same: a transaction that it begins has to end.
    let (mut client, _) = connect(&server);
    assert!(prove(&mut client, &keys));
    std::thread::sleep(Duration::from_millis(400));
    assert!(get_version(&mut client).is_success());
    assert!(send(&mut client, &negotiate, Way::InCapsule).is_success());
    assert!(client.wait_closed(PATIENCE));
}

/// Goal: connections without a proof make room for others, as silent ones do.
#[test]
fn unproved_connections_make_room() {
    let (server, _) = start(Limits { connections_max: 24, ..Limits::default() });
    let mut unproved = Vec::new();
    for _ in 0..30 {
        let mut client = Client::open(server.address);
        let options = (32, 0, 0);
        let who = Who::number(1);
        // Some are refused, as a peer may try only so often.
        let _ = client.connect(&who, &nqn(), (0, ControllerId::DYNAMIC), options);
        unproved.push(client);
    }
    let (mut plain, _) = Client::admin(server.address, &Who::number(2), &nqn());
    assert!(get_version(&mut plain).is_success());
}

/// Goal: commands of authentication that are no such, or whose lengths do not fit, are refused and harm
/// nothing.
#[test]
fn malformed_commands_are_refused() {
    let (server, keys) = start(Limits::default());
    let (mut client, _) = connect(&server);
    assert!(receive(&mut client, 4096).unwrap_err().is(Status::COMMAND_SEQUENCE_ERROR));
    for (dword10, dword11) in [(0, 8), (0xe900_0000, 8), (0x0001_0100, 8), (0xe901_0100, 7)] {
        let mut sqe = Authentication { bytes: 8 }.send();
        (sqe.cdw10, sqe.cdw11) = (U32::new(dword10), U32::new(dword11));
        let (cqe, _) = client.command(sqe, Some((Way::InCapsule, &[0; 8])), 0);
        assert!(cqe.status().is(Status::INVALID_FIELD), "{dword10:#x} {dword11}");
    }
    for room in [0, 8193, 1 << 20] {
        let refused = receive(&mut client, room).unwrap_err();
        assert!(refused.is(Status::INVALID_FIELD), "{room}");
    }
    let mut unequal = Authentication { bytes: 64 }.receive();
    unequal.cdw11 = U32::new(128);
    assert!(client.command(unequal, None, 64).0.status().is(Status::INVALID_FIELD));
    assert!(prove(&mut client, &keys), "all of that was before the transaction");
    let names = Names { host: Who::number(1).name, subsystem: nqn() };
    let (_, negotiate) = Host::start(keys, names, policy(), 6);
    assert!(send(&mut client, &negotiate, Way::InCapsule).is_success());
    assert!(receive(&mut client, 16).unwrap_err().is(Status::INVALID_FIELD), "it does not fit");
}

/// Everything that a target sends to a host that it asks for nothing.
fn conversation(server: &TestServer) -> (Vec<u8>, Vec<u8>) {
    let who = Who::number(2);
    let (mut admin, id) = Client::admin(server.address, &who, &nqn());
    admin.property(offset::CAP, true);
    let (cqe, _) = admin.command(Authentication { bytes: 8 }.send(), Some((Way::R2t, &[0; 8])), 0);
    assert!(cqe.status().is(Status::INVALID_OPCODE));
    let mut io = Client::open(server.address);
    let connected = io.connect(&who, &nqn(), (1, id), (16, 4, 0)).unwrap();
    // The answer to the admin queue's Connect follows ICResp (128 bytes): a header of 8 bytes, the controller's
    // number, and what is asked of the host.
    let asked = &admin.log[128 + 8 + 2..128 + 8 + 4];
    assert!(
        !connected.is_authentication_required && asked == [0, 0],
        "the host is asked for a proof"
    );
    let bytes = vec![9; BLOCK as usize];
    for way in [Way::InCapsule, Way::R2t] {
        io.command(rw(NvmOpcode::WRITE, 0, 1), Some((way, &bytes)), 0);
        io.command(rw(NvmOpcode::READ, 0, 1), None, BLOCK);
    }
    let (cqe, _) = io.command(Authentication { bytes: 64 }.receive(), None, 64);
    assert!(cqe.status().is(Status::INVALID_OPCODE));
    (admin.log, io.log)
}

/// Goal: a host that is asked for nothing sees not one byte changed by others' proofs.
#[test]
fn others_see_no_difference() {
    let plain = conversation(&TestServer::start());
    assert!(plain.0.len() > 100 && plain.1.len() > 2 * BLOCK as usize);
    let (server, _) = start(Limits::default());
    assert!(conversation(&server) == plain, "the bytes differ");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Goal: no messages let a host in that does not know the key, and the target serves others after.
    #[test]
    fn any_messages_are_survived(messages in prop::collection::vec(
        (prop::collection::vec(any::<u8>(), 1..MESSAGE_BYTES_MAX), 0_u8..2, 0_u8..5, any::<bool>()), 1..5))
    {
        let (server, keys) = start(Limits::default());
        let (mut client, _) = connect(&server);
        for (mut bytes, kind, id, is_fetched) in messages {
            for (place, value) in bytes.iter_mut().zip([kind, id]) {
                *place = value;
            }
            send(&mut client, &bytes, Way::InCapsule);
            if is_fetched {
                let _ = receive(&mut client, 4096);
            }
        }
        prop_assert!(get_version(&mut client).is(Status::AUTHENTICATION_REQUIRED));
        let (mut honest, _) = connect(&server);
        prop_assert!(prove(&mut honest, &keys));
    }
}
