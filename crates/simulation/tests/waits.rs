//! Every wait ends, also where two tasks of one client meet: a scene for each that did not.

use client::{Client, ClientConfig, OpenMode, SessionConfig, Setting};
use meta::service::{Config, Service, StoreChoice, Times};
use meta::store::MemoryStore;
use protocol::InodeId;
use protocol::auth::Secret;
use protocol::client::RenameMode;
use ring::sim::Simulation;
use ring::time::{sleep, timeout};
use ring::{SocketOptions, spawn};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

const META_PORT: u16 = 7000;
const SECRET: Secret = Secret([7; 32]);
const SETTING: Setting = Setting { mode: 0o644, uid: 0, gid: 0 };

/// Runs a scene on a client of a metadata service; no data is needed, so there are no devices.
fn with_client<F: Future<Output = ()> + 'static>(scene: impl FnOnce(Rc<Client>) -> F + 'static) {
    let mut simulation = Simulation::new(1);
    let (meta, machine) = (simulation.node("meta"), simulation.node("node0"));
    let address = SocketAddr::new(meta.address(), META_PORT);
    let whole = async move {
        drop(meta.spawn(async move {
            let config = Config {
                listen: address,
                network_namespace: None,
                store: StoreChoice::Open(Box::new(MemoryStore::new())),
                secret: SECRET,
                root: (0o755, 0, 0),
                boot: Some(uuid::Uuid::from_u128(1)),
                times: Times::default(),
            };
            Service::start(config).unwrap().ended().await.unwrap();
        }));
        let job = machine.spawn(async move {
            let session = SessionConfig {
                meta: address,
                secret: SECRET,
                times: protocol::times::Times::default(),
                node: "node0".into(),
                sockets: SocketOptions::default(),
            };
            let config = ClientConfig { session, local: Box::new(|_, _, _| None), changes: None };
            scene(Client::start(config).await.unwrap()).await;
        });
        job.await.unwrap();
    };
    simulation.run(whole).unwrap();
}

/// Goal: an unlink, or a rename over a name, whose client has the file open tells the service so
/// first; it ends also if the file is closed while it does that: then there is nothing to tell, and
/// what the service grants is returned at once.
#[test]
fn a_removal_ends_when_its_file_is_closed_meanwhile() {
    with_client(async |client| {
        for is_rename in [false, true] {
            let write = OpenMode { write: true, ..OpenMode::default() };
            for name in [&b"a"[..], b"b"] {
                let made = client.create(InodeId::ROOT, name, SETTING, write).await;
                client.release(&made.unwrap().0).await.unwrap();
            }
            // Opens that have ended are told of by then.
            sleep(protocol::times::WRITEBACK * 2).await;
            let inode = client.lookup(InodeId::ROOT, b"a").await.unwrap().inode;
            let (handle, _) = client.open(inode, OpenMode::default()).await.unwrap();
            let remover = Rc::clone(&client);
            let removal = spawn(async move {
                let root = InodeId::ROOT;
                if is_rename {
                    remover.rename((root, b"b"), (root, b"a"), RenameMode::Replace).await
                } else {
                    remover.unlink(root, b"a").await
                }
            });
            // It has asked by then, and has no answer.
            ring::yield_now().await;
            client.release(&handle).await.unwrap();
            let ended = timeout(Duration::from_mins(2), removal).await;
            ended.expect("it ends").unwrap().unwrap();
            let _ = client.unlink(InodeId::ROOT, b"b").await;
        }
    });
}
