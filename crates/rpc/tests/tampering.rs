//! Both ends of a connection inside TLS, with a relay between them that sees and changes all bytes.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use protocol::client::{Answer, Call, ReadCall, Request, Response};
use protocol::connection::Peer;
use protocol::{InodeId, auth::Role};
use reactor::{Buffer, Chunk, SocketOptions, TcpListener, TcpStream};
use rpc::{
    Acceptor, Admin, Client, Connection, Connector, Credential, Guard, Handler, Limits, Listener,
    Reply, RpcError,
};
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use tls::{Holder, JobKey};

fn run<T>(test: impl Future<Output = T>) -> T {
    reactor::Runtime::new(&reactor::Config::default()).unwrap().block_on(test)
}

/// A text that is searched on the wire.
const WORD: &[u8] = b"a name that no other may read";

fn request() -> Request {
    let name = WORD.to_vec();
    Request { slot: None, call: Call::Read(ReadCall::Lookup { parent: InodeId(1), name }) }
}

/// Counts the calls that get through.
#[derive(Default)]
struct Service {
    calls: Cell<u32>,
    refused: RefCell<Vec<String>>,
}

/// The service at one connection.
struct Serving(Rc<Service>);

impl Handler<Acceptor<Client>> for Serving {
    fn called(&self, _call: Request, reply: Reply<Acceptor<Client>>) {
        self.0.calls.set(self.0.calls.get() + 1);
        let response = Response { result: Ok(Answer::Done), grants: vec![], changed: vec![] };
        reply.send(&response).unwrap();
    }
}

struct Silent;

impl Handler<Connector<Client>> for Silent {
    fn called(&self, _push: protocol::client::Push, _reply: Reply<Connector<Client>>) {}
}

/// The bytes from the client, in the received pieces.
type Pieces = Rc<RefCell<Vec<Vec<u8>>>>;

/// The change of a piece on the way; the argument is the number of the piece.
type Change = Rc<dyn Fn(usize, Vec<u8>) -> Vec<u8>>;

/// Starts a service that accepts for ever.
fn serve(guard: Guard) -> (SocketAddr, Rc<Service>) {
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind(any, &SocketOptions::default()).unwrap();
    let (address, service) = (listener.local_addr(), Rc::new(Service::default()));
    let shared = Rc::clone(&service);
    reactor::spawn(async move {
        loop {
            let knock = listener.accept().await.unwrap();
            let (guard, shared) = (guard.clone(), Rc::clone(&shared));
            reactor::spawn(async move {
                match knock.authenticate(&guard, Limits::default()).await {
                    Ok(peer) => {
                        let connection = peer.start::<Client>(Rc::new(Serving(Rc::clone(&shared))));
                        connection.closed().await;
                    }
                    Err(error) => shared.refused.borrow_mut().push(error.to_string()),
                }
            });
        }
    });
    (address, service)
}

async fn pass(from: Rc<TcpStream>, to: Rc<TcpStream>, seen: Pieces, change: Change) {
    loop {
        let (n, buffer) = from.recv(Buffer::with_capacity(65_536), 0..65_536).await;
        if n.unwrap_or(0) == 0 {
            let _ = to.shutdown(std::net::Shutdown::Both).await;
            return;
        }
        let number = seen.borrow().len();
        seen.borrow_mut().push(buffer.to_vec());
        let bytes = change(number, buffer.to_vec());
        if to.send_vectored(vec![Chunk::copy_from(&bytes)]).await.0.is_err() {
            return;
        }
    }
}

/// Stands between clients and `service`: returns the bytes of each direction, and changes the bytes
/// from the client.
fn stand_between(service: SocketAddr, change: Change) -> (SocketAddr, Pieces, Pieces) {
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let listener = TcpListener::bind(any, &SocketOptions::default()).unwrap();
    let (there, back) = (Pieces::default(), Pieces::default());
    let address = listener.local_addr();
    let seen = (Rc::clone(&there), Rc::clone(&back));
    reactor::spawn(async move {
        loop {
            let client = Rc::new(listener.accept().await.unwrap().0);
            let server = TcpStream::connect(service, &SocketOptions::default()).await.unwrap();
            let server = Rc::new(server);
            let (there, back) = seen.clone();
            reactor::spawn(pass(Rc::clone(&client), Rc::clone(&server), there, Rc::clone(&change)));
            reactor::spawn(pass(server, client, back, Rc::new(|_, bytes| bytes)));
        }
    });
    (address, there, back)
}

fn unchanged() -> Change {
    Rc::new(|_, bytes| bytes)
}

