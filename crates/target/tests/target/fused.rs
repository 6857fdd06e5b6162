//! Compare and Write, the fused operation.

use crate::basics::{pair, pattern, rw};
use crate::client::{Client, HostIdentity, Transfer};
use crate::rate::expect_bytes_are_limited;
use crate::reservation_hosts::{Gate, Host};
use crate::server::{BLOCK, SIZE, TestServer, nqn};
use block::{Backing, MemoryBacking, Uncorrectable};
use nvme::command::{AcquireAction, Fuse, Identify, ReadWrite, ReservationRelease};
use nvme::identify::{IdentifyController, cns};
use nvme::opcode::NvmOpcode;
use nvme::reservation::ReservationType;
use nvme::{Nsid, Status, SubmissionQueueEntry};
use std::sync::Arc;
use target::{
    AdmissionMode, Admissions, HostAccess, Limits, LocalAccess, Namespace, Reservations, Subsystem,
};

/// One command with its place in a pair and its data.
type Part<'a> = (SubmissionQueueEntry, Fuse, Option<(Transfer, &'a [u8])>);

/// Sends commands one after the other, and returns their statuses.
fn send(io: &mut Client, parts: &[Part<'_>]) -> Vec<Status> {
    let sent: Vec<u16> =
        parts.iter().map(|(sqe, fuse, data)| io.submit(sqe.with_fuse(*fuse), *data, 0)).collect();
    sent.into_iter().map(|cid| io.wait(cid).0.status()).collect()
}

/// Compares block `lba` with `expected` and writes `data`.
fn compare_and_write(io: &mut Client, lba: u64, expected: &[u8], data: &[u8]) -> [Status; 2] {
    compare_and_write_by(io, lba, (Transfer::InCapsule, expected), (Transfer::InCapsule, data))
}

fn compare_and_write_by(
    io: &mut Client,
    lba: u64,
    expected: (Transfer, &[u8]),
    data: (Transfer, &[u8]),
) -> [Status; 2] {
    let blocks = expected.1.len() as u32 / BLOCK;
    let parts = [
        (rw(NvmOpcode::COMPARE, lba, blocks), Fuse::First, Some(expected)),
        (rw(NvmOpcode::WRITE, lba, blocks), Fuse::Second, Some(data)),
    ];
    send(io, &parts).try_into().unwrap()
}

fn is(statuses: [Status; 2], expected: [Status; 2]) {
    let [first, second] = statuses;
    assert!(
        first.is(expected[0]) && second.is(expected[1]),
        "{first:?} and {second:?} are not {expected:?}"
    );
}

fn read(io: &mut Client, lba: u64) -> Vec<u8> {
    io.command(rw(NvmOpcode::READ, lba, 1), None, BLOCK).1
}

/// Goal: a pair writes if the block has the expected content, and leaves it otherwise, with its
/// data in capsules or requested, in any mix. Identify announces it, for one block.
#[test]
fn a_pair_writes_what_it_expects() {
    let server = TestServer::start();
    let (mut admin, mut io) = pair(&server, &HostIdentity::number(1));
    let sqe = Identify { cns: cns::CONTROLLER, ..Identify::default() }.encode(Nsid(0));
    let (_, page) = admin.command(sqe, None, 4096);
    let controller = IdentifyController::from_prefix(&page).unwrap();
    assert_eq!((controller.fuses.get(), controller.acwu.get()), (1, 0));
    let mut present = vec![0; BLOCK as usize];
    for (seed, transfers) in [
        [Transfer::InCapsule, Transfer::InCapsule],
        [Transfer::R2t, Transfer::InCapsule],
        [Transfer::InCapsule, Transfer::R2t],
        [Transfer::R2t, Transfer::R2t],
    ]
    .into_iter()
    .enumerate()
    {
        let next = pattern(seed as u8 + 1, 1);
        let [one, other] = transfers;
        let wrong = compare_and_write_by(&mut io, 3, (one, &next), (other, &next));
        is(wrong, [Status::COMPARE_FAILURE, Status::FUSED_FAILED]);
        assert!(read(&mut io, 3) == present);
        let right = compare_and_write_by(&mut io, 3, (one, &present), (other, &next));
        is(right, [Status::SUCCESS, Status::SUCCESS]);
        assert!(read(&mut io, 3) == next, "{transfers:?}");
        present = next;
    }
    assert!(read(&mut io, 2).iter().chain(&read(&mut io, 4)).all(|&byte| byte == 0));
    let counts = server.subsystem.counts()[0];
    assert_eq!(counts.written_remote_bytes, 4 * u64::from(BLOCK));
    // Eight pairs and ten reads.
    assert_eq!((counts.commands, counts.media_errors), (8 * 2 + 10, 0));
    server.stop();
}

/// Goal: data of a pair may arrive in any order, also with other commands in between.
#[test]
fn the_data_of_a_pair_comes_in_any_order() {
    for is_reversed in [false, true] {
        let server = TestServer::start();
        let (_admin, mut io) = pair(&server, &HostIdentity::number(1));
        io.hold_r2ts = true;
        let (zeros, new) = (vec![0; BLOCK as usize], pattern(1, 1));
        let compare = rw(NvmOpcode::COMPARE, 0, 1).with_fuse(Fuse::First);
        let write = rw(NvmOpcode::WRITE, 0, 1).with_fuse(Fuse::Second);
        let first = io.submit(compare, Some((Transfer::R2t, &zeros)), 0);
        let second = io.submit(write, Some((Transfer::R2t, &new)), 0);
        assert!(read(&mut io, 0) == zeros, "other commands go on");
        let mut r2ts = std::mem::take(&mut io.r2ts);
        assert_eq!(r2ts.len(), 2);
        if is_reversed {
            r2ts.reverse();
        }
        for (index, (cid, tag, offset, length)) in r2ts.into_iter().enumerate() {
            assert!(index == 0 || !io.has_ended(first));
            io.answer_r2t(cid, tag, offset, length);
            assert!(read(&mut io, 7) == zeros);
        }
        for cid in [first, second] {
            assert!(io.wait(cid).0.status().is_success());
        }
        assert!(read(&mut io, 0) == new);
        server.stop();
    }
}

/// Goal: a command without its companion ends with Missing Fused Command, and what stands in its
/// place is executed. Pairs that are none end with Invalid Field. The connection goes on.
#[test]
fn commands_without_companion_are_aborted() {
    let server = TestServer::start();
    let (_admin, mut io) = pair(&server, &HostIdentity::number(1));
    let (zeros, new) = (vec![0; BLOCK as usize], pattern(1, 1));
    let data: Option<(Transfer, &[u8])> = Some((Transfer::InCapsule, &zeros));
    let compare = rw(NvmOpcode::COMPARE, 0, 1);
    let write = rw(NvmOpcode::WRITE, 0, 1);
    let flush = SubmissionQueueEntry::flush(Nsid(1));
    let expect = |io: &mut Client, parts: &[Part<'_>], expected: &[Status]| {
        let got = send(io, parts);
        let is_right = got.iter().zip(expected).all(|(got, status)| got.is(*status));
        assert!(is_right && got.len() == expected.len(), "{got:?} are not {expected:?}");
    };
    let (missing, done) = (Status::FUSED_MISSING, Status::SUCCESS);
    expect(&mut io, &[(write, Fuse::Second, data)], &[missing]);
    let parts = [(compare, Fuse::First, data), (flush, Fuse::None, None)];
    expect(&mut io, &parts, &[missing, done]);
    let parts = [
        (compare, Fuse::First, data),
        (compare, Fuse::First, data),
        (write, Fuse::Second, data),
        (write, Fuse::Second, data),
    ];
    expect(&mut io, &parts, &[missing, done, done, missing]);
    let parts = [(compare, Fuse::First, data), (write, Fuse::Reserved, data)];
    expect(&mut io, &parts, &[missing, Status::INVALID_FIELD]);
    let invalid = [Status::INVALID_FIELD; 2];
    for [one, other] in [
        [write, write],
        [compare, compare],
        [write, compare],
        [compare, rw(NvmOpcode::WRITE, 1, 1)],
        [compare, rw(NvmOpcode::WRITE_ZEROES, 0, 1)],
    ] {
        let data = |sqe: SubmissionQueueEntry| {
            data.filter(|_| sqe.nvm_opcode() != NvmOpcode::WRITE_ZEROES)
        };
        let parts = [(one, Fuse::First, data(one)), (other, Fuse::Second, data(other))];
        expect(&mut io, &parts, &invalid);
    }
    is(compare_and_write(&mut io, 0, &zeros, &new), [done, done]);
    assert!(read(&mut io, 0) == new);
    server.stop();
}

/// Goal: a pair one of whose commands cannot be executed writes nothing, and names the fault at
/// that command.
#[test]
fn a_fault_of_one_command_aborts_the_other() {
    let server = TestServer::start();
    let (_admin, mut io) = pair(&server, &HostIdentity::number(1));
    let zeros = vec![0; 2 * BLOCK as usize];
    let (one, two) = (&zeros[..BLOCK as usize], &zeros[..]);
    let failed = Status::FUSED_FAILED;
    let end = SIZE / u64::from(BLOCK);
    let beyond = compare_and_write(&mut io, end, one, one);
    is(beyond, [Status::LBA_OUT_OF_RANGE, failed]);
    let large = compare_and_write(&mut io, 0, two, two);
    is(large, [Status::ATOMIC_WRITE_UNIT_EXCEEDED, failed]);
    let parts = [
        (rw(NvmOpcode::COMPARE, 0, 1), Fuse::First, Some((Transfer::InCapsule, one))),
        (rw(NvmOpcode::WRITE, 0, 1), Fuse::Second, Some((Transfer::R2t, two))),
    ];
    is(send(&mut io, &parts).try_into().unwrap(), [failed, Status::SGL_DATA_LENGTH_INVALID]);
    let other = ReadWrite { start_lba: 0, blocks: 1, ..ReadWrite::default() };
    let other = other.encode(NvmOpcode::WRITE, Nsid(2)).unwrap();
    let parts = [
        (rw(NvmOpcode::COMPARE, 0, 1), Fuse::First, Some((Transfer::InCapsule, one))),
        (other, Fuse::Second, Some((Transfer::InCapsule, one))),
    ];
    is(send(&mut io, &parts).try_into().unwrap(), [failed, Status::INVALID_NAMESPACE]);
    is(compare_and_write(&mut io, 0, one, one), [Status::SUCCESS; 2]);
    server.stop();
}

fn marked() -> Arc<Uncorrectable> {
    let memory = Arc::new(MemoryBacking::new(SIZE, BLOCK).unwrap());
    Arc::new(Uncorrectable::in_memory(memory))
}

/// Goal: a comparison with a block that cannot be read fails with its error, and nothing is
/// written. A write-protected namespace refuses the write of a pair.
#[test]
fn unreadable_and_protected_blocks() {
    let server = TestServer::with_backing(Limits::default(), AdmissionMode::AnyHost, 1, marked());
    let (mut admin, mut io) = pair(&server, &HostIdentity::number(1));
    let zeros = vec![0; BLOCK as usize];
    let mark = rw(NvmOpcode::WRITE_UNCORRECTABLE, 0, 1);
    assert!(io.command(mark, None, 0).0.status().is_success());
    let statuses = compare_and_write(&mut io, 0, &zeros, &zeros);
    is(statuses, [Status::UNRECOVERED_READ_ERROR, Status::FUSED_FAILED]);
    let protect = nvme::command::SetFeatures {
        fid: nvme::feature::fid::WRITE_PROTECTION,
        dword11: 1,
        ..Default::default()
    };
    assert!(admin.command(protect.encode(Nsid(1)), None, 0).0.status().is_success());
    let statuses = compare_and_write(&mut io, 1, &zeros, &zeros);
    is(statuses, [Status::FUSED_FAILED, Status::NAMESPACE_WRITE_PROTECTED]);
    server.stop();
}

/// Goal: reservations apply to both commands of a pair: a host that may only read cannot write by
/// one.
#[test]
fn reservations_apply_to_pairs() {
    let memory = Arc::new(MemoryBacking::new(SIZE, BLOCK).unwrap());
    let server = TestServer::reservable(1, memory, Reservations::new());
    let (mut holder, mut other) = (Host::new(&server, 1), Host::new(&server, 2));
    assert!(holder.register(1).is_success());
    let zeros = vec![0; BLOCK as usize];
    for (kind, expected) in [
        (ReservationType::WriteExclusive, [Status::FUSED_FAILED, Status::RESERVATION_CONFLICT]),
        (ReservationType::ExclusiveAccess, [Status::RESERVATION_CONFLICT, Status::FUSED_FAILED]),
    ] {
        assert!(holder.acquire(AcquireAction::Acquire, 1, 0, kind).is_success());
        is(compare_and_write(&mut other.io, 0, &zeros, &zeros), expected);
        is(compare_and_write(&mut holder.io, 0, &zeros, &zeros), [Status::SUCCESS; 2]);
        assert!(holder.release(ReservationRelease::Release(kind), 1).is_success());
    }
    server.stop();
}

/// Goal: a namespace that others write to refuses pairs, and its subsystem does not announce them.
#[test]
fn shared_blocks_have_no_pairs() {
    let memory = Arc::new(MemoryBacking::new(SIZE, BLOCK).unwrap());
    let namespace = Namespace::new(Nsid(1), [7; 16], memory, false).with_other_writers();
    let subsystem = Subsystem::new(nqn(), "serial", "model", HostAccess::Any);
    subsystem.add_namespace(namespace).unwrap();
    let listen = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let admissions = Admissions::new(AdmissionMode::AnyHost);
    let server = TestServer::serving(subsystem, listen, Limits::default(), admissions, 1);
    let (mut admin, mut io) = pair(&server, &HostIdentity::number(1));
    let sqe = Identify { cns: cns::CONTROLLER, ..Identify::default() }.encode(Nsid(0));
    let (_, page) = admin.command(sqe, None, 4096);
    assert_eq!(IdentifyController::from_prefix(&page).unwrap().fuses.get(), 0);
    let zeros = vec![0; BLOCK as usize];
    is(compare_and_write(&mut io, 0, &zeros, &zeros), [Status::INVALID_FIELD; 2]);
    server.stop();
}

/// Goal: a limit of the namespace's rate holds up a pair as a whole, and both its commands end.
#[test]
fn limits_apply_to_pairs() {
    let server = TestServer::start();
    let (_admin, mut io) = pair(&server, &HostIdentity::number(1));
    let namespace = server.subsystem.namespaces().remove(0);
    let zeros = vec![0; BLOCK as usize];
    for transfer in [Transfer::InCapsule, Transfer::R2t] {
        expect_bytes_are_limited(&mut io, &namespace, |io| {
            let part =
                |opcode, fuse| (rw(opcode, 0, 1).with_fuse(fuse), Some((transfer, &zeros[..])));
            [part(NvmOpcode::COMPARE, Fuse::First), part(NvmOpcode::WRITE, Fuse::Second)]
                .map(|(sqe, data)| io.submit(sqe, data, 0))
                .to_vec()
        });
    }
    server.stop();
}

/// Goal: pairs get through with the least memory for data, although each needs room for two blocks.
#[test]
fn pairs_fit_into_the_least_memory() {
    let limits = Limits {
        transfer_bytes_max: BLOCK,
        data_bytes_in_flight_max: BLOCK as usize,
        data_bytes_total_max: 4 * BLOCK as usize,
        in_capsule_data_bytes: 0,
        ..Limits::default()
    };
    let server = TestServer::with(limits, AdmissionMode::AnyHost, 1);
    let (_admin, mut io) = pair(&server, &HostIdentity::number(1));
    let zeros = vec![0; BLOCK as usize];
    let data: Option<(Transfer, &[u8])> = Some((Transfer::R2t, &zeros));
    let one = [
        (rw(NvmOpcode::COMPARE, 0, 1), Fuse::First, data),
        (rw(NvmOpcode::WRITE, 0, 1), Fuse::Second, data),
        (rw(NvmOpcode::WRITE, 1, 1), Fuse::None, data),
    ];
    let all: Vec<Part<'_>> = one.into_iter().cycle().take(24).collect();
    assert!(send(&mut io, &all).into_iter().all(Status::is_success));
    server.stop();
}

/// Goal: several hosts on several cores add to a number by pairs, while others write to the blocks
/// around it. No addition is lost: the pairs of all hosts are atomic.
#[test]
fn pairs_of_all_hosts_are_atomic() {
    const ADDITIONS: u32 = 60;
    let server = TestServer::with(Limits::default(), AdmissionMode::AnyHost, 2);
    let add = |number: u8| {
        let address = server.address;
        move || {
            let identity = HostIdentity::number(number);
            let (_admin, id) = Client::admin(address, &identity, &nqn());
            let mut io = Client::open(address);
            io.connect(&identity, &nqn(), (1, id), (128, 4, 0)).unwrap();
            let (mut done, mut refused) = (0, 0);
            while done < ADDITIONS {
                let old = read(&mut io, 5);
                let count = u32::from_le_bytes(old[..4].try_into().unwrap()) + 1;
                let mut new = old.clone();
                new[..4].copy_from_slice(&count.to_le_bytes());
                // Keeps writes in flight beside the pairs.
                let beside = rw(NvmOpcode::WRITE, 6, 2);
                let bytes = vec![number; 2 * BLOCK as usize];
                let write = io.submit(beside, Some((Transfer::InCapsule, &bytes)), 0);
                match compare_and_write(&mut io, 5, &old, &new) {
                    [first, second] if first.is_success() && second.is_success() => done += 1,
                    statuses => {
                        is(statuses, [Status::COMPARE_FAILURE, Status::FUSED_FAILED]);
                        refused += 1;
                    }
                }
                assert!(io.wait(write).0.status().is_success());
            }
            refused
        }
    };
    let threads: Vec<_> = (1..=3).map(|number| std::thread::spawn(add(number))).collect();
    let refused: u32 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    let (_admin, mut io) = pair(&server, &HostIdentity::number(9));
    let sum = u32::from_le_bytes(read(&mut io, 5)[..4].try_into().unwrap());
    assert_eq!(sum, 3 * ADDITIONS, "{refused} comparisons failed");
    server.stop();
}

/// Goal: a pair waits for a write to its block that is under way, and a later write to the block
/// waits for the pair, while a write elsewhere does not.
#[test]
fn a_pair_and_a_write_follow_each_other() {
    let gate = Gate::new();
    let server = TestServer::with_backing(
        Limits::default(),
        AdmissionMode::AnyHost,
        2,
        Arc::new(gate.clone()),
    );
    let (mut writer, mut other) = (Host::new(&server, 1), Host::new(&server, 2));
    gate.close();
    let before = writer.begin_write(1);
    assert!(read(&mut writer.io, 3).iter().all(|&byte| byte == 0), "its data was requested");
    gate.wait_for(1);
    let (expected, new) = (pattern(1, 1), pattern(2, 1));
    let compare = rw(NvmOpcode::COMPARE, 0, 1).with_fuse(Fuse::First);
    let write = rw(NvmOpcode::WRITE, 0, 1).with_fuse(Fuse::Second);
    let first = other.io.submit(compare, Some((Transfer::InCapsule, &expected)), 0);
    let second = other.io.submit(write, Some((Transfer::InCapsule, &new)), 0);
    assert!(read(&mut other.io, 3).iter().all(|&byte| byte == 0), "the pair has arrived");
    let after = writer.begin_write(3);
    let elsewhere = rw(NvmOpcode::WRITE_ZEROES, 9, 1);
    assert!(writer.io.command(elsewhere, None, 0).0.status().is_success());
    assert!(!other.io.has_ended(first) && !writer.io.has_ended(after));
    gate.open();
    for cid in [first, second] {
        assert!(other.io.wait(cid).0.status().is_success(), "it has seen the write before");
    }
    for cid in [before, after] {
        assert!(writer.io.wait(cid).0.status().is_success());
    }
    assert!(read(&mut other.io, 0) == pattern(3, 1));
    server.stop();
}

/// Goal: Preempt and Abort ends both commands of a pair that runs.
#[test]
fn a_preempted_pair_is_aborted() {
    let gate = Gate::new();
    let server = TestServer::reservable(1, Arc::new(gate.clone()), Reservations::new());
    let (mut one, mut other) = (Host::new(&server, 1), Host::new(&server, 2));
    let kind = ReservationType::WriteExclusiveRegistrantsOnly;
    assert!(one.register(1).is_success() && other.register(2).is_success());
    assert!(other.acquire(AcquireAction::Acquire, 2, 0, kind).is_success());
    let zeros = vec![0; BLOCK as usize];
    gate.close();
    let sent = [(NvmOpcode::COMPARE, Fuse::First), (NvmOpcode::WRITE, Fuse::Second)].map(
        |(opcode, fuse)| {
            let data: Option<(Transfer, &[u8])> = Some((Transfer::InCapsule, &zeros));
            other.io.submit(rw(opcode, 0, 1).with_fuse(fuse), data, 0)
        },
    );
    gate.wait_for(1);
    let preempt = one.begin_acquire(AcquireAction::PreemptAndAbort, 1, 2, kind);
    let read = rw(NvmOpcode::READ, 0, 1);
    // The first read brings the request for the keys; the second one arrives behind the keys.
    for _ in 0..2 {
        assert!(one.io.command(read, None, BLOCK).0.status().is_success());
    }
    gate.open();
    for cid in sent {
        let status = other.io.wait(cid).0.status();
        assert!(status.is(Status::ABORTED_PREEMPT), "{status}");
    }
    assert!(one.io.wait(preempt).0.status().is_success());
    server.stop();
}

/// Goal: what a client of the target's own node writes is excluded too.
#[test]
fn a_local_write_waits_for_a_pair() {
    let gate = Gate::new();
    let admissions = Admissions::new(AdmissionMode::AnyHost);
    let backing = Arc::new(gate.clone());
    let server =
        TestServer::with_admissions(Limits::default(), Arc::clone(&admissions), 1, backing);
    let namespace = server.subsystem.namespaces().remove(0);
    let local = LocalAccess::new(&admissions, &namespace, nvme::HostId([7; 16]));
    let mut host = Host::new(&server, 2);
    let zeros = vec![0; BLOCK as usize];
    gate.close();
    let sent = [(NvmOpcode::COMPARE, Fuse::First), (NvmOpcode::WRITE, Fuse::Second)].map(
        |(opcode, fuse)| {
            let data: Option<(Transfer, &[u8])> = Some((Transfer::InCapsule, &zeros));
            host.io.submit(rw(opcode, 0, 1).with_fuse(fuse), data, 0)
        },
    );
    gate.wait_for(1);
    let mut runtime = reactor::Runtime::new(&reactor::Config::default()).unwrap();
    runtime.block_on(async {
        let device = local.attach();
        let new = reactor::Chunk::from(reactor::Buffer::copy_from(&pattern(4, 1)));
        let mut write = device.write(0, new);
        let mut beside = device.write_zeroes(u64::from(BLOCK), u64::from(BLOCK));
        let beside_ended = (&mut beside).await;
        assert!(beside_ended.is_ok());
        let is_waiting = std::future::poll_fn(|cx| {
            std::task::Poll::Ready(std::pin::Pin::new(&mut write).poll(cx).is_pending())
        });
        assert!(is_waiting.await);
        gate.open();
        write.await.unwrap();
    });
    for cid in sent {
        assert!(host.io.wait(cid).0.status().is_success());
    }
    assert!(read(&mut host.io, 0) == pattern(4, 1));
    server.stop();
}
