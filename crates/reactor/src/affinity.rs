//! Running a thread on the CPU of its caller.
//!
//! A caller that blocks until one of our threads has answered leaves its CPU idle. If the thread
//! wakes on another CPU, each request must wake two sleeping CPUs by interrupts (45 us each on a
//! virtual machine); on the caller's own CPU a request takes two switches of a few microseconds.
//! The scheduler cannot know that the caller is about to block, and prefers an idle CPU. So the
//! thread binds itself: it follows its callers as long as they come one at a time from one CPU. It
//! runs anywhere again when they do not, when it had to wait for the CPU, or when it has nothing to
//! do. (Two processes that make empty files on two mounts, two CPUs: 2100 files a second unbound,
//! 7500 bound.)

mod hold;

pub use hold::hold;

use crate::relay;
use crate::time::sleep;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::time::Duration;

/// Requests in a row from one CPU after which the thread is bound to it.
const STREAK: u32 = 16;
/// The weight of a request from another CPU, or of one that is not prompt; a request from the bound
/// CPU takes 1 off. So the thread stays bound while about nine of ten requests come from there.
const STRAY_COST: u32 = 8;
/// The sum of strays that ends the binding.
const STRAYS_MAX: u32 = 64;
/// Requests between two checks of how long the thread waited for its CPU.
const JUDGED_EACH: u32 = 64;
/// The wait for the CPU per request that ends the binding: less than the cost of a wake-up
/// elsewhere.
const WAITED_NS_MAX: u64 = 30_000;
/// Requests for which the thread is not bound again after the first binding that failed. Each
/// further failure doubles it.
const REST: u32 = 256;
const REST_MAX: u32 = 1 << 16;
/// Requests after which a binding counts as good; the rest is then reset to its first length.
const GOOD: u32 = 4096;
/// Time without a request after which the thread is free again.
const IDLE: Duration = Duration::from_millis(20);

thread_local! {
    /// The CPUs on which this thread may run when it is free; `None` while it is not bound.
    static HOME: Cell<Option<CpuSet>> = const { Cell::new(None) };
}

/// A decision about the thread's CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    Stay,
    Bind(u16),
    Free,
    /// Check how long the thread has waited for its CPU.
    Judge,
}

/// The decisions, without the system calls that carry them out.
#[derive(Debug)]
struct Policy {
    bound: Option<u16>,
    last: u16,
    streak: u32,
    strays: u32,
    /// Requests since the thread was bound.
    served: u32,
    /// Requests until the thread may be bound again, and this number for the next time.
    rest: u32,
    rest_next: u32,
}

impl Policy {
    fn new() -> Self {
        Self { bound: None, last: 0, streak: 0, strays: 0, served: 0, rest: 0, rest_next: REST }
    }

    fn note(&mut self, cpu: u16, is_prompt: bool) -> Move {
        self.rest = self.rest.saturating_sub(1);
        if !is_prompt {
            self.streak = 0;
        } else if cpu == self.last {
            self.streak = self.streak.saturating_add(1);
        } else {
            self.streak = 1;
        }
        self.last = cpu;
        let Some(bound) = self.bound else {
            return if self.streak >= STREAK && self.rest == 0 {
                self.bind(cpu)
            } else {
                Move::Stay
            };
        };
        self.served = self.served.saturating_add(1);
        if self.served == GOOD {
            self.rest_next = REST;
        }
        if is_prompt && cpu == bound {
            self.strays = self.strays.saturating_sub(1);
        } else {
            self.strays += STRAY_COST;
        }
        if cpu != bound && self.streak >= STREAK / 2 {
            return self.bind(cpu);
        }
        if self.strays > STRAYS_MAX {
            return self.give_up();
        }
        if self.served.is_multiple_of(JUDGED_EACH) { Move::Judge } else { Move::Stay }
    }

    /// Notes a request that may come from any CPU.
    fn stray(&mut self) -> Move {
        self.rest = self.rest.saturating_sub(1);
        self.streak = 0;
        if self.bound.is_none() {
            return Move::Stay;
        }
        self.strays += STRAY_COST;
        if self.strays > STRAYS_MAX { self.give_up() } else { Move::Stay }
    }

    fn bind(&mut self, cpu: u16) -> Move {
        self.bound = Some(cpu);
        (self.strays, self.served) = (0, 0);
        Move::Bind(cpu)
    }

    /// Frees the thread and keeps it free for a while.
    fn give_up(&mut self) -> Move {
        self.rest = self.rest_next;
        self.rest_next = (self.rest_next * 2).min(REST_MAX);
        self.free()
    }

    fn free(&mut self) -> Move {
        (self.bound, self.streak) = (None, 0);
        Move::Free
    }

