//! Sessions that end, and the fences of their hosts.

use super::support::{Pending, TestAgent, TestClient, device, until};
use super::{ROOT, Stage};
use meta::store::CrashPoint;
use protocol::client::{Call, ChangeCall, Push, SessionCall};
use protocol::lock::{Lock, LockFamily, LockMode, LockOwner};
use protocol::{Attr, DeviceId, Errno, InodeId, Rights, agent};
use reactor::time::{Instant, now};
use std::rc::Rc;
use std::time::Duration;

/// An agent with a device, a session that is admitted there and holds a right or a lock, and
/// another session that wants it.
struct Holder {
    agent: TestAgent,
    silent: TestClient,
    file: Attr,
    is_lock: bool,
}

fn lock(inode: InodeId, owner: u64, start: u64) -> Call {
    let (family, mode) = (LockFamily::Posix, LockMode::Exclusive);
    let (owner, last) = (LockOwner(owner), start + 99);
    let lock = Lock { inode, family, owner, start, last, mode, pid: 1 };
    Call::Change(ChangeCall::SetLock { lock, wait: true })
}

async fn agent(stage: &Stage) -> TestAgent {
    stage.until_served().await;
    TestAgent::start(stage.address(), vec![device(1, 65536)]).await
}

impl Holder {
    async fn new(stage: &Stage) -> Holder {
        let agent = agent(stage).await;
        let silent = stage.client(true).await;
        let rights = Rights::WRITE | Rights::OPEN;
        let file = silent.create_with(ROOT, "f", rights | Rights::SIZE).await.expect("a new file");
        let is_lock = stage.chance(50);
        if is_lock {
            if stage.chance(70) {
                // With another session's lock beside it, it does not get the right LOCKS.
                let beside = stage.client(false).await;
                beside.call(lock(file.inode, 3, 1000)).await.expect("a lock");
            }
            silent.call(lock(file.inode, 1, 0)).await.expect("a lock");
        }
        admit(&silent, agent.devices[0]).await.expect("an admission");
        silent.policy(|_, _, reply| drop(reply.take()));
        Holder { agent, silent, file, is_lock }
    }

    /// Another client begins to wait for what the silent one holds.
    async fn taker(&self, stage: &Stage) -> Pending {
        let (other, inode) = (stage.client(false).await, self.file.inode);
        if self.is_lock {
            return other.spawn(lock(inode, 2, 0));
        }
        other.spawn(Call::Session(SessionCall::Acquire { inode, rights: Rights::SIZE }))
    }
}

async fn admit(client: &TestClient, device: DeviceId) -> Result<(), Errno> {
    client.call(Call::Session(SessionCall::Admit(device))).await.map(|_| ())
}

/// Returns until when the agent may let the host in, by the last order that it got.
fn lapse(agent: &TestAgent) -> Duration {
    let until = |push: &agent::Push| match push {
        agent::Push::Admit { beat, lapse_ms, .. } | agent::Push::Renew { beat, lapse_ms } => {
            Some(Duration::from_nanos(beat.0) + Duration::from_millis(u64::from(*lapse_ms)))
        }
        _ => None,
    };
    agent.log.borrow().iter().filter_map(until).max().expect("an admission")
}

fn time() -> Duration {
    Duration::from_nanos(now().as_ns())
}

/// Waits for a call; it must not end before this time, and not much later.
async fn ends_after(taken: Pending, lapse: Duration, longest: Duration) {
    let begun: Instant = now();
    taken.done().await.expect("what the silent session held");
    assert!(
        time() >= lapse,
        "it went {:?} before the admission lapsed",
        lapse.saturating_sub(time())
    );
    assert!(begun.elapsed() < longest, "it went after {:?}", begun.elapsed());
}

