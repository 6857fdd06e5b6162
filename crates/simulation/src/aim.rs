//! Waits for the moment at which a fault is most likely to reveal a bug, and chooses the machine
//! that the fault strikes.

use crate::fault::Fault;
use crate::random::Random;
use crate::worker::{Doing, Shared, Watch};
use reactor::local::oneshot;
use reactor::sim::Moment;
use reactor::time::{sleep, timeout};
use std::fmt::{self, Display};
use std::rc::Rc;
use std::time::Duration;

/// How long a fault waits for its moment. After that it strikes anyway.
pub(crate) const PATIENCE: Duration = Duration::from_secs(8);
/// Smallest message, in bytes, that counts as one that carries file data.
pub(crate) const DATA_BYTES: usize = 2_000;

/// The machines that a fault strikes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Victim {
    pub(crate) machine: usize,
    /// The machine at the other end.
    pub(crate) other: usize,
    /// Whether the other end is the metadata service instead; `None` if either is possible.
    pub(crate) is_meta: Option<bool>,
}

impl Display for Victim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Victim { machine, other, is_meta } = self;
        match is_meta {
            Some(true) => write!(f, "node{machine} (at the other end: the metadata service)"),
            Some(false) => write!(f, "node{machine} (at the other end: node{other})"),
            None => {
                write!(f, "node{machine} (at the other end: node{other} or the metadata service)")
            }
        }
    }
}

/// A moment that a fault waits for.
#[derive(Clone, Copy, Debug)]
enum Aim {
    /// A worker on any machine does this.
    Worker(Doing),
    /// Data is on its way between two machines: a write to its target, or data that was read.
    Data,
    /// A target answers a host, or requests the data of a write.
    TargetAnswers,
    /// A disk begins to write.
    DiskWrites,
    /// A disk begins to read.
    DiskReads,
    /// A disk begins to flush.
    DiskFlushes,
    /// The metadata service sends a client an answer or a recall. It has already executed the call.
    MetaAnswers,
    /// The metadata service answers a worker's change. If the answer is lost, the client repeats
    /// the call.
    ChangeIsAnswered,
    /// A client sends a call to the metadata service.
    MetaIsAsked,
}

const WORKERS: [Doing; 5] =
    [Doing::Wrote, Doing::Wrote, Doing::Commits, Doing::Reads, Doing::Changes];

/// Returns the moments at which a kind of fault is most likely to reveal a bug.
fn aims(kind: Fault) -> &'static [Aim] {
    match kind {
        Fault::Duplicate => {
            &[Aim::Data, Aim::TargetAnswers, Aim::MetaIsAsked, Aim::ChangeIsAnswered]
        }
        Fault::Reset => {
            &[Aim::ChangeIsAnswered, Aim::ChangeIsAnswered, Aim::Data, Aim::TargetAnswers]
        }
        Fault::Hold | Fault::LongHold => {
            &[Aim::Data, Aim::Data, Aim::TargetAnswers, Aim::MetaIsAsked]
        }
        Fault::Cut
        | Fault::CutOneWay
        | Fault::SlowLink
        | Fault::Pause
        | Fault::Suspend
        | Fault::Leave => &[
            Aim::Worker(Doing::Wrote),
            Aim::Worker(Doing::Commits),
            Aim::Worker(Doing::Reads),
            Aim::Data,
            Aim::Data,
            Aim::TargetAnswers,
            Aim::MetaAnswers,
        ],
        Fault::Onlook => &[Aim::Worker(Doing::Reads), Aim::Worker(Doing::Changes)],
        Fault::Straggle => &[Aim::Worker(Doing::Wrote), Aim::Worker(Doing::Commits)],
        Fault::Strand => &[Aim::Data, Aim::Data, Aim::TargetAnswers, Aim::Worker(Doing::Wrote)],
        Fault::ClockStep => &[Aim::Worker(Doing::Commits), Aim::MetaIsAsked],
        Fault::NodeKill => &[Aim::Worker(Doing::Commits), Aim::Data, Aim::DiskWrites],
        Fault::MetaKill => {
            &[Aim::MetaAnswers, Aim::MetaIsAsked, Aim::ChangeIsAnswered, Aim::ChangeIsAnswered]
        }
        Fault::CrashTwice => &[Aim::Worker(Doing::Commits), Aim::MetaAnswers],
        Fault::DeviceBroken | Fault::DeviceFull => {
            &[Aim::DiskWrites, Aim::DiskFlushes, Aim::Worker(Doing::Commits)]
        }
        Fault::StoreFull | Fault::StoreBroken => &[Aim::Worker(Doing::Changes), Aim::MetaIsAsked],
        Fault::SlowDisk | Fault::Flip => &[Aim::DiskReads],
        Fault::NodePower => &[Aim::DiskWrites, Aim::DiskFlushes, Aim::DiskReads],
        Fault::MetaPower => &[Aim::MetaAnswers, Aim::Worker(Doing::Commits)],
    }
}

