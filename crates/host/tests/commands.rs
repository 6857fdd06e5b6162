//! Goal: the host's Compare, Compare and Write, Verify, Copy and Write Uncorrectable do on our target
//! what they promise.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use block::{Backing, MemoryBacking, Uncorrectable};
use host::{ConnectOptions, Controller, Error, Namespace};
use nvme::{Nqn, Nsid, Status};
use reactor::{Buffer, Runtime, Shared};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use target::{
    AdmissionMode, Admissions, HostAccess, Limits, Server, ServerOptions, Subsystem, Target,
};

const BYTES: u64 = 16 << 20;
const BLOCK: u64 = 4096;
const NQN: &str = "nqn.2026-11.test:disk";

fn run<F: Future>(future: F) -> F::Output {
    let mut runtime = Runtime::new(&reactor::Config::default()).unwrap();
    runtime.block_on(async {
        reactor::time::timeout(Duration::from_mins(1), future).await.expect("the test hangs")
    })
}

fn memory() -> Arc<dyn Backing> {
    Arc::new(MemoryBacking::new(BYTES, BLOCK as u32).unwrap())
}

fn start(backing: Arc<dyn Backing>) -> Server {
    let target = Target::new(Limits::default(), Admissions::new(AdmissionMode::AnyHost)).unwrap();
    let subsystem = Subsystem::new(Nqn::new(NQN).unwrap(), "SERIAL", "Test", HostAccess::Any);
    let subsystem = target.add_subsystem(subsystem).unwrap();
    let namespace = target::Namespace::new(Nsid(1), [5; 16], backing, false);
    subsystem.add_namespace(namespace).unwrap();
    let listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    Server::start(&target, &ServerOptions { listen, ..ServerOptions::default() }).unwrap()
}

async fn open(server: &Server, queue_size: u16) -> (Controller, Namespace) {
    let mut options = ConnectOptions::new(server.addresses()[0], Nqn::new(NQN).unwrap());
    options.queue_size = queue_size;
    let controller = Controller::connect(options).await.unwrap();
    let namespace = Namespace::open(&controller, Nsid(1)).await.unwrap();
    (controller, namespace)
}

fn bytes(blocks: u64, seed: u8) -> Shared {
    let bytes: Vec<u8> = (0..blocks * BLOCK).map(|n| (n / BLOCK) as u8 ^ seed).collect();
    Buffer::copy_from(&bytes).freeze()
}

async fn read(namespace: &Namespace, block: u64, blocks: u64) -> Vec<u8> {
    let len = (blocks * BLOCK) as usize;
    let buffer = namespace.read(block * BLOCK, Buffer::zeroed(len)).await.unwrap();
    buffer[..].to_vec()
}

/// Goal: Compare finds a difference; Compare and Write writes only without one. Both refuse what
/// fits no command.
#[test]
fn comparisons() {
    run(async {
        let server = start(memory());
        let (controller, namespace) = open(&server, 16).await;
        namespace.write(0, bytes(3, 1)).await.unwrap();
        assert!(namespace.compare(0, bytes(3, 1)).await.unwrap());
        assert!(!namespace.compare(0, bytes(3, 2)).await.unwrap());
        let (old, new) = (bytes(1, 1), bytes(1, 9));
        assert!(!namespace.compare_and_write(0, new.clone(), old.clone()).await.unwrap());
        assert!(namespace.compare_and_write(0, old.clone(), new.clone()).await.unwrap());
        assert!(!namespace.compare_and_write(0, old, new.clone()).await.unwrap());
        assert!(read(&namespace, 0, 1).await == new[..]);
        let error = namespace.compare_and_write(0, bytes(2, 1), bytes(2, 1)).await.unwrap_err();
        assert!(
            matches!(error, Error::Io { status, .. } if status.is(Status::ATOMIC_WRITE_UNIT_EXCEEDED)),
            "{error}"
        );
        let error = namespace.compare_and_write(0, bytes(2, 1), bytes(1, 1)).await.unwrap_err();
        assert!(matches!(error, Error::InvalidRequest { .. }), "{error}");
        for (offset, blocks) in [(1, 1), (BYTES, 1), (0, 0), (0, 257)] {
            let error = namespace.compare(offset, bytes(blocks, 1)).await.unwrap_err();
            assert!(matches!(error, Error::InvalidRequest { .. }), "{offset} {blocks}: {error}");
        }
        controller.disconnect().await.unwrap();
        server.shutdown().await.unwrap();
    });
}

