//! Tests of what is posted when. The test decides what the adapter completes.

use super::*;
use crate::abi::{WC_KERNEL_WITH_INV, WC_RECV, WC_WITH_INV};
use crate::fake::{Fake, receive, receive_invalidating, receives, take_send, windows_freed};
use reactor::{Config, Runtime};
use std::task::Waker;
use std::task::{Context, Poll};

/// Runs a test on an endpoint with space for `receives` commands and `sends` work requests.
fn with_endpoint(receives: u32, sends: u32, test: impl AsyncFnOnce(Endpoint)) {
    Runtime::new(&Config::default()).unwrap().block_on(async {
        let fake = Fake::new();
        let (device, raw) = (fake.device(), fake.identifier());
        let id = Id::alone(&fake.library, raw);
        let address = SocketAddr::from(([127, 0, 0, 1], 4420));
        let (sizes, room) = (Sizes { receives, sends }, Room { head: 64, data: 4096 });
        // SAFETY: the identifier is the id's, of the device, and new.
        let endpoint = unsafe { Endpoint::new(&device, id, raw, sizes, room, (address, address)) };
        let mut endpoint = endpoint.unwrap();
        endpoint.begin().unwrap();
        test(endpoint).await;
    });
}

/// Returns the next completion, which must be there.
fn next(endpoint: &mut Endpoint) -> Result<Completion, &'static str> {
    match endpoint.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(completion) => completion,
        Poll::Pending => panic!("nothing has completed"),
    }
}

/// Goal: a stranger's connection has two receives posted; after `open` all of a queue pair are
/// posted.
#[test]
fn receives_are_for_peers_that_are_known() {
    with_endpoint(8, 32, async |mut endpoint| {
        assert_eq!(receives(), 2);
        receive(WC_RECV, 64);
        assert!(matches!(next(&mut endpoint), Ok(Completion::Received { data: None, .. })));
        endpoint.flush().unwrap();
        assert_eq!(receives(), 2);
        endpoint.open();
        endpoint.flush().unwrap();
        assert_eq!(receives(), 8);
        endpoint.open();
        endpoint.flush().unwrap();
        assert_eq!(receives(), 8, "once");
    });
    with_endpoint(1, 4, async |_| assert_eq!(receives(), 1));
}

/// Goal: a peer that takes no messages can send only as many as there is space for answers. It can
/// continue when it takes one.
#[test]
fn a_peer_that_takes_nothing_is_not_served() {
    with_endpoint(4, 8, async |mut endpoint| {
        endpoint.open();
        endpoint.flush().unwrap();
        let mut served = 0;
        while receives() > 0 {
            receive(WC_RECV, 64);
            assert!(matches!(next(&mut endpoint), Ok(Completion::Received { .. })));
            if endpoint.can_send() {
                endpoint.send(&[0; 16], None, 0);
            }
            endpoint.flush().unwrap();
            served += 1;
            assert!(served < 100, "commands are taken without end");
        }
        assert_eq!(served, 8 + 3, "as many as messages, and what was posted before the last");
        take_send();
        assert!(matches!(next(&mut endpoint), Ok(Completion::Sent { token: 0 })));
        endpoint.flush().unwrap();
        assert_eq!(receives(), 4);
    });
}

/// Goal: the time of the oldest message that was not taken is available until all are taken.
#[test]
fn the_oldest_message_has_its_time() {
    with_endpoint(4, 8, async |mut endpoint| {
        assert_eq!(endpoint.sending_since(), None);
        let mut times = Vec::new();
        for _ in 0..2 {
            times.push(reactor::time::now());
            endpoint.send(&[0; 16], None, 0);
            endpoint.flush().unwrap();
            reactor::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        assert!(endpoint.sending_since() >= Some(times[0]));
        assert!(endpoint.sending_since() < Some(times[1]));
        take_send();
        assert!(next(&mut endpoint).is_ok());
        assert!(endpoint.sending_since() >= Some(times[1]));
        take_send();
        assert!(next(&mut endpoint).is_ok());
        assert_eq!(endpoint.sending_since(), None);
    });
}

/// Goal: a completion that is not a message ends the connection.
#[test]
fn only_messages_are_received() {
    // IBV_WC_RECV_RDMA_WITH_IMM.
    for opcode in [0, WC_RECV + 1] {
        with_endpoint(4, 8, async |mut endpoint| {
            receive(opcode, 64);
            assert!(next(&mut endpoint).is_err());
        });
    }
}

/// Returns the next completion if there is one.
fn maybe_next(endpoint: &mut Endpoint) -> Option<Completion> {
    match endpoint.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(completion) => Some(completion.unwrap()),
        Poll::Pending => None,
    }
}

