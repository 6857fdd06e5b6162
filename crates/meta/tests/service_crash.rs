//! The service in a process of its own that is killed, and hostile peers.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "service_support/support.rs"]
mod support;

use meta::service::{Service, StoreChoice, Times};
use meta::store::{CrashPoint, MemoryStore};
use meta::tree::{Boot, Core};
use protocol::auth::{Role, Secret};
use protocol::client::{
    Answer, Call, ChangeCall, OpenTold, ReadCall, Request, Response, SessionCall, Slot,
};
use protocol::connection::{Event, Limits, Peer};
use protocol::frame::{self, Kind};
use protocol::{Errno, FreeEpoch, HostId, InodeId, Rights};
use reactor::{Buffer, Chunk, SocketOptions, TcpStream};
use rpc::Credential;
use serde::ser::{Serialize, SerializeTuple, Serializer};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use support::*;

const ROOT: InodeId = InodeId::ROOT;

/// Set in the environment of the child process: the store's directory.
const CHILD: &str = "TSUMUGI_TEST_META_DIRECTORY";

/// Not a test: the child process of `a_killed_service_forgets_nothing` runs this.
#[test]
fn child_service() {
    let Ok(directory) = std::env::var(CHILD) else { return };
    let mut runtime = reactor::Runtime::new(&reactor::Config::default()).unwrap();
    runtime.block_on(async {
        let store = StoreChoice::Directory { path: directory.into(), accept_loss: false };
        let service = Service::start(config(store, Times::default())).unwrap();
        println!("\nlistening {}", service.address());
        // Killed long before.
        reactor::time::sleep(Duration::from_mins(1)).await;
    });
}

/// Starts the child and waits until it listens.
fn start_child(directory: &Path) -> (Child, SocketAddr) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_service", "--nocapture"])
        .env(CHILD, directory)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let address = output
        .lines()
        .find_map(|line| line.unwrap().strip_prefix("listening ").map(str::to_owned))
        .expect("the child listens");
    (child, address.parse().unwrap())
}

/// Goal: the store cannot forget a session that was admitted at a device, even if its machine loses
/// power in the next moment: otherwise it would not be fenced there.
#[test]
fn admissions_survive_power_loss() {
    run(async {
        let store = MemoryStore::new();
        // Only requested syncs.
        let times = Times { writeback: Duration::from_mins(10), ..Times::default() };
        let choice = StoreChoice::Open(Box::new(store.clone()));
        let service = Service::start(config(choice, times)).unwrap();
        let agent = TestAgent::start(service.address(), vec![device(1, 1000)]).await;
        let client = TestClient::start(service.address()).await;
        let id = agent.devices[0];
        assert!(matches!(
            client.call(Call::Session(SessionCall::Admit(id))).await,
            Ok(Answer::Admitted { .. })
        ));
        let left = store.crashed(CrashPoint::Power { kept: 0 });
        let boot = Boot {
            boot: uuid::Uuid::from_u128(2),
            file_system: uuid::Uuid::from_u128(2),
            now: protocol::Timestamp(0),
            root: (0o755, 0, 0),
        };
        let (core, _) = Core::open(Box::new(left), &boot).unwrap();
        let (_, session) = core.sessions().next().expect("the store forgot the session");
        assert_eq!(session.admitted, [id]);
    });
}

/// Goal: answered changes exist after kill -9, each retried call has its first answer, and the
/// session continues.
#[test]
fn a_killed_service_forgets_nothing() {
    let directory = tempfile::tempdir().unwrap();
    for round in 0..3 {
        let (mut child, address) = start_child(directory.path());
        run(async {
            let client = TestClient::start(address).await;
            let mut answered: Vec<(Request, Response)> = Vec::new();
            for n in 0..200 {
                let name = format!("f{round}-{n}");
                let request = client.request(create(ROOT, &name, Rights::NONE));
                let response = client.send(&request).await.unwrap();
                answered.push((request, response));
            }
            // Killed under load: these may be executed or not.
            let unanswered: Vec<Request> = (0..50)
                .map(|n| client.request(create(ROOT, &format!("u{round}-{n}"), Rights::NONE)))
                .collect();
            let load: Vec<_> = unanswered.iter().map(|r| client.connection.call(r, None)).collect();
            reactor::yield_now().await;
            child.kill().unwrap();
            child.wait().unwrap();
            for call in load {
                let _ = call.await;
            }
            let (mut child, address) = start_child(directory.path());
            let again = client.reconnect(address).await;
            again.heartbeat_always();
            assert!(again.resumed);
            again
                .call(Call::Session(SessionCall::Reclaim { held: vec![], done: true }))
                .await
                .unwrap();
            for (request, response) in &answered {
                let Call::Change(ChangeCall::Create { name, .. }) = &request.call else { panic!() };
                let name = String::from_utf8(name.clone()).unwrap();
                let found = again.lookup(ROOT, &name).await.unwrap().unwrap();
                let Ok(Answer::Entry(attr)) = &response.result else { panic!("{response:?}") };
                assert_eq!(found.inode, attr.inode);
            }
            for request in &unanswered {
                let first = again.send(request).await.unwrap().result;
                assert!(matches!(first, Ok(Answer::Entry(_))), "{first:?}");
                assert_eq!(again.send(request).await.unwrap().result, first);
            }
            again.call(Call::Session(SessionCall::End)).await.unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
        });
    }
}