    /// Returns whether to stay bound, given how long the thread waited since the last check.
    fn judge(&mut self, waited_ns: u64) -> Move {
        if waited_ns > WAITED_NS_MAX * u64::from(JUDGED_EACH) { self.give_up() } else { Move::Stay }
    }
}

/// Binds its own thread to the CPU of the thread's callers while that pays; see the module's head.
#[derive(Debug)]
pub struct Follower {
    policy: RefCell<Policy>,
    /// The kernel's account of the thread; without it the thread is never bound.
    account: Option<File>,
    /// Nanoseconds that the thread had waited for a CPU at the last check.
    waited_ns: Cell<u64>,
    /// Requests so far.
    noted: Cell<u64>,
    /// Whether a task watches for idleness.
    is_watched: Cell<bool>,
}

impl Follower {
    /// Makes a follower for this thread.
    pub fn new() -> Rc<Self> {
        let account = File::open("/proc/thread-self/schedstat").ok();
        Rc::new(Self {
            policy: RefCell::new(Policy::new()),
            account,
            waited_ns: Cell::new(0),
            noted: Cell::new(0),
            is_watched: Cell::new(false),
        })
    }

    /// Records a request by a caller whose CPU is not known and who was not the last caller.
    pub fn stray(&self) {
        if relay::is_here() {
            return;
        }
        self.noted.set(self.noted.get() + 1);
        let step = self.policy.borrow_mut().stray();
        if step == Move::Free {
            free();
        }
    }

    /// Records a request by a caller on `cpu`. It is prompt if the caller waits for it and it takes
    /// little CPU time. Must be called on the follower's thread, inside its runtime.
    pub fn note(self: &Rc<Self>, cpu: u16, is_prompt: bool) {
        if relay::is_here() {
            return;
        }
        self.noted.set(self.noted.get() + 1);
        let mut step = self.policy.borrow_mut().note(cpu, is_prompt);
        if step == Move::Judge {
            let before_ns = self.waited_ns.get();
            let waited_ns = self.look().map_or(u64::MAX, |now_ns| now_ns.saturating_sub(before_ns));
            step = self.policy.borrow_mut().judge(waited_ns);
        }
        match step {
            Move::Bind(cpu) => self.bind(cpu),
            Move::Free => free(),
            Move::Stay | Move::Judge => {}
        }
    }

    fn bind(self: &Rc<Self>, cpu: u16) {
        if self.look().is_none() || bind(cpu).is_err() {
            // Binding is forbidden, or its effect cannot be measured: never try again.
            let mut policy = self.policy.borrow_mut();
            policy.give_up();
            policy.rest = u32::MAX;
            return free();
        }
        if !self.is_watched.replace(true) {
            let follower = Rc::clone(self);
            drop(crate::spawn(async move { follower.watch().await }));
        }
    }

    /// Frees the thread once it has had nothing to do for a while.
    async fn watch(&self) {
        loop {
            let noted = self.noted.get();
            sleep(IDLE).await;
            if self.policy.borrow().bound.is_none() {
                break;
            }
            if noted == self.noted.get() && !relay::is_here() {
                self.policy.borrow_mut().free();
                free();
                break;
            }
        }
        self.is_watched.set(false);
    }

    /// Reads from the account how long the thread has waited for a CPU in all.
    fn look(&self) -> Option<u64> {
        let mut bytes = [0; 64];
        let length = self.account.as_ref()?.read_at(&mut bytes, 0).ok()?;
        let waited_ns = parse_waited(bytes.get(..length)?)?;
        self.waited_ns.set(waited_ns);
        Some(waited_ns)
    }
}

