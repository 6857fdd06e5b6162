//! Two ends in one process, and manipulations of the bytes between them.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use crate::{Error, Hash, Holder, JobKey, Psk, Server, Session, Suite};
use proptest::prelude::*;
use zeroize::Zeroizing;

fn psk(identity: &str, byte: u8, hash: Hash) -> Psk {
    let bytes = if hash == Hash::Sha256 { 32 } else { 48 };
    Psk::new(identity.as_bytes(), Zeroizing::new(vec![byte; bytes]), hash).unwrap()
}

/// Returns a server that knows one key of each hash function.
fn server() -> Server {
    let keys = [psk("small", 1, Hash::Sha256), psk("large", 2, Hash::Sha384)];
    Server::new(move |identity: &[u8]| keys.iter().find(|psk| psk.identity() == identity).cloned())
        .unwrap()
}

/// Carries out the handshake. Remaining bytes for reading go into the sessions.
fn shake(client: &mut Session, server: &mut Session) -> Result<(), Error> {
    let (mut is_done, mut rounds) = (false, 0);
    while !is_done {
        let bytes = client.take_output(Vec::new());
        let at_server = server.handshake(&mut &bytes[..])?;
        let bytes = server.take_output(Vec::new());
        is_done = client.handshake(&mut &bytes[..])? && at_server;
        rounds += 1;
        assert!(rounds < 10, "the handshake does not come to an end");
    }
    Ok(())
}

fn pair(key: &Psk) -> Result<(Session, Session), Error> {
    let (mut client, mut server) = (Session::client(key)?, Session::server(&server())?);
    shake(&mut client, &mut server)?;
    Ok((client, server))
}

fn open_pair() -> (Session, Session) {
    pair(&psk("large", 2, Hash::Sha384)).unwrap()
}

/// Returns the records of `from`'s output.
fn records(from: &mut Session) -> Vec<Vec<u8>> {
    let bytes = from.take_output(Vec::new());
    let (mut records, mut rest) = (Vec::new(), &bytes[..]);
    while !rest.is_empty() {
        let length = 5 + usize::from(rest[3]) * 256 + usize::from(rest[4]);
        records.push(rest[..length].to_vec());
        rest = &rest[length..];
    }
    records
}

/// A manipulation of records.
type Change<'a> = &'a dyn Fn(&mut Vec<Vec<u8>>);

/// Returns the plain text that a new reader gets from these bytes.
fn read(to: &mut Session, bytes: &[u8]) -> Result<Vec<u8>, Error> {
    let mut plain = Vec::new();
    to.read(bytes, &mut plain).map(|()| plain)
}

/// Goal: both hash functions lead to their cipher suites, both sides know the key's identity, and
/// bytes pass in both directions in pieces of any size, unreadable between them.
#[test]
fn who_knows_the_key_gets_in() {
    for (key, suite) in [
        (psk("small", 1, Hash::Sha256), Suite::Aes128),
        (psk("large", 2, Hash::Sha384), Suite::Aes256),
    ] {
        let (mut client, mut server) = pair(&key).unwrap();
        assert!(client.is_open() && server.is_open());
        assert_eq!((client.suite(), server.suite()), (Some(suite), Some(suite)));
        assert_eq!((client.identity(), server.identity()), (key.identity(), key.identity()));
        let text = b"a word that must not be seen".repeat(5000);
        for _ in 0..2 {
            let (from, to) = (&mut client, &mut server);
            let mut got = Vec::new();
            from.write(&text).unwrap();
            let bytes = from.take_output(Vec::new());
            assert!(bytes.len() > text.len());
            assert!(!bytes.windows(8).any(|seen| seen == &text[..8]));
            for piece in bytes.chunks(1777) {
                to.read(piece, &mut got).unwrap();
            }
            assert!(got == text);
            std::mem::swap(&mut client, &mut server);
        }
    }
}

/// Goal: the job's keys work, and the server learns the peer from the identity.
#[test]
fn keys_of_a_job_get_in() {
    let job = JobKey::generate();
    let keys = job.clone();
    let accepting = Server::new(move |identity: &[u8]| keys.find(identity)).unwrap();
    for holder in [Holder::Node("node7".into()), Holder::Tools] {
        let mut client = Session::client(&job.of(&holder).unwrap()).unwrap();
        let mut server = Session::server(&accepting).unwrap();
        shake(&mut client, &mut server).unwrap();
        assert_eq!(Holder::of(server.identity()), Some(holder));
    }
    let stranger = JobKey::generate().of(&Holder::Tools).unwrap();
    let mut client = Session::client(&stranger).unwrap();
    let mut server = Session::server(&accepting).unwrap();
    let error = shake(&mut client, &mut server).unwrap_err();
    assert!(matches!(&error, Error::Unknown(_)), "{error:?}");
}

