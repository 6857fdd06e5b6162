//! Hosts that must prove themselves: their rights before the proof, its cost, and its visibility to
//! other hosts.

use crate::basics::rw;
use crate::client::{Client, HostIdentity, Transfer};
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

/// Starts a target that requires a proof of host 1.
fn start(limits: Limits) -> (TestServer, KeyPair) {
    let server = TestServer::with(limits, AdmissionMode::AnyHost, 1);
    let keys = KeyPair { host: key(), controller: None };
    let proof = HostProof { keys: keys.clone(), policy: policy() };
    server.target.require_proof(HostIdentity::number(1).name, proof).unwrap();
    (server, keys)
}

/// Connects an admin queue pair of host 1.
fn connect(server: &TestServer) -> (Client, ControllerId) {
    let mut client = Client::open(server.address);
    let options = (32, 0, 0);
    let result =
        client.connect(&HostIdentity::number(1), &nqn(), (0, ControllerId::DYNAMIC), options);
    let result = result.unwrap();
    assert!(result.is_authentication_required && !result.is_secure_channel_required);
    (client, result.cntlid)
}

fn send(client: &mut Client, message: &[u8], transfer: Transfer) -> Status {
    let sqe = Authentication { bytes: message.len() as u32 }.send();
    client.command(sqe, Some((transfer, message)), 0).0.status()
}

fn receive(client: &mut Client, room: u32) -> Result<Vec<u8>, Status> {
    let (cqe, message) = client.command(Authentication { bytes: room }.receive(), None, room);
    if cqe.status().is_success() { Ok(message) } else { Err(cqe.status()) }
}

/// Runs a transaction with these keys. Returns whether the target accepted the proof.
fn prove(client: &mut Client, keys: &KeyPair) -> bool {
    let names = Names { host: HostIdentity::number(1).name, subsystem: nqn() };
    let (host, negotiate) = Host::start(keys.clone(), names, policy(), 5);
    assert!(send(client, &negotiate, Transfer::InCapsule).is_success());
    let (answered, reply) = host.challenged(&receive(client, 4096).unwrap()).unwrap();
    assert!(send(client, &reply, Transfer::R2t).is_success());
    let verdict = receive(client, 4096).unwrap();
    assert_eq!(verdict.len(), 4096, "hosts get as many bytes as their buffer has");
    answered.judged(&verdict).is_ok()
}

fn get_version(client: &mut Client) -> Status {
    let get = PropertyGet { offset: offset::VS, is_8_bytes: false };
    client.command(get.encode(), None, 0).0.status()
}

/// Goal: the target executes no commands of a host before its proof, and all commands after it;
/// each I/O queue pair needs a proof of its own.
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
    let result = io.connect(&HostIdentity::number(1), &nqn(), (1, id), (16, 0, 0)).unwrap();
    assert!(result.is_authentication_required);
    let write = rw(NvmOpcode::WRITE, 0, 1);
    let bytes = vec![7; BLOCK as usize];
    for transfer in [Transfer::InCapsule, Transfer::R2t] {
        let (cqe, _) = io.command(write, Some((transfer, &bytes)), 0);
        assert!(cqe.status().is(Status::AUTHENTICATION_REQUIRED), "{transfer:?}");
    }
    assert!(prove(&mut io, &keys));
    assert!(io.command(write, Some((Transfer::R2t, &bytes)), 0).0.status().is_success());
    assert_eq!(io.command(rw(NvmOpcode::READ, 0, 1), None, BLOCK).1, bytes);
    // Again, while it is in use.
    assert!(prove(&mut io, &keys) && prove(&mut client, &keys));
    assert_eq!(io.command(rw(NvmOpcode::READ, 0, 1), None, BLOCK).1, bytes);
}

/// Goal: a host's key is replaced and removed while it is connected: its connections stay, and new
/// connections need the new key.
#[test]
fn keys_are_replaced() {
    let (server, keys) = start(Limits::default());
    let (mut earlier, _) = connect(&server);
    assert!(prove(&mut earlier, &keys));
    earlier.enable();
    let new = KeyPair { host: key(), controller: None };
    let proof = HostProof { keys: new.clone(), policy: policy() };
    server.target.require_proof(HostIdentity::number(1).name, proof).unwrap();
    assert!(get_version(&mut earlier).is_success());
    assert!(!prove(&mut connect(&server).0, &keys));
    assert!(prove(&mut connect(&server).0, &new));
    assert!(server.target.forget_proof(&HostIdentity::number(1).name));
    assert!(!server.target.forget_proof(&HostIdentity::number(1).name));
    let mut client = Client::open(server.address);
    let result =
        client.connect(&HostIdentity::number(1), &nqn(), (0, ControllerId::DYNAMIC), (32, 0, 0));
    assert!(!result.unwrap().is_authentication_required);
    assert!(server.target.drop_host(&HostIdentity::number(1).name) > 0);
    assert!(earlier.wait_closed(PATIENCE));
}

/// Goal: a wrong proof ends the connection, and until then the target executes nothing more on it,
/// even if an earlier proof was accepted.
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
        assert!(receive(&mut client, 4096).is_err(), "the reason is sent once");
        assert!(client.wait_closed(PATIENCE));
    }
}

