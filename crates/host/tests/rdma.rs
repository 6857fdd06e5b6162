//! Goal: a queue pair over RDMA works with every conforming target, against a model of the adapter
//! and of a target's memory accesses. If the target lies, no command ends twice, none stays without
//! an end, and no caller sees memory that the target may still write.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use host::queue_pair::{
    Capsule, Data, Destination, Outcome, QueuePair, QueuePairConfig, SubmitError, Transfer,
};
use host::{ConnectOptions, Error, ProtocolError, Transport};
use nvme::command::ReadWrite;
use nvme::opcode::NvmOpcode;
use nvme::rdma::KeyedSgl;
use nvme::sgl::Sgl;
use nvme::{CommandId, CompletionQueueEntry, Nqn, Nsid, Status, SubmissionQueueEntry};
use proptest::prelude::*;
use reactor::Buffer;
use std::collections::BTreeMap;

const BLOCK: usize = 512;

fn pair(depth: u16, in_capsule_bytes: u32) -> QueuePair {
    let mut pair = QueuePair::over_rdma(QueuePairConfig {
        depth,
        has_header_digest: false,
        has_data_digest: false,
        timeout_ticks: 4,
    });
    pair.set_in_capsule_data_bytes_max(in_capsule_bytes);
    pair
}

fn sqe(opcode: NvmOpcode, block: u64, blocks: u32) -> SubmissionQueueEntry {
    ReadWrite { start_lba: block, blocks, ..ReadWrite::default() }.encode(opcode, Nsid(1)).unwrap()
}

fn write_of(byte: u8, blocks: usize) -> Data {
    Data::Write(Buffer::copy_from(&vec![byte; blocks * BLOCK]).freeze())
}

fn read_of(blocks: usize) -> Data {
    Data::Read(Destination::whole(Buffer::zeroed(blocks * BLOCK)))
}

fn answer(cid: CommandId, status: Status) -> CompletionQueueEntry {
    CompletionQueueEntry::new(cid, 0, status)
}

/// Memory that the model's adapter has lent, by key.
enum Window {
    Source(reactor::Shared),
    Sink(Buffer, std::ops::Range<usize>),
}

/// An adapter with windows, and a target with a disk behind it.
struct Model {
    disk: Vec<u8>,
    windows: BTreeMap<u32, (usize, Window)>,
    next_key: u32,
}

impl Model {
    /// Lends a capsule's memory, and returns the message.
    fn send(&mut self, pair: &QueuePair, mut capsule: Capsule) -> (SubmissionQueueEntry, Vec<u8>) {
        let index = pair.index_of(capsule.cid);
        let transfer = std::mem::replace(&mut capsule.transfer, Transfer::None);
        let (bytes, window) = match transfer {
            Transfer::None => return (capsule.sqe, Vec::new()),
            Transfer::InCapsule(bytes) => return (capsule.sqe, bytes.to_vec()),
            Transfer::Source(bytes) => (bytes.len(), Window::Source(bytes)),
            Transfer::Sink(buffer, range) => (range.len(), Window::Sink(buffer, range)),
        };
        self.next_key += 0x101;
        self.windows.insert(self.next_key, (index, window));
        (capsule.keyed(0x1000, bytes as u32, self.next_key).unwrap(), Vec::new())
    }

    /// Executes a command as a target does. Returns the key that it has to invalidate.
    fn execute(&mut self, sqe: &SubmissionQueueEntry, data: &[u8]) -> Option<u32> {
        let fields = ReadWrite::decode(sqe);
        let start = fields.start_lba as usize * BLOCK;
        let range = start..start + fields.blocks as usize * BLOCK;
        let Some(keyed) = KeyedSgl::decode(&sqe.sgl1) else {
            let Ok(Sgl::InCapsule { offset_bytes: 0, length_bytes }) = sqe.sgl1.decode() else {
                panic!("{:?}", sqe.sgl1)
            };
            assert_eq!(length_bytes as usize, data.len());
            self.disk[range].copy_from_slice(data);
            return None;
        };
        assert!(keyed.invalidates && keyed.length_bytes as usize == range.len());
        match &mut self.windows.get_mut(&keyed.key).expect("the key is of a window").1 {
            Window::Source(bytes) => self.disk[range].copy_from_slice(bytes),
            Window::Sink(buffer, place) => {
                buffer[place.clone()].copy_from_slice(&self.disk[range]);
            }
        }
        Some(keyed.key)
    }

    /// Ends a window, and returns its memory to the command.
    fn end(&mut self, pair: &mut QueuePair, key: u32) {
        let (index, window) = self.windows.remove(&key).unwrap();
        let buffer = match window {
            Window::Source(_) => None,
            Window::Sink(buffer, _) => Some(buffer),
        };
        pair.returned(index, buffer);
    }
}

/// A command under way.
struct Command {
    cid: CommandId,
    key: Option<u32>,
    /// The disk's bytes for a read, when the target executed it.
    expected: Option<Vec<u8>>,
    is_answered: bool,
}

