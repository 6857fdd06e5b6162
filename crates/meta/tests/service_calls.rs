//! The service over TCP on loopback: calls, rights between sessions, data.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "service_support/support.rs"]
mod support;

use protocol::attr::AttrChanges;
use protocol::client::{
    Answer, Call, ChangeCall, FallocateMode, OpenTold, Push, ReadCall, Request, SessionCall,
};
use protocol::lease::Return;
use protocol::space::NewAllocation;
use protocol::{AllocationId, Attr, Errno, Extent, InodeId, LeaseStamp, Place, Rights};
use support::*;

const ROOT: InodeId = InodeId::ROOT;

/// Goal: a client starts a session, creates, looks up, leases space, commits and reads extents.
#[test]
fn the_whole_path_of_a_file() {
    run(async {
        let service = service(meta::service::Times::default());
        let agent = TestAgent::start(service.address(), vec![device(1, 65536)]).await;
        let client = TestClient::start(service.address()).await;
        assert_eq!(client.devices.len(), 1);
        let file = client.create_with(ROOT, "a", Rights::WRITE | Rights::OPEN).await.unwrap();
        assert!(client.rights(file.inode).contains(Rights::WRITE | Rights::OPEN));
        assert_eq!(client.lookup(ROOT, "a").await.unwrap().unwrap().inode, file.inode);
        assert_eq!(client.lookup(ROOT, "b").await, Ok(None));
        assert_eq!(client.create(ROOT, "a").await, Err(Errno::EEXIST));
        let grant = client.lease(agent.devices[0]).await.unwrap();
        let call = commit(&file, &grant, grant.free[0].start, 0, 4096);
        let after = attr(client.call(call).await).unwrap();
        assert_eq!((after.size, after.allocated_bytes), (4096, 4096));
        let call = Call::Read(ReadCall::ReadExtents { inode: file.inode, offset: 0, length: 10 });
        let Ok(Answer::Extents { extents, .. }) = client.call(call).await else { panic!() };
        assert_eq!(extents.0.len(), 1);
        let admitted = client.call(Call::Session(SessionCall::Admit(agent.devices[0]))).await;
        assert_eq!(
            admitted,
            Ok(Answer::Admitted { incarnation: protocol::Incarnation(1), key: None })
        );
        assert_eq!(client.call(Call::Session(SessionCall::Sync(None))).await, Ok(Answer::Done));
        assert_eq!(client.call(Call::Session(SessionCall::End)).await, Ok(Answer::Done));
        assert!(agent.has_fenced(client.host));
        service.stop().await.unwrap();
    });
}

/// Goal: a change by one session is visible to another at once, because its cache was invalidated
/// first.
#[test]
fn sessions_see_each_others_changes() {
    run(async {
        let service = service(meta::service::Times::default());
        let a = TestClient::start(service.address()).await;
        let b = TestClient::start(service.address()).await;
        assert_eq!(b.lookup(ROOT, "x").await, Ok(None));
        assert!(b.rights(ROOT).contains(Rights::READ));
        let file = a.create(ROOT, "x").await.unwrap();
        let is_invalidated = b.state.pushes.borrow().iter().any(|push| {
            matches!(push, Push::Invalidate { inode, names, .. }
                if *inode == ROOT && names == &vec![b"x".to_vec()])
        });
        assert!(is_invalidated, "{:?}", b.state.pushes.borrow());
        assert_eq!(b.lookup(ROOT, "x").await.unwrap().unwrap().inode, file.inode);
        assert!(b.rights(file.inode).contains(Rights::READ));
        let changes = AttrChanges { mode: Some(0o600), ..AttrChanges::default() };
        a.call(Call::Change(ChangeCall::SetAttr { inode: file.inode, changes })).await.unwrap();
        assert!(!b.rights(file.inode).contains(Rights::READ), "READ was recalled");
        let unlink = Call::Change(ChangeCall::Unlink {
            parent: ROOT,
            name: b"x".to_vec(),
            told: OpenTold::OfAny,
        });
        a.call(unlink).await.unwrap();
        assert_eq!(b.lookup(ROOT, "x").await, Ok(None));
    });
}

