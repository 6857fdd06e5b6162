//! Goal: the queue pair works with all choices of a conforming target and any split of the byte
//! stream. If the target lies, it never panics, never leaves a command without an end and never
//! writes out of bounds.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod model;

use host::queue_pair::{Data, Destination, Outcome, QueuePair, QueuePairConfig, QueuePairState};
use model::{BLOCK_SHIFT, Knobs, Model, Shared};
use nvme::command::ReadWrite;
use nvme::opcode::NvmOpcode;
use nvme::tcp::{Encoder, IcResp};
use nvme::{CommandId, CompletionQueueEntry, Nsid, Status, SubmissionQueueEntry, TransferTag};
use proptest::prelude::*;
use reactor::{Buffer, Chunk};
use std::rc::Rc;

const BLOCKS: u64 = 512;

#[derive(Clone, Debug)]
struct Io {
    is_write: bool,
    start: u64,
    blocks: u64,
}

impl Io {
    fn sqe(&self) -> SubmissionQueueEntry {
        let fields =
            ReadWrite { start_lba: self.start, blocks: self.blocks as u32, ..ReadWrite::default() };
        let opcode = if self.is_write { NvmOpcode::WRITE } else { NvmOpcode::READ };
        fields.encode(opcode, Nsid(1)).unwrap()
    }

    fn len(&self) -> usize {
        (self.blocks << BLOCK_SHIFT) as usize
    }
}

fn io() -> impl Strategy<Value = Io> {
    (any::<bool>(), 0..BLOCKS, 1..200_u64).prop_map(|(is_write, start, blocks)| {
        let blocks = blocks.min(BLOCKS - start);
        Io { is_write, start, blocks }
    })
}

fn knobs() -> impl Strategy<Value = Knobs> {
    (
        any::<(bool, bool, bool)>(),
        prop::sample::select(vec![0_u32, 512, 4096, 8192]),
        prop::sample::select(vec![4096_u32, 8192, 131_072]),
        prop::sample::select(vec![512_u32, 4096, 131_072]),
        prop::sample::select(vec![508_u32, 4096, 65_536]),
        prop::sample::select(vec![0_u8, 1, 31]),
        0..6_usize,
    )
        .prop_map(|((header, data, success), capsule, h2c, r2t, c2h, cpda, hold)| Knobs {
            has_header_digest: header,
            has_data_digest: data,
            in_capsule_bytes: capsule,
            maxh2cdata_bytes: h2c,
            r2t_bytes: r2t,
            c2h_bytes: c2h,
            uses_success: success,
            cpda,
            hold,
            ..Knobs::default()
        })
}

fn pair(depth: u16) -> QueuePair {
    QueuePair::new(QueuePairConfig {
        depth,
        has_header_digest: true,
        has_data_digest: true,
        timeout_ticks: 4,
    })
}

fn drain(pair: &mut QueuePair) -> Vec<u8> {
    let mut bytes = Vec::new();
    while pair.has_output() {
        let mut chunks: Vec<Chunk> = Vec::new();
        pair.transmit(&mut chunks);
        for chunk in &chunks {
            bytes.extend_from_slice(&chunk.to_bytes());
        }
    }
    bytes
}

/// Passes bytes to the queue pair in pieces, some of them directly into the destination.
fn deliver(pair: &mut QueuePair, mut bytes: &[u8], cuts: &mut impl Iterator<Item = usize>) {
    while !bytes.is_empty() {
        let n = cuts.next().unwrap_or(usize::MAX).clamp(1, bytes.len());
        let (piece, rest) = bytes.split_at(n);
        bytes = rest;
        if let Some(mut direct) = pair.take_direct() {
            let here = direct.range.len().min(piece.len());
            let place = direct.range.start..direct.range.start + here;
            direct.buffer[place].copy_from_slice(&piece[..here]);
            pair.direct_received(direct.buffer, here).unwrap();
            pair.receive(&piece[here..]).unwrap();
        } else {
            pair.receive(piece).unwrap();
        }
    }
}

