//! The devices that nodes register: whose they are, how many, and which get new data.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "service_support/support.rs"]
mod support;

use meta::service::Times;
use protocol::client::Push;
use protocol::space::DeviceInfo;
use protocol::{Errno, Incarnation, InodeId, agent};
use reactor::SocketOptions;
use rpc::{Agent, Connection, Connector, Handler, Limits, Reply};
use std::net::SocketAddr;
use std::rc::Rc;
use support::*;

const ROOT: InodeId = InodeId::ROOT;

struct NoPush;

impl Handler<Connector<Agent>> for NoPush {
    fn called(&self, _: agent::Push, reply: Reply<Connector<Agent>>) {
        drop(reply.send(&agent::PushAnswer::Done));
    }
}

/// Registers devices over a connection of its own; returns the connection and the answer.
async fn register(
    address: SocketAddr,
    node: &str,
    devices: Vec<DeviceInfo>,
) -> (Connection<Connector<Agent>>, agent::Answer) {
    let options = SocketOptions::default();
    let connection: Connection<Connector<Agent>> =
        Connection::connect(address, &options, &CREDENTIAL, Limits::default(), Rc::new(NoPush))
            .await
            .unwrap();
    let call = agent::Call::Register {
        node: node.into(),
        devices,
        beat: beat(),
        demand: agent::Demand::Identifier,
    };
    let answer = connection.call(&call, None).await.unwrap();
    (connection, answer)
}

/// Goal: a device belongs to the node that registered it first, and stays memory or storage: no other
/// registration takes its place, marks its data lost, or ends its agent's connection.
#[test]
fn no_node_takes_the_device_of_another() {
    run(async {
        let service = service(Times::default());
        let agent = TestAgent::start(service.address(), vec![device(1, 65536)]).await;
        let client = TestClient::start(service.address()).await;
        let grant = client.lease(agent.devices[0]).await.unwrap();
        let file = client.create(ROOT, "f").await.unwrap();
        client.call(commit(&file, &grant, grant.free[0].start, 0, 4096)).await.unwrap();

        let memory = DeviceInfo { is_volatile: true, ..device(1, 65536) };
        let reborn = DeviceInfo { incarnation: Incarnation(77), ..device(1, 65536) };
        let copies = [("node2", device(1, 65536)), ("node2", memory.clone()), ("node2", reborn)];
        for (node, copy) in copies {
            let own = device(2, 65536);
            let (_connection, answer) = register(service.address(), node, vec![own, copy]).await;
            let agent::Answer::Refused(why) = answer else { panic!("{answer:?}") };
            assert!(why.contains("a device of node node1"), "{why}");
        }
        let (_connection, answer) = register(service.address(), "node1", vec![memory]).await;
        let agent::Answer::Refused(why) = answer else { panic!("{answer:?}") };
        assert!(why.contains("memory"), "{why}");

        settle().await;
        assert!(agent.connection.closed_reason().is_none());
        let again = TestClient::start(service.address()).await;
        assert_eq!(again.devices, client.devices, "a refused registration changes nothing");
        client.lease(agent.devices[0]).await.unwrap();
    });
}

/// Goal: whatever nodes register, the list of all devices fits a message: clients keep their
/// connections, and further ones start.
#[test]
fn the_list_of_devices_always_fits_a_message() {
    run(async {
        let service = service(Times::default());
        let client = TestClient::start(service.address()).await;
        let with = |uuid: u128, traddr: usize, subnqn: usize| {
            let mut info = device(uuid, 65536);
            info.address.traddr = "a".repeat(traddr);
            info.address.subnqn = "n".repeat(subnqn);
            info
        };
        for (uuid, traddr, subnqn) in [(1, 9, 600_000), (2, 600_000, 9), (3, 257, 9), (4, 9, 224)] {
            let long = vec![with(uuid, traddr, subnqn)];
            let (_connection, answer) = register(service.address(), "node1", long).await;
            let agent::Answer::Refused(why) = answer else { panic!("{answer:?}") };
            assert!(why.contains("longer than"), "{why}");
        }
        let mut registered = Vec::new();
        let mut refused = None;
        for node in 0..8 {
            let first = 1 + 1000 * node;
            let devices = (first..first + 1000).map(|uuid| with(uuid, 256, 223)).collect();
            let (connection, answer) =
                register(service.address(), &format!("node{node}"), devices).await;
            registered.push(connection);
            if let agent::Answer::Refused(why) = answer {
                refused = Some(why);
                break;
            }
        }
        assert!(refused.is_some_and(|why| why.contains("too many devices")));
        assert!(registered.len() > 1, "a node with many devices is welcome");
        until(|| client.state.pushes.borrow().iter().any(|p| matches!(p, Push::Devices(_)))).await;
        assert!(client.connection.closed_reason().is_none());
        let again = TestClient::start(service.address()).await;
        assert_eq!(again.devices.len(), 1000 * (registered.len() - 1));
    });
}

/// Goal: a device whose flush has failed gets no new data, not even of its own node's clients, until it
/// registers with another incarnation. Sessions return what they lease there.
#[test]
fn a_device_that_failed_a_flush_gets_no_new_data() {
    run(async {
        let service = service(Times::default());
        let devices = || vec![device(1, 65536), device(2, 65536)];
        let agent = TestAgent::start(service.address(), devices()).await;
        let client = TestClient::start(service.address()).await;
        let (failed, other) = (agent.devices[0], agent.devices[1]);
        let grant = client.lease(failed).await.unwrap();
        let file = client.create(ROOT, "f").await.unwrap();
        agent.flushes.fail.set(true);
        client.call(commit(&file, &grant, grant.free[0].start, 0, 4096)).await.unwrap();
        until(|| client.state.pushes.borrow().contains(&Push::Lost(failed))).await;
        agent.flushes.fail.set(false);
        assert_eq!(client.lease(failed).await.unwrap().device, other);
        let is_reclaim = |push: &Push| matches!(push, Push::Reclaim { .. });
        until(|| client.state.pushes.borrow().iter().any(is_reclaim)).await;

        let same = TestAgent::start(service.address(), devices()).await;
        assert_eq!(client.lease(failed).await.unwrap().device, other, "its flushes still fail");
        same.connection.close("test");
        // A service that has restarted learns it from the agent.
        let mut flagged = devices();
        flagged[1].online = false;
        let told = TestAgent::start(service.address(), flagged).await;
        assert_eq!(client.lease(other).await, Err(Errno::EIO), "both have failed");
        told.connection.close("test");
        let mut reborn = devices();
        reborn[0].incarnation = Incarnation(77);
        let _reborn = TestAgent::start(service.address(), reborn).await;
        assert_eq!(client.lease(failed).await.unwrap().device, failed);
    });
}
