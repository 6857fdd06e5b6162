//! Sessions that fall silent, resume, or meet a restarted service.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "service_support/support.rs"]
mod support;

use meta::service::{Service, StoreChoice, Times};
use meta::store::{CrashPoint, MemoryStore};
use protocol::client::{Answer, Call, ChangeCall, Push, ReadCall, Request, SessionCall};
use protocol::lock::{Lock, LockFamily, LockMode, LockOwner};
use protocol::{Errno, FreeEpoch, InodeId, Rights, agent};
use reactor::SocketOptions;
use rpc::{Admin, Connection, Connector, Handler, Limits, Nothing, Reply};
use std::path::Path;
use std::rc::Rc;
use support::*;

const ROOT: InodeId = InodeId::ROOT;

fn on_disk(directory: &Path, times: Times) -> Service {
    let store = StoreChoice::Directory { path: directory.to_owned(), accept_loss: false };
    Service::start(config(store, times)).unwrap()
}

fn lock(inode: InodeId, owner: u64, family: LockFamily) -> Lock {
    let mode = LockMode::Exclusive;
    Lock { inode, family, owner: LockOwner(owner), start: 0, last: 99, mode, pid: 1 }
}

/// Goal: no other session gets a silent session's rights until its host is fenced where it was
/// admitted.
#[test]
fn a_silent_session_is_fenced_before_its_rights_are_reused() {
    run(async {
        let service = service(short_times());
        let agent = TestAgent::start(service.address(), vec![device(1, 65536)]).await;
        let silent = TestClient::start_silent(service.address()).await;
        let other = TestClient::start(service.address()).await;
        let file = silent.create_with(ROOT, "f", Rights::SIZE | Rights::WRITE).await.unwrap();
        silent.call(Call::Session(SessionCall::Admit(agent.devices[0]))).await.unwrap();
        silent.lease(agent.devices[0]).await.unwrap();
        silent.policy(|_, _, reply| drop(reply.take()));
        agent.answers_fences.set(false);
        let acquire = other
            .spawn(Call::Session(SessionCall::Acquire { inode: file.inode, rights: Rights::SIZE }));
        until(|| agent.has_fenced(silent.host)).await;
        settle().await;
        assert!(!acquire.is_done(), "not before the fence is answered");
        assert_eq!(silent.call(Call::Read(ReadCall::GetAttr(ROOT))).await, Err(Errno::ESTALE));
        // The agent dies; its admissions lapse, and the session counts as fenced.
        agent.connection.close("test");
        acquire.done().await.unwrap();
        let again = TestClient::resume(service.address(), silent.host, None).await;
        assert_ne!(again.session, silent.session);
    });
}

