//! Records compared with published ones and with the library's own record layer, and manipulated
//! records.

use super::*;
use crate::wires::Wired;
use s2n_tls::config::Config;
use s2n_tls::connection::Connection;
use s2n_tls::enums::{Blinding, Mode, PeerKeyUpdate};
use s2n_tls::security::Policy;
use std::task::Poll;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u32> = hex.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

fn direction(suite: Suite, byte: u8) -> Direction {
    direction_from(suite, byte, 0)
}

fn direction_from(suite: Suite, byte: u8, sequence: u64) -> Direction {
    Direction::new(suite, Zeroizing::new(vec![byte; suite.hash_bytes()]), sequence).unwrap()
}

/// Returns both ends of a connection.
fn pair(suite: Suite) -> (Records, Records) {
    (
        Records::new(direction(suite, 1), direction(suite, 2), true),
        Records::new(direction(suite, 2), direction(suite, 1), false),
    )
}

fn seal(from: &mut Records, plain: &[u8]) -> Vec<u8> {
    let mut record = vec![0; plain.len() + OVERHEAD_BYTES];
    from.seal(Some(plain), &mut record).unwrap();
    record
}

/// Makes a record of any type, with zeros after the type.
fn seal_as(from: &mut Records, kind: u8, plain: &[u8], zeros: usize) -> Vec<u8> {
    // Padding is plain text whose last nonzero byte is the type.
    let padded = [plain, &[kind][..], &vec![0; zeros]].concat();
    let (last, text) = padded.split_last().unwrap();
    let mut record = vec![0; text.len() + OVERHEAD_BYTES];
    from.sealing.seal(*last, Some(text), &mut record).unwrap();
    record
}

/// Opens a record into `room` bytes of memory.
fn open(to: &mut Records, record: &[u8], room: usize) -> Result<Vec<u8>, Fault> {
    assert_eq!(Records::length(record)?, Some(record.len()));
    let (mut plain, mut held) = (vec![0xee; room], Held::default());
    match to.open(record, &mut plain, &mut held)? {
        Opened::Direct(bytes) => plain.truncate(bytes),
        Opened::Held => {
            let mut all = Vec::new();
            while !held.is_empty() {
                let bytes = held.take(&mut plain);
                all.extend_from_slice(&plain[..bytes]);
            }
            plain = all;
        }
        Opened::Farewell | Opened::Nothing => plain.clear(),
    }
    Ok(plain)
}

/// Goal: a record is equal to one of RFC 8448, 3: the client's application data.
#[test]
fn a_published_record_is_made() {
    let secret = bytes("9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5");
    let expected = bytes(
        "1703030043a23f7054b62c94d0affafe8228ba55cbefacea42f914aa66bcab3f2b9819a8a5b46b395bd54a9a20\
         441e2b62974e1f5a6292a2977014bd1e3deae63aeebb21694915e4",
    );
    let plain: Vec<u8> = (0..50).collect();
    let mut sealing = Direction::new(Suite::Aes128, Zeroizing::new(secret.clone()), 0).unwrap();
    let mut record = vec![0; expected.len()];
    sealing.seal(content::DATA, Some(&plain), &mut record).unwrap();
    assert_eq!(record, expected);
    // The same with the plain text already in its place.
    let mut sealing = Direction::new(Suite::Aes128, Zeroizing::new(secret), 0).unwrap();
    record.fill(0xaa);
    record[HEADER_BYTES..HEADER_BYTES + plain.len()].copy_from_slice(&plain);
    sealing.seal(content::DATA, None, &mut record).unwrap();
    assert_eq!(record, expected);
}

/// Goal: sealed records can be opened, directly into the caller's memory or held, at each boundary
/// of lengths.
#[test]
fn records_are_opened() {
    for suite in [Suite::Aes128, Suite::Aes256] {
        let (mut client, mut server) = pair(suite);
        for length in [0, 1, 15, 16, 17, 4096, PLAIN_BYTES_MAX - 1, PLAIN_BYTES_MAX] {
            for room in [1, length.max(1), length + 1, PLAIN_BYTES_MAX + 300] {
                let text: Vec<u8> = (0..length).map(|index| (index * 7) as u8).collect();
                let record = seal(&mut client, &text);
                assert_eq!(open(&mut server, &record, room).unwrap(), text, "{length} into {room}");
                std::mem::swap(&mut client, &mut server);
            }
        }
        let padded = seal_as(&mut client, content::DATA, b"padded", 200);
        assert_eq!(open(&mut server, &padded, 1000).unwrap(), b"padded");
    }
}

