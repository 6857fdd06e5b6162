//! Identify and the log pages announce exactly what the target supports.

use crate::basics::{pair, pattern, rw};
use crate::client::{Client, HostIdentity};
use crate::server::{BLOCK, TestServer, nqn};
use block::MemoryBacking;
use nvme::command::{Feature, FeatureSelect, GetLogPage, Identify};
use nvme::feature::fid;
use nvme::identify::{IdentifyController, cns};
use nvme::log_page::{CommandEffects, FeatureEffects, SupportedPages, lid};
use nvme::opcode::{AdminOpcode, NvmOpcode};
use nvme::{Nqn, Nsid, SglDescriptor, Status, SubmissionQueueEntry};
use std::sync::Arc;
use std::time::Duration;
use target::{HostAccess, Namespace, Subsystem};

fn identify(admin: &mut Client, cns: u8, nsid: Nsid) -> Result<Vec<u8>, Status> {
    let sqe = Identify { cns, ..Identify::default() }.encode(nsid);
    let (cqe, data) = admin.command(sqe, None, 4096);
    if cqe.status().is_success() { Ok(data) } else { Err(cqe.status()) }
}

fn log_page(admin: &mut Client, lid: u8, bytes: u32) -> Result<Vec<u8>, Status> {
    let get = GetLogPage { lid, dwords: u64::from(bytes / 4), ..GetLogPage::default() };
    let (cqe, data) = admin.command(get.encode(Nsid::BROADCAST).unwrap(), None, bytes);
    if cqe.status().is_success() { Ok(data) } else { Err(cqe.status()) }
}

/// Goal: ONCS has a bit for each supported optional command and feature, and no other bit.
#[test]
fn optional_commands_are_announced() {
    type Announced = IdentifyController;
    let server = TestServer::start();
    let (mut admin, mut io) = pair(&server, &HostIdentity::number(1));
    let data = identify(&mut admin, cns::CONTROLLER, Nsid(0)).unwrap();
    let controller = *IdentifyController::from_prefix(&data).unwrap();
    let oncs = controller.oncs.get();
    for (bit, opcode) in [
        (Announced::ONCS_COMPARE, NvmOpcode::COMPARE),
        (Announced::ONCS_WRITE_UNCORRECTABLE, NvmOpcode::WRITE_UNCORRECTABLE),
        (Announced::ONCS_DATASET_MANAGEMENT, NvmOpcode::DATASET_MANAGEMENT),
        (Announced::ONCS_WRITE_ZEROES, NvmOpcode::WRITE_ZEROES),
        (Announced::ONCS_RESERVATIONS, NvmOpcode::RESERVATION_REPORT),
        (Announced::ONCS_VERIFY, NvmOpcode::VERIFY),
        (Announced::ONCS_COPY, NvmOpcode::COPY),
    ] {
        let status = io.command(rw(opcode, 0, 1), None, 0).0.status();
        let is_known = !status.is(Status::INVALID_OPCODE);
        assert_eq!(oncs & bit != 0, is_known, "{opcode}: {status}");
    }
    let get = |fid, select| Feature { fid, select, dword11: 0 }.encode(Nsid(0));
    let (cqe, _) = admin.command(get(fid::TIMESTAMP, FeatureSelect::Current), None, 8);
    assert_eq!(oncs & Announced::ONCS_TIMESTAMP != 0, cqe.status().is_success());
    let (cqe, _) = admin.command(get(fid::ARBITRATION, FeatureSelect::Default), None, 0);
    assert_eq!(oncs & Announced::ONCS_SAVE_AND_SELECT != 0, cqe.status().is_success());
    let mut fused = rw(NvmOpcode::COMPARE, 0, 1);
    fused.flags |= 1;
    let fused = io.submit(fused, None, BLOCK);
    // A first command waits for the next one.
    assert!(io.command(SubmissionQueueEntry::flush(Nsid(1)), None, 0).0.status().is_success());
    let is_fused = !io.wait(fused).0.status().is(Status::INVALID_FIELD);
    assert_eq!(controller.fuses.get() != 0, is_fused);
    assert_eq!(controller.oacs.get(), 0, "no optional admin command is supported");
    server.stop();
}

