//! Jobs on machines that ssh or, in a Slurm allocation, srun reaches.
//!
//! `up` starts `tsumugi up --agent` on each machine. The agent carries out orders that come as
//! lines of JSON on its standard input, and answers the same way. If its connection ends before the
//! order that all is ready, the agent undoes its work, so a killed `up` leaves nothing on any
//! machine. Afterwards no connection stays open; `status` and `down` ask the machines anew.

mod agent;
mod answers;
mod called;
mod conversation;
mod errand;
mod host;
mod look;
mod messages;
mod pieces;
mod step;
mod tree;

use super::cleanup::{self, Report};
use super::data_fabric;
use super::hosts::{self, Host};
use super::job::JobDir;
use super::options::{Outcome, UpArgs, show};
use super::plan::{MetaPlan, NodePlan, Plan};
use super::restart::META;
use super::services::ReadyNode;
use super::slurm::{self, SlurmRun, SlurmStep, Verdict};
use super::state::{HostState, State};
use super::status::{NodeStatus, Status};
use super::stop::Stop;
use super::{keeper, lease, record};
use crate::print::words;
use anyhow::{Context, bail};
use conversation::Conversation;
use messages::{Order, Reply};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};
use tls::{Holder, JobKey};

pub(crate) use agent::{serve, serve_step};
pub(crate) use answers::Errand;
use errand::ask_in_turn;
pub(crate) use errand::{ask_all, run as run_errand};

/// How much longer than an agent's own deadline its answer may take.
const GRACE: Duration = Duration::from_secs(10);
/// How long it may take to reach a machine and create directories.
const BEGIN_WITHIN: Duration = Duration::from_secs(30);
/// How long backing files may be written without an answer.
const PREPARE_WITHIN: Duration = Duration::from_hours(1);

/// How long a machine may take for a command, beyond the deadline that the command has itself.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// The lease of the machines of a job with an owning process; this machine renews it.
const OWNED_LEASE: Duration = Duration::from_mins(15);

/// Time to undo what was created when something fails.
const UNDO_WITHIN: Duration = Duration::from_secs(20);

/// The output of `restart --json`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Restarted {
    /// The names of the restarted parts.
    pub(crate) restarted: Vec<String>,
}

/// The output of `renew --json`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Renewed {
    /// Machines without a renewal, with the reasons.
    pub(crate) left: Vec<String>,
}

/// How machines are reached.
#[derive(Clone, Debug)]
pub(crate) enum Launcher {
    /// By ssh: a file of nodes, or names separated by commas.
    Ssh(String),
    /// By srun, in the allocation of this run.
    Slurm(SlurmRun),
}

impl Launcher {
    /// By srun, in the allocation of this process.
    pub(crate) fn slurm_here() -> anyhow::Result<Launcher> {
        let job =
            slurm::job_here().context("there is no Slurm job here: SLURM_JOB_ID is not set")?;
        Ok(Launcher::Slurm(SlurmRun::find(job)?))
    }

    fn hosts(&self) -> anyhow::Result<Vec<Host>> {
        match self {
            Launcher::Ssh(nodes) => hosts::read(nodes),
            Launcher::Slurm(_) => hosts::list(&slurm::nodes_here()?),
        }
    }

    fn run(&self) -> Option<&SlurmRun> {
        match self {
            Launcher::Ssh(_) => None,
            Launcher::Slurm(run) => Some(run),
        }
    }
}