/// Goal: keys are renewed before they protect too many records, and when the peer requests it; the
/// other side follows.
#[test]
fn keys_are_renewed() {
    const RECORDS_MAX: u64 = 23_726_566;
    let suite = Suite::Aes256;
    let mut client =
        Records::new(direction_from(suite, 1, RECORDS_MAX - 1), direction(suite, 2), true);
    let mut server =
        Records::new(direction(suite, 2), direction_from(suite, 1, RECORDS_MAX - 1), false);
    assert!(!client.owes_renewal());
    let last = seal(&mut client, b"last");
    assert!(client.owes_renewal(), "the limit of RFC 8446, 5.5");
    let mut renewal = vec![0; RENEWAL_BYTES];
    client.seal_renewal(&mut renewal).unwrap();
    assert!(!client.owes_renewal());
    let next = seal(&mut client, b"next");
    assert_eq!(open(&mut server, &last, 100).unwrap(), b"last");
    let mut strict = (vec![0; 100], Held::default());
    assert_eq!(server.open(&renewal, &mut strict.0, &mut strict.1), Ok(Opened::Nothing));
    assert!(!server.owes_renewal(), "the client did not request that");
    assert_eq!(open(&mut server, &next, 100).unwrap(), b"next");
    let asks = seal_as(&mut client, content::HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 1], 0);
    open(&mut server, &asks, 100).unwrap();
    assert!(server.owes_renewal());
}

/// Goal: messages after a handshake are accepted in any pieces, but only those that are allowed
/// there.
#[test]
fn messages_are_judged() {
    let ticket = [&[NEW_SESSION_TICKET, 0, 1, 0][..], &[7; 256]].concat();
    let update = [KEY_UPDATE, 0, 0, 1, 0];
    let unexpected = |records: &mut Records, record: &[u8]| {
        let fault = open(records, record, 20_000).unwrap_err();
        assert!(matches!(fault.error, Error::Record(_)) && fault.alert.is_some(), "{fault:?}");
    };
    // Tickets are for clients: whole, in pieces, and two in one record.
    let (mut client, mut server) = pair(Suite::Aes128);
    for pieces in [vec![&ticket[..]], vec![&ticket[..2], &ticket[2..100], &ticket[100..]]] {
        for piece in pieces {
            let record = seal_as(&mut server, content::HANDSHAKE, piece, 3);
            assert_eq!(open(&mut client, &record, 500).unwrap(), b"");
        }
    }
    let two = seal_as(&mut server, content::HANDSHAKE, &[&ticket[..], &ticket].concat(), 0);
    open(&mut client, &two, 500).unwrap();
    let text = seal(&mut server, b"text");
    assert_eq!(open(&mut client, &text, 500).unwrap(), b"text");
    let record = seal_as(&mut client, content::HANDSHAKE, &ticket, 0);
    unexpected(&mut server, &record);
    // Other content in the middle of a message, or after new keys in the same record.
    let cases: [&[(u8, &[u8])]; 8] = [
        &[(content::HANDSHAKE, &ticket[..9]), (content::DATA, b"x")],
        &[(content::HANDSHAKE, &[&update[..], &update].concat())],
        &[(content::HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 2])],
        &[(content::HANDSHAKE, &[KEY_UPDATE, 0, 0, 2, 0, 0])],
        &[(content::HANDSHAKE, &[1, 0, 0, 1, 0])],
        &[(content::HANDSHAKE, &[NEW_SESSION_TICKET, 1, 0, 0])],
        &[(content::ALERT, &[2])],
        &[(99, b"x")],
    ];
    for case in cases {
        let (mut client, mut server) = pair(Suite::Aes256);
        let (last, before) = case.split_last().unwrap();
        for (kind, text) in before {
            let record = seal_as(&mut server, *kind, text, 0);
            open(&mut client, &record, 500).unwrap();
        }
        let record = seal_as(&mut server, last.0, last.1, 0);
        unexpected(&mut client, &record);
    }
    let (mut client, mut server) = pair(Suite::Aes128);
    let empty = seal_as(&mut server, content::HANDSHAKE, b"", 0);
    unexpected(&mut client, &empty);
    let farewell = seal_as(&mut server, content::ALERT, &[1, 0], 0);
    let (mut client, _) = pair(Suite::Aes128);
    client.opening = direction_from(Suite::Aes128, 2, 1);
    let mut plain = [0; 100];
    assert_eq!(client.open(&farewell, &mut plain, &mut Held::default()), Ok(Opened::Farewell));
}

/// Goal: invalid headers are refused before anything is stored for them.
#[test]
fn headers_are_judged() {
    assert_eq!(Records::length(&[23, 3, 3, 0]), Ok(None));
    assert_eq!(Records::length(&[23, 3, 3, 0, 17]), Ok(Some(22)));
    assert_eq!(Records::length(&[23, 9, 9, 0x41, 0]), Ok(Some(5 + BODY_BYTES_MAX)));
    for wrong in [[22, 3, 3, 0, 40], [21, 3, 3, 0, 2], [23, 3, 3, 0, 16], [23, 3, 3, 0x41, 1]] {
        assert!(Records::length(&wrong).is_err(), "{wrong:?}");
    }
    let (mut client, mut server) = pair(Suite::Aes256);
    let record = seal(&mut client, b"text");
    for position in 0..record.len() {
        let mut changed = record.clone();
        changed[position] ^= 1;
        let whole = Records::length(&changed).is_ok_and(|bytes| bytes == Some(changed.len()));
        assert!(!whole || open(&mut server, &changed, 100).is_err(), "byte {position}");
    }
    assert_eq!(open(&mut server, &record, 100).unwrap(), b"text", "a failure uses up no number");
}

