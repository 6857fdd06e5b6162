//! Tests of an accepting end with a peer over a local TCP connection.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use super::*;
use crate::key::Hash;
use crate::stream::secure::RECEIVE_BYTES_FIRST;
use reactor::{Config, Runtime, Segment, SocketOptions, TcpListener};
use std::future::poll_fn;
use zeroize::Zeroizing;

fn psk() -> Psk {
    Psk::new(b"key", Zeroizing::new(vec![7; 48]), Hash::Sha384).unwrap()
}

/// Returns both ends of a connection; the accepting one is a stream.
async fn pair() -> (TcpStream, Stream) {
    let options = SocketOptions::default();
    let listener = TcpListener::bind(([127, 0, 0, 1], 0).into(), &options).unwrap();
    let peer = TcpStream::connect(listener.local_addr(), &options).await.unwrap();
    let server = Server::new(|_: &[u8]| Some(psk())).unwrap();
    (peer, Stream::server(listener.accept().await.unwrap().0, &server).unwrap())
}

async fn send(peer: &TcpStream, bytes: &[u8]) {
    peer.send_vectored(vec![Chunk::copy_from(bytes)]).await.0.unwrap();
}

/// Receives once. Returns the number of bytes.
async fn receive(stream: &mut Stream) -> io::Result<usize> {
    let segment = Segment::Buffer(Buffer::zeroed(4096), 0..4096);
    let mut op = stream.receive(Segments::from_iter([segment]));
    poll_fn(|cx| stream.poll_receive(&mut op, cx)).await.0
}

/// Returns a handshake message in records of one byte each.
fn one_byte_records(message: &[u8]) -> Vec<u8> {
    message.iter().flat_map(|&byte| [22, 3, 1, 0, 1, byte]).collect()
}

/// Returns the stream's space for received bytes.
fn room(stream: &Stream) -> usize {
    let Stream::Secure(secure) = stream else { unreachable!("it is under TLS") };
    secure.incoming.as_ref().unwrap().capacity()
}

/// Returns a stream with its peer after the handshake. The first message came in the smallest
/// records.
async fn open_pair() -> (TcpStream, Session, Stream) {
    let (peer, mut stream) = pair().await;
    let mut client = Session::client(&psk()).unwrap();
    let hello = client.take_output(Vec::new());
    send(&peer, &one_byte_records(&hello[5..])).await;
    let shaking = reactor::spawn(async move {
        let mut is_open = false;
        while !is_open {
            let (result, buffer) = peer.recv(Buffer::with_capacity(4096), 0..4096).await;
            is_open = client.handshake(&mut &buffer[..result.unwrap()]).unwrap();
        }
        client.write(b"first").unwrap();
        send(&peer, &client.take_output(Vec::new())).await;
        (peer, client)
    });
    assert!(stream.identity().is_none());
    assert_eq!(receive(&mut stream).await.unwrap(), 5);
    let (peer, client) = shaking.await.unwrap();
    (peer, client, stream)
}

fn run(test: impl Future<Output = ()>) {
    Runtime::new(&Config::default()).unwrap().block_on(test);
}

/// Goal: before the handshake a stranger can send only a limited number of bytes, in records of any
/// size, and gets no more space.
#[test]
fn handshakes_are_bounded() {
    run(async {
        let (peer, mut stream) = pair().await;
        // A first message with a length of 60 000 bytes.
        let message = [&[1, 0, 0xea, 0x60, 3, 3][..], &[7; 6000]].concat();
        send(&peer, &one_byte_records(&message)).await;
        let error = receive(&mut stream).await.unwrap_err();
        assert!(error.to_string().contains("too long"), "{error}");
        assert_eq!(room(&stream), RECEIVE_BYTES_FIRST);
    });
}

/// Goal: after the handshake a peer gets more space, and its identity is still known after a close
/// message and after a bad record.
#[test]
fn a_known_peer_stays_known() {
    for is_farewell in [true, false] {
        run(async {
            let (peer, mut client, mut stream) = open_pair().await;
            assert_eq!(room(&stream), RECEIVE_BYTES_FIRST);
            client.write(&vec![7; 40_000]).unwrap();
            if is_farewell {
                client.close();
            }
            send(&peer, &client.take_output(Vec::new())).await;
            let mut total = 0;
            while total < 40_000 {
                total += receive(&mut stream).await.unwrap();
            }
            assert!(room(&stream) > RECEIVE_BYTES_FIRST);
            if is_farewell {
                assert_eq!(receive(&mut stream).await.unwrap(), 0);
            } else {
                send(&peer, &[&[23, 3, 3, 0, 20][..], &[1; 20]].concat()).await;
                assert!(receive(&mut stream).await.is_err());
            }
            assert_eq!(stream.identity(), Some(&b"key"[..]));
        });
    }
}
