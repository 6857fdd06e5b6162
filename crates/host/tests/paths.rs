//! Goal: several paths to one namespace are one device. The user sees no error while a path works;
//! a path that was repaired is used again; states of asymmetric access are obeyed; and a path that
//! leads to another namespace is refused. Two targets of this project, on one memory device, over
//! loopback.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use block::{Backing, MemoryBacking};
use host::{ConnectOptions, Controller, Error, InterruptedWrites, IoPolicy, Namespace, PathStatus};
use nvme::log_page::AnaState;
use nvme::{HostId, Nqn, Nsid};
use reactor::{Buffer, Runtime};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use target::{
    AdmissionMode, Admissions, AnaGroupId, HostAccess, Limits, Server, ServerOptions, Subsystem,
    Target,
};

const BYTES: u64 = 16 << 20;
const PIECE: usize = 65_536;
const GROUP: AnaGroupId = AnaGroupId::DEFAULT;

fn nqn() -> Nqn {
    Nqn::new("nqn.2026-11.test:paths").unwrap()
}

fn run<F: Future>(future: F) -> F::Output {
    let mut runtime = Runtime::new(&reactor::Config::default()).unwrap();
    runtime.block_on(async {
        reactor::time::timeout(Duration::from_mins(2), future).await.expect("the test hangs")
    })
}

fn memory() -> Arc<dyn Backing> {
    Arc::new(MemoryBacking::new(BYTES, 4096).unwrap())
}

struct Peer {
    target: Arc<Target>,
    server: Server,
    address: SocketAddr,
}

fn try_start(
    backing: &Arc<dyn Backing>,
    uuid: u8,
    address: SocketAddr,
) -> Result<Peer, target::Error> {
    let admissions = Admissions::new(AdmissionMode::AnyHost);
    let target = Target::new(Limits::default(), admissions).unwrap();
    let subsystem = Subsystem::new(nqn(), "SERIAL", "Test", HostAccess::Any);
    let subsystem = target.add_subsystem(subsystem.with_ana(&BTreeMap::new())).unwrap();
    let namespace = target::Namespace::new(Nsid(1), [uuid; 16], Arc::clone(backing), false);
    subsystem.add_namespace(namespace).unwrap();
    let options = ServerOptions { listen: vec![address], ..ServerOptions::default() };
    let server = Server::start(&target, &options)?;
    let address = server.addresses()[0];
    Ok(Peer { target, server, address })
}

fn start(backing: &Arc<dyn Backing>) -> Peer {
    try_start(backing, 5, SocketAddr::from(([127, 0, 0, 1], 0))).unwrap()
}

impl Peer {
    fn set(&self, state: AnaState) {
        self.target.set_ana_state(&nqn(), GROUP, state).unwrap();
    }

    /// Ends all connections and refuses new ones, until [`Self::again`].
    async fn end(self) -> SocketAddr {
        self.server.shutdown().await.unwrap();
        self.address
    }

