//! Goal: commands, names, identify structures, log pages and features decode to the encoded values,
//! and meaningless values are refused.

// Helpers of tests are tests too.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use nvme::async_event::AsyncEvent;
use nvme::command::{
    Abort, Copy, CopyRange, DatasetManagement, DsmRange, Feature, FeatureSelect, Fuse, GetLogPage,
    Identify, ReadWrite, SetFeatures,
};
use nvme::fabrics::{
    Connect, ConnectData, ConnectInvalid, ConnectResult, PropertyGet, PropertySet,
};
use nvme::feature::QueueCounts;
use nvme::identify::{
    ControllerList, IdentifyController, IdentifyNamespace, LbaFormat, NamespaceDescriptor,
    NamespaceDescriptorWriter, NamespaceDescriptors, NamespaceList,
};
use nvme::log_page::{AnaState, DiscoveryEntry, SmartHealth, SupportedPages, subsystem_type};
use nvme::opcode::{AdminOpcode, DataDirection, FabricsType, NvmOpcode};
use nvme::property::{Capabilities, Configuration, ControllerStatus, ShutdownStatus, Version};
use nvme::sgl::Sgl;
use nvme::status::StatusCodeType;
use nvme::{
    CommandId, CompletionQueueEntry, ControllerId, Error, HostId, Nqn, Nsid, QueueId,
    SglDescriptor, Status, SubmissionQueueEntry, U16, U32, U64,
};
use proptest::prelude::*;