/// Creates a job on machines reached by ssh or srun.
pub(crate) fn up(
    args: &UpArgs,
    dir: &JobDir,
    launcher: &Launcher,
    stop: &Stop,
) -> anyhow::Result<Outcome> {
    let hosts = launcher.hosts()?;
    // What no machine can change is refused before any is reached.
    data_fabric::of_options(args.fabric, args.plain_data)?;
    let mut plan = args.bare_plan(Vec::new())?;
    // If this machine dies, no other machine knows of the owning process. A step's agents end with
    // the process.
    let is_owned = plan.owner_process.is_some() && launcher.run().is_none();
    plan.lease_seconds = plan.lease_seconds.or(is_owned.then_some(OWNED_LEASE.as_secs()));
    let mut state = State::new(dir, &plan.id, plan.keep_devices)?;
    (state.owner_process, state.lease_seconds) = (plan.owner_process, plan.lease_seconds);
    (state.owner_run, state.slurm_job) = (plan.owner_run.clone(), plan.slurm_job);
    if let Some(run) = launcher.run() {
        let here = slurm::node_here();
        if !hosts.iter().any(|host| Some(&host.name) == here.as_ref()) {
            // No agent of the step is here to remove the directory.
            state.owner_run = Some(run.clone());
        }
    }
    for host in &hosts {
        state.hosts.push(HostState {
            host: host.ssh_name.clone(),
            name: host.name.clone(),
            ssh: args.reach.ssh(),
            binary: args.reach.remote_binary(),
            base: host.dir.clone().or_else(|| args.job.dir.clone()),
            fan_out: args.reach.fan_out(),
            run: launcher.run().cloned(),
        });
    }
    dir.create()?;
    let mut reached = vec![false; hosts.len()];
    let result = (|| {
        let Some(_lock) = dir.try_lock()? else {
            bail!("another tsumugi works on {}", dir.path().display());
        };
        state.write(dir)?;
        record::write_or_say(&state);
        keeper::start(dir, &mut state)?;
        let machines = launch(&state, dir)?;
        if let (Some(run), Some(srun)) =
            (launcher.run(), machines.first().and_then(Conversation::srun))
        {
            let name = SlurmStep::name_of(dir.job());
            state.owner_step = Some(SlurmStep { srun, job: run.job, name });
            state.write(dir)?;
        }
        let outcome =
            converse(args, machines, (&hosts, &state.hosts), &plan, dir, stop, &mut reached)?;
        if let Some(lasts) = state.lease() {
            lease::renew(dir, lasts)?;
        }
        state.data_fabric.clone_from(&outcome.data_fabric);
        state.is_ready = true;
        state.write(dir)?;
        Ok(outcome)
    })();
    if result.is_err() {
        // Machines without an answer have created nothing.
        let mut answered = reached.iter();
        state.hosts.retain(|_| answered.next() == Some(&true));
        undo_all(dir, &state);
    }
    result
}

/// The agents undo their work when their connections end; a request to each makes sure.
fn undo_all(dir: &JobDir, state: &State) {
    // On a full disk the earlier state has to do.
    if let Err(error) = state.write(dir) {
        eprintln!("tsumugi: {}", words(&error));
    }
    match down(dir, UNDO_WITHIN, None) {
        Ok(report) if report.left.is_empty() => {}
        Ok(report) => {
            report.left.iter().for_each(|left| eprintln!("tsumugi: left behind: {left}"));
            eprintln!("tsumugi: `tsumugi down --job {}` tries again", dir.job());
        }
        Err(error) => eprintln!("tsumugi: left behind {}: {}", dir.path().display(), words(&error)),
    }
}

/// Returns each machine's plan; the first has the metadata service. This process drops the job's
/// new key when the machines have their parts.
fn plans(
    args: &UpArgs,
    dir: &JobDir,
    hosts: &[Host],
    addresses: &[IpAddr],
    base: &Plan,
) -> anyhow::Result<Vec<Plan>> {
    let job = JobKey::generate();
    let mount = args.mount_base()?;
    let default_mount = dir.path().with_file_name(format!("{}.mnt", dir.job()));
    let plan = |(index, (host, &address)): (usize, (&Host, &IpAddr))| {
        let device = host.device.clone().map(|pattern| args.existing(vec![pattern]));
        let mount = host.mount.clone().or_else(|| mount.clone());
        let node = NodePlan {
            name: host.name.clone(),
            key: job.of(&Holder::Node(host.name.clone()))?.to_line().into(),
            listen: SocketAddr::from((address, 0)),
            mount: Some(mount.unwrap_or_else(|| default_mount.clone())),
            device: device.unwrap_or_else(|| args.device()),
        };
        let meta = (index == 0).then(|| MetaPlan { listen: SocketAddr::from((address, 0)) });
        // Several hosts may be one machine: each part's processes have a mark of their own.
        let id = format!("{}.{}", base.id, host.name);
        let secret = meta.is_some().then(|| job.to_hex().into());
        Ok(Plan { id, secret, meta, nodes: vec![node], owner_process: None, ..base.clone() })
    };
    hosts.iter().zip(addresses).enumerate().map(plan).collect()
}

/// Starts the agents: each by ssh, or all by one srun.
fn launch(state: &State, dir: &JobDir) -> anyhow::Result<Vec<Conversation>> {
    let hosts = &state.hosts;
    if let Some(run) = hosts.first().and_then(|host| host.run.as_ref()) {
        let mut command = host::agents(run, dir.job(), hosts);
        return Conversation::start_step(hosts, &mut command, &dir.join("srun.log"));
    }
    Ok(Conversation::start(dir.job(), hosts))
}

