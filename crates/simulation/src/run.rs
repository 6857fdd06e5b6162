//! A run from a plan to its outcome.

use crate::check::check;
use crate::cluster::Cluster;
use crate::fault::Fault;
use crate::faults;
use crate::finish::finish;
use crate::history::{Actor, Counts, History};
use crate::linear::{Answer, Kind, Op};
use crate::names::{NameCall, NameEffect, NameEvent, Slot};
use crate::operator::Operator;
use crate::plan::{Focus, Plan};
use crate::random::Random;
use crate::story::Story;
use crate::worker::{BALLAST, DIRECTORIES, ONLOOKERS, SHARED, Shared, Worker};
use crate::world::Area;
use client::{Client, OpenMode, Setting};
use protocol::InodeId;
use protocol::attr::{AttrChanges, Layout};
use protocol::client::Creation;
use reactor::sim::{SimConfig, Simulation};
use reactor::time::{now, sleep};
use reactor::{Buffer, Chunk};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Limit of virtual time; no run needs that long.
const TIME_MAX: Duration = Duration::from_hours(2);
/// Largest answer, in bytes, of the metadata service to an unauthenticated connection.
const OFFER_BYTES_MAX: usize = 128;
/// Interval at which new processes get their workers.
const SUPERVISION: Duration = Duration::from_millis(20);
/// How long a run without faults lasts at most while disks are slow.
const SLOW_FOR: Duration = Duration::from_mins(5);
/// Bytes of a stripe: the smallest allowed size.
const STRIPE_BYTES: u32 = 64 << 10;
/// Bytes of one write of the file that occupies space.
const BALLAST_PIECE_BYTES: u64 = 256 << 10;
/// Number of supervision rounds between two checks of the store and of what has become certain.
const EXPIRY_EVERY: u32 = 100;

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The same for two runs of one plan.
    pub trace_hash: u64,
    /// Observations that mode `close` does not allow; empty if all is well.
    pub violations: Vec<String>,
    /// Numbers of events.
    pub counts: Counts,
    /// Virtual time.
    pub elapsed: Duration,
}

/// Runs the focused worlds of a seed in this thread.
pub fn run_worlds(seed: u64, is_logged: bool) -> Vec<(Area, Outcome)> {
    let run = |area| (area, run(&Plan { is_logged, ..Plan::of_world(seed, area) }));
    Area::of_seed(seed).into_iter().map(run).collect()
}

/// Runs a plan in this thread.
pub fn run(plan: &Plan) -> Outcome {
    run_recorded(plan, &Arc::default())
}

