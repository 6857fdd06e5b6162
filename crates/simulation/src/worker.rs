//! The workload of applications: one worker takes a bounded number of steps on its node's mount.

mod attributes;
mod data;
mod juggle;
mod locks;
mod many;
mod names;
mod onlook;

use crate::causes::{Called, Causes, FaultSite, Span};
use crate::cluster::Cluster;
use crate::fault::Fault;
use crate::history::{Actor, FileKey, History, Life};
use crate::kernel::{Caller, Kernel, Path};
use crate::plan::{Focus, Plan};
use crate::random::Random;
use crate::story::Story;
use protocol::{Errno, InodeId, SessionId};
use reactor::local::OneshotSender;
use reactor::time::{Instant, now, sleep};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use names::Found;

/// Names that workers use in each directory.
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
/// Names that only links get.
const LINK_NAMES: [&str; 3] = ["l", "m", "n"];
/// A file under the root that no worker moves or removes. Workers with the focus on locks use it.
pub(crate) const SHARED: &str = "k";
/// Directories under the root, besides the root itself. The files of the last may be striped.
pub(crate) const DIRECTORIES: [&str; 2] = ["left", "right"];
/// Workers of a machine that read while it is out of contact, in addition to those that take steps
/// and one more.
pub(crate) const ONLOOKERS: usize = 8;
/// The thread of a mount's first worker.
const FIRST_THREAD: u32 = 100;
/// A file that occupies space and that no worker touches.
pub(crate) const BALLAST: &str = "ballast";
/// During a fault at least this long, workers continue even if they have no steps left.
const LONG: Duration = Duration::from_secs(5);
/// The longest pause of such a worker is this fraction of the fault's duration.
const LASTING_PART: u32 = 30;
/// The keys of the choices of steps and of the pauses between them.
const STEPS: u64 = 2;
const PAUSES: u64 = 3;

/// State that all workers of a run share.
pub(crate) struct Shared {
    pub(crate) plan: Plan,
    pub(crate) cluster: Rc<Cluster>,
    pub(crate) history: RefCell<History>,
    pub(crate) causes: RefCell<Causes>,
    /// The root and the directories made at the start.
    pub(crate) directories: RefCell<Vec<InodeId>>,
    /// Remaining steps of each worker of each machine.
    pub(crate) steps: Vec<Vec<Cell<usize>>>,
    /// Steps that each worker of each machine has begun, over all lives of its process.
    pub(crate) turns: Vec<Vec<Cell<usize>>>,
    /// The record of events.
    pub(crate) story: Arc<Story>,
    /// Duration of the present fault.
    pub(crate) lasting: Cell<Duration>,
    /// The task that waits for an action of a worker.
    pub(crate) watch: RefCell<Option<Watch>>,
    /// The present action of each worker, to report a worker that hangs.
    pub(crate) doing: Vec<Vec<RefCell<String>>>,
}

/// An action of a worker that a fault can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// It has written data and not committed them yet.
    Wrote,
    /// It begins to commit.
    Commits,
    /// It begins to read.
    Reads,
    /// It begins a change of names or sizes, which recalls rights of other clients.
    Changes,
}

/// A task that waits for an action.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) doing: Doing,
    /// Receives the machine of the worker.
    pub(crate) sender: OneshotSender<usize>,
}

/// A worker in one life of its node's process.
pub(crate) struct Worker {
    shared: Rc<Shared>,
    kernel: Rc<Kernel>,
    actor: Actor,
    number: usize,
    random: Random,
    /// When the present call began.
    begun: Cell<Instant>,
}

/// Returns whether an error is a verdict about the requested names, and not a sign of a failure.
fn is_verdict(errno: Errno) -> bool {
    let of_names = [Errno::ENOENT, Errno::EEXIST, Errno::ENOTEMPTY, Errno::EISDIR, Errno::ENOTDIR];
    let of_others = [Errno::ENOSPC, Errno::EAGAIN, Errno::ENODATA, Errno::ENXIO, Errno::EINVAL];
    // A directory cannot get a second name.
    let is_of_kind = errno.raw() == libc::EPERM;
    of_names.contains(&errno) || of_others.contains(&errno) || is_of_kind
}

