//! Goal: a host proves itself in the clear, generates a TLS key with the target in that proof, and
//! then uses namespaces only under TLS with this key. Hosts and targets with other settings get an
//! error, and no data is transferred in the clear.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod disk;

use auth::{Group, Hash, Key, KeyPair, Policy};
use disk::{nqn, run};
use host::{ConnectOptions, Controller, Error, Namespace};
use nvme::Nsid;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use target::{HostAccess, HostProof, HostTls, Server, Target};

fn keys(is_mutual: bool) -> KeyPair {
    let key = || Key::generate(None, 32).unwrap();
    KeyPair { host: key(), controller: is_mutual.then(key) }
}

/// Uses a small group only: the code of this test is not optimised.
fn policy(hash: Hash, concatenation: bool) -> Policy {
    Policy { hashes: vec![hash], groups: vec![Group::Ffdhe2048], concatenation }
}

/// Starts a target on which the host "host" has to generate a TLS key, "plain" has to prove itself
/// without generating a key, and others need no proof.
fn start(keys: &KeyPair, hash: Hash, cores: usize) -> (Arc<Target>, Server) {
    let target = disk::target(HostAccess::Any, 4 << 20);
    for (host, concatenation) in [("host", true), ("plain", false)] {
        let proof = HostProof { keys: keys.clone(), policy: policy(hash, concatenation) };
        target.require_proof(nqn(host), proof).unwrap();
    }
    let server = disk::serve(&target, cores);
    (target, server)
}

fn options(
    address: SocketAddr,
    host: &str,
    keys: Option<&KeyPair>,
    concat: bool,
) -> ConnectOptions {
    let mut options = disk::options(address, host);
    options.dhchap = keys.cloned();
    options.concat = concat;
    options
}

async fn exchange(controller: &Controller) {
    exchange_with(&Namespace::open(controller, Nsid(1)).await.unwrap()).await;
}

async fn exchange_with(namespace: &Namespace) {
    disk::exchange(namespace, &[4096, 16_384, 135_168, 1 << 20]).await;
}

/// Goal: data is transferred under TLS with a generated key, for both cipher suites, with proofs of
/// the host alone and of both sides, on one core and on several; after a lost connection another
/// key is generated. Hosts with other settings are served beside it.
#[test]
fn namespaces_are_used_under_a_generated_key() {
    for (hash, cores, is_mutual) in [(Hash::Sha256, 1, false), (Hash::Sha384, 2, true)] {
        run(async {
            let keys = keys(is_mutual);
            let (target, server) = start(&keys, hash, cores);
            let address = server.addresses()[0];
            let mine = options(address, "host", Some(&keys), true);
            let controller = Controller::connect(mine.clone()).await.unwrap();
            let namespace = Namespace::open(&controller, Nsid(1)).await.unwrap();
            exchange_with(&namespace).await;
            assert_eq!(controller.reconnects(), 0);
            assert_eq!(target.controllers().len(), 1, "the controller of the proof has ended");
            assert!(target.drop_host(&nqn("host")) > 0);
            exchange_with(&namespace).await;
            assert!(controller.reconnects() > 0);
            let second = Controller::connect(mine).await.unwrap();
            exchange(&second).await;
            let plain = options(address, "plain", Some(&keys), false);
            exchange(&Controller::connect(plain).await.unwrap()).await;
            exchange(&Controller::connect(options(address, "other", None, false)).await.unwrap())
                .await;
            for controller in [controller, second] {
                controller.disconnect().await.unwrap();
            }
            server.shutdown().await.unwrap();
        });
    }
}

/// Goal: a host that has to generate a key cannot use a namespace in the clear, nor can another
/// host in its name; a host that generates keys is refused if the target does not demand it.
#[test]
fn other_settings_are_refused() {
    run(async {
        let (keys, other) = (keys(false), keys(false));
        let (target, server) = start(&keys, Hash::Sha256, 1);
        let address = server.addresses()[0];
        let refused = async |options| Controller::connect(options).await.unwrap_err();
        let error = refused(options(address, "host", Some(&keys), false)).await;
        assert!(matches!(error, Error::ConcatenationNeeded), "{error}");
        let error = refused(options(address, "host", None, false)).await;
        assert!(matches!(error, Error::ConcatenationNeeded), "{error}");
        let error = refused(options(address, "host", Some(&other), true)).await;
        assert!(matches!(error, Error::Authentication(_)), "{error}");
        let error = refused(options(address, "plain", Some(&keys), true)).await;
        assert!(matches!(error, Error::Authentication(_)), "{error}");
        let error = refused(options(address, "other", Some(&keys), true)).await;
        assert!(matches!(error, Error::NothingToConcatenate), "{error}");
        let error = refused(options(address, "host", None, true)).await;
        assert!(matches!(error, Error::InvalidOption { option: "concat", .. }), "{error}");
        // A host that proves itself but continues in the clear gets no I/O queue pair.
        let mut stubborn = options(address, "host", Some(&keys), false);
        stubborn.dhchap_policy.concatenation = true;
        let error = refused(stubborn).await;
        assert!(matches!(error, Error::ConcatenationNeeded), "{error}");
        // A key ends with the host's right to prove itself.
        let controller =
            Controller::connect(options(address, "host", Some(&keys), true)).await.unwrap();
        target.forget_proof(&nqn("host"));
        drop(controller);
        let error = refused(options(address, "host", Some(&keys), true)).await;
        assert!(matches!(error, Error::NothingToConcatenate), "{error}");
    });
}

/// Goal: a refusal in the clear ends no controller: the host reconnects as soon as the target
/// accepts it.
#[test]
fn refusals_in_the_clear_are_not_final() {
    run(async {
        let keys = keys(false);
        let (target, server) = start(&keys, Hash::Sha256, 1);
        let mine = options(server.addresses()[0], "host", Some(&keys), true);
        let controller = Controller::connect(mine).await.unwrap();
        assert!(target.forget_proof(&nqn("host")) && target.drop_host(&nqn("host")) > 0);
        // The host finds several times that no key can be generated.
        reactor::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(controller.reconnects(), 0);
        let proof = HostProof { keys, policy: policy(Hash::Sha256, true) };
        target.require_proof(nqn("host"), proof).unwrap();
        exchange(&controller).await;
        assert!(controller.reconnects() > 0);
    });
}

/// Goal: a target has one kind of TLS keys.
#[test]
fn kinds_of_keys_are_not_mixed() {
    let target = disk::empty_target();
    let tls = HostTls {
        key: auth::TlsKey::generate(Hash::Sha256).unwrap(),
        derivation: auth::Derivation::Standard,
    };
    let proof = |concatenation| HostProof {
        keys: keys(false),
        policy: policy(Hash::Sha256, concatenation),
    };
    target.require_tls(nqn("host"), tls.clone()).unwrap();
    target.require_proof(nqn("host"), proof(false)).unwrap();
    assert!(target.require_proof(nqn("host"), proof(true)).is_err());
    assert!(target.requires_tls());
    let target = disk::empty_target();
    target.require_proof(nqn("host"), proof(true)).unwrap();
    assert!(!target.requires_tls(), "the target accepts connections in the clear too");
    assert!(target.require_tls(nqn("host"), tls).is_err());
}
