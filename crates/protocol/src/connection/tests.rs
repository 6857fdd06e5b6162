use super::*;
use crate::client::{Call, ReadCall, Request};
use crate::ids::InodeId;
use proptest::prelude::*;

fn pair(connecting: u8, accepting: u8, limits: Limits) -> (Peer, Peer) {
    let connector = Peer::connect(Secret([connecting; 32]), Role::Client, [1; 32], limits);
    (connector, Peer::accept(Secret([accepting; 32]), [2; 32], limits))
}

/// Moves all bytes from `from` to `to`, in pieces, and returns the tags of the received calls.
fn pump(from: &mut Peer, to: &mut Peer, piece: usize) -> Result<Vec<u64>, ConnectionError> {
    let bytes = from.take_output(Vec::new());
    let mut tags = Vec::new();
    for part in bytes.chunks(piece.max(1)) {
        to.receive(part);
        while let Some(event) = to.event()? {
            if let Event::Call { tag, .. } | Event::Answer { tag, .. } = event {
                tags.push(tag);
            }
        }
    }
    Ok(tags)
}

fn shake(connector: &mut Peer, acceptor: &mut Peer, piece: usize) -> Result<(), ConnectionError> {
    pump(connector, acceptor, piece)?;
    pump(acceptor, connector, piece)?;
    pump(connector, acceptor, piece).map(|_| ())
}

fn request() -> Request {
    Request { slot: None, call: Call::Read(ReadCall::GetAttr(InodeId(1))) }
}

proptest! {
    /// Goal: for any cuts of the bytes, the handshake ends and each call meets its answer.
    #[test]
    fn calls_meet_answers(piece in 1usize..300, count in 1u64..40) {
        let (mut a, mut b) = pair(7, 7, Limits::default());
        shake(&mut a, &mut b, piece).unwrap();
        let tags: Vec<u64> = (0..count).map(|_| a.call(&request()).unwrap()).collect();
        let came = pump(&mut a, &mut b, piece).unwrap();
        prop_assert_eq!(&came, &tags);
        for tag in came.iter().rev() {
            b.answer(*tag, &1u8).unwrap();
        }
        let mut answered = pump(&mut b, &mut a, piece).unwrap();
        answered.reverse();
        prop_assert_eq!(answered, tags);
        prop_assert_eq!((a.calls_out(), b.calls_in()), (0, 0));
    }

    /// Goal: bytes of a stranger never panic and never get past the handshake.
    #[test]
    fn strangers_stay_outside(bytes: Vec<u8>, flip in 0usize..80, with in 1u8..) {
        let (mut a, mut b) = pair(7, 7, Limits::default());
        b.receive(&bytes);
        while let Ok(Some(_)) = b.event() {}
        prop_assert!(!b.is_ready());
        let (_, mut b) = pair(7, 7, Limits::default());
        let mut hello = a.take_output(Vec::new());
        let at = flip % hello.len();
        hello[at] ^= with;
        b.receive(&hello);
        prop_assert!(!matches!(b.event(), Ok(Some(_))));
        prop_assert!(b.output().is_empty());
    }
}

/// Goal: inside TLS one message each way opens a connection, and no call works before.
#[test]
fn inside_tls_two_messages_open() {
    for piece in [1, 99] {
        let limits = Limits::default();
        let (mut a, mut b) = (Peer::open(Role::Agent, limits), Peer::welcome(limits));
        assert_eq!(a.call(&request()), Err(ConnectionError::NotReady));
        pump(&mut a, &mut b, piece).unwrap();
        assert!(b.is_ready() && !a.is_ready());
        pump(&mut b, &mut a, piece).unwrap();
        let tag = a.call(&request()).unwrap();
        assert_eq!(pump(&mut a, &mut b, piece), Ok(vec![tag]));
    }
    let mut b = Peer::welcome(Limits::default());
    let mut other = Vec::new();
    let opening = Opening { version: crate::VERSION + 1, role: Role::Client };
    frame::encode(Kind::Handshake, 0, &opening, &mut other).unwrap();
    b.receive(&other);
    assert_eq!(b.event(), Err(FrameError::Version(crate::VERSION + 1).into()));
    // Neither handshake is mistaken for the other.
    let mut b = Peer::welcome(Limits::default());
    let mut plain = Peer::connect(Secret([7; 32]), Role::Client, [1; 32], Limits::default());
    b.receive(&plain.take_output(Vec::new()));
    assert!(b.event().is_err() && !b.is_ready());
}

/// Goal: each side detects the other's wrong secret.
#[test]
fn wrong_secrets_are_refused() {
    let (mut a, mut b) = pair(7, 8, Limits::default());
    assert_eq!(shake(&mut a, &mut b, 99), Err(ConnectionError::Secret));
    let (mut a, mut b) = pair(7, 7, Limits::default());
    pump(&mut a, &mut b, 99).unwrap();
    let mut forged = Vec::new();
    frame::encode(Kind::Handshake, 0, &Proof([9; 32]), &mut forged).unwrap();
    b.receive(&forged);
    assert_eq!(b.event(), Err(ConnectionError::Secret));
}

/// Goal: the memory that a peer can make this end use is bounded.
#[test]
fn all_queues_are_bounded() {
    let limits = Limits { calls_in_max: 2, calls_out_max: 3, output_max_bytes: 1000 };
    let (mut a, mut b) = pair(7, 7, limits);
    shake(&mut a, &mut b, 99).unwrap();
    for _ in 0..3 {
        a.call(&request()).unwrap();
    }
    assert_eq!(a.call(&request()), Err(ConnectionError::TooManyCallsOut(3)));
    assert_eq!(pump(&mut a, &mut b, 99), Err(ConnectionError::TooManyCallsIn(2)));
    b.answer(1, &vec![0u8; 2000]).unwrap();
    assert!(matches!(b.answer(2, &1u8), Err(ConnectionError::Output(_))));
    let (mut a, mut b) = pair(7, 7, limits);
    shake(&mut a, &mut b, 99).unwrap();
    let mut unasked = Vec::new();
    frame::encode(Kind::Answer, 9, &1u8, &mut unasked).unwrap();
    b.receive(&unasked);
    assert!(b.event().is_err());
}

/// Goal: an answer to a call that was given up is dropped, not taken for an attack.
#[test]
fn late_answers_are_dropped() {
    let (mut a, mut b) = pair(7, 7, Limits::default());
    shake(&mut a, &mut b, 99).unwrap();
    let tag = a.call(&request()).unwrap();
    pump(&mut a, &mut b, 99).unwrap();
    a.forget(tag);
    b.answer(tag, &1u8).unwrap();
    assert_eq!(pump(&mut b, &mut a, 99), Ok(vec![]));
}

/// Goal: before its handshake a peer can make this end store a few hundred bytes at most.
#[test]
fn strangers_cannot_send_long_frames() {
    let (_, mut b) = pair(7, 7, Limits::default());
    let mut long = Vec::new();
    frame::encode(Kind::Handshake, 0, &vec![0u8; 4000], &mut long).unwrap();
    b.receive(&long[..=HANDSHAKE_MAX_BYTES]);
    assert!(matches!(b.event(), Err(ConnectionError::Unexpected(_))));
}
