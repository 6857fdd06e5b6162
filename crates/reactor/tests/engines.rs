//! Behaviour that both engines must share, where a difference is likely.
#![allow(missing_docs, clippy::unwrap_used)]

use reactor::engine::Kind;
use reactor::{
    Buffer, Chunk, Config, File, Handle, OpenOptions, Runtime, Segment, SocketOptions, TcpListener,
    TcpStream, spawn, time, yield_now,
};
use std::io::ErrorKind;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

/// Runs the test on each engine that works here.
fn run(test: impl AsyncFn()) {
    for kind in Kind::ALL {
        let config = Config { engine: Some(kind), ..Default::default() };
        match Runtime::new(&config) {
            Ok(mut runtime) => runtime.block_on(async {
                let limit = Duration::from_secs(20);
                let ended = time::timeout(limit, Box::pin(test())).await;
                assert!(ended.is_ok(), "{kind}: something waits for ever");
            }),
            Err(error) => {
                assert_ne!(kind, Kind::Epoll, "every kernel has epoll: {error}");
                println!("skipped on {kind}: {error}");
            }
        }
    }
}

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

async fn pair() -> (TcpStream, TcpStream) {
    let options = SocketOptions::default();
    let listener = TcpListener::bind(loopback(), &options).unwrap();
    let address = listener.local_addr();
    let client = spawn(async move { TcpStream::connect(address, &options).await.unwrap() });
    let (server, _) = listener.accept().await.unwrap();
    (client.await.unwrap(), server)
}

async fn receive(stream: &TcpStream) -> std::io::Result<Vec<u8>> {
    let (n, buffer) = stream.recv(Buffer::with_capacity(4096), 0..4096).await;
    n.map(|n| buffer[..n].to_vec())
}

/// Goal: the end of a stream is seen at all times: with the last bytes, just after they were taken,
/// or later; and so is a reset.
#[test]
fn ends_of_streams_are_seen() {
    run(async || {
        for round in 0..60 {
            let (client, server) = pair().await;
            if round % 2 == 0 {
                // The receive waits already when the bytes come.
                let receiving = spawn(async move {
                    let first = receive(&server).await;
                    (first, server)
                });
                yield_now().await;
                client.send_vectored(vec![Chunk::copy_from(b"last")]).await.0.unwrap();
                if round % 4 == 0 {
                    time::sleep(Duration::from_micros(200)).await;
                }
                client.shutdown(Shutdown::Write).await.unwrap();
                let (first, server) = receiving.await.unwrap();
                assert_eq!(first.unwrap(), b"last");
                assert_eq!(receive(&server).await.unwrap(), b"");
                assert_eq!(receive(&server).await.unwrap(), b"");
            } else {
                client.send_vectored(vec![Chunk::copy_from(b"last")]).await.0.unwrap();
                drop(client);
                assert_eq!(receive(&server).await.unwrap(), b"last");
                assert_eq!(receive(&server).await.unwrap(), b"");
                // The peer is gone, so it answers with a reset.
                server.send_vectored(vec![Chunk::copy_from(b"x")]).await.0.unwrap();
                while server.send_vectored(vec![Chunk::copy_from(b"x")]).await.0.is_ok() {
                    time::sleep(Duration::from_micros(100)).await;
                }
            }
        }
    });
}

/// Goal: a waiting receiver and a polling one receive all bytes that arrive in small pieces at any
/// time.
#[test]
fn no_arrival_is_missed() {
    run(async || {
        let (client, server) = pair().await;
        let sender = spawn(async move {
            for round in 0..3000_u32 {
                client.send_vectored(vec![Chunk::copy_from(&round.to_le_bytes())]).await.0.unwrap();
                match round % 7 {
                    0 => time::sleep(Duration::from_micros(u64::from(round % 50))).await,
                    1 | 2 => yield_now().await,
                    _ => {}
                }
            }
            client
        });
        let mut got = Vec::new();
        while got.len() < 12_000 {
            let bytes = receive(&server).await.unwrap();
            assert!(!bytes.is_empty());
            got.extend(bytes);
            if got.len() % 3 == 0 {
                yield_now().await;
            }
        }
        let expected: Vec<u8> = (0..3000_u32).flat_map(u32::to_le_bytes).collect();
        assert_eq!(got, expected);
        drop(sender.await.unwrap());
    });
}

/// Goal: a descriptor with the number of an earlier, waiting one is served like any other.
#[test]
fn numbers_of_descriptors_may_be_used_again() {
    run(async || {
        let mut numbers = Vec::new();
        for round in 0..40 {
            let (client, server) = pair().await;
            numbers.push(server.handle().as_fd().unwrap().as_raw_fd());
            // Keeps the open file beyond its first number, so that the kernel does not forget it.
            let copy = server.handle().as_fd().unwrap().try_clone_to_owned().unwrap();
            drop(server.recv(Buffer::with_capacity(64), 0..64));
            if round % 2 == 0 {
                yield_now().await;
                time::sleep(Duration::from_micros(50)).await;
            }
            drop(server);
            yield_now().await;
            let server = Handle::from_fd(copy);
            let waiting = spawn({
                let server = server.clone();
                async move {
                    let segment = Segment::Buffer(Buffer::with_capacity(64), 0..64);
                    let (n, _) = server.readv([segment].into_iter().collect()).await;
                    n.unwrap()
                }
            });
            time::sleep(Duration::from_micros(50)).await;
            client.send_vectored(vec![Chunk::copy_from(b"hello")]).await.0.unwrap();
            assert_eq!(waiting.await.unwrap(), 5);
            let file = tempfile::tempfile().unwrap();
            let file = File::from_handle(Handle::from_fd(file.into()));
            file.write_at(Buffer::zeroed(10), 5).await.0.unwrap();
            assert_eq!(file.size().unwrap(), 15);
        }
        numbers.sort_unstable();
        numbers.dedup();
        assert!(numbers.len() < 40, "no number was used again");
    });
}

