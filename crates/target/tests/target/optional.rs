//! Verify, Copy and Write Uncorrectable.

use crate::basics::{pair, pattern, rw};
use crate::client::{Client, HostIdentity, Transfer};
use crate::rate::expect_bytes_are_limited;
use crate::reservation_hosts::Host;
use crate::server::{BLOCK, SIZE, TestServer};
use block::{MemoryBacking, Uncorrectable};
use nvme::command::{AcquireAction, Copy, CopyRange, GetLogPage, Identify, ReservationRelease};
use nvme::identify::{IdentifyController, IdentifyControllerNvm, IdentifyNamespace, cns, csi};
use nvme::log_page::{CommandEffects, lid};
use nvme::opcode::NvmOpcode;
use nvme::reservation::ReservationType;
use nvme::{Nsid, Status, SubmissionQueueEntry};
use std::sync::Arc;
use target::{AdmissionMode, Limits, Reservations};

const BLOCKS: u64 = SIZE / BLOCK as u64;

fn markable() -> TestServer {
    let memory = Arc::new(MemoryBacking::new(SIZE, BLOCK).unwrap());
    let backing = Arc::new(Uncorrectable::in_memory(memory));
    TestServer::with_backing(Limits::default(), AdmissionMode::AnyHost, 1, backing)
}

fn expect(io: &mut Client, sqe: SubmissionQueueEntry, status: Status) {
    let got = io.command(sqe, None, 0).0.status();
    assert!(got.is(status), "{got} is not {status}");
}

fn write(io: &mut Client, lba: u64, data: &[u8]) {
    let blocks = data.len() as u32 / BLOCK;
    let (cqe, _) = io.command(rw(NvmOpcode::WRITE, lba, blocks), Some((Transfer::R2t, data)), 0);
    assert!(cqe.status().is_success(), "{}", cqe.status());
}

fn read(io: &mut Client, lba: u64, blocks: u32) -> Vec<u8> {
    let (cqe, data) = io.command(rw(NvmOpcode::READ, lba, blocks), None, blocks * BLOCK);
    assert!(cqe.status().is_success(), "{}", cqe.status());
    data
}

/// Sends a Copy of ranges (first block, number of blocks).
fn submit_copy(
    io: &mut Client,
    ranges: &[(u64, u32)],
    destination_lba: u64,
    transfer: Transfer,
) -> u16 {
    let fields = Copy { destination_lba, ranges: ranges.len() as u16, ..Copy::default() };
    let list: Vec<u8> = ranges
        .iter()
        .flat_map(|&(lba, blocks)| CopyRange::new(lba, blocks).unwrap().bytes().to_vec())
        .collect();
    io.submit(fields.encode(Nsid(1)).unwrap(), Some((transfer, &list)), 0)
}

/// Executes a Copy of ranges.
fn copy(
    io: &mut Client,
    ranges: &[(u64, u32)],
    destination_lba: u64,
    transfer: Transfer,
) -> Status {
    let cid = submit_copy(io, ranges, destination_lba, transfer);
    let (cqe, _) = io.wait(cid);
    assert!(cqe.status().is_success() || cqe.dword0() == 0, "no range was copied");
    cqe.status()
}

/// Goal: Identify and the log page of commands announce Verify and Copy with their limits, and
/// Write Uncorrectable exactly where blocks can be marked; elsewhere it is no command.
#[test]
fn commands_are_announced_where_they_are() {
    for (server, can_mark) in [(TestServer::start(), false), (markable(), true)] {
        let (mut admin, mut io) = pair(&server, &HostIdentity::number(1));
        let mut page = |cns, nsid| {
            let sqe = Identify { cns, csi: csi::NVM, ..Identify::default() }.encode(nsid);
            admin.command(sqe, None, 4096).1
        };
        let data = page(cns::CONTROLLER, Nsid(0));
        let controller = IdentifyController::from_prefix(&data).unwrap();
        let oncs = controller.oncs.get();
        let both = IdentifyController::ONCS_VERIFY | IdentifyController::ONCS_COPY;
        assert_eq!((oncs & both, controller.cdfs.get()), (both, 1));
        assert_eq!(oncs & IdentifyController::ONCS_WRITE_UNCORRECTABLE != 0, can_mark);
        let data = page(cns::CONTROLLER_BY_COMMAND_SET, Nsid(0));
        let nvm = IdentifyControllerNvm::from_prefix(&data).unwrap();
        assert_eq!((nvm.vsl, nvm.wusl), (nvm.wzsl, 0));
        let data = page(cns::NAMESPACE, Nsid(1));
        let namespace = IdentifyNamespace::from_prefix(&data).unwrap();
        let limits = (namespace.mcl.get(), namespace.mssrl.get(), namespace.msrc);
        assert_eq!(limits, (256, 256, 127));
        let get = GetLogPage { lid: lid::COMMAND_EFFECTS, dwords: 1024, ..GetLogPage::default() };
        let (_, data) = admin.command(get.encode(Nsid(0)).unwrap(), None, 4096);
        let effects = CommandEffects::from_prefix(&data).unwrap();
        let effect = |opcode: NvmOpcode| effects.iocs[usize::from(opcode.0)].get();
        let changes = CommandEffects::SUPPORTED | CommandEffects::LOGICAL_BLOCK_CONTENT_CHANGE;
        assert_eq!(effect(NvmOpcode::VERIFY) & changes, CommandEffects::SUPPORTED);
        assert_eq!(effect(NvmOpcode::COPY) & changes, changes);
        let marking = if can_mark { changes } else { 0 };
        assert_eq!(effect(NvmOpcode::WRITE_UNCORRECTABLE) & changes, marking);
        let status = if can_mark { Status::SUCCESS } else { Status::INVALID_OPCODE };
        expect(&mut io, rw(NvmOpcode::WRITE_UNCORRECTABLE, 0, 1), status);
        server.stop();
    }
}

