//! Goal: a host proves itself in the clear, generates a TLS key with the target in that, and uses namespaces under TLS
//! with it alone; hosts and targets that are set up otherwise are told so, and nothing goes on in the clear.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use auth::{Group, Hash, Key, KeyPair, Policy};
use block::MemoryBacking;
use host::{ConnectOptions, Controller, Error, Namespace};
use nvme::{HostId, Nqn, Nsid};
use reactor::{Buffer, Runtime};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use target::{
    AdmissionMode, Admissions, HostAccess, HostProof, HostTls, Limits, Server, ServerOptions,
    Subsystem, Target,
};

fn nqn(name: &str) -> Nqn {
    Nqn::new(&format!("nqn.2026-11.test:{name}")).unwrap()
}

fn run<F: Future>(future: F) -> F::Output {
    let mut runtime = Runtime::new(&reactor::Config::default()).unwrap();
    runtime.block_on(async {
        reactor::time::timeout(Duration::from_mins(2), future).await.expect("the test hangs")
    })
}

fn keys(is_mutual: bool) -> KeyPair {
    let key = || Key::generate(None, 32).unwrap();
    KeyPair { host: key(), controller: is_mutual.then(key) }
}

/// Small groups only: this is not optimised.
fn policy(hash: Hash, concatenation: bool) -> Policy {
    Policy { hashes: vec![hash], groups: vec![Group::Ffdhe2048], concatenation }
}

/// A target on which the host "host" has to generate a TLS key, "plain" has to prove itself and nothing more, and
/// others are asked for nothing.
fn start(keys: &KeyPair, hash: Hash, cores: usize) -> (Arc<Target>, Server) {
    let target = Target::new(Limits::default(), Admissions::new(AdmissionMode::AnyHost)).unwrap();
    let subsystem = Subsystem::new(nqn("disk"), "SERIAL", "Test", HostAccess::Any);
    let subsystem = target.add_subsystem(subsystem).unwrap();
    let backing = Arc::new(MemoryBacking::new(4 << 20, 4096).unwrap());
    subsystem.add_namespace(target::Namespace::new(Nsid(1), [5; 16], backing, false)).unwrap();
    for (host, concatenation) in [("host", true), ("plain", false)] {
        let proof = HostProof { keys: keys.clone(), policy: policy(hash, concatenation) };
        target.require_proof(nqn(host), proof).unwrap();
    }
    let listen = vec!["127.0.0.1:0".parse().unwrap()];
    let options = ServerOptions { listen, cores, ..ServerOptions::default() };
    let server = Server::start(&target, &options).unwrap();
    (target, server)
}

fn options(
    address: SocketAddr,
    host: &str,
    keys: Option<&KeyPair>,
    concat: bool,
) -> ConnectOptions {
    let options = ConnectOptions::new(address, nqn("disk"));
    let mut options = options.with_host(HostId([9; 16]), nqn(host));
    options.dhchap = keys.cloned();
    options.concat = concat;
    options.nr_io_queues = 2;
    options.connect_timeout = Duration::from_secs(20);
    options
}

async fn exchange(controller: &Controller) {
    exchange_with(&Namespace::open(controller, Nsid(1)).await.unwrap()).await;
}

async fn exchange_with(namespace: &Namespace) {
    for bytes in [4096, 16_384, 135_168, 1 << 20] {
        let written: Vec<u8> = (0..bytes).map(|i| ((i / 512) * 13 + i * 7) as u8).collect();
        namespace.write(8192, Buffer::copy_from(&written).freeze()).await.unwrap();
        let read = namespace.read(8192, Buffer::zeroed(bytes)).await.unwrap();
        assert!(read[..] == written[..], "{bytes} bytes are not what was written");
    }
}

/// Goal: data goes under TLS with a generated key, for both cipher suites, one way and both ways, on one core and on
/// several; after a lost connection another key is generated. Hosts beside it are served as they are set up.
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
            assert_eq!(target.controllers().len(), 1, "that of the proof has ended");
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

/// Goal: nobody uses a namespace in the clear in the name of a host that has to generate a key, or has one generated
/// where none is asked for.
#[test]
fn nothing_goes_on_in_the_clear() {
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
        // A host that proves itself but goes on in the clear gets no I/O queue pair.
        let mut stubborn = options(address, "host", Some(&keys), false);
        stubborn.dhchap_policy.concatenation = true;
        let error = refused(stubborn).await;
        assert!(matches!(error, Error::ConcatenationNeeded), "{error}");
        // The key goes with the host's right to prove itself.
        let controller =
            Controller::connect(options(address, "host", Some(&keys), true)).await.unwrap();
        target.forget_proof(&nqn("host"));
        drop(controller);
        let error = refused(options(address, "host", Some(&keys), true)).await;
        assert!(matches!(error, Error::NothingToConcatenate), "{error}");
    });
}

/// Goal: what was said in the clear ends no controller: it is connected again as soon as the target lets it.
#[test]
fn refusals_in_the_clear_are_not_final() {
    run(async {
        let keys = keys(false);
        let (target, server) = start(&keys, Hash::Sha256, 1);
        let mine = options(server.addresses()[0], "host", Some(&keys), true);
        let controller = Controller::connect(mine).await.unwrap();
        assert!(target.forget_proof(&nqn("host")) && target.drop_host(&nqn("host")) > 0);
        // It finds that it has nothing to generate a key with, several times.
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
    let target = Target::new(Limits::default(), Admissions::new(AdmissionMode::AnyHost)).unwrap();
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
    let target = Target::new(Limits::default(), Admissions::new(AdmissionMode::AnyHost)).unwrap();
    target.require_proof(nqn("host"), proof(true)).unwrap();
    assert!(!target.requires_tls(), "it takes connections in the clear as well");
    assert!(target.require_tls(nqn("host"), tls).is_err());
}
