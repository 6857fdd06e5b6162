//! Limits on what one host can take from the others.

use crate::basics::{pair, pattern, rw};
use crate::client::{Client, HostIdentity, Transfer};
use crate::server::{BLOCK, TestServer};
use block::MemoryBacking;
use nvme::command::{DatasetManagement, DsmRange, Identify};
use nvme::identify::{IDENTIFY_BYTES, IdentifyControllerNvm, cns};
use nvme::opcode::NvmOpcode;
use nvme::{Nsid, Status};
use std::sync::Arc;
use std::time::Duration;
use target::{AdmissionMode, Limits};

/// Starts a target with a namespace of 256 MiB whose pages are allocated at the first write.
fn server() -> TestServer {
    let backing = Arc::new(MemoryBacking::new(256 << 20, BLOCK).unwrap());
    TestServer::with_backing(Limits::default(), AdmissionMode::AnyHost, 1, backing)
}

fn deallocate(io: &mut Client, ranges: &[DsmRange]) -> Status {
    let count = ranges.len() as u16;
    let dsm = DatasetManagement { ranges: count, is_deallocate: true, ..Default::default() };
    let list: Vec<u8> = ranges.iter().flat_map(|range| range.bytes().to_vec()).collect();
    io.command(dsm.encode(Nsid(1)).unwrap(), Some((Transfer::InCapsule, &list)), 0).0.status()
}

/// Goal: Identify states the limits of commands that move no data. Commands at the limits are
/// executed, and larger ones get the status that the specification names.
#[test]
fn commands_without_data_have_limits() {
    let server = server();
    let (mut admin, mut io) = pair(&server, &HostIdentity::number(1));
    let identify = Identify { cns: cns::CONTROLLER_BY_COMMAND_SET, ..Default::default() };
    let (_, page) = admin.command(identify.encode(Nsid(0)), None, IDENTIFY_BYTES as u32);
    let stated = *IdentifyControllerNvm::from_prefix(&page).unwrap();
    assert!(stated.wzsl > 0 && stated.dmrl > 0 && stated.dmrsl.get() > 0);
    // Linux evaluates only DMRL and DMRSL.
    let (ranges, blocks) = (usize::from(stated.dmrl), stated.dmrsl.get());
    assert_eq!(stated.dmsl.get(), ranges as u64 * u64::from(blocks));

    let zero_blocks = 1 << stated.wzsl;
    let (cqe, _) = io.command(rw(NvmOpcode::WRITE_ZEROES, 0, zero_blocks), None, 0);
    assert!(cqe.status().is_success(), "{}", cqe.status());
    let (cqe, _) = io.command(rw(NvmOpcode::WRITE_ZEROES, 0, zero_blocks + 1), None, 0);
    assert!(cqe.status().is(Status::INVALID_FIELD), "{}", cqe.status());

    assert!(deallocate(&mut io, &vec![DsmRange::new(0, 16); ranges]).is_success());
    let too_many = deallocate(&mut io, &vec![DsmRange::new(0, 16); ranges + 1]);
    assert!(too_many.is(Status::COMMAND_SIZE_LIMIT_EXCEEDED), "{too_many}");
    let too_long = deallocate(&mut io, &[DsmRange::new(0, blocks + 1)]);
    assert!(too_long.is(Status::COMMAND_SIZE_LIMIT_EXCEEDED), "{too_long}");
    // Ranges that are only hints have no limit.
    let hints = DatasetManagement { ranges: 256, ..Default::default() };
    let (cqe, _) =
        io.command(hints.encode(Nsid(1)).unwrap(), Some((Transfer::InCapsule, &[0; 4096])), 0);
    assert!(cqe.status().is_success(), "{}", cqe.status());
    server.stop();
}

