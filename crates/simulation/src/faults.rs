//! Misfortunes, one after the other, each with its end.
//!
//! A misfortune at any time rarely meets the moment that matters. Most are therefore *aimed*
//! ([`crate::aim`]): they wait until a device write, a reply or a commit is under way, and strike
//! then. Beside them disks are slow by phases.

use crate::aim::{self, Victim};
use crate::random::Random;
use crate::worker::Shared;
use ring::sim::DiskPace;
use ring::time::{now, sleep, timeout};
use ring::{Either, race};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// How many of a hundred misfortunes are aimed.
const AIMED_PERCENT: u64 = 75;
/// A session that is silent for so long (ms) has been ended, while the admissions of its host at
/// targets have not lapsed by themselves: only fencing keeps its late writes out.
const ENDED_NOT_LAPSED_MS: (u64, u64) = (20_500, 34_000);
/// For so long (ms) a straggler's session is out of contact before its node stops: it has been ended,
/// while its host has not given its command up.
const ENDED_NOT_GIVEN_UP_MS: (u64, u64) = (19_000, 19_900);
/// For so long (ms) a target bears with a host that has stopped, at least.
const KEPT_ALIVE_MS: (u64, u64) = (500, 2_400);
/// Longest phase of a slow disk.
const PHASE_MAX: Duration = Duration::from_secs(4);
/// Shortest operation of a slow disk.
const SLOW_MIN: Duration = Duration::from_micros(300);

/// What may befall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Reset,
    Cut,
    NodeKill,
    Pause,
    MetaKill,
    /// A wall clock is set forward or back.
    ClockStep,
    Hold,
    /// A node with a write on its way is cut off from where it goes and from the metadata service,
    /// or paused, until its session has ended, but not until its admission lapses by itself.
    Strand,
    /// One connection is stuck with a write on it, and its node cut off from the metadata service, until
    /// its session has ended; the write arrives before the target has missed its host.
    Straggle,
    NodePower,
    MetaPower,
}

/// Lets all of a plan's faults happen.
pub(crate) async fn run(shared: &Rc<Shared>, mut random: Random) {
    let enabled = shared.plan.faults;
    let mut kinds = Vec::new();
    for (is_enabled, kind) in [
        (enabled.resets, Fault::Reset),
        (enabled.cuts, Fault::Cut),
        (enabled.node_kills, Fault::NodeKill),
        (enabled.pauses, Fault::Pause),
        (enabled.meta_kills, Fault::MetaKill),
        (enabled.clock_steps, Fault::ClockStep),
        (enabled.holds, Fault::Hold),
        (enabled.strands, Fault::Strand),
        (enabled.stragglers, Fault::Straggle),
        (enabled.node_power, Fault::NodePower),
        (enabled.meta_power, Fault::MetaPower),
    ] {
        if is_enabled {
            kinds.push(kind);
        }
    }
    if kinds.is_empty() {
        return;
    }
    for _ in 0..shared.plan.fault_count {
        let pause = 1 + shared.plan.pause_max.as_millis() as u64 * 4;
        sleep(Duration::from_millis(random.between(1, pause))).await;
        let kind = *random.of(&kinds);
        let victim = if random.chance(AIMED_PERCENT) {
            aim::meet(shared, kind, &mut random).await
        } else {
            aim::anybody(shared, &mut random)
        };
        shared.history.borrow_mut().counts.faults += 1;
        shared.log(|| format!("{kind:?} befalls {victim:?}"));
        befall(shared, kind, victim, &mut random).await;
        shared.log(|| format!("{kind:?} is over"));
        shared.lasting.set(Duration::ZERO);
    }
}

/// Mostly short, sometimes longer than every deadline of a session.
fn lasting(random: &mut Random) -> Duration {
    let (least_ms, most_ms) =
        *random.of(&[(1, 50), (1, 3_000), (1, 15_000), (1, 45_000), ENDED_NOT_LAPSED_MS]);
    Duration::from_millis(random.between(least_ms, most_ms))
}

/// Time passes under a misfortune; the workers, told of it, go on until its end.
async fn last(shared: &Shared, lasting: Duration) {
    shared.lasting.set(lasting);
    sleep(lasting).await;
}

