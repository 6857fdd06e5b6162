//! Measures the cost of TLS for a stream: a thread sends messages of a header and data over
//! loopback, another receives them, without TLS and with each cipher.
//!
//! usage: `stream_cost [DATA_BYTES [ROUNDS]]`, by default 131072 and 5. Rounds alternate between
//! the three; each figure is the median of the rounds, and CPU time is that of both threads
//! together.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a program for measuring")]

use reactor::{
    Buffer, Chunk, Config, Runtime, Segment, Segments, SocketOptions, TcpListener, TcpStream,
};
use std::future::poll_fn;
use std::time::Duration;
use tls::{Hash, Psk, Server, Stream};
use zeroize::Zeroizing;

const HEADER_BYTES: usize = 24;
/// Space for received bytes beside the data, as in host and target.
const WINDOW_BYTES: usize = 4096;
const BYTES_PER_ROUND: usize = 1 << 30;
/// Number of messages in one send.
const MESSAGES: usize = 4;

fn psk(hash: Hash) -> Psk {
    let bytes = if hash == Hash::Sha256 { 32 } else { 48 };
    Psk::new(b"key", Zeroizing::new(vec![7; bytes]), hash).unwrap()
}

/// Sends messages until all bytes are sent, and waits for the receiver to close.
async fn send(mut stream: Stream, data_bytes: usize) {
    let data = Buffer::zeroed(data_bytes).freeze();
    let rounds = BYTES_PER_ROUND / (MESSAGES * (HEADER_BYTES + data_bytes));
    for _ in 0..rounds {
        let mut chunks = Vec::new();
        for _ in 0..MESSAGES {
            chunks.push(Chunk::copy_from(&[1; HEADER_BYTES]));
            chunks.push(Chunk::from(data.clone()));
        }
        let mut op = stream.send(chunks);
        poll_fn(|cx| stream.poll_send(&mut op, cx)).await.0.unwrap();
    }
    stream.tcp().shutdown(std::net::Shutdown::Write).await.unwrap();
}

/// Receives until the end. The data of an incomplete message goes to separate memory.
async fn receive(mut stream: Stream, data_bytes: usize) -> usize {
    let mut buffers = (Buffer::zeroed(data_bytes), Buffer::zeroed(WINDOW_BYTES));
    let (mut total, message_bytes) = (0, HEADER_BYTES + data_bytes);
    loop {
        let mut segments = Segments::new();
        let inside = (total % message_bytes).saturating_sub(HEADER_BYTES);
        segments.push(Segment::Buffer(buffers.0, inside..data_bytes));
        segments.push(Segment::Buffer(buffers.1, 0..WINDOW_BYTES));
        let mut op = stream.receive(segments);
        let (result, segments) = poll_fn(|cx| stream.poll_receive(&mut op, cx)).await;
        let mut segments = segments.into_iter().filter_map(Segment::into_buffer);
        buffers = (segments.next().unwrap(), segments.next().unwrap());
        match result.unwrap() {
            0 => return total,
            bytes => total += bytes,
        }
    }
}

/// Returns the CPU time of this process.
fn cpu() -> Duration {
    reactor::usage::of_process(std::process::id()).unwrap()
}

/// Runs one round. Returns the seconds and the CPU seconds per GiB.
fn round(hash: Option<Hash>, data_bytes: usize) -> (f64, f64) {
    let config = Config::default();
    let (address, listening) = std::sync::mpsc::channel();
    let sender = reactor::thread::spawn("sender", &config, move || async move {
        let listener =
            TcpListener::bind(([127, 0, 0, 1], 0).into(), &SocketOptions::default()).unwrap();
        address.send(listener.local_addr()).unwrap();
        let tcp = listener.accept().await.unwrap().0;
        let stream = match hash {
            None => Stream::from(tcp),
            Some(hash) => {
                let server = Server::new(move |_: &[u8]| Some(psk(hash))).unwrap();
                let mut stream = Stream::server(tcp, &server).unwrap();
                // The first byte triggers the handshake.
                let mut op =
                    stream.receive(Segments::from_iter([Segment::Buffer(Buffer::zeroed(1), 0..1)]));
                poll_fn(|cx| stream.poll_receive(&mut op, cx)).await.0.unwrap();
                stream
            }
        };
        send(stream, data_bytes).await;
    })
    .unwrap();
    let address = listening.recv().unwrap();
    let begun = (reactor::time::now(), cpu());
    let total = Runtime::new(&config).unwrap().block_on(async move {
        let tcp = TcpStream::connect(address, &SocketOptions::default()).await.unwrap();
        let stream = match hash {
            None => Stream::from(tcp),
            Some(hash) => {
                let mut stream = Stream::client(tcp, &[psk(hash)]).unwrap();
                let mut shake = stream.send(vec![Chunk::copy_from(b"x")]);
                let mut op =
                    stream.receive(Segments::from_iter([Segment::Buffer(Buffer::zeroed(1), 0..1)]));
                poll_fn(|cx| {
                    let sent = stream.poll_send(&mut shake, cx).is_ready();
                    let came = stream.poll_receive(&mut op, cx).is_ready();
                    if sent || came { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
                })
                .await;
                stream
            }
        };
        receive(stream, data_bytes).await
    });
    sender.join().unwrap();
    let seconds = |time: Duration| time.as_secs_f64() * f64::from(1 << 30) / total as f64;
    let spent = cpu().saturating_sub(begun.1);
    (seconds(begun.0.elapsed()), seconds(spent))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let mut words = std::env::args().skip(1).map(|word| word.parse::<usize>().unwrap());
    let (data_bytes, rounds) = (words.next().unwrap_or(131_072), words.next().unwrap_or(5));
    let subjects =
        [("plain", None), ("AES-128", Some(Hash::Sha256)), ("AES-256", Some(Hash::Sha384))];
    let mut results = vec![(Vec::new(), Vec::new()); subjects.len()];
    for _ in 0..rounds {
        for (index, (_, hash)) in subjects.iter().enumerate() {
            let (seconds, spent) = round(*hash, data_bytes);
            results[index].0.push(1024.0 / seconds);
            results[index].1.push(spent);
        }
    }
    println!("{data_bytes} bytes of data in a message, medians of {rounds}");
    let plain = median(results[0].0.clone());
    for ((name, _), (speeds, spent)) in subjects.iter().zip(results) {
        let speed = median(speeds);
        println!(
            "{name:8} {speed:6.0} MiB/s ({:.2})  {:.3} CPU s/GiB",
            speed / plain,
            median(spent)
        );
    }
}