/// Goal: pairs stay together on a queue that other commands fill: counters that several tasks raise
/// lose nothing.
#[test]
fn pairs_stay_together_on_a_busy_queue() {
    const ADDITIONS: u64 = 50;
    run(async {
        let server = start(memory());
        let (controller, namespace) = open(&server, 4).await;
        let add = async |namespace: Namespace| {
            let mut done = 0;
            while done < ADDITIONS {
                let old = namespace.read(0, Buffer::zeroed(BLOCK as usize)).await.unwrap();
                let mut new = Buffer::copy_from(&old);
                let sum = u64::from_le_bytes(old[..8].try_into().unwrap()) + 1;
                new[..8].copy_from_slice(&sum.to_le_bytes());
                let written = namespace.compare_and_write(0, old.freeze(), new.freeze()).await;
                done += u64::from(written.unwrap());
            }
        };
        let tasks: Vec<_> = (0..4).map(|_| reactor::spawn(add(namespace.clone()))).collect();
        for task in tasks {
            task.await.unwrap();
        }
        let sum = read(&namespace, 0, 1).await;
        assert_eq!(u64::from_le_bytes(sum[..8].try_into().unwrap()), 4 * ADDITIONS);
        controller.disconnect().await.unwrap();
        server.shutdown().await.unwrap();
    });
}

/// Goal: Copy moves bytes of any length, also onto themselves, and single commands put ranges
/// together within the target's limits.
#[test]
fn copies() {
    run(async {
        let server = start(memory());
        let (controller, namespace) = open(&server, 16).await;
        let original = bytes(1000, 3);
        for (from, to, blocks) in [(0, 2000, 1000), (0, 300, 1000), (300, 0, 700), (5, 5, 9)] {
            namespace.write(0, original.clone()).await.unwrap();
            let expected = read(&namespace, from, blocks).await;
            namespace.copy(from * BLOCK, to * BLOCK, blocks * BLOCK).await.unwrap();
            assert!(read(&namespace, to, blocks).await == expected, "{from} to {to}");
        }
        namespace.write(0, original.clone()).await.unwrap();
        let sources = [(7 * BLOCK, 2 * BLOCK), (3 * BLOCK, BLOCK)];
        namespace.copy_ranges(&sources, 2000 * BLOCK).await.unwrap();
        let expected = [&original[7 * 4096..9 * 4096], &original[3 * 4096..4 * 4096]].concat();
        assert!(read(&namespace, 2000, 3).await == expected);
        let many = vec![(0, BLOCK); 129];
        for wrong in [&[][..], &many, &[(0, 257 * BLOCK)], &[(0, 200 * BLOCK); 2], &[(0, 0)]] {
            let error = namespace.copy_ranges(wrong, 0).await.unwrap_err();
            assert!(matches!(error, Error::InvalidRequest { .. }), "{error}");
        }
        let error = namespace.copy(0, BYTES - BLOCK, 2 * BLOCK).await.unwrap_err();
        assert!(matches!(error, Error::InvalidRequest { .. }), "{error}");
        controller.disconnect().await.unwrap();
        server.shutdown().await.unwrap();
    });
}

/// Goal: Verify reads the whole namespace and reports marked blocks as the system does; a target
/// that cannot mark blocks is not asked to.
#[test]
fn verification_and_marks() {
    run(async {
        let server = start(memory());
        let (controller, namespace) = open(&server, 16).await;
        namespace.verify(0, BYTES).await.unwrap();
        let error = namespace.write_uncorrectable(0, BLOCK).await.unwrap_err();
        assert!(matches!(error, Error::NotOffered("Write Uncorrectable")), "{error}");
        controller.disconnect().await.unwrap();
        server.shutdown().await.unwrap();

        let server = start(Arc::new(Uncorrectable::in_memory(memory())));
        let (controller, namespace) = open(&server, 16).await;
        namespace.write_uncorrectable(8 * BLOCK, 2 * BLOCK).await.unwrap();
        let error = namespace.verify(0, BYTES).await.unwrap_err();
        // ENODATA, as Linux reports it.
        assert_eq!(error.to_errno(), 61, "{error}");
        namespace.verify(10 * BLOCK, BYTES - 10 * BLOCK).await.unwrap();
        assert!(namespace.read(9 * BLOCK, Buffer::zeroed(4096)).await.is_err());
        namespace.write(8 * BLOCK, bytes(2, 1)).await.unwrap();
        namespace.verify(0, BYTES).await.unwrap();
        controller.disconnect().await.unwrap();
        server.shutdown().await.unwrap();
    });
}
