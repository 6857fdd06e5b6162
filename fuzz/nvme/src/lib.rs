//! What is fuzzed: the functions take any bytes and panic if a promise of the crate is broken.
//!
//! They are apart from the fuzz targets so that a plain test can run them too.

use nvme::auth::{Authentication, MESSAGE_BYTES_MAX, Message, is_authentication};
use nvme::command::{
    Abort, Copy, CopyRange, DatasetManagement, DsmRange, Feature, Fuse, GetLogPage, Identify,
    ReadWrite, SetFeatures,
};
use nvme::fabrics::{Connect, ConnectData, PropertyGet, PropertySet};
use nvme::identify::{
    ControllerList, IdentifyController, IdentifyNamespace, NamespaceDescriptors, NamespaceList,
};
use nvme::log_page::{AnaGroup, DiscoveryEntry, SupportedPages};
use nvme::rdma::{ConnectAccept, ConnectReject, ConnectRequest, RejectStatus};
use nvme::tcp::{
    Accumulator, Encoder, HEADER_BYTES_MAX, Parsed, Parser, ParserConfig, Pdu, Receiver, crc32c,
};
use nvme::{CompletionQueueEntry, QueueId, SubmissionQueueEntry};

/// Parses a stream of PDUs. The first two bytes choose what is negotiated, how the stream is cut
/// into pieces, and whether header digests are made right first, as random ones never are.
pub fn pdu(bytes: &[u8]) {
    let Some((&[choice, piece], stream)) = bytes.split_first_chunk::<2>() else { return };
    let config = ParserConfig {
        receiver: if choice & 1 == 0 { Receiver::Controller } else { Receiver::Host },
        has_header_digest: choice & 2 != 0,
        has_data_digest: choice & 4 != 0,
        data_alignment_bytes: [4, 8, 64, 128][usize::from((choice >> 3) & 3)],
        in_capsule_data_bytes_max: 8192,
        data_bytes_max: 65536,
    };
    let mut parser = Parser::new(config);
    if choice & 32 == 0 {
        parser.set_initialized(config);
    }
    let mut stream = stream.to_vec();
    let mut at = 0;
    while at < stream.len() {
        if choice & 64 != 0 {
            repair_digest(&parser, &mut stream[at..]);
        }
        let rest = &stream[at..];
        let parsed = parser.parse(rest);
        check_accumulator(&parser, rest, usize::from(piece).max(1), &parsed);
        match parsed {
            Ok(Some(parsed)) => {
                check_parsed(&parsed, &config, rest);
                at += parsed.pdu_bytes;
            }
            Ok(None) => {
                let need_bytes = parser.need_bytes(rest).expect("parse saw no fault");
                assert!(need_bytes > rest.len() && need_bytes <= 132);
                break;
            }
            Err(error) => {
                let mut out = [0; HEADER_BYTES_MAX];
                let used = Encoder::c2h_term_req(&mut out, &error, rest).expect("it fits");
                assert!(used >= 24 && !error.to_string().is_empty());
                break;
            }
        }
    }
}

fn repair_digest(parser: &Parser, rest: &mut [u8]) {
    let Ok(need_bytes) = parser.need_bytes(rest) else { return };
    let Some(hlen) = rest.get(2).map(|&hlen| usize::from(hlen)) else { return };
    if need_bytes == hlen + 4 && rest.len() >= need_bytes {
        let digest = crc32c(&rest[..hlen]);
        rest[hlen..need_bytes].copy_from_slice(&digest.to_le_bytes());
    }
}

