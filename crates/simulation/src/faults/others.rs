//! Faults of processes, devices and the store.

use super::{last, minutes};
use crate::aim::Victim;
use crate::causes::FaultSite;
use crate::fault::Fault;
use crate::random::Random;
use crate::worker::Shared;
use meta::store::StoreFault;
use reactor::sim::{DiskError, DiskFault};
use reactor::time::{now, sleep, timeout};
use std::rc::Rc;
use std::time::Duration;

/// How long a client may take to end its session before its node leaves anyway.
const LEAVE_PATIENCE: Duration = Duration::from_secs(30);
/// How long the fault waits for a write to the broken store.
const WRITE_PATIENCE: Duration = Duration::from_secs(10);
/// Longest time from a start to the second crash, in milliseconds. Recovery takes less.
const RECOVERY_MS: u64 = 6_000;

/// Runs a fault of the metadata service, of a device or of a whole machine.
pub(super) async fn strike(
    shared: &Rc<Shared>,
    kind: Fault,
    victim: Victim,
    (lasting, random): (Duration, &mut Random),
) {
    let cluster = &shared.cluster;
    let machine = &cluster.machines[victim.machine];
    match kind {
        Fault::DeviceBroken | Fault::DeviceFull | Fault::Flip => {
            shared.strikes(kind, &[FaultSite::Device(victim.machine)]);
        }
        Fault::StoreFull | Fault::StoreBroken | Fault::MetaKill | Fault::MetaPower => {
            shared.strikes(kind, &[FaultSite::Meta]);
        }
        _ => {}
    }
    match kind {
        Fault::Leave => leave(shared, victim.machine, lasting).await,
        Fault::CrashTwice => crash_twice(shared, victim, lasting, random).await,
        Fault::DeviceBroken | Fault::DeviceFull | Fault::Flip => {
            machine.node.set_disk_fault(disk_fault(kind, random));
            last(shared, lasting).await;
            machine.node.set_disk_fault(DiskFault::default());
        }
        Fault::StoreFull => {
            cluster.set_store_fault(Some(StoreFault::Full));
            last(shared, lasting).await;
            cluster.set_store_fault(None);
        }
        Fault::StoreBroken => break_store(shared, lasting, random).await,
        Fault::Suspend => {
            let is_meta = random.chance(shared.plan.service_percent());
            let node = if is_meta { &cluster.meta.node } else { &machine.node };
            let site = if is_meta { FaultSite::Meta } else { FaultSite::Node(victim.machine) };
            shared.strikes(kind, &[site]);
            node.suspend();
            if !is_meta {
                machine.applications.pause();
            }
            last(shared, lasting).await;
            machine.applications.resume();
            node.wake();
        }
        Fault::MetaKill => {
            if random.chance(50) {
                // Messages that it has just sent are lost with it.
                cluster.network.reset(&machine.node, &cluster.meta.node);
            }
            cluster.kill_meta(None);
            last(shared, lasting / 4).await;
            if shared.plan.faults.has(Fault::ClockStep) {
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
            shared.history.borrow_mut().meta_has_power();
            cluster.start_meta();
        }
        // The caller runs faults of the network and of a node's process. Slow phases of disks run
        // all the time.
        _ => {}
    }
}

/// Lets a node end its session, leave and come back. A node that was never there joins.
async fn leave(shared: &Rc<Shared>, index: usize, lasting: Duration) {
    let cluster = &shared.cluster;
    if let Some(late) = cluster.machines.iter().find(|machine| machine.life.get() == 0) {
        shared.strikes(Fault::Leave, &[FaultSite::Node(late.index)]);
        cluster.start_node(late.index);
        return last(shared, lasting).await;
    }
    shared.strikes(Fault::Leave, &[FaultSite::Node(index)]);
    let machine = &cluster.machines[index];
    let client = machine.client.borrow().clone();
    if let Some(kernel) = &*machine.kernel.borrow() {
        // Unmounted: later requests fail with ENOTCONN.
        kernel.abort();
    }
    if let Some(client) = client {
        let ending = machine.node.spawn(async move { client.end().await });
        let _ = timeout(LEAVE_PATIENCE, ending).await;
    }
    super::kill_node(shared, index, None, lasting).await;
}

/// Kills a process and starts it. While it recovers, kills it or another one.
async fn crash_twice(shared: &Rc<Shared>, victim: Victim, lasting: Duration, random: &mut Random) {
    for crash in 0..2 {
        let node = if crash == 0 { victim.machine } else { victim.other };
        let is_meta = random.chance(60);
        let site = if is_meta { FaultSite::Meta } else { FaultSite::Node(node) };
        shared.strikes(Fault::CrashTwice, &[site]);
        if is_meta {
            shared.cluster.kill_meta(None);
        } else {
            shared.kill_node(node, None);
        }
        last(shared, lasting / 4).await;
        if is_meta {
            shared.cluster.start_meta();
        } else {
            shared.cluster.start_node(node);
        }
        if crash == 0 {
            let most_ms = *random.of(&[3, 300, RECOVERY_MS]);
            sleep(Duration::from_micros(random.between(1, most_ms * 1_000))).await;
        }
    }
}

/// Returns the behaviour of a device that is broken or full, or that flips bits.
fn disk_fault(kind: Fault, random: &mut Random) -> DiskFault {
    let broken = Some(DiskError::Broken);
    if kind == Fault::DeviceFull {
        return DiskFault { write: Some(DiskError::Full), ..DiskFault::default() };
    }
    if kind == Fault::Flip {
        let flips_percent = *random.of(&[5, 30, 30, 100]);
        return DiskFault { flips_percent, ..DiskFault::default() };
    }
    let forgets = random.chance(70);
    match random.below(5) {
        0 => DiskFault { read: broken, ..DiskFault::default() },
        1 => DiskFault { write: broken, ..DiskFault::default() },
        2 | 3 => DiskFault { sync: broken, forgets, ..DiskFault::default() },
        _ => {
            DiskFault { read: broken, write: broken, sync: broken, forgets, ..DiskFault::default() }
        }
    }
}

/// Makes the store fail once. The metadata service ends, and an operator restarts it.
async fn break_store(shared: &Rc<Shared>, lasting: Duration, random: &mut Random) {
    let cluster = &shared.cluster;
    let fault = match random.below(3) {
        0 => StoreFault::Commit { is_applied: false },
        1 => StoreFault::Commit { is_applied: true },
        _ => StoreFault::Sync,
    };
    cluster.set_store_fault(Some(fault));
    let until = now() + WRITE_PATIENCE;
    while now() < until && !cluster.has_store_failed() {
        sleep(Duration::from_millis(5)).await;
    }
    last(shared, lasting.min(minutes(random)) / 4).await;
    cluster.kill_meta(None);
    cluster.start_meta();
}

/// Returns the seconds by which a wall clock is set.
fn step(random: &mut Random) -> i64 {
    let most = *random.of(&[2, 100, 86_400]);
    let seconds = random.between(1, most).cast_signed();
    if random.chance(70) { -seconds } else { seconds }
}
