//! Small clients and agents for tests of the service over real TCP.
#![allow(dead_code, reason = "each test binary uses a part")]

use meta::service::{Config, Service, StoreChoice, Times};
use meta::store::MemoryStore;
use protocol::auth::Secret;
use protocol::client::{
    Answer, Call, ChangeCall, Creation, Push, PushAnswer, ReadCall, Request, Response, SessionCall,
    Slot,
};
use protocol::lease::Recalled;
use protocol::space::{DeviceAddress, DeviceInfo, NewAllocation, SpaceGrant, Transport};
use protocol::{
    AllocationId, Attr, DeviceId, Errno, Extent, ExtentList, FreeEpoch, Generation, HostId,
    Incarnation, InodeId, Place, Rights, SessionId, agent,
};
use reactor::SocketOptions;
use rpc::{
    Agent, Client, Connection, Connector, Credential, Guard, Handler, Limits, Reply, RpcError,
};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

pub(crate) const SECRET: Secret = Secret([7; 32]);
pub(crate) const CREDENTIAL: Credential = Credential::Plain(SECRET);

/// Runs a test on a ring.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    let mut runtime = reactor::Runtime::new(&reactor::Config::default()).unwrap();
    runtime.block_on(async {
        reactor::time::timeout(Duration::from_mins(1), test).await.expect("the test hangs")
    })
}

/// Returns short times, for tests of silence.
pub(crate) fn short_times() -> Times {
    Times {
        session_deadline: Duration::from_millis(600),
        self_stop: Duration::from_millis(300),
        request_deadline: Duration::from_secs(5),
        admission_lapse: Duration::from_millis(900),
        admission_renewal: Duration::from_millis(200),
        ..Times::default()
    }
}

pub(crate) fn config(store: StoreChoice, times: Times) -> Config {
    Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        network_namespace: None,
        store,
        guard: Guard::Plain(SECRET),
        data_keys: None,
        root: (0o755, 0, 0),
        boot: Some(uuid::Uuid::from_u128(1)),
        times,
    }
}

/// Starts a service on a store in memory.
pub(crate) fn service(times: Times) -> Service {
    let store = StoreChoice::Open(Box::new(MemoryStore::new()));
    Service::start(config(store, times)).unwrap()
}

/// Handles a push; `None` leaves it to the default.
type Policy = Box<dyn Fn(&Rc<State>, &Push, &mut Option<Reply<Connector<Client>>>)>;

/// A client's state, shared with its connection.
pub(crate) struct State {
    pub(crate) rights: RefCell<HashMap<InodeId, Rights>>,
    pub(crate) pushes: RefCell<Vec<Push>>,
    policy: RefCell<Option<Policy>>,
}

struct ClientHandler(Rc<State>);

impl Handler<Connector<Client>> for ClientHandler {
    fn called(&self, push: Push, reply: Reply<Connector<Client>>) {
        let mut reply = Some(reply);
        self.0.pushes.borrow_mut().push(push.clone());
        let policy = self.0.policy.take();
        if let Some(policy) = policy {
            policy(&self.0, &push, &mut reply);
            self.0.policy.borrow_mut().get_or_insert(policy);
        }
        let Some(reply) = reply else { return };
        let answer = match push {
            Push::Recall(recall) => {
                let mut rights = self.0.rights.borrow_mut();
                let held = rights.entry(recall.inode).or_default();
                *held = *held - recall.rights;
                let kept = *held & Rights::OPEN;
                PushAnswer::Recalled(Recalled { inode: recall.inode, kept })
            }
            Push::Reclaim { free_epoch } => PushAnswer::Ended(free_epoch),
            _ => PushAnswer::Done,
        };
        reply.send(&answer).unwrap();
    }
}

/// A client of the service.
#[derive(Clone)]
pub(crate) struct TestClient {
    pub(crate) connection: Connection<Connector<Client>>,
    pub(crate) state: Rc<State>,
    pub(crate) session: SessionId,
    pub(crate) host: HostId,
    pub(crate) devices: Vec<DeviceInfo>,
    pub(crate) resumed: bool,
    slots: Rc<RefCell<Slots>>,
}

#[derive(Default)]
struct Slots {
    free: Vec<u16>,
    sequences: HashMap<u16, u64>,
    next: u16,
}

