//! Answers that are lost with their connection: what a create opened stays open until the client has
//! repeated the call, or does not repeat it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "service_support/support.rs"]
mod support;

use meta::service::{Service, StoreChoice, Times};
use protocol::client::{Call, ChangeCall, OpenTold, ReadCall, Request, Response, SessionCall};
use protocol::lease::Return;
use protocol::{Attr, Errno, FreeEpoch, InodeId, LeaseStamp, Rights};
use std::path::Path;
use support::*;

const ROOT: InodeId = InodeId::ROOT;
const NAME: &str = "f";

fn on_disk(directory: &Path) -> Service {
    let store = StoreChoice::Directory { path: directory.to_owned(), accept_loss: false };
    Service::start(config(store, Times::default())).unwrap()
}

/// Creates a file that its maker has open. To the maker the answer is lost: it only sees the request
/// again.
async fn create_open(maker: &TestClient) -> (Request, Attr) {
    let rights = Rights::READ | Rights::WRITE | Rights::OPEN | Rights::SOLE;
    let request = maker.request(create(ROOT, NAME, rights));
    let file = entry(maker.send(&request).await.unwrap().result).unwrap();
    (request, file)
}

/// Resumes a session that reclaims nothing.
async fn resume(client: &TestClient, service: &Service) -> TestClient {
    let again = client.reconnect(service.address()).await;
    assert!(again.resumed);
    let call = SessionCall::Reclaim { held: Vec::new(), done: true };
    again.call(Call::Session(call)).await.unwrap();
    again
}

fn unlink() -> Call {
    let told = OpenTold::OfNone;
    Call::Change(ChangeCall::Unlink { parent: ROOT, name: NAME.into(), told })
}

fn get(file: &Attr) -> Call {
    Call::Read(ReadCall::GetAttr(file.inode))
}

async fn heartbeat(client: &TestClient) {
    let (ended_through, working_on) = (FreeEpoch(0), Vec::new());
    let call = SessionCall::Heartbeat { ended_through, working_on };
    client.call(Call::Session(call)).await.unwrap();
}

/// Checks that the answer to a repeated create opens the file, which has no name, and that the
/// return of OPEN ends it.
async fn assert_open(client: &TestClient, request: &Request, file: &Attr) {
    let Response { result, grants, .. } = client.send(request).await.unwrap();
    assert_eq!(entry(result).unwrap().inode, file.inode);
    let [grant] = grants[..] else { panic!("{grants:?}") };
    assert_eq!((grant.inode, grant.rights), (file.inode, Rights::OPEN));
    for _ in 0..3 {
        heartbeat(client).await;
    }
    assert_eq!(attr(client.call(get(file)).await).unwrap().nlink, 0);
    let back = Return { inode: file.inode, rights: Rights::OPEN, stamp: LeaseStamp(u64::MAX) };
    client.call(Call::Session(SessionCall::GiveBack(vec![back]))).await.unwrap();
    assert_eq!(client.call(get(file)).await, Err(Errno::ESTALE));
}

/// Goal: another session removes the name of a file after the answer to its create was lost, and
/// before the create is repeated. The repeated create opens the file, which can be used.
#[test]
fn a_file_whose_create_is_repeated_is_open() {
    run(async {
        let service = service(Times::default());
        let maker = TestClient::start(service.address()).await;
        let other = TestClient::start(service.address()).await;
        let (request, file) = create_open(&maker).await;
        maker.connection.close("test");
        let again = resume(&maker, &service).await;
        // A recall does not show whether the maker has the file open: it does not know the file.
        other.call(unlink()).await.unwrap();
        assert_open(&again, &request, &file).await;
    });
}

/// Goal: the same, if the removal waits for the maker's rights while it has no connection.
#[test]
fn a_removal_that_waited_for_the_maker_leaves_the_file_open() {
    run(async {
        let service = service(Times::default());
        let maker = TestClient::start(service.address()).await;
        let other = TestClient::start(service.address()).await;
        let (request, file) = create_open(&maker).await;
        maker.policy(|_, _, reply| drop(reply.take()));
        maker.connection.close("test");
        let removal = other.spawn(unlink());
        settle().await;
        assert!(!removal.is_done());
        let again = resume(&maker, &service).await;
        removal.done().await.unwrap();
        assert_open(&again, &request, &file).await;
    });
}