/// Goal: the log pages that list commands, features and log pages list exactly the supported ones.
#[test]
fn log_pages_list_what_there_is() {
    let server = TestServer::start();
    let (mut admin, mut io) = pair(&server, &HostIdentity::number(1));
    let page = log_page(&mut admin, lid::COMMAND_EFFECTS, 4096).unwrap();
    let effects = *CommandEffects::from_prefix(&page).unwrap();
    let page = log_page(&mut admin, lid::FEATURE_EFFECTS, 1024).unwrap();
    let features = *FeatureEffects::from_prefix(&page).unwrap();
    for opcode in 0..=u8::MAX {
        let is_listed = effects.iocs[usize::from(opcode)].get() & 1 != 0;
        let status = io.command(rw(NvmOpcode(opcode), 0, 1), None, 0).0.status();
        let is_known = !status.is(Status::INVALID_OPCODE);
        let is_fabrics = NvmOpcode(opcode) == NvmOpcode::FABRICS;
        assert!(is_listed == is_known || is_fabrics, "I/O opcode {opcode:#x}: {status}");
        let select = FeatureSelect::SupportedCapabilities;
        let sqe = Feature { fid: opcode, select, dword11: 0 }.encode(Nsid(0));
        let is_known = admin.command(sqe, None, 0).0.status().is_success();
        assert_eq!(features.fids[usize::from(opcode)].get() & 1 != 0, is_known, "{opcode:#x}");
        let sqe = SubmissionQueueEntry::admin(AdminOpcode(opcode), Nsid(0));
        let is_listed = effects.acs[usize::from(opcode)].get() & 1 != 0;
        if [AdminOpcode::ASYNC_EVENT_REQUEST, AdminOpcode::FABRICS].contains(&AdminOpcode(opcode)) {
            continue;
        }
        let status = admin.command(sqe, None, 0).0.status();
        let is_known = !status.is(Status::INVALID_OPCODE);
        assert_eq!(is_listed, is_known, "admin opcode {opcode:#x}: {status}");
    }
    let (mut discovery, _) =
        Client::admin(server.address, &HostIdentity::number(1), &Nqn::discovery());
    for client in [&mut admin, &mut discovery] {
        let page = log_page(client, lid::SUPPORTED_PAGES, 1024).unwrap();
        let pages = *SupportedPages::from_prefix(&page).unwrap();
        for lid in 0..=u8::MAX {
            let result = log_page(client, lid, 4);
            assert_eq!(pages.has(lid), result.is_ok(), "log page {lid:#x}: {result:?}");
        }
    }
    server.stop();
}

/// Goal: a host that requests many large log pages and receives nothing does not make the target
/// build all of them: it builds a page when the host has received most of those before it.
#[test]
fn log_pages_are_built_when_the_host_receives_them() {
    const BYTES: u32 = 1 << 20;
    let server = TestServer::start();
    let (mut discovery, _) =
        Client::admin(server.address, &HostIdentity::number(1), &Nqn::discovery());
    let get =
        GetLogPage { lid: lid::DISCOVERY, dwords: u64::from(BYTES / 4), ..GetLogPage::default() };
    let sqe = get.encode(Nsid::BROADCAST).unwrap();
    let sent: Vec<u16> = (0..24).map(|_| discovery.submit(sqe, None, BYTES)).collect();
    std::thread::sleep(Duration::from_millis(300));
    let name = Nqn::new("nqn.2026-01.io.tsumugi:late").unwrap();
    let late = Subsystem::new(name, "serial", "model", HostAccess::Any);
    server.target.add_subsystem(late).unwrap();
    // Each page begins with its generation.
    let mut generation = |cid| {
        let (cqe, page) = discovery.wait(cid);
        assert!(cqe.status().is_success() && page.len() == BYTES as usize);
        u64::from_le_bytes(page[..8].try_into().unwrap())
    };
    let generations: Vec<u64> = sent.into_iter().map(&mut generation).collect();
    assert!(generations.is_sorted(), "the commands are answered in order");
    let early = generations.iter().filter(|it| **it == generations[0]).count();
    // The sockets' buffers take up to 10 MiB.
    assert!((1..=13).contains(&early), "{early} pages were built before the host received any");
    server.stop();
}

/// Goal: in-capsule data may begin at an offset, as SGLS announces, and must lie in the capsule.
#[test]
fn in_capsule_data_may_begin_at_an_offset() {
    let server = TestServer::start();
    let (mut admin, mut io) = pair(&server, &HostIdentity::number(1));
    let data = identify(&mut admin, cns::CONTROLLER, Nsid(0)).unwrap();
    let sgls = IdentifyController::from_prefix(&data).unwrap().sgls.get();
    assert_ne!(sgls & IdentifyController::SGLS_OFFSET, 0);
    let data = pattern(9, 1);
    let mut capsule = vec![0xee; 512];
    capsule.extend_from_slice(&data);
    let write = |offset, bytes| {
        rw(NvmOpcode::WRITE, 3, 1).with_sgl(SglDescriptor::in_capsule(offset, bytes))
    };
    assert!(io.command_with_sgl(write(512, BLOCK), &capsule).status().is_success());
    let (_, back) = io.command(rw(NvmOpcode::READ, 3, 1), None, BLOCK);
    assert!(back == data);
    for offset in [513, 4608, 4609, u64::MAX] {
        let status = io.command_with_sgl(write(offset, BLOCK), &capsule).status();
        assert!(status.is(Status::SGL_OFFSET_INVALID), "{offset}: {status}");
    }
    let status = io.command_with_sgl(write(0, BLOCK), &capsule).status();
    assert!(status.is(Status::SGL_DATA_LENGTH_INVALID), "{status}");
    let status = io.command_with_sgl(write(0, BLOCK), &[]).status();
    assert!(status.is(Status::SGL_DATA_LENGTH_INVALID), "{status}");
    server.stop();
}

