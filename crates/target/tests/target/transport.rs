//! The transport: digests, data PDUs, bounds, and the effects of breaking its rules.

use crate::basics::{pair, pattern, rw};
use crate::client::{Client, Got, HostIdentity, Transfer};
use crate::server::{BLOCK, TestServer, nqn};
use nvme::opcode::NvmOpcode;
use nvme::tcp::FatalErrorStatus;
use nvme::{ControllerId, Nsid, Status, SubmissionQueueEntry};
use std::io::Write;
use std::time::Duration;
use target::{AdmissionMode, Limits};

/// Data is transferred in both directions, small and large, with every mix of digests and
/// alignments.
#[test]
fn digests_and_alignment_are_negotiated() {
    let server = TestServer::start();
    let identity = HostIdentity::number(1);
    let (_admin, id) = Client::admin(server.address, &identity, &nqn());
    let mut qid = 0;
    for (hdgst, ddgst, hpda) in
        [(true, false, 0), (false, true, 0), (true, true, 31), (true, true, 2)]
    {
        qid += 1;
        let mut io = Client::open_with(server.address, hdgst, ddgst, hpda);
        io.connect(&identity, &nqn(), (qid, id), (32, 4, 0)).unwrap();
        for (transfer, blocks) in [(Transfer::InCapsule, 1), (Transfer::R2t, 64)] {
            let data = pattern(qid as u8, blocks);
            let (cqe, _) = io.command(rw(NvmOpcode::WRITE, 9, blocks), Some((transfer, &data)), 0);
            assert!(cqe.status().is_success(), "{transfer:?} {}", cqe.status());
            let (_, back) = io.command(rw(NvmOpcode::READ, 9, blocks), None, blocks * BLOCK);
            assert!(back == data, "{hdgst} {ddgst} {hpda} {transfer:?}");
        }
    }
    server.stop();
}

/// A damaged data digest fails only its command, and none of the data is written.
#[test]
fn a_wrong_data_digest_fails_the_command() {
    let server = TestServer::start();
    let identity = HostIdentity::number(1);
    let (_admin, id) = Client::admin(server.address, &identity, &nqn());
    let mut io = Client::open_with(server.address, false, true, 0);
    io.connect(&identity, &nqn(), (1, id), (32, 4, 0)).unwrap();
    io.hold_r2ts = true;
    let data = pattern(1, 8);
    let cid = io.submit(rw(NvmOpcode::WRITE, 0, 8), Some((Transfer::R2t, &data)), 0);
    while io.r2ts.is_empty() {
        assert!(matches!(io.receive(), Got::Pdu));
    }
    let (_, tag, ..) = io.r2ts.remove(0);
    let mut out = [0; 152];
    let length = data.len() as u32;
    let bytes = io
        .encoder
        .h2c_data(&mut out, nvme::CommandId(cid), nvme::TransferTag(tag), 0, length, true)
        .unwrap();
    io.stream.write_all(&[&out[..bytes], &data, &[1, 2, 3, 4]].concat()).unwrap();
    let (cqe, _) = io.wait(cid);
    assert!(cqe.status().is(Status::TRANSIENT_TRANSPORT_ERROR));
    let (_, back) = io.command(rw(NvmOpcode::READ, 0, 8), None, 8 * BLOCK);
    assert!(back.iter().all(|&byte| byte == 0));
    server.stop();
}

/// Several R2Ts are outstanding at a time, answered in any order and cut into many PDUs.
#[test]
fn transfers_interleave() {
    let server = TestServer::start();
    let (_admin, mut io) = pair(&server, &HostIdentity::number(1));
    io.hold_r2ts = true;
    io.h2c_bytes = 10_000;
    let all: Vec<_> = (0..8_u8).map(|i| pattern(i, 16)).collect();
    let cids: Vec<u16> = (0..8)
        .map(|i| {
            let sqe = rw(NvmOpcode::WRITE, i as u64 * 16, 16);
            io.submit(sqe, Some((Transfer::R2t, &all[i])), 0)
        })
        .collect();
    while io.r2ts.len() < 8 {
        assert!(matches!(io.receive(), Got::Pdu));
    }
    for (cid, tag, offset, length) in std::mem::take(&mut io.r2ts).into_iter().rev() {
        io.answer_r2t(cid, tag, offset, length);
    }
    for cid in cids {
        assert!(io.wait(cid).0.status().is_success());
    }
    let (_, back) = io.command(rw(NvmOpcode::READ, 0, 128), None, 128 * BLOCK);
    assert!(back == all.concat());
    server.stop();
}

