//! A target for the tests, on a thread of its own.

use block::{Backing, MemoryBacking};
use nvme::{Nqn, Nsid};
use reactor::mailbox::{Sender, channel};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc;
use target::{
    AdmissionMode, Admissions, Cores, HostAccess, Limits, Namespace, Reservations, Server,
    ServerOptions, Subsystem, Target,
};

pub const BLOCK: u32 = 4096;
pub const SIZE: u64 = 16 << 20;

pub struct TestServer {
    pub address: SocketAddr,
    pub target: Arc<Target>,
    pub subsystem: Arc<Subsystem>,
    pub cores: Cores,
    stop: Option<Sender<()>>,
    thread: Option<reactor::thread::JoinHandle<Result<(), block::Error>>>,
}

pub fn nqn() -> Nqn {
    Nqn::new("nqn.2026-01.io.tsumugi:test").unwrap()
}

impl TestServer {
    pub fn start() -> Self {
        Self::with(Limits::default(), AdmissionMode::AnyHost, 1)
    }

    pub fn with(limits: Limits, mode: AdmissionMode, cores: usize) -> Self {
        let memory = MemoryBacking::new(SIZE, BLOCK).unwrap();
        Self::with_backing(limits, mode, cores, Arc::new(memory))
    }

    pub fn with_backing(
        limits: Limits,
        mode: AdmissionMode,
        cores: usize,
        backing: Arc<dyn Backing>,
    ) -> Self {
        Self::with_admissions(limits, Admissions::new(mode), cores, backing)
    }

    pub fn with_admissions(
        limits: Limits,
        admissions: Arc<Admissions>,
        cores: usize,
        backing: Arc<dyn Backing>,
    ) -> Self {
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        Self::listening(listen, limits, admissions, cores, backing)
    }

    pub fn listening(
        listen: SocketAddr,
        limits: Limits,
        admissions: Arc<Admissions>,
        cores: usize,
        backing: Arc<dyn Backing>,
    ) -> Self {
        let namespace = Namespace::new(Nsid(1), [7; 16], backing, false);
        Self::exporting(namespace, listen, limits, admissions, cores)
    }

    /// Starts a target with a namespace that hosts can reserve.
    pub fn reservable(cores: usize, backing: Arc<dyn Backing>, reservations: Reservations) -> Self {
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let namespace = Namespace::new(Nsid(1), [7; 16], backing, false);
        let namespace = namespace.with_reservations(reservations);
        let admissions = Admissions::new(AdmissionMode::AnyHost);
        Self::exporting(namespace, listen, Limits::default(), admissions, cores)
    }

    fn exporting(
        namespace: Namespace,
        listen: SocketAddr,
        limits: Limits,
        admissions: Arc<Admissions>,
        cores: usize,
    ) -> Self {
        let subsystem = Subsystem::new(nqn(), "serial", "model", HostAccess::Any);
        subsystem.add_namespace(namespace).unwrap();
        Self::serving(subsystem, listen, limits, admissions, cores)
    }

    /// Serves a subsystem that the test has created.
    pub fn serving(
        subsystem: Subsystem,
        listen: SocketAddr,
        limits: Limits,
        admissions: Arc<Admissions>,
        cores: usize,
    ) -> Self {
        let target = Target::new(limits, admissions).unwrap();
        let subsystem = target.add_subsystem(subsystem).unwrap();
        let (stop, mut stopped) = channel::<()>(2);
        let (started, start) = mpsc::channel();
        let served = Arc::clone(&target);
        let thread =
            reactor::thread::spawn("server", &reactor::Config::default(), move || async move {
                let options =
                    ServerOptions { listen: vec![listen], cores, ..ServerOptions::default() };
                let server = Server::start(&served, &options).unwrap();
                started.send((server.addresses()[0], server.cores())).unwrap();
                stopped.recv().await;
                server.shutdown().await
            })
            .unwrap();
        let (address, cores) = start.recv().unwrap();
        Self { cores, address, target, subsystem, stop: Some(stop), thread: Some(thread) }
    }

    /// Stops the target cleanly.
    pub fn stop(mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap().unwrap();
    }
}