async fn connect(
    address: SocketAddr,
    credential: &Credential,
) -> Result<Connection<Connector<Client>>, RpcError> {
    let (options, limits) = (SocketOptions::default(), Limits::default());
    Connection::connect(address, &options, credential, limits, Rc::new(Silent)).await
}

fn node(job: &JobKey) -> Credential {
    Credential::Tls(job.of(&Holder::Node("node1".into())).unwrap())
}

fn contains(pieces: &Pieces, word: &[u8]) -> bool {
    pieces.borrow().concat().windows(word.len()).any(|seen| seen == word)
}

/// Goal: nothing of a call or of the key can be read on the wire; without TLS the same search finds
/// the call.
#[test]
fn nothing_can_be_read() {
    run(async {
        let secret = protocol::auth::Secret([7; 32]);
        let (address, _service) = serve(Guard::Plain(secret.clone()));
        let (between, there, _) = stand_between(address, unchanged());
        let client = connect(between, &Credential::Plain(secret)).await.unwrap();
        client.call(&request(), None).await.unwrap();
        assert!(contains(&there, WORD), "the search finds nothing even without TLS");

        let job = JobKey::generate();
        let (address, service) = serve(Guard::of_job(&job).unwrap());
        let (between, there, back) = stand_between(address, unchanged());
        let client = connect(between, &node(&job)).await.unwrap();
        client.call(&request(), None).await.unwrap();
        assert_eq!(service.calls.get(), 1);
        let line = job.of(&Holder::Node("node1".into())).unwrap().to_line();
        let key = line.rsplit_once(' ').unwrap().1.as_bytes();
        for pieces in [&there, &back] {
            assert!(!pieces.borrow().is_empty());
            assert!(!contains(pieces, &WORD[..8]) && !contains(pieces, b"TSMG"));
            assert!(!contains(pieces, key));
        }
    });
}

/// Goal: a call that is changed, repeated or added on the way is not executed, and ends the
/// connection.
#[test]
fn nothing_can_be_changed() {
    let job = JobKey::generate();
    // A call without TLS, as a service without TLS takes it.
    let mut forger = Peer::open(Role::Client, Limits::default());
    let frame = forger.take_output(Vec::new());
    let changes: [(&str, Change); 5] = [
        (
            "changed",
            Rc::new(|_, mut bytes| {
                *bytes.last_mut().unwrap() ^= 1;
                bytes
            }),
        ),
        ("repeated", Rc::new(|_, bytes| bytes.repeat(2))),
        ("added before", Rc::new(move |_, bytes| [&frame[..], &bytes].concat())),
        ("cut", Rc::new(|_, bytes| bytes[1..].to_vec())),
        (
            "another type",
            Rc::new(|_, mut bytes| {
                bytes[0] = 22;
                bytes
            }),
        ),
    ];
    for (name, change) in changes {
        let job = job.clone();
        run(async move {
            let (address, service) = serve(Guard::of_job(&job).unwrap());
            let is_on = Rc::new(Cell::new(false));
            let active = Rc::clone(&is_on);
            let change: Change =
                Rc::new(move |n, bytes| if active.get() { change(n, bytes) } else { bytes });
            let (between, ..) = stand_between(address, change);
            let client = connect(between, &node(&job)).await.unwrap();
            client.call(&request(), None).await.unwrap();
            is_on.set(true);
            let result = client.call(&request(), Some(Duration::from_secs(5))).await;
            if name == "repeated" {
                // The first of the two is the true one: only it may be executed, if it came alone.
                client.closed().await;
                assert!(service.calls.get() <= 2, "{name}");
            } else {
                assert!(matches!(result, Err(RpcError::Closed(_))), "{name}: {result:?}");
                assert_eq!(service.calls.get(), 1, "{name}");
            }
            assert!(client.call(&request(), None).await.is_err(), "{name}");
        });
    }
}

/// Goal: a missing call is detected when the next one comes, which is not executed either.
#[test]
fn nothing_can_be_left_out() {
    run(async {
        let job = JobKey::generate();
        let (address, service) = serve(Guard::of_job(&job).unwrap());
        let leaves_out = Rc::new(Cell::new(false));
        let active = Rc::clone(&leaves_out);
        let change: Change = Rc::new(move |_, bytes| if active.get() { Vec::new() } else { bytes });
        let (between, ..) = stand_between(address, change);
        let client = connect(between, &node(&job)).await.unwrap();
        leaves_out.set(true);
        let result = client.call(&request(), Some(Duration::from_millis(50))).await;
        assert!(matches!(result, Err(RpcError::Deadline(_))), "{result:?}");
        leaves_out.set(false);
        let result = client.call(&request(), Some(Duration::from_secs(5))).await;
        assert!(matches!(result, Err(RpcError::Closed(_))), "{result:?}");
        assert_eq!(service.calls.get(), 0);
    });
}