fn check_parsed(parsed: &Parsed<'_>, config: &ParserConfig, rest: &[u8]) {
    let digest_bytes = if parsed.has_data_digest { 4 } else { 0 };
    assert_eq!(parsed.data_offset + parsed.data_bytes + digest_bytes, parsed.pdu_bytes);
    assert!(parsed.pdu_bytes >= 24);
    assert!(parsed.data(rest).len() <= parsed.data_bytes);
    let _ = parsed.is_data_intact(rest);
    match parsed.pdu {
        Pdu::CapsuleCmd(capsule) => {
            assert!(parsed.data_bytes <= config.in_capsule_data_bytes_max as usize);
            commands(&capsule.sqe);
        }
        Pdu::H2cData(data) => {
            assert_eq!(data.datal.get() as usize, parsed.data_bytes);
            assert!(data.datao.get().checked_add(data.datal.get()).is_some());
        }
        Pdu::C2hData(data) => {
            assert_eq!(data.datal.get() as usize, parsed.data_bytes);
            assert!(!data.is_success() || data.is_last());
        }
        Pdu::R2t(r2t) => assert!(r2t.r2to.get().checked_add(r2t.r2tl.get()).is_some()),
        Pdu::CapsuleResp(response) => {
            let _ = format!("{:?}", response.cqe.status());
        }
        Pdu::IcReq(request) => assert!((4..=128).contains(&request.data_alignment_bytes())),
        Pdu::IcResp(response) => assert!((4..=128).contains(&response.data_alignment_bytes())),
        Pdu::H2cTermReq(request) | Pdu::C2hTermReq(request) => {
            assert!(parsed.data_bytes <= 128);
            let _ = request.status().to_string();
        }
    }
}

/// Whatever the pieces, the accumulator must find what the parser finds in one piece.
fn check_accumulator(
    parser: &Parser,
    rest: &[u8],
    piece: usize,
    expected: &Result<Option<Parsed<'_>>, nvme::tcp::PduError>,
) {
    let mut accumulator = Accumulator::new();
    let mut at = 0;
    for piece in rest.chunks(piece) {
        match accumulator.feed(parser, piece) {
            Err(error) => {
                assert_eq!(expected.as_ref().err(), Some(&error));
                return;
            }
            Ok(fed) => {
                at += fed.consumed_bytes;
                if fed.pdu.is_some() {
                    assert_eq!(expected.as_ref().ok(), Some(&fed.pdu));
                    assert_eq!(fed.header_bytes, at);
                    return;
                }
                assert_eq!(fed.consumed_bytes, piece.len());
            }
        }
    }
    assert_eq!(expected, &Ok(None));
}

/// Decodes the bytes as every structure with accessors that could fail.
pub fn structures(bytes: &[u8]) {
    authentication(bytes);
    private_data(bytes);
    if let Ok(sqe) = SubmissionQueueEntry::from_prefix(bytes) {
        commands(sqe);
    }
    if let Ok(cqe) = CompletionQueueEntry::from_prefix(bytes) {
        let _ = (cqe.status().to_string(), cqe.status().connect_name(), cqe.dword0(), cqe.dword1());
    }
    if let Ok(data) = ConnectData::from_prefix(bytes) {
        let _ = (data.subsystem_nqn(), data.host_nqn(), data.host_id().to_string());
    }
    if let Ok(controller) = IdentifyController::from_prefix(bytes) {
        let _ = (controller.serial(), controller.model(), controller.firmware());
        let _ = (controller.subsystem_nqn(), controller.in_capsule_data_bytes());
        let _ = controller.transfer_bytes_max(u64::from(bytes[0] & 15));
    }
    if let Ok(namespace) = IdentifyNamespace::from_prefix(bytes) {
        let _ = (namespace.format(), namespace.block_shift());
    }
    if let Ok(list) = NamespaceList::from_prefix(bytes) {
        assert!(list.iter().count() <= NamespaceList::ENTRIES_MAX);
    }
    if let Ok(list) = ControllerList::from_prefix(bytes) {
        assert!(list.iter().count() <= 2047);
    }
    if let Ok(entry) = DiscoveryEntry::from_prefix(bytes) {
        let _ = (entry.subsystem_nqn(), entry.address(), entry.service());
    }
    if let Ok(pages) = SupportedPages::from_prefix(bytes) {
        let _ = pages.has(bytes[0]);
    }
    if let Ok(group) = AnaGroup::from_prefix(bytes) {
        let _ = group.ana_state();
    }
    assert!(NamespaceDescriptors::new(bytes).count() <= bytes.len());
    assert_eq!(DsmRange::list(bytes).len(), bytes.len() / DsmRange::BYTES);
    let sources = CopyRange::list(bytes);
    assert_eq!(sources.len(), bytes.len() / CopyRange::BYTES);
    assert!(sources.iter().all(|range| (1..=65_536).contains(&range.blocks())));
    if let Ok(name) = core::str::from_utf8(bytes) {
        let _ = nvme::Nqn::new(name).map_err(|error| error.to_string());
    }
}

