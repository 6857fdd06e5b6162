//! Goal: the parser reads what an encoder writes, under all parameters that can be negotiated,
//! whole and in pieces; and it refuses damaged PDUs with the status of the specification.

// Helpers of tests are tests too.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use nvme::tcp::{
    Accumulator, DataDigest, Encoder, FatalErrorStatus, HEADER_BYTES_MAX, IcReq, IcResp, Parser,
    ParserConfig, Pdu, PduError, Receiver, crc32c,
};
use nvme::{
    CommandId, CompletionQueueEntry, Error, Nsid, SglDescriptor, Status, SubmissionQueueEntry,
    TransferTag, U32,
};
use proptest::prelude::*;

const DATA_BYTES_MAX: u32 = 4096;

/// The message to send, for encoder and parser.
#[derive(Clone, Debug)]
enum Message {
    Cmd { sqe: SubmissionQueueEntry, data: Vec<u8> },
    Resp { cqe: CompletionQueueEntry },
    H2c { cid: u16, ttag: u16, offset: u32, data: Vec<u8>, is_last: bool },
    C2h { cid: u16, offset: u32, data: Vec<u8>, is_last: bool, is_success: bool },
    R2t { cid: u16, ttag: u16, offset: u32, length: u32 },
}

impl Message {
    fn data(&self) -> &[u8] {
        match self {
            Self::Cmd { data, .. } | Self::H2c { data, .. } | Self::C2h { data, .. } => data,
            Self::Resp { .. } | Self::R2t { .. } => &[],
        }
    }

    fn encode(&self, encoder: Encoder) -> Vec<u8> {
        let mut out = [0xee; HEADER_BYTES_MAX];
        let length = self.data().len() as u32;
        let used = match *self {
            Self::Cmd { ref sqe, .. } => encoder.capsule_cmd(&mut out, sqe, length),
            Self::Resp { ref cqe } => encoder.capsule_resp(&mut out, cqe),
            Self::H2c { cid, ttag, offset, is_last, .. } => encoder.h2c_data(
                &mut out,
                CommandId(cid),
                TransferTag(ttag),
                offset,
                length,
                is_last,
            ),
            Self::C2h { cid, offset, is_last, is_success, .. } => {
                encoder.c2h_data(&mut out, CommandId(cid), offset, length, is_last, is_success)
            }
            Self::R2t { cid, ttag, offset, length } => {
                encoder.r2t(&mut out, CommandId(cid), TransferTag(ttag), offset, length)
            }
        };
        let used = used.unwrap();
        let mut pdu = out[..used].to_vec();
        pdu.extend_from_slice(self.data());
        if encoder.has_data_digest && length > 0 {
            let mut digest = DataDigest::new();
            self.data().chunks(7).for_each(|part| digest.update(part));
            pdu.extend_from_slice(&digest.to_wire());
        }
        assert_eq!(pdu.len(), encoder.pdu_bytes(used, length));
        pdu
    }

    fn assert_is(&self, pdu: &Pdu<'_>) {
        match (self, pdu) {
            (Self::Cmd { sqe, .. }, Pdu::CapsuleCmd(capsule)) => assert_eq!(capsule.sqe, *sqe),
            (Self::Resp { cqe }, Pdu::CapsuleResp(capsule)) => assert_eq!(capsule.cqe, *cqe),
            (Self::H2c { cid, ttag, offset, data, is_last }, Pdu::H2cData(header)) => {
                assert_eq!(header.command_id(), CommandId(*cid));
                assert_eq!(header.transfer_tag(), TransferTag(*ttag));
                assert_eq!(header.datao.get(), *offset);
                assert_eq!(header.datal.get() as usize, data.len());
                assert_eq!(header.is_last(), *is_last);
            }
            (Self::C2h { cid, offset, data, is_last, is_success }, Pdu::C2hData(header)) => {
                assert_eq!(header.command_id(), CommandId(*cid));
                assert_eq!(header.datao.get(), *offset);
                assert_eq!(header.datal.get() as usize, data.len());
                assert_eq!((header.is_last(), header.is_success()), (*is_last, *is_success));
            }
            (Self::R2t { cid, ttag, offset, length }, Pdu::R2t(header)) => {
                assert_eq!(header.command_id(), CommandId(*cid));
                assert_eq!(header.transfer_tag(), TransferTag(*ttag));
                assert_eq!((header.r2to.get(), header.r2tl.get()), (*offset, *length));
            }
            (message, pdu) => panic!("{message:?} was read as {pdu:?}"),
        }
    }
}

fn bytes(range: core::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), range)
}