/// Goal: a recorded stream of a client has no effect when it is sent again over another connection.
#[test]
fn a_recorded_stream_does_nothing() {
    run(async {
        let job = JobKey::generate();
        let (address, service) = serve(Guard::of_job(&job).unwrap());
        let (between, there, _) = stand_between(address, unchanged());
        let client = connect(between, &node(&job)).await.unwrap();
        client.call(&request(), None).await.unwrap();
        let again = TcpStream::connect(address, &SocketOptions::default()).await.unwrap();
        let pieces = there.borrow().clone();
        for piece in pieces {
            let _ = again.send_vectored(vec![Chunk::copy_from(&piece)]).await;
        }
        // The service answers the first message, and ends the connection.
        let mut got = 1;
        while got > 0 {
            got = again.recv(Buffer::with_capacity(4096), 0..4096).await.0.unwrap_or(0);
        }
        assert_eq!(service.calls.get(), 1);
        assert_eq!(service.refused.borrow().len(), 1);
        client.call(&request(), None).await.unwrap();
    });
}

/// Goal: a wrong key, a key of another job, a tool's key and no TLS at all are refused, each with
/// its reason, and the service continues.
#[test]
fn wrong_keys_are_refused() {
    run(async {
        let job = JobKey::generate();
        let (address, service) = serve(Guard::of_job(&job).unwrap());
        let right = job.of(&Holder::Node("node1".into())).unwrap();
        let other = JobKey::generate();
        let foreign = other.of(&Holder::Node("node1".into())).unwrap();
        let line = foreign.to_line();
        let key = line.rsplit_once(' ').unwrap().1;
        let identity = String::from_utf8(right.identity().to_vec()).unwrap();
        let wrong = tls::Psk::from_line(&format!("{identity} {key}")).unwrap();
        let tool = job.of(&Holder::Tools).unwrap();
        let plain = Credential::Plain(protocol::auth::Secret([7; 32]));
        let cases = [
            (Credential::Tls(wrong), "proof"),
            (Credential::Tls(foreign), "no key that is known"),
            (Credential::Tls(tool), "wants to be Client"),
            (plain, "does not speak TLS"),
        ];
        for (number, (credential, reason)) in cases.into_iter().enumerate() {
            let error = connect(address, &credential).await.unwrap_err();
            assert!(!matches!(error, RpcError::Deadline(_)), "{reason}: {error}");
            while service.refused.borrow().len() <= number {
                reactor::yield_now().await;
            }
            let error = service.refused.borrow()[number].clone();
            assert!(error.contains(reason), "{reason}: {error}");
            assert!(!error.contains(key), "{error}");
        }
        let client = connect(address, &Credential::Tls(right)).await.unwrap();
        client.call(&request(), None).await.unwrap();
        assert_eq!(service.calls.get(), 1);
    });
}

impl Handler<Connector<Admin>> for Silent {
    fn called(&self, push: rpc::Nothing, _reply: Reply<Connector<Admin>>) {
        match push {}
    }
}

/// Goal: a node's key does not make its holder a tool.
#[test]
fn a_node_is_no_tool() {
    run(async {
        let job = JobKey::generate();
        let (address, service) = serve(Guard::of_job(&job).unwrap());
        let (options, limits) = (SocketOptions::default(), Limits::default());
        let (credential, handler) = (node(&job), Rc::new(Silent));
        let tool: Result<Connection<Connector<Admin>>, _> =
            Connection::connect(address, &options, &credential, limits, handler).await;
        assert!(matches!(tool, Err(RpcError::Refused)), "{tool:?}");
        while service.refused.borrow().is_empty() {
            reactor::yield_now().await;
        }
        let reason = service.refused.borrow()[0].clone();
        assert!(reason.contains("wants to be Admin"), "{reason}");
    });
}

/// Goal: a client ends the connection to a service that does not know its key.
#[test]
fn a_false_service_is_noticed() {
    run(async {
        let (address, service) = serve(Guard::of_job(&JobKey::generate()).unwrap());
        assert!(connect(address, &node(&JobKey::generate())).await.is_err());
        let (plain, _) = serve(Guard::Plain(protocol::auth::Secret([7; 32])));
        assert!(connect(plain, &node(&JobKey::generate())).await.is_err());
        assert_eq!(service.calls.get(), 0);
    });
}
