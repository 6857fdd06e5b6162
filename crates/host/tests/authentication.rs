//! Goal: a target with secrets serves only hosts that know their secrets, on all queue pairs and in
//! discovery; each side reports its reason for a refusal.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod disk;

use auth::{Fault, Group, Hash, Key, KeyPair, Policy};
use disk::{nqn, run};
use host::{ConnectOptions, Controller, Error, Namespace};
use nvme::auth::Reason;
use nvme::{HostId, Nqn, Nsid, Status};
use reactor::Buffer;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use target::{AdmissionMode, Admissions, HostAccess, HostProof, Limits, Server, Target};

fn key() -> Key {
    Key::generate(Some(Hash::Sha256), 32).unwrap()
}

fn keys() -> KeyPair {
    KeyPair { host: key(), controller: Some(key()) }
}

/// Starts a target for the hosts "keyed", which has to prove itself by these keys, and "plain",
/// which does not.
fn start(keys: &KeyPair, policy: Policy, cores: usize) -> (Arc<Target>, Server) {
    let access = HostAccess::List(BTreeSet::from([nqn("keyed"), nqn("plain")]));
    let target = disk::target(access, 1 << 20);
    target.require_proof(nqn("keyed"), HostProof { keys: keys.clone(), policy }).unwrap();
    let server = disk::serve(&target, cores);
    (target, server)
}

fn options(server: &Server, host: &str, keys: Option<KeyPair>) -> ConnectOptions {
    let options = ConnectOptions::new(server.addresses()[0], nqn("disk"));
    let mut options = options.with_host(HostId([9; 16]), nqn(host));
    options.dhchap = keys;
    options.nr_io_queues = 2;
    options
}

async fn refusal(options: ConnectOptions) -> Error {
    Controller::connect(options).await.unwrap_err()
}

/// Goal: data is transferred over authenticated queue pairs with each group, on one core and on
/// several, and also after a second authentication.
#[test]
fn keyed_hosts_are_served() {
    for (index, group) in Group::ALL.into_iter().enumerate() {
        run(async {
            let keys = keys();
            let policy = Policy {
                hashes: vec![Hash::ALL[index % 3]],
                groups: vec![group],
                concatenation: false,
            };
            let (_target, server) = start(&keys, policy, 1 + index % 2);
            let mut options = options(&server, "keyed", Some(keys));
            options.connect_timeout = Duration::from_mins(1);
            let controller = Controller::connect(options).await.unwrap();
            let namespace = Namespace::open(&controller, Nsid(1)).await.unwrap();
            for round in 0..2_u8 {
                let bytes = Buffer::copy_from(&vec![round + 1; 65_536]);
                namespace.write(0, bytes.freeze()).await.unwrap();
                let read = namespace.read(0, Buffer::zeroed(65_536)).await.unwrap();
                assert!(read.iter().all(|byte| *byte == round + 1));
                controller.reauthenticate().await.unwrap();
            }
            assert_eq!(controller.reconnects(), 0);
            controller.disconnect().await.unwrap();
            server.shutdown().await.unwrap();
        });
    }
}

/// Goal: discovery demands the secret of hosts that have one, if configured, and shows them their
/// subsystems.
#[test]
fn discovery_demands_proofs_too() {
    run(async {
        let keys = keys();
        let (target, server) = start(&keys, Policy::default(), 1);
        let of = |host, keys| {
            let mut options = options(&server, host, keys);
            options.subsystem_nqn = Nqn::discovery();
            options
        };
        Controller::connect_discovery(of("keyed", None)).await.unwrap();
        Controller::connect_discovery(of("keyed", Some(keys.clone()))).await.unwrap();
        target.require_proof_for_discovery();
        let controller = Controller::connect_discovery(of("keyed", Some(keys))).await.unwrap();
        let log = controller.discover().await.unwrap();
        let names = log.entries.iter().filter_map(|entry| entry.subsystem_nqn().ok());
        assert!(names.into_iter().any(|name| name == nqn("disk")));
        let error = Controller::connect_discovery(of("keyed", None)).await.unwrap_err();
        assert!(matches!(error, Error::SecretNeeded), "{error}");
        Controller::connect_discovery(of("plain", None)).await.unwrap();
    });
}

/// Goal: a host without the secrets is refused with a reason, while others are served.
#[test]
fn strangers_are_refused() {
    run(async {
        let keys = keys();
        let (target, server) = start(&keys, Policy::default(), 1);
        let error = refusal(options(&server, "keyed", None)).await;
        assert!(matches!(error, Error::SecretNeeded), "{error}");
        let wrong = KeyPair { host: key(), ..keys.clone() };
        let error = refusal(options(&server, "keyed", Some(wrong))).await;
        let failed = Fault::Refused(Reason::FAILED);
        assert!(matches!(error, Error::Authentication(fault) if fault == failed), "{error}");
        let wrong = KeyPair { controller: Some(key()), ..keys.clone() };
        let error = refusal(options(&server, "keyed", Some(wrong))).await;
        let failed = Fault::Unacceptable(Reason::FAILED);
        assert!(matches!(error, Error::Authentication(fault) if fault == failed), "{error}");
        assert_eq!(error.to_errno(), 13);
        // A host that demands a proof does not continue without one.
        let error = refusal(options(&server, "plain", Some(keys.clone()))).await;
        assert!(matches!(error, Error::Authentication(Fault::Unproved)), "{error}");
        // A secret does no harm if the target does not demand it.
        let one_way = KeyPair { controller: None, ..keys };
        let mild = Controller::connect(options(&server, "plain", Some(one_way))).await.unwrap();
        mild.disconnect().await.unwrap();
        while !target.controllers().is_empty() {
            reactor::time::sleep(Duration::from_millis(5)).await;
        }
    });
}

/// Goal: the number of guesses is bounded, and they do not keep out a host that has authenticated
/// once.
#[test]
fn guesses_are_bounded() {
    run(async {
        let keys = keys();
        let policy =
            Policy { hashes: Hash::ALL.to_vec(), groups: vec![Group::Null], concatenation: false };
        let (_target, server) = start(&keys, policy, 1);
        let wrong = KeyPair { host: key(), ..keys.clone() };
        let mut is_busy = false;
        for _ in 0..64 {
            let error = refusal(options(&server, "keyed", Some(wrong.clone()))).await;
            is_busy |= matches!(&error, Error::Refused { status, .. }
                if status.is(Status::CONNECT_CONTROLLER_BUSY));
        }
        assert!(is_busy, "guesses are not bounded");
        loop {
            match Controller::connect(options(&server, "keyed", Some(keys.clone()))).await {
                Ok(_) => break,
                Err(Error::Refused { .. }) => {
                    reactor::time::sleep(Duration::from_millis(200)).await;
                }
                Err(error) => panic!("{error}"),
            }
        }
    });
}

/// Goal: sessions that an agent admits give no proofs, because their earlier controllers would end
/// before the proof of the new one.
#[test]
fn admitted_sessions_have_no_proofs() {
    let target =
        Target::new(Limits::default(), Admissions::new(AdmissionMode::Controlled)).unwrap();
    let proof = HostProof { keys: keys(), policy: Policy::default() };
    assert!(target.require_proof(nqn("keyed"), proof).is_err());
}
