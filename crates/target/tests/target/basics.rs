//! Connect, identify, and the I/O commands.

use crate::client::{Client, HostIdentity, Transfer};
use crate::server::{BLOCK, SIZE, TestServer, nqn};
use nvme::command::{DatasetManagement, DsmRange, Identify, ReadWrite};
use nvme::fabrics::ConnectInvalid;
use nvme::identify::{
    IdentifyController, IdentifyNamespace, NamespaceDescriptor, NamespaceDescriptors,
    NamespaceList, cns,
};
use nvme::opcode::NvmOpcode;
use nvme::property::offset;
use nvme::{ControllerId, Nsid, Status, SubmissionQueueEntry};

pub fn rw(opcode: NvmOpcode, lba: u64, blocks: u32) -> SubmissionQueueEntry {
    let command = ReadWrite { start_lba: lba, blocks, ..ReadWrite::default() };
    command.encode(opcode, Nsid(1)).unwrap()
}

pub fn pattern(seed: u8, blocks: u32) -> Vec<u8> {
    (0..blocks * BLOCK).map(|i| (i % 251) as u8 ^ seed).collect()
}

/// Connects an admin queue pair and one I/O queue pair without flow control.
pub fn pair(server: &TestServer, identity: &HostIdentity) -> (Client, Client) {
    let (admin, id) = Client::admin(server.address, identity, &nqn());
    let mut io = Client::open(server.address);
    io.connect(identity, &nqn(), (1, id), (128, 4, 0)).unwrap();
    (admin, io)
}

/// Identify gives a host everything that it needs to use the namespace.
#[test]
fn identify_describes_the_namespace() {
    let server = TestServer::start();
    let (mut admin, id) = Client::admin(server.address, &HostIdentity::number(1), &nqn());
    let identify = |admin: &mut Client, cns, nsid| {
        let sqe = Identify { cns, ..Identify::default() }.encode(nsid);
        admin.command(sqe, None, 4096)
    };
    let (cqe, data) = identify(&mut admin, cns::CONTROLLER, Nsid(0));
    assert!(cqe.status().is_success());
    let controller = IdentifyController::from_prefix(&data).unwrap();
    assert_eq!(controller.cntlid.get(), id.get());
    assert_eq!(controller.subsystem_nqn().unwrap(), nqn());
    assert_eq!(controller.in_capsule_data_bytes(), 8192);
    assert_eq!(controller.transfer_bytes_max(0), Some(1 << 20));
    let (_, data) = identify(&mut admin, cns::ACTIVE_NAMESPACES, Nsid(0));
    let list: Vec<Nsid> = NamespaceList::from_prefix(&data).unwrap().iter().collect();
    assert_eq!(list, [Nsid(1)]);
    let (_, data) = identify(&mut admin, cns::NAMESPACE, Nsid(1));
    let namespace = IdentifyNamespace::from_prefix(&data).unwrap();
    assert_eq!(namespace.nsze.get() * u64::from(BLOCK), SIZE);
    assert_eq!(namespace.block_shift().unwrap(), 12);
    let (_, data) = identify(&mut admin, cns::NAMESPACE_DESCRIPTORS, Nsid(1));
    let all: Vec<_> = NamespaceDescriptors::new(&data).map(Result::unwrap).collect();
    assert!(all.contains(&NamespaceDescriptor::Uuid([7; 16])));
    for (cns, nsid) in [
        (cns::CONTROLLER_BY_COMMAND_SET, Nsid(0)),
        (cns::NAMESPACE_BY_COMMAND_SET, Nsid(1)),
        (cns::NAMESPACE_INDEPENDENT, Nsid(1)),
        (cns::IO_COMMAND_SETS, Nsid(0)),
    ] {
        assert!(identify(&mut admin, cns, nsid).0.status().is_success(), "CNS {cns:#x}");
    }
    let (cqe, _) = identify(&mut admin, 0xff, Nsid(0));
    assert!(cqe.status().is(Status::INVALID_FIELD));
    assert_ne!(admin.property(offset::CAP, true), 0);
    server.stop();
}