    /// Starts at an address whose former listener the kernel may still be closing.
    async fn again(backing: &Arc<dyn Backing>, address: SocketAddr) -> Self {
        loop {
            match try_start(backing, 5, address) {
                Ok(started) => return started,
                Err(target::Error::Listen { .. }) => {
                    reactor::time::sleep(Duration::from_millis(5)).await;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}

async fn controller_with(peer: &Peer, set: impl FnOnce(&mut ConnectOptions)) -> Controller {
    let mut options = ConnectOptions::new(peer.address, nqn());
    options = options.with_host(HostId([3; 16]), Nqn::from_uuid([3; 16]));
    options.reconnect_delay = Duration::from_millis(50);
    options.nr_io_queues = 2;
    set(&mut options);
    Controller::connect(options).await.unwrap()
}

async fn open(peers: &[&Peer], policy: IoPolicy) -> Namespace {
    let mut controllers = Vec::new();
    for peer in peers {
        controllers.push(controller_with(peer, |_| ()).await);
    }
    Namespace::open_paths(&controllers, Nsid(1), policy).await.unwrap()
}

fn pattern(seed: u64) -> Buffer {
    let bytes: Vec<u8> =
        (0..PIECE as u64).map(|i| ((i / 4096 + seed) * 13 + i * 7) as u8).collect();
    Buffer::copy_from(&bytes)
}

/// Writes and reads back one piece.
async fn round(namespace: &Namespace, place: u64, seed: u64) -> Result<(), Error> {
    let (bytes, offset) = (pattern(seed), place << 20);
    namespace.write(offset, Buffer::copy_from(&bytes).freeze()).await?;
    let read = namespace.read(offset, Buffer::zeroed(PIECE)).await?;
    assert!(read[..] == bytes[..], "piece {place}, round {seed}");
    namespace.flush().await
}

/// Runs `rounds` rounds on each of eight places at a time.
fn load(namespace: &Namespace, rounds: u64) -> Vec<reactor::JoinHandle<()>> {
    let task = |place: u64| {
        let namespace = namespace.clone();
        reactor::spawn(async move {
            for seed in 0..rounds {
                round(&namespace, place, seed).await.unwrap();
            }
        })
    };
    (0..8).map(task).collect()
}

async fn all(tasks: Vec<reactor::JoinHandle<()>>) {
    for task in tasks {
        task.await.unwrap();
    }
}

/// Waits until the paths have the wanted state.
async fn until(namespace: &Namespace, is_so: impl Fn(&[PathStatus]) -> bool) {
    while !is_so(&namespace.paths()) {
        reactor::time::sleep(Duration::from_millis(5)).await;
    }
}

fn commands(namespace: &Namespace) -> Vec<u64> {
    namespace.paths().iter().map(|path| path.commands).collect()
}

/// Goal: with each policy a load sees no error while one target after the other stops and restarts
/// during the load; its reads return the right data, and a repaired path is used again.
#[test]
fn a_load_survives_each_target() {
    for policy in IoPolicy::ALL {
        run(async {
            let backing = memory();
            let (mut first, mut second) = (start(&backing), start(&backing));
            let namespace = open(&[&first, &second], policy).await;
            let is_over = Rc::new(std::cell::Cell::new(false));
            let tasks: Vec<_> = (0..8_u64)
                .map(|place| {
                    let (namespace, is_over) = (namespace.clone(), Rc::clone(&is_over));
                    reactor::spawn(async move {
                        let mut seed = 0;
                        while !is_over.get() {
                            round(&namespace, place, seed).await.unwrap();
                            seed += 1;
                        }
                        assert!(seed > 1);
                    })
                })
                .collect();
            for _ in 0..2 {
                let before = commands(&namespace);
                until(&namespace, |paths| paths[0].commands > before[0] + 20).await;
                let address = first.end().await;
                let before = commands(&namespace);
                until(&namespace, |paths| paths[1].commands > before[1] + 20).await;
                assert!(namespace.paths()[0].access.is_none(), "{policy:?}");
                first = Peer::again(&backing, address).await;
                until(&namespace, |paths| paths[0].access.is_some()).await;
                let address = second.end().await;
                let before = commands(&namespace);
                until(&namespace, |paths| paths[0].commands > before[0] + 20).await;
                second = Peer::again(&backing, address).await;
                until(&namespace, |paths| paths[1].access.is_some()).await;
            }
            is_over.set(true);
            all(tasks).await;
            assert!(namespace.paths().iter().all(|path| path.reconnects >= 2));
        });
    }
}

/// Goal: requests of several commands, whose parts take different paths, return the right data,
/// also while a target stops, and while its group becomes inaccessible and it still serves parts of
/// them.
#[test]
fn long_requests_take_all_paths() {
    const LONG: usize = 5 << 20;
    run(async {
        let backing = memory();
        let (mut first, second) = (start(&backing), start(&backing));
        let namespace = open(&[&first, &second], IoPolicy::RoundRobin).await;
        let tasks: Vec<_> = (0..3_u64)
            .map(|place| {
                let namespace = namespace.clone();
                reactor::spawn(async move {
                    let offset = place * LONG as u64;
                    for seed in 0..40_u64 {
                        let bytes: Vec<u8> = (0..LONG as u64)
                            .map(|i| (i / 4096 * 31 + seed * 7 + i) as u8)
                            .collect();
                        let written = Buffer::copy_from(&bytes).freeze();
                        namespace.write(offset, written).await.unwrap();
                        let read = namespace.read(offset, Buffer::zeroed(LONG)).await.unwrap();
                        assert!(read[..] == bytes[..], "place {place}, round {seed}");
                    }
                })
            })
            .collect();
        let before = commands(&namespace);
        until(&namespace, |paths| paths[0].commands > before[0] + 20).await;
        let address = first.end().await;
        let before = commands(&namespace);
        until(&namespace, |paths| paths[1].commands > before[1] + 20).await;
        first = Peer::again(&backing, address).await;
        until(&namespace, |paths| paths[0].access.is_some()).await;
        for state in [AnaState::Inaccessible, AnaState::Optimized, AnaState::Change] {
            first.set(state);
            reactor::time::sleep(Duration::from_millis(20)).await;
        }
        first.set(AnaState::Optimized);
        all(tasks).await;
        assert!(commands(&namespace).iter().all(|count| *count > 100));
    });
}

/// Goal: round-robin and queue-depth use all optimized paths, numa uses one; a path that is not
/// optimized is used only while no optimized one works.
#[test]
fn policies_and_states_choose() {
    run(async {
        let backing = memory();
        let (first, second) = (start(&backing), start(&backing));
        for policy in [IoPolicy::RoundRobin, IoPolicy::QueueDepth] {
            let namespace = open(&[&first, &second], policy).await;
            all(load(&namespace, 10)).await;
            assert!(commands(&namespace).iter().all(|count| *count > 100), "{policy:?}");
        }
        let namespace = open(&[&first, &second], IoPolicy::Numa).await;
        all(load(&namespace, 5)).await;
        assert_eq!(commands(&namespace)[1], 0);
        let namespace = open(&[&first, &second], IoPolicy::RoundRobin).await;
        let (poor, good) = (Some(AnaState::NonOptimized), Some(AnaState::Optimized));
        for (slow, fast) in [(0, 1), (1, 0)] {
            [&first, &second][slow].set(AnaState::NonOptimized);
            [&first, &second][fast].set(AnaState::Optimized);
            until(&namespace, |it| it[slow].access == poor && it[fast].access == good).await;
            let before = commands(&namespace);
            all(load(&namespace, 5)).await;
            let after = commands(&namespace);
            assert_eq!(after[slow], before[slow]);
            assert!(after[fast] > before[fast]);
        }
        first.set(AnaState::NonOptimized);
        until(&namespace, |paths| paths.iter().all(|path| path.access == poor)).await;
        let before = commands(&namespace);
        all(load(&namespace, 5)).await;
        assert!(commands(&namespace).iter().zip(before).all(|(after, before)| *after > before));
    });
}

/// Goal: a load sees no error while groups become inaccessible, lost or change, on one path and on
/// both; while no path is open it waits, and it continues as soon as one opens.
#[test]
fn states_are_obeyed_under_load() {
    run(async {
        let backing = memory();
        let (first, second) = (start(&backing), start(&backing));
        let namespace = open(&[&first, &second], IoPolicy::RoundRobin).await;
        for closed in [AnaState::Inaccessible, AnaState::Change, AnaState::PersistentLoss] {
            let tasks = load(&namespace, 60);
            first.set(closed);
            until(&namespace, |paths| paths[0].access == Some(closed)).await;
            let before = commands(&namespace);
            until(&namespace, |paths| paths[1].commands > before[1] + 50).await;
            assert_eq!(commands(&namespace)[0], before[0], "{closed:?}");
            second.set(closed);
            until(&namespace, |paths| paths[1].access == Some(closed)).await;
            let before = commands(&namespace);
            reactor::time::sleep(Duration::from_millis(50)).await;
            assert_eq!(commands(&namespace), before, "no command without an open path");
            first.set(AnaState::Optimized);
            all(tasks).await;
            second.set(AnaState::Optimized);
            until(&namespace, |paths| {
                paths.iter().all(|it| it.access == Some(AnaState::Optimized))
            })
            .await;
        }
        // As fast as possible, so that a state and its report often overtake each other.
        let tasks = load(&namespace, 60);
        for turn in 0..200_u32 {
            let (one, other) = if turn % 2 == 0 { (&first, &second) } else { (&second, &first) };
            one.set(AnaState::Optimized);
            other.set(if turn % 3 == 0 { AnaState::Change } else { AnaState::Inaccessible });
            reactor::time::sleep(Duration::from_micros(500)).await;
        }
        all(tasks).await;
    });
}

/// Goal: without any path a request fails after `ctrl_loss_tmo`; after a namespace handle was
/// dropped, its controllers end.
#[test]
fn waiting_is_bounded() {
    run(async {
        let backing = memory();
        let (first, second) = (start(&backing), start(&backing));
        let mut controllers = Vec::new();
        for peer in [&first, &second] {
            let bound =
                |it: &mut ConnectOptions| it.ctrl_loss_tmo = Some(Duration::from_millis(300));
            controllers.push(controller_with(peer, bound).await);
        }
        let namespace = Namespace::open_paths(&controllers, Nsid(1), IoPolicy::Numa).await.unwrap();
        drop(controllers);
        round(&namespace, 0, 1).await.unwrap();
        first.set(AnaState::PersistentLoss);
        second.set(AnaState::Inaccessible);
        let error = round(&namespace, 0, 2).await.unwrap_err();
        assert!(matches!(error, Error::NoPath(_)), "{error}");
        second.set(AnaState::Optimized);
        round(&namespace, 0, 3).await.unwrap();
        first.end().await;
        second.end().await;
        let error = round(&namespace, 0, 4).await.unwrap_err();
        assert!(matches!(error, Error::NoPath(_) | Error::ControllerLost(_)), "{error}");
        let third = start(&backing);
        drop(open(&[&third], IoPolicy::Numa).await);
        while !third.target.controllers().is_empty() {
            reactor::time::sleep(Duration::from_millis(5)).await;
        }
    });
}

/// Goal: a path to another namespace, or of another host, is refused with the reason; a target that
/// returns with another namespace, or with other data, is not used.
#[test]
fn other_namespaces_are_refused() {
    run(async {
        let backing = memory();
        let first = start(&backing);
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let stranger = try_start(&backing, 6, any).unwrap();
        let smaller: Arc<dyn Backing> = Arc::new(MemoryBacking::new(BYTES / 2, 4096).unwrap());
        let smaller = start(&smaller);
        let one = controller_with(&first, |_| ()).await;
        let refused = async |controllers: &[Controller]| {
            let opened = Namespace::open_paths(controllers, Nsid(1), IoPolicy::Numa).await;
            let error = opened.unwrap_err();
            assert!(matches!(error, Error::PathMismatch { .. } | Error::InvalidOption { .. }));
            error.to_string()
        };
        assert!(refused(&[]).await.contains("1 to 32"));
        assert!(refused(&[one.clone(), one.clone()]).await.contains("twice"));
        let other = controller_with(&stranger, |_| ()).await;
        assert!(refused(&[one.clone(), other]).await.contains("UUID"));
        let other = controller_with(&smaller, |_| ()).await;
        assert!(refused(&[one.clone(), other]).await.contains("size"));
        let other = controller_with(&first, |it| it.hostid = HostId([4; 16])).await;
        assert!(refused(&[one.clone(), other]).await.contains("another host"));
        let second = start(&backing);
        let namespace = open(&[&first, &second], IoPolicy::RoundRobin).await;
        let address = second.end().await;
        let replaced = loop {
            match try_start(&backing, 7, address) {
                Ok(started) => break started,
                Err(_) => reactor::time::sleep(Duration::from_millis(5)).await,
            }
        };
        until(&namespace, |paths| paths[1].reconnects > 0).await;
        all(load(&namespace, 10)).await;
        assert!(namespace.paths()[1].access.is_none());
        replaced.end().await;
        let fresh = Peer::again(&memory(), address).await;
        let error = loop {
            match round(&namespace, 0, 1).await {
                Ok(()) => reactor::time::sleep(Duration::from_millis(5)).await,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::WritesLost { .. }), "{error}");
        assert_eq!(fresh.address, address);
    });
}

/// Goal: a user that wants to decide about interrupted writes gets them back, also with several
/// paths.
#[test]
fn interrupted_writes_can_be_had_back() {
    run(async {
        let backing = memory();
        let (first, second) = (start(&backing), start(&backing));
        let mut controllers = Vec::new();
        for peer in [&first, &second] {
            let fail = |it: &mut ConnectOptions| it.interrupted_writes = InterruptedWrites::Fail;
            controllers.push(controller_with(peer, fail).await);
        }
        let namespace = Namespace::open_paths(&controllers, Nsid(1), IoPolicy::Numa).await.unwrap();
        let writes: Vec<_> = (0..64_u64)
            .map(|place| {
                let namespace = namespace.clone();
                let bytes = pattern(place).freeze();
                reactor::spawn(async move { namespace.write(place * PIECE as u64, bytes).await })
            })
            .collect();
        reactor::yield_now().await;
        first.target.drop_connections();
        for write in writes {
            let ended = write.await.unwrap();
            assert!(matches!(ended, Ok(()) | Err(Error::WriteInterrupted(_))), "{ended:?}");
        }
        round(&namespace, 1, 1).await.unwrap();
    });
}