/// A session falls silent. What it held goes to others when the fence is answered, or the admission
/// has lapsed.
pub(super) async fn silent(stage: Rc<Stage>) {
    let scene = Holder::new(&stage).await;
    scene.agent.answers_fences.set(false);
    let taken = scene.taker(&stage).await;
    let is_fenced = stage.chance(60);
    if is_fenced {
        until(|| scene.agent.has_fenced(scene.silent.host)).await;
        stage.settle().await;
        assert!(!taken.is_done(), "before the fence is answered");
        assert_eq!(admit(&scene.silent, scene.agent.devices[0]).await, Err(Errno::ESTALE));
    } else {
        stage.pause(0, 600).await;
    }
    // The agent dies; its admissions lapse.
    scene.agent.connection.close("a scene");
    let lapse = lapse(&scene.agent);
    let longest = stage.times.session_deadline * 3 + stage.times.admission_lapse * 3;
    ends_after(taken, lapse, longest).await;
    let again = TestClient::resume(stage.address(), scene.silent.host, None).await;
    assert_ne!(again.session, scene.silent.session, "a session that has ended is resumed");
}

/// An agent reports that a client's process has died: the session ends at once.
pub(super) async fn dead_host(stage: Rc<Stage>) {
    let scene = Holder::new(&stage).await;
    scene.silent.heartbeat_always();
    let taken = scene.taker(&stage).await;
    stage.pause(0, 100).await;
    let begun = now();
    let died = agent::Call::HostDied(scene.silent.host);
    let answer = scene.agent.connection.call(&died, None).await;
    assert_eq!(answer.expect("an answer"), agent::Answer::Done);
    taken.done().await.expect("what the dead client held");
    assert!(scene.agent.has_fenced(scene.silent.host), "a dead client's host is not fenced");
    // Its kernel may show what it has cached until then.
    let longest = stage.times.self_stop + Duration::from_millis(100);
    assert!(begun.elapsed() < longest, "a dead client holds rights for {:?}", begun.elapsed());
    assert_eq!(admit(&scene.silent, scene.agent.devices[0]).await, Err(Errno::ESTALE));
}

/// The service dies while it fences, or its machine loses power: the session is never resumed, and
/// others get what it held.
pub(super) async fn restarted(stage: Rc<Stage>) {
    let scene = Holder::new(&stage).await;
    scene.agent.answers_fences.set(false);
    until(|| scene.agent.has_fenced(scene.silent.host)).await;
    let has_power = stage.chance(50);
    if has_power {
        stage.restart().await;
    } else {
        stage.machine.kill();
        let left = stage.store().crashed(CrashPoint::Power { kept: stage.below(3) as usize });
        stage.store.replace(left);
        stage.start(2);
    }
    stage.until_served().await;
    let (host, session) = (scene.silent.host, Some(scene.silent.session));
    let again = TestClient::try_resume(stage.address(), host, session).await;
    let is_refused = match &again {
        Ok(again) => again.session != scene.silent.session,
        Err(errno) => *errno == Errno::EBUSY,
    };
    assert!(is_refused, "a session that is being fenced is resumed");
    if has_power && !scene.is_lock {
        let taken = scene.taker(&stage).await;
        let longest = stage.times.session_deadline * 3 + stage.times.admission_lapse * 3;
        ends_after(taken, lapse(&scene.agent), longest).await;
    }
}

/// The service is restarted, and an agent is gone for good: a session that was admitted there ends
/// when the admission that was stored has lapsed.
pub(super) async fn lapses_after_a_restart(stage: Rc<Stage>) {
    let scene = Holder::new(&stage).await;
    stage.pause(0, 400).await;
    scene.agent.connection.close("a scene");
    stage.restart().await;
    let taken = scene.taker(&stage).await;
    let longest = stage.times.session_deadline * 4 + stage.times.admission_lapse * 3;
    ends_after(taken, lapse(&scene.agent), longest).await;
}

/// A session without traffic learns soon that another node has brought a device.
pub(super) async fn news(stage: Rc<Stage>) {
    let silent = stage.client(true).await;
    stage.pause(0, 100).await;
    let agent = agent(&stage).await;
    let begun = now();
    let is_news = |push: &Push| match push {
        Push::Devices(devices) => devices.iter().any(|it| it.device == agent.devices[0]),
        _ => false,
    };
    while !silent.state.pushes.borrow().iter().any(is_news) {
        let longest = stage.times.session_deadline / 3;
        assert!(begun.elapsed() < longest, "a session without traffic is not told of a device");
        reactor::time::sleep(longest / 20).await;
    }
}