pub(crate) async fn dial(
    address: SocketAddr,
    credential: &Credential,
    state: &Rc<State>,
) -> Result<Connection<Connector<Client>>, RpcError> {
    let handler = Rc::new(ClientHandler(Rc::clone(state)));
    let options = SocketOptions::default();
    Connection::connect(address, &options, credential, Limits::default(), handler).await
}

pub(crate) fn new_state() -> Rc<State> {
    Rc::new(State {
        rights: RefCell::default(),
        pushes: RefCell::default(),
        policy: RefCell::new(None),
    })
}

impl TestClient {
    /// Connects and starts a session that sends heartbeats by itself.
    pub(crate) async fn start(address: SocketAddr) -> TestClient {
        let client = TestClient::start_silent(address).await;
        client.heartbeat_always();
        client
    }

    /// Connects and starts a session without heartbeats.
    pub(crate) async fn start_silent(address: SocketAddr) -> TestClient {
        let mut host = [0; 16];
        reactor::random::fill(&mut host);
        TestClient::resume(address, HostId(host), None).await
    }

    pub(crate) async fn resume(
        address: SocketAddr,
        host: HostId,
        resume: Option<SessionId>,
    ) -> TestClient {
        TestClient::try_resume(address, host, resume).await.unwrap()
    }

    pub(crate) async fn try_resume(
        address: SocketAddr,
        host: HostId,
        resume: Option<SessionId>,
    ) -> Result<TestClient, Errno> {
        let state = new_state();
        let connection = dial(address, &CREDENTIAL, &state).await.unwrap();
        let call = Call::Session(SessionCall::Start { node: "node1".into(), host, resume });
        let request = Request { slot: None, call };
        let response = connection.call(&request, Some(Duration::from_secs(20))).await.unwrap();
        let Answer::Welcome { session, devices, resumed, .. } = response.result? else {
            panic!("not a welcome")
        };
        let slots = Rc::default();
        Ok(TestClient { connection, state, session, host, devices, resumed, slots })
    }

    /// Resumes this session over a new connection, keeping slots.
    pub(crate) async fn reconnect(&self, address: SocketAddr) -> TestClient {
        let again = TestClient::resume(address, self.host, Some(self.session)).await;
        TestClient { slots: Rc::clone(&self.slots), ..again }
    }

    pub(crate) fn heartbeat_always(&self) {
        let connection = self.connection.clone();
        reactor::spawn(async move {
            let call = Call::Session(SessionCall::Heartbeat {
                ended_through: FreeEpoch(0),
                working_on: Vec::new(),
            });
            let request = Request { slot: None, call };
            while connection.call(&request, None).await.is_ok() {
                reactor::time::sleep(Duration::from_millis(100)).await;
            }
        });
    }

    pub(crate) fn policy(
        &self,
        policy: impl Fn(&Rc<State>, &Push, &mut Option<Reply<Connector<Client>>>) + 'static,
    ) {
        *self.state.policy.borrow_mut() = Some(Box::new(policy));
    }

    pub(crate) fn take_slot(&self) -> Slot {
        let mut slots = self.slots.borrow_mut();
        let slot = slots.free.pop().unwrap_or_else(|| {
            slots.next += 1;
            slots.next - 1
        });
        let sequence = slots.sequences.entry(slot).or_insert(0);
        *sequence += 1;
        Slot { slot, sequence: *sequence }
    }

    pub(crate) fn request(&self, call: Call) -> Request {
        let slot = call.changes().then(|| self.take_slot());
        Request { slot, call }
    }

    pub(crate) async fn respond(&self, call: Call) -> Response {
        let request = self.request(call);
        let response = self.send(&request).await.unwrap();
        if let Some(slot) = request.slot {
            self.slots.borrow_mut().free.push(slot.slot);
        }
        response
    }

    /// Sends a request; takes grants in the order of the stream.
    pub(crate) async fn send(&self, request: &Request) -> Result<Response, RpcError> {
        let (answer, answered) = reactor::local::oneshot();
        let state = Rc::clone(&self.state);
        self.connection.call_then(request, move |response| {
            for grant in response.iter().flat_map(|response| &response.grants) {
                state.rights.borrow_mut().insert(grant.inode, grant.rights);
            }
            let _ = answer.send(response);
        });
        answered.await.expect("each call ends")
    }

