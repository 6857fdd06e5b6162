//! Tests of faults of nodes, and of their effect on peers.

use super::*;

/// Goal: a killed node's tasks end, its peers see the connection end and new ones refused, and it
/// can be started again on the same port.
#[test]
fn nodes_die_and_return() {
    for seed in 0..30 {
        let Cluster { mut simulation, server, client, address, .. } = cluster(seed);
        simulation
            .run(async move {
                let task = server.spawn(echo_server(PORT));
                let (connected, ready) = reactor::local::oneshot();
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

/// Goal: a paused node runs nothing for the whole pause, and then continues where it was.
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

/// Goal: a suspended machine receives no byte and ends no disk operation, unlike a paused one;
/// both continue when it wakes.
#[test]
fn suspended_machines_stand_still_as_a_whole() {
    let Cluster { mut simulation, server, client, address, .. } = cluster(4);
    simulation
        .run(async move {
            server.spawn(echo_server(PORT));
            yield_now().await;
            server.spawn(async {
                let options = OpenOptions { create: true, ..OpenOptions::READ_WRITE };
                let file = File::open("/file", options).unwrap();
                file.write_at(Buffer::copy_from(&[1; 4096]), 0).await.0.unwrap();
            });
            yield_now().await;
            server.suspend();
            let echoed = client.spawn(async move { echo(address, b"x").await });
            time::sleep(Duration::from_mins(1)).await;
            assert!(!echoed.is_finished());
            assert_eq!(server.pages_written("/file".as_ref(), 0), 0);
            server.wake();
            assert_eq!(echoed.await.unwrap().unwrap(), b"x");
            time::sleep(Duration::from_millis(10)).await;
            assert_eq!(server.pages_written("/file".as_ref(), 0), 1);
        })
        .unwrap();
}

/// Goal: after any kill, cut or reset at any moment, every operation ends or times out, and the
/// echoed bytes are a prefix of the sent ones.
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
                                // The end of a killed server's connection looks like any other.
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