/// Goal: the same, if the service was restarted meanwhile.
#[test]
fn a_restarted_service_knows_what_its_answers_opened() {
    let directory = tempfile::tempdir().unwrap();
    run(async {
        let before = on_disk(directory.path());
        let maker = TestClient::start(before.address()).await;
        let (request, file) = create_open(&maker).await;
        drop(before);
        reactor::yield_now().await;
        let service = on_disk(directory.path());
        let again = resume(&maker, &service).await;
        let other = TestClient::start(service.address()).await;
        other.call(unlink()).await.unwrap();
        assert_open(&again, &request, &file).await;
    });
}

/// Goal: the same, if the create is carried out while its client has no connection, and the client
/// resumes before that.
#[test]
fn an_answer_without_a_connection_opens_the_file() {
    run(async {
        let service = service(Times::default());
        let (maker, other) = (
            TestClient::start(service.address()).await,
            TestClient::start(service.address()).await,
        );
        // The create waits until this session has forgotten that there is no such name.
        other.lookup(ROOT, NAME).await.unwrap();
        let kept = std::rc::Rc::new(std::cell::RefCell::new(None));
        let keep = std::rc::Rc::clone(&kept);
        other.policy(move |_, _, reply| {
            if keep.borrow().is_none() {
                *keep.borrow_mut() = reply.take();
            }
        });
        let request = maker.request(create(ROOT, NAME, Rights::READ | Rights::OPEN));
        let call = maker.connection.call(&request, None);
        until(|| kept.borrow().is_some()).await;
        maker.connection.close("test");
        assert!(call.await.is_err());
        let again = resume(&maker, &service).await;
        other.policy(|_, _, _| ());
        let reply = kept.borrow_mut().take().unwrap();
        reply.send(&protocol::client::PushAnswer::Done).unwrap();
        let mut file = None;
        while file.is_none() {
            file = other.lookup(ROOT, NAME).await.unwrap();
        }
        other.call(unlink()).await.unwrap();
        assert_open(&again, &request, &file.unwrap()).await;
    });
}

/// Goal: a file whose create is not repeated is not kept: neither after the heartbeats of a client
/// that would have repeated it before, nor after a later call in its slot.
#[test]
fn a_file_whose_create_is_not_repeated_is_gone() {
    for is_slot_used in [false, true] {
        run(async {
            let service = service(Times::default());
            let maker = TestClient::start(service.address()).await;
            let other = TestClient::start(service.address()).await;
            let (request, file) = create_open(&maker).await;
            maker.connection.close("test");
            let again = resume(&maker, &service).await;
            other.call(unlink()).await.unwrap();
            if is_slot_used {
                let mut slot = request.slot.unwrap();
                slot.sequence += 1;
                let call = create(ROOT, "later", Rights::NONE);
                again.send(&Request { slot: Some(slot), call }).await.unwrap().result.unwrap();
            } else {
                heartbeat(&again).await;
                assert_eq!(attr(again.call(get(&file)).await).unwrap().nlink, 0);
                heartbeat(&again).await;
            }
            assert_eq!(again.call(get(&file)).await, Err(Errno::ESTALE));
        });
    }
}

/// Goal: a client that got the answer and has closed the file keeps nothing alive by that answer once
/// it has shown that it repeats nothing; one that has the file open keeps it.
#[test]
fn a_reclaimed_open_outlives_the_answer() {
    run(async {
        let service = service(Times::default());
        let maker = TestClient::start(service.address()).await;
        let other = TestClient::start(service.address()).await;
        let (_, file) = create_open(&maker).await;
        maker.connection.close("test");
        let again = maker.reconnect(service.address()).await;
        let held = vec![(file.inode, Rights::OPEN)];
        again.call(Call::Session(SessionCall::Reclaim { held, done: true })).await.unwrap();
        other.call(unlink()).await.unwrap();
        for _ in 0..3 {
            heartbeat(&again).await;
        }
        assert_eq!(attr(again.call(get(&file)).await).unwrap().nlink, 0);
        let back = Return { inode: file.inode, rights: Rights::OPEN, stamp: LeaseStamp(u64::MAX) };
        again.call(Call::Session(SessionCall::GiveBack(vec![back]))).await.unwrap();
        assert_eq!(again.call(get(&file)).await, Err(Errno::ESTALE));
    });
}
