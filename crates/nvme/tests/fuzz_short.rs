//! Goal: no bytes, random or valid and then damaged, make a decoder panic or break its guarantees.
//!
//! Runs the functions of `fuzz/nvme` for a fixed number of inputs from a fixed seed. So every build
//! does a small part of coverage-guided fuzzing.

// Helpers of tests are tests too.
#![allow(clippy::unwrap_used, clippy::expect_used)]

// Public in the fuzz crate, where it is a library.
#[allow(unreachable_pub)]
#[path = "../../../fuzz/nvme/src/lib.rs"]
mod fuzz;

use nvme::auth::{Message, Reason};
use nvme::command::{Copy, CopyRange, Fuse, ReadWrite};
use nvme::fabrics::{Connect, ConnectData};
use nvme::opcode::NvmOpcode;
use nvme::tcp::{DataDigest, Encoder, HEADER_BYTES_MAX, IcReq, IcResp};
use nvme::{
    CommandId, CompletionQueueEntry, ControllerId, HostId, Nqn, Nsid, SglDescriptor, Status,
    TransferTag,
};

const INPUTS: u32 = 40_000;
const SEED: u64 = 0x7473_756d_7567_6931;

/// xorshift64*: good enough for mutations, and equal on all machines.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// Damages one to four places: sets a byte, flips a bit, cuts out or doubles a piece.
fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..=rng.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = rng.below(bytes.len());
        let end = at + rng.below((bytes.len() - at).min(64)) + 1;
        match rng.below(8) {
            0..=2 => bytes[at] = rng.next() as u8,
            3..=5 => bytes[at] ^= 1 << rng.below(8),
            6 => drop(bytes.drain(at..end.min(bytes.len()))),
            _ => {
                let piece = bytes[at..end.min(bytes.len())].to_vec();
                bytes.splice(at..at, piece);
            }
        }
    }
}

fn push(
    stream: &mut Vec<u8>,
    data: &[u8],
    encoder: Encoder,
    header: impl FnOnce(&mut [u8]) -> Result<usize, nvme::Error>,
) {
    let mut out = [0; HEADER_BYTES_MAX];
    let used = header(&mut out).unwrap();
    stream.extend_from_slice(&out[..used]);
    stream.extend_from_slice(data);
    if encoder.has_data_digest && !data.is_empty() {
        let mut digest = DataDigest::new();
        digest.update(data);
        stream.extend_from_slice(&digest.to_wire());
    }
}

/// Valid streams, one for each end and each choice of digests, after the two bytes of choices.
fn streams() -> Vec<Vec<u8>> {
    let mut streams = Vec::new();
    for choice in 0..16u8 {
        let encoder = Encoder {
            has_header_digest: choice & 2 != 0,
            has_data_digest: choice & 4 != 0,
            data_alignment_bytes: if choice & 8 == 0 { 4 } else { 8 },
        };
        // Half of the streams have their header digests repaired after mutation.
        let mut stream = vec![choice | ((choice & 2) << 5), 7];
        let cid = CommandId(5);
        if choice & 1 == 0 {
            let nqn = Nqn::discovery();
            let data = ConnectData::new(HostId([7; 16]), ControllerId::DYNAMIC, &nqn, &nqn);
            let connect = Connect { sq_entries: 32, keep_alive_ms: 5000, ..Connect::default() };
            let sqe = connect.encode().unwrap().with_sgl(SglDescriptor::in_capsule(0, 1024));
            push(&mut stream, data.bytes(), encoder, |out| encoder.capsule_cmd(out, &sqe, 1024));
            let io = ReadWrite { start_lba: 9, blocks: 8, ..ReadWrite::default() };
            let sqe = io.encode(NvmOpcode::READ, Nsid(1)).unwrap();
            push(&mut stream, &[], encoder, |out| encoder.capsule_cmd(out, &sqe, 0));
            let fused = io.encode(NvmOpcode::COMPARE, Nsid(1)).unwrap().with_fuse(Fuse::First);
            push(&mut stream, &[], encoder, |out| encoder.capsule_cmd(out, &fused, 0));
            let copy = Copy { destination_lba: 9, ranges: 1, ..Copy::default() };
            let sqe = copy.encode(Nsid(1)).unwrap().with_sgl(SglDescriptor::in_capsule(0, 32));
            let range = CopyRange::new(3, 4).unwrap();
            push(&mut stream, range.bytes(), encoder, |out| encoder.capsule_cmd(out, &sqe, 32));
            push(&mut stream, &[1; 64], encoder, |out| {
                encoder.h2c_data(out, cid, TransferTag(2), 4096, 64, true)
            });
        } else {
            push(&mut stream, &[2; 32], encoder, |out| {
                encoder.c2h_data(out, cid, 0, 32, true, true)
            });
            push(&mut stream, &[], encoder, |out| encoder.r2t(out, cid, TransferTag(3), 0, 8192));
            let cqe = CompletionQueueEntry::new(cid, 1, Status::LBA_OUT_OF_RANGE);
            push(&mut stream, &[], encoder, |out| encoder.capsule_resp(out, &cqe));
        }
        streams.push(stream);
    }
    let mut first = vec![32, 3];
    first.extend_from_slice(IcReq::new(0, true, true, 0).bytes());
    streams.push(first);
    let mut first = vec![33, 3];
    first.extend_from_slice(IcResp::new(0, true, true, 131_072).bytes());
    streams.push(first);
    streams
}