/// Goal: a window is bound before the message that contains its key, to exactly the lent bytes and
/// with only the needed access. Each binding has another key than the last, and the library learns
/// it after the posting.
#[test]
fn lent_memory_has_a_window_before_its_message() {
    with_endpoint(4, 16, async |mut endpoint| {
        let mut keys = Vec::new();
        for round in 0..3 {
            let mut buffer = Buffer::zeroed(8192);
            buffer[0] = round;
            let start = buffer.as_ptr().addr() as u64;
            let remote = endpoint.lend_sink(2, buffer, 512..4608).unwrap();
            assert_eq!((remote.address, remote.length), (start + 512, 4096));
            endpoint.send(&[0; 64], None, 0);
            endpoint.flush().unwrap();
            let bind = take_send();
            assert_eq!((bind.opcode, bind.num_sge, bind.send_flags), (WR_BIND_MW, 0, 0));
            let window = bind.bind_mw;
            assert_eq!((window.rkey, window.addr, window.length), (remote.key, start + 512, 4096));
            assert_eq!(window.mw_access_flags, 2, "only writes");
            // SAFETY: the window exists.
            assert_eq!(unsafe { (*window.mw).rkey }, remote.key);
            assert_eq!(take_send().opcode, WR_SEND);
            assert!(matches!(next(&mut endpoint), Ok(Completion::Sent { .. })));
            let returned = endpoint.take_back(2, Some(remote.key)).unwrap();
            assert!(matches!(returned, Returned::Now(Some(buffer)) if buffer[0] == round));
            keys.push(remote.key);
        }
        // The fake's windows begin with 1ffh: the low byte wraps, the rest stays.
        assert_eq!(keys, [0x100, 0x101, 0x102]);
    });
}

/// Goal: memory whose key the peer did not invalidate comes back only after this side has
/// invalidated it; the queue's entries are all free afterwards.
#[test]
fn memory_comes_back_after_its_invalidation() {
    with_endpoint(4, 4, async |mut endpoint| {
        for _ in 0..8 {
            let bytes = Buffer::copy_from(&[7; 4096]).freeze();
            let remote = endpoint.lend_source(0, bytes.clone()).unwrap();
            assert_eq!(remote.address, bytes.as_ptr().addr() as u64, "it is not copied");
            endpoint.send(&[0; 64], None, 0);
            endpoint.flush().unwrap();
            assert_eq!(take_send().bind_mw.mw_access_flags, 4, "only reads");
            take_send();
            assert!(matches!(next(&mut endpoint), Ok(Completion::Sent { .. })));
            assert!(matches!(endpoint.take_back(0, None), Ok(Returned::Later)));
            endpoint.flush().unwrap();
            assert!(maybe_next(&mut endpoint).is_none(), "it is still lent");
            let invalidation = take_send();
            let expected = (crate::abi::WR_LOCAL_INV, remote.key);
            assert_eq!((invalidation.opcode, invalidation.invalidate_rkey), expected);
            let completion = next(&mut endpoint);
            assert!(matches!(completion, Ok(Completion::Returned { slot: 0, sink: None })));
        }
        assert_eq!((endpoint.entries_used, endpoint.counts().copies), (0, 0));
    });
}

/// Goal: a peer that invalidates a key of another command, or any key when nothing is lent, is
/// found out. The key in a completion is what the peer has invalidated.
#[test]
fn foreign_keys_are_not_invalidated() {
    with_endpoint(4, 16, async |mut endpoint| {
        endpoint.open();
        endpoint.flush().unwrap();
        assert!(endpoint.take_back(0, Some(1)).is_err());
        assert!(matches!(endpoint.take_back(0, None), Ok(Returned::Now(None))));
        let keys: Vec<u32> = (0..2)
            .map(|slot| endpoint.lend_sink(slot, Buffer::zeroed(64), 0..64).unwrap().key)
            .collect();
        assert!(endpoint.take_back(0, Some(keys[1].wrapping_add(7))).is_err());
        // With verbs.h's flag the key counts in any case, with the kernel's only that of a window.
        for (flags, key, expected) in [
            (WC_WITH_INV, keys[0], Some(keys[0])),
            (WC_WITH_INV, 7, Some(7)),
            (WC_KERNEL_WITH_INV | 1, keys[1], Some(keys[1])),
            (WC_KERNEL_WITH_INV, 7, None),
        ] {
            receive_invalidating(flags, key);
            let completion = next(&mut endpoint);
            let Ok(Completion::Received { invalidated, .. }) = completion else { panic!() };
            assert_eq!(invalidated, expected, "{flags} {key}");
            endpoint.flush().unwrap();
        }
        receive(WC_RECV, 16);
        let Ok(Completion::Received { invalidated, .. }) = next(&mut endpoint) else { panic!() };
        assert_eq!(invalidated, None);
    });
}

/// Goal: at the end of a connection all windows are freed, and buffers that the peer could write
/// come back.
#[test]
fn lent_buffers_come_back_at_the_end() {
    with_endpoint(4, 16, async |mut endpoint| {
        endpoint.lend_sink(3, Buffer::copy_from(b"sink"), 0..4).unwrap();
        endpoint.lend_source(1, Buffer::copy_from(b"source").freeze()).unwrap();
        assert!(endpoint.take_left().is_empty());
        endpoint.close();
        assert_eq!(windows_freed(), 2);
        let left = endpoint.take_left();
        assert!(matches!(left.as_slice(), [(1, None), (3, Some(buffer))] if **buffer == *b"sink"));
        endpoint.close();
        assert_eq!(windows_freed(), 2);
    });
}

/// Goal: data that follows a message is sent from its own memory.
#[test]
fn data_follows_its_message() {
    with_endpoint(4, 16, async |mut endpoint| {
        let bytes = Buffer::copy_from(&[9; 512]).freeze();
        endpoint.send_data(&[0; 64], bytes.slice(256..).into(), 5).unwrap();
        endpoint.flush().unwrap();
        let sent = take_send();
        assert_eq!((sent.opcode, sent.num_sge), (WR_SEND, 2));
        assert_eq!(endpoint.counts().copies, 0);
        assert!(matches!(next(&mut endpoint), Ok(Completion::Sent { token: 5 })));
    });
}