/// Goal: a peer that does not know the key, or sends an unknown identity, is refused, and so is
/// everything that it sends.
#[test]
fn others_stay_out() {
    let error = pair(&psk("large", 3, Hash::Sha384)).unwrap_err();
    assert!(matches!(&error, Error::Proof { identity, .. } if identity == "large"), "{error:?}");
    let error = pair(&psk("stranger", 2, Hash::Sha384)).unwrap_err();
    assert_eq!(error, Error::Unknown("stranger".into()));
    // The same bytes with the other hash function are another key.
    let other = Psk::new(b"large", Zeroizing::new(vec![2; 48]), Hash::Sha256).unwrap();
    assert!(pair(&other).is_err());
    let mut lone = Session::server(&server()).unwrap();
    assert!(lone.write(b"x").is_err() && read(&mut lone, b"x").is_err());
    let error = lone.handshake(&mut &[23, 3, 3, 0, 1, 0][..]).unwrap_err();
    assert_eq!(lone.handshake(&mut &[][..]), Err(error), "an error stays");
    assert!(!lone.is_open());
}

/// Goal: a client detects a server that does not know the key.
#[test]
fn a_false_server_is_noticed() {
    let key = psk("large", 2, Hash::Sha384);
    let false_key = psk("large", 9, Hash::Sha384);
    let accepting = Server::new(move |_: &[u8]| Some(false_key.clone())).unwrap();
    let mut server = Session::server(&accepting).unwrap();
    let mut client = Session::client(&key).unwrap();
    assert!(shake(&mut client, &mut server).is_err());
    assert!(!client.is_open() && !server.is_open());
}

/// Goal: the handshake fails if any bit of it is changed.
#[test]
fn a_changed_handshake_fails() {
    let whole = Session::client(&psk("large", 2, Hash::Sha384)).unwrap().output().len();
    for position in (0..whole).step_by(7) {
        let mut client = Session::client(&psk("large", 2, Hash::Sha384)).unwrap();
        let mut server = Session::server(&server()).unwrap();
        let mut bytes = client.take_output(Vec::new());
        bytes[position] ^= 1;
        if server.handshake(&mut &bytes[..]).is_err() {
            continue;
        }
        let answer = server.take_output(Vec::new());
        let went = client.handshake(&mut &answer[..]).and_then(|_| {
            let bytes = client.take_output(Vec::new());
            server.handshake(&mut &bytes[..])
        });
        // The version of the outer record has no meaning (RFC 8446, 5.1); everything else is
        // covered.
        let is_open = matches!(went, Ok(true));
        assert!(!is_open || (1..3).contains(&position), "byte {position} was changed unnoticed");
    }
}

