//! Admission and fencing, with I/O in flight.

use crate::basics::{pair, pattern, rw};
use crate::client::{Client, Got, HostIdentity, Transfer};
use crate::server::{BLOCK, SIZE, TestServer, nqn};
use block::{Backing, Fault, FaultPlan, MemoryBacking};
use nvme::opcode::NvmOpcode;
use nvme::{ControllerId, Status};
use reactor::{Config, Runtime};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use target::{AdmissionMode, Admissions, Limits, LocalAccess, Moment, Refusal};

fn long() -> Moment {
    after(Duration::from_mins(1))
}

fn after(time: Duration) -> Moment {
    Moment::from_ns(reactor::time::boot_time()) + time
}

fn block_on<F: Future>(future: F) -> F::Output {
    Runtime::new(&Config::default()).unwrap().block_on(future)
}

fn controlled() -> TestServer {
    TestServer::with(Limits::default(), AdmissionMode::Controlled, 1)
}

/// The target refuses a host unless it is admitted. The refusal states the reason and is counted.
#[test]
fn nobody_unless_admitted() {
    let server = controlled();
    let identity = HostIdentity::number(1);
    let connect = |identity: &HostIdentity| {
        let dynamic = ControllerId::DYNAMIC;
        Client::open(server.address).connect(identity, &nqn(), (0, dynamic), (32, 0, 0)).map(drop)
    };
    let (status, _) = connect(&identity).unwrap_err();
    assert!(status.is(Status::CONNECT_INVALID_HOST));
    assert_eq!(server.target.admissions().refused(), 1);
    assert_eq!(server.subsystem.counts()[0].refused, 1);
    block_on(server.target.admissions().admit(identity.host, 1, long())).unwrap();
    connect(&identity).unwrap();
    assert!(connect(&HostIdentity::number(2)).is_err());
    server.stop();
}

/// An admission that is not renewed lapses: commands are refused and the connection is dropped.
/// Renewing keeps admissions in force and does not restore lapsed ones.
#[test]
fn admissions_lapse() {
    let server = controlled();
    let admissions = Arc::clone(server.target.admissions());
    let identity = HostIdentity::number(1);
    block_on(admissions.admit(identity.host, 1, after(Duration::from_millis(500)))).unwrap();
    let (_admin, mut io) = pair(&server, &identity);
    assert_eq!(admissions.renew(after(Duration::from_secs(1))), 1);
    assert_eq!(admissions.renew(after(Duration::ZERO)), 1, "an earlier lapse shortens nothing");
    assert!(io.command(rw(NvmOpcode::READ, 0, 1), None, BLOCK).0.status().is_success());
    std::thread::sleep(Duration::from_millis(1100));
    io.submit(rw(NvmOpcode::WRITE, 0, 1), Some((Transfer::InCapsule, &pattern(1, 1))), 0);
    assert!(io.wait_closed(Duration::from_secs(10)));
    assert_eq!(server.subsystem.counts()[0].written_remote_bytes, 0);
    assert_eq!(admissions.renew(long()), 0, "a lapsed admission stays lapsed");
    let late = block_on(admissions.admit(identity.host, 1, after(Duration::ZERO)));
    assert_eq!(late, Err(Refusal::Lapsed), "a late order admits no host");
    block_on(admissions.admit(identity.host, 1, long())).unwrap();
    pair(&server, &identity);
    server.stop();
}

/// Admissions lapse while the machine is suspended, although its monotonic clock stands still.
/// After it wakes, the target executes no more writes, local or remote: neither those that waited
/// in a socket meanwhile nor those that arrive then.
#[test]
fn admissions_lapse_while_the_machine_sleeps() {
    let slept_ns = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&slept_ns);
    let clock = move || reactor::time::boot_time() + clock.load(Ordering::SeqCst);
    let admissions = Admissions::with_clock(AdmissionMode::Controlled, clock);
    let memory = Arc::new(MemoryBacking::new(SIZE, BLOCK).unwrap());
    let (limits, table) = (Limits::default(), Arc::clone(&admissions));
    let server = TestServer::with_admissions(limits, table, 1, memory);
    let identity = HostIdentity::number(1);
    block_on(admissions.admit(identity.host, 1, long())).unwrap();
    let (_admin, mut io) = pair(&server, &identity);
    let namespace = &server.subsystem.namespaces()[0];
    block_on(async {
        let device = LocalAccess::new(&admissions, namespace, identity.host).attach();
        let data = || reactor::Chunk::copy_from(&pattern(1, 1));
        device.write(0, data()).await.unwrap();
        slept_ns.store(61_000_000_000, Ordering::SeqCst);
        device.write(0, data()).await.unwrap_err();
    });
    io.submit(rw(NvmOpcode::WRITE, 0, 1), Some((Transfer::InCapsule, &pattern(2, 1))), 0);
    assert!(io.wait_closed(Duration::from_secs(10)));
    assert_eq!(namespace.counts().written_remote_bytes, 0);
    assert_eq!(admissions.renew(long()), 0, "a lapsed admission stays lapsed");
    server.stop();
}