/// Runs requests, a few at a time, and checks every byte against a plain array.
fn run(knobs: &Knobs, requests: &[Io], depth: u16, cuts: &[usize]) {
    let shared = Shared::new(knobs.clone(), (BLOCKS << BLOCK_SHIFT) as usize);
    let mut model = Model::new(&shared);
    model.set_io();
    let mut pair = pair(depth);
    pair.set_in_capsule_data_bytes_max(knobs.in_capsule_bytes);
    let mut cuts = cuts.iter().copied().cycle();
    model.feed(&drain(&mut pair));
    let first = model.output();
    deliver(&mut pair, &first, &mut cuts);
    assert_eq!(pair.state(), QueuePairState::Ready);
    let mut expected = vec![0_u8; (BLOCKS << BLOCK_SHIFT) as usize];
    for (round, batch) in requests.chunks(usize::from(depth)).enumerate() {
        // Requests of one batch run at once. Those that overlap a write wait for the next round.
        let mut running: Vec<(CommandId, Io, Vec<u8>)> = Vec::new();
        for io in batch {
            let overlaps = running.iter().any(|(_, other, _)| {
                (io.is_write || other.is_write)
                    && io.start < other.start + other.blocks
                    && other.start < io.start + io.blocks
            });
            if overlaps {
                continue;
            }
            let place = (io.start << BLOCK_SHIFT) as usize..;
            let (data, bytes) = if io.is_write {
                let bytes: Vec<u8> = (0..io.len()).map(|i| (i / 3 + round * 31) as u8).collect();
                expected[place][..io.len()].copy_from_slice(&bytes);
                (Data::Write(Buffer::copy_from(&bytes).freeze()), bytes)
            } else {
                let destination = Destination::whole(Buffer::zeroed(io.len()));
                (Data::Read(destination), expected[place][..io.len()].to_vec())
            };
            let cid = pair.submit(&io.sqe(), data, true).unwrap();
            running.push((cid, io.clone(), bytes));
        }
        let mut idle = 0;
        while running.iter().len() > 0 {
            model.feed(&drain(&mut pair));
            let mut output = model.output();
            if output.is_empty() {
                model.release();
                output = model.output();
                idle += 1;
                assert!(idle < 100, "no progress: {running:?}");
            }
            deliver(&mut pair, &output, &mut cuts);
            while let Some(cid) = pair.next_finished() {
                let at = running.iter().position(|(other, _, _)| *other == cid).unwrap();
                let (_, io, bytes) = running.swap_remove(at);
                let (outcome, data) = pair.take(cid).unwrap();
                let Outcome::Completed(cqe) = outcome else { panic!("{outcome:?}") };
                assert!(cqe.status().is_success());
                if !io.is_write {
                    assert!(data.into_buffer().unwrap()[..] == bytes[..], "{io:?}");
                }
            }
        }
    }
    assert!(*shared.memory.borrow() == expected);
    assert_eq!(pair.occupied(), 0);
}

fn initialized(depth: u16) -> QueuePair {
    let mut pair = pair(depth);
    drain(&mut pair);
    pair.receive(IcResp::new(0, false, false, 4096).bytes()).unwrap();
    pair
}

fn read_of(len: usize) -> Data {
    Data::Read(Destination::whole(Buffer::zeroed(len)))
}

