//! Many recalls at once.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "service_support/support.rs"]
mod support;

use meta::service::Times;
use protocol::client::{Call, Push, PushAnswer, ReadCall, SessionCall};
use protocol::lease::Recalled;
use protocol::{InodeId, Rights};
use std::cell::RefCell;
use std::rc::Rc;
use support::*;

const ROOT: InodeId = InodeId::ROOT;

/// Goal: a client that has to answer more recalls than a connection carries gets them in turns. Its
/// session lives on, and every call that waits for an answer is executed.
#[test]
fn thousands_of_recalls_end_no_session() {
    const FILES: usize = 4200;
    run(async {
        let service = service(Times::default());
        let holder = TestClient::start(service.address()).await;
        let mut files = Vec::new();
        for number in 0..FILES {
            let name = format!("f{number}");
            files.push(holder.create_with(ROOT, &name, Rights::SIZE).await.unwrap().inode);
        }
        let held = Rc::new(RefCell::new(Some(Vec::new())));
        let holds = Rc::clone(&held);
        holder.policy(move |_, push, reply| {
            if let (Push::Recall(_), Some(held)) = (push, &mut *holds.borrow_mut()) {
                held.extend(reply.take());
            }
        });
        let mut calls = Vec::new();
        for some in files.chunks(1500) {
            let other = TestClient::start(service.address()).await;
            let acquire = |inode: &InodeId| {
                other.spawn(Call::Session(SessionCall::Acquire {
                    inode: *inode,
                    rights: Rights::SIZE,
                }))
            };
            calls.extend(some.iter().map(acquire));
        }
        settle().await;
        until(|| held.borrow().as_ref().is_some_and(|held| held.len() >= 1024)).await;
        settle().await;
        assert_eq!(holder.call(Call::Read(ReadCall::GetAttr(ROOT))).await.err(), None);
        assert_eq!(holder.state.pushes.borrow().len(), 1024, "recalls under way at once");
        // The first ones are answered late, all others as they come.
        let kept = Recalled { inode: files[0], kept: Rights::NONE };
        for reply in held.take().unwrap_or_default() {
            reply.send(&PushAnswer::Recalled(kept)).unwrap();
        }
        for call in calls {
            call.done().await.unwrap();
        }
        assert_eq!(holder.state.pushes.borrow().len(), FILES);
        assert_eq!(holder.call(Call::Read(ReadCall::GetAttr(ROOT))).await.err(), None);
    });
}