impl Command {
    /// Submits a write of `byte` or a read, and executes it.
    fn start(
        pair: &mut QueuePair,
        model: &mut Model,
        (is_write, block, blocks): (bool, u64, usize),
        byte: u8,
    ) -> Self {
        let (opcode, data) = if is_write {
            (NvmOpcode::WRITE, write_of(byte, blocks))
        } else {
            (NvmOpcode::READ, read_of(blocks))
        };
        let cid = pair.submit(&sqe(opcode, block, blocks as u32), data, true).unwrap();
        let capsule = pair.take_capsule().unwrap();
        assert!(capsule.cid == cid && !pair.has_capsule());
        let (message, data) = model.send(pair, capsule);
        let key = model.execute(&message, &data);
        let range = block as usize * BLOCK..(block as usize + blocks) * BLOCK;
        if is_write {
            assert!(model.disk[range.clone()].iter().all(|&it| it == byte));
        }
        let expected = (!is_write).then(|| model.disk[range].to_vec());
        Self { cid, key, expected, is_answered: false }
    }
}

proptest! {
    /// Goal: every write is on the target's disk and every read returns what was there, with any
    /// number of commands under way, any order of answers and ends of windows, and data in capsules
    /// and in lent memory.
    #[test]
    fn any_conforming_target_is_understood(
        requests in prop::collection::vec((any::<bool>(), 0_u64..32, 1_usize..8), 1..60),
        depth in 1_u16..9,
        in_capsule in prop::sample::select(vec![0_u32, 512, 2048]),
        order in prop::collection::vec(any::<usize>(), 240),
    ) {
        let mut pair = pair(depth, in_capsule);
        let mut model = Model { disk: vec![0; 64 * BLOCK], windows: BTreeMap::new(), next_key: 1 };
        let mut requests = requests.into_iter().zip(1_u8..);
        let mut next = requests.next();
        let mut under_way = Vec::new();
        let mut order = order.into_iter().cycle();
        while next.is_some() || !under_way.is_empty() {
            let choice = order.next().unwrap();
            let is_free = pair.occupied() < depth && (under_way.is_empty() || choice % 2 == 0);
            if let Some((request, byte)) = next.filter(|_| is_free) {
                under_way.push(Command::start(&mut pair, &mut model, request, byte));
                next = requests.next();
                continue;
            }
            let index = choice / 2 % under_way.len();
            let command: &mut Command = &mut under_way[index];
            if !command.is_answered {
                let response = answer(command.cid, Status::SUCCESS);
                prop_assert_eq!(pair.receive_response(response.bytes()), Ok(command.cid));
                prop_assert_eq!(pair.next_finished(), None, "its memory is lent");
                command.is_answered = true;
                continue;
            }
            let command = under_way.swap_remove(index);
            match command.key {
                Some(key) => model.end(&mut pair, key),
                None => pair.returned(pair.index_of(command.cid), None),
            }
            prop_assert_eq!(pair.next_finished(), Some(command.cid));
            let (outcome, data) = pair.take(command.cid).unwrap();
            prop_assert!(matches!(outcome, Outcome::Completed(_)), "{:?}", outcome);
            prop_assert_eq!(data.into_buffer().map(|buffer| buffer.to_vec()), command.expected);
        }
        prop_assert_eq!(pair.occupied(), 0);
    }

    /// Goal: no message makes the queue pair panic or end a command that was not answered.
    #[test]
    fn random_answers_do_no_harm(
        messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..40),
    ) {
        let mut pair = pair(4, 512);
        let cids: Vec<_> = (0..4)
            .map(|block| pair.submit(&sqe(NvmOpcode::READ, block, 1), read_of(1), true).unwrap())
            .collect();
        let mut capsules: Vec<_> = std::iter::from_fn(|| pair.take_capsule()).collect();
        for message in messages {
            if let Ok(cid) = pair.receive_response(&message) {
                prop_assert!(cids.contains(&cid) && message.len() >= 16);
            }
            prop_assert_eq!(pair.next_finished(), None, "its memory is lent");
        }
        for capsule in capsules.drain(..) {
            let Transfer::Sink(buffer, _) = capsule.transfer else { panic!() };
            let index = pair.index_of(capsule.cid);
            pair.returned(index, Some(buffer));
        }
        pair.close(None);
        for cid in cids {
            prop_assert!(pair.take(cid).is_some_and(|(_, data)| data.is_intact()));
        }
    }
}

