//! Tests of the agent with a real metadata service, over a line that can hold messages back.

use super::*;
use crate::tests::{CREDENTIAL, TestClient, service};
use protocol::client::{Call as ClientCall, SessionCall};
use protocol::space::{DeviceAddress, Transport};
use protocol::{InodeId, Rights};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use target::{AdmissionMode, Limits as TargetLimits, Target};

/// A line that can hold messages from the service to the agent: they arrive later, in order, as if
/// TCP had delayed them. While it holds messages it accepts no new connections.
struct Line {
    address: SocketAddr,
    is_held: Arc<AtomicBool>,
    takes_connections: Arc<AtomicBool>,
}

impl Line {
    fn start(service: SocketAddr) -> Line {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let line = Line {
            address: listener.local_addr().unwrap(),
            is_held: Arc::default(),
            takes_connections: Arc::new(AtomicBool::new(true)),
        };
        let (held, takes) = (Arc::clone(&line.is_held), Arc::clone(&line.takes_connections));
        std::thread::spawn(move || {
            let mut refused = Vec::new();
            for agent in listener.incoming() {
                let agent = agent.unwrap();
                if !takes.load(Ordering::SeqCst) {
                    // The connection gets no answer.
                    refused.push(agent);
                    continue;
                }
                let service = TcpStream::connect(service).unwrap();
                let (from, to) = (agent.try_clone().unwrap(), service.try_clone().unwrap());
                std::thread::spawn(move || pump(from, to, &AtomicBool::new(false)));
                let held = Arc::clone(&held);
                std::thread::spawn(move || pump(service, agent, &held));
            }
        });
        line
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, held: &AtomicBool) {
    let mut bytes = [0; 4096];
    loop {
        let count = match from.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        while held.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

fn config(line: &Line, times: Times) -> AgentConfig {
    let admissions = Admissions::new(AdmissionMode::Controlled);
    // The target exports nothing; only the admissions matter here.
    drop(Target::new(TargetLimits::default(), Arc::clone(&admissions)).unwrap());
    AgentConfig {
        meta: line.address,
        sockets: SocketOptions::default(),
        credential: CREDENTIAL,
        times,
        node: "node1".into(),
        devices: vec![DeviceInfo {
            device: DeviceId(0),
            uuid: uuid::Uuid::from_u128(1),
            node: "node1".into(),
            address: DeviceAddress {
                traddr: "127.0.0.1:4420".into(),
                subnqn: "nqn.2014-08.org.example:test".into(),
                nsid: 1,
                transport: Transport::Tcp,
            },
            block_size: 4096,
            blocks: 65536,
            incarnation: protocol::Incarnation(1),
            is_volatile: false,
            online: true,
        }],
        namespaces: Vec::new(),
        admissions,
        demand: protocol::agent::Demand::Identifier,
    }
}

/// Goal: a delayed renewal admits no host for longer than the service counts: when the service
/// gives a silent session's rights to another, the target refuses the silent session's host.
#[test]
fn a_renewal_that_was_stuck_extends_nothing() {
    let times = Times {
        heartbeat: Duration::from_millis(50),
        self_stop: Duration::from_millis(150),
        session_deadline: Duration::from_millis(300),
        admission_lapse: Duration::from_millis(900),
        admission_renewal: Duration::from_millis(100),
        ..Times::default()
    };
    reactor::Runtime::new(&reactor::Config::default()).unwrap().block_on(async {
        let service = service(times);
        let line = Line::start(service.address());
        // The agent waits long for answers: it must still listen when the line is free.
        let patient = Times { session_deadline: Duration::from_secs(10), ..times };
        let config = config(&line, patient);
        let admissions = Arc::clone(&config.admissions);
        let (agent, connection) = Agent::start(config).await.unwrap();
        let device = agent.ids.borrow()[0];
        let agent = reactor::spawn(agent.keep(connection));
        let silent = TestClient::start(service.address()).await;
        let other = TestClient::start(service.address()).await;
        silent.beat_always();
        other.beat_always();
        let inode = silent.create(InodeId::ROOT, "f", Rights::SIZE).await;
        silent.call(ClientCall::Session(SessionCall::Admit(device))).await.unwrap();
        let host = nvme::HostId(silent.host.0);
        assert_eq!(admissions.check(host), Ok(()));
        line.takes_connections.store(false, Ordering::SeqCst);
        line.is_held.store(true, Ordering::SeqCst);
        silent.is_silent.set(true);
        let taken = reactor::spawn(async move {
            other
                .call(ClientCall::Session(SessionCall::Acquire { inode, rights: Rights::SIZE }))
                .await
                .unwrap();
        });
        // Renewals are sent meanwhile, and arrive before the earlier admission has lapsed.
        sleep(Duration::from_millis(600)).await;
        line.is_held.store(false, Ordering::SeqCst);
        taken.await.unwrap();
        assert!(admissions.check(host).is_err(), "it has the right, and may still write");
        agent.abort();
    });
}

/// Goal: an admission counts from its beat, no matter when it arrives; a beat in the future counts
/// as one of now.
#[test]
fn admissions_count_from_beats() {
    reactor::Runtime::new(&reactor::Config::default()).unwrap().block_on(async {
        let admissions = Admissions::new(AdmissionMode::Controlled);
        let old = beat(&admissions);
        sleep(Duration::from_millis(2)).await;
        let expected = Moment::from_ns(old.0) + Duration::from_millis(5);
        assert_eq!(lapse(&admissions, old, 5), expected);
        let bound = admissions.now() + Duration::from_secs(1);
        assert!(lapse(&admissions, Beat(u64::MAX), 5) < bound);
    });
}
