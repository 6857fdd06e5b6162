//! Both ends of a connection over real TCP on loopback.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use protocol::auth::Secret;
use protocol::client::{Answer, Call, Push, PushAnswer, ReadCall, Request, Response};
use protocol::{FreeEpoch, InodeId};
use reactor::SocketOptions;
use rpc::{
    Acceptor, Client, Connection, Connector, Credential, Guard, Handler, Limits, Listener, Reply,
    RpcError,
};
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

const SECRET: Secret = Secret([7; 32]);
const GUARD: Guard = Guard::Plain(SECRET);
const CREDENTIAL: Credential = Credential::Plain(SECRET);

fn run<T>(test: impl Future<Output = T>) -> T {
    reactor::Runtime::new(&reactor::Config::default()).unwrap().block_on(test)
}

fn request() -> Request {
    Request { slot: None, call: Call::Read(ReadCall::GetAttr(InodeId(1))) }
}

/// Answers every call with `Done`, except those of inode 99.
struct Service;

impl Handler<Acceptor<Client>> for Service {
    fn called(&self, call: Request, reply: Reply<Acceptor<Client>>) {
        if call.call == Call::Read(ReadCall::GetAttr(InodeId(99))) {
            return;
        }
        let response = Response { result: Ok(Answer::Done), grants: vec![], changed: vec![] };
        reply.send(&response).unwrap();
    }
}

/// Number of calls whose answers are more than a socket takes.
const CALLS: u32 = 500;

/// Answers with 100 kB, and counts the calls.
struct Long(Rc<Cell<u32>>);

impl Handler<Acceptor<Client>> for Long {
    fn called(&self, _call: Request, reply: Reply<Acceptor<Client>>) {
        self.0.set(self.0.get() + 1);
        let result = Ok(Answer::Bytes(vec![7; 100_000]));
        reply.send(&Response { result, grants: vec![], changed: vec![] }).unwrap();
    }
}

/// Notes events, in order.
#[derive(Default)]
struct Notes(RefCell<Vec<String>>);

impl Handler<Connector<Client>> for Notes {
    fn called(&self, push: Push, reply: Reply<Connector<Client>>) {
        self.0.borrow_mut().push(format!("push {push:?}"));
        reply.send(&PushAnswer::Done).unwrap();
    }

    fn closed(&self, reason: &str) {
        self.0.borrow_mut().push(format!("closed: {reason}"));
    }
}

fn listen() -> Listener {
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    Listener::bind(any, &SocketOptions::default()).unwrap()
}

async fn connect(
    address: SocketAddr,
    credential: &Credential,
    handler: &Rc<Notes>,
) -> Result<Connection<Connector<Client>>, RpcError> {
    let handler = Rc::clone(handler) as Rc<dyn Handler<Connector<Client>>>;
    Connection::connect(address, &SocketOptions::default(), credential, Limits::default(), handler)
        .await
}

/// Returns a connected pair.
async fn pair(notes: &Rc<Notes>) -> (Connection<Connector<Client>>, Connection<Acceptor<Client>>) {
    pair_by(GUARD, &CREDENTIAL, notes).await
}

/// Returns a connected pair inside TLS.
async fn pair_inside_tls(
    notes: &Rc<Notes>,
) -> (Connection<Connector<Client>>, Connection<Acceptor<Client>>) {
    let job = tls::JobKey::generate();
    let node = job.of(&tls::Holder::Node("node1".into())).unwrap();
    pair_by(Guard::of_job(&job).unwrap(), &Credential::Tls(node), notes).await
}

async fn pair_by(
    guard: Guard,
    credential: &Credential,
    notes: &Rc<Notes>,
) -> (Connection<Connector<Client>>, Connection<Acceptor<Client>>) {
    let listener = listen();
    let address = listener.local_addr();
    let accepting = reactor::spawn(async move {
        let knock = listener.accept().await.unwrap();
        knock.authenticate(&guard, Limits::default()).await.unwrap().start(Rc::new(Service))
    });
    let connection = connect(address, credential, notes).await.unwrap();
    (connection, accepting.await.unwrap())
}

/// Goal: many calls under way at once all get their answers, and pushes theirs.
#[test]
fn calls_and_pushes_are_answered() {
    run(async {
        for is_tls in [false, true] {
            let notes = Rc::new(Notes::default());
            let pair =
                async { if is_tls { pair_inside_tls(&notes).await } else { pair(&notes).await } };
            let (client, service) = pair.await;
            let calls: Vec<_> = (0..1000).map(|_| client.call(&request(), None)).collect();
            let push = service.call(&Push::Reclaim { free_epoch: FreeEpoch(3) }, None);
            for call in calls {
                assert_eq!(call.await.unwrap().result, Ok(Answer::Done));
            }
            assert_eq!(push.await.unwrap(), PushAnswer::Done);
            assert_eq!(client.calls_out(), 0);
            assert_eq!(notes.0.borrow().len(), 1);
        }
    });
}

/// Goal: a call without an answer ends at its deadline, and with the connection.
#[test]
fn calls_end_by_deadline_and_by_close() {
    run(async {
        let (client, service) = pair_inside_tls(&Rc::new(Notes::default())).await;
        let silent = Request { slot: None, call: Call::Read(ReadCall::GetAttr(InodeId(99))) };
        let late = client.call(&silent, Some(Duration::from_millis(5))).await;
        assert!(matches!(late, Err(RpcError::Deadline(_))), "{late:?}");
        let call = client.call(&silent, None);
        reactor::spawn(async move {
            service.flushed().await;
            drop(service);
        });
        assert!(matches!(call.await, Err(RpcError::Closed(_))));
        let after = client.call(&request(), None).await;
        assert!(matches!(after, Err(RpcError::Closed(_))));
        client.closed().await;
    });
}