/// Goal: a peer that does not know the secret learns nothing and does nothing.
#[test]
fn a_wrong_secret_is_refused() {
    run(async {
        let service = service(Times::default());
        let error = dial(service.address(), &Credential::Plain(Secret([8; 32])), &new_state())
            .await
            .unwrap_err();
        assert!(error.to_string().contains("secret"), "{error}");
        TestClient::start(service.address()).await;
    });
}

/// Bytes as a message's body, unchanged.
struct Raw<'a>(&'a [u8]);

impl Serialize for Raw<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut tuple = serializer.serialize_tuple(self.0.len())?;
        for byte in self.0 {
            tuple.serialize_element(byte)?;
        }
        tuple.end()
    }
}

/// A small generator: the test must replay from its seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// A connection on which anything can be sent.
struct Attacker {
    stream: TcpStream,
    peer: Peer,
    tag: u64,
}

impl Attacker {
    async fn connect(address: SocketAddr) -> Attacker {
        let stream = TcpStream::connect(address, &SocketOptions::default()).await.unwrap();
        let peer = Peer::connect(SECRET, Role::Client, [3; 32], Limits::default());
        Attacker { stream, peer, tag: 1 }
    }

    async fn send(&self, bytes: &[u8]) -> bool {
        self.stream.send_vectored(vec![Chunk::copy_from(bytes)]).await.0.is_ok()
    }

    /// Takes answers until `count` have come; returns false if the service closed the connection.
    async fn take(&mut self, mut count: usize) -> bool {
        let buffer = Buffer::with_capacity(65536);
        let mut buffer = Some(buffer);
        loop {
            while let Ok(Some(event)) = self.peer.event() {
                if matches!(event, Event::Ready(_) | Event::Call { .. } | Event::Answer { .. }) {
                    count = count.saturating_sub(1);
                }
            }
            if count == 0 {
                return true;
            }
            let mut empty = buffer.take().unwrap();
            empty.clear();
            let receive = self.stream.recv(empty, 0..65536);
            // A mutated call may wait, which does no harm.
            let Ok((result, filled)) =
                reactor::time::timeout(Duration::from_millis(50), receive).await
            else {
                return true;
            };
            if result.unwrap_or(0) == 0 {
                return false;
            }
            self.peer.receive(&filled);
            buffer = Some(filled);
        }
    }

    async fn shake(&mut self) {
        let hello = self.peer.take_output(Vec::new());
        self.send(&hello).await;
        assert!(self.take(1).await);
        let proof = self.peer.take_output(Vec::new());
        self.send(&proof).await;
    }

    /// Sends a body as a call.
    async fn call_raw(&mut self, body: &[u8]) -> bool {
        let mut bytes = Vec::new();
        frame::encode(Kind::Call, self.tag, &Raw(body), &mut bytes).unwrap();
        self.tag += 1;
        self.send(&bytes).await
    }
}

fn encoded(request: &Request) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::encode(Kind::Call, 0, request, &mut bytes).unwrap();
    bytes.split_off(frame::HEADER_BYTES)
}