/// Goal: a truncation waits for the writer, whose commit succeeds meanwhile; data that was written
/// under the old generation has no effect afterwards.
#[test]
fn a_truncation_waits_for_the_writers_commit() {
    run(async {
        let service = service(meta::service::Times::default());
        let agent = TestAgent::start(service.address(), vec![device(1, 65536)]).await;
        let writer = TestClient::start(service.address()).await;
        let other = TestClient::start(service.address()).await;
        let rights = Rights::WRITE | Rights::SIZE | Rights::OPEN;
        let file = writer.create_with(ROOT, "f", rights).await.unwrap();
        let grant = writer.lease(agent.devices[0]).await.unwrap();
        let start = grant.free[0].start;
        // The writer answers the recall of WRITE only after its commit.
        let held = std::rc::Rc::new(std::cell::RefCell::new(None));
        let holds = held.clone();
        writer.policy(move |_, push, reply| {
            if matches!(push, Push::Recall(recall) if recall.rights.contains(Rights::WRITE)) {
                *holds.borrow_mut() = reply.take();
            }
        });
        let changes = AttrChanges { size: Some(100), ..AttrChanges::default() };
        let truncate =
            other.spawn(Call::Change(ChangeCall::SetAttr { inode: file.inode, changes }));
        until(|| held.borrow().is_some()).await;
        // Another writer waits behind the truncation, a reader gets no grant.
        let acquire = other.spawn(Call::Session(SessionCall::Acquire {
            inode: file.inode,
            rights: Rights::WRITE,
        }));
        let third = TestClient::start(service.address()).await;
        let late = third.spawn(Call::Session(SessionCall::Acquire {
            inode: file.inode,
            rights: Rights::WRITE,
        }));
        attr(third.call(Call::Read(ReadCall::GetAttr(file.inode))).await).unwrap();
        assert!(third.rights(file.inode).is_empty());
        let committed = attr(writer.call(commit(&file, &grant, start, 0, 4096)).await).unwrap();
        assert_eq!(committed.size, 4096);
        settle().await;
        assert!(!truncate.is_done() && !late.is_done());
        let recalled = protocol::lease::Recalled { inode: file.inode, kept: Rights::OPEN };
        let reply = held.borrow_mut().take().unwrap();
        reply.send(&protocol::client::PushAnswer::Recalled(recalled)).unwrap();
        let truncated = attr(truncate.done().await).unwrap();
        assert_eq!(truncated.size, 100);
        acquire.done().await.unwrap();
        late.done().await.unwrap();
        let stale = writer.call(commit(&file, &grant, start + 1, 0, 4096)).await;
        assert_eq!(attr(stale).unwrap().size, 100, "an old generation has no effect");
    });
}

/// Goal: SIZE has one holder at a time, and moves on demand.
#[test]
fn the_size_right_moves() {
    run(async {
        let service = service(meta::service::Times::default());
        let a = TestClient::start(service.address()).await;
        let b = TestClient::start(service.address()).await;
        let file = a.create_with(ROOT, "log", Rights::SIZE | Rights::WRITE).await.unwrap();
        for (from, to) in [(&a, &b), (&b, &a), (&a, &b)] {
            to.acquire(file.inode, Rights::SIZE | Rights::WRITE).await.unwrap();
            assert!(to.rights(file.inode).contains(Rights::SIZE));
            assert!(!from.rights(file.inode).contains(Rights::SIZE));
        }
    });
}

/// Goal: an open file without a name lives until its last close, by a call or by the session's end.
#[test]
fn an_unlinked_open_file_is_kept_and_then_reclaimed() {
    run(async {
        let service = service(meta::service::Times::default());
        let a = TestClient::start(service.address()).await;
        let b = TestClient::start(service.address()).await;
        let file = a.create(ROOT, "t").await.unwrap();
        b.lookup(ROOT, "t").await.unwrap();
        // B has it open from its cache: the service learns that from the answer to the recall.
        b.policy(|_, push, reply| {
            if let (Push::Recall(recall), Some(_)) = (push, &reply) {
                let kept = Rights::OPEN;
                let recalled = protocol::lease::Recalled { inode: recall.inode, kept };
                let answer = protocol::client::PushAnswer::Recalled(recalled);
                reply.take().unwrap().send(&answer).unwrap();
            }
        });
        a.call(Call::Change(ChangeCall::Unlink {
            parent: ROOT,
            name: b"t".to_vec(),
            told: OpenTold::OfAny,
        }))
        .await
        .unwrap();
        let left = attr(b.call(Call::Read(ReadCall::GetAttr(file.inode))).await).unwrap();
        assert_eq!(left.nlink, 0);
        let stamp = LeaseStamp(u64::MAX);
        let rights = Rights::OPEN | Rights::READ;
        let back = Return { inode: file.inode, rights, stamp };
        b.call(Call::Session(SessionCall::GiveBack(vec![back]))).await.unwrap();
        assert_eq!(b.call(Call::Read(ReadCall::GetAttr(file.inode))).await, Err(Errno::ESTALE));
        // And by the end of the session.
        let file = b.create_with(ROOT, "u", Rights::OPEN).await.unwrap();
        a.call(Call::Change(ChangeCall::Unlink {
            parent: ROOT,
            name: b"u".to_vec(),
            told: OpenTold::OfAny,
        }))
        .await
        .unwrap();
        attr(a.call(Call::Read(ReadCall::GetAttr(file.inode))).await).unwrap();
        b.call(Call::Session(SessionCall::End)).await.unwrap();
        assert_eq!(a.call(Call::Read(ReadCall::GetAttr(file.inode))).await, Err(Errno::ESTALE));
    });
}