/// A fence returns only when the last write has reached the device. After it no write does, local
/// or remote, and the host is not admitted again under that epoch.
#[test]
fn a_fence_waits_for_the_last_write() {
    let memory = Arc::new(MemoryBacking::new(SIZE, BLOCK).unwrap());
    let plan = FaultPlan {
        delay_ppm: 1_000_000,
        delay_max: Duration::from_millis(200),
        ..FaultPlan::default()
    };
    let slow = Arc::new(Fault::new(Arc::clone(&memory) as Arc<dyn Backing>, 1, plan));
    let server = TestServer::with_backing(Limits::default(), AdmissionMode::Controlled, 1, slow);
    let admissions = Arc::clone(server.target.admissions());
    for round in 1..=5_u8 {
        let identity = HostIdentity::number(round);
        block_on(admissions.admit(identity.host, u64::from(round), long())).unwrap();
        let (_admin, mut io) = pair(&server, &identity);
        let data = pattern(round, 1);
        for lba in 0..32 {
            io.submit(rw(NvmOpcode::WRITE, lba, 1), Some((Transfer::InCapsule, &data)), 0);
        }
        // The test does not depend on how many of them the target has begun.
        assert!(matches!(io.receive(), Got::Pdu));
        let image = || {
            block_on(async {
                memory.attach().read(0, 32 * BLOCK as usize).await.unwrap().to_bytes().to_vec()
            })
        };
        block_on(admissions.fence(identity.host, u64::from(round)));
        let after = image();
        for lba in 0..32 {
            let mut out = vec![0; nvme::tcp::HEADER_BYTES_MAX];
            let sqe = rw(NvmOpcode::WRITE, lba, 1);
            let bytes = io.encoder.capsule_cmd(&mut out, &sqe, 0).unwrap();
            let _ = std::io::Write::write(&mut io.stream, &out[..bytes]);
        }
        assert!(io.wait_closed(Duration::from_secs(10)));
        std::thread::sleep(Duration::from_millis(250));
        assert!(image() == after, "round {round}: a write reached the device after the fence");
        let again = block_on(admissions.admit(identity.host, u64::from(round), long()));
        assert_eq!(again, Err(Refusal::Fenced));
    }
    server.stop();
}

/// Local I/O passes the same admission: it is refused unless the host is admitted, it is counted as
/// local, and a fence waits for it even if its caller has dropped it.
#[test]
fn local_access_passes_the_same_door() {
    let memory = Arc::new(MemoryBacking::new(SIZE, BLOCK).unwrap());
    let plan = FaultPlan {
        delay_ppm: 1_000_000,
        delay_max: Duration::from_millis(100),
        ..FaultPlan::default()
    };
    let slow = Arc::new(Fault::new(memory, 1, plan));
    let server = TestServer::with_backing(Limits::default(), AdmissionMode::Controlled, 1, slow);
    let admissions = Arc::clone(server.target.admissions());
    let host = HostIdentity::number(1).host;
    block_on(async {
        let namespace = &server.subsystem.namespaces()[0];
        let device = LocalAccess::new(&admissions, namespace, host).attach();
        let data = || reactor::Chunk::copy_from(&pattern(1, 1));
        assert_eq!(device.write(0, data()).await.unwrap_err().to_errno(), 13);
        admissions.admit(host, 1, long()).await.unwrap();
        device.write(0, data()).await.unwrap();
        assert!(device.read(0, BLOCK as usize).await.unwrap().to_bytes() == pattern(1, 1));
        drop(device.write(4096, data()));
        let fence = admissions.fence(host, 1);
        assert_eq!(fence.in_flight(), 1);
        fence.await;
        let counts = namespace.counts();
        assert_eq!(
            counts.written_local_bytes,
            2 * u64::from(BLOCK),
            "the dropped write reached the device before"
        );
        assert_eq!((counts.read_local_bytes, counts.written_remote_bytes), (u64::from(BLOCK), 0));
        assert!(device.flush().await.is_err());
        assert_eq!(namespace.counts().refused, 2);
    });
    server.stop();
}
