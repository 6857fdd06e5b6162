//! The simulated twin: the same programs as on the kernel, plus the faults that only it can make.
#![allow(missing_docs, clippy::unwrap_used)]

use ring::sim::{Network, Node, SimConfig, Simulation, Stalled};
use ring::{
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

/// Sends `bytes` to the echo server at `address` and returns what came back.
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

/// A run with sockets, files, timers, threads, randomness and faults; its trace and result.
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

/// Goal: bytes cross the simulated network whole and in order, whatever the pieces.
#[test]
fn streams_carry_bytes() {
    for seed in 0..20 {
        let Cluster { mut simulation, server, client, address, .. } = cluster(seed);
        let sent = bytes(700_000);
        let task = async move {
            server.spawn(echo_server(PORT));
            yield_now().await;
            client.spawn(async move { (echo(address, &sent).await.unwrap(), sent) }).await.unwrap()
        };
        let (got, sent) = simulation.run(task).unwrap();
        assert!(got == sent);
    }
}

/// Goal: time is virtual: an hour's sleep takes none; timeouts fire at their instant.
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

/// Goal: what can never end is reported instead of hanging.
#[test]
fn deadlocks_are_reported() {
    let mut simulation = Simulation::new(1);
    assert_eq!(simulation.run(std::future::pending::<()>()), Err(Stalled::Deadlock));
    let config = SimConfig { time_max: Duration::from_secs(1), ..SimConfig::default() };
    let mut simulation = Simulation::with_config(1, config);
    let sleep = time::sleep_until(time::Instant::from_ns(2_000_000_000));
    assert_eq!(simulation.run(sleep), Err(Stalled::TimeLimit));
}

/// Goal: a killed node's tasks end, its peers see the connection end and new ones refused, and it
/// can be started again on the same port.
#[test]
fn nodes_die_and_return() {
    for seed in 0..30 {
        let Cluster { mut simulation, server, client, address, .. } = cluster(seed);
        simulation
            .run(async move {
                let task = server.spawn(echo_server(PORT));
                let (connected, ready) = ring::local::oneshot();
                let waiting = client.spawn(async move {
                    let options = SocketOptions::default();
                    let stream = TcpStream::connect(address, &options).await.unwrap();
                    connected.send(()).unwrap();
                    stream.recv(Buffer::with_capacity(4096), 0..4096).await.0
                });
                ready.await.unwrap();
                server.kill();
                assert_eq!(task.await, Err(Aborted));
                let ended = waiting.await.unwrap();
                assert!(matches!(ended, Ok(0)) || ended.is_err());
                let refused = client.spawn(async move { echo(address, b"x").await }).await.unwrap();
                assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
                server.spawn(echo_server(PORT));
                yield_now().await;
                let got = client.spawn(async move { echo(address, b"again").await }).await.unwrap();
                assert_eq!(got.unwrap(), b"again");
            })
            .unwrap();
    }
}

/// Goal: a cut link delivers nothing, and everything after it is healed; connects wait meanwhile.
#[test]
fn partitions_hold_bytes() {
    for seed in 0..30 {
        let Cluster { mut simulation, server, client, network, address } = cluster(seed);
        simulation
            .run(async move {
                server.spawn(echo_server(PORT));
                yield_now().await;
                let sent = bytes(100_000);
                let first = client.spawn({
                    let sent = sent.clone();
                    async move { echo(address, &sent).await.unwrap() == sent }
                });
                // An established connection that speaks again during the cut.
                let (say, said) = ring::local::oneshot();
                let third = client.spawn(async move {
                    let options = SocketOptions::default();
                    let stream = TcpStream::connect(address, &options).await.unwrap();
                    said.await.unwrap();
                    for text in [b"one", b"two"] {
                        stream.send_vectored(vec![Chunk::copy_from(text)]).await.0.unwrap();
                    }
                    let mut got = Vec::new();
                    while got.len() < 6 {
                        let (n, buffer) = stream.recv(Buffer::with_capacity(4096), 0..6).await;
                        assert_ne!(n.unwrap(), 0);
                        got.extend_from_slice(&buffer);
                    }
                    got
                });
                time::sleep(Duration::from_millis(40)).await;
                network.isolate(&server);
                say.send(()).unwrap();
                let second = client.spawn(async move { echo(address, b"late").await.unwrap() });
                time::sleep(Duration::from_secs(10)).await;
                assert!(!second.is_finished() && !third.is_finished());
                network.heal_all();
                assert!(first.await.unwrap());
                assert_eq!(second.await.unwrap(), b"late");
                assert_eq!(third.await.unwrap(), b"onetwo");
            })
            .unwrap();
    }
}

/// Goal: a reset ends the operations at both ends with an error.
#[test]
fn resets_end_connections() {
    let Cluster { mut simulation, server, client, network, address } = cluster(5);
    simulation
        .run(async move {
            server.spawn(echo_server(PORT));
            yield_now().await;
            let receive = client.spawn(async move {
                let options = SocketOptions::default();
                let stream = TcpStream::connect(address, &options).await.unwrap();
                let first = stream.recv(Buffer::with_capacity(4096), 0..4096).await.0;
                (first, stream.send_vectored(vec![Chunk::copy_from(b"x")]).await.0)
            });
            time::sleep(Duration::from_millis(50)).await;
            network.reset(&client, &server);
            let (received, sent) = receive.await.unwrap();
            assert_eq!(received.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
            assert_eq!(sent.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        })
        .unwrap();
}

fn open(path: &str) -> File {
    let options = OpenOptions { create: true, direct: true, ..OpenOptions::READ_WRITE };
    File::open(path, options).unwrap()
}

/// Goal: kill -9 keeps written bytes, power loss keeps what was flushed and, over many seeds,
/// keeps, loses and tears what was not.
#[test]
fn power_loss_spares_what_was_flushed() {
    let (mut kept, mut lost, mut torn) = (0, 0, 0);
    for seed in 0..200 {
        let Cluster { mut simulation, server, .. } = cluster(seed);
        let survivors = simulation
            .run(async move {
                let writer = server.spawn(async {
                    let file = open("/device");
                    file.write_at(Buffer::copy_from(&[1; 8192]), 0).await.0.unwrap();
                    file.sync_data().await.unwrap();
                    file.write_at(Buffer::copy_from(&[2; 4096]), 4096).await.0.unwrap();
                });
                writer.await.unwrap();
                server.kill();
                let read = || async {
                    let file = open("/device");
                    let (n, buffer) = file.read_at(Buffer::with_capacity(8192), 0..8192, 0).await;
                    assert_eq!(n.unwrap(), 8192);
                    buffer
                };
                let after_kill = server.spawn(read()).await.unwrap();
                assert!(after_kill[4096..].iter().all(|&b| b == 2));
                server.lose_power();
                server.spawn(read()).await.unwrap()
            })
            .unwrap();
        assert!(survivors[..4096].iter().all(|&b| b == 1));
        match survivors[4096..].iter().map(|&b| usize::from(b == 2)).sum() {
            0_usize => lost += 1,
            4096 => kept += 1,
            _ => torn += 1,
        }
    }
    assert!(kept > 20 && lost > 20 && torn > 20, "{kept} kept, {lost} lost, {torn} torn");
}

/// Goal: a file has one lock holder, and a killed node's lock is free again.
#[test]
fn locks_end_with_their_holder() {
    let Cluster { mut simulation, server, .. } = cluster(9);
    simulation
        .run(async move {
            server.spawn(async {
                let file = open("/device");
                file.try_lock_exclusive().unwrap();
                std::future::pending::<()>().await;
                drop(file);
            });
            time::sleep(Duration::from_millis(1)).await;
            let try_lock = || async { open("/device").try_lock_exclusive() };
            let refused = server.spawn(try_lock()).await.unwrap().unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
            server.kill();
            server.spawn(try_lock()).await.unwrap().unwrap();
        })
        .unwrap();
}

/// Goal: a paused node runs nothing, however long, and goes on where it was.
#[test]
fn paused_nodes_stand_still() {
    let Cluster { mut simulation, client, .. } = cluster(3);
    simulation
        .run(async move {
            let ticks = Rc::new(Cell::new(0));
            client.spawn({
                let ticks = Rc::clone(&ticks);
                async move {
                    loop {
                        time::sleep(Duration::from_millis(1)).await;
                        ticks.set(ticks.get() + 1);
                    }
                }
            });
            time::sleep(Duration::from_millis(10)).await;
            client.pause();
            let before = ticks.get();
            assert!(before > 5);
            time::sleep(Duration::from_secs(1)).await;
            assert_eq!(ticks.get(), before);
            client.resume();
            time::sleep(Duration::from_millis(10)).await;
            assert!(ticks.get() > before);
        })
        .unwrap();
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
            let (sender, receiver) = ring::local::oneshot();
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

/// Goal: a flush covers what was acknowledged before it, not what was in flight beside it.
#[test]
fn flushes_cover_what_was_acknowledged() {
    let mut lost = 0;
    for seed in 0..60 {
        let Cluster { mut simulation, server, .. } = cluster(seed);
        let survivor = simulation
            .run(async move {
                let writer = server.spawn(async {
                    let file = open("/device");
                    file.set_size(4096).unwrap();
                    let write = file.write_at(Buffer::copy_from(&[2; 512]), 0);
                    let flush = file.sync_data();
                    write.await.0.unwrap();
                    flush.await.unwrap();
                });
                writer.await.unwrap();
                server.lose_power();
                let reader = server.spawn(async {
                    open("/device").read_at(Buffer::with_capacity(512), 0..512, 0).await.1
                });
                reader.await.unwrap()
            })
            .unwrap();
        lost += usize::from(survivor[0] == 0);
    }
    assert!(lost > 10 && lost < 50, "{lost} of 60 lost");
}

/// Goal: one connection can be held back alone: another between the same nodes goes on, and what was
/// held comes when it is let go.
#[test]
fn the_connection_that_sends_can_be_held_back_alone() {
    let Cluster { mut simulation, server, client, network, address } = cluster(1);
    simulation
        .run(async move {
            server.spawn(echo_server(PORT));
            let large = client.spawn(async move { echo(address, &bytes(40_000)).await.unwrap() });
            network.hold_back_sender(&client, &server, 1000).await;
            let small = client.spawn(async move { echo(address, &bytes(10)).await.unwrap() });
            assert_eq!(small.await.unwrap(), bytes(10));
            time::sleep(Duration::from_secs(1)).await;
            assert!(!large.is_finished(), "it is held back");
            network.let_go(&client, &server);
            assert_eq!(large.await.unwrap(), bytes(40_000));
        })
        .unwrap();
}

/// Goal: whatever is killed, cut off or reset at whatever moment, every operation ends or times
/// out, and what was echoed is a prefix of what was sent.
#[test]
fn killing_any_node_at_any_time_ends_every_operation() {
    let mut total = 0;
    for seed in 0..60 {
        let mut simulation = Simulation::new(seed);
        let nodes: Vec<Node> = (0..4).map(|i| simulation.node(&format!("node{i}"))).collect();
        let network = simulation.network();
        let whole = simulation
            .run(async move {
                let mut tasks = Vec::new();
                for node in &nodes {
                    node.spawn(echo_server(PORT));
                }
                yield_now().await;
                for (index, node) in nodes.iter().enumerate() {
                    for other in &nodes {
                        let address = SocketAddr::new(other.address(), PORT);
                        tasks.push(node.spawn(async move {
                            let sent = bytes(20_000 * (index + 1));
                            let echoed = echo(address, &sent);
                            let got = time::timeout(Duration::from_secs(10), echoed).await;
                            if let Ok(Ok(got)) = &got {
                                // The end of a killed server's connection is an end like any other.
                                assert!(sent.starts_with(got));
                            }
                            got.is_ok_and(|got| got.is_ok_and(|got| got == sent))
                        }));
                    }
                }
                for _ in 0..3 {
                    time::sleep(Duration::from_micros(random::u64() % 2000)).await;
                    let victim = &nodes[random::u64() as usize % nodes.len()];
                    match random::u64() % 4 {
                        0 => victim.kill(),
                        1 => victim.lose_power(),
                        2 => network.isolate(victim),
                        _ => network.reset(victim, &nodes[0]),
                    }
                }
                let mut whole = 0;
                for task in tasks {
                    whole += usize::from(task.await == Ok(true));
                }
                whole
            })
            .unwrap();
        total += whole;
    } // Faults hit some of the 60 * 16 connections, not all.
    assert!((100..900).contains(&total), "{total} whole");
}
