//! Connections without TLS on which a host proves the key of its admission, as over RDMA: each key
//! admits only its own session to one target, and only during the admission. (Over TCP here; the
//! proof is the same.)
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod admitted;

use admitted::{host, key, run, subsystem};
use auth::{KeyPair, Policy, TlsKey};
use block::MemoryBacking;
use host::{ConnectOptions, Controller, Error, Namespace};
use nvme::{HostId, Nqn, Nsid};
use reactor::Buffer;
use std::sync::Arc;
use std::time::Duration;
use target::{
    AdmissionMode, Admissions, HostAccess, Limits, Moment, Server, ServerOptions, Subsystem, Target,
};

const LONG: Duration = Duration::from_mins(1);

struct Served {
    target: Arc<Target>,
    server: Server,
}

impl Served {
    /// Starts a target that demands proofs.
    fn start() -> Self {
        let served = Self::without_proofs();
        served.target.require_admission_proofs().unwrap();
        served
    }

    fn without_proofs() -> Self {
        let admissions = Admissions::new(AdmissionMode::Controlled);
        let target = Target::new(Limits::default(), admissions).unwrap();
        let node = Subsystem::new(subsystem(), "SERIAL", "Test", HostAccess::Any);
        let node = target.add_subsystem(node).unwrap();
        let backing = Arc::new(MemoryBacking::new(4 << 20, 4096).unwrap());
        node.add_namespace(target::Namespace::new(Nsid(1), [5; 16], backing, false)).unwrap();
        let listen = vec!["127.0.0.1:0".parse().unwrap()];
        let options = ServerOptions { listen, ..ServerOptions::default() };
        let server = Server::start(&target, &options).unwrap();
        Self { target, server }
    }

    async fn admit(&self, host: HostId, epoch: u64, key: Option<TlsKey>, lasts: Duration) {
        let lapse = Moment::from_ns(reactor::time::boot_time()) + lasts;
        self.target.admissions().admit_with_key(host, epoch, lapse, key).await.unwrap();
    }

    /// Returns the options of a host with this identifier, which proves this key.
    fn options(&self, hostid: HostId, key: Option<&TlsKey>) -> ConnectOptions {
        let name = Nqn::new(&format!("{}:1", Nqn::from_uuid(hostid.0).as_str())).unwrap();
        let options = ConnectOptions::new(self.server.addresses()[0], subsystem());
        let mut options = options.with_host(hostid, name);
        options.dhchap = key.map(KeyPair::of_admission);
        options.dhchap_policy = Policy::of_admission();
        options
    }

    async fn connect(&self, host: HostId, key: &TlsKey) -> Result<Controller, Error> {
        Controller::connect(self.options(host, Some(key))).await
    }

    fn refused(&self) -> u64 {
        let subsystem = self.target.subsystem(&subsystem()).unwrap();
        subsystem.namespaces().iter().map(|namespace| namespace.counts().refused).sum()
    }
}

/// Goal: the target serves a session with its own key. It refuses another session's key, the key of
/// the same session at another target, a claimed identifier without a key, and strangers, whom it
/// counts; none of them has a controller.
#[test]
fn a_key_is_one_sessions_at_one_target() {
    run(async {
        let (near, far) = (Served::start(), Served::start());
        for (served, first) in [(&near, 1), (&far, 11)] {
            served.admit(host(1), 1, Some(key(first)), LONG).await;
            served.admit(host(2), 2, Some(key(first + 1)), LONG).await;
        }
        let controller = near.connect(host(1), &key(1)).await.unwrap();
        let namespace = Namespace::open(&controller, Nsid(1)).await.unwrap();
        namespace.write(0, Buffer::copy_from(&[7; 8192]).freeze()).await.unwrap();
        assert!(namespace.read(0, Buffer::zeroed(8192)).await.unwrap()[..] == [7; 8192]);

        for (served, number, key) in [(&near, 2, 1), (&far, 1, 1), (&far, 2, 1)] {
            let error = served.connect(host(number), &self::key(key)).await.unwrap_err();
            assert!(matches!(error, Error::Authentication(_)), "{number} with key {key}: {error}");
        }
        let claimed = Controller::connect(near.options(host(2), None)).await.unwrap_err();
        assert!(matches!(claimed, Error::SecretNeeded), "{claimed}");
        let before = near.refused();
        let stranger = near.connect(host(3), &key(1)).await.unwrap_err();
        assert!(matches!(stranger, Error::Refused { command: "Connect", .. }), "{stranger}");
        assert_eq!(near.refused(), before + 1);
        reactor::time::sleep(Duration::from_millis(100)).await;
        assert_eq!((near.target.controllers().len(), far.target.controllers().len()), (1, 0));
        assert_eq!(controller.reconnects(), 0);
    });
}