async fn befall(shared: &Rc<Shared>, kind: Fault, victim: Victim, random: &mut Random) {
    let cluster = &shared.cluster;
    let machine = &cluster.machines[victim.machine];
    let other = &cluster.machines[victim.other].node;
    let lasting = lasting(random);
    match kind {
        Fault::Reset => {
            let is_meta = victim.is_meta.unwrap_or_else(|| random.chance(60));
            let peer = if is_meta { &cluster.meta.node } else { other };
            cluster.network.reset(&machine.node, peer);
        }
        Fault::Hold => {
            let is_meta = victim.is_meta.unwrap_or_else(|| random.chance(30));
            let peer = if is_meta { &cluster.meta.node } else { other };
            cluster.network.hold_back(&machine.node, peer);
            last(shared, lasting).await;
            cluster.network.let_go(&machine.node, peer);
        }
        Fault::Cut => {
            match random.below(4) {
                0 => cluster.network.cut(&machine.node, &cluster.meta.node),
                1 => cluster.network.cut(&machine.node, other),
                _ => cluster.network.isolate(&machine.node),
            }
            last(shared, lasting).await;
            cluster.network.heal_all();
        }
        Fault::Strand => strand(shared, victim, random).await,
        Fault::Straggle => straggle(shared, victim, random).await,
        Fault::Pause => {
            machine.node.pause();
            last(shared, lasting).await;
            machine.node.resume();
        }
        Fault::NodeKill => kill_node(shared, victim.machine, None, lasting).await,
        Fault::NodePower => kill_node(shared, victim.machine, Some(random), lasting).await,
        Fault::MetaKill => {
            if random.chance(50) {
                // What it just sent gets lost with it.
                cluster.network.reset(&machine.node, &cluster.meta.node);
            }
            cluster.kill_meta(None);
            last(shared, lasting / 4).await;
            if shared.plan.faults.clock_steps {
                cluster.meta.node.step_wall_clock(step(random));
            }
            cluster.start_meta();
        }
        Fault::ClockStep => {
            let is_meta = random.chance(50);
            let node = if is_meta { &cluster.meta.node } else { &machine.node };
            node.step_wall_clock(step(random));
        }
        Fault::MetaPower => {
            cluster.kill_meta(Some(random));
            shared.history.borrow_mut().meta_lost_power();
            last(shared, lasting / 4).await;
            cluster.start_meta();
        }
    }
}

/// By how many seconds a wall clock is set.
fn step(random: &mut Random) -> i64 {
    let most = *random.of(&[2, 100, 86_400]);
    let seconds = random.between(1, most).cast_signed();
    if random.chance(70) { -seconds } else { seconds }
}

async fn strand(shared: &Rc<Shared>, victim: Victim, random: &mut Random) {
    let cluster = &shared.cluster;
    let machine = &cluster.machines[victim.machine];
    let other = &cluster.machines[victim.other].node;
    let (least_ms, most_ms) = ENDED_NOT_LAPSED_MS;
    let lasting = Duration::from_millis(random.between(least_ms, most_ms));
    // What it does when it comes back takes longer than learning that the session is lost.
    let usual = ring::sim::SimConfig::default();
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
    // One without a device of its own, whose admission there would have to lapse first.
    let index = if shared.plan.has_guest { shared.plan.nodes - 1 } else { victim.machine };
    let node = &cluster.machines[index].node;
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
    // Neither gives the command up nor tells the target that it lives.
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

/// Makes each machine's disk slow by phases, of reads, writes and flushes each by itself.
pub(crate) async fn slow_disks(shared: Rc<Shared>, mut random: Random) {
    let Some(most) = shared.plan.disk_latency_max else { return };
    loop {
        let machine = random.of(&shared.cluster.machines);
        let mut slow = || {
            let slowest = if random.chance(50) { most } else { most / 20 };
            (SLOW_MIN, slowest.max(SLOW_MIN))
        };
        let (slow_read, slow_write, slow_sync) = (slow(), slow(), slow());
        let usual = ring::sim::SimConfig::default();
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
        sleep(end - now()).await;
        machine.node.set_disk_pace(None);
        let rest_ms = random.between(1, 2 * shared.plan.pause_max.as_millis() as u64 + 20);
        sleep(Duration::from_millis(rest_ms)).await;
    }
}