/// Goal: an answer is not taken for the end of a command whose memory the target may still write.
#[test]
fn an_answer_waits_for_the_memory() {
    let mut pair = pair(2, 0);
    let cid = pair.submit(&sqe(NvmOpcode::READ, 0, 1), read_of(1), true).unwrap();
    let capsule = pair.take_capsule().unwrap();
    let Transfer::Sink(mut buffer, _) = capsule.transfer else { panic!() };
    let index = pair.index_of(cid);
    pair.receive_response(answer(cid, Status::SUCCESS).bytes()).unwrap();
    assert!(pair.next_finished().is_none() && pair.take(cid).is_none());
    let again = pair.receive_response(answer(cid, Status::SUCCESS).bytes());
    assert_eq!(again, Err(ProtocolError::UnknownCommand(cid)), "answered twice");
    buffer.fill(7);
    pair.returned(index, Some(buffer));
    assert_eq!(pair.next_finished(), Some(cid));
    let (_, data) = pair.take(cid).unwrap();
    assert_eq!(*data.into_buffer().unwrap(), [7; BLOCK]);
    let stale = pair.receive_response(answer(cid, Status::SUCCESS).bytes());
    assert_eq!(stale, Err(ProtocolError::UnknownCommand(cid)));
    assert_eq!(pair.receive_response(&[0; 15]), Err(ProtocolError::ShortResponse(15)));
}

/// Goal: an answer to a command that was not sent yet is a violation. It would free the slot while the
/// capsule waits, and the next command would use it too.
#[test]
fn an_answer_before_its_command_is_refused() {
    let mut pair = pair(2, 0);
    let cid = pair.submit(&sqe(NvmOpcode::READ, 0, 1), read_of(1), true).unwrap();
    let early = pair.receive_response(answer(cid, Status::SUCCESS).bytes());
    assert_eq!(early, Err(ProtocolError::UnknownCommand(cid)));
    let capsule = pair.take_capsule().unwrap();
    let Transfer::Sink(buffer, _) = capsule.transfer else { panic!() };
    pair.receive_response(answer(cid, Status::SUCCESS).bytes()).unwrap();
    pair.returned(pair.index_of(cid), Some(buffer));
    assert_eq!(pair.next_finished(), Some(cid));
    pair.take(cid).unwrap();
}

/// Goal: at the end of a connection each command has its memory again: those that were not sent,
/// those under way, and those that were answered, which succeed.
#[test]
fn the_end_of_a_connection_returns_all_memory() {
    let mut pair = pair(3, 0);
    let submit =
        |pair: &mut QueuePair| pair.submit(&sqe(NvmOpcode::READ, 0, 1), read_of(1), true).unwrap();
    let answered = submit(&mut pair);
    let Transfer::Sink(first, _) = pair.take_capsule().unwrap().transfer else { panic!() };
    let under_way = submit(&mut pair);
    let Transfer::Sink(second, _) = pair.take_capsule().unwrap().transfer else { panic!() };
    let unsent = submit(&mut pair);
    assert!(matches!(
        pair.submit(&sqe(NvmOpcode::READ, 0, 1), read_of(1), true),
        Err((SubmitError::QueueFull, Data::Read(_)))
    ));
    pair.receive_response(answer(answered, Status::SUCCESS).bytes()).unwrap();
    for (cid, buffer) in [(answered, first), (under_way, second)] {
        pair.returned(pair.index_of(cid), Some(buffer));
    }
    pair.close(None);
    assert!(!pair.has_capsule());
    for (cid, is_lost) in [(answered, false), (under_way, true), (unsent, true)] {
        let (outcome, data) = pair.take(cid).unwrap();
        assert_eq!(outcome == Outcome::ConnectionLost, is_lost, "{cid}");
        assert!(data.is_intact(), "{cid}");
    }
}

/// Goal: a failed command ends with the target's status. Commands without data have an empty keyed
/// descriptor; overdue commands are found.
#[test]
fn failures_and_deadlines_are_as_over_tcp() {
    let mut pair = pair(2, 512);
    let flush = SubmissionQueueEntry::keep_alive();
    let cid = pair.submit(&flush, Data::None, true).unwrap();
    let capsule = pair.take_capsule().unwrap();
    let keyed = KeyedSgl::decode(&capsule.sqe.sgl1).unwrap();
    assert_eq!((keyed.length_bytes, keyed.key, keyed.address), (0, 0, 0));
    assert!((0..4).all(|_| !pair.tick()) && pair.tick());
    pair.receive_response(answer(cid, Status::INTERNAL_ERROR).bytes()).unwrap();
    pair.returned(pair.index_of(cid), None);
    let (outcome, _) = pair.take(cid).unwrap();
    let Outcome::Completed(cqe) = outcome else { panic!("{outcome:?}") };
    assert!(cqe.status().is(Status::INTERNAL_ERROR));
}

/// Goal: options that RDMA does not have are refused by name.
#[test]
fn options_of_tcp_are_refused() {
    let address = "10.0.0.7:4420".parse().unwrap();
    let mut options = ConnectOptions::new(address, Nqn::new("nqn.2026-11.test:disk").unwrap());
    options.transport = Transport::Rdma;
    assert!(options.check().is_ok());
    options.data_digest = true;
    let refused = options.check().unwrap_err();
    assert!(matches!(refused, Error::InvalidOption { option: "data_digest", .. }), "{refused}");
}