/// Goal: the discovery service shows nothing to a host that has no key of an admission.
#[test]
fn discovery_demands_the_proof() {
    run(async {
        let served = Served::start();
        served.admit(host(1), 1, Some(key(1)), LONG).await;
        let discover = |number, key: Option<TlsKey>| {
            let mut options = served.options(host(number), key.as_ref());
            options.subsystem_nqn = Nqn::discovery();
            Controller::connect_discovery(options)
        };
        for (number, key) in [(2, Some(key(1))), (1, Some(key(2))), (1, None)] {
            let is_claim = key.is_none();
            assert!(discover(number, key).await.is_err(), "{number}, claimed: {is_claim}");
        }
        let log = discover(1, Some(key(1))).await.unwrap().discover().await.unwrap();
        assert!(!log.entries.is_empty());
    });
}

/// Goal: a key ends with its admission: after a fence, also if the same host is admitted under a
/// later epoch with another key, and after a lapse. The fence ends the connection, and no command
/// of the session is executed afterwards.
#[test]
fn a_key_ends_with_its_admission() {
    run(async {
        let served = Served::start();
        let admissions = served.target.admissions();
        served.admit(host(1), 1, Some(key(1)), LONG).await;
        let mut options = served.options(host(1), Some(&key(1)));
        options.fast_io_fail_tmo = Some(Duration::from_secs(2));
        let controller = Controller::connect(options).await.unwrap();
        let namespace = Namespace::open(&controller, Nsid(1)).await.unwrap();
        namespace.read(0, Buffer::zeroed(4096)).await.unwrap();
        admissions.fence(host(1), 1).await;
        assert!(served.connect(host(1), &key(1)).await.is_err());
        assert!(namespace.write(0, Buffer::copy_from(&[9; 4096]).freeze()).await.is_err());

        served.admit(host(1), 2, Some(key(2)), LONG).await;
        let error = served.connect(host(1), &key(1)).await.unwrap_err();
        assert!(matches!(error, Error::Authentication(_)), "{error}");
        let second = served.connect(host(1), &key(2)).await.unwrap();
        let namespace = Namespace::open(&second, Nsid(1)).await.unwrap();
        assert!(namespace.read(0, Buffer::zeroed(4096)).await.unwrap()[..] == [0; 4096]);

        served.admit(host(3), 1, Some(key(3)), Duration::from_millis(500)).await;
        served.connect(host(3), &key(3)).await.unwrap();
        reactor::time::sleep(Duration::from_millis(600)).await;
        assert!(served.connect(host(3), &key(3)).await.is_err());
    });
}

/// Goal: a host that was admitted without a key gets nothing from a target that demands proofs.
#[test]
fn an_admission_without_a_key_is_none() {
    run(async {
        let served = Served::start();
        served.admit(host(1), 1, None, LONG).await;
        let error = Controller::connect(served.options(host(1), None)).await.unwrap_err();
        assert!(matches!(error, Error::Refused { command: "Connect", .. }), "{error}");
    });
}

/// Goal: a host with a key uses no target that cannot prove the same key: neither a target that
/// demands no proof nor one that has another key for this host.
#[test]
fn the_target_proves_itself_too() {
    run(async {
        let open = Served::without_proofs();
        open.admit(host(1), 1, None, LONG).await;
        let error = open.connect(host(1), &key(1)).await.unwrap_err();
        assert!(matches!(error, Error::Authentication(_)), "{error}");
        // The target finds the host's proof right, and the host finds the target's wrong.
        let mut pair = KeyPair::of_admission(&key(1));
        let served = Served::start();
        served.admit(host(1), 1, Some(key(1)), LONG).await;
        pair.controller = KeyPair::of_admission(&key(2)).controller;
        let mut options = served.options(host(1), Some(&key(1)));
        options.dhchap = Some(pair);
        let error = Controller::connect(options).await.unwrap_err();
        assert!(matches!(error, Error::Authentication(_)), "{error}");
    });
}

/// Goal: proofs of admissions need controlled admissions, and never go together with TLS.
#[test]
fn proofs_of_admissions_stand_alone() {
    let target = |mode| Target::new(Limits::default(), Admissions::new(mode)).unwrap();
    target(AdmissionMode::AnyHost).require_admission_proofs().unwrap_err();
    let proving = target(AdmissionMode::Controlled);
    proving.require_admission_proofs().unwrap();
    proving.require_admission_keys().unwrap_err();
    let encrypting = target(AdmissionMode::Controlled);
    encrypting.require_admission_keys().unwrap();
    encrypting.require_admission_proofs().unwrap_err();
}
