//! A queue pair over RDMA against a model of the adapter.

use super::Work;
use crate::budget::Budget;
use crate::controller::{check_in_capsule, transfer_bytes};
use crate::limits::Limits;
use crate::queue_pair::{Event, QueuePair, Tag};
use nvme::command::ReadWrite;
use nvme::rdma::KeyedSgl;
use nvme::sgl::SglDescriptor;
use nvme::{CommandId, Status, SubmissionQueueEntry, U16};
use reactor::{Buffer, Chunk};
use std::sync::Arc;

const KEYED: KeyedSgl =
    KeyedSgl { address: 0x7000_0000_1000, length_bytes: 4096, key: 0xabcd, invalidates: true };

fn pair(entries: u16) -> QueuePair {
    let limits = Limits::default();
    let budget = Arc::new(Budget::new(limits.data_bytes_total_max));
    let mut pair = QueuePair::over_rdma(&limits, &budget);
    // Connect itself is the first command.
    pair.set_connected(entries, true, false);
    pair
}

fn capsule(cid: u16, sgl: SglDescriptor) -> SubmissionQueueEntry {
    SubmissionQueueEntry { cid: U16::new(cid), sgl1: sgl, ..SubmissionQueueEntry::default() }
}

fn command(pair: &mut QueuePair) -> Tag {
    match pair.next_event() {
        Some(Event::Command(tag)) => tag,
        other => panic!("{other:?}"),
    }
}

/// Goal: data for the host is first written to its memory; then the response is sent, which
/// invalidates the key.
#[test]
fn read_data_is_written_before_the_response() {
    let mut pair = pair(4);
    let sqe = capsule(7, KEYED.encode().unwrap());
    pair.receive_capsule(sqe.bytes(), None).unwrap();
    let tag = command(&mut pair);
    assert_eq!(transfer_bytes(pair.command(tag)), Ok(4096), "executors see the length");
    assert!(check_in_capsule(pair.command(tag), 0).is_ok());
    assert!(pair.reserve(tag, 4096));
    pair.complete_read(tag, Chunk::from(Buffer::zeroed(4096)), 0);
    assert_eq!(pair.output_bytes(), 4096);
    let Some(Work::Write { remote, chunk }) = pair.take_work() else { panic!("no write") };
    assert_eq!((remote, chunk.len(), pair.output_bytes()), (KEYED, 4096, 0));
    let Some(Work::Respond { cqe, invalidate, reserved_bytes }) = pair.take_work() else {
        panic!("no response")
    };
    assert_eq!((cqe.command_id(), cqe.status()), (CommandId(7), Status::SUCCESS));
    assert_eq!((invalidate, reserved_bytes), (Some(0xabcd), 4096));
    assert_eq!(pair.reserved_bytes(), 4096, "the memory is in use until the response was sent");
    pair.release(reserved_bytes);
    assert!(pair.take_work().is_none() && pair.commands_outstanding() == 0);
}

/// Goal: data from the host is read from its memory when it is requested, not before.
#[test]
fn written_data_is_read_when_asked_for() {
    let mut pair = pair(4);
    let keyed = KeyedSgl { invalidates: false, ..KEYED };
    pair.receive_capsule(capsule(1, keyed.encode().unwrap()).bytes(), None).unwrap();
    let tag = command(&mut pair);
    assert!(pair.take_work().is_none());
    pair.request_data(tag, 4096);
    let Some(Work::Read { tag: read, remote, mut buffer }) = pair.take_work() else {
        panic!("no read")
    };
    assert_eq!((read, remote, pair.awaiting_data()), (tag, keyed, 1));
    buffer.set_len(4096);
    buffer.fill(5);
    pair.put_data(tag, buffer);
    assert_eq!(pair.next_event(), Some(Event::Data(tag)));
    assert_eq!((pair.data(tag), pair.awaiting_data()), (&[5; 4096][..], 0));
    pair.complete(tag, Status::SUCCESS, 0);
    let Some(Work::Respond { invalidate, .. }) = pair.take_work() else { panic!("no response") };
    assert_eq!(invalidate, None, "the host did not ask for it");
}

/// Goal: data in the capsule is not copied if it begins at the start, and is cut to the
/// descriptor's range otherwise.
#[test]
fn data_in_capsules_stays_where_it_came() {
    let mut pair = pair(4);
    let data = Buffer::copy_from(&[3; 512]);
    let place = data.memory().0;
    let sqe = capsule(1, SglDescriptor::in_capsule(0, 512));
    pair.receive_capsule(sqe.bytes(), Some(data)).unwrap();
    let tag = command(&mut pair);
    assert!(check_in_capsule(pair.command(tag), pair.data(tag).len()).is_ok());
    assert_eq!(pair.take_data(tag).unwrap().memory().0, place);
    let sqe = capsule(2, SglDescriptor::in_capsule(512, 512));
    pair.receive_capsule(sqe.bytes(), Some(Buffer::zeroed(1024))).unwrap();
    let tag = command(&mut pair);
    assert_eq!(pair.data(tag).len(), 512);
    assert!(check_in_capsule(pair.command(tag), 512).is_ok());
    let sqe = capsule(3, SglDescriptor::in_capsule(2048, 512));
    pair.receive_capsule(sqe.bytes(), Some(Buffer::zeroed(1024))).unwrap();
    let tag = command(&mut pair);
    let refused = check_in_capsule(pair.command(tag), pair.data(tag).len()).unwrap_err();
    assert!(refused.is(Status::SGL_OFFSET_INVALID));
}