/// Reads return the written data, for writes by in-capsule data and by R2T, small and of the
/// largest size.
#[test]
fn what_is_written_is_read() {
    let server = TestServer::start();
    let (_admin, mut io) = pair(&server, &HostIdentity::number(1));
    for (transfer, blocks) in [
        (Transfer::InCapsule, 1),
        (Transfer::InCapsule, 2),
        (Transfer::R2t, 1),
        (Transfer::R2t, 256),
    ] {
        let data = pattern(blocks as u8, blocks);
        let (cqe, _) = io.command(rw(NvmOpcode::WRITE, 5, blocks), Some((transfer, &data)), 0);
        assert!(cqe.status().is_success(), "{transfer:?} {blocks}: {}", cqe.status());
        let (cqe, back) = io.command(rw(NvmOpcode::READ, 5, blocks), None, blocks * BLOCK);
        assert!(cqe.status().is_success());
        assert!(back == data, "{transfer:?} {blocks}");
    }
    let (cqe, _) = io.command(SubmissionQueueEntry::flush(Nsid(1)), None, 0);
    assert!(cqe.status().is_success());
    let (cqe, _) = io.command(SubmissionQueueEntry::flush(Nsid::BROADCAST), None, 0);
    assert!(cqe.status().is_success());
    let counts = server.subsystem.counts()[0];
    assert_eq!(counts.written_remote_bytes, 260 * u64::from(BLOCK));
    assert_eq!(counts.read_remote_bytes, 260 * u64::from(BLOCK));
    assert_eq!(counts.commands, 10);
    server.stop();
}

/// Compare, Write Zeroes and deallocate have their effects.
#[test]
fn compare_zero_and_deallocate() {
    let server = TestServer::start();
    let (_admin, mut io) = pair(&server, &HostIdentity::number(1));
    let data = pattern(3, 4);
    io.command(rw(NvmOpcode::WRITE, 0, 4), Some((Transfer::R2t, &data)), 0);
    let (cqe, _) = io.command(rw(NvmOpcode::COMPARE, 0, 4), Some((Transfer::R2t, &data)), 0);
    assert!(cqe.status().is_success());
    let (cqe, _) =
        io.command(rw(NvmOpcode::COMPARE, 0, 4), Some((Transfer::R2t, &pattern(4, 4))), 0);
    assert!(cqe.status().is(Status::COMPARE_FAILURE));
    let (cqe, _) = io.command(rw(NvmOpcode::WRITE_ZEROES, 1, 1), None, 0);
    assert!(cqe.status().is_success());
    let dsm = DatasetManagement { ranges: 1, is_deallocate: true, ..Default::default() };
    let range = DsmRange::new(2, 1);
    let (cqe, _) =
        io.command(dsm.encode(Nsid(1)).unwrap(), Some((Transfer::InCapsule, range.bytes())), 0);
    assert!(cqe.status().is_success());
    let (_, back) = io.command(rw(NvmOpcode::READ, 0, 4), None, 4 * BLOCK);
    let block = BLOCK as usize;
    assert!(back[..block] == data[..block] && back[3 * block..] == data[3 * block..]);
    assert!(back[block..3 * block].iter().all(|&byte| byte == 0));
    let beyond = DsmRange::new(SIZE / u64::from(BLOCK), 1);
    let (cqe, _) =
        io.command(dsm.encode(Nsid(1)).unwrap(), Some((Transfer::InCapsule, beyond.bytes())), 0);
    assert!(cqe.status().is(Status::LBA_OUT_OF_RANGE));
    server.stop();
}