impl Shared {
    /// Prints an event, if the plan requests it.
    pub(crate) fn log(&self, text: impl FnOnce() -> String) {
        if self.plan.is_logged {
            let (now, tick) = (reactor::time::now(), self.history.borrow().present());
            println!("{now:?} tick {tick}: {}", text());
        }
    }

    /// Records an event in the story, and prints it if the plan requests it.
    pub(crate) fn record(&self, text: impl FnOnce() -> String) {
        if self.plan.is_logged || self.story.keeps_lines() {
            let seconds = (now() - Instant::from_ns(0)).as_secs_f64();
            let (tick, text) = (self.history.borrow().present(), text());
            self.log(|| text.clone());
            self.story.record(|| format!("{seconds:.6} s, tick {tick}: {text}"));
            self.story.wrong(&self.history.borrow().violations);
        }
    }

    /// Records the parts of the cluster that the present fault strikes.
    pub(crate) fn strikes(&self, fault: Fault, sites: &[FaultSite]) {
        self.causes.borrow_mut().strikes(fault, sites);
        self.record(|| format!("{fault:?} strikes {sites:?}"));
    }

    /// Returns the path of a directory entry.
    pub(crate) fn path(&self, parent: InodeId, name: &str) -> String {
        let directories = self.directories.borrow();
        match directories.iter().position(|inode| *inode == parent) {
            Some(0) => format!("/{name}"),
            Some(number) => format!("/{}/{name}", DIRECTORIES[number - 1]),
            None => format!("{name} in inode {}", parent.0),
        }
    }

    /// Kills a node's process. If `power` is given, the machine loses power too.
    pub(crate) fn kill_node(&self, index: usize, power: Option<&mut Random>) {
        let has_power = power.is_none();
        self.cluster.kill_node(index, power);
        let actor = Actor { machine: index, life: self.cluster.machines[index].life.get() };
        let mut history = self.history.borrow_mut();
        history.killed(actor);
        if !has_power {
            history.node_lost_power();
        }
    }

    /// Lets the metadata service check its whole store.
    pub(crate) fn check_store(&self, when: &str) {
        let Some(found) = self.cluster.check_store() else { return };
        let mut history = self.history.borrow_mut();
        history.counts.checks += 1;
        history.violations.extend(found.iter().map(|found| format!("the store, {when}: {found}")));
    }
}

impl Worker {
    pub(crate) fn new(
        shared: &Rc<Shared>,
        kernel: Rc<Kernel>,
        actor: Actor,
        number: usize,
    ) -> Self {
        let random = Random::keyed(shared.plan.seed, &[STEPS]);
        let begun = Cell::new(now());
        Worker { shared: Rc::clone(shared), kernel, actor, number, random, begun }
    }

    pub(crate) async fn run(mut self) {
        let shared = Rc::clone(&self.shared);
        let plan = &shared.plan;
        let steps = &shared.steps[self.actor.machine][self.number];
        let turns = &shared.turns[self.actor.machine][self.number];
        let node = plan.key_of(self.actor.machine);
        while steps.get() > 0 {
            let step = (node, self.number, turns.get());
            if !plan.kept.has_steps_from(step) {
                steps.set(0);
                break;
            }
            turns.set(turns.get() + 1);
            let keys = [node as u64, self.number as u64, step.2 as u64];
            if plan.kept.has_step(step) {
                shared.story.step(step);
                self.random = Random::keyed(plan.seed, &[STEPS, keys[0], keys[1], keys[2]]);
                self.step().await;
            }
            if self.kernel.is_dead() {
                return;
            }
            self.note("rests");
            if self.shared.lasting.get() < LONG {
                steps.set(steps.get().saturating_sub(1));
            }
            let pause_max = plan.pause_max.max(self.shared.lasting.get() / LASTING_PART);
            let pause_max_ns = pause_max.as_nanos() as u64;
            let mut pauses = Random::keyed(plan.seed, &[PAUSES, keys[0], keys[1], keys[2]]);
            sleep(Duration::from_nanos(1 + pauses.below(pause_max_ns))).await;
        }
    }

