//! Runs a plan's faults one after the other, each until its end.
//!
//! A fault at a random time rarely hits a critical moment. Most faults are therefore *aimed*
//! ([`crate::aim`]): they wait until a device write, a reply or a commit is under way, and strike
//! then. In addition disks have slow phases.

mod onlook;
mod others;

use crate::aim::{self, Victim};
use crate::causes::FaultSite;
use crate::fault::Fault;
use crate::random::Random;
use crate::worker::Shared;
use reactor::sim::{DiskPace, Network, Node};
use reactor::time::{now, sleep, timeout};
use reactor::{Either, race};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// The key of the random choices of faults.
const FAULTS: u64 = 1;
/// Percentage of faults that are aimed.
const AIMED_PERCENT: u64 = 75;
/// Time range (ms) after which a silent session has been ended, while its host's admissions at
/// targets have not lapsed. In it only fencing keeps out the session's late writes.
const ENDED_NOT_LAPSED_MS: (u64, u64) = (20_500, 34_000);
/// Time range (ms) for which a straggler's session is out of contact before its node stops. The
/// session has been ended, but its host has not given up its command.
const ENDED_NOT_GIVEN_UP_MS: (u64, u64) = (19_000, 19_900);
/// Time range (ms) for which a target keeps the connection of a stopped host, at least.
const KEPT_ALIVE_MS: (u64, u64) = (500, 2_400);
/// Longest phase of a slow disk.
const PHASE_MAX: Duration = Duration::from_secs(4);
/// Commands whose operations take longer may miss their deadline.
const BEARABLE: Duration = Duration::from_secs(3);
/// Largest number of connections that one fault replays.
const COPIES_MAX: u64 = 6;
/// Shortest operation of a slow disk.
const SLOW_MIN: Duration = Duration::from_micros(300);

/// Runs all faults of a plan.
pub(crate) async fn run(shared: &Rc<Shared>) {
    let faults = shared.plan.faults;
    for number in (0..shared.plan.fault_count).filter(|number| shared.plan.kept.has_fault(*number))
    {
        let mut random = Random::keyed(shared.plan.seed, &[FAULTS, number as u64]);
        let pause = 1 + shared.plan.pause_max.as_millis() as u64 * 4;
        sleep(Duration::from_millis(random.between(1, pause))).await;
        let Some(kind) = faults.pick(random.below(faults.total().max(1))) else { return };
        let victim = if random.chance(AIMED_PERCENT) {
            aim::meet(shared, kind, &mut random).await
        } else {
            aim::random_victim(shared, &mut random)
        };
        {
            let mut history = shared.history.borrow_mut();
            history.counts.faults += 1;
            history.counts.kinds[kind as usize] += 1;
        }
        shared.causes.borrow_mut().begin(kind);
        shared.record(|| format!("fault {number}: {kind:?} strikes {victim}"));
        strike(shared, kind, victim, &mut random).await;
        shared.causes.borrow_mut().end_of(kind);
        shared.record(|| format!("fault {number}: {kind:?} is over"));
        shared.lasting.set(Duration::ZERO);
    }
}

/// Returns a duration: usually short, sometimes longer than every deadline of a session.
fn lasting(random: &mut Random) -> Duration {
    let (least_ms, most_ms) =
        *random.of(&[(1, 50), (1, 3_000), (1, 15_000), (1, 45_000), ENDED_NOT_LAPSED_MS]);
    Duration::from_millis(random.between(least_ms, most_ms))
}

/// Lets time pass under a fault. The workers learn the duration and continue until its end.
async fn last(shared: &Shared, lasting: Duration) {
    shared.lasting.set(lasting);
    sleep(lasting).await;
}

