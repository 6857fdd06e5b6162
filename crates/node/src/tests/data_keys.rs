//! The lifetime of a session's key at a node: made when the session is admitted, valid for that
//! session at that node, void after its end.

use super::{TestClient, service_with_keys};
use crate::config::NodeConfig;
use crate::{Exports, open_devices};
use auth::{KeyPair, Policy, TlsKey};
use host::{ConnectOptions, Controller, Error, TlsOptions};
use nvme::{HostId, Nqn};
use protocol::DataKey;
use protocol::agent::Demand;
use protocol::client::{Answer, Call, SessionCall};
use protocol::times::Times;
use std::net::SocketAddr;
use std::time::Duration;
use tls::JobKey;

/// Starts a node's target with its agent.
async fn node(name: &str, meta: SocketAddr) -> (Exports, reactor::JoinHandle<()>) {
    let (config, exports) = exports(name, meta, "").await;
    let agent = exports.join(&config, &super::CREDENTIAL).await.unwrap();
    (exports, agent)
}

/// Starts a node that demands proofs, as over RDMA, but over TCP.
async fn proving_node(name: &str, meta: SocketAddr) -> (Exports, reactor::JoinHandle<()>) {
    let (config, mut exports) = exports(name, meta, "plain_data=true\n").await;
    exports.server.target().require_admission_proofs().unwrap();
    exports.demand = Demand::Proof;
    let agent = exports.join(&config, &super::CREDENTIAL).await.unwrap();
    (exports, agent)
}

/// Starts a node's target.
async fn exports(name: &str, meta: SocketAddr, more: &str) -> (NodeConfig, Exports) {
    let text = format!(
        "name='{name}'\nmeta='{meta}'\nsecret='none'\nplain=true\nfaster=20\n\
         {more}[[device]]\nsize='32M'\n"
    );
    // The agent uses no TLS, the target does: `NodeConfig::read` would set both alike.
    let config: NodeConfig = toml::from_str(&text).unwrap();
    let devices = open_devices(&config).await.unwrap();
    let exports = Exports::start(&config, &devices).await.unwrap();
    (config, exports)
}

/// Returns the key that a session gets for a device.
async fn admitted(client: &TestClient, device: u32) -> DataKey {
    let call = Call::Session(SessionCall::Admit(protocol::DeviceId(device)));
    match client.call(call).await {
        Ok(Answer::Admitted { key: Some(key), .. }) => key,
        other => panic!("{other:?} has no key"),
    }
}

/// Connects to a node like a session, with this key.
async fn connect(exports: &Exports, client: &TestClient, key: &DataKey) -> Result<(), Error> {
    let id = HostId(client.host.0);
    let name = Nqn::new(&format!("{}:1", Nqn::from_uuid(id.0))).unwrap();
    let at = &exports.infos[0].address;
    let subnqn: Nqn = at.subnqn.parse().unwrap();
    let key = TlsKey::new(None, key.clone().into_bytes()).unwrap();
    let tls = TlsOptions::of_admission(key, &name, &subnqn)?;
    let address = at.traddr.parse().unwrap();
    let mut options = ConnectOptions::new(address, subnqn).with_host(id, name);
    options.tls = Some(tls);
    options.connect_timeout = Duration::from_secs(20);
    Controller::connect(options).await?.disconnect().await
}

async fn refused(exports: &Exports, client: &TestClient, key: &DataKey, what: &str) {
    match connect(exports, client, key).await {
        Err(Error::SecureChannel(_)) => {}
        other => panic!("{what}: {other:?}"),
    }
}

