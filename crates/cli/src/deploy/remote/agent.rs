//! `tsumugi up --agent` and `tsumugi agent`: carry out orders on one machine.
//!
//! The first, started by ssh, ends when all machines are ready. The second keeps running, for
//! launchers such as srun, which end all processes that a step leaves: it takes its machine's part
//! of the job down when a signal asks it to end.

use super::messages::{Addressed, LINE_BYTES_MAX, Order, Reply, Sink, line};
use super::pieces;
use super::tree::Tree;
use crate::deploy::bounded::lines;
use crate::deploy::cleanup;
use crate::deploy::data_fabric;
use crate::deploy::hosts::Spot;
use crate::deploy::job::JobDir;
use crate::deploy::machine::Machine;
use crate::deploy::process::Process;
use crate::deploy::slurm;
use crate::deploy::state::State;
use crate::deploy::stop::Stop;
use anyhow::{Context, bail};
use serde::de::IgnoredAny;
use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// Number of orders that may wait.
const ORDERS_MAX: usize = 8;
/// Interval of looks at the stop flag.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Shortest time between two reports of progress.
const REPORT_EVERY: Duration = Duration::from_millis(200);

/// How long services may take to end when their step does. Slurm has asked them to end, too,
/// including the metadata service, so nodes may wait for it in vain, and their uncommitted data
/// goes with the job anyway.
const DOWN_WITHIN: Duration = Duration::from_secs(3);

/// How long `up` may take to end after its agent.
const UP_WITHIN: Duration = Duration::from_secs(2);

/// The name of an agent in orders and answers, which share their connection with those of others.
#[derive(Clone, Debug)]
struct Voice {
    node: String,
    is_step: bool,
    /// The agents that this one has started on other machines.
    below: Arc<OnceLock<Tree>>,
}

/// Carries out orders from standard input, and passes those for other machines on to the agents
/// below. Ends at the order to finish. If the input ends without that order, it undoes its work.
pub(crate) fn serve(dir: &JobDir, stop: &Stop, node: &str) -> ExitCode {
    let voice = Voice { node: node.into(), is_step: false, below: Arc::default() };
    let Ok(_machine) = listen(dir, stop, &voice) else { return ExitCode::FAILURE };
    // Their answers come this way.
    voice.below.get().iter().for_each(|tree| tree.wait());
    ExitCode::SUCCESS
}

