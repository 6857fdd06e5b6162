//! Features: their values, and which of them hosts may change.

use crate::client::{Client, HostIdentity, Transfer};
use crate::server::{TestServer, nqn};
use nvme::async_event::AsyncEvent;
use nvme::command::{Feature, FeatureSelect, GetLogPage, SetFeatures};
use nvme::feature::{AsyncEventConfig, fid};
use nvme::log_page::{SmartHealth, lid};
use nvme::{Nsid, Status, SubmissionQueueEntry};

fn set(admin: &mut Client, fid: u8, dword11: u32, nsid: Nsid) -> Status {
    let sqe = SetFeatures { fid, dword11, ..SetFeatures::default() }.encode(nsid);
    admin.command(sqe, None, 0).0.status()
}

fn get(admin: &mut Client, fid: u8, dword11: u32, select: FeatureSelect) -> Result<u32, Status> {
    let sqe = Feature { fid, select, dword11 }.encode(Nsid(0));
    let (cqe, _) = admin.command(sqe, None, 0);
    if cqe.status().is_success() { Ok(cqe.dword0()) } else { Err(cqe.status()) }
}

fn health(admin: &mut Client) -> SmartHealth {
    let get = GetLogPage { lid: lid::SMART_HEALTH, dwords: 128, ..GetLogPage::default() };
    let (_, page) = admin.command(get.encode(Nsid::BROADCAST).unwrap(), None, 512);
    *SmartHealth::from_prefix(&page).unwrap()
}

/// Goal: Temperature Threshold has the two thresholds of the composite temperature, and crossing
/// one causes a warning in the health log page and an event.
#[test]
fn temperature_thresholds_warn() {
    const UNDER: u32 = 1 << 20;
    const ALL: u32 = 0xf << 16;
    let fid = fid::TEMPERATURE_THRESHOLD;
    let server = TestServer::start();
    let (mut admin, _) = Client::admin(server.address, &HostIdentity::number(1), &nqn());
    let current = FeatureSelect::Current;
    assert_eq!(get(&mut admin, fid, 0, current), Ok(0xffff), "no threshold at first");
    assert_eq!(get(&mut admin, fid, UNDER, current), Ok(0));
    assert_eq!(get(&mut admin, fid, 0, FeatureSelect::SupportedCapabilities), Ok(1 << 2));
    let warned = AsyncEventConfig::TEMPERATURE_WARNING;
    assert!(set(&mut admin, fid::ASYNC_EVENT_CONFIG, warned, Nsid(0)).is_success());
    let event = admin.submit(SubmissionQueueEntry::async_event_request(), None, 0);
    assert!(set(&mut admin, fid, 343, Nsid(0)).is_success());
    assert!(set(&mut admin, fid, UNDER + 273, Nsid(0)).is_success());
    assert_eq!(get(&mut admin, fid, 0, current), Ok(343));
    assert_eq!(get(&mut admin, fid, UNDER, current), Ok(273));
    assert_eq!(get(&mut admin, fid, 0, FeatureSelect::Default), Ok(0xffff));
    assert_eq!(get(&mut admin, fid, 0, FeatureSelect::Saved), Ok(0xffff));
    let page = health(&mut admin);
    assert_eq!(page.cw, 0);
    let now = u32::from(page.ctemp.get());
    assert!(!admin.has_ended(event));
    assert!(set(&mut admin, fid, ALL | now, Nsid(0)).is_success());
    let reported = AsyncEvent::from_dword(admin.wait(event).0.dword0());
    assert_eq!(reported, AsyncEvent::TEMPERATURE_THRESHOLD);
    assert_eq!(health(&mut admin).cw, SmartHealth::WARNING_TEMPERATURE);
    assert!(set(&mut admin, fid, now + 1, Nsid(0)).is_success());
    assert_eq!(health(&mut admin).cw, 0);
    for wrong in [1 << 16, 9 << 16, 2 << 20, 3 << 20] {
        assert!(set(&mut admin, fid, wrong + 300, Nsid(0)).is(Status::INVALID_FIELD), "{wrong:#x}");
        assert!(get(&mut admin, fid, wrong, current).unwrap_err().is(Status::INVALID_FIELD));
    }
    assert!(get(&mut admin, fid, ALL, current).unwrap_err().is(Status::INVALID_FIELD));
    server.stop();
}