/// Gives each order to all machines at the same time, and notes which machines answered at all.
fn converse(
    args: &UpArgs,
    mut machines: Vec<Conversation>,
    (hosts, states): (&[Host], &[HostState]),
    base: &Plan,
    dir: &JobDir,
    stop: &Stop,
    reached: &mut [bool],
) -> anyhow::Result<Outcome> {
    let start = Instant::now();
    let spots = look::look(dir, &mut machines, (hosts, states), stop, reached)?;
    let addresses = hosts::addresses(hosts, &spots)?;
    let data_fabric = look::choose_fabric(args, &mut machines, hosts, &addresses, stop)?;
    let base = Plan { data_fabric: data_fabric.clone(), ..base.clone() };
    let plans = plans(args, dir, hosts, &addresses, &base)?;
    for (machine, plan) in machines.iter_mut().zip(&plans) {
        machine.order(&Order::Begin(Box::new(plan.clone())))?;
    }
    for machine in &mut machines {
        machine.expect_done(Instant::now() + BEGIN_WITHIN, stop, |_, _| ())?;
    }
    for machine in &mut machines {
        machine.order(&Order::Prepare)?;
    }
    let bar = args.bar();
    let mut done_of = vec![(0, 0); machines.len()];
    for (index, machine) in machines.iter_mut().enumerate() {
        machine.expect_done(Instant::now() + PREPARE_WITHIN, stop, |done, all| {
            done_of[index] = (done, all);
            let sum = done_of.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            show(&bar, sum.0, sum.1);
        })?;
    }
    bar.finish_and_clear();
    let prepared = start.elapsed();
    let start = Instant::now();
    let nodes = start_all(args, &mut machines, stop)?;
    Ok(Outcome { nodes, prepared, ready: start.elapsed(), data_fabric })
}

fn start_all(
    args: &UpArgs,
    machines: &mut [Conversation],
    stop: &Stop,
) -> anyhow::Result<Vec<ReadyNode>> {
    let within_ms = args.ready_within.as_millis() as u64;
    let deadline = || Instant::now() + args.ready_within + GRACE;
    machines[0].order(&Order::StartMeta { within_ms })?;
    let Reply::Meta(meta) = machines[0].wait(deadline(), stop, |_, _| ())? else {
        bail!("{} did not report the address of its metadata service", machines[0].host());
    };
    for machine in machines.iter_mut() {
        machine.order(&Order::StartNodes { meta, within_ms })?;
    }
    let mut nodes = Vec::new();
    for machine in machines.iter_mut() {
        match machine.wait(deadline(), stop, |_, _| ())? {
            Reply::Nodes(ready) => nodes.extend(ready),
            _ => bail!("{} did not report the address of its node", machine.host()),
        }
    }
    for machine in machines.iter_mut() {
        machine.order(&Order::Finish)?;
    }
    for machine in machines.iter_mut() {
        machine.expect_done(deadline(), stop, |_, _| ())?;
    }
    machines.iter().for_each(Conversation::keep);
    Ok(nodes)
}

/// Renews a job's lease here and on its machines, for its original duration or for `lasts`. Returns
/// what could not be renewed.
pub(crate) fn renew(dir: &JobDir, lasts: Option<Duration>) -> anyhow::Result<Vec<String>> {
    let state = State::read(dir)?;
    let state = state.with_context(|| format!("there is no job {}", dir.job()))?;
    let Some(lasts) = lasts.or(state.lease()) else {
        bail!("job {} has no lease: it was created without --lease", dir.job());
    };
    lease::renew(dir, lasts)?;
    let lasts = format!("{}ms", lasts.as_millis());
    let errand = errand(dir, &["renew", "--json", "--lease", &lasts], ANSWER_WITHIN);
    let answers = ask_all::<Renewed>(&state.hosts, &errand);
    let mut left = Vec::new();
    for (host, answer) in state.hosts.iter().zip(answers) {
        match answer {
            Ok(there) => {
                left.extend(there.left.iter().map(|left| format!("{}: {left}", host.host)));
            }
            Err(error) => left.push(format!("{}: {}", host.host, words(&error))),
        }
    }
    Ok(left)
}

/// Takes a job down here and on its machines, that with the metadata service last. Each machine
/// keeps its logs in `logs`, if it is given.
pub(crate) fn down(dir: &JobDir, within: Duration, logs: Option<&Path>) -> anyhow::Result<Report> {
    let deadline = Instant::now() + within;
    let mut hosts = State::read(dir)?.map(|state| state.hosts).unwrap_or_default();
    if let Some(run) = hosts.first().and_then(|host| host.run.as_ref())
        && matches!(run.ask(), Verdict::Ends | Verdict::Over(_))
    {
        // No step can be started any more, and the agents have ended with theirs.
        hosts.clear();
    }
    let mut all = Report::default();
    let seconds = format!("{}ms", within.as_millis());
    let mut arguments = vec!["down", "--json", "--deadline", &seconds];
    let logs = logs.map(Path::to_string_lossy);
    arguments.extend(logs.iter().flat_map(|logs| ["--keep-logs", logs]));
    let errand = errand(dir, &arguments, within + ANSWER_WITHIN);
    let (first, rest) = hosts.split_at(hosts.len().min(1));
    let reports = ask_in_turn(&[rest, first], &errand, false);
    for (host, report) in rest.iter().chain(first).zip(reports) {
        match report {
            Ok(report) => all.merge(&host.host, report),
            Err(error) => all.left.push(format!("{}: {}", host.host, words(&error))),
        }
    }
    if all.left.is_empty() {
        let here = cleanup::clean(dir, deadline.max(Instant::now() + GRACE), false)?;
        all.was_there |= here.was_there;
        all.killed.extend(here.killed);
        all.left.extend(here.left);
    }
    Ok(all)
}