async fn strike(shared: &Rc<Shared>, kind: Fault, victim: Victim, random: &mut Random) {
    let cluster = &shared.cluster;
    let machine = &cluster.machines[victim.machine];
    let other = &cluster.machines[victim.other].node;
    let lasting = lasting(random);
    let link = |is_meta: bool| FaultSite::Link(victim.machine, (!is_meta).then_some(victim.other));
    match kind {
        Fault::Reset => {
            let is_meta = victim.is_meta.unwrap_or_else(|| random.chance(60));
            let peer = if is_meta { &cluster.meta.node } else { other };
            shared.strikes(kind, &[link(is_meta)]);
            cluster.network.reset(&machine.node, peer);
        }
        Fault::Duplicate => duplicate(shared, victim, random).await,
        Fault::Hold | Fault::LongHold => {
            let lasting = if kind == Fault::Hold { lasting } else { minutes(random) };
            let is_meta = victim.is_meta.unwrap_or_else(|| random.chance(30));
            let peer = if is_meta { &cluster.meta.node } else { other };
            shared.strikes(kind, &[link(is_meta)]);
            cluster.network.hold_back(&machine.node, peer);
            last(shared, lasting).await;
            cluster.network.let_go(&machine.node, peer);
        }
        Fault::Cut => {
            match random.below(4) {
                0 => {
                    shared.strikes(kind, &[link(true)]);
                    cluster.network.cut(&machine.node, &cluster.meta.node);
                }
                1 => {
                    shared.strikes(kind, &[link(false)]);
                    cluster.network.cut(&machine.node, other);
                }
                _ => {
                    shared.strikes(kind, &[FaultSite::Node(victim.machine)]);
                    cluster.network.isolate(&machine.node);
                }
            }
            last(shared, lasting).await;
            cluster.network.heal_all();
        }
        Fault::CutOneWay => cut_one_way(shared, victim, lasting, random).await,
        Fault::SlowLink => slow_link(shared, victim, random).await,
        Fault::Strand => strand(shared, victim, random).await,
        Fault::Onlook => onlook::onlook(shared, victim, random).await,
        Fault::Straggle => straggle(shared, victim, random).await,
        Fault::Pause => {
            shared.strikes(kind, &[FaultSite::Node(victim.machine)]);
            machine.node.pause();
            last(shared, lasting).await;
            machine.node.resume();
        }
        Fault::NodeKill | Fault::NodePower => {
            shared.strikes(kind, &[FaultSite::Node(victim.machine)]);
            let power = (kind == Fault::NodePower).then_some(random);
            kill_node(shared, victim.machine, power, lasting).await;
        }
        others => others::strike(shared, others, victim, (lasting, random)).await,
    }
}

/// Cuts the direction from one of two machines to the other.
async fn cut_one_way(shared: &Rc<Shared>, victim: Victim, lasting: Duration, random: &mut Random) {
    let (network, node, peer) = link_of(shared, Fault::CutOneWay, victim, 60, random);
    if random.chance(50) {
        network.cut_one_way(node, peer);
    } else {
        network.cut_one_way(peer, node);
    }
    last(shared, lasting).await;
    network.heal_all();
}

/// Replays some messages that one machine has sent to another, now and later.
async fn duplicate(shared: &Rc<Shared>, victim: Victim, random: &mut Random) {
    let (network, from, to) = link_of(shared, Fault::Duplicate, victim, 40, random);
    for _ in 0..random.between(1, COPIES_MAX) {
        network.duplicate(from, to, random.next(), random.chance(50));
        let most_ms = *random.of(&[1, 100, 5_000]);
        last(shared, Duration::from_micros(random.between(1, most_ms * 1_000))).await;
    }
}

/// Returns the network and the two machines of the link that a fault strikes. If the victim does
/// not name the other end, it is the metadata service in this percentage of cases.
fn link_of<'a>(
    shared: &'a Shared,
    kind: Fault,
    victim: Victim,
    meta_percent: u64,
    random: &mut Random,
) -> (&'a Network, &'a Node, &'a Node) {
    let cluster = &shared.cluster;
    let is_meta = victim.is_meta.unwrap_or_else(|| random.chance(meta_percent));
    let other = &cluster.machines[victim.other].node;
    let peer = if is_meta { &cluster.meta.node } else { other };
    shared.strikes(kind, &[FaultSite::Link(victim.machine, (!is_meta).then_some(victim.other))]);
    (&cluster.network, &cluster.machines[victim.machine].node, peer)
}

/// Returns a duration longer than any session lives.
fn minutes(random: &mut Random) -> Duration {
    Duration::from_secs(random.between(60, 240))
}

/// Slows down the link between two machines, or all links of a node.
async fn slow_link(shared: &Rc<Shared>, victim: Victim, random: &mut Random) {
    let cluster = &shared.cluster;
    let node = &cluster.machines[victim.machine].node;
    let most_ms = *random.of(&[50, 1_000, 4_000]);
    let latency = Some((Duration::from_millis(1), Duration::from_millis(most_ms)));
    let is_meta = victim.is_meta.unwrap_or_else(|| random.chance(60));
    if is_meta || random.chance(30) {
        shared.strikes(Fault::SlowLink, &[FaultSite::Link(victim.machine, None)]);
        cluster.network.set_latency(node, &cluster.meta.node, latency);
    }
    if !is_meta {
        shared.strikes(Fault::SlowLink, &[FaultSite::Link(victim.machine, Some(victim.other))]);
        cluster.network.set_latency(node, &cluster.machines[victim.other].node, latency);
    }
    last(shared, lasting(random)).await;
    cluster.network.heal_all();
}

