//! The hot-path rule: in the steady state, no operation allocates.
#![allow(missing_docs, clippy::unwrap_used, unsafe_code)]

use reactor::engine::Kind;
use reactor::{
    Buffer, Chunk, Config, File, Handle, Inline, Runtime, SocketOptions, TcpListener, TcpStream,
    mailbox, spawn, time,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: passes every call on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the allocations of this thread while `step` is awaited 200 times, after 50 times of
/// warming up.
async fn allocations(mut step: impl AsyncFnMut()) -> u64 {
    for _ in 0..50 {
        step().await;
    }
    let before = COUNT.get();
    for _ in 0..200 {
        step().await;
    }
    COUNT.get() - before
}

async fn echo(stream: TcpStream) {
    let mut chunks = Vec::new();
    loop {
        let (n, buffer) = stream.recv(Buffer::with_capacity(65_536), 0..65_536).await;
        if !n.is_ok_and(|n| n > 0) {
            return;
        }
        chunks.push(buffer.into());
        chunks = stream.send_vectored(chunks).await.1;
    }
}

/// Goal: receiving, vectored sending, file I/O, sleeping, mailboxes and freezing allocate nothing
/// once warm, on both sides of a connection.
#[test]
fn the_steady_state_allocates_nothing() {
    for kind in Kind::ALL {
        let config = Config { engine: Some(kind), ..Default::default() };
        match Runtime::new(&config) {
            Ok(mut runtime) => runtime.block_on(all_steps(kind)),
            Err(error) => println!("skipped: {error}"),
        }
    }
}

async fn all_steps(kind: Kind) {
    let options = SocketOptions::default();
    let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap(), &options).unwrap();
    let address = listener.local_addr();
    spawn(async move { echo(listener.accept().await.unwrap().0).await });
    let stream = TcpStream::connect(address, &options).await.unwrap();
    let mut chunks = Vec::new();
    let sockets = allocations(async || {
        chunks.push(Chunk::Inline(Inline::new(&[1; 24]).unwrap()));
        chunks.push(Buffer::zeroed(4096).into());
        chunks.push(Buffer::zeroed(4096).freeze().slice(..100).into());
        let (result, emptied) = stream.send_vectored(std::mem::take(&mut chunks)).await;
        result.unwrap();
        chunks = emptied;
        let mut got = 0;
        while got < 24 + 4096 + 100 {
            let (n, _) = stream.recv(Buffer::with_capacity(65_536), 0..65_536).await;
            got += n.unwrap();
        }
    })
    .await;
    let file = File::from_handle(Handle::from_fd(tempfile::tempfile().unwrap().into()));
    let files = allocations(async || {
        file.write_at(Buffer::zeroed(4096), 0).await.0.unwrap();
        file.read_at(Buffer::with_capacity(4096), 0..4096, 0).await.0.unwrap();
    })
    .await;
    let (sender, mut receiver) = mailbox::channel::<u64>(8);
    let mailboxes = allocations(async || {
        sender.send(1).await.unwrap();
        receiver.recv().await.unwrap();
    })
    .await;
    let timers = allocations(async || {
        let sleep = time::sleep(Duration::from_micros(1));
        time::timeout(Duration::from_mins(1), sleep).await.unwrap();
    })
    .await;
    let counted = allocations(async || drop(std::hint::black_box(Box::new(1)))).await;
    assert_eq!(counted, 200, "the counter counts");
    assert_eq!((sockets, files, mailboxes, timers), (0, 0, 0, 0), "{kind}");
}
