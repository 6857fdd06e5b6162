//! Set-up of tests with a target of this project: one subsystem "disk" with a namespace in memory,
//! over loopback.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part")]

use block::MemoryBacking;
use host::{ConnectOptions, Namespace};
use nvme::{HostId, Nqn, Nsid};
use reactor::{Buffer, Runtime};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use target::{
    AdmissionMode, Admissions, HostAccess, Limits, Server, ServerOptions, Subsystem, Target,
};

/// Returns the NQN of a host or subsystem of the tests.
pub fn nqn(name: &str) -> Nqn {
    Nqn::new(&format!("nqn.2026-11.test:{name}")).unwrap()
}

/// Runs a test on a reactor, and fails it after two minutes.
pub fn run<F: Future>(future: F) -> F::Output {
    let mut runtime = Runtime::new(&reactor::Config::default()).unwrap();
    runtime.block_on(async {
        reactor::time::timeout(Duration::from_mins(2), future).await.expect("the test hangs")
    })
}

/// Creates a target without subsystems that admits any host.
pub fn empty_target() -> Arc<Target> {
    Target::new(Limits::default(), Admissions::new(AdmissionMode::AnyHost)).unwrap()
}

/// Creates a target with the subsystem "disk" for these hosts, and a namespace of `bytes`.
pub fn target(access: HostAccess, bytes: u64) -> Arc<Target> {
    let target = empty_target();
    let subsystem = Subsystem::new(nqn("disk"), "SERIAL", "Test", access);
    let subsystem = target.add_subsystem(subsystem).unwrap();
    let backing = Arc::new(MemoryBacking::new(bytes, 4096).unwrap());
    subsystem.add_namespace(target::Namespace::new(Nsid(1), [5; 16], backing, false)).unwrap();
    target
}

/// Serves a target at a free port of the loopback interface.
pub fn serve(target: &Arc<Target>, cores: usize) -> Server {
    let listen = vec!["127.0.0.1:0".parse().unwrap()];
    let options = ServerOptions { listen, cores, ..ServerOptions::default() };
    Server::start(target, &options).unwrap()
}

/// Returns options for a connection of this host to the subsystem "disk".
pub fn options(address: SocketAddr, host: &str) -> ConnectOptions {
    let options = ConnectOptions::new(address, nqn("disk"));
    let mut options = options.with_host(HostId([9; 16]), nqn(host));
    options.nr_io_queues = 2;
    options.connect_timeout = Duration::from_secs(20);
    options
}

/// Returns bytes that differ from block to block and with `seed`.
pub fn pattern(seed: usize, len: usize) -> Buffer {
    let bytes: Vec<u8> = (0..len).map(|i| ((i / 512 + seed) * 13 + i * 7) as u8).collect();
    Buffer::copy_from(&bytes)
}

/// Writes data in requests of these sizes, and checks that reads return it.
pub async fn exchange(namespace: &Namespace, sizes: &[usize]) {
    for (seed, &bytes) in sizes.iter().enumerate() {
        let written = pattern(seed, bytes);
        namespace.write(8192, Buffer::copy_from(&written).freeze()).await.unwrap();
        let read = namespace.read(8192, Buffer::zeroed(bytes)).await.unwrap();
        assert!(read[..] == written[..], "reads of {bytes} bytes differ from the written data");
    }
}