/// Only a host that disabled flow control gets no responses for successful reads; others get the
/// queue's head.
#[test]
fn responses_are_left_out_only_without_flow_control() {
    let server = TestServer::start();
    let identity = HostIdentity::number(1);
    let (_admin, mut io) = pair(&server, &identity);
    io.command(rw(NvmOpcode::READ, 0, 1), None, BLOCK);
    assert_eq!(io.successes.len(), 1);
    let (_admin, id) = Client::admin(server.address, &identity, &nqn());
    let mut io = Client::open(server.address);
    io.connect(&identity, &nqn(), (1, id), (4, 0, 0)).unwrap();
    for turn in 1..=9_u16 {
        let (cqe, _) = io.command(rw(NvmOpcode::READ, 0, 1), None, BLOCK);
        assert_eq!(cqe.sqhd.get(), (turn + 1) % 4);
    }
    assert!(io.successes.is_empty());
    server.stop();
}

/// Data that no R2T requested, or not in this form, ends the connection with a terminate request
/// that states the reason.
#[test]
fn wrong_data_pdus_terminate() {
    let server = TestServer::start();
    let identity = HostIdentity::number(1);
    // (offset, length, is last, expected)
    let cases = [
        (4096, 4096, true, FatalErrorStatus::DATA_OUT_OF_RANGE),
        (0, 32768 + 4096, true, FatalErrorStatus::DATA_OUT_OF_RANGE),
        (0, 4096, true, FatalErrorStatus::INVALID_HEADER_FIELD),
        (0, 32768, false, FatalErrorStatus::INVALID_HEADER_FIELD),
    ];
    for (offset, length, is_last, expected) in cases {
        let (_admin, mut io) = pair(&server, &identity);
        io.hold_r2ts = true;
        let cid = io.submit(rw(NvmOpcode::WRITE, 0, 8), Some((Transfer::R2t, &pattern(1, 8))), 0);
        while io.r2ts.is_empty() {
            assert!(matches!(io.receive(), Got::Pdu));
        }
        let (_, tag, ..) = io.r2ts[0];
        io.h2c_data(cid, tag, offset, &vec![9; length], is_last);
        assert!(io.wait_closed(Duration::from_secs(10)));
        assert_eq!(io.term.unwrap().status(), expected, "{offset} {length} {is_last}");
    }
    let (_admin, mut io) = pair(&server, &identity);
    io.h2c_data(0, 77, 0, &[0; 512], true);
    assert!(io.wait_closed(Duration::from_secs(10)));
    assert_eq!(io.term.unwrap().status(), FatalErrorStatus::INVALID_HEADER_FIELD);
    server.stop();
}

/// A second `ICReq`, garbage, and a wrong header digest also get a terminate request.
#[test]
fn wrong_pdus_terminate() {
    let server = TestServer::start();
    let mut garbage = Client::raw(server.address);
    garbage.stream.write_all(&[0xff; 64]).unwrap();
    assert!(garbage.wait_closed(Duration::from_secs(10)));
    assert_eq!(garbage.term.unwrap().status(), FatalErrorStatus::INVALID_HEADER_FIELD);
    let mut twice = Client::open(server.address);
    let request = nvme::tcp::IcReq::new(0, false, false, 0);
    twice.stream.write_all(request.bytes()).unwrap();
    assert!(twice.wait_closed(Duration::from_secs(10)));
    assert_eq!(twice.term.unwrap().status(), FatalErrorStatus::SEQUENCE_ERROR);
    let mut digest = Client::open_with(server.address, true, false, 0);
    let mut out = [0; 152];
    let sqe = SubmissionQueueEntry::keep_alive();
    let bytes = digest.encoder.capsule_cmd(&mut out, &sqe, 0).unwrap();
    out[bytes - 1] ^= 1;
    digest.stream.write_all(&out[..bytes]).unwrap();
    assert!(digest.wait_closed(Duration::from_secs(10)));
    assert_eq!(digest.term.unwrap().status(), FatalErrorStatus::HEADER_DIGEST_ERROR);
    server.stop();
}

/// A Connect with garbage right behind it creates no controller, whether or not it is held for an
/// earlier controller, and the target continues.
#[test]
fn a_connect_before_garbage_is_void() {
    let server = TestServer::start();
    let identity = HostIdentity::number(1);
    for _ in 0..2 {
        let mut host = Client::open(server.address);
        host.send_connect_with(&identity, &nqn(), &[0xff; 64]);
        assert!(host.wait_closed(Duration::from_secs(10)));
        assert_eq!(host.term.unwrap().status(), FatalErrorStatus::INVALID_HEADER_FIELD);
        // The second time there is a controller to replace.
        let (mut admin, _) = Client::admin(server.address, &identity, &nqn());
        let (cqe, _) = admin.command(SubmissionQueueEntry::keep_alive(), None, 0);
        assert!(cqe.status().is_success(), "{}", cqe.status());
    }
    server.stop();
}