/// Goal: a write that finds no room waits for it, and a read beside it on the same descriptor does
/// not wait for the write.
#[test]
fn writes_wait_for_room() {
    run(async || {
        let (one, two) = std::os::unix::net::UnixStream::pair().unwrap();
        let (one, two) = (Handle::from_fd(one.into()), Handle::from_fd(two.into()));
        let writer = spawn({
            let one = one.clone();
            async move {
                let mut sent = 0;
                while sent < 4 << 20 {
                    let len = (64 << 10).min((4 << 20) - sent);
                    sent += one.writev(vec![Buffer::zeroed(len).into()]).await.0.unwrap();
                }
            }
        });
        time::sleep(Duration::from_millis(5)).await;
        assert!(!writer.is_finished());
        let read = async |from: &Handle| {
            let segment = Segment::Buffer(Buffer::with_capacity(64 << 10), 0..64 << 10);
            from.readv([segment].into_iter().collect()).await.0.unwrap()
        };
        two.writev(vec![Chunk::copy_from(b"back")]).await.0.unwrap();
        assert_eq!(read(&one).await, 4);
        let mut got = 0;
        while got < 4 << 20 {
            got += read(&two).await;
        }
        writer.await.unwrap();
    });
}

/// Goal: refused connections report an error; a waiting accept is cancelled at once.
#[test]
fn connections_are_refused_and_given_up() {
    run(async || {
        let options = SocketOptions::default();
        let listener = TcpListener::bind(loopback(), &options).unwrap();
        let address = listener.local_addr();
        let waited = time::timeout(Duration::from_millis(2), Box::pin(listener.accept())).await;
        assert!(waited.is_err());
        // Until it is cancelled, it may take a connection with it.
        time::sleep(Duration::from_millis(1)).await;
        // Several at once: each is accepted, though one event may report all.
        let clients: Vec<_> = (0..5)
            .map(|_| {
                spawn(async move { TcpStream::connect(address, &SocketOptions::default()).await })
            })
            .collect();
        for _ in 0..5 {
            listener.accept().await.unwrap();
        }
        for client in clients {
            client.await.unwrap().unwrap();
        }
        drop(listener);
        yield_now().await;
        time::sleep(Duration::from_millis(1)).await;
        let error = TcpStream::connect(address, &options).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    });
}

/// Goal: files are always ready, short at their end, their current position moves, and refusals are
/// reported.
#[test]
fn files_answer_like_files() {
    run(async || {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let file =
            File::open(&path, OpenOptions { create: true, ..OpenOptions::READ_WRITE }).unwrap();
        assert_ne!(file.handle().poll_readable().await.unwrap(), 0);
        file.write_at(Buffer::copy_from(b"0123456789"), 0).await.0.unwrap();
        let at_end = file.read_at(Buffer::with_capacity(64), 0..64, 4).await;
        assert_eq!((at_end.0.unwrap(), &at_end.1[..]), (6, &b"456789"[..]));
        assert_eq!(file.read_at(Buffer::with_capacity(64), 0..64, 10).await.0.unwrap(), 0);
        for expected in [6, 4, 0] {
            let segment = Segment::Buffer(Buffer::with_capacity(6), 0..6);
            let (n, _) = file.handle().readv([segment].into_iter().collect()).await;
            assert_eq!(n.unwrap(), expected);
        }
        file.fallocate(0, 0, 100).await.unwrap();
        file.write_back().await.unwrap();
        file.sync_all().await.unwrap();
        assert_eq!(file.size().unwrap(), 100);
        let error = file.fallocate(0, 0, 0).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let readable = File::open(&path, OpenOptions::READ).unwrap();
        let error = readable.write_at(Buffer::zeroed(1), 0).await.0.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
        let pipe = File::from_handle(Handle::from_fd(rustix::pipe::pipe().unwrap().0));
        assert_eq!(pipe.sync_data().await.unwrap_err().kind(), ErrorKind::InvalidInput);
        // A character device without readiness.
        let zero: OwnedFd = std::fs::File::open("/dev/zero").unwrap().into();
        let segment = Segment::Buffer(Buffer::with_capacity(64), 0..64);
        let (n, _) = Handle::from_fd(zero).readv([segment].into_iter().collect()).await;
        assert_eq!(n.unwrap(), 64);
    });
}

/// Goal: an operation that is cancelled while it waits for its turn has no effect, and every other
/// one runs.
#[test]
fn many_files_calls_and_cancellations() {
    run(async || {
        let file = File::from_handle(Handle::from_fd(tempfile::tempfile().unwrap().into()));
        file.write_at(Buffer::zeroed(64 << 10), 0).await.0.unwrap();
        for round in 0..20_usize {
            let mut syncs: Vec<_> = (0..40).map(|_| file.sync_all()).collect();
            if round % 2 == 0 {
                yield_now().await;
            }
            syncs.truncate(20);
            let reads: Vec<_> = (0..50_u64)
                .map(|index| file.read_at(Buffer::with_capacity(4096), 0..4096, index * 64))
                .collect();
            for read in reads.into_iter().skip(round) {
                assert_eq!(read.await.0.unwrap(), 4096);
            }
            for sync in syncs {
                sync.await.unwrap();
            }
        }
    });
}