/// Restarts dead parts, or those of them that are given: the metadata service first.
pub(crate) fn restart(
    dir: &JobDir,
    parts: &[String],
    within: Duration,
    stop: &Stop,
) -> anyhow::Result<Vec<String>> {
    let hosts = State::read(dir)?.map(|state| state.hosts).unwrap_or_default();
    if hosts.is_empty() {
        return super::restart::here(dir, parts, within, stop);
    }
    let known = |part: &&String| *part == META || hosts.iter().any(|host| host.name == **part);
    if let Some(part) = parts.iter().find(|part| !known(part)) {
        let names: Vec<_> = hosts.iter().map(|host| host.name.as_str()).collect();
        bail!("job {} has no {part:?}; it has {}, {META}", dir.job(), names.join(", "));
    }
    let seconds = format!("{}ms", within.as_millis());
    let arguments = ["restart", "--json", "--ready-within", &seconds];
    let mut started = Vec::new();
    let mut start = |groups: &[&[HostState]], own: &[&str]| -> anyhow::Result<()> {
        let errand = errand(dir, &[&arguments, own].concat(), within + ANSWER_WITHIN);
        let answers = ask_in_turn::<Restarted>(groups, &errand, true);
        for (host, answer) in groups.iter().copied().flatten().zip(answers) {
            let answer = answer.with_context(|| format!("cannot restart on {}", host.host))?;
            started.extend(answer.restarted);
        }
        Ok(())
    };
    if parts.is_empty() {
        // The nodes need the metadata service, which the first machine has.
        let (first, rest) = hosts.split_at(1);
        start(&[first, rest], &[])?;
        return Ok(started);
    }
    for (index, host) in hosts.iter().enumerate() {
        let has = |part: &&String| **part == host.name || (index == 0 && *part == META);
        let own: Vec<_> = parts.iter().filter(has).map(String::as_str).collect();
        if !own.is_empty() {
            start(&[std::slice::from_ref(host)], &own)?;
        }
    }
    Ok(started)
}

/// Returns a command for the parts of a job.
fn errand(dir: &JobDir, words: &[&str], within: Duration) -> Errand {
    let words = words.iter().map(ToString::to_string).collect();
    Errand { job: Some(dir.job().into()), words, within }
}

/// Returns the state of a job, combined from all its machines.
pub(crate) fn status(dir: &JobDir) -> anyhow::Result<Status> {
    let mut status = Status::of_machine(dir)?;
    let mut hosts = State::read_any(dir)?.map(|(state, _)| state.hosts).unwrap_or_default();
    // Only root can reach the other machines of a job that it created.
    if status.note.is_some() {
        hosts.clear();
    }
    let answers = ask_all::<Status>(&hosts, &errand(dir, &["status", "--json"], ANSWER_WITHIN));
    for (host, answer) in hosts.iter().zip(answers) {
        match answer {
            Ok(there) => merge(&mut status, host, there),
            Err(error) => {
                status.nodes.push(NodeStatus::unknown(&host.name, &host.host));
                let trouble = format!("{} is unreachable: {}", host.host, words(&error));
                status.trouble = Some(match status.trouble.take() {
                    Some(earlier) => format!("{earlier}; {trouble}"),
                    None => trouble,
                });
            }
        }
    }
    Ok(status)
}

fn merge(status: &mut Status, host: &HostState, there: Status) {
    for mut node in there.nodes {
        node.host = Some(host.host.clone());
        status.nodes.push(node);
    }
    if there.meta.is_some() {
        status.meta = there.meta;
        status.devices = there.devices;
        status.sessions = there.sessions;
        status.space = there.space;
        status.files_hit = there.files_hit;
        status.files_hit_trouble = there.files_hit_trouble;
    }
    if let Some(mut keeper) = there.keeper {
        let record = &mut keeper.record;
        for death in record.restarts.iter_mut().chain(&mut record.given_up) {
            death.part = format!("{}: {}", host.host, death.part);
        }
        match &mut status.keeper {
            Some(own) => {
                own.record.restarts.append(&mut record.restarts);
                own.record.given_up.append(&mut record.given_up);
            }
            None => status.keeper = Some(keeper),
        }
    }
    status.trouble = status.trouble.take().or(there.trouble);
    status.note = status.note.take().or(there.note);
    status.owner = status.owner.take().or(there.owner);
}