    async fn step(&mut self) {
        if let Some(world) = &self.shared.plan.world {
            let kind = world.step(&mut self.random);
            return self.step_of(kind).await;
        }
        if self.shared.plan.is_churning {
            match self.random.below(100) {
                0..30 => return self.rewrite().await,
                30..40 => return self.replace().await,
                40..75 => return self.read_file().await,
                _ => {}
            }
        }
        if self.shared.plan.focus != Focus::Nothing && self.random.chance(50) {
            return self.focused_step().await;
        }
        match self.random.below(100) {
            0..25 => self.write_file().await,
            25..45 => self.read_file().await,
            45..51 => self.append_together().await,
            51..57 => self.replace().await,
            57..62 => self.unlink().await,
            62..68 => self.rename().await,
            68..71 => self.link().await,
            71..75 => self.list().await,
            75..79 => self.truncate().await,
            79..82 => self.punch().await,
            82..87 => self.copy().await,
            87..90 => self.lock().await,
            90..94 => self.attributes().await,
            94..97 => self.look().await,
            _ => self.directory().await,
        }
    }

    /// Takes a step of the plan's main activity.
    async fn focused_step(&mut self) {
        let choice = self.random.below(100);
        if self.shared.plan.focus == Focus::Locks {
            return match choice {
                0..60 => self.lock().await,
                60..75 => self.read_file().await,
                75..90 => self.write_file().await,
                _ => self.copy().await,
            };
        }
        match choice {
            0..30 => self.rename().await,
            30..38 => self.unlink().await,
            38..48 => self.replace().await,
            48..58 => self.link().await,
            58..83 => self.directory().await,
            83..90 => self.list().await,
            _ => {
                let (parent, name) = self.place();
                self.lookup(parent, &name).await;
            }
        }
    }

    fn note(&self, doing: &str) {
        self.begun.set(now());
        let slot = &self.shared.doing[self.actor.machine][self.number];
        *slot.borrow_mut() = format!("{doing} since {:?}", now());
        if doing != "rests" {
            self.shared.story.begin(|| self.name(), doing);
        }
    }

    /// Returns the worker's name in a story.
    fn name(&self) -> String {
        format!("node{} worker {}", self.actor.machine, self.number)
    }

    /// Adds details to the present call in the story.
    fn on(&self, more: impl FnOnce() -> String) {
        self.shared.story.add(|| self.name(), more);
    }

    /// Like [`Worker::on`], with a directory entry.
    fn on_name(&self, parent: InodeId, name: &str) {
        self.on(|| format!(" {}", self.shared.path(parent, name)));
    }

    /// Records the end of the present call in the story.
    fn record_end<T>(&self, result: &Result<T, Errno>) {
        let story = &self.shared.story;
        if !story.keeps_lines() {
            return;
        }
        let name = self.name();
        let Some((call, since)) = story.end(&name) else { return };
        let answer = result.as_ref().map_or_else(ToString::to_string, |_| "ok".to_owned());
        let took = self.begun.get().elapsed();
        let between = if since < story.lines() {
            format!(", begun after line {since}")
        } else {
            String::new()
        };
        self.shared.record(|| format!("{name}: {call}: {answer} (took {took:?}{between})"));
    }

    fn log(&self, text: impl FnOnce() -> String) {
        let (machine, number) = (self.actor.machine, self.number);
        self.shared.log(|| format!("node{machine} worker {number} {}", text()));
    }

    /// Notifies a task that waits for this action, and lets it run.
    fn does(&self, doing: Doing) {
        let mut watch = self.shared.watch.borrow_mut();
        if let Some(watch) = watch.take_if(|watch| watch.doing == doing) {
            let _ = watch.sender.send(self.actor.machine);
        }
    }