fn to_controller() -> impl Strategy<Value = Message> {
    prop_oneof![
        (any::<[u8; 32]>(), bytes(0..200)).prop_map(|(low, data)| {
            let mut raw = [0; 64];
            raw[..32].copy_from_slice(&low);
            raw[32..].copy_from_slice(&low);
            Message::Cmd { sqe: *SubmissionQueueEntry::from_prefix(&raw).unwrap(), data }
        }),
        (any::<u16>(), any::<u16>(), 0..1u32 << 31, bytes(1..200), any::<bool>()).prop_map(
            |(cid, ttag, offset, data, is_last)| Message::H2c { cid, ttag, offset, data, is_last }
        ),
    ]
}

fn data_to_host() -> impl Strategy<Value = Message> {
    (any::<u16>(), 0..1u32 << 31, bytes(1..200), any::<bool>(), any::<bool>()).prop_map(
        |(cid, offset, data, is_last, is_success)| Message::C2h {
            cid,
            offset,
            data,
            is_last,
            is_success: is_last && is_success,
        },
    )
}

fn to_host() -> impl Strategy<Value = Message> {
    prop_oneof![
        any::<[u8; 16]>().prop_map(|raw| Message::Resp {
            cqe: *CompletionQueueEntry::from_prefix(&raw).unwrap()
        }),
        data_to_host(),
        (any::<u16>(), any::<u16>(), 0..1u32 << 31, 1..1u32 << 31)
            .prop_map(|(cid, ttag, offset, length)| Message::R2t { cid, ttag, offset, length }),
    ]
}

fn encoders() -> impl Strategy<Value = Encoder> {
    (any::<bool>(), any::<bool>(), 1..=32u32).prop_map(|(has_header_digest, has_data_digest, n)| {
        Encoder { has_header_digest, has_data_digest, data_alignment_bytes: n * 4 }
    })
}

fn parser(receiver: Receiver, encoder: Encoder) -> Parser {
    let config = ParserConfig {
        receiver,
        has_header_digest: encoder.has_header_digest,
        has_data_digest: encoder.has_data_digest,
        data_alignment_bytes: encoder.data_alignment_bytes,
        in_capsule_data_bytes_max: DATA_BYTES_MAX,
        data_bytes_max: DATA_BYTES_MAX,
    };
    let mut parser = Parser::new(config);
    parser.set_initialized(config);
    parser
}

fn conversations() -> impl Strategy<Value = (Receiver, Encoder, Vec<Message>)> {
    prop_oneof![
        (Just(Receiver::Controller), encoders(), proptest::collection::vec(to_controller(), 1..6)),
        (Just(Receiver::Host), encoders(), proptest::collection::vec(to_host(), 1..6)),
    ]
}

