//! Connections under TLS with the keys of admissions: each key admits only its own session to one
//! target, and only during the admission.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod admitted;

use admitted::{host, key, run, subsystem};
use auth::TlsKey;
use block::MemoryBacking;
use host::{ConnectOptions, Controller, Error, Namespace, TlsOptions};
use nvme::{HostId, Nqn, Nsid};
use reactor::Buffer;
use std::sync::Arc;
use std::time::Duration;
use target::{
    AdmissionMode, Admissions, HostAccess, Limits, Moment, Server, ServerOptions, Subsystem, Target,
};

/// Returns the name under which a session connects to a namespace.
fn name(host: HostId) -> Nqn {
    Nqn::new(&format!("{}:1", Nqn::from_uuid(host.0).as_str())).unwrap()
}

struct Served {
    target: Arc<Target>,
    server: Server,
}

impl Served {
    fn start() -> Self {
        let admissions = Admissions::new(AdmissionMode::Controlled);
        let target = Target::new(Limits::default(), admissions).unwrap();
        target.require_admission_keys().unwrap();
        let node = Subsystem::new(subsystem(), "SERIAL", "Test", HostAccess::Any);
        let node = target.add_subsystem(node).unwrap();
        let backing = Arc::new(MemoryBacking::new(4 << 20, 4096).unwrap());
        node.add_namespace(target::Namespace::new(Nsid(1), [5; 16], backing, false)).unwrap();
        let listen = vec!["127.0.0.1:0".parse().unwrap()];
        let options = ServerOptions { listen, ..ServerOptions::default() };
        let server = Server::start(&target, &options).unwrap();
        Self { target, server }
    }

    async fn admit(&self, host: HostId, epoch: u64, key: &TlsKey, lasts: Duration) {
        let lapse = Moment::from_ns(reactor::time::boot_time()) + lasts;
        let key = Some(key.clone());
        self.target.admissions().admit_with_key(host, epoch, lapse, key).await.unwrap();
    }

    /// Returns the options of a host with this identifier and name, whose key belongs to that name.
    fn options(&self, hostid: HostId, hostnqn: Nqn, key: &TlsKey) -> ConnectOptions {
        let tls = TlsOptions::of_admission(key.clone(), &hostnqn, &subsystem()).unwrap();
        let options = ConnectOptions::new(self.server.addresses()[0], subsystem());
        let mut options = options.with_host(hostid, hostnqn);
        options.tls = Some(tls);
        options
    }

    async fn connect(&self, host: HostId, key: &TlsKey) -> Result<Controller, Error> {
        Controller::connect(self.options(host, name(host), key)).await
    }
}

const LONG: Duration = Duration::from_mins(1);

/// Goal: the target serves a session with its own key. It refuses another session's key, the key of
/// the same session at another target, the right key under another session's name, and connections
/// without TLS.
#[test]
fn a_key_is_one_sessions_at_one_target() {
    run(async {
        let (near, far) = (Served::start(), Served::start());
        for (served, first) in [(&near, 1), (&far, 11)] {
            served.admit(host(1), 1, &key(first), LONG).await;
            served.admit(host(2), 2, &key(first + 1), LONG).await;
        }
        let controller = near.connect(host(1), &key(1)).await.unwrap();
        let namespace = Namespace::open(&controller, Nsid(1)).await.unwrap();
        let written = Buffer::copy_from(&[7; 8192]);
        namespace.write(0, written.freeze()).await.unwrap();
        assert!(namespace.read(0, Buffer::zeroed(8192)).await.unwrap()[..] == [7; 8192]);

        for (served, number, key) in [(&near, 1, 2), (&near, 2, 1), (&far, 1, 1), (&near, 3, 1)] {
            let error = served.connect(host(number), &self::key(key)).await.unwrap_err();
            assert!(matches!(error, Error::SecureChannel(_)), "{number} with key {key}: {error}");
        }
        let mut plain = near.options(host(1), name(host(1)), &key(1));
        plain.tls = None;
        assert!(Controller::connect(plain).await.unwrap_err().is_connection_error());
        assert_eq!(near.target.controllers().len(), 1);
        assert_eq!(controller.reconnects(), 0);
    });
}

/// Goal: a session that uses its own key in the handshake, and then connects with another session's
/// identifier, gets no controller and ends none of the other session's.
#[test]
fn a_session_cannot_pose_as_another() {
    run(async {
        let served = Served::start();
        served.admit(host(1), 1, &key(1), LONG).await;
        served.admit(host(2), 2, &key(2), LONG).await;
        let victim = served.connect(host(1), &key(1)).await.unwrap();
        let namespace = Namespace::open(&victim, Nsid(1)).await.unwrap();
        let refused = served.target.admissions().refused();
        let posing = served.options(host(1), name(host(2)), &key(2));
        let error = Controller::connect(posing).await.unwrap_err();
        assert!(matches!(error, Error::Refused { command: "Connect", .. }), "{error}");
        assert_eq!(served.target.controllers().len(), 1);
        assert_eq!(served.target.admissions().refused(), refused + 1);
        namespace.read(0, Buffer::zeroed(4096)).await.unwrap();
        assert_eq!(victim.reconnects(), 0, "the other session has ended the controller");
    });
}

/// Goal: a key ends with its admission: after a fence, also if the same host is admitted under a
/// later epoch with another key, and after a lapse. A host whose key was refused does not retry.
#[test]
fn a_key_ends_with_its_admission() {
    run(async {
        let served = Served::start();
        let admissions = served.target.admissions();
        served.admit(host(1), 1, &key(1), LONG).await;
        let controller = served.connect(host(1), &key(1)).await.unwrap();
        let namespace = Namespace::open(&controller, Nsid(1)).await.unwrap();
        admissions.fence(host(1), 1).await;
        let error = served.connect(host(1), &key(1)).await.unwrap_err();
        assert!(matches!(error, Error::SecureChannel(_)), "{error}");
        let error = namespace.read(0, Buffer::zeroed(4096)).await.unwrap_err();
        assert!(matches!(error, Error::SecureChannel(_)), "{error}");

        served.admit(host(1), 2, &key(2), LONG).await;
        let error = served.connect(host(1), &key(1)).await.unwrap_err();
        assert!(matches!(error, Error::SecureChannel(_)), "{error}");
        served.connect(host(1), &key(2)).await.unwrap();

        served.admit(host(3), 1, &key(3), Duration::from_millis(200)).await;
        served.connect(host(3), &key(3)).await.unwrap();
        reactor::time::sleep(Duration::from_millis(300)).await;
        let error = served.connect(host(3), &key(3)).await.unwrap_err();
        assert!(matches!(error, Error::SecureChannel(_)), "{error}");
    });
}

/// Goal: a target accepts keys of admissions only if admissions are controlled, and never beside
/// those of hosts.
#[test]
fn keys_of_hosts_and_of_admissions_are_not_mixed() {
    let target = |mode| Target::new(Limits::default(), Admissions::new(mode)).unwrap();
    target(AdmissionMode::AnyHost).require_admission_keys().unwrap_err();
    let tls = || target::HostTls { key: key(1), derivation: auth::Derivation::Standard };
    let controlled = target(AdmissionMode::Controlled);
    controlled.require_admission_keys().unwrap();
    controlled.require_tls(name(host(1)), tls()).unwrap_err();
    let named = target(AdmissionMode::Controlled);
    named.require_tls(name(host(1)), tls()).unwrap();
    named.require_admission_keys().unwrap_err();
}
