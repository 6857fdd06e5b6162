//! Recalls that are not answered, or late.

use super::support::{TestClient, create, dial, new_state, until};
use super::{ROOT, Stage, beat_until_refused, heartbeat};
use protocol::client::{Answer, Call, Push, PushAnswer, ReadCall, Request, SessionCall};
use protocol::lease::Recalled;
use protocol::{Attr, Errno, LeaseStamp, Rights};
use reactor::time::{now, sleep};
use std::rc::Rc;
use std::time::Duration;

/// A client that holds rights over a file, and another one that wants SIZE.
struct Scene {
    holder: TestClient,
    other: TestClient,
    file: Attr,
    rights: Rights,
}

impl Scene {
    async fn new(stage: &Stage) -> Scene {
        let (holder, other) = (stage.client(true).await, stage.client(false).await);
        let rights = Rights::SIZE | stage.of(&[Rights::NONE, Rights::WRITE, Rights::READ]);
        let file = holder.create_with(ROOT, "f", rights).await.expect("a new file");
        Scene { holder, other, file, rights }
    }

    /// The call of the other client.
    fn acquire(&self) -> Call {
        let (inode, rights) = (self.file.inode, Rights::SIZE);
        Call::Session(SessionCall::Acquire { inode, rights })
    }
}

/// Returns the stamps of all recalls that a client has got.
fn recalls(client: &TestClient) -> Vec<LeaseStamp> {
    let pushes = client.state.pushes.borrow();
    let stamp = |push: &Push| match push {
        Push::Recall(recall) => Some(recall.stamp),
        _ => None,
    };
    pushes.iter().filter_map(stamp).collect()
}

/// A client sends heartbeats and answers no recall. Its session must end, and its rights must stay
/// until it has stopped itself: until then it may use what it has cached.
pub(super) async fn unanswered(stage: Rc<Stage>) {
    let scene = Scene::new(&stage).await;
    scene.holder.policy(|_, _, reply| drop(reply.take()));
    let taken = scene.other.spawn(scene.acquire());
    let taken = reactor::spawn(async move {
        taken.done().await.expect("SIZE");
        now().as_ns()
    });
    let every = Duration::from_millis(stage.of(&[5, 20, 60]));
    let longest = stage.times.session_deadline * 3;
    let sent = beat_until_refused(&scene.holder, Vec::new, every, longest).await.as_ns();
    let late = Duration::from_nanos(taken.await.expect("a task").saturating_sub(sent));
    let stop = stage.times.self_stop;
    assert!(
        late >= stop,
        "SIZE went {late:?} after a heartbeat, and its holder stops after {stop:?}"
    );
    let again = heartbeat(&scene.holder, Vec::new()).await;
    assert!(again.is_err(), "a session that answered no recall lives on");
}

/// A client reports that it works on its answer: it keeps its session for longer than others, but
/// not for ever.
pub(super) async fn worked_on(stage: Rc<Stage>) {
    let scene = Scene::new(&stage).await;
    let kept = Rc::new(std::cell::RefCell::new(None));
    let keep = Rc::clone(&kept);
    scene.holder.policy(move |_, push, reply| {
        if matches!(push, Push::Recall(_)) {
            *keep.borrow_mut() = reply.take();
        }
    });
    let taken = scene.other.spawn(scene.acquire());
    until(|| kept.borrow().is_some()).await;
    let every = Duration::from_millis(stage.of(&[20, 60, 100]));
    let most = stage.times.recall_max(Rights::SIZE);
    if stage.chance(50) {
        let longest = most + stage.times.session_deadline;
        let holder = &scene.holder;
        beat_until_refused(holder, || recalls(holder), every, longest).await;
        // The call may have waited for as long as it may.
        let taken = taken.done().await;
        assert!(matches!(taken, Ok(_) | Err(Errno::ETIMEDOUT)), "SIZE: {taken:?}");
        return;
    }
    let work = stage.times.session_deadline * (11 + stage.below(20) as u32) / 10;
    let begun = now();
    while begun.elapsed() < work {
        let beat = heartbeat(&scene.holder, recalls(&scene.holder)).await;
        assert!(
            beat.is_ok(),
            "a session that works on its answer ended after {:?}",
            begun.elapsed()
        );
        sleep(every).await;
    }
    assert!(!taken.is_done(), "SIZE went before its holder answered");
    let reply = kept.borrow_mut().take().expect("a reply");
    let inode = scene.file.inode;
    let recalled = PushAnswer::Recalled(Recalled { inode, kept: Rights::NONE });
    assert!(reply.send(&recalled).is_ok());
    taken.done().await.expect("SIZE");
    assert!(heartbeat(&scene.holder, Vec::new()).await.is_ok(), "a session ended after its answer");
}