/// Goal: calls that make no sense are refused, and the session continues.
#[test]
fn nonsense_is_refused() {
    run(async {
        let service = service(meta::service::Times::default());
        let client = TestClient::start(service.address()).await;
        let no_slot = Request { slot: None, call: create(ROOT, "a", Rights::NONE) };
        let response = client.connection.call(&no_slot, None).await.unwrap();
        assert_eq!(response.result, Err(Errno::EPROTO));
        let mut gap = client.request(create(ROOT, "a", Rights::NONE));
        gap.slot.as_mut().unwrap().slot = 9999;
        let response = client.connection.call(&gap, None).await.unwrap();
        assert_eq!(response.result, Err(Errno::EPROTO));
        let second =
            Call::Session(SessionCall::Start { node: "n".into(), host: client.host, resume: None });
        assert_eq!(client.call(second).await, Err(Errno::EPROTO));
        assert_eq!(
            client.call(Call::Read(ReadCall::GetAttr(InodeId(999)))).await,
            Err(Errno::ESTALE)
        );
        assert!(client.lookup(ROOT, "a").await.unwrap().is_none());
    });
}

/// Makes a file of three thousand extents, each in a block of its own.
async fn file_in_pieces(client: &TestClient, agent: &TestAgent, name: &str) -> Attr {
    let mut file = client.create_with(ROOT, name, Rights::WRITE | Rights::SIZE).await.unwrap();
    while file.size < 3000 * 200 {
        let grant = client.lease(agent.devices[0]).await.unwrap();
        let blocks = grant.free.iter().flat_map(|free| free.start..free.start + free.count);
        let (device, incarnation) = (grant.device, grant.incarnation);
        let ids: Vec<_> = blocks.take(1000).map(|block| AllocationId { device, block }).collect();
        let new = |allocation: &AllocationId| NewAllocation {
            allocation: *allocation,
            blocks: 1,
            incarnation,
            is_flushed: false,
        };
        let piece = |(index, allocation): (u64, &AllocationId)| {
            let place = Place { allocation: *allocation, at: 0 };
            Extent { offset: file.size.next_multiple_of(200) + index * 200, length: 100, place }
        };
        let extents: Vec<_> = (0..).zip(&ids).map(piece).collect();
        let call = commit_of(&file, ids.iter().map(new).collect(), extents);
        file = attr(client.call(call).await).unwrap();
    }
    file
}

/// Goal: while much is removed from a truncated or punched file, other calls are answered. Those
/// about the file's data wait, and find nothing of it.
#[test]
fn a_long_removal_lets_other_calls_run() {
    run(async {
        let service = service(meta::service::Times::default());
        let agent = TestAgent::start(service.address(), vec![device(1, 65536)]).await;
        let client = TestClient::start(service.address()).await;
        for is_punched in [false, true] {
            let name = if is_punched { "punched" } else { "truncated" };
            let file = file_in_pieces(&client, &agent, name).await;
            let grant = client.lease(agent.devices[0]).await.unwrap();
            let inode = file.inode;
            let remove = if is_punched {
                let (offset, length) = (0, file.size);
                ChangeCall::Fallocate { inode, offset, length, mode: FallocateMode::Punch }
            } else {
                let changes = AttrChanges { size: Some(0), ..AttrChanges::default() };
                ChangeCall::SetAttr { inode, changes }
            };
            // All in one message, so that the removal is not over before the others arrive.
            let removing = client.spawn(Call::Change(remove));
            let extents = ReadCall::ReadExtents { inode, offset: 0, length: 1 << 20 };
            let reading = client.spawn(Call::Read(extents));
            let looking = client.spawn(Call::Read(ReadCall::GetAttr(ROOT)));
            looking.done().await.unwrap();
            assert!(!reading.is_done(), "{name}: the other call waited for the removal");
            let Ok(Answer::Extents { extents, .. }) = reading.done().await else { panic!() };
            assert_eq!(extents.0.len(), 0, "{name}: the file still has what was removed");
            let file = attr(removing.done().await).unwrap();
            let writing = client.spawn(commit(&file, &grant, grant.free[0].start, 200, 100));
            let written = attr(writing.done().await).unwrap();
            assert_eq!(written.allocated_bytes, 100, "{name}: the rest is removed before");
            let call = Call::Read(ReadCall::ReadExtents { inode, offset: 0, length: 1 << 20 });
            let Ok(Answer::Extents { extents, .. }) = client.call(call).await else { panic!() };
            assert_eq!(extents.0.iter().map(|it| it.offset).collect::<Vec<_>>(), [200], "{name}");
        }
        service.stop().await.unwrap();
    });
}