/// Like [`run`], but records a story.
pub(crate) fn run_recorded(plan: &Plan, story: &Arc<Story>) -> Outcome {
    let config = SimConfig { time_max: TIME_MAX, ..SimConfig::default() };
    let world = if plan.kept.world == 0 { 0 } else { crate::random::mix(plan.kept.world) };
    let mut simulation = Simulation::with_config(plan.seed ^ world, config);
    let mut random = Random::new(plan.seed);
    let cluster = Cluster::new(&simulation, plan, &mut random);
    if plan.faults.has(Fault::Duplicate) {
        cluster.network.keep_copies();
    }
    let steps = |node: usize| {
        let key = plan.key_of(node);
        let steps = |worker: &usize| plan.kept.has_steps_from((key, *worker, 0));
        let steps = |worker| Cell::new(if steps(&worker) { plan.steps } else { 0 });
        (0..plan.workers).map(steps).collect()
    };
    let turns = |_| (0..plan.workers).map(|_| Cell::new(0)).collect();
    let doing = || (0..=plan.workers + ONLOOKERS).map(|_| RefCell::default()).collect();
    let shared = Rc::new(Shared {
        plan: plan.clone(),
        cluster,
        history: RefCell::new(History::default()),
        causes: RefCell::default(),
        directories: RefCell::default(),
        lasting: Cell::default(),
        watch: RefCell::default(),
        steps: (0..plan.nodes).map(steps).collect(),
        turns: (0..plan.nodes).map(turns).collect(),
        story: Arc::clone(story),
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
    let late = usize::from(shared.plan.has_late_node);
    shared.cluster.start(shared.plan.nodes - late).await;
    let pool = prepare(&shared).await;
    let supervisor = reactor::spawn(supervise(Rc::clone(&shared)));
    let slow_choices = Random::new(random.next());
    let questions = shared.plan.has_operator.then(|| {
        let operator = Operator::new(&shared).run(Random::new(random.next()));
        shared.cluster.operator.spawn(operator)
    });
    let slowness = reactor::spawn(faults::slow_disks(Rc::clone(&shared), slow_choices));
    faults::run(&shared).await;
    if !shared.plan.has_faults() {
        work_for_a_while(&shared).await;
    }
    slowness.abort();
    shared.causes.borrow_mut().end_of(Fault::SlowDisk);
    if let Some(questions) = questions {
        questions.abort();
    }
    finish(&shared, pool).await;
    supervisor.abort();
    refuse_duplicates(&shared);
    let counted = shared.cluster.counted();
    let mut history = shared.history.borrow_mut();
    let counts = &mut history.counts;
    *counts = Counts {
        fences: counted.fences,
        refusals: counted.refusals,
        recalls: counted.recalls,
        repeated: counted.repeated,
        late_commits: counted.late_commits,
        rewritten_blocks: counted.rewritten_blocks,
        ..*counts
    };
}

/// Checks duplicated connections to the metadata service: the service may answer only with the
/// offer of a handshake, because the duplicate cannot prove again that it knows the key.
fn refuse_duplicates(shared: &Rc<Shared>) {
    let cluster = &shared.cluster;
    let answered = cluster.network.duplicates_answered(&cluster.meta.node);
    if answered > OFFER_BYTES_MAX {
        let text =
            format!("a duplicated connection is let in: it is answered with {answered} bytes");
        shared.history.borrow_mut().violations.push(text);
    }
}

/// Waits until the workers are done, or long enough for slow disks to have an effect.
async fn work_for_a_while(shared: &Rc<Shared>) {
    let until = now() + SLOW_FOR;
    let is_busy = || shared.steps.iter().flatten().any(|steps| steps.get() > 0);
    while now() < until && is_busy() {
        sleep(SUPERVISION).await;
    }
}

/// Makes the directories and the file that occupies space. Returns the numbers of used bytes and
/// inodes before that file.
async fn prepare(shared: &Rc<Shared>) -> (u64, u64) {
    let machine = &shared.cluster.machines[0];
    let client = machine.client.borrow().clone().expect("all are up");
    let plan = shared.plan.clone();
    let job = machine.node.spawn(async move {
        let setting = Setting { mode: 0o755, uid: 0, gid: 0 };
        let mut directories = vec![InodeId::ROOT];
        for name in DIRECTORIES {
            let made = client.make(InodeId::ROOT, name.as_bytes(), Creation::Directory, setting);
            let inode = made.await.expect("nothing is broken yet").inode;
            client.forget(inode, 1);
            directories.push(inode);
        }
        // The directories must survive a power loss.
        client.fsync(InodeId::ROOT).await.expect("nothing is broken yet");
        let pool = client.pool_use().await.expect("nothing is broken yet");
        if plan.has_stripes
            && let Some(last) = directories.last()
        {
            let layout = Layout { stripe_size_bytes: STRIPE_BYTES, stripe_count: -1 };
            let changes = AttrChanges { layout: Some(layout), ..AttrChanges::default() };
            client.set_attr(*last, changes).await.expect("nothing is broken yet");
        }
        if let Some(spare_bytes) = plan.spare_bytes {
            fill(&client, pool.free_bytes.saturating_sub(spare_bytes)).await;
        }
        let file = if plan.focus == Focus::Locks { Some(make_shared(&client).await) } else { None };
        (directories, (pool.total_bytes - pool.free_bytes, pool.inodes), file)
    });
    let (directories, pool, file) = job.await.expect("the task lives");
    *shared.directories.borrow_mut() = directories;
    if let Some(inode) = file {
        note_shared(&mut shared.history.borrow_mut(), inode);
    }
    pool
}

/// Makes the file that workers share, which stays until the end.
async fn make_shared(client: &Rc<Client>) -> InodeId {
    let setting = Setting { mode: 0o644, uid: 0, gid: 0 };
    let mode = OpenMode { write: true, ..OpenMode::default() };
    let made = client.create(InodeId::ROOT, SHARED.as_bytes(), setting, mode).await;
    let (handle, attr) = made.expect("nothing is broken yet");
    client.fsync(attr.inode).await.expect("nothing is broken yet");
    client.release(&handle).await.expect("nothing is broken yet");
    client.forget(attr.inode, 1);
    attr.inode
}

/// Enters the shared file into the history.
fn note_shared(history: &mut History, inode: InodeId) {
    let mut life = history.begin("create", Actor { machine: 0, life: 1 }, None);
    history.born(inode, life.start);
    let tick = history.tick();
    life.returned = Some(tick);
    life.apply(tick);
    let slot = Slot { parent: InodeId::ROOT, name: SHARED.to_owned() };
    let effect = NameEffect::Set(Some(inode));
    history.names.push(NameEvent { slot, effect, life: life.clone() });
    let op = Op::Create { path: format!("/{SHARED}"), exclusive: true };
    let mut call = NameCall::new(op, life);
    call.done(Answer::Inode(inode.0, Some(Kind::File)), tick);
    history.calls.push(call);
}

/// Writes a file of this size.
async fn fill(client: &Rc<Client>, bytes: u64) {
    let setting = Setting { mode: 0o600, uid: 0, gid: 0 };
    let mode = OpenMode { write: true, ..OpenMode::default() };
    let made = client.create(InodeId::ROOT, BALLAST.as_bytes(), setting, mode).await;
    let (handle, attr) = made.expect("nothing is broken yet");
    for offset in (0..bytes).step_by(BALLAST_PIECE_BYTES as usize) {
        let piece = Chunk::from(Buffer::zeroed(BALLAST_PIECE_BYTES.min(bytes - offset) as usize));
        client.write(&handle, offset, piece, false).await.expect("nothing is broken yet");
    }
    client.fsync(attr.inode).await.expect("nothing is broken yet");
    client.release(&handle).await.expect("nothing is broken yet");
    client.forget(attr.inode, 1);
}

/// Gives every new process its workers.
async fn supervise(shared: Rc<Shared>) {
    let mut served = vec![0; shared.cluster.machines.len()];
    let mut sessions = vec![(0, None); shared.cluster.machines.len()];
    let mut turn = 0;
    loop {
        for machine in &shared.cluster.machines {
            let life = machine.life.get();
            let client = machine.client.borrow().clone();
            let session = (life, client.as_ref().and_then(|client| client.session_id()));
            let before = std::mem::replace(&mut sessions[machine.index], session);
            if before.0 == life && before.1.is_some() && before.1 != session.1 {
                shared.history.borrow_mut().counts.sessions_lost += 1;
            }
            let kernel = machine.kernel.borrow().clone();
            let Some(kernel) = kernel.filter(|_| served[machine.index] != life) else { continue };
            served[machine.index] = life;
            for number in 0..shared.plan.workers {
                let actor = Actor { machine: machine.index, life };
                let worker = Worker::new(&shared, Rc::clone(&kernel), actor, number);
                drop(machine.applications.spawn(worker.run()));
            }
        }
        turn += 1;
        if turn % EXPIRY_EVERY == 0 {
            shared.history.borrow_mut().expire();
            shared.check_store("while all work");
        }
        sleep(SUPERVISION).await;
    }
}