    pub(crate) async fn call(&self, call: Call) -> Result<Answer, Errno> {
        self.respond(call).await.result
    }

    /// Starts a call in a task of its own.
    pub(crate) fn spawn(&self, call: Call) -> Pending {
        let result = Rc::new(RefCell::new(None));
        let (client, done) = (self.clone(), Rc::clone(&result));
        let task = reactor::spawn(async move {
            *done.borrow_mut() = Some(client.call(call).await);
        });
        Pending { result, task }
    }

    pub(crate) async fn create(&self, parent: InodeId, name: &str) -> Result<Attr, Errno> {
        self.create_with(parent, name, Rights::NONE).await
    }

    pub(crate) async fn create_with(
        &self,
        parent: InodeId,
        name: &str,
        rights: Rights,
    ) -> Result<Attr, Errno> {
        entry(self.call(create(parent, name, rights)).await)
    }

    pub(crate) async fn lookup(&self, parent: InodeId, name: &str) -> Result<Option<Attr>, Errno> {
        match self.call(Call::Read(ReadCall::Lookup { parent, name: name.into() })).await? {
            Answer::Entry(attr) => Ok(Some(attr)),
            Answer::NoEntry => Ok(None),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn acquire(&self, inode: InodeId, rights: Rights) -> Result<Attr, Errno> {
        attr(self.call(Call::Session(SessionCall::Acquire { inode, rights })).await)
    }

    pub(crate) async fn lease(&self, device: DeviceId) -> Result<SpaceGrant, Errno> {
        match self
            .call(Call::Change(ChangeCall::LeaseSpace { device, wanted_bytes: 1 << 20 }))
            .await?
        {
            Answer::Space(grant) => Ok(grant),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn rights(&self, inode: InodeId) -> Rights {
        self.state.rights.borrow().get(&inode).copied().unwrap_or_default()
    }
}

/// A call in a task.
pub(crate) struct Pending {
    result: Rc<RefCell<Option<Result<Answer, Errno>>>>,
    task: reactor::JoinHandle<()>,
}

impl Pending {
    pub(crate) fn is_done(&self) -> bool {
        self.result.borrow().is_some()
    }

    pub(crate) async fn done(self) -> Result<Answer, Errno> {
        self.task.await.unwrap();
        self.result.borrow_mut().take().unwrap()
    }
}

pub(crate) fn create(parent: InodeId, name: &str, rights: Rights) -> Call {
    Call::Change(ChangeCall::Create {
        parent,
        name: name.into(),
        creation: Creation::File,
        mode: 0o644,
        uid: 0,
        gid: 0,
        rights,
    })
}

pub(crate) fn entry(answer: Result<Answer, Errno>) -> Result<Attr, Errno> {
    match answer? {
        Answer::Entry(attr) => Ok(attr),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn attr(answer: Result<Answer, Errno>) -> Result<Attr, Errno> {
    match answer? {
        Answer::Attr(attr) => Ok(attr),
        other => panic!("{other:?}"),
    }
}

/// Returns a commit of one block at an offset.
pub(crate) fn commit(
    file: &Attr,
    grant: &SpaceGrant,
    block: u64,
    offset: u64,
    length: u32,
) -> Call {
    let allocation = AllocationId { device: grant.device, block };
    let new =
        NewAllocation { allocation, blocks: 1, incarnation: grant.incarnation, is_flushed: false };
    let extent = Extent { offset, length, place: Place { allocation, at: 0 } };
    commit_of(file, vec![new], vec![extent])
}

/// Returns a commit of these extents.
pub(crate) fn commit_of(file: &Attr, new: Vec<NewAllocation>, extents: Vec<Extent>) -> Call {
    Call::Change(ChangeCall::Commit {
        sums: protocol::sums::Sums::default(),
        inode: file.inode,
        generation: file.generation,
        allocations: new,
        extents: ExtentList(extents),
        mtime: None,
        kill_privileges: false,
        inline: Vec::new(),
        attributes: None,
        durable: false,
    })
}

pub(crate) fn generation(attr: &Attr) -> Generation {
    attr.generation
}

/// Waits until a condition holds, letting other tasks run.
pub(crate) async fn until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        reactor::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Gives all other tasks time: long enough for a round trip over loopback.
pub(crate) async fn settle() {
    for _ in 0..20 {
        reactor::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Returns the beat of a call that an agent sends now.
pub(crate) fn beat() -> agent::Beat {
    agent::Beat(reactor::time::now().as_ns())
}

/// An agent that records its requests.
pub(crate) struct TestAgent {
    pub(crate) connection: Connection<Connector<Agent>>,
    pub(crate) log: Rc<RefCell<Vec<agent::Push>>>,
    pub(crate) devices: Vec<DeviceId>,
    /// While false, fences are not answered.
    pub(crate) answers_fences: Rc<Cell<bool>>,
    pub(crate) flushes: Rc<Flushes>,
}

/// How an agent flushes devices: some of them, and some only when the test answers.
#[derive(Default)]
pub(crate) struct Flushes {
    pub(crate) done: RefCell<Vec<DeviceId>>,
    pub(crate) hung: RefCell<Vec<DeviceId>>,
    /// While true, flushes fail.
    pub(crate) fail: Cell<bool>,
    pub(crate) unanswered: RefCell<Vec<Reply<Connector<Agent>>>>,
}

struct AgentHandler {
    log: Rc<RefCell<Vec<agent::Push>>>,
    answers_fences: Rc<Cell<bool>>,
    flushes: Rc<Flushes>,
}

impl Handler<Connector<Agent>> for AgentHandler {
    fn called(&self, push: agent::Push, reply: Reply<Connector<Agent>>) {
        self.log.borrow_mut().push(push.clone());
        let answer = match push {
            agent::Push::Fence { .. } if !self.answers_fences.get() => return,
            agent::Push::Fence { .. } => agent::PushAnswer::Fenced,
            agent::Push::Flush(_) if self.flushes.fail.get() => agent::PushAnswer::FlushFailed,
            agent::Push::Flush(device) if self.flushes.hung.borrow().contains(&device) => {
                self.flushes.unanswered.borrow_mut().push(reply);
                return;
            }
            agent::Push::Flush(device) if self.flushes.done.borrow().contains(&device) => {
                agent::PushAnswer::Flushed
            }
            _ => agent::PushAnswer::Done,
        };
        reply.send(&answer).unwrap();
    }
}

pub(crate) fn device(uuid: u128, blocks: u64) -> DeviceInfo {
    DeviceInfo {
        device: DeviceId(0),
        uuid: uuid::Uuid::from_u128(uuid),
        node: String::new(),
        address: DeviceAddress {
            traddr: "127.0.0.1:4420".into(),
            subnqn: "nqn.2014-08.org.example:test".into(),
            nsid: 1,
            transport: Transport::Tcp,
        },
        block_size: 4096,
        blocks,
        incarnation: Incarnation(uuid),
        is_volatile: false,
        online: true,
    }
}

impl TestAgent {
    /// Connects and registers devices.
    pub(crate) async fn start(address: SocketAddr, devices: Vec<DeviceInfo>) -> TestAgent {
        let log = Rc::default();
        let answers_fences = Rc::new(Cell::new(true));
        let flushes = Rc::<Flushes>::default();
        let handler = Rc::new(AgentHandler {
            log: Rc::clone(&log),
            answers_fences: Rc::clone(&answers_fences),
            flushes: Rc::clone(&flushes),
        });
        let options = SocketOptions::default();
        let connection: Connection<Connector<Agent>> =
            Connection::connect(address, &options, &CREDENTIAL, Limits::default(), handler)
                .await
                .unwrap();
        let call = agent::Call::Register {
            node: "node1".into(),
            devices,
            beat: beat(),
            demand: agent::Demand::Identifier,
        };
        let Ok(agent::Answer::Registered(devices)) = connection.call(&call, None).await else {
            panic!("not registered")
        };
        let beats = connection.clone();
        reactor::spawn(async move {
            let beating = || agent::Call::Heartbeat { beat: beat(), counts: vec![] };
            while beats.call(&beating(), None).await.is_ok() {
                reactor::time::sleep(Duration::from_millis(100)).await;
            }
        });
        TestAgent { connection, log, devices, answers_fences, flushes }
    }

    pub(crate) fn has_fenced(&self, host: HostId) -> bool {
        let is_fence =
            |push: &agent::Push| matches!(push, agent::Push::Fence { host: h, .. } if *h == host);
        self.log.borrow().iter().any(is_fence)
    }
}
