//! What applications do: one worker takes a bounded number of steps on its node's mount.

mod attributes;
mod data;
mod locks;
mod many;
mod names;
mod onlook;

use crate::causes::{Called, Causes, Place, Span};
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
/// A file under the root that nobody moves or removes: workers that focus on locks use it.
pub(crate) const SHARED: &str = "k";
/// Directories under the root, besides the root itself. The files of the last may be striped.
pub(crate) const DIRECTORIES: [&str; 2] = ["left", "right"];
/// Workers of a machine, besides those that take steps and one more, that look on while it is out of contact.
pub(crate) const ONLOOKERS: usize = 8;
/// The thread of a mount's first worker.
const FIRST_THREAD: u32 = 100;
/// A file that takes space up, and that no worker touches.
pub(crate) const BALLAST: &str = "ballast";
/// During a misfortune of so long workers go on, whatever number of steps they have left,
const LONG: Duration = Duration::from_secs(5);
/// with pauses up to such a part of it.
const LASTING_PART: u32 = 30;
/// The keys of the choices of steps and of the pauses between them.
const STEPS: u64 = 2;
const PAUSES: u64 = 3;

/// What all workers of a run share.
pub(crate) struct Shared {
    pub(crate) plan: Plan,
    pub(crate) cluster: Rc<Cluster>,
    pub(crate) history: RefCell<History>,
    pub(crate) causes: RefCell<Causes>,
    /// The root and the directories made at the start.
    pub(crate) directories: RefCell<Vec<InodeId>>,
    /// Steps that are left to each worker of each machine.
    pub(crate) steps: Vec<Vec<Cell<usize>>>,
    /// Steps that each worker of each machine has begun, in all its lives.
    pub(crate) turns: Vec<Vec<Cell<usize>>>,
    /// What happens.
    pub(crate) story: Arc<Story>,
    /// Until when the present misfortune lasts.
    pub(crate) lasting: Cell<Duration>,
    /// Who wants to know of what a worker does.
    pub(crate) watch: RefCell<Option<Watch>>,
    /// What each worker does just now, for the report of one that hangs.
    pub(crate) doing: Vec<Vec<RefCell<String>>>,
}

/// What a worker can be met at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// It has written, and not yet committed.
    Wrote,
    /// It begins to commit.
    Commits,
    /// It begins to read.
    Reads,
    /// It begins a change of names or sizes, which recalls what others have.
    Changes,
}

/// One who waits to hear of it.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) doing: Doing,
    /// Is told the machine.
    pub(crate) teller: OneshotSender<usize>,
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

/// Errors that say something of the names asked about, and not that something is broken.
fn is_verdict(errno: Errno) -> bool {
    let of_names = [Errno::ENOENT, Errno::EEXIST, Errno::ENOTEMPTY, Errno::EISDIR, Errno::ENOTDIR];
    let of_others = [Errno::ENOSPC, Errno::EAGAIN, Errno::ENODATA, Errno::ENXIO, Errno::EINVAL];
    // A directory gets no second name.
    let is_of_kind = errno.raw() == libc::EPERM;
    of_names.contains(&errno) || of_others.contains(&errno) || is_of_kind
}

impl Shared {
    /// Prints what happens, if the plan says so.
    pub(crate) fn log(&self, text: impl FnOnce() -> String) {
        if self.plan.is_logged {
            let (now, tick) = (reactor::time::now(), self.history.borrow().present());
            println!("{now:?} tick {tick}: {}", text());
        }
    }

    /// Tells what happens, and prints it if the plan says so.
    pub(crate) fn tell(&self, text: impl FnOnce() -> String) {
        if self.plan.is_logged || self.story.is_told() {
            let seconds = (now() - Instant::from_ns(0)).as_secs_f64();
            let (tick, text) = (self.history.borrow().present(), text());
            self.log(|| text.clone());
            self.story.tell(|| format!("{seconds:.6} s, tick {tick}: {text}"));
            self.story.wrong(&self.history.borrow().violations);
        }
    }

    /// What the misfortune that has just begun befalls.
    pub(crate) fn befalls(&self, fault: Fault, places: &[Place]) {
        self.causes.borrow_mut().befalls(fault, places);
        self.tell(|| format!("{fault:?} befalls {places:?}"));
    }