/// Goal: each feature reports its capabilities and behaves as they say: a changeable one keeps the
/// set value, a fixed one accepts only its own value, none is saved, and only a feature of
/// namespaces accepts a namespace identifier.
#[test]
fn features_do_what_their_capabilities_say() {
    const CHANGEABLE: u32 = 1 << 2;
    const PER_NAMESPACE: u32 = 1 << 1;
    let server = TestServer::start();
    let (mut admin, _) = Client::admin(server.address, &HostIdentity::number(1), &nqn());
    let select = FeatureSelect::SupportedCapabilities;
    let mut known = Vec::new();
    for fid in 0..=u8::MAX {
        let Ok(capabilities) = get(&mut admin, fid, 0, select) else {
            let status = get(&mut admin, fid, 0, FeatureSelect::Current).unwrap_err();
            assert!(status.is(Status::INVALID_FIELD), "{fid:#x}");
            assert!(set(&mut admin, fid, 0, Nsid(0)).is(Status::INVALID_FIELD), "{fid:#x}");
            continue;
        };
        known.push(fid);
        let sqe = SetFeatures { fid, is_saved: true, ..SetFeatures::default() }.encode(Nsid(0));
        assert!(
            admin.command(sqe, None, 0).0.status().is(Status::FEATURE_NOT_SAVEABLE),
            "{fid:#x}"
        );
        let is_per_namespace = capabilities & PER_NAMESPACE != 0;
        if !is_per_namespace {
            let status = set(&mut admin, fid, 0, Nsid(1));
            assert!(status.is(Status::FEATURE_NOT_PER_NAMESPACE), "{fid:#x}: {status}");
        }
        let has_data = fid == fid::TIMESTAMP || fid == fid::HOST_ID;
        if has_data || fid == fid::NUMBER_OF_QUEUES || fid == fid::POWER_MANAGEMENT {
            continue;
        }
        let nsid = if is_per_namespace { Nsid(1) } else { Nsid(0) };
        let read = |admin: &mut Client, select| {
            let sqe = Feature { fid, select, dword11: 0 }.encode(nsid);
            let (cqe, _) = admin.command(sqe, None, 0);
            assert!(cqe.status().is_success(), "{fid:#x}: {}", cqe.status());
            cqe.dword0()
        };
        let value = if fid == fid::KEEP_ALIVE_TIMER { 60_000 } else { 1 };
        let (before, default) =
            (read(&mut admin, FeatureSelect::Current), read(&mut admin, FeatureSelect::Default));
        assert_eq!(read(&mut admin, FeatureSelect::Saved), default, "{fid:#x}");
        let status = set(&mut admin, fid, value, nsid);
        if capabilities & CHANGEABLE != 0 {
            assert!(status.is_success(), "{fid:#x}: {status}");
            assert_eq!(read(&mut admin, FeatureSelect::Current), value, "{fid:#x}");
            assert_eq!(read(&mut admin, FeatureSelect::Default), default, "{fid:#x}");
        } else {
            assert_eq!(status.is_success(), before == value, "{fid:#x}: {status}");
            assert_eq!(read(&mut admin, FeatureSelect::Current), before, "{fid:#x}");
            assert!(set(&mut admin, fid, before, nsid).is_success(), "{fid:#x}: the same again");
        }
    }
    for mandatory in [
        fid::ARBITRATION,
        fid::POWER_MANAGEMENT,
        fid::TEMPERATURE_THRESHOLD,
        fid::ERROR_RECOVERY,
        fid::NUMBER_OF_QUEUES,
        fid::WRITE_ATOMICITY,
        fid::ASYNC_EVENT_CONFIG,
        fid::KEEP_ALIVE_TIMER,
    ] {
        assert!(known.contains(&mandatory), "{mandatory:#x}");
    }
    let stamp = [1, 2, 3, 4, 5, 0, 0, 0];
    let sqe = SetFeatures { fid: fid::TIMESTAMP, ..SetFeatures::default() }.encode(Nsid(0));
    assert!(admin.command(sqe, Some((Transfer::InCapsule, &stamp)), 0).0.status().is_success());
    let sqe = Feature { fid: fid::TIMESTAMP, ..Feature::default() }.encode(Nsid(0));
    assert_eq!(admin.command(sqe, None, 8).1[2..6], stamp[2..6]);
    assert!(set(&mut admin, fid::POWER_MANAGEMENT, 0, Nsid(0)).is_success());
    assert!(set(&mut admin, fid::POWER_MANAGEMENT, 1, Nsid(0)).is(Status::INVALID_FIELD));
    server.stop();
}