/// Pulses over a connection of their own keep a session alive as long as its rights can be recalled.
pub(super) async fn pulses(stage: Rc<Stage>) {
    let scene = Scene::new(&stage).await;
    let (session, host) = (scene.holder.session, scene.holder.host);
    let pulses = dial(stage.address(), &super::support::CREDENTIAL, &new_state()).await;
    let pulses = pulses.expect("a connection");
    let pulse = async || {
        let call = Call::Session(SessionCall::Pulse { session, host });
        pulses.call(&Request { slot: None, call }, None).await.expect("an answer").result
    };
    let deadline = stage.times.session_deadline;
    let begun = now();
    while begun.elapsed() < deadline * 2 {
        assert!(matches!(pulse().await, Ok(Answer::Alive { .. })), "a session ended under pulses");
        stage.pause(5, 50).await;
    }
    let alive = scene.holder.call(Call::Read(ReadCall::GetAttr(ROOT))).await;
    assert!(alive.is_ok(), "a session ended under pulses");
    scene.holder.connection.close("a scene");
    let taken = scene.other.spawn(scene.acquire());
    let begun = now();
    while pulse().await != Err(Errno::ESTALE) {
        assert!(begun.elapsed() < deadline * 3, "pulses keep a session that cannot be asked");
        stage.pause(5, 50).await;
    }
    taken.done().await.expect("SIZE");
}

/// A session resumes and reclaims a part of what it held: the other part is free, and the recalls of
/// what it has kept are sent again.
pub(super) async fn resumes(stage: Rc<Stage>) {
    let scene = Scene::new(&stage).await;
    let rights = scene.rights | Rights::OPEN;
    let gone = scene.holder.create_with(ROOT, "g", rights).await.expect("a new file");
    scene.holder.policy(|_, _, reply| drop(reply.take()));
    let size = |inode| Call::Session(SessionCall::Acquire { inode, rights: Rights::SIZE });
    let is_asked_before = stage.chance(50);
    let before = is_asked_before
        .then(|| (scene.other.spawn(scene.acquire()), scene.other.spawn(size(gone.inode))));
    if is_asked_before {
        until(|| recalls(&scene.holder).len() == 2).await;
    } else {
        stage.settle().await;
    }
    let request = scene.holder.request(create(ROOT, "once", Rights::NONE));
    let once = scene.holder.send(&request).await.expect("an answer");
    scene.holder.connection.close("a scene");
    stage.pause(0, 200).await;
    let again = scene.holder.reconnect(stage.address()).await;
    assert!(again.resumed && again.session == scene.holder.session, "a session is not resumed");
    again.heartbeat_always();
    let repeated = again.send(&request).await.expect("an answer");
    assert_eq!((repeated.result, repeated.changed), (once.result, once.changed), "a repeated call");
    again.policy(|_, push, reply| {
        if matches!(push, Push::Recall(_)) {
            drop(reply.take());
        }
    });
    let held = vec![(scene.file.inode, scene.rights)];
    let call = SessionCall::Reclaim { held, done: true };
    again.call(Call::Session(call)).await.expect("a reclaim");
    let (kept, free) = before.unwrap_or_else(|| {
        (scene.other.spawn(scene.acquire()), scene.other.spawn(size(gone.inode)))
    });
    free.done().await.expect("what was not reclaimed is free");
    until(|| !recalls(&again).is_empty()).await;
    assert!(!kept.is_done(), "SIZE went though its holder reclaimed it");
    let asked_of_gone = again
        .state
        .pushes
        .borrow()
        .iter()
        .any(|push| matches!(push, Push::Recall(recall) if recall.inode == gone.inode));
    assert!(!asked_of_gone, "rights are recalled that were not reclaimed");
    again.call(Call::Session(SessionCall::End)).await.expect("an end");
    kept.done().await.expect("SIZE");
}
