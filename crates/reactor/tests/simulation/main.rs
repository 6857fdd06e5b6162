//! Tests of the simulated twin: the same programs as on the kernel, plus faults that only it can
//! make.
#![allow(missing_docs, clippy::unwrap_used)]

mod network;
mod nodes;
mod storage;

use reactor::sim::{DiskError, DiskFault, Network, Node, SimConfig, Simulation, Stalled};
use reactor::{
    Aborted, Buffer, Chunk, Config, File, OpenOptions, SocketOptions, TcpListener, TcpStream,
    mailbox, random, spawn, thread, time, yield_now,
};
use std::cell::{Cell, RefCell};
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

const PORT: u16 = 4420;

/// Echoes every connection until its end.
async fn echo_server(port: u16) {
    let address = SocketAddr::new([0, 0, 0, 0].into(), port);
    let listener = TcpListener::bind(address, &SocketOptions::default()).unwrap();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        spawn(async move {
            loop {
                let (n, buffer) = stream.recv(Buffer::with_capacity(8192), 0..8192).await;
                if !n.is_ok_and(|n| n > 0) {
                    return;
                }
                if stream.send_vectored(vec![buffer.into()]).await.0.is_err() {
                    return;
                }
            }
        });
    }
}

/// Sends `bytes` to the echo server at `address` and returns the answer.
async fn echo(address: SocketAddr, bytes: &[u8]) -> io::Result<Vec<u8>> {
    let stream = TcpStream::connect(address, &SocketOptions::default()).await?;
    let sender = spawn({
        let (stream, bytes) = (stream.clone(), bytes.to_vec());
        async move {
            for piece in bytes.chunks(10_000) {
                stream.send_vectored(vec![Chunk::copy_from(piece)]).await.0?;
            }
            stream.shutdown(Shutdown::Write).await
        }
    });
    let mut got = Vec::new();
    loop {
        let (n, buffer) = stream.recv(Buffer::with_capacity(4096), 0..4096).await;
        if n? == 0 {
            break;
        }
        got.extend_from_slice(&buffer);
    }
    sender.await.map_err(io::Error::other)??;
    Ok(got)
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8).collect()
}

struct Cluster {
    simulation: Simulation,
    server: Node,
    client: Node,
    network: Network,
    address: SocketAddr,
}

fn cluster(seed: u64) -> Cluster {
    let simulation = Simulation::new(seed);
    let (server, client) = (simulation.node("server"), simulation.node("client"));
    let network = simulation.network();
    let address = SocketAddr::new(server.address(), PORT);
    Cluster { simulation, server, client, network, address }
}

/// Runs a simulation with sockets, files, timers, threads, randomness and faults. Returns its trace
/// and result.
fn eventful_run(seed: u64) -> (u64, Vec<u64>) {
    let Cluster { mut simulation, server, client, network, address } = cluster(seed);
    let log = Rc::new(RefCell::new(Vec::new()));
    simulation
        .run({
            let log = Rc::clone(&log);
            async move {
                server.spawn(echo_server(PORT));
                let tasks: Vec<_> = (0..5_u64)
                    .map(|number| {
                        let log = Rc::clone(&log);
                        client.spawn(async move {
                            let pause = Duration::from_micros(random::u64() % 1000);
                            time::sleep(pause).await;
                            let got = echo(address, &bytes(40_000)).await;
                            let path = format!("/file{number}");
                            let options = OpenOptions { create: true, ..OpenOptions::READ_WRITE };
                            let file = File::open(path, options).unwrap();
                            file.write_at(Chunk::copy_from(b"x"), 0).await.0.unwrap();
                            file.sync_data().await.unwrap();
                            let len = got.map_or(0, |got| got.len() as u64);
                            log.borrow_mut().extend([number, len, time::now().as_ns()]);
                        })
                    })
                    .collect();
                time::sleep(Duration::from_micros(500)).await;
                network.cut(&server, &client);
                time::sleep(Duration::from_millis(3)).await;
                network.heal_all();
                time::sleep(Duration::from_millis(1)).await;
                network.reset(&server, &client);
                for task in tasks {
                    task.await.unwrap();
                }
            }
        })
        .unwrap();
    let log = log.borrow().clone();
    (simulation.trace_hash(), log)
}

/// Goal: the same seed repeats a run exactly, another one gives another run.
#[test]
fn seeds_repeat_runs() {
    let mut hashes = Vec::new();
    for seed in 0..20 {
        let first = eventful_run(seed);
        assert_eq!(first, eventful_run(seed));
        hashes.push(first.0);
    }
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 20);
}

/// Goal: time is virtual: an hour's sleep takes no real time; timeouts fire at their instant.
#[test]
fn time_is_virtual() {
    let mut simulation = Simulation::new(1);
    simulation
        .run(async {
            let start = time::now();
            time::sleep(Duration::from_hours(1)).await;
            assert_eq!(start.elapsed(), Duration::from_hours(1));
            let never = std::future::pending::<()>();
            assert!(time::timeout(Duration::from_secs(5), never).await.is_err());
            assert_eq!(start.elapsed(), Duration::from_secs(3605));
        })
        .unwrap();
}

/// Goal: a wait that can never end is reported and does not hang.
#[test]
fn deadlocks_are_reported() {
    let mut simulation = Simulation::new(1);
    assert_eq!(simulation.run(std::future::pending::<()>()), Err(Stalled::Deadlock));
    let config = SimConfig { time_max: Duration::from_secs(1), ..SimConfig::default() };
    let mut simulation = Simulation::with_config(1, config);
    let sleep = time::sleep_until(time::Instant::from_ns(2_000_000_000));
    assert_eq!(simulation.run(sleep), Err(Stalled::TimeLimit));
}

/// Goal: threads and mailboxes work as tasks of the same node, and die with it.
#[test]
fn threads_are_tasks() {
    let Cluster { mut simulation, server, .. } = cluster(11);
    simulation
        .run(async move {
            let sum = server.spawn(async {
                let (sender, mut receiver) = mailbox::channel::<u64>(2);
                let worker = thread::spawn("worker", &Config::default(), move || async move {
                    let mut sum = 0;
                    while let Some(number) = receiver.recv().await {
                        time::sleep(Duration::from_micros(3)).await;
                        sum += number;
                    }
                    sum
                })
                .unwrap();
                for number in 0..100 {
                    sender.send(number).await.unwrap();
                }
                drop(sender);
                worker.await.unwrap()
            });
            assert_eq!(sum.await, Ok(4950));
            let (sender, receiver) = reactor::local::oneshot();
            server.spawn(async move {
                let never = std::future::pending::<()>;
                let worker = thread::spawn("worker", &Config::default(), never).unwrap();
                assert!(sender.send(worker).is_ok());
            });
            let worker = receiver.await.unwrap();
            server.kill();
            assert_eq!(worker.await, Err(Aborted));
        })
        .unwrap();
}
