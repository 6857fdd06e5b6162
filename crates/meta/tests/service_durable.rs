//! Calls that wait until data is durable: on devices that do not answer, and on a full disk.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "service_support/support.rs"]
mod support;

use meta::service::{Service, StoreChoice, Times};
use meta::store::{MemoryStore, StoreFault};
use protocol::agent::PushAnswer;
use protocol::client::{Answer, Call, SessionCall};
use protocol::{Attr, DeviceId, InodeId};
use support::*;

/// Creates a file with data on a device that no flush covers yet.
async fn file_on(client: &TestClient, device: DeviceId, name: &str) -> Attr {
    let file = client.create(InodeId::ROOT, name).await.unwrap();
    let grant = client.lease(device).await.unwrap();
    let block = grant.free[0].start;
    attr(client.call(commit(&file, &grant, block, 0, 4096)).await).unwrap()
}

fn sync(file: &Attr) -> Call {
    Call::Session(SessionCall::Sync(Some(file.inode)))
}

/// Goal: a device whose flush hangs delays fsync of files on other devices by about a second, and
/// fails none of them. Input: two devices with a file each; one device answers no flush.
/// Expected: fsync of the other's file succeeds; that of its own file waits.
#[test]
fn a_hanging_device_fails_its_own_files_only() {
    run(async {
        let service = service(Times::default());
        let agent =
            TestAgent::start(service.address(), vec![device(1, 4096), device(2, 4096)]).await;
        let [hung, good] = agent.devices[..] else { panic!("two devices") };
        agent.flushes.hung.borrow_mut().push(hung);
        agent.flushes.done.borrow_mut().push(good);
        let client = TestClient::start(service.address()).await;
        let on_hung = file_on(&client, hung, "hung").await;
        let on_good = file_on(&client, good, "good").await;
        let waiting = client.spawn(sync(&on_hung));
        assert_eq!(client.call(sync(&on_good)).await, Ok(Answer::Done));
        assert!(!waiting.is_done());
        for reply in agent.flushes.unanswered.take() {
            reply.send(&PushAnswer::Flushed).unwrap();
        }
        agent.flushes.hung.borrow_mut().clear();
        agent.flushes.done.borrow_mut().push(hung);
        assert_eq!(waiting.done().await, Ok(Answer::Done));
        service.stop().await.unwrap();
    });
}

/// Goal: fsync succeeds only after the store has the marks of the flushes. Input: a store whose
/// disk is full when a device answers its flush. Expected: the answer comes once there is space.
#[test]
fn fsync_waits_for_the_record_of_the_flush() {
    run(async {
        let store = MemoryStore::new();
        let choice = StoreChoice::Open(Box::new(store.clone()));
        let service = Service::start(config(choice, Times::default())).unwrap();
        let agent = TestAgent::start(service.address(), vec![device(1, 4096)]).await;
        let device = agent.devices[0];
        agent.flushes.hung.borrow_mut().push(device);
        let client = TestClient::start(service.address()).await;
        let file = file_on(&client, device, "file").await;
        let waiting = client.spawn(sync(&file));
        until(|| !agent.flushes.unanswered.borrow().is_empty()).await;
        store.set_fault(Some(StoreFault::Full));
        for reply in agent.flushes.unanswered.take() {
            reply.send(&PushAnswer::Flushed).unwrap();
        }
        reactor::time::sleep(std::time::Duration::from_millis(500)).await;
        assert!(!waiting.is_done(), "fsync succeeded before its flush was recorded");
        store.set_fault(None);
        assert_eq!(waiting.done().await, Ok(Answer::Done));
        service.stop().await.unwrap();
    });
}
