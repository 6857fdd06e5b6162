//! Tests of connections in the simulated network.

use super::*;

/// Goal: bytes cross the simulated network complete and in order, for all sizes of pieces.
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

/// Goal: a cut link delivers nothing until it is healed, and everything afterwards; connects wait.
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
                let (say, said) = reactor::local::oneshot();
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

/// Goal: one connection can be held back alone: another between the same nodes continues, and held
/// data arrives when it is released.
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

/// Goal: the data of a connection can be delivered again, byte by byte and over a new connection,
/// both while the connection is open and after its end; data that was not kept cannot.
#[test]
fn connections_can_be_duplicated() {
    let Cluster { mut simulation, server, client, network, address } = cluster(3);
    simulation
        .run(async move {
            let received = Rc::new(RefCell::new(Vec::new()));
            let counted = Rc::clone(&received);
            server.spawn(async move {
                let listener = TcpListener::bind(address, &SocketOptions::default()).unwrap();
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    let mut all = Vec::new();
                    loop {
                        let (n, buffer) = stream.recv(Buffer::with_capacity(512), 0..512).await;
                        if n.unwrap() == 0 {
                            break;
                        }
                        all.extend_from_slice(&buffer);
                    }
                    counted.borrow_mut().push(all);
                }
            });
            let send = |count| {
                client.spawn(async move {
                    let options = SocketOptions::default();
                    let stream = TcpStream::connect(address, &options).await.unwrap();
                    stream.send_vectored(vec![Chunk::copy_from(&bytes(count))]).await.0.unwrap();
                })
            };
            send(100).await.unwrap();
            time::sleep(Duration::from_secs(1)).await;
            assert!(!network.duplicate(&client, &server, 0, true), "it was not kept");
            network.keep_copies();
            send(5_000).await.unwrap();
            time::sleep(Duration::from_secs(1)).await;
            assert!(network.duplicate(&client, &server, 7, true));
            assert!(!network.duplicate(&server, &client, 0, true), "it went the other way");
            time::sleep(Duration::from_secs(1)).await;
            assert_eq!(*received.borrow(), [bytes(100), bytes(5_000), bytes(5_000)]);
        })
        .unwrap();
}

/// Goal: over a link that is cut in one direction, data in the other direction arrives; the answers
/// come when it is healed. A slow link delays both.
#[test]
fn one_direction_can_be_cut_alone() {
    let Cluster { mut simulation, server, client, network, address } = cluster(5);
    simulation
        .run(async move {
            let arrived = Rc::new(Cell::new(0));
            server.spawn({
                let arrived = Rc::clone(&arrived);
                async move {
                    let listener = TcpListener::bind(address, &SocketOptions::default()).unwrap();
                    let (stream, _) = listener.accept().await.unwrap();
                    loop {
                        let (n, buffer) = stream.recv(Buffer::with_capacity(16), 0..16).await;
                        arrived.set(arrived.get() + n.unwrap());
                        stream.send_vectored(vec![Chunk::copy_from(&buffer)]).await.0.unwrap();
                    }
                }
            });
            yield_now().await;
            let answered = Rc::new(Cell::new(0));
            client.spawn({
                let answered = Rc::clone(&answered);
                async move {
                    let options = SocketOptions::default();
                    let stream = TcpStream::connect(address, &options).await.unwrap();
                    loop {
                        stream.send_vectored(vec![Chunk::copy_from(b"x")]).await.0.unwrap();
                        stream.recv(Buffer::with_capacity(1), 0..1).await.0.unwrap();
                        answered.set(answered.get() + 1);
                        time::sleep(Duration::from_secs(1)).await;
                    }
                }
            });
            time::sleep(Duration::from_millis(500)).await;
            assert_eq!((arrived.get(), answered.get()), (1, 1));
            network.cut_one_way(&server, &client);
            time::sleep(Duration::from_secs(5)).await;
            assert_eq!((arrived.get(), answered.get()), (2, 1));
            network.heal_all();
            time::sleep(Duration::from_millis(500)).await;
            assert_eq!((arrived.get(), answered.get()), (2, 2));
            let slow = Duration::from_secs(3);
            network.set_latency(&server, &client, Some((slow, slow)));
            time::sleep(Duration::from_secs(6)).await;
            assert_eq!((arrived.get(), answered.get()), (3, 2));
            time::sleep(Duration::from_secs(1)).await;
            assert_eq!((arrived.get(), answered.get()), (3, 3));
        })
        .unwrap();
}
