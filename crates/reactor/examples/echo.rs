//! Measures the message rate of a TCP echo over loopback: one server thread and one client thread,
//! each with its own reactor, sleeping and with a short spin.
//!
//! `cargo run --release -p tsumugi-reactor --example echo [-- seconds]`
//!
//! Each connection keeps a window of messages outstanding. The client sends as many new messages as
//! came back, and the server sends back what it received, so both coalesce as a real protocol
//! would.

use reactor::{
    Buffer, Chunk, Config, SocketOptions, Spin, TcpListener, TcpStream, local, spawn, thread, time,
};
use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// Bytes per receive.
const RECEIVE_BYTES: usize = 64 << 10;
/// Socket buffers, in bytes.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;

struct Shape {
    connections: usize,
    outstanding: usize,
    message_bytes: usize,
}

fn options() -> SocketOptions {
    SocketOptions {
        send_buffer_bytes: Some(SOCKET_BUFFER_BYTES),
        receive_buffer_bytes: Some(SOCKET_BUFFER_BYTES),
        ..SocketOptions::default()
    }
}

async fn echo(stream: TcpStream) -> io::Result<()> {
    let mut chunks = Vec::new();
    loop {
        let (n, buffer) = stream.recv(Buffer::with_capacity(RECEIVE_BYTES), 0..RECEIVE_BYTES).await;
        if n? == 0 {
            return Ok(());
        }
        chunks.push(Chunk::from(buffer));
        let (result, emptied) = stream.send_vectored(chunks).await;
        result?;
        chunks = emptied;
    }
}

async fn serve(listener: TcpListener, connections: usize) -> f64 {
    let group = local::WaitGroup::new();
    for _ in 0..connections {
        let Ok((stream, _)) = listener.accept().await else { break };
        let running = group.enter();
        spawn(async move {
            // A client that goes away at the end of the run may reset the connection.
            let _ = echo(stream).await;
            drop(running);
        });
    }
    group.wait_zero().await;
    thread_cpu_seconds()
}

fn thread_cpu_seconds() -> f64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

/// Prints the CPU use of a thread that may spin and only has a timer every 10 ms.
fn measure_idle(spin: Spin, seconds: f64) -> io::Result<()> {
    let config = Config { spin, ..Config::default() };
    let idle = thread::spawn("idle", &config, move || async move {
        let end = time::now() + Duration::from_secs_f64(seconds);
        while time::now() < end {
            time::sleep(Duration::from_millis(10)).await;
        }
        thread_cpu_seconds()
    })?;
    let share = idle.join().map_err(io::Error::other)? / seconds * 100.0;
    println!("idle with a timer every 10 ms, spin {spin:>4} us: CPU {share:.2} %");
    Ok(())
}

async fn client(
    address: SocketAddr,
    shape: Rc<Shape>,
    end: time::Instant,
    done: Rc<Cell<u64>>,
) -> io::Result<()> {
    let stream = TcpStream::connect(address, &options()).await?;
    let window = Buffer::zeroed(shape.outstanding * shape.message_bytes).freeze();
    let mut chunks = vec![Chunk::from(window.clone())];
    let mut rest = 0;
    loop {
        let (result, emptied) = stream.send_vectored(chunks).await;
        result?;
        chunks = emptied;
        let mut whole = 0;
        while whole == 0 {
            let buffer = Buffer::with_capacity(RECEIVE_BYTES);
            let (n, _) = stream.recv(buffer, 0..RECEIVE_BYTES).await;
            let n = n?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            rest += n;
            whole = rest / shape.message_bytes;
            rest %= shape.message_bytes;
        }
        done.set(done.get() + whole as u64);
        if time::now() >= end {
            return Ok(());
        }
        chunks.push(Chunk::from(window.slice(..whole * shape.message_bytes)));
    }
}

/// Prints one row.
fn measure(shape: Shape, spin: Spin, seconds: f64) -> io::Result<()> {
    let config = Config { spin, ..Config::default() };
    let listen: SocketAddr = ([127, 0, 0, 1], 0).into();
    let listener = TcpListener::bind(listen, &options())?;
    let (address, connections) = (listener.local_addr(), shape.connections);
    let server = thread::spawn("server", &config, move || serve(listener, connections))?;
    let text = format!(
        "{:>3} x {:>2} x {:>4} B, spin {:>4} us",
        shape.connections, shape.outstanding, shape.message_bytes, spin
    );
    let clients = thread::spawn("client", &config, move || async move {
        let (shape, done) = (Rc::new(shape), Rc::new(Cell::new(0)));
        let start = time::now();
        let end = start + Duration::from_secs_f64(seconds);
        let clients: Vec<_> = (0..connections)
            .map(|_| spawn(client(address, Rc::clone(&shape), end, Rc::clone(&done))))
            .collect();
        for client in clients {
            client.await.map_err(io::Error::other)??;
        }
        Ok::<_, io::Error>(done.get() as f64 / start.elapsed().as_secs_f64())
    })?;
    let rate = clients.join().map_err(io::Error::other)??;
    let server_seconds = server.join().map_err(io::Error::other)?;
    let share = server_seconds / seconds * 100.0;
    println!("{text}: {rate:>9.0} messages/s, server CPU {share:>3.0} %");
    Ok(())
}

fn main() -> io::Result<()> {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1.0);
    for (connections, outstanding, message_bytes) in
        [(16, 8, 4096), (16, 8, 128), (64, 1, 4096), (1, 1, 4096), (1, 1, 128)]
    {
        for spin in [Spin::default(), Spin::micros(50), Spin::Auto] {
            let shape = Shape { connections, outstanding, message_bytes };
            measure(shape, spin, seconds)?;
        }
    }
    measure_idle(Spin::micros(50), seconds)?;
    measure_idle(Spin::Auto, seconds)?;
    Ok(())
}