/// An invalid command ends with the status for its fault, and the connection continues.
#[test]
fn wrong_commands_get_their_status() {
    let server = TestServer::start();
    let (_admin, mut io) = pair(&server, &HostIdentity::number(1));
    let blocks = SIZE / u64::from(BLOCK);
    let mut expect = |sqe, data: Option<(Transfer, &[u8])>, bytes, status: Status| {
        let (cqe, _) = io.command(sqe, data, bytes);
        assert!(cqe.status().is(status), "{} is not {status}", cqe.status());
    };
    let one = pattern(0, 1);
    expect(rw(NvmOpcode::READ, blocks, 1), None, BLOCK, Status::LBA_OUT_OF_RANGE);
    expect(rw(NvmOpcode::READ, u64::MAX, 2), None, 2 * BLOCK, Status::LBA_OUT_OF_RANGE);
    expect(
        rw(NvmOpcode::WRITE, blocks, 1),
        Some((Transfer::R2t, &one)),
        0,
        Status::LBA_OUT_OF_RANGE,
    );
    expect(rw(NvmOpcode::READ, 0, 257), None, 257 * BLOCK, Status::INVALID_FIELD);
    expect(rw(NvmOpcode::READ, 0, 2), None, BLOCK, Status::SGL_DATA_LENGTH_INVALID);
    expect(
        rw(NvmOpcode::WRITE, 0, 2),
        Some((Transfer::R2t, &one)),
        0,
        Status::SGL_DATA_LENGTH_INVALID,
    );
    expect(rw(NvmOpcode(0x7d), 0, 1), None, 0, Status::INVALID_OPCODE);
    let mut other = rw(NvmOpcode::READ, 0, 1);
    other.nsid.set(2);
    expect(other, None, BLOCK, Status::INVALID_NAMESPACE);
    let mut fused = rw(NvmOpcode::READ, 0, 1);
    // A second command without its first.
    fused.flags |= 2;
    expect(fused, None, BLOCK, Status::FUSED_MISSING);
    expect(rw(NvmOpcode::READ, 0, 1), None, BLOCK, Status::SUCCESS);
    server.stop();
}

/// Connect refuses invalid parameters and reports the position of the fault.
#[test]
fn connect_refuses_wrong_parameters() {
    let server = TestServer::start();
    let identity = HostIdentity::number(1);
    let (_admin, id) = Client::admin(server.address, &identity, &nqn());
    let try_connect = |identity: &HostIdentity, nqn: &nvme::Nqn, which, how| {
        Client::open(server.address).connect(identity, nqn, which, how).unwrap_err()
    };
    let invalid = |(status, dword0): (Status, u32)| {
        assert!(status.is(Status::CONNECT_INVALID_PARAMETERS));
        ConnectInvalid::from_dword(dword0)
    };
    let dynamic = ControllerId::DYNAMIC;
    let unknown = nvme::Nqn::new("nqn.2026-01.io.tsumugi:nothing").unwrap();
    let usual = (128, 0, 0);
    assert_eq!(
        invalid(try_connect(&identity, &unknown, (0, dynamic), (32, 0, 0))),
        ConnectInvalid::SUBNQN
    );
    assert_eq!(
        invalid(try_connect(&identity, &nqn(), (0, dynamic), (4096, 0, 0))),
        ConnectInvalid::SQSIZE
    );
    assert_eq!(
        invalid(try_connect(&identity, &nqn(), (0, ControllerId(7)), (32, 0, 0))),
        ConnectInvalid::CNTLID
    );
    assert_eq!(
        invalid(try_connect(&identity, &nqn(), (0, dynamic), (32, 0, u32::MAX))),
        ConnectInvalid::KATO
    );
    assert_eq!(
        invalid(try_connect(&identity, &nqn(), (1, ControllerId(999)), usual)),
        ConnectInvalid::CNTLID
    );
    assert_eq!(
        invalid(try_connect(&HostIdentity::number(2), &nqn(), (1, id), usual)),
        ConnectInvalid::HOSTID
    );
    assert_eq!(invalid(try_connect(&identity, &nqn(), (1000, id), usual)), ConnectInvalid::QID);
    assert_eq!(
        invalid(try_connect(&identity, &nqn(), (1, id), (129, 0, 0))),
        ConnectInvalid::SQSIZE
    );
    let mut io = Client::open(server.address);
    io.connect(&identity, &nqn(), (1, id), usual).unwrap();
    let (status, _) = try_connect(&identity, &nqn(), (1, id), usual);
    assert!(status.is(Status::COMMAND_SEQUENCE_ERROR), "a queue identifier is used once");
    server.stop();
}