/// Goal: each session gets a key of its own at each node, the same each time it asks. The key opens
/// that node to that session only, and nothing once the session has ended.
#[test]
fn a_key_opens_one_node_to_one_session_until_its_end() {
    reactor::Runtime::new(&reactor::Config::default()).unwrap().block_on(async {
        let job = JobKey::generate();
        let service = service_with_keys(Times::faster(20), Some(job.clone()));
        let (one, _one) = node("node1", service.address()).await;
        let (two, _two) = node("node2", service.address()).await;
        let client = TestClient::start(service.address()).await;
        let other = TestClient::start(service.address()).await;
        client.beat_always();
        other.beat_always();
        let key = admitted(&client, 0).await;
        assert_eq!(admitted(&client, 0).await, key);
        let there = admitted(&client, 1).await;
        let others = admitted(&other, 0).await;
        assert!(key != there && key != others && there != others);

        connect(&one, &client, &key).await.unwrap();
        connect(&two, &client, &there).await.unwrap();
        connect(&one, &other, &others).await.unwrap();
        refused(&two, &client, &key, "the key of another node").await;
        refused(&one, &client, &there, "the key of another node").await;
        refused(&one, &other, &key, "the key of another session").await;
        refused(&one, &client, &others, "the key of another session").await;

        client.is_silent.set(true);
        client.call(Call::Session(SessionCall::End)).await.unwrap();
        // The end of the session is answered before the fences are.
        while connect(&one, &client, &key).await.is_ok() {
            reactor::time::sleep(Duration::from_millis(5)).await;
        }
        refused(&one, &client, &key, "the key of a session that has ended").await;
        refused(&two, &client, &there, "the key of a session that has ended").await;
        connect(&one, &other, &others).await.unwrap();
    });
}

/// Proves this key to a node, like a session over RDMA.
async fn prove(exports: &Exports, client: &TestClient, key: &DataKey) -> Result<(), Error> {
    let id = HostId(client.host.0);
    let name = Nqn::new(&format!("{}:1", Nqn::from_uuid(id.0))).unwrap();
    let at = &exports.infos[0].address;
    let (address, subnqn) = (at.traddr.parse().unwrap(), at.subnqn.parse().unwrap());
    let key = TlsKey::new(None, key.clone().into_bytes()).unwrap();
    let mut options = ConnectOptions::new(address, subnqn).with_host(id, name);
    options.dhchap = Some(KeyPair::of_admission(&key));
    options.dhchap_policy = Policy::of_admission();
    options.connect_timeout = Duration::from_secs(20);
    Controller::connect(options).await?.disconnect().await
}

/// Goal: where a target demands proofs, a session proves the key that it gets for that node. The key
/// of another session or node proves nothing, and no key does once the session has ended.
#[test]
fn a_session_proves_its_key_until_its_end() {
    reactor::Runtime::new(&reactor::Config::default()).unwrap().block_on(async {
        let job = JobKey::generate();
        let service = service_with_keys(Times::faster(20), Some(job.clone()));
        let (one, _one) = proving_node("node1", service.address()).await;
        let (two, _two) = proving_node("node2", service.address()).await;
        let client = TestClient::start(service.address()).await;
        let other = TestClient::start(service.address()).await;
        client.beat_always();
        other.beat_always();
        let (key, there) = (admitted(&client, 0).await, admitted(&client, 1).await);
        let others = admitted(&other, 0).await;
        prove(&one, &client, &key).await.unwrap();
        prove(&two, &client, &there).await.unwrap();
        prove(&one, &other, &others).await.unwrap();
        for (exports, host, wrong) in [
            (&two, &client, &key),
            (&one, &client, &there),
            (&one, &other, &key),
            (&one, &client, &others),
        ] {
            let error = prove(exports, host, wrong).await.unwrap_err();
            assert!(matches!(error, Error::Authentication(_)), "{error}");
        }
        client.is_silent.set(true);
        client.call(Call::Session(SessionCall::End)).await.unwrap();
        for (exports, key) in [(&one, &key), (&two, &there)] {
            // The end of the session is answered before the fences are.
            while prove(exports, &client, key).await.is_ok() {
                reactor::time::sleep(Duration::from_millis(5)).await;
            }
            let error = prove(exports, &client, key).await.unwrap_err();
            assert!(matches!(error, Error::Refused { command: "Connect", .. }), "{error}");
        }
        prove(&one, &other, &others).await.unwrap();
    });
}
