//! Tests of connecting, with the connection manager's answers as the test chooses.

use super::*;
use crate::REASON_CONSUMER;
use crate::fake::{Fake, answers, receives, requested, windows};
use reactor::{Config, Runtime};

const ROOM: Room = Room { head: 16, data: 0 };
const RESOLVED: [(libc::c_int, libc::c_int, &[u8]); 2] =
    [(event::ADDR_RESOLVED, 0, b""), (event::ROUTE_RESOLVED, 0, b"")];

/// Connects with these answers of the connection manager after the resolution.
fn connect(answer: &[(libc::c_int, libc::c_int, &'static [u8])]) -> Result<Vec<u8>, Error> {
    let fake = Fake::new();
    connect_on(&fake, answer)
}

fn connect_on(
    fake: &Fake,
    answer: &[(libc::c_int, libc::c_int, &'static [u8])],
) -> Result<Vec<u8>, Error> {
    Runtime::new(&Config::default()).unwrap().block_on(async {
        answers(answer);
        let connector = Connector::new(&fake.library).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 4420));
        let sizes = |_, _| Sizes { receives: 5, sends: 12 };
        let timeout = Duration::from_secs(5);
        let connected = connector.connect(address, timeout, sizes, ROOM, b"request").await;
        connected.map(|(_, answer)| answer)
    })
}

/// Goal: a connection passes through all steps, sends its private data, has all receives posted
/// when the peer may answer, and returns the peer's private data.
#[test]
fn a_connection_has_its_private_data() {
    let [address, route] = RESOLVED;
    let answer = connect(&[address, route, (event::ESTABLISHED, 0, b"accepted")]).unwrap();
    assert_eq!((answer.as_slice(), requested().as_slice()), (&b"accepted"[..], &b"request"[..]));
    assert_eq!(receives(), 5);
}

/// Goal: each failed step has its name and its error; a refusal has its private data.
#[test]
fn failures_name_their_step() {
    let [address, route] = RESOLVED;
    let refused = connect(&[address, route, (event::REJECTED, REASON_CONSUMER, b"\0\0\x06\0")]);
    match refused.unwrap_err() {
        Error::Refused { reason: REASON_CONSUMER, private_data, .. } => {
            assert_eq!(private_data, [0, 0, 6, 0]);
        }
        other => panic!("{other}"),
    }
    let text = |answers: &[_]| connect(answers).unwrap_err().to_string();
    let said = text(&[(event::ADDR_ERROR, -libc::ENODEV, b"")]);
    assert!(said.contains("finding a device: No such device"), "{said}");
    let said = text(&[address, (event::ROUTE_ERROR, -libc::ETIMEDOUT, b"")]);
    assert!(said.contains("finding a route"), "{said}");
    let said = text(&[address, route, (event::UNREACHABLE, -libc::ETIMEDOUT, b"")]);
    assert!(said.contains("waiting for its answer"), "{said}");
    let said = text(&[address, (event::DEVICE_REMOVAL, 0, b"")]);
    assert!(said.contains("its RDMA device was removed"), "{said}");
}

/// Goal: a device without memory windows is refused before anything is sent.
#[test]
fn a_device_without_windows_is_refused() {
    let fake = Fake::new();
    windows(false);
    let refused = connect_on(&fake, &RESOLVED).unwrap_err();
    assert!(matches!(refused, Error::NoWindows { .. }), "{refused}");
}