/// Goal: a record that is changed, repeated, omitted, moved or injected ends the connection and
/// gives no plain text; so does a record of another connection with the same key.
#[test]
fn records_cannot_be_tampered_with() {
    let mut donor = open_pair().0;
    donor.write(b"foreign").unwrap();
    let foreign = records(&mut donor).remove(0);
    let cases: [(&str, Change<'_>); 6] = [
        ("changed", &|records| *records[1].last_mut().unwrap() ^= 1),
        ("changed in the middle", &|records| records[1][7] ^= 0x80),
        ("repeated", &|records| records.insert(1, records[0].clone())),
        ("left out", &|records| drop(records.remove(1))),
        ("moved", &|records| records.swap(1, 2)),
        ("injected", &|records| records.insert(1, foreign.clone())),
    ];
    for (name, change) in cases {
        let (mut client, mut server) = open_pair();
        let mut sent = Vec::new();
        for word in ["one", "two", "three"] {
            client.write(word.as_bytes()).unwrap();
            sent.append(&mut records(&mut client));
        }
        change(&mut sent);
        let mut plain = Vec::new();
        let result = server.read(&sent.concat(), &mut plain);
        assert!(matches!(&result, Err(Error::Record(_))), "{name}: {result:?}");
        assert_eq!(plain, b"one", "{name}");
        assert_eq!(server.read(b"", &mut plain), result, "{name}: the error stays");
        assert!(server.write(b"x").is_err(), "{name}");
    }
}

/// Goal: a recorded stream has no effect when it is sent again.
#[test]
fn a_recorded_stream_is_worthless() {
    let key = psk("large", 2, Hash::Sha384);
    let (mut client, mut first) =
        (Session::client(&key).unwrap(), Session::server(&server()).unwrap());
    let mut recorded = client.output().to_vec();
    shake(&mut client, &mut first).unwrap();
    let hello = recorded.len();
    client.write(b"delete everything").unwrap();
    recorded.extend(client.take_output(Vec::new()));
    let mut second = Session::server(&server()).unwrap();
    // The first message can be repeated; the following ones need keys that the second server does
    // not have.
    let mut rest = &recorded[..];
    assert_eq!(second.handshake(&mut &rest[..hello]), Ok(false));
    rest = &rest[hello..];
    assert!(second.handshake(&mut rest).is_err());
    assert!(!second.is_open());
}

/// Goal: an end of the stream without a close message is distinguished from a close by the peer.
#[test]
fn a_cut_stream_is_told_from_a_closed_one() {
    let (mut client, mut server) = open_pair();
    client.write(b"all").unwrap();
    client.close();
    assert_eq!(client.write(b"more"), Err(Error::Ended));
    let mut sent = records(&mut client);
    assert_eq!(sent.len(), 2);
    assert!(sent[1].len() <= crate::CLOSE_BYTES_MAX);
    assert_eq!(read(&mut server, &sent.concat()).unwrap(), b"all");
    assert!(server.has_ended());
    assert_eq!(server.end_of_stream(), Ok(()));
    // The other direction is still open.
    server.write(b"answer").unwrap();
    let answer = server.take_output(Vec::new());
    assert_eq!(read(&mut client, &answer).unwrap(), b"answer");
    assert_eq!(read(&mut server, b"x"), Err(Error::Ended));

    let (mut client, mut server) = open_pair();
    client.write(b"all").unwrap();
    client.close();
    sent = records(&mut client);
    let cut = &sent[1][..sent[1].len() - 1];
    assert_eq!(read(&mut server, &[&sent[0], cut].concat()).unwrap(), b"all");
    assert_eq!(server.end_of_stream(), Err(Error::Truncated));
    assert_eq!(server.end_of_stream(), Err(Error::Truncated));
}

/// Goal: a session can be dropped at each moment, and moved, without accesses of the library to
/// freed memory.
#[test]
fn sessions_move_and_end_anywhere() {
    let (client, server) = open_pair();
    let mut moved = Box::new((client, server));
    moved.0.write(b"x").unwrap();
    let bytes = moved.0.take_output(Vec::new());
    drop(Session::client(&psk("large", 2, Hash::Sha384)).unwrap());
    let (_, server) = &mut *moved;
    assert_eq!(read(server, &bytes).unwrap(), b"x");
    let elsewhere = std::thread::spawn(move || {
        moved.1.write(b"y").unwrap();
        let bytes = moved.1.take_output(Vec::new());
        read(&mut moved.0, &bytes)
    });
    assert_eq!(elsewhere.join().unwrap().unwrap(), b"y");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Goal: the plain text is the same for any pieces in which the bytes come.
    #[test]
    fn any_pieces_give_the_same(text in prop::collection::vec(any::<u8>(), 0..70_000),
                                cuts in prop::collection::vec(1usize..20_000, 1..40)) {
        let (mut client, mut server) = open_pair();
        let mut bytes = Vec::new();
        for (part, spare) in text.chunks(cuts[0]).zip([0, 1].into_iter().cycle()) {
            client.write(part).unwrap();
            if spare == 1 {
                bytes.extend(client.take_output(Vec::new()));
            }
        }
        bytes.extend(client.take_output(Vec::new()));
        let (mut rest, mut plain, mut cuts) = (&bytes[..], Vec::new(), cuts.iter().cycle());
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
            server.read(piece, &mut plain).unwrap();
            rest = behind;
        }
        prop_assert!(plain == text);
    }

    /// Goal: no bytes of a stranger make a server panic or accept it.
    #[test]
    fn strangers_bytes_are_borne(bytes in prop::collection::vec(any::<u8>(), 0..600), at in 0usize..600) {
        let mut lone = Session::server(&server()).unwrap();
        prop_assert_ne!(lone.handshake(&mut &bytes[..]), Ok(true));
        // The same after the true beginning of a message.
        let mut hello = Session::client(&psk("large", 2, Hash::Sha384)).unwrap().take_output(Vec::new());
        hello.truncate(at);
        hello.extend(&bytes);
        let mut lone = Session::server(&server()).unwrap();
        prop_assert_ne!(lone.handshake(&mut &hello[..]), Ok(true));
    }

    /// Goal: no bytes of a stranger give plain text on a connection in use, or make it panic. It
    /// fails for good, and the peer gets an alert.
    #[test]
    fn injected_bytes_give_nothing(bytes in prop::collection::vec(any::<u8>(), 5..400),
                                   is_framed in any::<bool>(), cut in 1usize..400) {
        let (mut client, mut server) = open_pair();
        let body = (bytes.len() - 5) as u16;
        let header = [23, 3, 3, (body >> 8) as u8, body as u8];
        let injected = if is_framed { [&header[..], &bytes[5..]].concat() } else { bytes };
        let mut plain = Vec::new();
        let mut result = Ok(());
        for piece in injected.chunks(cut) {
            result = result.and_then(|()| server.read(piece, &mut plain));
        }
        prop_assert!(plain.is_empty());
        prop_assert!(result.is_err() || !is_framed, "{result:?}");
        if result.is_err() {
            prop_assert!(server.read(&[], &mut plain).is_err() && server.write(b"x").is_err());
            let alert = server.take_output(Vec::new());
            prop_assert!(matches!(read(&mut client, &alert), Err(Error::Alert(_))));
        }
    }
}
