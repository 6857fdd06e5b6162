//! The metadata service as shipped, with clients and agents that do what no shipped client or agent
//! does: they fall silent, answer nothing, lose answers, come back late or not at all.
//!
//! Each seed plays a few scenes with choices and times of its own. A scene knows when rights, locks
//! and admissions may pass to another session, and when they must. Rules F1, F6, F9, G5, G7, G11, K4,
//! K10, L6, R6, R7, S1, S5, S6, S8 and S10 to S13 of docs/protocol.md.

mod durable;
mod fences;
mod grace;
mod recalls;
// The tests of crate `meta` have the same clients and agents.
#[path = "../../../meta/tests/service_support/support.rs"]
#[allow(clippy::unwrap_used, reason = "a wrong answer is a panic")]
mod support;
mod unheard;

use crate::random::{Random, mix};
use meta::service::{Config, Service, StoreChoice, Times};
use meta::store::{CrashPoint, MemoryStore};
use protocol::client::{Answer, Call, SessionCall};
use protocol::{Errno, FreeEpoch, InodeId, LeaseStamp};
use reactor::sim::{Node, SimConfig, Simulation};
use reactor::time::{now, sleep};
use rpc::Guard;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;
use support::{SECRET, TestClient, short_times};

const ROOT: InodeId = InodeId::ROOT;
const PORT: u16 = 7000;
/// Scenes of a seed.
const SCENES: usize = 3;
/// Limit of virtual time; no scene needs that long.
const TIME_MAX: Duration = Duration::from_mins(5);

/// What happens in a scene.
type Scene = fn(Rc<Stage>) -> Pin<Box<dyn Future<Output = ()>>>;

/// All scenes, by their names.
const ALL: [(&str, Scene); 18] = [
    ("a recall is not answered", |stage| Box::pin(recalls::unanswered(stage))),
    ("a recall is worked on", |stage| Box::pin(recalls::worked_on(stage))),
    ("pulses without a connection", |stage| Box::pin(recalls::pulses(stage))),
    ("a session resumes", |stage| Box::pin(recalls::resumes(stage))),
    ("a silent session", |stage| Box::pin(fences::silent(stage))),
    ("a dead host", |stage| Box::pin(fences::dead_host(stage))),
    ("a restart within a fence", |stage| Box::pin(fences::restarted(stage))),
    ("a lapse after a restart", |stage| Box::pin(fences::lapses_after_a_restart(stage))),
    ("a device for a silent session", |stage| Box::pin(fences::news(stage))),
    ("a restart", |stage| Box::pin(grace::restart(stage))),
    ("a start without an answer", |stage| Box::pin(grace::start_without_answer(stage))),
    ("a restart after a welcome", |stage| Box::pin(grace::welcome(stage))),
    ("a file that is kept back", |stage| Box::pin(grace::kept_back(stage))),
    ("a pause of the service", |stage| Box::pin(grace::pause(stage))),
    ("an answer that was lost", |stage| Box::pin(unheard::lost_answer(stage))),
    ("a failed flush", |stage| Box::pin(durable::failed_flush(stage))),
    ("a hanging flush", |stage| Box::pin(durable::hanging_flush(stage))),
    ("little space", |stage| Box::pin(durable::little_space(stage))),
];

/// The service and its machine.
struct Stage {
    machine: Node,
    store: RefCell<MemoryStore>,
    times: Times,
    random: RefCell<Random>,
}

impl Stage {
    fn address(&self) -> SocketAddr {
        SocketAddr::new(self.machine.address(), PORT)
    }

    fn store(&self) -> MemoryStore {
        self.store.borrow().clone()
    }

    /// Starts the service, in this boot of its machine.
    fn start(&self, boot: u128) {
        let store = StoreChoice::Open(Box::new(self.store()));
        let config = Config {
            listen: self.address(),
            network_namespace: None,
            store,
            guard: Guard::Plain(SECRET),
            data_keys: None,
            root: (0o755, 0, 0),
            boot: Some(uuid::Uuid::from_u128(boot)),
            times: self.times,
        };
        drop(self.machine.spawn(async move {
            let service = Service::start(config).expect("the service starts");
            service.ended().await.expect("the service works");
        }));
    }

