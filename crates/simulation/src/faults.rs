//! Misfortunes, one after the other, each with its end.

use crate::history::Actor;
use crate::random::Random;
use crate::worker::Shared;
use ring::time::sleep;
use std::rc::Rc;
use std::time::Duration;

/// What may befall.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Reset,
    Cut,
    NodeKill,
    Pause,
    MetaKill,
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
        shared.history.borrow_mut().counts.faults += 1;
        befall(shared, kind, &mut random).await;
    }
}

/// Mostly short, sometimes longer than every deadline of a session.
fn lasting(random: &mut Random) -> Duration {
    let most_ms = *random.of(&[50, 3_000, 15_000, 45_000]);
    Duration::from_millis(random.between(1, most_ms))
}

async fn befall(shared: &Rc<Shared>, kind: Fault, random: &mut Random) {
    let cluster = &shared.cluster;
    let index = random.below(cluster.machines.len() as u64) as usize;
    let machine = &cluster.machines[index];
    let other = &cluster.machines[(index + 1) % cluster.machines.len()].node;
    let lasting = lasting(random);
    match kind {
        Fault::Reset => {
            let peer = if random.chance(60) { &cluster.meta.node } else { other };
            cluster.network.reset(&machine.node, peer);
        }
        Fault::Cut => {
            match random.below(3) {
                0 => cluster.network.cut(&machine.node, &cluster.meta.node),
                1 => cluster.network.cut(&machine.node, other),
                _ => cluster.network.isolate(&machine.node),
            }
            sleep(lasting).await;
            cluster.network.heal_all();
        }
        Fault::Pause => {
            machine.node.pause();
            sleep(lasting).await;
            machine.node.resume();
        }
        Fault::NodeKill => kill_node(shared, index, None, lasting).await,
        Fault::NodePower => kill_node(shared, index, Some(random), lasting).await,
        Fault::MetaKill => {
            cluster.kill_meta(None);
            sleep(lasting / 4).await;
            cluster.start_meta();
        }
        Fault::MetaPower => {
            cluster.kill_meta(Some(random));
            shared.history.borrow_mut().meta_lost_power();
            sleep(lasting / 4).await;
            cluster.start_meta();
        }
    }
}

async fn kill_node(
    shared: &Rc<Shared>,
    index: usize,
    power: Option<&mut Random>,
    lasting: Duration,
) {
    let machine = &shared.cluster.machines[index];
    let has_power = power.is_none();
    shared.cluster.kill_node(index, power);
    let actor = Actor { machine: index, life: machine.life.get() };
    shared.history.borrow_mut().killed(actor);
    if !has_power {
        shared.history.borrow_mut().node_lost_power();
    }
    sleep(lasting).await;
    shared.cluster.start_node(index);
}