/// Goal: Verify reads as much as is announced and no more, on a device of this thread or another.
#[test]
fn verify_reads_what_it_is_told() {
    let path = std::env::temp_dir().join(format!("tsumugi-verify-{}", std::process::id()));
    std::fs::File::create(&path).unwrap().set_len(64 << 20).unwrap();
    let options = block::FileOptions {
        block_size: Some(BLOCK),
        direct: false,
        preallocated: true,
        incarnation: block::Incarnation(1),
    };
    let opened = Arc::new(block::FileBacking::open(&path, &options).unwrap());
    let memory = Arc::new(MemoryBacking::new(64 << 20, BLOCK).unwrap());
    let backings: [Arc<dyn block::Backing>; 2] = [memory, opened];
    for backing in backings {
        let server =
            TestServer::with_backing(Limits::default(), AdmissionMode::AnyHost, 1, backing);
        let (_admin, mut io) = pair(&server, &HostIdentity::number(1));
        let most = (32 << 20) / BLOCK;
        expect(&mut io, rw(NvmOpcode::VERIFY, 3, most), Status::SUCCESS);
        expect(&mut io, rw(NvmOpcode::VERIFY, 0, most + 1), Status::INVALID_FIELD);
        let end = (64 << 20) / u64::from(BLOCK);
        expect(&mut io, rw(NvmOpcode::VERIFY, end - 1, 1), Status::SUCCESS);
        expect(&mut io, rw(NvmOpcode::VERIFY, end - 1, 2), Status::LBA_OUT_OF_RANGE);
        let (cqe, _) = io.command(rw(NvmOpcode::VERIFY, 0, 1), None, BLOCK);
        assert!(cqe.status().is(Status::SGL_DATA_LENGTH_INVALID), "it transfers no data");
        assert_eq!(server.subsystem.counts()[0].read_remote_bytes, 0);
        server.stop();
    }
    std::fs::remove_file(path).unwrap();
}

/// Goal: Copy writes its source ranges one after the other to the destination. If these overlap, the
/// target reads all sources before it writes. The list of ranges is in the capsule or fetched.
#[test]
fn copy_puts_ranges_together() {
    let server = TestServer::start();
    let (_admin, mut io) = pair(&server, &HostIdentity::number(1));
    let block = BLOCK as usize;
    let original = pattern(1, 8);
    let at = |lba: usize, blocks: usize| &original[lba * block..(lba + blocks) * block];
    for transfer in [Transfer::InCapsule, Transfer::R2t] {
        write(&mut io, 0, &original);
        assert!(copy(&mut io, &[(6, 2), (0, 1), (3, 2)], 100, transfer).is_success());
        assert!(read(&mut io, 100, 5) == [at(6, 2), at(0, 1), at(3, 2)].concat());
        assert!(copy(&mut io, &[(0, 6)], 2, transfer).is_success());
        assert!(read(&mut io, 0, 8) == [at(0, 2), at(0, 6)].concat(), "upwards");
        write(&mut io, 0, &original);
        assert!(copy(&mut io, &[(2, 6)], 0, transfer).is_success());
        assert!(read(&mut io, 0, 8) == [at(2, 6), at(6, 2)].concat(), "downwards");
    }
    let whole = pattern(5, 256);
    write(&mut io, 512, &whole);
    assert!(copy(&mut io, &[(512, 256)], BLOCKS - 256, Transfer::InCapsule).is_success());
    assert!(read(&mut io, BLOCKS - 256, 256) == whole, "the most of one command");
    let singles: Vec<(u64, u32)> = (0..128).map(|n| (639 - n, 1)).collect();
    assert!(copy(&mut io, &singles, 1000, Transfer::InCapsule).is_success());
    assert!(read(&mut io, 1000, 1) == read(&mut io, 639, 1));
    server.stop();
}