    /// Kills the service.
    fn kill(&self) {
        self.machine.kill();
        let left = self.store().crashed(CrashPoint::Process);
        self.store.replace(left);
    }

    /// Kills the service and starts it again.
    async fn restart(&self) {
        self.kill();
        self.pause(1, 50).await;
        self.start(1);
    }

    fn below(&self, end: u64) -> u64 {
        self.random.borrow_mut().below(end)
    }

    fn chance(&self, percent: u64) -> bool {
        self.random.borrow_mut().chance(percent)
    }

    /// Returns one of these.
    fn of<T: Copy>(&self, list: &[T]) -> T {
        *self.random.borrow_mut().of(list)
    }

    /// Waits for some milliseconds.
    async fn pause(&self, least: u64, most: u64) {
        let time = self.random.borrow_mut().between(least, most);
        sleep(Duration::from_millis(time)).await;
    }

    /// Starts a client that sends heartbeats, or does not.
    async fn client(&self, is_silent: bool) -> TestClient {
        self.until_served().await;
        if is_silent {
            TestClient::start_silent(self.address()).await
        } else {
            TestClient::start(self.address()).await
        }
    }

    /// Waits until the service accepts connections.
    async fn until_served(&self) {
        let state = support::new_state();
        while support::dial(self.address(), &support::CREDENTIAL, &state).await.is_err() {
            sleep(Duration::from_millis(2)).await;
        }
    }

    /// Waits for about the time of some calls.
    async fn settle(&self) {
        self.pause(20, 60).await;
    }
}

/// Sends a heartbeat; `working_on` are the recalls whose answers the client prepares.
async fn heartbeat(client: &TestClient, working_on: Vec<LeaseStamp>) -> Result<Answer, Errno> {
    let call = SessionCall::Heartbeat { ended_through: FreeEpoch(0), working_on };
    client.call(Call::Session(call)).await
}

/// Sends heartbeats until one fails, which must be within `longest`. Returns when the last good one
/// was sent.
async fn beat_until_refused(
    client: &TestClient,
    working_on: impl Fn() -> Vec<LeaseStamp>,
    every: Duration,
    longest: Duration,
) -> reactor::time::Instant {
    let begun = now();
    let mut sent = begun;
    loop {
        let at = now();
        if heartbeat(client, working_on()).await.is_err() {
            return sent;
        }
        sent = at;
        assert!(begun.elapsed() < longest, "a session lives on after {longest:?}");
        sleep(every).await;
    }
}

/// Runs a seed; returns its trace and what is wrong. It panics where an answer is wrong.
pub(super) fn run(seed: u64) -> (u64, Vec<String>) {
    let mut random = Random::new(seed ^ 0x7365_7373_696f_6e73);
    let (mut trace, mut violations) = (seed, Vec::new());
    for _ in 0..SCENES {
        let (name, scene) = *random.of(&ALL);
        let (hash, stalled) = play(&mut random, scene);
        trace = mix(trace ^ hash);
        violations.extend(stalled.map(|stalled| format!("{name}: {stalled}")));
    }
    (trace, violations)
}

/// Plays a scene; returns its trace, and why it did not end.
fn play(random: &mut Random, scene: Scene) -> (u64, Option<String>) {
    let config = SimConfig { time_max: TIME_MAX, ..SimConfig::default() };
    let mut simulation = Simulation::with_config(random.next(), config);
    let (machine, clients) = (simulation.node("meta"), simulation.node("clients"));
    let deadline = Duration::from_millis(random.between(500, 900));
    let times = Times {
        heartbeat: deadline / 10,
        session_deadline: deadline,
        self_stop: deadline * random.between(40, 90) as u32 / 100,
        admission_lapse: deadline * random.between(120, 180) as u32 / 100,
        ..short_times()
    };
    let stage = Rc::new(Stage {
        machine,
        store: RefCell::new(MemoryStore::new()),
        times,
        random: RefCell::new(Random::new(random.next())),
    });
    let ended = simulation.run(async move {
        stage.start(1);
        clients.spawn(scene(stage)).await
    });
    let stalled = match ended {
        Ok(Ok(())) => None,
        Ok(Err(_)) => Some("it has ended early".to_owned()),
        Err(stalled) => Some(stalled.to_string()),
    };
    (simulation.trace_hash(), stalled)
}