/// Goal: Identify distinguishes an invalid namespace identifier from an unused one.
#[test]
fn identify_distinguishes_invalid_from_inactive() {
    const NN: u32 = target::NAMESPACES_MAX;
    let server = TestServer::start();
    let (mut admin, _) = Client::admin(server.address, &HostIdentity::number(1), &nqn());
    let zeros = vec![0; 4096];
    for cns in [cns::NAMESPACE, cns::NAMESPACE_BY_COMMAND_SET, cns::NAMESPACE_INDEPENDENT] {
        for nsid in [0, NN + 1, u32::MAX - 2, u32::MAX - 1, u32::MAX] {
            let status = identify(&mut admin, cns, Nsid(nsid)).unwrap_err();
            assert!(status.is(Status::INVALID_NAMESPACE), "CNS {cns:#x} of {nsid:#x}: {status}");
        }
        for nsid in [2, NN] {
            assert!(identify(&mut admin, cns, Nsid(nsid)).unwrap() == zeros, "{cns:#x} of {nsid}");
        }
        assert!(identify(&mut admin, cns, Nsid(1)).is_ok());
    }
    for nsid in [0, 2, NN, NN + 1, u32::MAX] {
        let status = identify(&mut admin, cns::NAMESPACE_DESCRIPTORS, Nsid(nsid)).unwrap_err();
        assert!(status.is(Status::INVALID_NAMESPACE), "{nsid:#x}: {status}");
    }
    for cns in [cns::ACTIVE_NAMESPACES, cns::ACTIVE_NAMESPACES_BY_COMMAND_SET] {
        for nsid in [1, NN, NN + 1, u32::MAX - 2] {
            assert!(
                identify(&mut admin, cns, Nsid(nsid)).unwrap() == zeros,
                "none after {nsid:#x}"
            );
        }
        for nsid in [u32::MAX - 1, u32::MAX] {
            let status = identify(&mut admin, cns, Nsid(nsid)).unwrap_err();
            assert!(status.is(Status::INVALID_NAMESPACE), "{nsid:#x}: {status}");
        }
    }
    for cns in [cns::ALLOCATED_NAMESPACES, cns::ALLOCATED_NAMESPACE] {
        let status = identify(&mut admin, cns, Nsid(1)).unwrap_err();
        assert!(status.is(Status::INVALID_FIELD), "namespace management is not announced");
    }
    server.stop();
}

/// Goal: a command reaches the namespace that it names, while others are added and removed.
#[test]
fn commands_reach_their_namespace() {
    let server = TestServer::start();
    let (_admin, mut io) = pair(&server, &HostIdentity::number(1));
    let add = |subsystem: &Subsystem, nsid: u32| {
        let memory = Arc::new(MemoryBacking::new(1 << 20, BLOCK).unwrap());
        subsystem.add_namespace(Namespace::new(Nsid(nsid), [1; 16], memory, false)).unwrap();
    };
    let on = |opcode, nsid: u32| {
        let mut sqe = rw(opcode, 0, 1);
        sqe.nsid.set(nsid);
        sqe
    };
    let ids: Vec<u32> = (2..40).chain([511, 512, 1000, 1024]).collect();
    for &nsid in &ids {
        add(&server.subsystem, nsid);
    }
    let transfer = crate::client::Transfer::InCapsule;
    for &nsid in &ids {
        let data = pattern(nsid as u8, 1);
        let (cqe, _) = io.command(on(NvmOpcode::WRITE, nsid), Some((transfer, &data)), 0);
        assert!(cqe.status().is_success(), "{nsid}: {}", cqe.status());
    }
    for &nsid in ids.iter().step_by(2) {
        server.subsystem.remove_namespace(Nsid(nsid)).unwrap();
    }
    for (index, &nsid) in ids.iter().enumerate() {
        let (cqe, back) = io.command(on(NvmOpcode::READ, nsid), None, BLOCK);
        if index % 2 == 0 {
            assert!(cqe.status().is(Status::INVALID_NAMESPACE), "{nsid}");
        } else {
            assert!(back == pattern(nsid as u8, 1), "{nsid}");
        }
    }
    add(&server.subsystem, 2);
    let (_, back) = io.command(on(NvmOpcode::READ, 2), None, BLOCK);
    assert!(back.iter().all(|&byte| byte == 0), "a new namespace, not the one that was removed");
    for nsid in [0, 1025, u32::MAX] {
        let (cqe, _) = io.command(on(NvmOpcode::READ, nsid), None, BLOCK);
        assert!(cqe.status().is(Status::INVALID_NAMESPACE), "{nsid}");
    }
    let counts = server.subsystem.namespace(Nsid(3)).unwrap().counts();
    assert_eq!((counts.commands, counts.read_remote_bytes), (2, u64::from(BLOCK)));
    server.stop();
}
