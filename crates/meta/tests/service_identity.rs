//! What a node's key permits, and what it does not.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "service_support/support.rs"]
mod support;

use meta::service::{Config, Service, StoreChoice, Times};
use meta::store::MemoryStore;
use protocol::client::{Answer, Call, Request, SessionCall};
use protocol::{Errno, HostId, SessionId, agent};
use reactor::SocketOptions;
use rpc::{Agent, Connection, Connector, Credential, Guard, Handler, Limits, Reply};
use std::net::SocketAddr;
use std::rc::Rc;
use support::*;
use tls::{Holder, JobKey};

fn service_of(job: &JobKey) -> Service {
    let store = StoreChoice::Open(Box::new(MemoryStore::new()));
    let guard = Guard::of_job(job).unwrap();
    Service::start(Config { guard, ..config(store, Times::default()) }).unwrap()
}

fn node(job: &JobKey, name: &str) -> Credential {
    Credential::Tls(job.of(&Holder::Node(name.into())).unwrap())
}

/// Returns the answer to the first call of a new connection with this key, and the connection.
async fn first(
    address: SocketAddr,
    credential: &Credential,
    call: SessionCall,
) -> (Result<Answer, Errno>, Connection<Connector<rpc::Client>>) {
    let connection = dial(address, credential, &new_state()).await.unwrap();
    let request = Request { slot: None, call: Call::Session(call) };
    (connection.call(&request, None).await.unwrap().result, connection)
}

fn start(node: &str, host: HostId, resume: Option<SessionId>) -> SessionCall {
    SessionCall::Start { node: node.into(), host, resume }
}

struct Idle;

impl Handler<Connector<Agent>> for Idle {
    fn called(&self, _push: agent::Push, _reply: Reply<Connector<Agent>>) {}
}

async fn agent_of(address: SocketAddr, credential: &Credential) -> Connection<Connector<Agent>> {
    let (options, limits) = (SocketOptions::default(), Limits::default());
    Connection::connect(address, &options, credential, limits, Rc::new(Idle)).await.unwrap()
}

/// Goal: the holder of one node's key cannot start, resume or keep alive a session of another node,
/// cannot register devices as that node's, and cannot end its sessions.
#[test]
fn a_node_cannot_pose_as_another() {
    run(async {
        let job = JobKey::generate();
        let service = service_of(&job);
        let (one, two) = (node(&job, "node1"), node(&job, "node2"));
        let address = service.address();
        let host = HostId([7; 16]);
        let (welcome, own) = first(address, &one, start("node1", host, None)).await;
        let Ok(Answer::Welcome { session, .. }) = welcome else { panic!("{welcome:?}") };

        let (answer, _) = first(address, &two, start("node1", HostId([8; 16]), None)).await;
        assert_eq!(answer, Err(Errno::EACCES));
        let (answer, _) = first(address, &two, start("node2", host, Some(session))).await;
        assert_eq!(answer, Err(Errno::EBUSY), "another node's session is resumed");
        let (answer, _) = first(address, &two, SessionCall::Pulse { session, host }).await;
        assert_eq!(answer, Err(Errno::ESTALE), "another node's session is kept alive");
        let (answer, _) = first(address, &one, SessionCall::Pulse { session, host }).await;
        assert!(matches!(answer, Ok(Answer::Alive { .. })), "{answer:?}");

        let agent = agent_of(address, &two).await;
        let devices = vec![device(1, 65536)];
        let beat = beat();
        let call = agent::Call::Register {
            node: "node1".into(),
            devices: devices.clone(),
            beat,
            demand: agent::Demand::Identifier,
        };
        let answer = agent.call(&call, None).await.unwrap();
        assert!(matches!(answer, agent::Answer::Refused(_)), "{answer:?}");
        agent.call(&agent::Call::HostDied(host), None).await.unwrap();
        assert_eq!(own.closed_reason(), None, "another node's session is ended");
        let (answer, _) = first(address, &one, SessionCall::Pulse { session, host }).await;
        assert!(matches!(answer, Ok(Answer::Alive { .. })), "{answer:?}");
        let call = agent::Call::Register {
            node: "node2".into(),
            devices,
            beat,
            demand: agent::Demand::Identifier,
        };
        let answer = agent.call(&call, None).await.unwrap();
        assert!(matches!(answer, agent::Answer::Registered(_)), "{answer:?}");
    });
}
