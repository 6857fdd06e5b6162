//! Flushes that fail or hang, and a pool without space.

use super::support::{TestAgent, TestClient, attr, commit, device, until};
use super::{ROOT, Stage, heartbeat};
use protocol::client::{Answer, Call, ChangeCall, Push, Request, SessionCall};
use protocol::{Attr, DeviceId, agent};
use reactor::time::{now, sleep};
use std::rc::Rc;
use std::time::Duration;

/// Longest way of a message.
const TOLD_MAX: Duration = Duration::from_millis(200);

/// Creates a file with data on a device that no flush covers yet.
async fn file_on(client: &TestClient, device: DeviceId) -> Attr {
    let file = client.create(ROOT, "f").await.expect("a new file");
    let grant = client.lease(device).await.expect("space");
    let block = grant.free[0].start;
    attr(client.call(commit(&file, &grant, block, 0, 4096)).await).expect("a commit")
}

fn sync(file: &Attr) -> Call {
    Call::Session(SessionCall::Sync(Some(file.inode)))
}

fn flushes(agent: &TestAgent) -> usize {
    agent.log.borrow().iter().filter(|push| matches!(push, agent::Push::Flush(_))).count()
}

async fn agent(stage: &Stage) -> (TestAgent, DeviceId) {
    stage.until_served().await;
    let agent = TestAgent::start(stage.address(), vec![device(1, 4096)]).await;
    let device = agent.devices[0];
    (agent, device)
}

/// The service has written devices flushed by itself. A flush that fails is reported to all clients,
/// and fsyncs of the data fail.
pub(super) async fn failed_flush(stage: Rc<Stage>) {
    let (agent, device) = agent(&stage).await;
    agent.flushes.fail.set(true);
    let (writer, other) = (stage.client(false).await, stage.client(false).await);
    let file = file_on(&writer, device).await;
    let is_synced = stage.chance(50);
    if is_synced {
        let synced = writer.call(sync(&file)).await;
        assert!(synced.is_err(), "an fsync of lost data: {synced:?}");
    } else {
        let begun = now();
        let longest = stage.times.writeback * 2;
        while flushes(&agent) == 0 {
            assert!(begun.elapsed() < longest, "no flush is requested within {longest:?}");
            sleep(stage.times.writeback / 10).await;
        }
    }
    for client in [&writer, &other] {
        let begun = now();
        while !is_told_of(client, device) {
            assert!(begun.elapsed() < TOLD_MAX, "a client is not told that data is lost");
            sleep(TOLD_MAX / 20).await;
        }
    }
}

fn is_told_of(client: &TestClient, device: DeviceId) -> bool {
    let pushes = client.state.pushes.borrow();
    pushes.iter().any(|push| matches!(push, Push::Lost(lost) if *lost == device))
}

/// A device does not answer its flush: the fsync of its data waits, and fails; or it succeeds when
/// the device answers at last.
pub(super) async fn hanging_flush(stage: Rc<Stage>) {
    let (agent, device) = agent(&stage).await;
    agent.flushes.hung.borrow_mut().push(device);
    let client = stage.client(false).await;
    let file = file_on(&client, device).await;
    let waiting = client.spawn(sync(&file));
    stage.pause(0, 400).await;
    assert!(!waiting.is_done(), "an fsync does not wait for its device");
    if stage.chance(50) {
        until(|| !agent.flushes.unanswered.borrow().is_empty()).await;
        agent.flushes.hung.borrow_mut().clear();
        agent.flushes.done.borrow_mut().push(device);
        for reply in agent.flushes.unanswered.take() {
            assert!(reply.send(&agent::PushAnswer::Flushed).is_ok());
        }
        assert_eq!(waiting.done().await, Ok(Answer::Done), "an fsync of flushed data");
        return;
    }
    let synced = waiting.done().await;
    assert!(synced.is_err(), "an fsync of data that was never flushed: {synced:?}");
}

/// One client has leased all space. Before another one gets ENOSPC, the service asks for what is not
/// used. A service whose disk is nearly full takes no small files.
pub(super) async fn little_space(stage: Rc<Stage>) {
    let takes_inline = async |client: &TestClient| match heartbeat(client, Vec::new()).await {
        Ok(Answer::Alive { takes_inline, .. }) => takes_inline,
        other => panic!("{other:?}"),
    };
    stage.until_served().await;
    // Two first grants.
    let agent = TestAgent::start(stage.address(), vec![device(1, 512)]).await;
    let (hoarder, other) = (stage.client(false).await, stage.client(false).await);
    let is_scarce = stage.chance(50);
    stage.store().set_scarce(is_scarce);
    assert_eq!(
        takes_inline(&hoarder).await,
        !is_scarce,
        "small files with a full disk: {is_scarce}"
    );
    let mut grants = Vec::new();
    while let Ok(grant) = hoarder.lease(agent.devices[0]).await {
        grants.push(grant);
        assert!(grants.len() < 10, "space without end");
    }
    stage.pause(500, 700).await;
    let connection = hoarder.connection.clone();
    let give_back = grants.iter().map(|grant| {
        let (device, free) = (grant.device, grant.free.clone());
        hoarder.request(Call::Change(ChangeCall::ReturnSpace { device, free }))
    });
    let give_back: Vec<Request> = give_back.collect();
    hoarder.policy(move |_, push, reply| {
        let Push::Reclaim { free_epoch } = *push else { return };
        let Some(reply) = reply.take() else { return };
        let (connection, give_back) = (connection.clone(), give_back.clone());
        reactor::spawn(async move {
            for request in &give_back {
                let answer = connection.call(request, None).await.expect("an answer");
                answer.result.expect("space is taken back");
            }
            let _ = reply.send(&protocol::client::PushAnswer::Ended(free_epoch));
        });
    });
    let lease = other.lease(agent.devices[0]).await;
    assert!(lease.is_ok(), "ENOSPC though another client has unused space: {lease:?}");
}