async fn strand(shared: &Rc<Shared>, victim: Victim, random: &mut Random) {
    let cluster = &shared.cluster;
    let machine = &cluster.machines[victim.machine];
    let other = &cluster.machines[victim.other].node;
    let (least_ms, most_ms) = ENDED_NOT_LAPSED_MS;
    let lasting = Duration::from_millis(random.between(least_ms, most_ms));
    shared.strikes(Fault::Strand, &[FaultSite::Node(victim.machine)]);
    // Recovery takes longer than learning that the session is lost.
    let usual = reactor::sim::SimConfig::default();
    let write = (Duration::from_millis(20), Duration::from_millis(400));
    let slow = DiskPace { read: usual.read_latency, write, sync: usual.sync_latency };
    if random.chance(50) {
        machine.node.set_disk_pace(Some(slow));
    }
    if random.chance(40) {
        machine.node.pause();
    } else {
        cluster.network.cut(&machine.node, &cluster.meta.node);
        cluster.network.cut(&machine.node, other);
    }
    last(shared, lasting).await;
    machine.node.resume();
    cluster.network.heal_all();
    sleep(Duration::from_secs(1)).await;
    machine.node.set_disk_pace(None);
}

async fn straggle(shared: &Rc<Shared>, victim: Victim, random: &mut Random) {
    let cluster = &shared.cluster;
    let network = &cluster.network;
    // Chooses a node without a device, because an admission on its own device would have to lapse
    // first.
    let index = if shared.plan.has_guest { shared.plan.nodes - 1 } else { victim.machine };
    let node = &cluster.machines[index].node;
    shared.strikes(Fault::Straggle, &[FaultSite::Node(index)]);
    let mut others = cluster.machines.iter().filter(|machine| machine.index != index);
    let (Some(one), Some(other)) = (others.next(), others.next()) else { return };
    let to_one = pin!(network.hold_back_sender(node, &one.node, aim::DATA_BYTES));
    let to_other = pin!(network.hold_back_sender(node, &other.node, aim::DATA_BYTES));
    let target = match timeout(aim::PATIENCE, race(to_one, to_other)).await {
        Ok(Either::First(())) => one,
        Ok(Either::Second(())) => other,
        Err(_) => return,
    };
    network.cut(node, &cluster.meta.node);
    let (least_ms, most_ms) = ENDED_NOT_GIVEN_UP_MS;
    last(shared, Duration::from_millis(random.between(least_ms, most_ms))).await;
    // Paused, the host neither gives up the command nor sends keep-alives to the target.
    node.pause();
    let (least_ms, most_ms) = KEPT_ALIVE_MS;
    sleep(Duration::from_millis(random.between(least_ms, most_ms))).await;
    network.let_go(node, &target.node);
    sleep(Duration::from_secs(1)).await;
    node.resume();
    network.heal_all();
}

async fn kill_node(
    shared: &Rc<Shared>,
    index: usize,
    power: Option<&mut Random>,
    lasting: Duration,
) {
    shared.kill_node(index, power);
    last(shared, lasting).await;
    shared.cluster.start_node(index);
}

/// Gives each machine's disk slow phases, separately for reads, writes and flushes.
pub(crate) async fn slow_disks(shared: Rc<Shared>, mut random: Random) {
    let Some(most) = shared.plan.disk_latency_max else { return };
    loop {
        let machine = random.of(&shared.cluster.machines);
        let mut slow = || {
            let slowest = if random.chance(50) { most } else { most / 20 };
            (SLOW_MIN, slowest.max(SLOW_MIN))
        };
        let (slow_read, slow_write, slow_sync) = (slow(), slow(), slow());
        let usual = reactor::sim::SimConfig::default();
        let mut pace = DiskPace {
            read: usual.read_latency,
            write: usual.write_latency,
            sync: usual.sync_latency,
        };
        match if shared.plan.is_churning { 0 } else { random.below(4) } {
            0 => pace.read = slow_read,
            1 => pace.write = slow_write,
            2 => pace.sync = slow_sync,
            _ => pace = DiskPace { read: slow_read, write: slow_write, sync: slow_sync },
        }
        let phase_max = PHASE_MAX.max(most / 4).as_millis() as u64;
        let end = now() + Duration::from_millis(random.between(1, phase_max));
        machine.node.set_disk_pace(Some(pace));
        shared.history.borrow_mut().counts.kinds[Fault::SlowDisk as usize] += 1;
        if most > BEARABLE {
            shared.causes.borrow_mut().begin(Fault::SlowDisk);
            shared
                .causes
                .borrow_mut()
                .strikes(Fault::SlowDisk, &[FaultSite::Device(machine.index)]);
        }
        sleep(end - now()).await;
        shared.causes.borrow_mut().end_of(Fault::SlowDisk);
        machine.node.set_disk_pace(None);
        let rest_ms = random.between(1, 2 * shared.plan.pause_max.as_millis() as u64 + 20);
        sleep(Duration::from_millis(rest_ms)).await;
    }
}
