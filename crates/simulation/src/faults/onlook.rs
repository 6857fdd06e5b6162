//! A node that the metadata service does not reach goes on looking at what it knows, while others change it.
//!
//! What a worker asks for next mostly needs the service, so that it waits as soon as its node is out of contact. Here
//! many look at once, at one name and its file, so that whoever is answered from a cache does not wait for who is not.

use super::{FAULTS, last};
use crate::aim::Victim;
use crate::causes::Place;
use crate::fault::Fault;
use crate::history::Actor;
use crate::random::Random;
use crate::worker::{ONLOOKERS, Shared, Worker};
use protocol::InodeId;
use reactor::JoinHandle;
use reactor::time::{Instant, now, sleep, sleep_until, timeout};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// The keys of what changes the file, and of those who look.
const CHANGES: u64 = 1 << 20;
const LOOKS: u64 = 2 << 20;
/// Longer than a silent session lives, and up to what a request may take (ms).
const LASTING_MS: (u64, u64) = (20_500, 58_000);
/// How often somebody looks, at most (ms).
const EVERY_MS: u64 = 400;
/// Looks at most.
const LOOKS_MAX: u64 = 150;
/// The shift of a look's turn in its key.
const TURN_SHIFT: u32 = 8;
/// How long it may take until a node knows the place.
const KNOWN_WITHIN: Duration = Duration::from_secs(20);
/// For so long after it everybody waits who was asked meanwhile.
const ENDED_AFTER: Duration = Duration::from_mins(10);

/// How a node gets out of contact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Nothing passes between it and the service.
    Cut,
    /// What the one sends does not reach the other.
    Half,
    /// The connection over which the service asks something is stuck: pulses have another one.
    Deaf,
    /// Its machine is suspended, and looks when it wakes.
    Suspended,
}

pub(super) async fn onlook(shared: &Rc<Shared>, victim: Victim, random: &mut Random) {
    let cluster = &shared.cluster;
    let machine = &cluster.machines[victim.machine];
    let (node, meta, network) = (&machine.node, &cluster.meta.node, &cluster.network);
    let key = random.next();
    let Some(place) = know(shared, victim.machine, key).await else { return };
    shared.befalls(Fault::Onlook, &[Place::Node(victim.machine)]);
    let way = *random.of(&[Way::Cut, Way::Cut, Way::Half, Way::Deaf, Way::Deaf, Way::Suspended]);
    let mut stuck = None;
    match way {
        Way::Cut => network.cut(node, meta),
        Way::Half if random.chance(50) => network.cut_one_way(node, meta),
        Way::Half => network.cut_one_way(meta, node),
        Way::Deaf => {
            let (network, meta, node) = (network.clone(), meta.clone(), node.clone());
            let hold = async move { network.hold_back_sender(&meta, &node, 1).await };
            stuck = Some(reactor::spawn(hold));
        }
        Way::Suspended => {
            node.suspend();
            machine.applications.pause();
        }
    }
    let changed = change(shared, victim.other, place.clone(), key);
    let lasting = Duration::from_millis(random.between(LASTING_MS.0, LASTING_MS.1));
    shared.lasting.set(lasting);
    let mut looks = Vec::new();
    let until = now() + lasting;
    if way == Way::Suspended {
        last(shared, lasting).await;
        looks.extend(
            (0..ONLOOKERS)
                .filter_map(|number| look(shared, (victim.machine, number), place.clone(), key)),
        );
        node.wake();
        machine.applications.resume();
    } else {
        look_until(shared, (victim.machine, until), &place, (key, &mut *random), &mut looks).await;
    }
    if let Some(stuck) = stuck {
        stuck.abort();
        network.let_go(node, meta);
    }
    network.heal_all();
    for asked in looks.into_iter().chain(changed) {
        // Whoever was killed has no answer; calls have deadlines of their own.
        let _ = timeout(ENDED_AFTER, asked).await;
    }
}

/// Has a node know a place well; answers which.
async fn know(shared: &Rc<Shared>, machine: usize, key: u64) -> Option<(InodeId, String)> {
    let worker = onlooker(shared, (machine, 0), (LOOKS, key))?;
    let knowing = shared.cluster.machines[machine].applications.spawn(worker.know_a_place());
    timeout(KNOWN_WITHIN, knowing).await.ok()?.ok()
}

/// Somebody changes what is there.
fn change(
    shared: &Rc<Shared>,
    machine: usize,
    place: (InodeId, String),
    key: u64,
) -> Option<JoinHandle<()>> {
    let worker = onlooker(shared, (machine, 0), (CHANGES, key))?;
    Some(shared.cluster.machines[machine].applications.spawn(worker.change_place(place)))
}

/// Somebody looks.
fn look(
    shared: &Rc<Shared>,
    (machine, number): (usize, usize),
    place: (InodeId, String),
    key: u64,
) -> Option<JoinHandle<()>> {
    let worker = onlooker(shared, (machine, 1 + number), (LOOKS, key ^ number as u64))?;
    Some(shared.cluster.machines[machine].applications.spawn(worker.look_at_place(place)))
}

/// One of a machine's workers besides those that take steps.
fn onlooker(
    shared: &Rc<Shared>,
    (index, number): (usize, usize),
    keys: (u64, u64),
) -> Option<Worker> {
    let machine = &shared.cluster.machines[index];
    let kernel = machine.kernel.borrow().clone()?;
    let actor = Actor { machine: index, life: machine.life.get() };
    let random = Random::keyed(shared.plan.seed, &[FAULTS, keys.0, keys.1]);
    let number = shared.plan.workers + number;
    Some(Worker::new(shared, kernel, actor, number).choosing(random))
}

/// Looks again and again, some at once.
async fn look_until(
    shared: &Rc<Shared>,
    (machine, until): (usize, Instant),
    place: &(InodeId, String),
    (key, random): (u64, &mut Random),
    looks: &mut Vec<JoinHandle<()>>,
) {
    let mut under_way: Vec<Rc<Cell<bool>>> = (0..ONLOOKERS).map(|_| Rc::default()).collect();
    for turn in 0..LOOKS_MAX {
        if now() > until {
            return;
        }
        if let Some(number) = under_way.iter().position(|busy| !busy.get())
            && let Some(look) =
                look(shared, (machine, number), place.clone(), key ^ turn << TURN_SHIFT)
        {
            let busy = Rc::new(Cell::new(true));
            under_way[number] = Rc::clone(&busy);
            looks.push(reactor::spawn(async move {
                let _ = look.await;
                busy.set(false);
            }));
        }
        sleep(Duration::from_millis(random.between(1, EVERY_MS))).await;
    }
    sleep_until(until).await;
}