/// Goal: a session that answers no recall, but sends heartbeats, loses its rights only when its
/// client has stopped itself: until then it may serve cached data.
#[test]
fn rights_are_taken_when_their_holder_has_stopped_itself() {
    run(async {
        let times = Times { self_stop: std::time::Duration::from_millis(500), ..short_times() };
        let service = service(times);
        let deaf = TestClient::start_silent(service.address()).await;
        let other = TestClient::start(service.address()).await;
        let file = deaf.create_with(ROOT, "f", Rights::SIZE).await.unwrap();
        deaf.policy(|_, _, reply| drop(reply.take()));
        let acquire = other
            .spawn(Call::Session(SessionCall::Acquire { inode: file.inode, rights: Rights::SIZE }));
        let mut sent = reactor::time::now();
        loop {
            let now = reactor::time::now();
            let beat = deaf
                .call(Call::Session(SessionCall::Heartbeat {
                    ended_through: FreeEpoch(0),
                    working_on: Vec::new(),
                }))
                .await;
            if beat.is_err() {
                break;
            }
            sent = now;
            reactor::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        acquire.done().await.unwrap();
        assert!(sent.elapsed() >= times.self_stop, "its client still acts");
    });
}

/// Goal: pulses over a connection of their own keep a session alive as long as the service can
/// recall its rights, and no longer.
#[test]
fn pulses_keep_a_session_that_can_be_asked() {
    run(async {
        let service = service(short_times());
        let stalled = TestClient::start_silent(service.address()).await;
        let (session, host) = (stalled.session, stalled.host);
        let pulses = dial(service.address(), &CREDENTIAL, &new_state()).await.unwrap();
        let pulse = async |host| {
            let request =
                Request { slot: None, call: Call::Session(SessionCall::Pulse { session, host }) };
            pulses.call(&request, None).await.unwrap().result
        };
        let begun = reactor::time::now();
        while begun.elapsed() < short_times().session_deadline * 2 {
            assert!(matches!(pulse(host).await, Ok(Answer::Alive { .. })));
            reactor::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert!(stalled.call(Call::Read(ReadCall::GetAttr(ROOT))).await.is_ok());
        assert_eq!(pulse(protocol::HostId([9; 16])).await, Err(Errno::ESTALE));
        stalled.connection.close("test");
        let mut last = pulse(host).await;
        while last != Err(Errno::ESTALE) {
            assert_ne!(last, Err(Errno::EPROTO));
            reactor::time::sleep(std::time::Duration::from_millis(10)).await;
            last = pulse(host).await;
        }
    });
}

/// Goal: the fence's answer suffices, and a session whose process died ends at once.
#[test]
fn a_dead_host_is_fenced_at_once() {
    run(async {
        let service = service(Times::default());
        let agent = TestAgent::start(service.address(), vec![device(1, 65536)]).await;
        let dead = TestClient::start(service.address()).await;
        let other = TestClient::start(service.address()).await;
        let file = dead.create_with(ROOT, "f", Rights::SIZE | Rights::OPEN).await.unwrap();
        dead.call(Call::Session(SessionCall::Admit(agent.devices[0]))).await.unwrap();
        dead.policy(|_, _, reply| drop(reply.take()));
        let acquire = other
            .spawn(Call::Session(SessionCall::Acquire { inode: file.inode, rights: Rights::SIZE }));
        until(|| !dead.state.pushes.borrow().is_empty()).await;
        let died = agent.connection.call(&agent::Call::HostDied(dead.host), None).await.unwrap();
        assert_eq!(died, agent::Answer::Done);
        assert!(agent.has_fenced(dead.host));
        acquire.done().await.unwrap();
        // It is not admitted again under the old session.
        assert_eq!(
            dead.call(Call::Session(SessionCall::Admit(agent.devices[0]))).await,
            Err(Errno::ESTALE)
        );
    });
}

/// Goal: after a lost connection a session continues with the rights that it reclaims, a repeated
/// call gets its first answer, and an unanswered recall is sent again.
#[test]
fn a_session_resumes_over_a_new_connection() {
    run(async {
        let service = service(Times::default());
        let first = TestClient::start(service.address()).await;
        let other = TestClient::start(service.address()).await;
        let rights = Rights::WRITE | Rights::SIZE | Rights::OPEN;
        let file = first.create_with(ROOT, "f", rights).await.unwrap();
        let gone = first.create_with(ROOT, "g", rights).await.unwrap();
        first.policy(|_, _, reply| drop(reply.take()));
        let size = |inode| Call::Session(SessionCall::Acquire { inode, rights: Rights::SIZE });
        let (kept, dropped) = (other.spawn(size(file.inode)), other.spawn(size(gone.inode)));
        until(|| first.state.pushes.borrow().len() == 2).await;
        let request = first.request(create(ROOT, "once", Rights::NONE));
        let once = first.send(&request).await.unwrap();
        first.connection.close("test");
        let second = first.reconnect(service.address()).await;
        assert!(second.resumed && second.session == first.session);
        second.heartbeat_always();
        let again = second.send(&request).await.unwrap();
        assert_eq!((again.result, again.changed), (once.result, once.changed));
        second.policy(|_, push, reply| {
            if matches!(push, Push::Recall(_)) {
                drop(reply.take());
            }
        });
        let held = vec![(file.inode, rights)];
        second.call(Call::Session(SessionCall::Reclaim { held, done: true })).await.unwrap();
        dropped.done().await.unwrap();
        assert!(!kept.is_done());
        assert_eq!(second.rights(file.inode), rights);
        until(|| second.state.pushes.borrow().iter().any(|p| matches!(p, Push::Recall(_)))).await;
        // It ends without answering: the right moves on.
        second.call(Call::Session(SessionCall::End)).await.unwrap();
        kept.done().await.unwrap();
    });
}

/// Goal: a restarted service knows its sessions. In grace it grants nothing that conflicts,
/// afterwards the reclaimed rights stand; slots, locks and names are as they were.
#[test]
fn a_restarted_service_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    run(async {
        let before = on_disk(directory.path(), Times::default());
        let a = TestClient::start(before.address()).await;
        let rights = Rights::WRITE | Rights::SIZE | Rights::OPEN;
        let file = a.create_with(ROOT, "f", rights).await.unwrap();
        let posix = lock(file.inode, 1, LockFamily::Posix);
        a.call(Call::Change(ChangeCall::SetLock { lock: posix, wait: false })).await.unwrap();
        let request = a.request(create(ROOT, "once", Rights::NONE));
        let once = a.send(&request).await.unwrap();
        drop(before);
        reactor::yield_now().await;
        let service = on_disk(directory.path(), Times::default());
        let b = TestClient::start(service.address()).await;
        // Reading works in grace, acquiring and changing wait.
        assert!(b.lookup(ROOT, "f").await.unwrap().is_some());
        let size = b
            .spawn(Call::Session(SessionCall::Acquire { inode: file.inode, rights: Rights::SIZE }));
        let change = b.spawn(create(ROOT, "new", Rights::NONE));
        settle().await;
        assert!(!size.is_done() && !change.is_done());
        let again = a.reconnect(service.address()).await;
        again.heartbeat_always();
        assert!(again.resumed);
        let held = vec![(file.inode, rights)];
        again.call(Call::Session(SessionCall::Reclaim { held, done: true })).await.unwrap();
        // SIZE may have been recalled again already.
        assert!(again.rights(file.inode).contains(Rights::WRITE | Rights::OPEN));
        size.done().await.unwrap();
        change.done().await.unwrap();
        assert!(
            again.state.pushes.borrow().iter().any(|push| {
                matches!(push, Push::Recall(recall) if recall.rights == Rights::SIZE)
            })
        );
        assert_eq!(again.send(&request).await.unwrap().result, once.result);
        let wish = lock(file.inode, 2, LockFamily::Posix);
        let refused = b.call(Call::Change(ChangeCall::SetLock { lock: wish, wait: false })).await;
        assert_eq!(refused, Err(Errno::EAGAIN));
        service.stop().await.unwrap();
    });
}

/// Goal: a client that learns of its session only after a restart of the service has nothing to
/// reclaim, and keeps no other call waiting.
#[test]
fn a_session_without_an_answer_holds_no_grace() {
    run(async {
        let store = MemoryStore::new();
        let open = |store: MemoryStore| StoreChoice::Open(Box::new(store));
        let before = Service::start(config(open(store.clone()), Times::default())).unwrap();
        // Its answer is lost.
        let lost = TestClient::start_silent(before.address()).await;
        let left = store.crashed(CrashPoint::Process);
        let after = Service::start(config(open(left), Times::default())).unwrap();
        let late = TestClient::resume(after.address(), lost.host, None).await;
        assert_eq!((late.session, late.resumed), (lost.session, false));
        late.heartbeat_always();
        let other = TestClient::start(after.address()).await;
        let change = other.spawn(create(ROOT, "new", Rights::NONE));
        change.done().await.unwrap();
    });
}

/// Goal: a session that was being fenced when the service died is not resumed: its targets keep the
/// fence for good.
#[test]
fn a_fence_that_was_begun_is_not_forgotten() {
    run(async {
        let store = MemoryStore::new();
        let open = |store: MemoryStore| StoreChoice::Open(Box::new(store));
        let before = Service::start(config(open(store.clone()), short_times())).unwrap();
        let agent = TestAgent::start(before.address(), vec![device(1, 65536)]).await;
        let silent = TestClient::start_silent(before.address()).await;
        silent.call(Call::Session(SessionCall::Admit(agent.devices[0]))).await.unwrap();
        agent.answers_fences.set(false);
        until(|| agent.has_fenced(silent.host)).await;
        let left = store.crashed(CrashPoint::Process);
        let after = Service::start(config(open(left), short_times())).unwrap();
        let again =
            TestClient::try_resume(after.address(), silent.host, Some(silent.session)).await;
        assert_eq!(again.err(), Some(Errno::EBUSY), "it is being fenced still");
    });
}

/// Goal: after a reboot of the store's machine all sessions are void.
#[test]
fn sessions_are_void_after_a_reboot() {
    let directory = tempfile::tempdir().unwrap();
    run(async {
        let before = on_disk(directory.path(), short_times());
        let a = TestClient::start(before.address()).await;
        a.create(ROOT, "f").await.unwrap();
        before.stop().await.unwrap();
        let store =
            StoreChoice::Directory { path: directory.path().to_owned(), accept_loss: false };
        let config = meta::service::Config {
            boot: Some(uuid::Uuid::from_u128(2)),
            ..config(store, short_times())
        };
        let service = Service::start(config).unwrap();
        let mut host = a.host;
        host.0[0] ^= 1;
        let again = TestClient::resume(service.address(), host, Some(a.session)).await;
        assert!(!again.resumed);
        assert!(again.lookup(ROOT, "f").await.unwrap().is_some());
    });
}

/// Goal: waits for a lock work across sessions, in order; a wait can be cancelled; the end of a
/// session releases its locks; circles are refused.
#[test]
fn locks_wait_across_sessions() {
    run(async {
        let service = service(Times::default());
        let a = TestClient::start(service.address()).await;
        let b = TestClient::start(service.address()).await;
        let f = a.create(ROOT, "f").await.unwrap().inode;
        let g = a.create(ROOT, "g").await.unwrap().inode;
        let set = |lock| Call::Change(ChangeCall::SetLock { lock, wait: true });
        let family = LockFamily::Posix;
        a.call(set(lock(f, 1, family))).await.unwrap();
        b.call(set(lock(g, 2, family))).await.unwrap();
        let waits = a.spawn(set(lock(g, 1, family)));
        settle().await;
        assert_eq!(b.call(set(lock(f, 2, family))).await, Err(Errno::EDEADLK));
        let owner = LockOwner(1);
        a.call(Call::Session(SessionCall::CancelLock { inode: g, family, owner })).await.unwrap();
        assert_eq!(waits.done().await, Err(Errno::EINTR));
        let waits = b.spawn(set(lock(f, 2, family)));
        settle().await;
        assert!(!waits.is_done());
        let test = b.call(Call::Read(ReadCall::TestLock(lock(f, 2, family)))).await;
        assert!(matches!(test, Ok(Answer::Lock(Some(_)))));
        let empty = Lock { start: 9, last: 8, ..lock(f, 2, family) };
        let test = b.call(Call::Read(ReadCall::TestLock(empty))).await;
        assert_eq!(test, Err(Errno::EINVAL), "an empty range");
        a.call(Call::Session(SessionCall::End)).await.unwrap();
        waits.done().await.unwrap();
    });
}

struct NoPush;

impl Handler<Connector<Admin>> for NoPush {
    fn called(&self, push: Nothing, _: Reply<Connector<Admin>>) {
        match push {}
    }
}

/// Goal: an administrator sees the pool and the files that an offline device affects, and can end
/// the service.
#[test]
fn an_administrator_sees_and_ends() {
    use protocol::admin::{Answer, Call};
    run(async {
        let service = service(Times::default());
        let agent = TestAgent::start(service.address(), vec![device(1, 65536)]).await;
        let client = TestClient::start(service.address()).await;
        let directory = protocol::client::Call::Change(protocol::client::ChangeCall::Create {
            parent: ROOT,
            name: b"d".to_vec(),
            creation: protocol::client::Creation::Directory,
            mode: 0o755,
            uid: 0,
            gid: 0,
            rights: Rights::NONE,
        });
        let d = entry(client.call(directory).await).unwrap();
        let file = client.create(d.inode, "f").await.unwrap();
        client.create(ROOT, "empty").await.unwrap();
        let grant = client.lease(agent.devices[0]).await.unwrap();
        client.call(commit(&file, &grant, grant.free[0].start, 0, 4096)).await.unwrap();
        let admin = admin(&service).await;
        let call = async |call| admin.call(&call, None).await.unwrap();
        let Answer::Status { devices, sessions, meta, .. } = call(Call::Status).await else {
            panic!()
        };
        assert!(devices[0].online && sessions.len() == 1 && meta.calls > 0);
        // The root, d, f and empty.
        let checked = Answer::Checked { inodes: 4, count: 0, found: Vec::new() };
        assert_eq!(call(Call::Check).await, checked);
        agent.connection.close("test");
        until(|| client.state.pushes.borrow().iter().any(|p| matches!(p, Push::Devices(_)))).await;
        let hit = call(Call::FilesHit { count_max: 10 }).await;
        assert_eq!(hit, Answer::Paths(vec![(b"d/f".to_vec(), agent.devices[0])]));
        assert_eq!(call(Call::Shutdown).await, Answer::Done);
        service.ended().await.unwrap();
        service.stop().await.unwrap();
    });
}

async fn admin(service: &Service) -> Connection<Connector<Admin>> {
    let (address, limits) = (service.address(), Limits::default());
    Connection::connect(address, &SocketOptions::default(), &CREDENTIAL, limits, Rc::new(NoPush))
        .await
        .unwrap()
}

/// Goal: the search for files on lost devices ends in a large tree, too, and says that it has not
/// seen all of it. Input: 1000 empty files, and a service whose heartbeat is a millisecond.
#[test]
fn a_long_search_says_so() {
    use protocol::admin::{Answer, Call};
    run(async {
        let times = Times { heartbeat: std::time::Duration::from_millis(1), ..Times::default() };
        let service = service(times);
        let agent = TestAgent::start(service.address(), vec![device(1, 1 << 20)]).await;
        let client = TestClient::start(service.address()).await;
        for n in 0..1000 {
            client.create(ROOT, &format!("f{n}")).await.unwrap();
        }
        agent.connection.close("test");
        until(|| client.state.pushes.borrow().iter().any(|p| matches!(p, Push::Devices(_)))).await;
        let admin = admin(&service).await;
        let hit = admin.call(&Call::FilesHit { count_max: 10 }, None).await.unwrap();
        assert_eq!(hit, Answer::PathsSoFar(Vec::new()));
        service.stop().await.unwrap();
    });
}

/// Goal: before ENOSPC the service asks all sessions for unused space, and frees rested space.
#[test]
fn unused_space_is_asked_for_before_enospc() {
    run(async {
        let service = service(Times::default());
        // 2 MiB: two first grants.
        let agent = TestAgent::start(service.address(), vec![device(1, 512)]).await;
        let hoarder = TestClient::start(service.address()).await;
        let other = TestClient::start(service.address()).await;
        let mut grants = vec![];
        while let Ok(grant) = hoarder.lease(agent.devices[0]).await {
            grants.push(grant);
            assert!(grants.len() < 10);
        }
        reactor::time::sleep(std::time::Duration::from_millis(600)).await;
        let connection = hoarder.connection.clone();
        let returned: Vec<Request> = grants
            .iter()
            .map(|grant| {
                let (device, free) = (grant.device, grant.free.clone());
                hoarder.request(Call::Change(ChangeCall::ReturnSpace { device, free }))
            })
            .collect();
        hoarder.policy(move |_, push, reply| {
            let Push::Reclaim { free_epoch } = *push else { return };
            let (reply, connection) = (reply.take().unwrap(), connection.clone());
            let returned = returned.clone();
            reactor::spawn(async move {
                for request in &returned {
                    connection.call(request, None).await.unwrap().result.unwrap();
                }
                reply.send(&protocol::client::PushAnswer::Ended(free_epoch)).unwrap();
            });
        });
        assert!(other.lease(agent.devices[0]).await.is_ok());
        let call = Call::Session(SessionCall::Heartbeat {
            ended_through: FreeEpoch(u64::MAX),
            working_on: Vec::new(),
        });
        assert!(matches!(other.call(call).await, Ok(Answer::Alive { .. })));
    });
}