/// Commands before Connect fail, and a silent peer is dropped.
#[test]
fn nothing_works_before_connect() {
    let handshake = Duration::from_millis(300);
    let limits = Limits { handshake, ..Limits::default() };
    let server = TestServer::with(limits, AdmissionMode::AnyHost, 1);
    let mut early = Client::open(server.address);
    let (cqe, _) = early.command(SubmissionQueueEntry::flush(Nsid(1)), None, 0);
    assert!(cqe.status().is(Status::COMMAND_SEQUENCE_ERROR));
    assert!(early.wait_closed(Duration::from_secs(10)), "an unconnected peer is dropped");
    let mut silent = Client::raw(server.address);
    assert!(silent.wait_closed(Duration::from_secs(10)), "a silent peer is dropped");
    server.stop();
}

/// A peer that sends one byte at a time is served.
#[test]
fn a_slow_peer_is_served() {
    let server = TestServer::start();
    let (_admin, mut io) = pair(&server, &HostIdentity::number(1));
    let mut out = [0; 152];
    let sqe = rw(NvmOpcode::WRITE_ZEROES, 0, 1).with_command_id(nvme::CommandId(500));
    let bytes = io.encoder.capsule_cmd(&mut out, &sqe, 0).unwrap();
    for byte in &out[..bytes] {
        io.stream.write_all(&[*byte]).unwrap();
    }
    assert!(io.wait(500).0.status().is_success());
    server.stop();
}

/// Connections above the maximum are closed at once, and room that becomes free is used again.
#[test]
fn connections_are_bounded() {
    let limits = Limits { connections_max: 2, ..Limits::default() };
    let server = TestServer::with(limits, AdmissionMode::AnyHost, 1);
    let (admin, io) = pair(&server, &HostIdentity::number(1));
    let mut third = Client::raw(server.address);
    assert!(third.wait_closed(Duration::from_secs(10)));
    drop((admin, io));
    // The target notices the two ends after a moment.
    for _ in 0..1000 {
        let mut again = Client::raw(server.address);
        if !again.wait_closed(Duration::from_millis(20)) {
            return server.stop();
        }
    }
    panic!("no room became free");
}

/// The number of controllers is bounded, and a queue overrun ends the connection.
#[test]
fn controllers_and_queues_are_bounded() {
    let limits = Limits { controllers_max: 1, ..Limits::default() };
    let server = TestServer::with(limits, AdmissionMode::AnyHost, 1);
    let identity = HostIdentity::number(1);
    let (_admin, id) = Client::admin(server.address, &identity, &nqn());
    let (status, _) = Client::open(server.address)
        .connect(&identity, &nqn(), (0, ControllerId::DYNAMIC), (32, 0, 0))
        .unwrap_err();
    assert!(status.is(Status::CONNECT_CONTROLLER_BUSY));
    let mut io = Client::open(server.address);
    io.connect(&identity, &nqn(), (1, id), (2, 4, 0)).unwrap();
    io.hold_r2ts = true;
    for _ in 0..3 {
        io.submit(rw(NvmOpcode::WRITE, 0, 8), Some((Transfer::R2t, &pattern(0, 8))), 0);
    }
    assert!(io.wait_closed(Duration::from_secs(10)), "more commands than the queue has entries");
    server.stop();
}

/// Memory for data is bounded: commands beyond it wait for their turn, and all of them end.
#[test]
fn data_in_flight_is_bounded() {
    let limits = Limits {
        transfer_bytes_max: 64 << 10,
        data_bytes_in_flight_max: 64 << 10,
        c2h_data_bytes_max: 4096,
        ..Limits::default()
    };
    let server = TestServer::with(limits, AdmissionMode::AnyHost, 1);
    let (_admin, mut io) = pair(&server, &HostIdentity::number(1));
    io.hold_r2ts = true;
    let data = pattern(5, 16);
    let cids: Vec<u16> = (0..4)
        .map(|i| io.submit(rw(NvmOpcode::WRITE, i * 16, 16), Some((Transfer::R2t, &data)), 0))
        .collect();
    for cid in cids {
        while io.r2ts.is_empty() {
            assert!(matches!(io.receive(), Got::Pdu));
        }
        assert_eq!(io.r2ts.len(), 1, "one transfer at a time fits");
        let (which, tag, offset, length) = io.r2ts.remove(0);
        assert_eq!(which, cid, "first come, first served");
        io.answer_r2t(which, tag, offset, length);
        assert!(io.wait(cid).0.status().is_success());
    }
    let cids: Vec<u16> =
        (0..4).map(|i| io.submit(rw(NvmOpcode::READ, i * 16, 16), None, 16 * BLOCK)).collect();
    for cid in cids {
        assert!(io.wait(cid).1 == data);
    }
    server.stop();
}