/// As [`serve`], as one task of a step, and keeps running until the job is taken down, or until a
/// signal ends this process, which then takes its part down itself. On the machine where `up` runs,
/// this also removes the directory of the whole job: Slurm kills the leftover processes of a job's
/// script, and gives only steps time to clean up.
pub(crate) fn serve_step(whole: &JobDir, dir: &JobDir, stop: &Stop, node: &str) -> ExitCode {
    let voice = Voice { node: node.into(), is_step: true, below: Arc::default() };
    let Ok(machine) = listen(dir, stop, &voice) else {
        end_whole(whole);
        return ExitCode::FAILURE;
    };
    let id = machine.id().to_string();
    drop(machine);
    while stop.check().is_ok() {
        if !is_there(dir, &id) {
            return ExitCode::SUCCESS;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    let is_gone = !is_there(dir, &id) || end(dir);
    if end_whole(whole) && is_gone { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Takes down the directory of the whole job, if it is on this machine, was created in this Slurm
/// job, and is not in use. Returns whether nothing is left.
fn end_whole(whole: &JobDir) -> bool {
    let deadline = Instant::now() + UP_WITHIN;
    loop {
        let is_own = |state: &State| {
            state.slurm_job.is_some()
                && state.slurm_job == slurm::job_here()
                && !state.hosts.is_empty()
                && state.hosts.iter().all(|host| host.run.is_some())
        };
        let Some(state) = State::read(whole).ok().flatten().filter(is_own) else { return true };
        if state.is_ready || state.living(Some(state.up)).is_none() {
            return end(whole);
        }
        // `up` undoes its work as soon as the agents have ended, if it has time.
        if Instant::now() >= deadline {
            return true;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Returns whether a directory still belongs to the job with this identifier.
fn is_there(dir: &JobDir, id: &str) -> bool {
    match State::read(dir) {
        Ok(state) => state.is_some_and(|state| state.id == id),
        Err(_) => true,
    }
}

/// Takes down this machine's part of a job. Returns whether nothing is left.
fn end(dir: &JobDir) -> bool {
    match cleanup::clean(dir, Instant::now() + DOWN_WITHIN, false) {
        Ok(report) => {
            report.left.iter().for_each(|left| eprintln!("tsumugi: left behind: {left}"));
            report.left.is_empty()
        }
        Err(error) => {
            let why = crate::print::words(&error);
            eprintln!("tsumugi: left behind {}: {why}", dir.path().display());
            false
        }
    }
}

fn listen(dir: &JobDir, stop: &Stop, voice: &Voice) -> Result<Machine, ()> {
    let (sender, orders) = sync_channel(ORDERS_MAX);
    let is_finished = Arc::new(AtomicBool::new(false));
    let (flag, at_end, heard) = (Arc::clone(&is_finished), stop.clone(), voice.clone());
    std::thread::spawn(move || {
        heard.read_orders(&sender);
        heard.below.get().iter().for_each(|tree| tree.end_orders());
        if !flag.load(Ordering::Relaxed) {
            at_end.request();
        }
    });
    let mut machine = None;
    let result = carry_out(dir, stop, &orders, &mut machine, &is_finished, voice);
    match (result, machine) {
        (Ok(()), Some(machine)) => Ok(machine),
        (result, machine) => {
            drop(machine);
            let why = result.err().map_or_else(|| "not begun".into(), |e| crate::print::words(&e));
            // The reader may have gone.
            let _ = voice.send(Reply::Failed(why));
            cleanup::undo(dir);
            Err(())
        }
    }
}

fn carry_out(
    dir: &JobDir,
    stop: &Stop,
    orders: &Receiver<Order>,
    machine: &mut Option<Machine>,
    is_finished: &AtomicBool,
    voice: &Voice,
) -> anyhow::Result<()> {
    loop {
        stop.check()?;
        let order = match orders.recv_timeout(LOOK_EVERY) {
            Ok(order) => order,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => bail!("the connection ended"),
        };
        if let Order::Look { peers } = &order {
            voice.send(Reply::Spot(Spot::here(peers)?))?;
            continue;
        }
        if let Order::LookForRdma { address } = &order {
            voice.send(Reply::Rdma(data_fabric::device_at(*address)))?;
            continue;
        }
        if let Order::Begin(mut plan) = order {
            if machine.is_some() {
                bail!("begun already");
            }
            if voice.is_step {
                // If this process is killed, the keeper takes its part down.
                plan.owner_process = Some(Process::current().context("cannot look into /proc")?);
            }
            *machine = Some(Machine::begin(dir, *plan, stop.clone())?);
            voice.send(Reply::Done)?;
            continue;
        }
        let machine = machine.as_mut().context("not begun")?;
        match order {
            Order::Finish => {
                machine.finish()?;
                is_finished.store(true, Ordering::Relaxed);
                return voice.send(Reply::Done);
            }
            order => voice.send(step(machine, &order, voice)?)?,
        }
    }
}

fn step(machine: &mut Machine, order: &Order, voice: &Voice) -> anyhow::Result<Reply> {
    let until = |within_ms: u64| Instant::now() + Duration::from_millis(within_ms);
    match order {
        Order::StartMeta { within_ms } => machine.start_meta(until(*within_ms)).map(Reply::Meta),
        Order::StartNodes { meta, within_ms } => {
            machine.start_nodes(*meta, until(*within_ms)).map(Reply::Nodes)
        }
        Order::Prepare => {
            let mut reported: Option<Instant> = None;
            machine.prepare(|done, all| {
                if reported.is_none_or(|at| at.elapsed() >= REPORT_EVERY) {
                    reported = Some(Instant::now());
                    // A lost connection shows at standard input.
                    let _ = voice.send(Reply::Progress { done, all });
                }
            })?;
            Ok(Reply::Done)
        }
        Order::Spread { .. }
        | Order::Look { .. }
        | Order::LookForRdma { .. }
        | Order::Begin(_)
        | Order::Finish => bail!("out of order: {order:?}"),
    }
}

impl Voice {
    fn send(&self, reply: Reply) -> anyhow::Result<()> {
        let line = line(&Addressed { node: self.node.clone(), content: reply })?;
        if self.is_step {
            return pieces::print(&self.node, &line).context("the connection ended");
        }
        print(&line).context("the connection ended")
    }

    fn read_orders(&self, sender: &SyncSender<Order>) {
        for line in lines(std::io::stdin().lock(), LINE_BYTES_MAX) {
            let line = Zeroizing::new(line);
            let Ok(addressed) = serde_json::from_str::<Addressed<IgnoredAny>>(&line) else {
                return;
            };
            if addressed.node != self.node {
                // An agent below that has ended has reported this in its last answer. A step has no
                // agents below it.
                self.below.get().iter().for_each(|tree| {
                    let _ = tree.pass(&addressed.node, line.as_bytes());
                });
                continue;
            }
            let Ok(order) = serde_json::from_str::<Addressed<Order>>(&line) else { return };
            if let Order::Spread { job, rest } = &order.content {
                let sink: Sink = Arc::new(|line| drop(print(line.as_bytes())));
                self.below.get_or_init(|| Tree::start(job, rest, false, &sink));
            } else if sender.send(order.content).is_err() {
                return;
            }
        }
    }
}

/// Prints a line, unbroken by lines of other threads.
fn print(line: &[u8]) -> std::io::Result<()> {
    let mut output = std::io::stdout().lock();
    output.write_all(line).and_then(|()| output.flush())
}