/// Goal: a Copy outside of the limits or the namespace ends with its status and copies nothing.
#[test]
fn wrong_copies_are_refused() {
    let server = TestServer::start();
    let (_admin, mut io) = pair(&server, &HostIdentity::number(1));
    write(&mut io, 0, &pattern(1, 1));
    let too_large = Status::COMMAND_SIZE_LIMIT_EXCEEDED;
    let mut refused = |ranges: &[(u64, u32)], destination, status: Status| {
        for transfer in [Transfer::InCapsule, Transfer::R2t] {
            let got = copy(&mut io, ranges, destination, transfer);
            assert!(got.is(status) && got.is_do_not_retry(), "{got:?} is not {status}");
        }
    };
    refused(&[(0, 257)], 300, too_large);
    refused(&[(0, 200), (0, 57)], 300, too_large);
    refused(&[(0, 1); 129], 300, too_large);
    refused(&[(0, 65_536)], 300, too_large);
    refused(&[(BLOCKS - 1, 2)], 300, Status::LBA_OUT_OF_RANGE);
    refused(&[(u64::MAX, 1)], 300, Status::LBA_OUT_OF_RANGE);
    refused(&[(0, 1)], BLOCKS, Status::LBA_OUT_OF_RANGE);
    refused(&[(0, 1), (0, 1)], BLOCKS - 1, Status::LBA_OUT_OF_RANGE);
    refused(&[(0, 1)], u64::MAX, Status::LBA_OUT_OF_RANGE);
    let range = CopyRange::new(0, 1).unwrap();
    for (format, data, status) in [
        (1, range.bytes(), Status::INVALID_FIELD),
        (0, &range.bytes()[..16], Status::SGL_DATA_LENGTH_INVALID),
    ] {
        let fields = Copy { destination_lba: 300, ranges: 1, format, ..Copy::default() };
        let sqe = fields.encode(Nsid(1)).unwrap();
        let (cqe, _) = io.command(sqe, Some((Transfer::InCapsule, data)), 0);
        assert!(cqe.status().is(status), "{} is not {status}", cqe.status());
    }
    assert!(read(&mut io, 300, 2).iter().all(|&byte| byte == 0));
    server.stop();
}

/// Goal: marked blocks fail reads, comparisons, verification and copies until they are written, by
/// Write, Write Zeroes or Copy. Deallocation does not change them.
#[test]
fn uncorrectable_blocks_fail_until_they_are_written() {
    let server = markable();
    let (_admin, mut io) = pair(&server, &HostIdentity::number(1));
    let unread = Status::UNRECOVERED_READ_ERROR;
    write(&mut io, 0, &pattern(1, 16));
    let mark = rw(NvmOpcode::WRITE_UNCORRECTABLE, 4, 4);
    expect(&mut io, mark, Status::SUCCESS);
    let fails = |io: &mut Client, lba| {
        let status = io.command(rw(NvmOpcode::READ, lba, 1), None, BLOCK).0.status();
        assert!(status.is_success() || status.is(unread) && status.is_do_not_retry());
        !status.is_success()
    };
    let marked = |io: &mut Client| (0..16).filter(|&lba| fails(io, lba)).collect::<Vec<u64>>();
    assert_eq!(marked(&mut io), [4, 5, 6, 7]);
    expect(&mut io, rw(NvmOpcode::VERIFY, 0, 16), unread);
    expect(&mut io, rw(NvmOpcode::VERIFY, 8, 8), Status::SUCCESS);
    let data = pattern(1, 1);
    let compare = rw(NvmOpcode::COMPARE, 7, 1);
    let (cqe, _) = io.command(compare, Some((Transfer::InCapsule, &data)), 0);
    assert!(cqe.status().is(unread));
    assert!(copy(&mut io, &[(3, 2)], 100, Transfer::InCapsule).is(unread));
    let dsm =
        nvme::command::DatasetManagement { ranges: 1, is_deallocate: true, ..Default::default() };
    let range = nvme::command::DsmRange::new(4, 1);
    let deallocate = dsm.encode(Nsid(1)).unwrap();
    let (cqe, _) = io.command(deallocate, Some((Transfer::InCapsule, range.bytes())), 0);
    assert!(cqe.status().is_success());
    assert_eq!(marked(&mut io), [4, 5, 6, 7]);
    write(&mut io, 4, &data);
    let zeroes = nvme::command::ReadWrite {
        start_lba: 5,
        blocks: 1,
        is_deallocate: true,
        ..Default::default()
    };
    let zeroes = zeroes.encode(NvmOpcode::WRITE_ZEROES, Nsid(1)).unwrap();
    expect(&mut io, zeroes, Status::SUCCESS);
    assert_eq!(marked(&mut io), [6, 7]);
    assert!(copy(&mut io, &[(4, 1)], 7, Transfer::InCapsule).is_success());
    assert_eq!(marked(&mut io), [6]);
    assert!(read(&mut io, 4, 1) == data && read(&mut io, 7, 1) == data);
    assert!(read(&mut io, 5, 1).iter().all(|&byte| byte == 0));
    expect(&mut io, rw(NvmOpcode::WRITE_UNCORRECTABLE, BLOCKS, 1), Status::LBA_OUT_OF_RANGE);
    let (cqe, _) = io.command(rw(NvmOpcode::WRITE_UNCORRECTABLE, 0, 1), None, BLOCK);
    assert!(cqe.status().is(Status::SGL_DATA_LENGTH_INVALID));
    server.stop();
}