/// Goal: an export in another form is refused, and every byte of it is checked.
#[test]
fn exports_are_judged() {
    let head = [0, 0, 0, 0, 0, 0, 0, 1, 3, 4, 0x13, 0x01];
    let export =
        [&head[..], &[0; 7], &[5], &[0; 8], &[0x40, 0], &[1; 32], &[2; 32], &[3; 32]].concat();
    let mut client = Records::of_export(&export, Suite::Aes128, true).unwrap();
    let mut expected =
        Records::new(direction_from(Suite::Aes128, 1, 5), direction(Suite::Aes128, 2), true);
    assert_eq!(seal(&mut client, b"x"), seal(&mut expected, b"x"));
    assert!(Records::of_export(&export, Suite::Aes256, true).is_err());
    assert!(Records::of_export(&export[..90], Suite::Aes128, true).is_err());
    for position in 0..head.len() {
        let mut other = export.clone();
        other[position] += 1;
        assert!(Records::of_export(&other, Suite::Aes128, true).is_err(), "byte {position}");
    }
}

/// Returns the library at both ends, after a handshake with a key.
fn library(suite: Suite) -> (Wired, Wired) {
    use s2n_tls::enums::PskHmac::{SHA256, SHA384};
    let end = |mode| {
        let hash = if suite == Suite::Aes128 { SHA256 } else { SHA384 };
        let mut builder = Config::builder();
        builder
            .set_security_policy(&Policy::from_version("AWS-CRT-SDK-TLSv1.3-2023").unwrap())
            .unwrap();
        builder.with_system_certs(false).unwrap();
        builder.set_serialization_version(s2n_tls::enums::SerializationVersion::V1).unwrap();
        let mut connection = Connection::new(mode);
        connection.set_config(builder.build().unwrap()).unwrap();
        connection.set_blinding(Blinding::SelfService).unwrap();
        let mut psk = s2n_tls::psk::Psk::builder().unwrap();
        psk.set_identity(b"name").unwrap().set_secret(&[7; 48]).unwrap().set_hmac(hash).unwrap();
        connection.append_psk(&psk.build().unwrap()).unwrap();
        Wired::new(connection).unwrap()
    };
    let (mut client, mut server) = (end(Mode::Client), end(Mode::Server));
    let (mut to_client, mut is_done) = (Vec::new(), false);
    while !is_done {
        let done = client.with(&mut &to_client[..], |it| it.poll_negotiate().map_ok(drop));
        let to_server = std::mem::take(client.output());
        let at_server = server.with(&mut &to_server[..], |it| it.poll_negotiate().map_ok(drop));
        to_client = std::mem::take(server.output());
        is_done = matches!((done, at_server), (Poll::Ready(Ok(())), Poll::Ready(Ok(()))));
    }
    (client, server)
}

/// Goal: the library's own record layer reads our records, including renewals of keys, and we read
/// its records.
#[test]
fn the_library_is_understood() {
    for suite in [Suite::Aes128, Suite::Aes256] {
        for is_client in [true, false] {
            let (client, server) = library(suite);
            let (ours, mut theirs) = if is_client { (client, server) } else { (server, client) };
            let mut export = vec![0; ours.connection().serialization_length().unwrap()];
            ours.connection().serialize(&mut export).unwrap();
            let mut records = Records::of_export(&export, suite, is_client).unwrap();
            let text = b"some text ".repeat(1500);
            for round in 0..3 {
                let mut sent = vec![];
                if round == 1 {
                    sent.resize(RENEWAL_BYTES, 0);
                    records.seal_renewal(&mut sent).unwrap();
                    theirs.with(&mut &[][..], |it| {
                        it.request_key_update(PeerKeyUpdate::KeyUpdateNotRequested).unwrap();
                    });
                }
                sent.extend(seal(&mut records, &text));
                let mut got = vec![0; text.len()];
                let read = theirs.with(&mut &sent[..], |it| it.poll_recv(&mut got));
                assert!(matches!(read, Poll::Ready(Ok(bytes)) if bytes == text.len()), "{read:?}");
                assert!(got == text);
                let written = theirs.with(&mut &[][..], |it| it.poll_send(&text));
                assert!(matches!(written, Poll::Ready(Ok(bytes)) if bytes == text.len()));
                let (answer, mut got) = (std::mem::take(theirs.output()), Vec::new());
                let mut rest = &answer[..];
                while !rest.is_empty() {
                    let length = Records::length(rest).unwrap().unwrap();
                    got.extend(open(&mut records, &rest[..length], 40_000).unwrap());
                    rest = &rest[length..];
                }
                assert!(got == text, "round {round}");
            }
        }
    }
}