/// Goal: descriptors that name no memory over RDMA are refused, and more commands than the queue
/// has entries end the connection.
#[test]
fn other_descriptors_and_too_many_commands_are_refused() {
    let mut pair = pair(2);
    pair.receive_capsule(capsule(1, SglDescriptor::transport(512)).bytes(), None).unwrap();
    let tag = command(&mut pair);
    let refused = transfer_bytes(pair.command(tag)).unwrap_err();
    assert!(refused.is(Status::SGL_TYPE_INVALID), "{refused:?}");
    let keyed = capsule(2, KEYED.encode().unwrap());
    pair.receive_capsule(keyed.bytes(), Some(Buffer::zeroed(16))).unwrap();
    let tag = command(&mut pair);
    let refused = check_in_capsule(pair.command(tag), pair.data(tag).len()).unwrap_err();
    assert!(refused.is(Status::SGL_DATA_LENGTH_INVALID), "{refused:?}");
    assert!(pair.receive_capsule(keyed.bytes(), None).is_err(), "the queue has two entries");
    assert!(pair.receive_capsule(&keyed.bytes()[..63], None).is_err(), "it is too short");
}

/// Executes the work of a pair as an adapter would. Returns the number of sent responses.
fn carry_out(pair: &mut QueuePair) -> usize {
    let mut responses = 0;
    while let Some(work) = pair.take_work() {
        match work {
            Work::Read { tag, remote, mut buffer } => {
                assert!(buffer.capacity() >= remote.length_bytes as usize, "no room for the data");
                buffer.set_len(remote.length_bytes as usize);
                pair.put_data(tag, buffer);
            }
            Work::Write { remote, chunk } => {
                assert!(chunk.len() <= remote.length_bytes as usize, "the host's memory ends");
            }
            Work::Respond { reserved_bytes, .. } => {
                responses += 1;
                pair.release(reserved_bytes);
            }
        }
    }
    responses
}

/// Goal: each capsule gets one response, no write is longer than the host's memory, and no memory
/// is lost, for any content of the capsules.
#[test]
fn hostile_capsules_get_one_response_each() {
    let mut state = 42_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize
    };
    for _ in 0..300 {
        let mut pair = pair(8);
        let (mut taken, mut answered) = (0, 0);
        for _ in 0..200 {
            let mut head = [0_u8; 64];
            for byte in &mut head {
                *byte = random() as u8;
            }
            // Includes plausible values, otherwise most capsules would fail early.
            head[39] = [0x40, 0x4f, 0x01, 0x5a, 0x00, head[39]][random() % 6];
            if random() % 4 != 0 {
                head[33..36].fill(0);
            }
            let data = (random() % 3 == 0).then(|| Buffer::zeroed(random() % 8193));
            let length = if random() % 50 == 0 { random() % 64 } else { 64 };
            match pair.receive_capsule(&head[..length], data) {
                Ok(()) => taken += 1,
                Err(_) if length < 64 => {}
                Err(reason) => {
                    assert_eq!(pair.commands_outstanding(), 8, "{reason}");
                }
            }
            while let Some(event) = pair.next_event() {
                let (Event::Command(tag) | Event::Reserved(tag) | Event::Data(tag)) = event;
                let sqe = *pair.command(tag);
                let here = pair.data(tag).len();
                let _ = ReadWrite::decode(&sqe);
                let bytes = check_in_capsule(&sqe, here).and_then(|()| transfer_bytes(&sqe));
                match (event, bytes) {
                    (Event::Data(_), _) => pair.complete(tag, Status::SUCCESS, 0),
                    (_, Err(status)) => pair.complete(tag, status, 0),
                    (_, Ok(bytes)) if bytes > 1 << 20 => {
                        pair.complete(tag, Status::INVALID_FIELD, 0);
                    }
                    (_, Ok(bytes)) if here == 0 && bytes > 0 && random() % 2 == 0 => {
                        if pair.reserve(tag, bytes as usize) {
                            pair.request_data(tag, bytes);
                        }
                    }
                    // Data of any length: the test must not depend on the executor's checks.
                    (_, Ok(_)) if random() % 2 == 0 => {
                        let bytes = 1 + random() % 4096;
                        pair.complete_read(tag, Chunk::from(Buffer::zeroed(bytes)), 0);
                    }
                    (_, Ok(_)) => pair.complete(tag, Status::SUCCESS, 0),
                }
                answered += carry_out(&mut pair);
            }
            answered += carry_out(&mut pair);
        }
        assert_eq!((taken, pair.commands_outstanding()), (answered, 0));
        assert_eq!(pair.reserved_bytes(), 0);
    }
}