/// Returns two random machines.
pub(crate) fn random_victim(shared: &Shared, random: &mut Random) -> Victim {
    let (plan, count) = (&shared.plan, shared.plan.nodes_of_seed() as u64);
    let key = random.below(count);
    let other = (key + random.between(1, count - 1)) % count;
    let (machine, other) = (plan.node_of(key as usize), plan.node_of(other as usize));
    let other = if other == machine { (machine + 1) % plan.nodes } else { other };
    Victim { machine, other, is_meta: None }
}

/// Waits for a moment that suits this kind of fault, and usually a little longer.
pub(crate) async fn meet(shared: &Rc<Shared>, kind: Fault, random: &mut Random) -> Victim {
    let victim = random_victim(shared, random);
    let aim = match *random.of(aims(kind)) {
        // Some faults wait for a worker that does something else.
        Aim::Worker(_) if random.chance(20) => Aim::Worker(*random.of(&WORKERS)),
        aim => aim,
    };
    let Ok(met) = timeout(PATIENCE, moment(shared, aim, victim)).await else {
        shared.watch.borrow_mut().take();
        return victim;
    };
    shared.history.borrow_mut().counts.aimed += 1;
    // What is on its way arrives soon, so the delay is short.
    let later_us = match aim {
        Aim::Data | Aim::TargetAnswers | Aim::ChangeIsAnswered => *random.of(&[0, 0, 0, 100]),
        _ => *random.of(&[0, 0, 100, 1_000, 20_000]),
    };
    if later_us > 0 {
        sleep(Duration::from_micros(random.between(1, later_us))).await;
    }
    met
}

async fn moment(shared: &Rc<Shared>, aim: Aim, victim: Victim) -> Victim {
    let cluster = &shared.cluster;
    let network = &cluster.network;
    let node = &cluster.machines[victim.machine].node;
    let other = &cluster.machines[victim.other].node;
    match aim {
        Aim::Worker(doing) => met(shared, doing, victim).await,
        Aim::ChangeIsAnswered => {
            let victim = met(shared, Doing::Changes, victim).await;
            let (from, to) = (&cluster.meta.node, &cluster.machines[victim.machine].node);
            network.moment(Moment::Send { from, to, bytes_min: 1 }).await;
            Victim { is_meta: Some(true), ..victim }
        }
        Aim::Data => {
            network.moment(Moment::Send { from: node, to: other, bytes_min: DATA_BYTES }).await;
            Victim { is_meta: Some(false), ..victim }
        }
        Aim::TargetAnswers => {
            network.moment(Moment::Send { from: other, to: node, bytes_min: 1 }).await;
            Victim { is_meta: Some(false), ..victim }
        }
        Aim::DiskWrites => {
            network.moment(Moment::Write(node)).await;
            victim
        }
        Aim::DiskReads => {
            network.moment(Moment::Read(node)).await;
            victim
        }
        Aim::DiskFlushes => {
            network.moment(Moment::Flush(node)).await;
            victim
        }
        Aim::MetaAnswers => {
            let meta = &cluster.meta.node;
            network.moment(Moment::Send { from: meta, to: node, bytes_min: 1 }).await;
            Victim { is_meta: Some(true), ..victim }
        }
        Aim::MetaIsAsked => {
            let meta = &cluster.meta.node;
            network.moment(Moment::Send { from: node, to: meta, bytes_min: 1 }).await;
            Victim { is_meta: Some(true), ..victim }
        }
    }
}

/// Waits until a worker does this. Its machine is the victim.
async fn met(shared: &Rc<Shared>, doing: Doing, victim: Victim) -> Victim {
    let (sender, machine) = oneshot();
    *shared.watch.borrow_mut() = Some(Watch { doing, sender });
    let machine = machine.await.unwrap_or(victim.machine);
    let other = if machine == victim.other { victim.machine } else { victim.other };
    Victim { machine, other, is_meta: None }
}
