//! Tests of what is posted when. The test decides what the adapter completes.

use super::*;
use crate::fake::{Fake, receive, receives, take_send};
use reactor::{Config, Runtime};
use std::task::Waker;

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