fn plain_read() -> SubmissionQueueEntry {
    SubmissionQueueEntry::nvm(NvmOpcode::READ, Nsid(1))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Goal: all data is right with any conforming target and any split of the stream.
    #[test]
    fn any_conforming_target_is_understood(
        knobs in knobs(),
        requests in prop::collection::vec(io(), 1..24),
        depth in 1..9_u16,
        cuts in prop::collection::vec(
            prop_oneof![1..40_usize, 40..5000_usize, Just(100_000_usize)], 1..20),
    ) {
        run(&knobs, &requests, depth, &cuts);
    }

    /// Goal: random bytes are refused or the queue pair waits for more, and after closing no
    /// command is left.
    #[test]
    fn random_bytes_do_no_harm(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        is_initialized in any::<bool>(),
    ) {
        let mut pair = if is_initialized { initialized(4) } else { pair(4) };
        let _ = pair.submit(&plain_read(), read_of(4096), true);
        let _ = pair.receive(&bytes);
        pair.close(None);
        while let Some(cid) = pair.next_finished() {
            pair.take(cid).unwrap();
        }
        prop_assert_eq!(pair.occupied(), 0);
    }

    /// Goal: valid PDUs with arbitrary fields never write out of bounds, finish a command twice or
    /// make the queue pair send more than the command has.
    #[test]
    fn lying_targets_do_no_harm(
        pdus in prop::collection::vec((0..4_u8, 0..12_u16, 0..6000_u32, 1..6000_u32, any::<bool>()), 1..40),
    ) {
        let mut pair = initialized(3);
        let mut cids = Vec::new();
        cids.push(pair.submit(&plain_read(), read_of(4096), true).unwrap());
        let write = Data::Write(Buffer::zeroed(16_384).freeze());
        let sqe = SubmissionQueueEntry::nvm(NvmOpcode::WRITE, Nsid(1));
        cids.push(pair.submit(&sqe, write, true).unwrap());
        let mut sent = 0;
        for (kind, cid, offset, len, flag) in pdus {
            let cid = cids.get(usize::from(cid)).copied().unwrap_or(CommandId(cid));
            let mut out = [0; 256];
            let encoder = Encoder::INITIAL;
            let bytes = match kind {
                0 => {
                    let n = encoder.c2h_data(&mut out, cid, offset, len, flag, flag).unwrap();
                    [&out[..n], &vec![1; len as usize]].concat()
                }
                1 => {
                    let n = encoder.r2t(&mut out, cid, TransferTag(7), offset, len).unwrap();
                    out[..n].to_vec()
                }
                _ => {
                    let status = if flag { Status::SUCCESS } else { Status::INTERNAL_ERROR };
                    let cqe = CompletionQueueEntry::new(cid, 0, status);
                    let n = encoder.capsule_resp(&mut out, &cqe).unwrap();
                    out[..n].to_vec()
                }
            };
            let result = pair.receive(&bytes);
            sent += drain(&mut pair).len();
            if let Err(fault) = result {
                pair.close(Some(&fault));
                break;
            }
        }
        prop_assert!(sent < 16_384 + 64 * 1024, "sent {sent}");
        pair.close(None);
        let mut finished = 0;
        while let Some(cid) = pair.next_finished() {
            pair.take(cid).unwrap();
            finished += 1;
        }
        prop_assert_eq!(finished, 2);
        prop_assert_eq!(pair.occupied(), 0);
    }
}

/// Goal: a target that requests a write's data in crumbs, and reads none of it, costs little memory.
#[test]
fn requests_for_crumbs_are_refused() {
    let mut pair = initialized(1);
    let write = Data::Write(Buffer::zeroed(1 << 20).freeze());
    let sqe = SubmissionQueueEntry::nvm(NvmOpcode::WRITE, Nsid(1));
    let cid = pair.submit(&sqe, write, true).unwrap();
    let refused = (0..1 << 18).find(|crumb| {
        let mut out = [0; 64];
        let n = Encoder::INITIAL.r2t(&mut out, cid, TransferTag(7), crumb * 4, 4).unwrap();
        pair.receive(&out[..n]).is_err()
    });
    assert_eq!(refused, Some(1 + (1 << 20) / 512));
}

/// Goal: an answer to a command that is over is not taken for an answer to its successor.
#[test]
fn stale_answers_are_distinguished() {
    let mut pair = initialized(1);
    let answer = |cid| {
        let mut out = [0; 64];
        let cqe = CompletionQueueEntry::new(cid, 0, Status::SUCCESS);
        let n = Encoder::INITIAL.capsule_resp(&mut out, &cqe).unwrap();
        out[..n].to_vec()
    };
    let flush = SubmissionQueueEntry::flush(Nsid(1));
    let first = pair.submit(&flush, Data::None, true).unwrap();
    pair.receive(&answer(first)).unwrap();
    assert_eq!(pair.next_finished(), Some(first));
    pair.take(first).unwrap();
    let second = pair.submit(&flush, Data::None, true).unwrap();
    assert_ne!(first, second);
    assert!(pair.receive(&answer(first)).is_err());
}

