//! The reactor on the real kernel: tasks, time, sockets, files, threads, cancellation.
#![allow(missing_docs, clippy::unwrap_used)]

use reactor::engine::Kind;
use reactor::local::{Notify, Semaphore, WaitGroup, oneshot};
use reactor::{
    Aborted, Buffer, Chunk, Config, Either, File, OpenOptions, Region, Runtime, Segment,
    SocketOptions, TcpListener, TcpStream, mailbox, race, random, spawn, thread, time, yield_now,
};
use std::cell::{Cell, RefCell};
use std::net::{Shutdown, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

/// Returns the engines that work here.
fn engines() -> impl Iterator<Item = Kind> {
    let can_be_had = |kind: &Kind| Runtime::new(&on(*kind)).is_ok();
    assert!(can_be_had(&Kind::Epoll), "every kernel has epoll");
    Kind::ALL.into_iter().filter(can_be_had)
}

fn on(kind: Kind) -> Config {
    Config { engine: Some(kind), ..Default::default() }
}

/// Runs the test on each engine.
fn run(test: impl AsyncFn()) {
    for kind in engines() {
        let mut runtime = Runtime::new(&on(kind)).unwrap();
        assert_eq!(runtime.engine_kind(), kind);
        runtime.block_on(test());
    }
}

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

async fn pair(options: &SocketOptions) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(loopback(), options).unwrap();
    let address = listener.local_addr();
    let options = options.clone();
    let client = spawn(async move { TcpStream::connect(address, &options).await.unwrap() });
    let (server, peer) = listener.accept().await.unwrap();
    let client = client.await.unwrap();
    assert_eq!(client.local_addr(), peer);
    (client, server)
}

