//! A create whose answer was lost, and a removal of the file before the create is repeated.

use super::support::{TestClient, attr, create, entry};
use super::{ROOT, Stage, heartbeat};
use protocol::client::{Call, ChangeCall, OpenTold, ReadCall, Request, Response, SessionCall};
use protocol::lease::Return;
use protocol::{Attr, Errno, LeaseStamp, Rights};
use std::rc::Rc;

const NAME: &str = "f";

fn get(file: &Attr) -> Call {
    Call::Read(ReadCall::GetAttr(file.inode))
}

/// The client repeats the create, and has the file open; or it does not, and the file goes.
pub(super) async fn lost_answer(stage: Rc<Stage>) {
    let maker = stage.client(false).await;
    let rights = Rights::READ | Rights::WRITE | Rights::OPEN | Rights::SOLE;
    let request = maker.request(create(ROOT, NAME, rights));
    let made = maker.send(&request).await.expect("an answer");
    let file = entry(made.result).expect("a new file");
    maker.connection.close("a scene");
    if stage.chance(40) {
        stage.restart().await;
        stage.until_served().await;
    }
    let again = maker.reconnect(stage.address()).await;
    assert!(again.resumed, "a session is not resumed");
    let nothing = SessionCall::Reclaim { held: Vec::new(), done: true };
    again.call(Call::Session(nothing)).await.expect("a reclaim");
    let other = stage.client(false).await;
    let told = OpenTold::OfNone;
    let unlink = ChangeCall::Unlink { parent: ROOT, name: NAME.into(), told };
    other.call(Call::Change(unlink)).await.expect("a removal");
    match stage.below(3) {
        0 => {
            // A later call in its slot.
            let mut slot = request.slot.expect("a slot");
            slot.sequence += 1;
            let call = create(ROOT, "later", Rights::NONE);
            let later = again.send(&Request { slot: Some(slot), call }).await.expect("an answer");
            later.result.expect("a new file");
            assert_eq!(again.call(get(&file)).await, Err(Errno::ESTALE), "a file that is not open");
        }
        1 => {
            // Two heartbeats, before which it would have repeated the call.
            heartbeat(&again, Vec::new()).await.expect("a heartbeat");
            let alive = attr(again.call(get(&file)).await);
            assert_eq!(alive.map(|attr| attr.nlink), Ok(0), "a file whose create may be repeated");
            heartbeat(&again, Vec::new()).await.expect("a heartbeat");
            assert_eq!(again.call(get(&file)).await, Err(Errno::ESTALE), "a file that is not open");
        }
        _ => repeated(&stage, &again, &request, &file).await,
    }
}

/// The answer to a repeated create opens the file, until OPEN is returned.
async fn repeated(stage: &Stage, client: &TestClient, request: &Request, file: &Attr) {
    let Response { result, grants, .. } = client.send(request).await.expect("an answer");
    assert_eq!(entry(result).expect("the file").inode, file.inode);
    let opens = grants.iter().any(|it| it.inode == file.inode && it.rights == Rights::OPEN);
    assert!(opens, "a repeated create grants {grants:?}");
    for _ in 0..stage.below(4) {
        heartbeat(client, Vec::new()).await.expect("a heartbeat");
    }
    let alive = attr(client.call(get(file)).await);
    assert_eq!(alive.map(|attr| attr.nlink), Ok(0), "a file that is open");
    let (inode, rights, stamp) = (file.inode, Rights::OPEN, LeaseStamp(u64::MAX));
    let back = SessionCall::GiveBack(vec![Return { inode, rights, stamp }]);
    client.call(Call::Session(back)).await.expect("a return");
    assert_eq!(client.call(get(file)).await, Err(Errno::ESTALE), "a file that was closed");
}