/// Goal: identifiers stay unique and below `FFFFh` over many generations, for any depth.
#[test]
fn identifiers_are_unique() {
    for depth in [1, 2, 3, 127, 128, 4095] {
        let mut pair = initialized(depth);
        let flush = SubmissionQueueEntry::flush(Nsid(1));
        for _ in 0..20 {
            let mut seen = std::collections::BTreeSet::new();
            while let Ok(cid) = pair.submit(&flush, Data::None, true) {
                assert!(seen.insert(cid) && cid.get() != u16::MAX);
            }
            assert_eq!(seen.len(), usize::from(depth));
            for cid in seen {
                let mut out = [0; 64];
                let cqe = CompletionQueueEntry::new(cid, 0, Status::SUCCESS);
                let n = Encoder::INITIAL.capsule_resp(&mut out, &cqe).unwrap();
                pair.receive(&out[..n]).unwrap();
                pair.take(cid).unwrap();
            }
            while pair.next_finished().is_some() {}
        }
    }
}

/// Goal: success with too little data is an error, never a buffer with old bytes.
#[test]
fn missing_data_is_noticed() {
    let mut pair = initialized(2);
    let cid = pair.submit(&plain_read(), read_of(4096), true).unwrap();
    let mut out = [0; 64];
    let n = Encoder::INITIAL.c2h_data(&mut out, cid, 0, 512, true, true).unwrap();
    pair.receive(&[&out[..n], &[1; 512]].concat()).unwrap();
    let (outcome, _) = pair.take(cid).unwrap();
    assert_eq!(outcome, Outcome::DataUnderrun { received_bytes: 512, expected_bytes: 4096 });
}

/// Goal: damaged data fails only its own command.
#[test]
fn damaged_data_fails_its_command() {
    let mut pair = pair(2);
    drain(&mut pair);
    pair.receive(IcResp::new(0, false, true, 4096).bytes()).unwrap();
    let cid = pair.submit(&plain_read(), read_of(512), true).unwrap();
    let encoder = Encoder { has_data_digest: true, ..Encoder::INITIAL };
    let mut out = [0; 64];
    let n = encoder.c2h_data(&mut out, cid, 0, 512, true, true).unwrap();
    pair.receive(&[&out[..n], &[1; 512], &[9; 4]].concat()).unwrap();
    assert_eq!(pair.take(cid).unwrap().0, Outcome::DataDigestMismatch);
    assert_eq!(pair.state(), QueuePairState::Ready);
}

/// Goal: time runs only for commands with a deadline.
#[test]
fn ticks_find_overdue_commands() {
    let mut pair = initialized(2);
    let flush = SubmissionQueueEntry::flush(Nsid(1));
    pair.submit(&flush, Data::None, false).unwrap();
    assert!((0..100).all(|_| !pair.tick()));
    pair.submit(&flush, Data::None, true).unwrap();
    assert!((0..4).all(|_| !pair.tick()));
    assert!(pair.tick());
}

/// Goal: the answer to a forgotten command frees its slot and nothing else.
#[test]
fn forgotten_commands_free_their_slots() {
    let mut pair = initialized(1);
    let cid = pair.submit(&plain_read(), read_of(512), true).unwrap();
    pair.forget(cid);
    assert_eq!(pair.occupied(), 1);
    let mut out = [0; 64];
    let n = Encoder::INITIAL.c2h_data(&mut out, cid, 0, 512, true, true).unwrap();
    pair.receive(&[&out[..n], &[1; 512]].concat()).unwrap();
    assert_eq!((pair.occupied(), pair.next_finished()), (0, None));
    let _ = Rc::new(pair);
}
