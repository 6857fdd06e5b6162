//! Shared code of this crate's tests (a metadata service, and a bare client of it), and the tests
//! of a client with a stalled serving thread.

mod data_keys;

use client::{Client, ClientConfig, SessionConfig};
use meta::service::{Config, Service, StoreChoice};
use meta::store::MemoryStore;
use protocol::auth::Secret;
use protocol::client::{
    Answer, Call, ChangeCall, Creation, Push, PushAnswer, Request, SessionCall, Slot,
};
use protocol::lease::Recalled;
use protocol::times::Times;
use protocol::{Errno, FreeEpoch, HostId, InodeId, Rights, SessionId};
use reactor::SocketOptions;
use reactor::time::sleep;
use rpc::{Connection, Connector, Credential, Guard, Limits, Reply};
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

pub(crate) const SECRET: Secret = Secret([7; 32]);
pub(crate) const CREDENTIAL: Credential = Credential::Plain(SECRET);

/// Returns a metadata service on a store in memory.
pub(crate) fn service(times: Times) -> Service {
    service_with_keys(times, None)
}

/// Returns a metadata service with keys for targets that use TLS.
fn service_with_keys(times: Times, data_keys: Option<tls::JobKey>) -> Service {
    Service::start(Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        network_namespace: None,
        store: StoreChoice::Open(Box::new(MemoryStore::new())),
        guard: Guard::Plain(SECRET),
        data_keys,
        root: (0o755, 0, 0),
        boot: Some(uuid::Uuid::from_u128(1)),
        times,
    })
    .unwrap()
}

/// A session without the client library.
#[derive(Clone)]
pub(crate) struct TestClient {
    link: Connection<Connector<rpc::Client>>,
    pub(crate) host: HostId,
    pub(crate) is_silent: Rc<Cell<bool>>,
    sequence: Rc<Cell<u64>>,
}

/// A handler that gives back every right that the service asks for, but does not answer while it is
/// silent.
struct Obliging(Rc<Cell<bool>>);

impl rpc::Handler<Connector<rpc::Client>> for Obliging {
    fn called(&self, push: Push, reply: Reply<Connector<rpc::Client>>) {
        if self.0.get() {
            return;
        }
        let answer = match push {
            Push::Recall(recall) => {
                PushAnswer::Recalled(Recalled { inode: recall.inode, kept: Rights::NONE })
            }
            _ => PushAnswer::Done,
        };
        reply.send(&answer).unwrap();
    }
}

impl TestClient {
    pub(crate) async fn start(meta: SocketAddr) -> TestClient {
        let mut host = [0; 16];
        reactor::random::fill(&mut host);
        let (host, is_silent) = (HostId(host), Rc::new(Cell::new(false)));
        let handler = Rc::new(Obliging(Rc::clone(&is_silent)));
        let (options, limits) = (SocketOptions::default(), Limits::default());
        let link = Connection::connect(meta, &options, &CREDENTIAL, limits, handler).await.unwrap();
        let client = TestClient { link, host, is_silent, sequence: Rc::default() };
        client
            .call(Call::Session(SessionCall::Start { node: "node1".into(), host, resume: None }))
            .await
            .unwrap();
        client
    }

    pub(crate) fn beat_always(&self) {
        let client = self.clone();
        reactor::spawn(async move {
            while !client.is_silent.get() {
                let call = Call::Session(SessionCall::Heartbeat {
                    ended_through: FreeEpoch(0),
                    working_on: Vec::new(),
                });
                let _ = client.call(call).await;
                sleep(Duration::from_millis(20)).await;
            }
        });
    }

    pub(crate) async fn call(&self, call: Call) -> Result<Answer, Errno> {
        let slot = call.changes().then(|| {
            self.sequence.set(self.sequence.get() + 1);
            Slot { slot: 0, sequence: self.sequence.get() }
        });
        self.link.call(&Request { slot, call }, None).await.unwrap().result
    }

    pub(crate) async fn create(&self, parent: InodeId, name: &str, rights: Rights) -> InodeId {
        let create = Call::Change(ChangeCall::Create {
            parent,
            name: name.into(),
            creation: Creation::File,
            mode: 0o644,
            uid: 0,
            gid: 0,
            rights,
        });
        match self.call(create).await.unwrap() {
            Answer::Entry(attr) => attr.inode,
            other => panic!("{other:?}"),
        }
    }
}

/// Runs a client on a thread of its own that is blocked for a while. Returns its session's number
/// before and after.
fn stalled(
    meta: SocketAddr,
    times: Times,
    stall: Duration,
) -> reactor::thread::JoinHandle<Sessions> {
    reactor::thread::spawn("stalled", &reactor::Config::default(), move || async move {
        let session = SessionConfig {
            meta,
            credential: CREDENTIAL,
            node: "node1".into(),
            times,
            sockets: SocketOptions::default(),
        };
        let config = ClientConfig {
            session,
            local: Box::new(|_, _, _| None),
            plain_data: true,
            changes: None,
            inline_bytes: 0,
            checksum: true,
        };
        let client = Client::start(config).await.unwrap();
        let before = client.session_id();
        std::thread::sleep(stall);
        // The client notices within a heartbeat what happened meanwhile.
        sleep(times.heartbeat * 2).await;
        while client.pool_use().await.is_err() {
            sleep(times.heartbeat).await;
        }
        let after = client.session_id();
        client.end().await.unwrap();
        (before, after)
    })
    .unwrap()
}

type Sessions = (Option<SessionId>, Option<SessionId>);

/// Goal: a serving thread that is blocked for longer than the session's deadline does not end the
/// session, because the heartbeats have a thread of their own.
#[test]
fn a_stall_does_not_end_a_session() {
    let times = Times { stall_max: Duration::from_mins(1), ..Times::faster(20) };
    reactor::Runtime::new(&reactor::Config::default()).unwrap().block_on(async {
        let service = service(times);
        let stall = times.session_deadline * 2;
        let (before, after) = stalled(service.address(), times, stall).await.unwrap();
        assert!(before.is_some());
        assert_eq!(before, after);
    });
}

/// Goal: a client whose serving thread never continues loses its session.
#[test]
fn a_wedged_client_does_not_keep_its_session() {
    let times = Times { stall_max: Times::faster(20).session_deadline, ..Times::faster(20) };
    reactor::Runtime::new(&reactor::Config::default()).unwrap().block_on(async {
        let service = service(times);
        let stall = times.stall_max + times.session_deadline * 2;
        let (before, after) = stalled(service.address(), times, stall).await.unwrap();
        assert_ne!(before, after);
    });
}
