//! A run from a plan to its outcome.

use crate::check::check;
use crate::cluster::Cluster;
use crate::faults;
use crate::finish::finish;
use crate::history::{Actor, Counts, History};
use crate::plan::Plan;
use crate::random::Random;
use crate::worker::{DIRECTORIES, Shared, Worker};
use client::Setting;
use protocol::InodeId;
use protocol::client::Creation;
use ring::sim::{SimConfig, Simulation};
use ring::time::sleep;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// Virtual time that no run needs.
const TIME_MAX: Duration = Duration::from_hours(2);
/// How often new processes get their workers.
const SUPERVISION: Duration = Duration::from_millis(20);
/// Looks at processes between two at what has become certain.
const EXPIRY_EVERY: u32 = 100;

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Equal for two runs of one plan.
    pub trace_hash: u64,
    /// What was seen that mode `close` does not allow; empty if all is well.
    pub violations: Vec<String>,
    /// What happened.
    pub counts: Counts,
    /// Virtual time.
    pub elapsed: Duration,
}

/// Runs a plan in this thread.
pub fn run(plan: &Plan) -> Outcome {
    let config = SimConfig { time_max: TIME_MAX, ..SimConfig::default() };
    let mut simulation = Simulation::with_config(plan.seed, config);
    let mut random = Random::new(plan.seed);
    let cluster = Cluster::new(&simulation, plan, &mut random);
    let workers = || (0..plan.workers).map(|_| Cell::new(plan.steps)).collect();
    let doing = || (0..plan.workers).map(|_| RefCell::default()).collect();
    let shared = Rc::new(Shared {
        plan: plan.clone(),
        cluster,
        history: RefCell::new(History::default()),
        directories: RefCell::default(),
        steps: (0..plan.nodes).map(|_| workers()).collect(),
        doing: (0..plan.nodes).map(|_| doing()).collect(),
    });
    let ended = simulation.run(whole(Rc::clone(&shared), random));
    let mut history = shared.history.take();
    if let Err(stalled) = ended {
        history.violations.push(stalled.to_string());
    }
    Outcome {
        trace_hash: simulation.trace_hash(),
        violations: check(&mut history),
        counts: history.counts,
        elapsed: simulation.elapsed(),
    }
}

async fn whole(shared: Rc<Shared>, mut random: Random) {
    shared.cluster.start().await;
    let pool = prepare(&shared).await;
    let supervisor = ring::spawn(supervise(Rc::clone(&shared)));
    let fault_choices = Random::new(random.next());
    faults::run(&shared, fault_choices).await;
    finish(&shared, pool).await;
    supervisor.abort();
}

/// Makes the directories; answers the free bytes and the inodes then.
async fn prepare(shared: &Rc<Shared>) -> (u64, u64) {
    let machine = &shared.cluster.machines[0];
    let client = machine.client.borrow().clone().expect("all are up");
    let job = machine.node.spawn(async move {
        let setting = Setting { mode: 0o755, uid: 0, gid: 0 };
        let mut directories = vec![InodeId::ROOT];
        for name in DIRECTORIES {
            let made = client.make(InodeId::ROOT, name.as_bytes(), Creation::Directory, setting);
            directories.push(made.await.expect("nothing is broken yet").inode);
        }
        // They must outlive a power loss.
        client.fsync(InodeId::ROOT).await.expect("nothing is broken yet");
        let pool = client.pool_use().await.expect("nothing is broken yet");
        (directories, (pool.free_bytes, pool.inodes))
    });
    let (directories, pool) = job.await.expect("the task lives");
    *shared.directories.borrow_mut() = directories;
    pool
}

/// Gives every new process its workers.
async fn supervise(shared: Rc<Shared>) {
    let mut served = vec![0; shared.cluster.machines.len()];
    let mut turn = 0;
    loop {
        for machine in &shared.cluster.machines {
            let life = machine.life.get();
            let client = machine.client.borrow().clone();
            let Some(client) = client.filter(|_| served[machine.index] != life) else { continue };
            served[machine.index] = life;
            for number in 0..shared.plan.workers {
                let actor = Actor { machine: machine.index, life };
                let worker = Worker::new(&shared, Rc::clone(&client), actor, number);
                drop(machine.node.spawn(worker.run()));
            }
        }
        turn += 1;
        if turn % EXPIRY_EVERY == 0 {
            shared.history.borrow_mut().expire();
        }
        sleep(SUPERVISION).await;
    }
}
