//! Restarts and pauses of the service.

use super::support::{TestClient, attr, create, new_state};
use super::{ROOT, Stage, heartbeat};
use protocol::client::{Answer, Call, ChangeCall, ReadCall, Request, SessionCall};
use protocol::lock::{Lock, LockFamily, LockMode, LockOwner};
use protocol::{Attr, HostId, InodeId, Rights};
use reactor::time::{now, sleep};
use std::rc::Rc;
use std::time::Duration;

fn lock(inode: InodeId, owner: u64) -> Lock {
    let (family, mode) = (LockFamily::Posix, LockMode::Exclusive);
    Lock { inode, family, owner: LockOwner(owner), start: 0, last: 99, mode, pid: 1 }
}

async fn reclaim(client: &TestClient, held: Vec<(InodeId, Rights)>) {
    let call = SessionCall::Reclaim { held, done: true };
    client.call(Call::Session(call)).await.expect("a reclaim");
}

/// Resumes a session.
async fn resume(stage: &Stage, client: &TestClient) -> TestClient {
    let again = client.reconnect(stage.address()).await;
    assert!(again.resumed, "a session is not resumed after a restart");
    again.heartbeat_always();
    again
}

/// Until the last session of before a restart has reclaimed, nothing is granted or changed, and
/// no session reclaims what another one holds.
pub(super) async fn restart(stage: Rc<Stage>) {
    let (a, b) = (stage.client(false).await, stage.client(false).await);
    let rights = Rights::WRITE | Rights::SIZE | Rights::OPEN;
    let file = a.create_with(ROOT, "f", rights).await.expect("a new file");
    let own = b.create_with(ROOT, "g", rights).await.expect("a new file");
    let set = ChangeCall::SetLock { lock: lock(file.inode, 1), wait: false };
    a.call(Call::Change(set)).await.expect("a lock");
    stage.restart().await;
    let other = stage.client(false).await;
    let found = other.lookup(ROOT, "f").await.expect("reading works");
    assert!(found.is_some(), "a file is gone after a restart");
    let size = Call::Session(SessionCall::Acquire { inode: file.inode, rights: Rights::SIZE });
    let wait_for = [
        other.spawn(size),
        other.spawn(create(ROOT, "new", Rights::NONE)),
        other.spawn(Call::Read(ReadCall::TestLock(lock(file.inode, 2)))),
    ];
    let is_idle = || !wait_for.iter().any(super::support::Pending::is_done);
    stage.settle().await;
    assert!(is_idle(), "a call is carried out before anybody has reclaimed");
    let (first, second) = if stage.chance(50) { (&a, &b) } else { (&b, &a) };
    let held = |client: &TestClient| {
        if client.session == a.session { (file.inode, rights) } else { (own.inode, rights) }
    };
    let again = resume(&stage, first).await;
    reclaim(&again, vec![held(first)]).await;
    stage.settle().await;
    assert!(is_idle(), "a call is carried out before all have reclaimed");
    let late = resume(&stage, second).await;
    // It claims the first one's file, too.
    reclaim(&late, vec![held(second), held(first)]).await;
    let taken = late.rights(held(first).0) & Rights::SIZE;
    assert!(taken.is_empty(), "a session reclaims what another one has reclaimed");
    for waiting in wait_for {
        waiting.done().await.expect("all have reclaimed");
    }
}

/// A client learns only after a restart that its session has begun. It has nothing to reclaim, and
/// other sessions do not wait for it.
pub(super) async fn start_without_answer(stage: Rc<Stage>) {
    let lost = stage.client(true).await;
    stage.restart().await;
    stage.until_served().await;
    let late = TestClient::resume(stage.address(), lost.host, None).await;
    assert_eq!((late.session, late.resumed), (lost.session, false));
    late.heartbeat_always();
    let other = stage.client(false).await;
    let begun = now();
    other.create(ROOT, "new").await.expect("a new file");
    let longest = stage.times.session_deadline / 2;
    assert!(begun.elapsed() < longest, "a change waits {:?} for nobody", begun.elapsed());
}

/// The service dies when a session has just begun: it knows that session afterwards.
pub(super) async fn welcome(stage: Rc<Stage>) {
    stage.until_served().await;
    let mut host = [0; 16];
    reactor::random::fill(&mut host);
    let (host, state) = (HostId(host), new_state());
    let connection = super::support::dial(stage.address(), &super::support::CREDENTIAL, &state);
    let connection = connection.await.expect("a connection");
    let (node, resume) = ("node1".to_owned(), None);
    let call = Call::Session(SessionCall::Start { node, host, resume });
    let response = connection.call(&Request { slot: None, call }, None).await.expect("an answer");
    stage.kill();
    let Ok(Answer::Welcome { session, .. }) = response.result else { panic!("{response:?}") };
    stage.start(1);
    stage.until_served().await;
    let again = TestClient::try_resume(stage.address(), host, Some(session)).await;
    let again = again.expect("a session");
    assert!(again.resumed && again.session == session, "a session is forgotten after its welcome");
}

/// After a restart, nobody sees a file before its maker has reported what it held back.
pub(super) async fn kept_back(stage: Rc<Stage>) {
    let maker = stage.client(false).await;
    let rights = Rights::READ | Rights::WRITE | Rights::OPEN | Rights::SOLE;
    let file: Attr = maker.create_with(ROOT, "f", rights).await.expect("a new file");
    stage.restart().await;
    let other = stage.client(false).await;
    let look = other.spawn(if stage.chance(50) {
        Call::Read(ReadCall::GetAttr(file.inode))
    } else {
        Call::Read(ReadCall::Lookup { parent: ROOT, name: b"f".to_vec() })
    });
    stage.settle().await;
    assert!(!look.is_done(), "a file is shown before its maker has reported");
    let again = resume(&stage, &maker).await;
    reclaim(&again, vec![(file.inode, rights)]).await;
    look.done().await.expect("the file");
}

/// The service stands still for longer than sessions may be silent, also while they resume. It ends
/// none for that.
pub(super) async fn pause(stage: Rc<Stage>) {
    let client = stage.client(true).await;
    let is_resuming = stage.chance(50);
    let client = if is_resuming {
        client.connection.close("a scene");
        let again = client.reconnect(stage.address()).await;
        assert!(again.resumed, "a session is not resumed");
        again
    } else {
        client
    };
    stage.pause(0, 100).await;
    stage.machine.suspend();
    sleep(stage.times.session_deadline * (12 + stage.below(20) as u32) / 10).await;
    stage.machine.wake();
    // Its next message is under way for a moment.
    let moment = stage.times.session_deadline.as_millis() as u64 / 2;
    stage.pause(1, moment).await;
    if is_resuming {
        reclaim(&client, Vec::new()).await;
    }
    let begun = now();
    while begun.elapsed() < Duration::from_millis(300) {
        let beat = heartbeat(&client, Vec::new()).await;
        assert!(beat.is_ok(), "a pause of the service ended a session");
        sleep(Duration::from_millis(50)).await;
    }
    let root = attr(client.call(Call::Read(ReadCall::GetAttr(ROOT))).await);
    assert!(root.is_ok(), "a pause of the service ended a session");
}