/// Goal: hosts that do not read requested data, or do not send announced data, together hold a
/// bounded amount of memory, and another host continues beside them; when they are gone, their
/// memory is free again.
#[test]
fn memory_for_data_is_one_budget() {
    let limits = Limits {
        data_bytes_total_max: 8 << 20,
        send_when_short: Duration::from_secs(1),
        ..Limits::default()
    };
    let server = TestServer::with(limits, AdmissionMode::AnyHost, 1);
    let budget = Arc::clone(server.target.budget());
    let mut hostile: Vec<_> =
        (2..10).map(|number| pair(&server, &HostIdentity::number(number))).collect();
    let mib = (1 << 20) / BLOCK;
    let data = pattern(1, mib);
    for (number, (_, io)) in hostile.iter_mut().enumerate() {
        io.hold_r2ts = true;
        for _ in 0..40 {
            if number % 2 == 0 {
                io.submit(rw(NvmOpcode::READ, 0, mib), None, mib * BLOCK);
            } else {
                io.submit(rw(NvmOpcode::WRITE, 0, mib), Some((Transfer::R2t, &data)), 0);
            }
        }
    }
    let (_admin, mut io) = pair(&server, &HostIdentity::number(1));
    for turn in 0..5 {
        let data = pattern(turn, 16);
        let write = rw(NvmOpcode::WRITE, 512, 16);
        assert!(io.command(write, Some((Transfer::R2t, &data)), 0).0.status().is_success());
        let (cqe, back) = io.command(rw(NvmOpcode::READ, 512, 16), None, 16 * BLOCK);
        assert!(cqe.status().is_success() && back == data);
        assert!(budget.used_bytes() <= 8 << 20, "{}", budget.used_bytes());
    }
    drop((hostile, io));
    server.stop();
    assert_eq!(budget.used_bytes(), 0);
}

/// Goal: silent connections do not keep hosts out, before or after them, even if all have the same
/// address; queue pairs do not end to make room for them.
#[test]
fn silent_connections_keep_no_host_out() {
    let limits = Limits { connections_max: 32, ..Limits::default() };
    let server = TestServer::with(limits, AdmissionMode::AnyHost, 1);
    let mut hosts = Vec::new();
    let mut silent = Vec::new();
    for number in 1..4 {
        hosts.push(pair(&server, &HostIdentity::number(number)));
        silent.extend((0..100).map(|_| Client::raw(server.address)));
        for (_, io) in &mut hosts {
            let (cqe, _) = io.command(rw(NvmOpcode::READ, 0, 1), None, BLOCK);
            assert!(cqe.status().is_success());
        }
    }
    drop(silent);
    server.stop();
}

/// Goal: hosts that clear gigabytes by a few kilobytes of commands do not hold up another host,
/// whose reads end first although they arrive last; nor do they hold up the target's end.
#[test]
fn long_commands_leave_others_their_turns() {
    let server = server();
    let mut hostile: Vec<_> =
        (2..6).map(|number| pair(&server, &HostIdentity::number(number))).collect();
    let zero_blocks = 1 << Limits::default().wzsl();
    let commands: Vec<Vec<u16>> = hostile
        .iter_mut()
        .map(|(_, io)| {
            let zero = rw(NvmOpcode::WRITE_ZEROES, 0, zero_blocks);
            (0..100).map(|_| io.submit(zero, None, 0)).collect()
        })
        .collect();
    let (_admin, mut io) = pair(&server, &HostIdentity::number(1));
    for _ in 0..5 {
        let (cqe, _) = io.command(rw(NvmOpcode::READ, 0, 1), None, BLOCK);
        assert!(cqe.status().is_success());
    }
    let mut left = 0;
    for ((_, io), commands) in hostile.iter_mut().zip(&commands) {
        io.take_what_has_come();
        left += commands.iter().filter(|cid| !io.has_ended(**cid)).count();
    }
    assert!(left > 0, "the reads had to wait until all ranges were cleared");
    // On a queue pair with long commands, short ones get their turns too.
    let (_, io) = &mut hostile[0];
    let read = io.submit(rw(NvmOpcode::READ, 0, 1), None, BLOCK);
    assert!(io.wait(read).0.status().is_success());
    drop(hostile);
    server.stop();
}
