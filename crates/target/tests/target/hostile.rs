//! The state machines under random and mutated input.

use crate::basics::rw;
use crate::client::HostIdentity;
use crate::server::nqn;
use nvme::fabrics::{Connect, ConnectData};
use nvme::opcode::NvmOpcode;
use nvme::tcp::{Encoder, HEADER_BYTES_MAX, IcReq};
use nvme::{CommandId, ControllerId, QueueId, SglDescriptor, Status, TransferTag};
use proptest::prelude::*;
use target::{Event, Limits, QueuePair, QueuePairState};

/// Returns a valid recorded session of a host: `ICReq`, Connect, then writes with data and reads.
fn session() -> Vec<u8> {
    let mut bytes = IcReq::new(0, false, false, 0).bytes().to_vec();
    let encoder = Encoder::INITIAL;
    let mut out = [0; HEADER_BYTES_MAX];
    let identity = HostIdentity::number(1);
    let data = ConnectData::new(identity.host, ControllerId(1), &nqn(), &identity.name);
    let connect = Connect { qid: QueueId(1), sq_entries: 16, cattr: 4, keep_alive_ms: 0 };
    let sgl = SglDescriptor::in_capsule(0, 1024);
    let n = encoder.capsule_cmd(&mut out, &connect.encode().unwrap().with_sgl(sgl), 1024).unwrap();
    bytes.extend_from_slice(&out[..n]);
    bytes.extend_from_slice(data.bytes());
    for turn in 0..4_u16 {
        let write = rw(NvmOpcode::WRITE, 0, 1).with_command_id(CommandId(turn));
        let sgl = SglDescriptor::transport(4096);
        let n = encoder.capsule_cmd(&mut out, &write.with_sgl(sgl), 0).unwrap();
        bytes.extend_from_slice(&out[..n]);
        // After the end of Connect, the first free slot is always the same.
        let (cid, tag) = (CommandId(turn), TransferTag(TAG));
        let n = encoder.h2c_data(&mut out, cid, tag, 0, 4096, true).unwrap();
        bytes.extend_from_slice(&out[..n]);
        bytes.extend_from_slice(&[turn as u8; 4096]);
        let read = rw(NvmOpcode::READ, 0, 1).with_command_id(CommandId(100 + turn));
        let n = encoder.capsule_cmd(&mut out, &read.with_sgl(sgl), 0).unwrap();
        bytes.extend_from_slice(&out[..n]);
    }
    bytes
}

/// The slot of the transfers in the recorded session.
const TAG: u16 = 1;

/// Feeds bytes in pieces, as a driver would. Returns the number of executed commands.
fn feed(input: &[u8], piece: usize) -> (QueuePair, usize) {
    let limits = Limits { data_bytes_in_flight_max: 1 << 20, ..Limits::default() };
    let mut pair = QueuePair::new(&limits);
    let (mut unread, mut done): (Vec<u8>, usize) = (Vec::new(), 0);
    for piece in input.chunks(piece.max(1)) {
        unread.extend_from_slice(piece);
        let used = pair.receive(&unread);
        unread.drain(..used);
        assert!(unread.len() < 16 << 10, "the kept bytes are bounded");
        while let Some(event) = pair.next_event() {
            done += usize::from(step(&mut pair, event));
            if let Some((_, reserved)) = pair.take_output(Vec::new()) {
                pair.release(reserved);
            }
        }
        assert!(pair.commands_outstanding() <= 16);
        if let Some((_, reserved)) = pair.take_output(Vec::new()) {
            pair.release(reserved);
        }
    }
    (pair, done)
}

fn step(pair: &mut QueuePair, event: Event) -> bool {
    let (Event::Command(tag) | Event::Reserved(tag) | Event::Data(tag)) = event;
    let sqe = *pair.command(tag);
    let bytes = sqe.sgl1.decode().map_or(0, nvme::sgl::Sgl::length_bytes).min(1 << 16);
    if pair.state() == QueuePairState::AwaitingConnect {
        if sqe.is_fabrics() {
            pair.set_connected(16, false, false);
        }
        pair.complete(tag, Status::SUCCESS, 0);
    } else if sqe.nvm_opcode() == NvmOpcode::READ && bytes > 0 {
        pair.complete_read(tag, reactor::Chunk::from(reactor::Buffer::zeroed(bytes as usize)), 0);
    } else if matches!(event, Event::Command(_)) && !pair.has_data(tag) && bytes > 0 {
        if pair.reserve(tag, bytes as usize) {
            pair.request_data(tag, bytes);
        }
        return false;
    } else if matches!(event, Event::Reserved(_)) {
        pair.request_data(tag, bytes);
        return false;
    } else {
        pair.complete(tag, Status::SUCCESS, 0);
    }
    true
}

/// The recorded session is valid for any size of pieces.
#[test]
fn the_recorded_session_is_carried_out() {
    // Small pieces, so that no data PDU arrives before its R2T was sent.
    for piece in [1, 7, 24] {
        let (pair, done) = feed(&session(), piece);
        assert_eq!(pair.error(), None, "in pieces of {piece}");
        assert_eq!(done, 9);
    }
}

proptest! {
    /// Random bytes never panic. They end in a terminate request or wait for more.
    #[test]
    fn random_bytes_do_no_harm(input in proptest::collection::vec(any::<u8>(), 0..600), piece in 1..200_usize) {
        feed(&input, piece);
    }

    /// A valid session with some bytes changed never panics, and memory stays bounded.
    #[test]
    fn mutated_sessions_do_no_harm(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        piece in 1..48_usize,
    ) {
        let mut input = session();
        for (at, value) in changes {
            // Mostly headers, because errors are most likely there.
            let at = at.index(input.len());
            input[at] = value;
        }
        feed(&input, piece);
    }

    /// A session with a piece cut out or doubled never panics.
    #[test]
    fn torn_sessions_do_no_harm(from in any::<prop::sample::Index>(), len in 0..300_usize, doubled: bool) {
        let input = session();
        let start = from.index(input.len());
        let end = input.len().min(start + len);
        let mut torn = input[..start].to_vec();
        if doubled {
            torn.extend_from_slice(&input[start..end]);
            torn.extend_from_slice(&input[start..end]);
        }
        torn.extend_from_slice(&input[end..]);
        feed(&torn, 777);
    }
}