struct Guard(Rc<Cell<bool>>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

/// Goal: spawned tasks run, their outputs can be awaited, and an aborted task is dropped.
#[test]
fn tasks_join_and_abort() {
    run(async || {
        let handle = spawn(async {
            yield_now().await;
            7
        });
        assert_eq!(handle.await, Ok(7));
        let dropped = Rc::new(Cell::new(false));
        let guard = Guard(Rc::clone(&dropped));
        let handle = spawn(async move {
            let _guard = guard;
            time::sleep(Duration::from_hours(1)).await;
        });
        yield_now().await;
        assert!(!dropped.get());
        handle.abort();
        assert!(dropped.get());
        assert_eq!(handle.await, Err(Aborted));
    });
}

/// Goal: sleeps end in the order of their deadlines, cancelled ones never wake, timeouts elapse.
#[test]
fn timers_fire_in_order() {
    run(async || {
        let order = Rc::new(RefCell::new(Vec::new()));
        let handles: Vec<_> = [30_u64, 10, 20, 10]
            .into_iter()
            .enumerate()
            .map(|(index, ms)| {
                let order = Rc::clone(&order);
                spawn(async move {
                    time::sleep(Duration::from_millis(ms)).await;
                    order.borrow_mut().push(index);
                })
            })
            .collect();
        let slow = time::sleep(Duration::from_hours(1));
        assert!(time::timeout(Duration::from_millis(5), slow).await.is_err());
        for handle in handles {
            handle.await.unwrap();
        }
        assert_eq!(*order.borrow(), [1, 3, 2, 0]);
    });
}

/// Goal: bytes arrive complete and in order through vectored sends and receives, larger than the
/// socket's buffers, from every kind of chunk.
#[test]
fn sockets_carry_bytes() {
    run(async || {
        let options = SocketOptions { send_buffer_bytes: Some(16 << 10), ..Default::default() };
        let (client, server) = pair(&options).await;
        let mut expected = Vec::new();
        let mut chunks = Vec::new();
        let region = Region::new(4 << 20).unwrap();
        // More pieces of memory than one call takes (1024).
        for index in 0..2500_usize {
            let bytes: Vec<u8> = (0..index * 37 % 4000).map(|i| (i * 7 + index) as u8).collect();
            expected.extend_from_slice(&bytes);
            chunks.push(match index % 3 {
                0 => Chunk::copy_from(&bytes),
                1 => Buffer::copy_from(&bytes).freeze().into(),
                _ => {
                    let offset = index / 3 * 4096;
                    region.copy_in(offset, &bytes);
                    region.slice(offset, bytes.len())
                }
            });
        }
        let sender = spawn(async move {
            let (result, chunks) = client.send_vectored(chunks).await;
            result.unwrap();
            assert!(chunks.is_empty());
            client.shutdown(Shutdown::Write).await.unwrap();
        });
        let mut got = Vec::new();
        loop {
            let (one, two) = (Buffer::with_capacity(4096), Buffer::with_capacity(4096));
            let segments =
                [Segment::Buffer(one, 96..1000), Segment::Buffer(two, 0..4096)].into_iter();
            let (n, segments) = server.recv_vectored(segments.collect()).await;
            let n = n.unwrap();
            if n == 0 {
                break;
            }
            let mut buffers = segments.into_iter().map(|segment| segment.into_buffer().unwrap());
            let (one, two) = (buffers.next().unwrap(), buffers.next().unwrap());
            got.extend_from_slice(&one[96..96 + n.min(904)]);
            got.extend_from_slice(&two);
        }
        sender.await.unwrap();
        assert!(got == expected, "{} against {} bytes", got.len(), expected.len());
    });
}

/// Goal: a receive that loses a race continues and loses no bytes; a dropped one is cancelled while
/// its buffer stays safe, and the connection stays usable.
#[test]
fn receives_survive_races_and_cancellation() {
    run(async || {
        let (client, server) = pair(&SocketOptions::default()).await;
        let mut receive = server.recv(Buffer::with_capacity(4096), 0..4096);
        let pause = time::sleep(Duration::from_millis(5));
        assert!(matches!(race(&mut receive, pause).await, Either::Second(())));
        client.send_vectored(vec![Chunk::copy_from(b"hello")]).await.0.unwrap();
        let (n, buffer) = receive.await;
        assert_eq!((n.unwrap(), &buffer[..]), (5, &b"hello"[..]));
        drop(server.recv(Buffer::with_capacity(4096), 0..4096));
        yield_now().await;
        time::sleep(Duration::from_millis(5)).await;
        client.send_vectored(vec![Chunk::copy_from(b"again")]).await.0.unwrap();
        let (n, buffer) = server.recv(Buffer::with_capacity(4096), 10..20).await;
        assert_eq!((n.unwrap(), &buffer[10..]), (5, &b"again"[..]));
        // The last pending operation stays until the runtime ends.
        std::mem::forget(server.recv(Buffer::with_capacity(4096), 0..4096));
    });
}

/// Goal: more operations than the queues can hold all run (full submission queue, completion
/// overflow).
#[test]
fn queues_may_overflow() {
    for kind in engines() {
        Runtime::new(&Config { entries: 8, ..on(kind) }).unwrap().block_on(overflow());
    }
}

async fn overflow() {
    let file = tempfile::tempfile().unwrap();
    let file = File::from_handle(reactor::Handle::from_fd(file.into()));
    let writes: Vec<_> = (0..500_u64)
        .map(|index| file.write_at(Buffer::copy_from(&[index as u8; 512]), index * 512))
        .collect();
    for write in writes {
        write.await.0.unwrap();
    }
    for index in 0..500_u64 {
        let (n, buffer) = file.read_at(Buffer::with_capacity(512), 0..512, index * 512).await;
        assert_eq!((n.unwrap(), buffer[511]), (512, index as u8));
    }
}

/// Goal: files return the written data, direct and vectored; locks exclude and name the holder.
#[test]
fn files_keep_bytes() {
    run(async || {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let options = OpenOptions { create: true, direct: true, ..OpenOptions::READ_WRITE };
        let file = File::open(&path, options).unwrap();
        let mut buffer = Buffer::zeroed(8192);
        buffer[4096..].fill(9);
        let (result, _) = file.write_chunks_at(vec![buffer.into()], 4096).await;
        result.unwrap();
        file.sync_data().await.unwrap();
        assert_eq!(file.size().unwrap(), 12_288);
        let (n, buffer) = file.read_at(Buffer::with_capacity(12_288), 0..12_288, 0).await;
        assert_eq!(n.unwrap(), 12_288);
        assert!(buffer[..8192].iter().all(|&b| b == 0) && buffer[8192..].iter().all(|&b| b == 9));
        file.try_lock_exclusive().unwrap();
        let second = File::open(&path, OpenOptions::READ_WRITE).unwrap();
        let error = second.try_lock_exclusive().unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
        let expected = format!("locked by process {}", std::process::id());
        assert_eq!(error.to_string(), expected);
        drop(file);
        second.try_lock_exclusive().unwrap();
    });
}

/// Goal: threads with their own reactors exchange messages in both directions through bounded
/// mailboxes, and wake each other from sleep.
#[test]
fn mailboxes_cross_threads() {
    engines().for_each(cross_threads);
}

fn cross_threads(kind: Kind) {
    let (to_worker, mut work) = mailbox::channel::<u64>(4);
    let (to_main, mut results) = mailbox::channel::<u64>(4);
    let config = Config { spin: reactor::Spin::micros(20), ..on(kind) };
    let worker = thread::spawn("worker", &config, move || async move {
        let mut sum = 0;
        while let Some(number) = work.recv().await {
            sum += number;
            to_main.send(number * 2).await.unwrap();
        }
        sum
    })
    .unwrap();
    let sum = Runtime::new(&on(kind)).unwrap().block_on(async move {
        let sender = spawn(async move {
            for number in 0..10_000 {
                to_worker.send(number).await.unwrap();
            }
        });
        let mut expected = 0;
        while let Some(number) = results.recv().await {
            assert_eq!(number, expected);
            expected += 2;
        }
        assert_eq!(expected, 20_000);
        sender.await.unwrap();
        worker.await.unwrap()
    });
    assert_eq!(sum, 9999 * 10_000 / 2);
}

/// Goal: the single-thread primitives behave as documented.
#[test]
fn local_primitives() {
    run(async || {
        let (sender, receiver) = oneshot();
        sender.send(3).unwrap();
        assert_eq!(receiver.await, Ok(3));
        let (sender, receiver) = oneshot::<u8>();
        drop(sender);
        assert!(receiver.await.is_err());

        let notify = Rc::new(Notify::new());
        notify.notify();
        notify.notified().await;
        let waiter = spawn({
            let notify = Rc::clone(&notify);
            async move { notify.notified().await }
        });
        yield_now().await;
        assert!(!waiter.is_finished());
        notify.notify();
        waiter.await.unwrap();

        let semaphore = Semaphore::new(2);
        let first = semaphore.acquire(2).await;
        let waiter = spawn({
            let semaphore = semaphore.clone();
            async move { drop(semaphore.acquire(1).await) }
        });
        yield_now().await;
        assert!(semaphore.try_acquire(1).is_none());
        drop(first);
        waiter.await.unwrap();
        assert_eq!(semaphore.available(), 2);

        let group = WaitGroup::new();
        let one = group.enter();
        let waiter = spawn({
            let group = group.clone();
            async move { group.wait_zero().await }
        });
        yield_now().await;
        assert!(!waiter.is_finished());
        drop(one);
        waiter.await.unwrap();
    });
}

/// Goal: pipes, poll and stream reads work on raw handles, blocking or not.
#[test]
fn handles_read_and_poll() {
    run(async || {
        for flags in [rustix::pipe::PipeFlags::empty(), rustix::pipe::PipeFlags::NONBLOCK] {
            let (reader, writer) = rustix::pipe::pipe_with(flags).unwrap();
            let reader = reactor::Handle::from_fd(reader);
            let writer = reactor::Handle::from_fd(writer);
            let polled = spawn({
                let reader = reader.clone();
                async move { reader.poll_readable().await.unwrap() }
            });
            yield_now().await;
            let segment = Segment::Buffer(Buffer::with_capacity(4096), 0..4096);
            let read = spawn({
                let reader = reader.clone();
                async move { reader.readv([segment].into_iter().collect()).await }
            });
            time::sleep(Duration::from_millis(2)).await;
            let (n, _) = writer.writev(vec![Chunk::copy_from(b"pipe")]).await;
            assert_eq!(n.unwrap(), 4);
            assert_ne!(polled.await.unwrap(), 0);
            let (n, _) = read.await.unwrap();
            assert_eq!(n.unwrap(), 4);
        }
    });
}

/// Goal: an unsupported driver command is refused, not misread, with both sizes of entries.
#[test]
fn driver_commands_are_refused_cleanly() {
    let cases = engines().flat_map(|kind| [(kind, false), (kind, true)]);
    for (kind, sqe128) in cases {
        let mut runtime = Runtime::new(&Config { sqe128, ..on(kind) }).unwrap();
        runtime.block_on(async {
            let file = reactor::Handle::from_fd(tempfile::tempfile().unwrap().into());
            let command = reactor::UringCmd { operation: 1, command: [0; 80], address: 0, len: 2 };
            // SAFETY: the command names no memory.
            #[allow(unsafe_code)]
            let result = unsafe { file.uring_cmd(command) }.await;
            assert!(result.is_err());
            time::sleep(Duration::from_millis(1)).await;
        });
    }
}

/// Goal: random bytes differ.
#[test]
fn randomness_varies() {
    run(async || assert_ne!(random::u64(), random::u64()));
}

/// Goal: a socket can be made in another network namespace, and the thread stays in its own.
#[test]
fn sockets_in_network_namespaces() {
    let (named, name) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let holder = std::thread::spawn(move || {
        let flags = rustix::thread::UnshareFlags::NEWNET;
        // SAFETY: unsharing the network affects only this thread's later sockets.
        #[allow(unsafe_code)]
        let result = unsafe { rustix::thread::unshare_unsafe(flags) };
        let id = rustix::thread::gettid().as_raw_nonzero();
        named.send(result.map(|()| format!("/proc/self/task/{id}/ns/net"))).unwrap();
        let _ = ended.recv();
    });
    match name.recv().unwrap() {
        Err(error) => println!("skipped: cannot make a network namespace: {error}"),
        Ok(path) => run(async || {
            let before = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
            let any: SocketAddr = "0.0.0.0:0".parse().unwrap();
            let here = TcpListener::bind(any, &SocketOptions::default()).unwrap();
            let taken = TcpListener::bind(here.local_addr(), &SocketOptions::default());
            assert_eq!(taken.unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
            let options = SocketOptions {
                network_namespace: Some(path.as_str().into()),
                ..Default::default()
            };
            let there = TcpListener::bind(here.local_addr(), &options).unwrap();
            assert_eq!(there.local_addr(), here.local_addr());
            assert_eq!(std::fs::read_link("/proc/thread-self/ns/net").unwrap(), before);
            let options =
                SocketOptions { network_namespace: Some("/nowhere".into()), ..Default::default() };
            let error = TcpListener::bind(any, &options).unwrap_err();
            assert!(error.to_string().contains("/nowhere"), "{error}");
        }),
    }
    drop(end);
    holder.join().unwrap();
}

/// Goal: the memory of a dropped receive is not used again before the kernel has released it, even
/// when bytes arrive just then.
#[test]
fn dropped_receives_keep_their_memory() {
    run(async || {
        let (client, server) = pair(&SocketOptions::default()).await;
        for round in 0..200 {
            let receive = server.recv(Buffer::with_capacity(4096), 0..4096);
            let send = client.send_vectored(vec![Chunk::copy_from(&[7; 100])]);
            if round % 2 == 0 {
                // The kernel has both.
                yield_now().await;
            }
            drop(receive);
            let guards: Vec<_> = (0..8).map(|_| Buffer::zeroed(4096)).collect();
            send.await.0.unwrap();
            yield_now().await;
            time::sleep(Duration::from_micros(50)).await;
            assert!(guards.iter().all(|guard| guard.iter().all(|&b| b == 0)));
        }
    });
}

/// Goal: a runtime can end with operations of every state in flight, and another one can follow on
/// the same thread; futures that outlive it stay safe.
#[test]
fn runtimes_end_cleanly() {
    for kind in engines().flat_map(|kind| [kind; 20]) {
        let mut runtime = Runtime::new(&on(kind)).unwrap();
        let left = runtime.block_on(async {
            let (client, server) = pair(&SocketOptions::default()).await;
            let pending = server.recv(Buffer::with_capacity(4096), 0..4096);
            drop(server.recv(Buffer::with_capacity(4096), 0..4096));
            spawn(async move {
                let _ = server.recv(Buffer::with_capacity(4096), 0..4096).await;
            });
            yield_now().await;
            let unsent = client.send_vectored(vec![Chunk::copy_from(b"x")]);
            (pending, unsent, time::sleep(Duration::from_hours(1)), client)
        });
        drop(runtime);
        drop(left);
    }
}