/// Goal: the target ends the connection of a host that connects and does nothing, stops in the
/// middle of its proof, or sends other commands instead.
#[test]
fn proofs_have_a_deadline() {
    let limits = Limits { handshake: Duration::from_millis(300), ..Limits::default() };
    let (server, keys) = start(limits);
    let (mut idle, _) = connect(&server);
    let (mut halfway, _) = connect(&server);
    let names = Names { host: HostIdentity::number(1).name, subsystem: nqn() };
    let (_, negotiate) = Host::start(keys.clone(), names, policy(), 5);
    assert!(send(&mut halfway, &negotiate, Transfer::InCapsule).is_success());
    assert!(idle.wait_closed(PATIENCE) && halfway.wait_closed(PATIENCE));
    // The same holds after an accepted proof: a transaction that the host begins has to end.
    let (mut client, _) = connect(&server);
    assert!(prove(&mut client, &keys));
    std::thread::sleep(Duration::from_millis(400));
    assert!(get_version(&mut client).is_success());
    assert!(send(&mut client, &negotiate, Transfer::InCapsule).is_success());
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
        let identity = HostIdentity::number(1);
        // Some are refused, because a peer has a limited rate of attempts.
        let _ = client.connect(&identity, &nqn(), (0, ControllerId::DYNAMIC), options);
        unproved.push(client);
    }
    let (mut plain, _) = Client::admin(server.address, &HostIdentity::number(2), &nqn());
    assert!(get_version(&mut plain).is_success());
}

/// Goal: malformed authentication commands, and those with wrong lengths, are refused and have no
/// effect.
#[test]
fn malformed_commands_are_refused() {
    let (server, keys) = start(Limits::default());
    let (mut client, _) = connect(&server);
    assert!(receive(&mut client, 4096).unwrap_err().is(Status::COMMAND_SEQUENCE_ERROR));
    for (dword10, dword11) in [(0, 8), (0xe900_0000, 8), (0x0001_0100, 8), (0xe901_0100, 7)] {
        let mut sqe = Authentication { bytes: 8 }.send();
        (sqe.cdw10, sqe.cdw11) = (U32::new(dword10), U32::new(dword11));
        let (cqe, _) = client.command(sqe, Some((Transfer::InCapsule, &[0; 8])), 0);
        assert!(cqe.status().is(Status::INVALID_FIELD), "{dword10:#x} {dword11}");
    }
    for room in [0, 8193, 1 << 20] {
        let refused = receive(&mut client, room).unwrap_err();
        assert!(refused.is(Status::INVALID_FIELD), "{room}");
    }
    let mut unequal = Authentication { bytes: 64 }.receive();
    unequal.cdw11 = U32::new(128);
    assert!(client.command(unequal, None, 64).0.status().is(Status::INVALID_FIELD));
    assert!(prove(&mut client, &keys), "the refused commands had no effect");
    let names = Names { host: HostIdentity::number(1).name, subsystem: nqn() };
    let (_, negotiate) = Host::start(keys, names, policy(), 6);
    assert!(send(&mut client, &negotiate, Transfer::InCapsule).is_success());
    assert!(
        receive(&mut client, 16).unwrap_err().is(Status::INVALID_FIELD),
        "the message does not fit"
    );
}

/// Returns all bytes that a target sends to a host that needs no proof.
fn conversation(server: &TestServer) -> (Vec<u8>, Vec<u8>) {
    let identity = HostIdentity::number(2);
    let (mut admin, id) = Client::admin(server.address, &identity, &nqn());
    admin.property(offset::CAP, true);
    let (cqe, _) =
        admin.command(Authentication { bytes: 8 }.send(), Some((Transfer::R2t, &[0; 8])), 0);
    assert!(cqe.status().is(Status::INVALID_OPCODE));
    let mut io = Client::open(server.address);
    let connected = io.connect(&identity, &nqn(), (1, id), (16, 4, 0)).unwrap();
    // The answer to the admin queue's Connect follows ICResp (128 bytes). It has a header of 8
    // bytes, the controller's identifier, and the authentication that the host needs.
    let asked = &admin.log[128 + 8 + 2..128 + 8 + 4];
    assert!(
        !connected.is_authentication_required && asked == [0, 0],
        "the host must give no proof"
    );
    let bytes = vec![9; BLOCK as usize];
    for transfer in [Transfer::InCapsule, Transfer::R2t] {
        io.command(rw(NvmOpcode::WRITE, 0, 1), Some((transfer, &bytes)), 0);
        io.command(rw(NvmOpcode::READ, 0, 1), None, BLOCK);
    }
    let (cqe, _) = io.command(Authentication { bytes: 64 }.receive(), None, 64);
    assert!(cqe.status().is(Status::INVALID_OPCODE));
    (admin.log, io.log)
}

/// Goal: proofs of other hosts do not change a single byte for a host that needs no proof.
#[test]
fn others_see_no_difference() {
    let plain = conversation(&TestServer::start());
    assert!(plain.0.len() > 100 && plain.1.len() > 2 * BLOCK as usize);
    let (server, _) = start(Limits::default());
    assert!(conversation(&server) == plain, "the bytes differ");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Goal: no messages admit a host that does not know the key, and the target serves others
    /// afterwards.
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
            send(&mut client, &bytes, Transfer::InCapsule);
            if is_fetched {
                let _ = receive(&mut client, 4096);
            }
        }
        prop_assert!(get_version(&mut client).is(Status::AUTHENTICATION_REQUIRED));
        let (mut honest, _) = connect(&server);
        prop_assert!(prove(&mut honest, &keys));
    }
}