/// Goal: both sides detect a wrong secret.
#[test]
fn wrong_secret_is_refused() {
    run(async {
        let listener = listen();
        let address = listener.local_addr();
        let accepting = reactor::spawn(async move {
            let knock = listener.accept().await.unwrap();
            knock.authenticate(&GUARD, Limits::default()).await.map(drop)
        });
        let error = connect(address, &Credential::Plain(Secret([8; 32])), &Rc::default())
            .await
            .unwrap_err();
        assert!(error.to_string().contains("secret"), "{error}");
        assert!(accepting.await.unwrap().is_err());
    });
}

/// Goal: calls of a peer that does not read their answers wait, so that it costs little memory, and
/// continue when it reads.
#[test]
fn calls_wait_for_a_peer_that_does_not_read() {
    run(async {
        let listener = listen();
        let address = listener.local_addr();
        let asked = Rc::new(Cell::new(0));
        let service = Rc::new(Long(Rc::clone(&asked)));
        let accepting = reactor::spawn(async move {
            let knock = listener.accept().await.unwrap();
            let peer = knock.authenticate(&GUARD, Limits::default()).await.unwrap();
            peer.start::<rpc::Client>(service)
        });
        let (stream, mut peer) = shaken_hands(address).await;
        let service = accepting.await.unwrap();
        for _ in 0..CALLS {
            peer.call(&request()).unwrap();
        }
        let calls = peer.take_output(Vec::new());
        stream.send_vectored(vec![reactor::Buffer::copy_from(&calls).into()]).await.0.unwrap();
        // The answers to all would be far more than a socket takes.
        let mut before = u32::MAX;
        while asked.get() != before || before == 0 {
            before = asked.get();
            reactor::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(before < CALLS / 2, "{before} calls were processed");
        assert_eq!(service.closed_reason(), None);
        let mut answers = 0;
        while answers < CALLS {
            let (n, buffer) = stream.recv(reactor::Buffer::with_capacity(65_536), 0..65_536).await;
            assert!(n.unwrap() > 0);
            peer.receive(&buffer);
            while peer.event().unwrap().is_some() {
                answers += 1;
            }
        }
        assert_eq!(asked.get(), CALLS);
    });
}

/// Goal: a peer that does not read is disconnected instead of growing this end's memory.
#[test]
fn a_peer_that_does_not_read_is_disconnected() {
    run(async {
        let listener = listen();
        let address = listener.local_addr();
        let accepting = reactor::spawn(async move {
            let knock = listener.accept().await.unwrap();
            let limits = Limits { output_max_bytes: 1 << 20, ..Limits::default() };
            knock.authenticate(&GUARD, limits).await.unwrap().start(Rc::new(Service))
        });
        let _silent = shaken_hands(address).await;
        let service = accepting.await.unwrap();
        let big = Push::Invalidate {
            inode: InodeId(1),
            names: vec![vec![b'x'; 200_000]],
            stamp: protocol::LeaseStamp(1),
        };
        while service.closed_reason().is_none() {
            drop(service.call(&big, None));
            reactor::yield_now().await;
        }
        assert!(service.closed_reason().unwrap().contains("unread"));
    });
}

/// Returns a peer after a handshake by hand: it receives only when the test does.
async fn shaken_hands(
    address: std::net::SocketAddr,
) -> (reactor::TcpStream, protocol::connection::Peer) {
    let stream = reactor::TcpStream::connect(address, &SocketOptions::default()).await.unwrap();
    let role = protocol::auth::Role::Client;
    let mut peer = protocol::connection::Peer::connect(SECRET, role, [3; 32], Limits::default());
    while !peer.is_ready() {
        let hello = peer.take_output(Vec::new());
        stream.send_vectored(vec![reactor::Chunk::copy_from(&hello)]).await.0.unwrap();
        let (n, buffer) = stream.recv(reactor::Buffer::with_capacity(4096), 0..4096).await;
        n.unwrap();
        peer.receive(&buffer);
        peer.event().unwrap();
    }
    let proof = peer.take_output(Vec::new());
    stream.send_vectored(vec![reactor::Chunk::copy_from(&proof)]).await.0.unwrap();
    (stream, peer)
}

/// Goal: a deferred call comes before the next answer, with the latest state; and alone when it is
/// requested.
#[test]
fn a_deferred_call_is_not_overtaken() {
    run(async {
        let notes = Rc::new(Notes::default());
        let (client, service) = pair(&notes).await;
        service.defer(|| Push::Reclaim { free_epoch: FreeEpoch(1) });
        service.defer(|| Push::Devices(vec![]));
        assert!(notes.0.borrow().is_empty());
        let seen = Rc::new(Cell::new(usize::MAX));
        let (noted, by_then) = (Rc::clone(&seen), Rc::clone(&notes));
        client.call_then(&request(), move |_| noted.set(by_then.0.borrow().len()));
        client.call(&request(), Some(Duration::from_secs(5))).await.unwrap();
        assert_eq!(seen.get(), 1, "the answer came before the deferred call");
        assert_eq!(*notes.0.borrow(), ["push Devices([])"]);
        service.defer(|| Push::Devices(vec![]));
        service.send_deferred();
        service.send_deferred();
        client.call(&request(), Some(Duration::from_secs(5))).await.unwrap();
        assert_eq!(notes.0.borrow().len(), 2);
    });
}