/// Reads private data of the RDMA connection manager, from a host and from a target.
fn private_data(bytes: &[u8]) {
    let most = |queue: QueueId| if queue.is_admin() { 32 } else { 128 };
    match ConnectRequest::check(bytes, most) {
        Ok((request, entries)) => {
            let queue = QueueId(request.qid.get());
            assert!((2..=most(queue)).contains(&entries) && request.hrqsize.get() >= entries - 1);
        }
        Err(status) => assert_eq!(RejectStatus::new(status as u16), Some(status)),
    }
    if let Ok(entries) = ConnectAccept::decode(bytes) {
        assert!(entries > 0 && bytes.len() >= 32);
    }
    if let Some(status) = ConnectReject::decode(bytes) {
        assert!(bytes.starts_with(ConnectReject::new(status).bytes()));
    }
}

fn commands(sqe: &SubmissionQueueEntry) {
    let _ = (sqe.sgl1.decode(), sqe.data_direction(), sqe.has_sgl(), sqe.fuse());
    let _ = (sqe.admin_opcode().to_string(), sqe.nvm_opcode().to_string());
    let nsid = sqe.namespace_id();
    let io = ReadWrite::decode(sqe);
    let again = io.encode(sqe.nvm_opcode(), nsid).expect("a decoded command can be encoded");
    assert_eq!(ReadWrite::decode(&again), io);
    let _ = (io.data_bytes(12), io.is_within(u64::MAX));
    let dsm = DatasetManagement::decode(sqe);
    let again = dsm.encode(nsid).expect("a decoded command can be encoded");
    assert_eq!(DatasetManagement::decode(&again), dsm);
    let copy = Copy::decode(sqe);
    let again = copy.encode(nsid).expect("a decoded command can be encoded");
    assert_eq!(Copy::decode(&again), copy);
    assert_eq!(copy.data_bytes(), usize::from(copy.ranges) * CopyRange::BYTES);
    let fused = sqe.with_fuse(Fuse::None).with_fuse(sqe.fuse());
    assert_eq!((fused.fuse(), fused.has_sgl()), (sqe.fuse(), sqe.has_sgl()));
    let identify = Identify::decode(sqe);
    assert_eq!(Identify::decode(&identify.encode(nsid)), identify);
    let log = GetLogPage::decode(sqe);
    let again = log.encode(nsid).expect("a decoded command can be encoded");
    assert_eq!(GetLogPage::decode(&again), log);
    let set = SetFeatures::decode(sqe);
    assert_eq!(SetFeatures::decode(&set.encode(nsid)), set);
    let abort = Abort::decode(sqe);
    assert_eq!(Abort::decode(&abort.encode()), abort);
    if let Ok(get) = Feature::decode(sqe) {
        assert_eq!(Feature::decode(&get.encode(nsid)), Ok(get));
    }
    if let Ok(connect) = Connect::decode(sqe) {
        let again = connect.encode().expect("a decoded command can be encoded");
        assert_eq!(Connect::decode(&again), Ok(connect));
    }
    if let Ok(get) = PropertyGet::decode(sqe) {
        assert_eq!(PropertyGet::decode(&get.encode()), Ok(get));
    }
    if let Ok(set) = PropertySet::decode(sqe) {
        assert_eq!(PropertySet::decode(&set.encode()), Ok(set));
    }
}

/// Decodes a message of authentication: whatever is understood is bounded, and survives being written again.
fn authentication(bytes: &[u8]) {
    if let Ok((transaction, message)) = Message::decode(bytes) {
        let again = message.encode(transaction);
        assert!(again.len() <= MESSAGE_BYTES_MAX);
        assert_eq!(Message::decode(&again), Ok((transaction, message)));
    }
    if let Ok(sqe) = SubmissionQueueEntry::from_prefix(bytes)
        && is_authentication(sqe)
    {
        let _ = Authentication::decode(sqe);
    }
}