proptest! {
    #[test]
    fn a_buffer_of_pdus_is_read_back((receiver, encoder, messages) in conversations()) {
        // Goal: many PDUs in one buffer are parsed unchanged, data and digests included.
        let stream: Vec<u8> = messages.iter().flat_map(|message| message.encode(encoder)).collect();
        let parser = parser(receiver, encoder);
        let mut rest = &stream[..];
        for message in &messages {
            let parsed = parser.parse(rest).unwrap().unwrap();
            message.assert_is(&parsed.pdu);
            prop_assert_eq!(parsed.data(rest), message.data());
            if parsed.data_bytes > 0 {
                prop_assert_eq!(parsed.data_offset % encoder.data_alignment_bytes as usize, 0);
            }
            let is_intact = parsed.is_data_intact(rest);
            let has_digest = encoder.has_data_digest && !message.data().is_empty();
            prop_assert_eq!(is_intact, has_digest.then_some(true));
            rest = &rest[parsed.pdu_bytes..];
        }
        prop_assert!(rest.is_empty());
    }

    #[test]
    fn pieces_of_any_size_are_read_back(
        (receiver, encoder, messages) in conversations(), piece in 1usize..90,
    ) {
        // Goal: the accumulator finds each header for any division of the stream.
        let stream: Vec<u8> = messages.iter().flat_map(|message| message.encode(encoder)).collect();
        let parser = parser(receiver, encoder);
        let mut accumulator = Accumulator::new();
        let (mut found, mut skip) = (0, 0);
        for mut input in stream.chunks(piece) {
            while !input.is_empty() {
                let skipped = skip.min(input.len());
                skip -= skipped;
                input = &input[skipped..];
                let fed = accumulator.feed(&parser, input).unwrap();
                input = &input[fed.consumed_bytes..];
                if let Some(parsed) = fed.pdu {
                    messages[found].assert_is(&parsed.pdu);
                    skip = parsed.pdu_bytes - fed.header_bytes;
                    found += 1;
                }
            }
        }
        prop_assert_eq!((found, skip, accumulator.kept_bytes()), (messages.len(), 0, 0));
    }

    #[test]
    fn a_cut_off_header_is_awaited((receiver, encoder, messages) in conversations()) {
        // Goal: no prefix of a header is parsed as a PDU, and the requested number of bytes is
        // enough.
        let pdu = messages[0].encode(encoder);
        let parser = parser(receiver, encoder);
        let header_bytes = parser.need_bytes(&pdu).unwrap();
        for end in 0..header_bytes {
            prop_assert_eq!(parser.parse(&pdu[..end]), Ok(None));
            prop_assert!(parser.need_bytes(&pdu[..end]).unwrap() > end);
        }
        prop_assert!(parser.parse(&pdu[..header_bytes]).unwrap().is_some());
    }

    #[test]
    fn a_flipped_bit_in_a_digested_header_is_refused(
        (receiver, encoder, messages) in conversations(), bit in any::<prop::sample::Index>(),
    ) {
        // Goal: with header digests no single bit error in header or digest passes.
        let encoder = Encoder { has_header_digest: true, ..encoder };
        let mut pdu = messages[0].encode(encoder);
        let parser = parser(receiver, encoder);
        let bit = bit.index(parser.need_bytes(&pdu).unwrap() * 8);
        pdu[bit / 8] ^= 1 << (bit % 8);
        let mut received = pdu.clone();
        received.resize(65_536, 0);
        match parser.parse(&received) {
            Err(_) => {}
            // Terminate requests carry no digest: a data PDU whose type is changed to one passes,
            // and the connection ends, as it would for a wrong digest.
            Ok(Some(parsed)) => prop_assert!(
                bit < 8 && matches!(parsed.pdu, Pdu::H2cTermReq(_) | Pdu::C2hTermReq(_))
            ),
            Ok(None) => prop_assert!(false, "a whole header was not recognized"),
        }
    }

    #[test]
    fn a_flipped_bit_in_digested_data_is_noticed(
        message in data_to_host(), bit in any::<prop::sample::Index>(),
    ) {
        // Goal: with data digests no single bit error in data or digest passes.
        let encoder = Encoder { has_data_digest: true, ..Encoder::INITIAL };
        let mut pdu = message.encode(encoder);
        let parser = parser(Receiver::Host, encoder);
        let offset = parser.parse(&pdu).unwrap().unwrap().data_offset;
        let bit = bit.index((pdu.len() - offset) * 8);
        pdu[offset + bit / 8] ^= 1 << (bit % 8);
        let parsed = parser.parse(&pdu).unwrap().unwrap();
        prop_assert_eq!(parsed.is_data_intact(&pdu), Some(false));
    }

    #[test]
    fn initialization_is_read_back(
        alignment in 0u8..32, digests in any::<(bool, bool)>(), maxr2t in any::<u32>(),
        maxh2cdata in (1024u32..1 << 20).prop_map(|dwords| dwords * 4),
    ) {
        // Goal: ICReq and ICResp are parsed unchanged.
        let request = IcReq::new(alignment, digests.0, digests.1, maxr2t);
        let mut out = [0; HEADER_BYTES_MAX];
        prop_assert_eq!(Encoder::ic_req(&mut out, &request), Ok(128));
        let parsed = uninitialized(Receiver::Controller).parse(&out).unwrap().unwrap();
        prop_assert_eq!(parsed.pdu, Pdu::IcReq(&request));
        prop_assert_eq!((request.has_header_digest(), request.has_data_digest()), digests);
        prop_assert_eq!(request.data_alignment_bytes(), (u32::from(alignment) + 1) * 4);
        let response = IcResp::new(alignment, digests.0, digests.1, maxh2cdata);
        prop_assert_eq!(Encoder::ic_resp(&mut out, &response), Ok(128));
        let parsed = uninitialized(Receiver::Host).parse(&out).unwrap().unwrap();
        prop_assert_eq!(parsed.pdu, Pdu::IcResp(&response));
        prop_assert_eq!((response.has_header_digest(), response.has_data_digest()), digests);
        prop_assert_eq!(response.data_alignment_bytes(), (u32::from(alignment) + 1) * 4);
    }

    #[test]
    fn terminate_requests_are_read_back(fes in 1u32..7, fei in any::<u32>(), header in bytes(8..300)) {
        // Goal: status, information and at most 128 bytes of the erroneous header arrive.
        let mut error = PduError::unsupported("pfv", fei, 1);
        error.fes = FatalErrorStatus(fes as u16);
        for receiver in [Receiver::Controller, Receiver::Host] {
            let mut out = [0; HEADER_BYTES_MAX];
            let used = match receiver {
                Receiver::Controller => Encoder::h2c_term_req(&mut out, &error, &header),
                Receiver::Host => Encoder::c2h_term_req(&mut out, &error, &header),
            }.unwrap();
            let parsed = uninitialized(receiver).parse(&out[..used]).unwrap().unwrap();
            let (Pdu::H2cTermReq(request) | Pdu::C2hTermReq(request)) = parsed.pdu else {
                panic!("{parsed:?}");
            };
            prop_assert_eq!((request.status(), request.fei.get()), (error.fes, fei));
            prop_assert_eq!(parsed.pdu_bytes, used);
            let sent = header.len().min(usize::from(header[2]).max(8)).min(128);
            prop_assert_eq!(parsed.data(&out), &header[..sent]);
        }
    }
}