/// Streams that coverage-guided fuzzing found, one for each path that it reached.
fn corpus() -> Vec<Vec<u8>> {
    let directory =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/nvme/corpus/pdu");
    let mut paths: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    // In an order that is equal on all machines, so that the mutations are equal too.
    paths.sort();
    paths.into_iter().map(|path| std::fs::read(path).unwrap()).collect()
}

#[test]
fn no_stream_breaks_the_parser() {
    // Goal: mutated streams of PDUs parse or fail without a panic, whole and in pieces alike.
    let mut rng = Rng(SEED);
    let mut seeds = streams();
    seeds.extend(corpus());
    for seed in &seeds {
        fuzz::pdu(seed);
    }
    for _ in 0..INPUTS {
        let mut input = seeds[rng.below(seeds.len())].clone();
        mutate(&mut rng, &mut input);
        fuzz::pdu(&input);
    }
}

#[test]
fn no_bytes_break_a_structure() {
    // Goal: random bytes of any length decode or fail as every structure, without a panic.
    let mut rng = Rng(SEED);
    for seed in corpus() {
        fuzz::structures(&seed);
    }
    for round in 0..INPUTS / 20 {
        let length = rng.below(if round % 8 == 0 { 8192 } else { 300 });
        let has_high_bytes = rng.below(4) != 0;
        let input: Vec<u8> = (0..length)
            .map(|_| if has_high_bytes { rng.next() as u8 } else { rng.next() as u8 & 7 })
            .collect();
        fuzz::structures(&input);
        fuzz::pdu(&input);
    }
}

#[test]
fn no_message_breaks_authentication() {
    // Goal: mutated authentication messages decode or fail, and decoded messages can be encoded
    // again.
    let (hash, value) = ([3; 48], [4; 256]);
    let messages = [
        Message::Negotiate { concatenation: 0, hashes: &[1, 2, 3], groups: &[0, 1, 2, 3, 4, 5] },
        Message::Challenge { hash: 2, group: 1, sequence: 7, challenge: &hash, dh_value: &value },
        Message::Reply { response: &hash, sequence: 8, challenge: Some(&hash), dh_value: &value },
        Message::Success1 { hash_bytes: 48, response: Some(&hash) },
        Message::Success2,
        Message::Failure1(Reason::FAILED),
        Message::Failure2(Reason::HASH_UNUSABLE),
    ];
    let mut rng = Rng(SEED);
    let seeds = messages.map(|message| {
        let bytes = message.encode(0x1234);
        assert_eq!(Message::decode(&bytes), Ok((0x1234, message)));
        bytes
    });
    for _ in 0..INPUTS / 2 {
        let mut input = seeds[rng.below(seeds.len())].clone();
        mutate(&mut rng, &mut input);
        fuzz::structures(&input);
    }
}