    /// A directory entry's path.
    pub(crate) fn path(&self, parent: InodeId, name: &str) -> String {
        let directories = self.directories.borrow();
        match directories.iter().position(|inode| *inode == parent) {
            Some(0) => format!("/{name}"),
            Some(number) => format!("/{}/{name}", DIRECTORIES[number - 1]),
            None => format!("{name} in inode {}", parent.0),
        }
    }

    /// Kills a node's process; with a choice, the machine's power goes too.
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

    /// Has the metadata service check its whole store.
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

    /// A step of what the plan's workers mostly do.
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

    /// Who it is, in a story.
    fn name(&self) -> String {
        format!("node{} worker {}", self.actor.machine, self.number)
    }

    /// Says more about the call that it makes.
    fn on(&self, more: impl FnOnce() -> String) {
        self.shared.story.add(|| self.name(), more);
    }

    /// As [`Worker::on`], with a directory entry.
    fn on_name(&self, parent: InodeId, name: &str) {
        self.on(|| format!(" {}", self.shared.path(parent, name)));
    }

    /// The call that it makes has ended.
    fn told<T>(&self, result: &Result<T, Errno>) {
        let story = &self.shared.story;
        if !story.is_told() {
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
        self.shared.tell(|| format!("{name}: {call}: {answer} (took {took:?}{between})"));
    }

    fn log(&self, text: impl FnOnce() -> String) {
        let (machine, number) = (self.actor.machine, self.number);
        self.shared.log(|| format!("node{machine} worker {number} {}", text()));
    }

    /// Tells who waits for it, and lets them act.
    fn does(&self, doing: Doing) {
        let mut watch = self.shared.watch.borrow_mut();
        if let Some(watch) = watch.take_if(|watch| watch.doing == doing) {
            let _ = watch.teller.send(self.actor.machine);
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

    /// The path of a name in one of the directories.
    fn path<'a>(&self, parent: InodeId, name: &'a str) -> Path<'a> {
        Path { directory: self.directory_name(parent), name }
    }

    /// The name of a directory under the root; `None` for the root.
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
        let directories = self.shared.directories.borrow();
        let parent = *self.random.of(&directories);
        let is_narrow = self.shared.plan.is_churning || self.shared.plan.focus == Focus::Names;
        let names = if is_narrow { &NAMES[..2] } else { &NAMES };
        (parent, (*self.random.of(names)).to_owned())
    }

    /// As [`Worker::any_place`], but it may be that of the file which workers share.
    fn file_place(&mut self) -> (InodeId, String) {
        if self.shared.plan.focus == Focus::Locks && self.random.chance(60) {
            return (InodeId::ROOT, SHARED.to_owned());
        }
        self.any_place()
    }

    /// As [`Worker::place`], but it may be a link's name.
    fn any_place(&mut self) -> (InodeId, String) {
        let (parent, name) = self.place();
        if self.random.chance(75) {
            return (parent, name);
        }
        (parent, (*self.random.of(&LINK_NAMES)).to_owned())
    }

    /// Takes note of an answer; an error that nothing explains is a violation.
    fn answered<T>(&self, what: &str, result: &Result<T, Errno>) {
        self.log(|| format!("{what}: {:?}", result.as_ref().map(drop)));
        self.told(result);
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
            let (machine, present, befallen) = (self.actor.machine, now(), causes.describe());
            history.violations.push(format!(
                "{what} on node{machine} fails without cause at {present:?}: {errno}; {befallen}"
            ));
        }
    }

    /// The present call.
    fn called(&self) -> Called {
        Called { machine: self.actor.machine, begun: self.begun.get() }
    }

    /// Tells which misfortune explains an answer.
    fn explained(&self, what: &str, answer: &str, cause: &Span) {
        self.shared.tell(|| format!("{}: {what}: {answer} is explained by {cause}", self.name()));
    }

    /// A call that took longer than is normal must have met a misfortune.
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
            let (machine, waited, befallen) =
                (self.actor.machine, begun.elapsed(), causes.describe());
            history.violations.push(format!(
                "{what} on node{machine} takes {waited:?} without cause since {begun:?}; {befallen}"
            ));
        }
    }

    fn file(&self, inode: InodeId) -> FileKey {
        self.history().file(inode)
    }
}