fn uninitialized(receiver: Receiver) -> Parser {
    Parser::new(*parser(receiver, Encoder::INITIAL).config())
}

#[test]
fn crc32c_is_the_castagnoli_one() {
    // Goal: the check value and RFC 3720's examples, as the peers' hardware computes them.
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    let mut digest = DataDigest::new();
    (0..32u8).for_each(|byte| digest.update(&[byte]));
    assert_eq!(digest.to_wire(), [0x4e, 0x79, 0xdd, 0x46]);
    assert!(digest.matches([0x4e, 0x79, 0xdd, 0x46]) && !digest.matches([0; 4]));
}

#[test]
fn a_read_capsule_has_the_bytes_that_peers_send() {
    // Goal: a whole PDU written by hand from the figures, so that encoder and parser cannot make
    // the same mistake.
    let io =
        nvme::command::ReadWrite { start_lba: 0x0102_0304_0506, blocks: 8, ..Default::default() };
    let sqe = io
        .encode(nvme::opcode::NvmOpcode::READ, Nsid(1))
        .unwrap()
        .with_command_id(CommandId(0x1234))
        .with_sgl(SglDescriptor::transport(4096));
    let encoder = Encoder { has_header_digest: true, ..Encoder::INITIAL };
    let mut out = [0; HEADER_BYTES_MAX];
    assert_eq!(encoder.capsule_cmd(&mut out, &sqe, 0), Ok(76));
    let mut expected = [0u8; 72];
    expected[..8].copy_from_slice(&[4, 1, 72, 0, 76, 0, 0, 0]);
    expected[8..16].copy_from_slice(&[0x02, 0x40, 0x34, 0x12, 1, 0, 0, 0]);
    expected[40..48].copy_from_slice(&[0, 0x10, 0, 0, 0, 0, 0, 0x5a]);
    expected[48..56].copy_from_slice(&[6, 5, 4, 3, 2, 1, 0, 0]);
    expected[56] = 7;
    assert_eq!(out[..72], expected);
    assert_eq!(out[72..76], crc32c(&expected).to_le_bytes());
}

/// Returns the error for a valid `H2CData` PDU of 64 bytes of data after `change`, as received by
/// the controller.
fn fault_of(has_data_digest: bool, change: impl FnOnce(&mut [u8])) -> PduError {
    let encoder = Encoder { has_data_digest, ..Encoder::INITIAL };
    let mut out = [0; HEADER_BYTES_MAX];
    encoder.h2c_data(&mut out, CommandId(1), TransferTag(2), 0, 64, true).unwrap();
    change(&mut out);
    parser(Receiver::Controller, encoder).parse(&out).unwrap_err()
}

