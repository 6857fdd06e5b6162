//! A node that the metadata service cannot reach continues to read what it has cached, while other
//! nodes change it.
//!
//! A worker's next step usually needs the service, so an ordinary worker waits as soon as its node
//! is out of contact. Here several tasks read one name and its file at the same time, so that a
//! call that is answered from a cache does not wait for one that is not.

use super::{FAULTS, last};
use crate::aim::Victim;
use crate::causes::FaultSite;
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

/// Keys of the random choices of the task that changes the file; those of the readers follow.
const CHANGES: u64 = 1 << 20;
const LOOKS: u64 = 2 << 20;
/// How long a node is out of contact (ms): longer than a silent session lives, and up to the
/// longest time that a request may take.
const LASTING_MS: (u64, u64) = (20_500, 58_000);
/// Longest pause between two looks (ms).
const EVERY_MS: u64 = 400;
/// Largest number of looks.
const LOOKS_MAX: u64 = 150;
/// The shift of a look's turn in its key.
const TURN_SHIFT: u32 = 8;
/// How long a node may take to cache the place.
const KNOWN_WITHIN: Duration = Duration::from_secs(20);
/// How long after the fault calls may take that began during it.
const ENDED_AFTER: Duration = Duration::from_mins(10);

/// How a node loses contact with the metadata service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ContactLoss {
    /// Nothing passes between the node and the service.
    Cut,
    /// Messages in one of the two directions are lost.
    Half,
    /// The connection that carries calls is stuck; heartbeats use another one.
    Deaf,
    /// The machine is suspended, and its applications look when it wakes.
    Suspended,
}

/// Losses of contact, with the more revealing ones twice.
const CONTACT_LOSSES: [ContactLoss; 6] = [
    ContactLoss::Cut,
    ContactLoss::Cut,
    ContactLoss::Half,
    ContactLoss::Deaf,
    ContactLoss::Deaf,
    ContactLoss::Suspended,
];

pub(super) async fn onlook(shared: &Rc<Shared>, victim: Victim, random: &mut Random) {
    let cluster = &shared.cluster;
    let machine = &cluster.machines[victim.machine];
    let (node, meta, network) = (&machine.node, &cluster.meta.node, &cluster.network);
    let key = random.next();
    let Some(place) = know(shared, victim.machine, key).await else { return };
    shared.strikes(Fault::Onlook, &[FaultSite::Node(victim.machine)]);
    let contact_loss = *random.of(&CONTACT_LOSSES);
    let mut stuck = None;
    match contact_loss {
        ContactLoss::Cut => network.cut(node, meta),
        ContactLoss::Half if random.chance(50) => network.cut_one_way(node, meta),
        ContactLoss::Half => network.cut_one_way(meta, node),
        ContactLoss::Deaf => {
            let (network, meta, node) = (network.clone(), meta.clone(), node.clone());
            let hold = async move { network.hold_back_sender(&meta, &node, 1).await };
            stuck = Some(reactor::spawn(hold));
        }
        ContactLoss::Suspended => {
            node.suspend();
            machine.applications.pause();
        }
    }
    let changed = change(shared, victim.other, place.clone(), key);
    let lasting = Duration::from_millis(random.between(LASTING_MS.0, LASTING_MS.1));
    shared.lasting.set(lasting);
    let mut looks = Vec::new();
    let until = now() + lasting;
    if contact_loss == ContactLoss::Suspended {
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
        // A killed task gives no answer; calls have their own deadlines.
        let _ = timeout(ENDED_AFTER, asked).await;
    }
}

/// Lets a node read a place until it has cached it. Returns the place.
async fn know(shared: &Rc<Shared>, machine: usize, key: u64) -> Option<(InodeId, String)> {
    let worker = onlooker(shared, (machine, 0), (LOOKS, key))?;
    let knowing = shared.cluster.machines[machine].applications.spawn(worker.know_a_place());
    timeout(KNOWN_WITHIN, knowing).await.ok()?.ok()
}

/// Starts a task that changes the place.
fn change(
    shared: &Rc<Shared>,
    machine: usize,
    place: (InodeId, String),
    key: u64,
) -> Option<JoinHandle<()>> {
    let worker = onlooker(shared, (machine, 0), (CHANGES, key))?;
    Some(shared.cluster.machines[machine].applications.spawn(worker.change_place(place)))
}

/// Starts a task that looks at the place.
fn look(
    shared: &Rc<Shared>,
    (machine, number): (usize, usize),
    place: (InodeId, String),
    key: u64,
) -> Option<JoinHandle<()>> {
    let worker = onlooker(shared, (machine, 1 + number), (LOOKS, key ^ number as u64))?;
    Some(shared.cluster.machines[machine].applications.spawn(worker.look_at_place(place)))
}

/// Returns a worker of a machine beside those that take steps.
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

/// Starts looks again and again, several at the same time.
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