    fn history(&self) -> std::cell::RefMut<'_, History> {
        self.shared.history.borrow_mut()
    }

    fn session(&self) -> Option<SessionId> {
        self.kernel.client()?.session_id()
    }

    fn caller(&self) -> Caller {
        Caller(FIRST_THREAD + self.number as u32)
    }

    /// Returns the path of a name in one of the directories.
    fn path<'a>(&self, parent: InodeId, name: &'a str) -> Path<'a> {
        Path { directory: self.directory_name(parent), name }
    }

    /// Returns the name of a directory under the root; `None` for the root.
    fn directory_name(&self, directory: InodeId) -> Option<&'static str> {
        let directories = self.shared.directories.borrow();
        let index = directories.iter().position(|other| *other == directory);
        let index = index.expect("workers use the directories that were made at the start");
        index.checked_sub(1).map(|index| DIRECTORIES[index])
    }

    fn begin(&self, what: &'static str) -> Life {
        self.note(what);
        self.log(|| format!("{what} begins"));
        self.history().begin(what, self.actor, self.session())
    }

    fn place(&mut self) -> (InodeId, String) {
        let (directories, plan) = (self.shared.directories.borrow(), &self.shared.plan);
        let parent = *self.random.of(&directories[..plan.directories().min(directories.len())]);
        let names = &NAMES[..plan.names().min(NAMES.len())];
        (parent, (*self.random.of(names)).to_owned())
    }

    /// Like [`Worker::any_place`], but may return the place of the file that workers share.
    fn file_place(&mut self) -> (InodeId, String) {
        let shared_percent = self.shared.plan.shared_percent();
        if self.shared.plan.focus == Focus::Locks && self.random.chance(shared_percent) {
            return (InodeId::ROOT, SHARED.to_owned());
        }
        self.any_place()
    }

    /// Like [`Worker::place`], but may return a link's name.
    fn any_place(&mut self) -> (InodeId, String) {
        let (parent, name) = self.place();
        if self.random.chance(75) {
            return (parent, name);
        }
        (parent, (*self.random.of(&LINK_NAMES)).to_owned())
    }

    /// Records an answer. An error that no fault explains is a violation.
    fn answered<T>(&self, what: &str, result: &Result<T, Errno>) {
        self.log(|| format!("{what}: {:?}", result.as_ref().map(drop)));
        self.record_end(result);
        self.explain_wait(what);
        let mut history = self.history();
        history.counts.answered += 1;
        let Err(errno) = result else { return };
        if is_verdict(*errno) {
            return;
        }
        history.counts.failed += 1;
        let causes = self.shared.causes.borrow();
        if let Some(cause) = causes.of_error(self.called()) {
            drop(history);
            self.explained(what, &errno.to_string(), cause);
        } else {
            let (machine, present, faults) = (self.actor.machine, now(), causes.describe());
            history.violations.push(format!(
                "{what} on node{machine} fails without cause at {present:?}: {errno}; {faults}"
            ));
        }
    }

    /// Returns the present call.
    fn called(&self) -> Called {
        Called { machine: self.actor.machine, begun: self.begun.get() }
    }

    /// Records which fault explains an answer.
    fn explained(&self, what: &str, answer: &str, cause: &Span) {
        self.shared.record(|| format!("{}: {what}: {answer} is explained by {cause}", self.name()));
    }

    /// Checks that a fault explains a call that took longer than normal.
    fn explain_wait(&self, what: &str) {
        let (begun, normal) = (self.begun.get(), self.shared.plan.normal_wait());
        if begun.elapsed() <= normal {
            return;
        }
        let causes = self.shared.causes.borrow();
        let mut history = self.history();
        history.counts.long_waits += 1;
        if let Some(cause) = causes.of_wait(self.called(), normal) {
            drop(history);
            self.explained(what, &format!("{:?}", begun.elapsed()), cause);
        } else {
            let (machine, waited, faults) =
                (self.actor.machine, begun.elapsed(), causes.describe());
            history.violations.push(format!(
                "{what} on node{machine} takes {waited:?} without cause since {begun:?}; {faults}"
            ));
        }
    }

    fn file(&self, inode: InodeId) -> FileKey {
        self.history().file(inode)
    }
}
