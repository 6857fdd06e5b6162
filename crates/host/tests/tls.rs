//! Goal: a target with TLS keys serves only hosts that know their key, under TLS on all queue pairs
//! and in discovery; bytes that change in transit end the connection and are never taken for data.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod disk;

use auth::{Derivation, Hash, Key, KeyPair, Policy, TlsKey};
use disk::{nqn, pattern, run};
use host::{ConnectOptions, ConnectionEnd, Controller, Error, Namespace, TlsOptions};
use nvme::log_page::{security_type, transport_requirements};
use nvme::{Nqn, Nsid};
use reactor::Buffer;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use target::{HostAccess, HostProof, HostTls, Server, Target};

fn key(hash: Hash) -> TlsKey {
    TlsKey::generate(hash).unwrap()
}

fn tls(key: &TlsKey, derivation: Derivation) -> TlsOptions {
    TlsOptions { key: key.clone(), derivation, identity: None, is_refusal_final: false }
}

/// Starts a target for the host "host", which connects under TLS by this key.
fn start(tls: &TlsOptions, cores: usize) -> (Arc<Target>, Server) {
    let target = disk::target(HostAccess::Any, 4 << 20);
    let TlsOptions { key, derivation, .. } = tls.clone();
    target.require_tls(nqn("host"), HostTls { key, derivation }).unwrap();
    let server = disk::serve(&target, cores);
    (target, server)
}

fn options(address: SocketAddr, tls: Option<TlsOptions>) -> ConnectOptions {
    let mut options = disk::options(address, "host");
    options.tls = tls;
    options
}

async fn exchange(namespace: &Namespace) {
    let sizes = [4096, 8192, 12_288, 16_384, 20_480, 131_072, 135_168, 1 << 20];
    disk::exchange(namespace, &sizes).await;
}

/// Goal: data is transferred under TLS with each kind of key, with digests and a second proof, on
/// one core and on several.
#[test]
fn hosts_with_the_key_are_served() {
    let plain = key(Hash::Sha256).without_transform();
    let cases = [
        (key(Hash::Sha256), Derivation::Standard, 1, false),
        (key(Hash::Sha384), Derivation::Standard, 2, true),
        (plain, Derivation::Former, 1, true),
    ];
    for (key, derivation, cores, has_more) in cases {
        run(async {
            let tls = tls(&key, derivation);
            let (target, server) = start(&tls, cores);
            let mut options = options(server.addresses()[0], Some(tls));
            if has_more {
                let keys = KeyPair { host: Key::generate(None, 32).unwrap(), controller: None };
                let proof = HostProof { keys: keys.clone(), policy: Policy::default() };
                target.require_proof(nqn("host"), proof).unwrap();
                (options.hdr_digest, options.data_digest) = (true, true);
                options.dhchap = Some(keys);
            }
            let controller = Controller::connect(options).await.unwrap();
            let namespace = Namespace::open(&controller, Nsid(1)).await.unwrap();
            exchange(&namespace).await;
            if has_more {
                controller.reauthenticate().await.unwrap();
                exchange(&namespace).await;
            }
            assert_eq!(controller.reconnects(), 0);
            controller.disconnect().await.unwrap();
            server.shutdown().await.unwrap();
        });
    }
}

/// Goal: discovery is under TLS too, and reports that subsystems require it.
#[test]
fn discovery_names_the_requirement() {
    run(async {
        let tls = tls(&key(Hash::Sha384), Derivation::Standard);
        let (_target, server) = start(&tls, 1);
        let of = |tls| {
            let mut options = options(server.addresses()[0], tls);
            options.subsystem_nqn = Nqn::discovery();
            options
        };
        let controller = Controller::connect_discovery(of(Some(tls))).await.unwrap();
        let log = controller.discover().await.unwrap();
        assert_eq!(log.entries.len(), 2);
        for entry in &log.entries {
            let required = transport_requirements::SECURE_CHANNEL_REQUIRED;
            assert_eq!(
                (entry.security_type(), entry.secure_channel()),
                (security_type::TLS13, required)
            );
        }
        Controller::connect_discovery(of(None)).await.unwrap_err();
    });
}