/// Goal: write protection holds for the commands that change blocks, and not for Verify.
#[test]
fn protected_blocks_stay() {
    let server = markable();
    let (mut admin, mut io) = pair(&server, &HostIdentity::number(1));
    let protect = nvme::command::SetFeatures {
        fid: nvme::feature::fid::WRITE_PROTECTION,
        dword11: 1,
        ..Default::default()
    };
    assert!(admin.command(protect.encode(Nsid(1)), None, 0).0.status().is_success());
    let refused = Status::NAMESPACE_WRITE_PROTECTED;
    expect(&mut io, rw(NvmOpcode::WRITE_UNCORRECTABLE, 0, 1), refused);
    assert!(copy(&mut io, &[(0, 1)], 1, Transfer::InCapsule).is(refused));
    expect(&mut io, rw(NvmOpcode::VERIFY, 0, 1), Status::SUCCESS);
    server.stop();
}

/// Goal: Verify counts as a read for reservations; Copy and Write Uncorrectable as writes (base
/// figure 672).
#[test]
fn reservations_apply() {
    let memory = Arc::new(MemoryBacking::new(SIZE, BLOCK).unwrap());
    let backing = Arc::new(Uncorrectable::in_memory(memory));
    let server = TestServer::reservable(1, backing, Reservations::new());
    let (mut holder, mut other) = (Host::new(&server, 1), Host::new(&server, 2));
    assert!(holder.register(1).is_success());
    let conflict = Status::RESERVATION_CONFLICT;
    for (kind, verify) in [
        (ReservationType::WriteExclusive, Status::SUCCESS),
        (ReservationType::ExclusiveAccess, conflict),
    ] {
        assert!(holder.acquire(AcquireAction::Acquire, 1, 0, kind).is_success());
        expect(&mut other.io, rw(NvmOpcode::VERIFY, 0, 1), verify);
        expect(&mut other.io, rw(NvmOpcode::WRITE_UNCORRECTABLE, 9, 1), conflict);
        assert!(copy(&mut other.io, &[(0, 1)], 1, Transfer::InCapsule).is(conflict));
        expect(&mut holder.io, rw(NvmOpcode::VERIFY, 0, 1), Status::SUCCESS);
        expect(&mut holder.io, rw(NvmOpcode::WRITE_UNCORRECTABLE, 9, 1), Status::SUCCESS);
        assert!(copy(&mut holder.io, &[(0, 1)], 1, Transfer::InCapsule).is_success());
        assert!(holder.release(ReservationRelease::Release(kind), 1).is_success());
    }
    server.stop();
}

/// Goal: the bytes that Verify reads and Copy copies count for the limit of the namespace, although
/// they do not cross the fabric, however the list of a Copy arrives.
#[test]
fn limits_count_the_bytes_of_the_medium() {
    let server = TestServer::start();
    let (_admin, mut io) = pair(&server, &HostIdentity::number(1));
    let namespace = server.subsystem.namespaces().remove(0);
    expect_bytes_are_limited(&mut io, &namespace, |io| {
        vec![io.submit(rw(NvmOpcode::VERIFY, 0, 64), None, 0)]
    });
    for transfer in [Transfer::InCapsule, Transfer::R2t] {
        expect_bytes_are_limited(&mut io, &namespace, |io| {
            vec![submit_copy(io, &[(0, 64)], 99, transfer)]
        });
    }
    server.stop();
}