/// Calls of all kinds, to be mutated.
fn samples() -> Vec<Call> {
    use protocol::attr::AttrChanges;
    use protocol::client::{FallocateMode, RenameMode, XattrMode};
    use protocol::lock::{Lock, LockFamily, LockMode, LockOwner};
    let inode = InodeId(2);
    let name = b"a".to_vec();
    let lock = Lock {
        inode,
        family: LockFamily::Posix,
        owner: LockOwner(1),
        start: 0,
        last: 9,
        mode: LockMode::Exclusive,
        pid: 1,
    };
    let changes = AttrChanges { size: Some(1000), ..AttrChanges::default() };
    let rename = Call::Change(ChangeCall::Rename {
        parent: ROOT,
        name: name.clone(),
        new_parent: ROOT,
        new_name: b"b".to_vec(),
        mode: RenameMode::Exchange,
        told: OpenTold::OfAny,
    });
    let xattr = Call::Change(ChangeCall::SetXattr {
        inode,
        name: b"user.x".to_vec(),
        value: vec![1; 20],
        mode: XattrMode::Set,
    });
    let device = protocol::DeviceId(0);
    vec![
        create(ROOT, "a", Rights(15)),
        Call::Read(ReadCall::Lookup { parent: ROOT, name: name.clone() }),
        Call::Read(ReadCall::GetAttr(inode)),
        Call::Read(ReadCall::ReadDir { inode: ROOT, after: 0, count_max: 100 }),
        Call::Session(SessionCall::Acquire { inode, rights: Rights(15) }),
        Call::Change(ChangeCall::SetAttr { inode, changes }),
        Call::Change(ChangeCall::Link { inode, parent: ROOT, name: b"c".to_vec() }),
        rename,
        xattr,
        Call::Read(ReadCall::ListXattr(inode)),
        Call::Read(ReadCall::ReadExtents { inode, offset: 0, length: 1 << 20 }),
        Call::Change(ChangeCall::Fallocate {
            inode,
            offset: 5,
            length: 99,
            mode: FallocateMode::Punch,
        }),
        Call::Change(ChangeCall::LeaseSpace { device, wanted_bytes: 1 << 20 }),
        Call::Change(ChangeCall::ReturnSpace { device, free: vec![] }),
        Call::Change(ChangeCall::SetLock { lock, wait: false }),
        Call::Change(ChangeCall::Unlock(lock)),
        Call::Read(ReadCall::TestLock(lock)),
        Call::Session(SessionCall::Reclaim { held: vec![(inode, Rights(14))], done: true }),
        Call::Session(SessionCall::Heartbeat {
            ended_through: FreeEpoch(1),
            working_on: Vec::new(),
        }),
        Call::Session(SessionCall::Admit(device)),
        Call::Change(ChangeCall::Unlink { parent: ROOT, name, told: OpenTold::OfAny }),
        Call::Session(SessionCall::Devices),
        Call::Read(ReadCall::PoolUse),
        Call::Session(SessionCall::Sync(None)),
    ]
}

/// Runs one hostile session: a valid beginning, then mutated calls.
async fn attack(address: SocketAddr, random: &mut Random) {
    let mut attacker = Attacker::connect(address).await;
    if random.below(4) == 0 {
        let junk: Vec<u8> = (0..random.below(600)).map(|_| random.next() as u8).collect();
        attacker.send(&junk).await;
        return;
    }
    attacker.shake().await;
    let mut host = [0; 16];
    host[..8].copy_from_slice(&random.next().to_le_bytes());
    let start =
        Call::Session(SessionCall::Start { node: "evil".into(), host: HostId(host), resume: None });
    attacker.call_raw(&encoded(&Request { slot: None, call: start })).await;
    if !attacker.take(1).await {
        return;
    }
    let samples = samples();
    for n in 0..24 {
        let call = samples[random.below(samples.len())].clone();
        let slot = call.changes().then_some(Slot { slot: n, sequence: 1 });
        let mut body = encoded(&Request { slot, call });
        for _ in 0..random.below(3) {
            let at = random.below(body.len());
            body[at] ^= 1 << random.below(8);
        }
        if !attacker.call_raw(&body).await || !attacker.take(1).await {
            return;
        }
    }
}

/// Goal: neither random bytes nor mutated messages of a valid session end the service or keep it
/// from serving others.
#[test]
fn hostile_peers_do_no_harm() {
    let seed = 0x5eed_0001;
    run(async {
        let times = Times { request_deadline: Duration::from_millis(300), ..short_times() };
        let service = service(times);
        let agent = TestAgent::start(service.address(), vec![device(1, 65536)]).await;
        let client = TestClient::start(service.address()).await;
        let mut random = Random(seed);
        for round in 0..80 {
            attack(service.address(), &mut random).await;
            let name = format!("honest{round}");
            let made = client.create(ROOT, &name).await;
            assert!(made.is_ok() || made == Err(Errno::ETIMEDOUT), "{made:?}");
        }
        assert_eq!(agent.connection.closed_reason(), None);
        assert_eq!(client.call(Call::Session(SessionCall::Sync(None))).await, Ok(Answer::Done));
        service.stop().await.unwrap();
    });
}