#[test]
fn each_fault_is_reported_at_its_field() {
    // Goal: status and byte offset for each header field that can be invalid (TCP 3.5).
    let invalid = |field, offset, value| PduError::invalid_field(field, offset, value);
    let plain = |at: usize, value: u8| fault_of(false, |pdu| pdu[at] = value);
    assert_eq!(plain(0, 8), invalid("pdu_type", 0, 8));
    assert_eq!(plain(0, 7), invalid("pdu_type", 0, 7), "sent by controllers only");
    assert_eq!(plain(0, 0), PduError::sequence(0), "a second ICReq");
    assert_eq!(plain(1, 1), invalid("flags", 1, 1), "a header digest not negotiated");
    assert_eq!(plain(1, 2), invalid("flags", 1, 2), "a data digest not negotiated");
    assert_eq!(fault_of(true, |pdu| pdu[1] = 4), invalid("flags", 1, 4), "a data digest missing");
    assert_eq!(plain(2, 23), invalid("hlen", 2, 23));
    assert_eq!(plain(3, 20), invalid("pdo", 3, 20), "inside of the header");
    assert_eq!(plain(3, 26), invalid("pdo", 3, 26), "not aligned");
    assert_eq!(plain(3, 252), invalid("pdo", 3, 252), "more padding than any alignment needs");
    assert_eq!(plain(4, 24), invalid("plen", 4, 24), "no data");
    assert_eq!(plain(4, 89), invalid("datal", 16, 64), "not the length of the data");
    assert_eq!(plain(6, 1), PduError::limit_exceeded("plen", 65_536 + 88));
    assert_eq!(
        fault_of(false, |pdu| pdu[12..16].fill(0xff)),
        PduError::out_of_range("datao", 0xffff_ffff)
    );
    let digest = fault_of_digest();
    assert_eq!((digest.fes, digest.fei), (FatalErrorStatus::HEADER_DIGEST_ERROR, 0x1234_5678));
}

fn fault_of_digest() -> PduError {
    let encoder = Encoder { has_header_digest: true, ..Encoder::INITIAL };
    let mut out = [0; HEADER_BYTES_MAX];
    let cqe = CompletionQueueEntry::new(CommandId(1), 0, Status::SUCCESS);
    assert_eq!(encoder.capsule_resp(&mut out, &cqe), Ok(28));
    out[24..28].copy_from_slice(&0x1234_5678u32.to_le_bytes());
    parser(Receiver::Host, encoder).parse(&out[..28]).unwrap_err()
}

#[test]
fn initialization_faults_are_reported() {
    // Goal: version, alignment and MAXH2CDATA are checked, and nothing may come before ICReq.
    let controller = uninitialized(Receiver::Controller);
    let fault = |request: &IcReq| controller.parse(request.bytes()).unwrap_err();
    let good = IcReq::new(0, false, false, 0);
    let bad = IcReq { pfv: 1.into(), ..good };
    assert_eq!(fault(&bad), PduError::unsupported("pfv", 8, 1));
    assert_eq!(fault(&IcReq { hpda: 32, ..good }), PduError::invalid_field("hpda", 10, 32));
    let mut bad = good;
    bad.ch.plen = U32::new(129);
    assert_eq!(fault(&bad), PduError::invalid_field("plen", 4, 129));
    let response = IcResp::new(0, false, false, 4092);
    assert_eq!(
        uninitialized(Receiver::Host).parse(response.bytes()),
        Err(PduError::invalid_field("maxh2cdata", 12, 4092))
    );
    let mut out = [0; HEADER_BYTES_MAX];
    Encoder::INITIAL.capsule_cmd(&mut out, &SubmissionQueueEntry::keep_alive(), 0).unwrap();
    assert_eq!(controller.parse(&out), Err(PduError::sequence(4)));
}

#[test]
fn a_bad_terminate_request_is_not_answered() {
    // Goal: two ends never answer each other's terminate requests forever.
    let mut out = [0; HEADER_BYTES_MAX];
    Encoder::h2c_term_req(&mut out, &PduError::sequence(0), &[]).unwrap();
    out[4] = 153;
    let error = uninitialized(Receiver::Controller).parse(&out).unwrap_err();
    assert_eq!((error.field, error.is_reported), ("plen", false));
    assert!(fault_of_digest().is_reported);
}

#[test]
fn encoders_refuse_what_cannot_be_said() {
    // Goal: small buffers and impossible values give errors, not panics or wrong bytes.
    let encoder = Encoder { data_alignment_bytes: 128, ..Encoder::INITIAL };
    let sqe = SubmissionQueueEntry::keep_alive();
    let small = |need_bytes| Err(Error::BufferTooSmall { need_bytes, have_bytes: 71 });
    assert_eq!(encoder.capsule_cmd(&mut [0; 71], &sqe, 0), small(72));
    assert_eq!(encoder.capsule_cmd(&mut [0; 71], &sqe, 1), small(128));
    assert!(encoder.capsule_cmd(&mut [0; 152], &sqe, u32::MAX).is_err());
    let odd = Encoder { data_alignment_bytes: 6, ..Encoder::INITIAL };
    assert!(odd.capsule_cmd(&mut [0; 152], &sqe, 1).is_err());
    assert!(encoder.c2h_data(&mut [0; 152], CommandId(0), 0, 0, true, false).is_err());
    assert!(encoder.c2h_data(&mut [0; 152], CommandId(0), 0, 8, false, true).is_err());
}