/// Goal: a host without a key, with another key, or with another host's key is refused, for each
/// kind of key.
#[test]
fn strangers_are_refused() {
    for hash in [Hash::Sha256, Hash::Sha384] {
        run(async {
            let right = key(hash);
            let (target, server) = start(&tls(&right, Derivation::Standard), 1);
            let address = server.addresses()[0];
            let error = Controller::connect(options(address, None)).await.unwrap_err();
            assert!(error.is_connection_error(), "{error}");
            for other in [key(hash), key(hash).without_transform()] {
                let stranger = options(address, Some(tls(&other, Derivation::Standard)));
                let error = Controller::connect(stranger).await.unwrap_err();
                assert!(matches!(error, Error::SecureChannel(ConnectionEnd::Tls(_))), "{error}");
            }
            let mut other = options(address, Some(tls(&right, Derivation::Standard)));
            other.hostnqn = nqn("other");
            let error = Controller::connect(other).await.unwrap_err();
            assert!(matches!(error, Error::SecureChannel(ConnectionEnd::Tls(_))), "{error}");
            assert!(target.controllers().is_empty());
        });
    }
}

/// Goal: hosts and targets with the derivations of old and new libnvme can connect if the
/// identities of these differ. If the identities are equal, only the configured derivation works.
#[test]
fn derivations_find_each_other() {
    run(async {
        let (mixed, alike) = (key(Hash::Sha256), key(Hash::Sha256).without_transform());
        for (key, is_found) in [(&mixed, true), (&alike, false)] {
            let (_target, server) = start(&tls(key, Derivation::Former), 1);
            let address = server.addresses()[0];
            let same = options(address, Some(tls(key, Derivation::Former)));
            Controller::connect(same).await.unwrap();
            let other = options(address, Some(tls(key, Derivation::Standard)));
            assert_eq!(Controller::connect(other).await.is_ok(), is_found);
        }
    });
}

/// Goal: a target in the clear is not taken for one under TLS.
#[test]
fn targets_in_the_clear_are_refused() {
    run(async {
        let server = disk::serve(&disk::empty_target(), 1);
        let tls = tls(&key(Hash::Sha256), Derivation::Standard);
        let error =
            Controller::connect(options(server.addresses()[0], Some(tls))).await.unwrap_err();
        assert!(matches!(error, Error::SecureChannel(ConnectionEnd::Tls(_))), "{error}");
    });
}

/// Copies bytes in one direction; flips one bit of a large piece if `is_hostile` is set.
fn copy(mut from: TcpStream, mut to: TcpStream, is_hostile: &AtomicBool) {
    let mut bytes = vec![0; 65_536];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if count > 2048 && is_hostile.swap(false, Ordering::SeqCst) {
            bytes[count / 2] ^= 0x10;
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
    let _ = from.shutdown(std::net::Shutdown::Both);
}

/// Goal: a bit that changes in transit, in either direction, ends the connection; the host
/// reconnects, and reads and writes the right data.
#[test]
fn changed_records_are_refused() {
    let tls = tls(&key(Hash::Sha384), Derivation::Standard);
    run(async {
        let (_target, server) = start(&tls, 1);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, target) = (listener.local_addr().unwrap(), server.addresses()[0]);
        let hostile: [Arc<AtomicBool>; 2] = std::array::from_fn(|_| Arc::default());
        let [to_target, to_host] = hostile.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(target) else { break };
                let back = (far.try_clone().unwrap(), near.try_clone().unwrap());
                let (there, here) = (Arc::clone(&to_target), Arc::clone(&to_host));
                std::thread::spawn(move || copy(near, far, &there));
                std::thread::spawn(move || copy(back.0, back.1, &here));
            }
        });
        let controller = Controller::connect(options(address, Some(tls.clone()))).await.unwrap();
        let namespace = Namespace::open(&controller, Nsid(1)).await.unwrap();
        exchange(&namespace).await;
        assert_eq!(controller.reconnects(), 0);
        for (attempt, direction) in hostile.iter().cycle().take(6).enumerate() {
            let written = pattern(attempt, 65_536);
            direction.store(true, Ordering::SeqCst);
            namespace.write(0, Buffer::copy_from(&written).freeze()).await.unwrap();
            let read = namespace.read(0, Buffer::zeroed(65_536)).await.unwrap();
            assert!(!direction.load(Ordering::SeqCst), "no bit was changed");
            assert!(read[..] == written[..], "changed bytes were taken for data");
            assert!(controller.reconnects() as usize > attempt, "the change was not noticed");
        }
    });
}