/// Returns the second of the three numbers of a `schedstat` file: nanoseconds spent waiting on a
/// run queue.
fn parse_waited(bytes: &[u8]) -> Option<u64> {
    std::str::from_utf8(bytes).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Binds this thread to one of the CPUs that it may run on.
fn bind(cpu: u16) -> io::Result<()> {
    let home = match HOME.get() {
        Some(home) => home,
        None => sched_getaffinity(None)?,
    };
    let only = only(cpu).filter(|_| home.is_set(cpu.into()));
    let only =
        only.ok_or_else(|| io::Error::other("the caller's CPU is not one of this thread's"))?;
    let left = sched_getcpu();
    sched_setaffinity(None, &only)?;
    HOME.set(Some(home));
    if let Ok(left) = u16::try_from(left)
        && left != cpu
    {
        hold::hold(left);
    }
    Ok(())
}

/// Binds this thread to one of the CPUs that it may run on, for good.
pub(crate) fn settle(cpu: u16) -> io::Result<()> {
    let home = sched_getaffinity(None)?;
    let only = only(cpu).filter(|_| home.is_set(cpu.into()));
    sched_setaffinity(None, &only.ok_or(io::ErrorKind::NotFound)?)?;
    HOME.set(Some(home));
    Ok(())
}

/// Returns the set of one CPU, if such a number is possible.
fn only(cpu: u16) -> Option<CpuSet> {
    let cpu = usize::from(cpu);
    let mut only = CpuSet::new();
    (cpu < CpuSet::MAX_CPU).then(|| only.set(cpu))?;
    Some(only)
}

/// Lets this thread run on all CPUs that it was allowed before.
fn free() {
    let Some(home) = HOME.take() else { return };
    if sched_setaffinity(None, &home).is_err() {
        // None of those CPUs is allowed any more: use all that are.
        let mut all = CpuSet::new();
        (0..CpuSet::MAX_CPU).for_each(|cpu| all.set(cpu));
        let _ = sched_setaffinity(None, &all);
    }
}

/// Returns the CPUs of this thread when it is free, if it is bound now. Threads that it starts use
/// them, because they must not be bound.
pub(crate) fn home() -> Option<CpuSet> {
    HOME.get()
}

/// Lets this thread run on the CPUs that its parent had when free; see [`home`].
pub(crate) fn adopt(home: Option<CpuSet>) {
    HOME.set(home);
    free();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(policy: &mut Policy, cpu: u16, requests: u32) -> Vec<Move> {
        let mut moves: Vec<Move> = (0..requests).map(|_| policy.note(cpu, true)).collect();
        moves.retain(|step| !matches!(step, Move::Stay | Move::Judge));
        moves
    }

    /// Goal: a lone caller is followed, also when it moves.
    #[test]
    fn a_lone_caller_is_followed() {
        let mut policy = Policy::new();
        assert_eq!(noted(&mut policy, 3, STREAK - 1), []);
        assert_eq!(noted(&mut policy, 3, 1000), [Move::Bind(3)]);
        assert_eq!(noted(&mut policy, 1, 1000), [Move::Bind(1)]);
    }

    /// Goal: callers on several CPUs and big transfers leave the thread free, and free a bound one.
    #[test]
    fn many_callers_are_not_followed() {
        let mut policy = Policy::new();
        for turn in 0..1000 {
            assert_eq!(policy.note(turn % 2, true), Move::Stay);
            assert_eq!(policy.note(0, false), Move::Stay);
        }
        assert_eq!(noted(&mut policy, 0, STREAK), [Move::Bind(0)]);
        let freed =
            (0..100).map(|turn| policy.note(turn % 2, true)).find(|step| *step != Move::Stay);
        assert_eq!(freed, Some(Move::Free));
        let mut policy = Policy::new();
        noted(&mut policy, 0, STREAK);
        let freed = (0..100).map(|_| policy.note(0, false)).find(|step| *step != Move::Stay);
        assert_eq!(freed, Some(Move::Free));
    }

    /// Goal: a thread that has to wait for its CPU is freed. Each time it stays free for longer,
    /// until a binding lasts.
    #[test]
    fn waiting_ends_the_binding() {
        let mut policy = Policy::new();
        noted(&mut policy, 0, STREAK);
        assert_eq!(policy.judge(WAITED_NS_MAX * u64::from(JUDGED_EACH)), Move::Stay);
        for rest in [REST, 2 * REST, 4 * REST] {
            assert_eq!(policy.judge(u64::MAX), Move::Free);
            assert_eq!(noted(&mut policy, 0, rest - 1), []);
            assert_eq!(noted(&mut policy, 0, 1), [Move::Bind(0)]);
        }
        noted(&mut policy, 0, GOOD);
        assert_eq!(policy.judge(u64::MAX), Move::Free);
        assert_eq!(noted(&mut policy, 0, REST), [Move::Bind(0)]);
    }

    /// Goal: the kernel's account is read, and other text is refused.
    #[test]
    fn accounts_are_read() {
        assert_eq!(parse_waited(b"96217 1425 7\n"), Some(1425));
        assert_eq!(parse_waited(b"96217"), None);
        assert_eq!(parse_waited(b"a b c"), None);
    }

    /// Goal: binding and freeing leave the thread's allowed CPUs unchanged, do not affect the
    /// threads that it starts, and a thread without requests is freed.
    #[test]
    fn a_bound_thread_comes_home() {
        let mut runtime = crate::Runtime::new(&crate::Config::default()).unwrap();
        runtime.block_on(async {
            let before = sched_getaffinity(None).unwrap();
            let cpu = (0..CpuSet::MAX_CPU).find(|&cpu| before.is_set(cpu)).unwrap();
            let follower = Follower::new();
            for _ in 0..STREAK {
                follower.note(cpu as u16, true);
            }
            assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
            let started = crate::thread::spawn("started", &crate::Config::default(), || async {
                sched_getaffinity(None).unwrap()
            });
            assert_eq!(started.unwrap().await.unwrap(), before);
            while sched_getaffinity(None).unwrap() != before {
                sleep(IDLE).await;
            }
        });
    }
}
