//! SOLE: only the maker of a file holds it, until its first commit.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "service_support/support.rs"]
mod support;

use meta::service::Times;
use protocol::attr::AttrChanges;
use protocol::client::{Answer, Call, ChangeCall, Push, SessionCall};
use protocol::{ExtentList, Generation, InodeId, Rights};
use support::*;

const ROOT: InodeId = InodeId::ROOT;

/// The rights with which a client creates a file that it writes.
const MAKER: Rights = Rights(Rights::WRITE.0 | Rights::OPEN.0 | Rights::SOLE.0);

/// Returns a commit without data.
fn empty_commit(inode: InodeId, generation: Generation) -> Call {
    Call::Change(ChangeCall::Commit {
        sums: protocol::sums::Sums::default(),
        inode,
        generation,
        allocations: Vec::new(),
        extents: ExtentList(Vec::new()),
        mtime: None,
        kill_privileges: false,
        inline: Vec::new(),
        attributes: None,
        durable: false,
    })
}

async fn reclaim(client: &TestClient, inode: InodeId, rights: Rights) -> Rights {
    let held = vec![(inode, rights)];
    let call = Call::Session(SessionCall::Reclaim { held, done: true });
    let response = client.respond(call).await;
    assert_eq!(response.result, Ok(Answer::Done));
    response.grants.iter().fold(Rights::NONE, |all, grant| all | grant.rights)
}

/// Goal: a session reclaims SOLE over no inode but a file that it made and has not committed yet.
/// Other sessions go on using the inode.
#[test]
fn sole_is_reclaimed_by_the_maker_only() {
    run(async {
        let service = service(Times::default());
        let thief = TestClient::start(service.address()).await;
        assert_eq!(reclaim(&thief, ROOT, Rights::SOLE).await, Rights::NONE);
        let other = TestClient::start(service.address()).await;
        assert_eq!(other.lookup(ROOT, "f").await, Ok(None));
        let file = other.create_with(ROOT, "f", MAKER).await.unwrap();
        assert!(other.rights(file.inode).contains(Rights::SOLE));
        let kept = reclaim(&thief, file.inode, Rights::WRITE | Rights::SOLE).await;
        assert!(!kept.contains(Rights::SOLE), "{kept:?}");
    });
}

/// Goal: a maker that has lost the answer to its first commit with its connection does not hold SOLE
/// again, because nothing would end it.
#[test]
fn sole_is_not_reclaimed_after_the_first_commit() {
    run(async {
        let service = service(Times::default());
        let maker = TestClient::start(service.address()).await;
        let waiting = maker.create_with(ROOT, "waiting", MAKER).await.unwrap();
        let file = maker.create_with(ROOT, "f", MAKER).await.unwrap();
        maker.call(empty_commit(file.inode, file.generation)).await.unwrap();
        maker.connection.close("test");
        let maker = maker.reconnect(service.address()).await;
        let held = vec![(file.inode, MAKER), (waiting.inode, MAKER)];
        let call = Call::Session(SessionCall::Reclaim { held, done: true });
        let rights: Vec<_> = maker.respond(call).await.grants.iter().map(|g| g.rights).collect();
        assert_eq!(rights, [MAKER - Rights::SOLE, MAKER]);
    });
}

/// Goal: a late commit of another session shows a file only after its maker was asked for the changes
/// that it holds back.
#[test]
fn a_late_commit_recalls_sole() {
    run(async {
        let service = service(Times::default());
        let maker = TestClient::start(service.address()).await;
        let other = TestClient::start(service.address()).await;
        let file = maker.create_with(ROOT, "f", MAKER).await.unwrap();
        for size in [4096, 0] {
            let changes = AttrChanges { size: Some(size), ..AttrChanges::default() };
            let call = ChangeCall::SetAttr { inode: file.inode, changes };
            attr(maker.call(Call::Change(call)).await).unwrap();
        }
        let late = attr(other.call(empty_commit(file.inode, file.generation)).await).unwrap();
        assert!(late.generation > file.generation, "the commit is late");
        let is_recall = |push: &Push| matches!(push, Push::Recall(r) if r.rights == Rights::SOLE);
        assert!(maker.state.pushes.borrow().iter().any(is_recall));
    });
}