proptest! {
    #[test]
    fn io_commands(
        start_lba in any::<u64>(), blocks in 1u32..=65_536, flags in any::<(bool, bool, bool)>(),
        prinfo in 0u8..16, ranges in 1u16..=256, nsid in any::<u32>(),
    ) {
        // Goal: Read, Write, Compare, Write Zeroes, Dataset Management and Copy are read back, and the
        // place in a fused operation changes nothing else.
        let (is_fua, is_limited_retry, is_deallocate) = flags;
        let io = ReadWrite { start_lba, blocks, is_fua, is_limited_retry, is_deallocate, prinfo };
        let sqe = io.encode(NvmOpcode::WRITE, Nsid(nsid)).unwrap();
        prop_assert_eq!(ReadWrite::decode(&sqe), io);
        prop_assert_eq!((sqe.nvm_opcode(), sqe.namespace_id()), (NvmOpcode::WRITE, Nsid(nsid)));
        prop_assert!(sqe.has_sgl() && sqe.sgl1.decode() == Ok(Sgl::None));
        let dsm = DatasetManagement {
            ranges, is_integral_read: is_fua, is_integral_write: is_limited_retry, is_deallocate,
        };
        prop_assert_eq!(DatasetManagement::decode(&dsm.encode(Nsid(nsid)).unwrap()), dsm);
        prop_assert_eq!(dsm.data_bytes(), usize::from(ranges) * 16);
        let copy = Copy {
            destination_lba: start_lba, ranges, format: prinfo, is_fua, is_limited_retry,
        };
        let sqe = copy.encode(Nsid(nsid)).unwrap();
        prop_assert_eq!(Copy::decode(&sqe), copy);
        prop_assert_eq!(sqe.data_direction(), DataDirection::HostToController);
        prop_assert_eq!(copy.data_bytes(), usize::from(ranges) * 32);
        let range = CopyRange::new(start_lba, blocks).unwrap();
        prop_assert_eq!((range.slba.get(), range.blocks()), (start_lba, blocks));
        for fuse in [Fuse::First, Fuse::Second, Fuse::Reserved, Fuse::None] {
            let fused = sqe.with_fuse(fuse);
            prop_assert!(fused.fuse() == fuse && fused.has_sgl());
            prop_assert_eq!(fused.with_fuse(Fuse::None), sqe);
        }
        let is_within = u128::from(start_lba) + u128::from(blocks) <= 1 << 40;
        prop_assert_eq!(io.is_within(1 << 40), is_within);
    }

    #[test]
    fn admin_commands(
        a in any::<(u8, u16, u16, u8, u32)>(), low in 0u8..128, is_set in any::<(bool, bool)>(),
        dwords in 1u64..=1 << 32, offset in any::<u64>(),
    ) {
        // Goal: Identify, Get Log Page, Get and Set Features and Abort are read back.
        let identify = Identify {
            cns: a.0, cntid: ControllerId(a.1), cnssid: a.2, csi: a.3, uuid_index: low,
        };
        prop_assert_eq!(Identify::decode(&identify.encode(Nsid(a.4))), identify);
        let log = GetLogPage {
            lid: a.0, lsp: low, is_event_retained: is_set.0, dwords, lsi: a.2, offset,
            is_offset_index: is_set.1, csi: a.3, uuid_index: low,
        };
        prop_assert_eq!(GetLogPage::decode(&log.encode(Nsid(a.4)).unwrap()), log);
        for select in [FeatureSelect::Current, FeatureSelect::Default, FeatureSelect::Saved,
            FeatureSelect::SupportedCapabilities]
        {
            let get = Feature { fid: a.0, select, dword11: a.4 };
            prop_assert_eq!(Feature::decode(&get.encode(Nsid(1))), Ok(get));
        }
        let set = SetFeatures {
            fid: a.0, is_saved: is_set.0, dword11: a.4, dword12: !a.4, dword13: a.4 / 3,
        };
        prop_assert_eq!(SetFeatures::decode(&set.encode(Nsid(1))), set);
        let abort = Abort { sqid: QueueId(a.1), cid: CommandId(a.2) };
        prop_assert_eq!(Abort::decode(&abort.encode()), abort);
    }

    #[test]
    fn fabrics_commands(
        qid in any::<u16>(), sq_entries in 2u32..=65_536, cattr in any::<u8>(),
        keep_alive_ms in any::<u32>(), offset in any::<u32>(), value in any::<u64>(),
        is_8_bytes in any::<bool>(), cntlid in any::<u16>(), required in any::<(bool, bool)>(),
    ) {
        // Goal: Connect, its results, Property Get and Property Set are read back.
        let connect = Connect { qid: QueueId(qid), sq_entries, cattr, keep_alive_ms };
        let sqe = connect.encode().unwrap();
        prop_assert_eq!(Connect::decode(&sqe), Ok(connect));
        prop_assert!(sqe.is_fabrics() && sqe.fabrics_type() == FabricsType::CONNECT);
        prop_assert_eq!(sqe.data_direction(), DataDirection::HostToController);
        let get = PropertyGet { offset, is_8_bytes };
        prop_assert_eq!(PropertyGet::decode(&get.encode()), Ok(get));
        let set = PropertySet { offset, is_8_bytes, value };
        prop_assert_eq!(PropertySet::decode(&set.encode()), Ok(set));
        let result = ConnectResult {
            cntlid: ControllerId(cntlid),
            is_authentication_required: required.0,
            is_secure_channel_required: required.1,
        };
        prop_assert_eq!(ConnectResult::from_dword(result.to_dword()), result);
        for invalid in [ConnectInvalid::Command(cntlid), ConnectInvalid::Data(cntlid)] {
            prop_assert_eq!(ConnectInvalid::from_dword(invalid.to_dword()), invalid);
        }
    }

    #[test]
    fn completions(cid in any::<u16>(), sqhd in any::<u16>(), raw in 0u16..0x8000, result in any::<u64>()) {
        // Goal: identifier, status and result of a completion are read back.
        let status = Status::from_raw(raw);
        let cqe = CompletionQueueEntry::new(CommandId(cid), sqhd, status).with_result(result);
        prop_assert_eq!((cqe.command_id(), cqe.status()), (CommandId(cid), status));
        let both = u64::from(cqe.dword0()) | (u64::from(cqe.dword1()) << 32);
        prop_assert_eq!(both, result);
        prop_assert!(status.do_not_retry().is_do_not_retry() && status.do_not_retry().is(status));
        prop_assert!(status.with_more().has_more() && !status.to_string().is_empty());
    }

    #[test]
    fn sgl_descriptors(offset_bytes in any::<u64>(), length_bytes in 1u32.., id in any::<u8>()) {
        // Goal: the two kinds decode to the encoded values, no data stays no data, all other kinds
        // are refused.
        for sgl in [Sgl::None, Sgl::InCapsule { offset_bytes, length_bytes },
            Sgl::Transport { length_bytes }]
        {
            prop_assert_eq!(SglDescriptor::from(sgl).decode(), Ok(sgl));
        }
        let descriptor = SglDescriptor { id, ..SglDescriptor::transport(length_bytes) };
        let is_known = id == 0x01 || id == 0x5a;
        prop_assert_eq!(descriptor.decode().is_ok(), is_known);
    }

    #[test]
    fn names(tail in "[a-z.:\u{e9}-]{0,230}") {
        // Goal: a name is accepted if and only if it fits, and fields return it.
        let name = format!("nqn.2026-01.x{tail}");
        match Nqn::new(&name) {
            Ok(nqn) => {
                prop_assert!(name.len() <= 223);
                prop_assert_eq!(Nqn::from_field(&nqn.to_field()), Ok(nqn.clone()));
                prop_assert_eq!(nqn.as_str().parse::<Nqn>(), Ok(nqn));
            }
            Err(_) => prop_assert!(name.len() > 223),
        }
    }

    #[test]
    fn lists(mut ids in proptest::collection::btree_set(1u16.., 0..3000), after in any::<u32>()) {
        // Goal: controller and namespace lists return their first entries, in order.
        let controllers = ControllerList::new(ids.iter().map(|&id| ControllerId(id)));
        let expected: Vec<_> = ids.iter().take(2047).map(|&id| ControllerId(id)).collect();
        prop_assert_eq!(controllers.iter().collect::<Vec<_>>(), expected);
        let after = Nsid(after % 70_000);
        let list = NamespaceList::new(after, ids.iter().map(|&id| Nsid(u32::from(id))));
        ids.retain(|&id| u32::from(id) > after.get());
        let expected: Vec<_> = ids.iter().take(1024).map(|&id| Nsid(u32::from(id))).collect();
        prop_assert_eq!(list.iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn namespace_descriptors(eui in any::<[u8; 8]>(), id in any::<[u8; 16]>(), csi in any::<u8>()) {
        // Goal: descriptors decode to the encoded values; an unknown one in between is skipped.
        let list = [NamespaceDescriptor::Uuid(id), NamespaceDescriptor::Csi(csi),
            NamespaceDescriptor::Nguid(id), NamespaceDescriptor::Eui64(eui)];
        let mut data = Box::new([0xff; 4096]);
        let mut writer = NamespaceDescriptorWriter::new(&mut data);
        for descriptor in &list {
            writer.push(descriptor).unwrap();
        }
        let mut with_unknown = vec![9, 3, 0, 0, 1, 2, 3];
        with_unknown.extend_from_slice(&data[..]);
        for bytes in [&data[..], &with_unknown] {
            let read: Result<Vec<_>, _> = NamespaceDescriptors::new(bytes).collect();
            prop_assert_eq!(read.as_deref(), Ok(&list[..]));
        }
    }

    #[test]
    fn property_fields(raw in any::<u64>(), value in 0u64..16) {
        // Goal: setting a bit field changes that field and no other bit.
        let cap = Capabilities(raw).with_mpsmax(value);
        prop_assert_eq!((cap.mpsmax(), cap.0 & !(15 << 52)), (value, raw & !(15 << 52)));
        let cc = Configuration(raw as u32).with_iocqes(value as u32);
        let mask = !(15u32 << 20);
        prop_assert_eq!((cc.iocqes(), cc.0 & mask), (value as u32, raw as u32 & mask));
    }

    #[test]
    fn dwords(submission in 1u32..=65_536, completion in 1u32..=65_536, event in any::<(u8, u8, u8)>()) {
        // Goal: queue counts and asynchronous events are read back from their dwords.
        let counts = QueueCounts { submission, completion };
        prop_assert_eq!(QueueCounts::from_dword(counts.to_dword()), counts);
        let event = AsyncEvent { event_type: event.0 & 7, info: event.1, log_page: event.2 };
        prop_assert_eq!(AsyncEvent::from_dword(event.to_dword()), event);
    }

    #[test]
    fn identify_texts(text in "\\PC{0,60}") {
        // Goal: texts are ASCII, padded with spaces, and come back trimmed.
        let mut controller = Box::new(IdentifyController::default());
        controller.set_serial(&text);
        controller.set_model(&text);
        controller.set_firmware(&text);
        prop_assert!(controller.sn.iter().all(|byte| (b' '..=b'~').contains(byte)));
        if text.is_ascii() && text.len() <= 8 {
            prop_assert_eq!(controller.serial(), text.trim_matches(' '));
            prop_assert_eq!(controller.firmware(), text.trim_matches(' '));
        }
    }
}

#[test]
fn impossible_commands_are_refused() {
    // Goal: values without an encoding, and encodings without a meaning, name their field.
    let field = |error| match error {
        Err(Error::InvalidField { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    let io = |blocks| ReadWrite { blocks, ..ReadWrite::default() };
    assert_eq!(field(io(0).encode(NvmOpcode::READ, Nsid(1))), "nlb");
    assert_eq!(field(io(65_537).encode(NvmOpcode::READ, Nsid(1))), "nlb");
    assert_eq!(field(DatasetManagement::default().encode(Nsid(1))), "nr");
    assert_eq!(field(Copy::default().encode(Nsid(1))), "nr");
    assert_eq!(field(Copy { ranges: 1, format: 16, ..Copy::default() }.encode(Nsid(1))), "desfmt");
    let sqe = SubmissionQueueEntry::flush(Nsid(1));
    assert_eq!(field(CopyRange::new(0, 0).map(|_| sqe)), "nlb");
    assert_eq!(field(CopyRange::new(0, 65_537).map(|_| sqe)), "nlb");
    assert_eq!(field(GetLogPage::default().encode(Nsid(1))), "numd");
    assert_eq!(field(Connect::default().encode()), "sqsize");
    let mut sqe = SubmissionQueueEntry::fabrics(FabricsType::CONNECT);
    assert_eq!(field(Connect::decode(&sqe).map(|_| sqe)), "sqsize");
    sqe.cdw10 = U32::new(2);
    assert_eq!(field(Connect::decode(&sqe).map(|_| sqe)), "recfmt");
    assert_eq!(field(PropertyGet::decode(&sqe).map(|_| sqe)), "attrib");
    sqe.cdw10 = U32::new(0x700);
    assert_eq!(field(Feature::decode(&sqe).map(|_| sqe)), "sel");
    let short = SubmissionQueueEntry::from_prefix(&[0; 63]);
    assert!(matches!(short, Err(Error::Truncated { need_bytes: 64, have_bytes: 63, .. })));
}

#[test]
fn bad_names_are_refused() {
    // Goal: each rule of a name, with its reason.
    for (name, reason) in [
        ("", "nqn."),
        ("iqn.2026-01.org.x", "nqn."),
        ("nqn.2026-1.org.x", "date"),
        ("nqn.2026-01.", "domain"),
        ("nqn.2026-01.:x", "domain"),
        ("nqn.2026-01.org.x\n", "control"),
    ] {
        match Nqn::new(name) {
            Err(Error::InvalidNqn { reason: found, .. }) => {
                assert!(found.contains(reason), "{name}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    let longest = format!("nqn.2026-01.{}", "x".repeat(211));
    assert!(Nqn::new(&longest).is_ok() && Nqn::new(&(longest + "x")).is_err());
    assert!(Nqn::from_field(&[b'n'; 256]).is_err(), "without a NUL");
    let mut field = Nqn::discovery().to_field();
    field[4] = 0xff;
    assert!(Nqn::from_field(&field).is_err(), "not UTF-8");
    assert!(Nqn::discovery().is_discovery());
    assert_eq!(
        Nqn::from_uuid([0x11; 16]).as_str(),
        "nqn.2014-08.org.nvmexpress:uuid:11111111-1111-1111-1111-111111111111"
    );
}

#[test]
fn connect_data_is_read_back() {
    // Goal: host, controller and names of a Connect.
    let (subsystem, host) = (Nqn::new("nqn.2026-01.org.a:b").unwrap(), Nqn::from_uuid([1; 16]));
    let data = ConnectData::new(HostId([9; 16]), ControllerId::DYNAMIC, &subsystem, &host);
    assert_eq!((data.host_id(), data.controller_id()), (HostId([9; 16]), ControllerId::DYNAMIC));
    assert_eq!((data.subsystem_nqn(), data.host_nqn()), (Ok(subsystem), Ok(Some(host))));
    assert_eq!(ConnectInvalid::SUBNQN.to_dword(), 0x0001_0100);
}

#[test]
fn namespaces_tell_their_format() {
    // Goal: the LBA format index is combined from both parts of FLBAS, and checked.
    let mut namespace = IdentifyNamespace::new(1000, 12).unwrap();
    assert_eq!((namespace.block_shift(), namespace.nsze.get()), (Ok(12), 1000));
    namespace.lbaf[0x12] = LbaFormat { ms: U16::new(0), lbads: 9, rp: 0 };
    namespace.flbas = 0x22;
    assert!(namespace.block_shift().is_err(), "with 1 format the upper bits do not count");
    namespace.nlbaf = 18;
    assert_eq!(namespace.block_shift(), Ok(9));
    assert_eq!(namespace.incarnation(), None, "as other targets have it");
    namespace.set_incarnation(u128::MAX - 1);
    assert_eq!(namespace.incarnation(), Some(u128::MAX - 1));
    assert!(IdentifyNamespace::new(1, 8).is_err() && IdentifyNamespace::new(1, 64).is_err());
}

#[test]
fn controllers_tell_their_limits() {
    // Goal: MDTS and the capsule size are converted to bytes without overflow.
    let mut controller = Box::new(IdentifyController::default());
    assert_eq!(controller.transfer_bytes_max(0), None);
    assert_eq!(controller.in_capsule_data_bytes(), 0);
    controller.mdts = 5;
    controller.ioccsz = U32::new((64 + 8192) / 16);
    assert_eq!(controller.transfer_bytes_max(0), Some(131_072));
    assert_eq!(controller.in_capsule_data_bytes(), 8192);
    controller.mdts = 255;
    assert_eq!(controller.transfer_bytes_max(15), None);
}

#[test]
fn a_broken_descriptor_ends_the_list() {
    // Goal: a length that is wrong for its type, or beyond the data, is an error and not a panic.
    for bytes in [&[1, 7, 0, 0, 1, 2, 3, 4, 5, 6, 7][..], &[3, 16, 0, 0, 1], &[9, 200, 0, 0]] {
        let read: Vec<_> = NamespaceDescriptors::new(bytes).collect();
        let is_wrong = |error: &Error| matches!(error, Error::InvalidField { field: "nidl", .. });
        assert!(matches!(&read[..], [Err(error)] if is_wrong(error)), "{read:?}");
    }
    let mut data = Box::new([0; 4096]);
    let mut writer = NamespaceDescriptorWriter::new(&mut data);
    let full = (0..300).find_map(|_| writer.push(&NamespaceDescriptor::Uuid([1; 16])).err());
    assert!(matches!(full, Some(Error::BufferTooSmall { .. })));
}

#[test]
fn discovery_entries_are_read_back() {
    // Goal: addresses of both families, padded with spaces, also when a peer pads with NULs.
    let nqn = Nqn::new("nqn.2026-01.org.a:b").unwrap();
    for (address, adrfam) in [("127.0.0.1:4420", 1), ("[fe80::1]:8009", 2)] {
        let socket: std::net::SocketAddr = address.parse().unwrap();
        let mut entry = DiscoveryEntry::tcp(&nqn, subsystem_type::NVM, socket, 7);
        assert_eq!((entry.trtype, entry.adrfam, entry.portid.get()), (3, adrfam, 7));
        assert_eq!(entry.controller_id(), ControllerId::DYNAMIC);
        assert_eq!(entry.subsystem_nqn(), Ok(nqn.clone()));
        for _ in 0..2 {
            assert_eq!(entry.address(), socket.ip().to_string());
            assert_eq!(entry.service(), socket.port().to_string());
            let nul = |byte: &mut u8| *byte = if *byte == b' ' { 0 } else { *byte };
            entry.traddr.iter_mut().for_each(nul);
            entry.trsvcid.iter_mut().for_each(nul);
        }
    }
}

#[test]
fn ranges_are_read_in_place() {
    // Goal: lists of DSM ranges and of Copy's sources, with bytes of a cut-off range at the end.
    let ranges = [DsmRange::new(5, 6), DsmRange::new(1 << 40, 7)];
    let mut bytes: Vec<u8> = ranges.iter().flat_map(|range| range.bytes().to_vec()).collect();
    bytes.extend_from_slice(&[1; 15]);
    assert_eq!(DsmRange::list(&bytes), &ranges);
    assert_eq!((ranges[1].slba, ranges[1].nlb), (U64::new(1 << 40), U32::new(7)));
    let sources = [5, 65_536].map(|blocks| CopyRange::new(1 << 40, blocks).unwrap());
    let mut bytes: Vec<u8> = sources.iter().flat_map(|range| range.bytes().to_vec()).collect();
    bytes.extend_from_slice(&[1; 31]);
    assert_eq!(CopyRange::list(&bytes), &sources);
}

#[test]
fn properties_have_the_specified_bits() {
    // Goal: the values that Linux writes and expects.
    assert_eq!(Configuration::ENABLE.0, 0x0046_0001);
    let cc = Configuration::ENABLE.with_shn(1);
    assert!(cc.is_enabled() && cc.is_shutdown() && !Configuration::ENABLE.is_shutdown());
    let cap = Capabilities(0).with_mqes(127).with_cqr(1).with_to(15).with_css(1);
    assert_eq!(cap.0, 0x0000_0020_0f01_007f);
    assert_eq!((cap.queue_entries_max(), cap.ready_timeout_ms()), (128, 7500));
    let csts = ControllerStatus(0).with_rdy(1).with_shst(2);
    assert_eq!((csts.0, csts.shutdown()), (9, ShutdownStatus::Complete));
    assert!(csts.is_ready() && !csts.is_fatal());
    assert_eq!((Version::V1_4.0, Version::V2_1.to_string()), (0x0001_0400, "2.1.0".into()));
}

#[test]
fn numbers_have_names() {
    // Goal: messages use the specification's words.
    assert_eq!(Status::LBA_OUT_OF_RANGE.to_string(), "LBA Out of Range");
    assert_eq!(
        Status::INVALID_FIELD.do_not_retry().to_string(),
        "Invalid Field in Command (do not retry)"
    );
    assert_eq!(Status::from_raw(0x4ff).to_string(), "status type 4 code 0xff");
    assert_eq!(Status::CONNECT_INVALID_HOST.connect_name(), Some("Connect Invalid Host"));
    assert_eq!(Status::COMPARE_FAILURE.code_type(), StatusCodeType::MediaAndDataIntegrity);
    assert!(Status::ANA_INACCESSIBLE.is_path_error() && Status::SUCCESS.is_success());
    assert_eq!(AdminOpcode::IDENTIFY.to_string(), "Identify");
    assert_eq!(NvmOpcode(0xc1).to_string(), "opcode 0xc1");
    assert_eq!(SubmissionQueueEntry::flush(Nsid(1)).data_direction(), DataDirection::None);
    assert_eq!(
        (Nsid(3).to_string(), QueueId(0).to_string()),
        ("namespace 3".into(), "queue 0".into())
    );
    assert_eq!(SmartHealth::data_units(512_001), 2);
    assert!(SupportedPages::new(&[0, 2]).has(2) && !SupportedPages::new(&[0, 2]).has(1));
    for state in [AnaState::Optimized, AnaState::Inaccessible, AnaState::Change] {
        assert_eq!(AnaState::from_u8(state.to_u8()), Some(state));
    }
    assert_eq!(AsyncEvent::DISCOVERY_CHANGED.to_dword(), 0x0070_f002);
    assert_eq!(AsyncEvent::NAMESPACE_ATTRIBUTES_CHANGED.to_dword(), 0x0004_0002);
}
