//! Reduces a failing seed to the fewest parts of its plan that still fail in the same way: delta
//! debugging (A. Zeller, R. Hildebrandt, "Simplifying and Isolating Failure-Inducing Input") on the
//! kept parts of a plan.
//!
//! Leaving out a part changes the times of all other events, and a failure may need a race. So a
//! plan that does not fail is tried in a few other simulated worlds before the part counts as
//! needed.

use crate::kept::{Feature, Kept, StepKey};
use crate::mutants::checker;
use crate::plan::Plan;
use crate::run::{Outcome, run_recorded};
use crate::story::Story;
use crate::sweep::panic_text;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// Number of simulated worlds in which each plan is tried.
const WORLDS: u64 = 4;
/// Least number of nodes of a run.
const NODES_MIN: usize = 2;

/// A failing seed, reduced.
#[derive(Debug)]
pub struct Reduced {
    /// The parts of its plan that are left.
    pub kept: Kept,
    /// The checker that reports the failure, or `panic`.
    pub checker: String,
    /// The violations of the reduced run.
    pub violations: Vec<String>,
    /// The events of the reduced run, as numbered lines.
    pub story: Vec<String>,
    /// Number of runs that the reduction took.
    pub runs: u64,
    /// Whether no other part can be left out. Otherwise the time was over.
    pub is_least: bool,
}

/// The result of a failed run.
struct Failure {
    checkers: Vec<String>,
    violations: Vec<String>,
    story: Arc<Story>,
}

/// A search for the smallest plan.
struct Search {
    plan: Plan,
    best: Kept,
    checker: String,
    until: Instant,
    jobs: u64,
    runs: u64,
}

/// Reduces the cluster's part of a seed within about `longest`, with `jobs` runs at once. Returns
/// `None` if the seed does not fail, or does not end.
pub fn reduce(plan: &Plan, longest: Duration, jobs: usize) -> Option<Reduced> {
    let until = Instant::now() + longest;
    let best = plan.kept.clone();
    let mut search = Search {
        plan: Plan { is_logged: false, ..plan.clone() },
        best: best.clone(),
        checker: String::new(),
        until,
        jobs: jobs.max(1) as u64,
        runs: 0,
    };
    let first = search.fail(vec![best]).pop()??;
    search.checker.clone_from(first.checkers.first()?);
    let steps: BTreeSet<StepKey> = first.story.steps().into_iter().collect();
    let before = search.best.clone();
    search.try_keep(&Kept { steps: Some(steps), ..before });
    let is_least = search.run();
    let last = search.best_failure()?;
    Some(Reduced {
        kept: search.best,
        checker: search.checker,
        story: last.story.text(&last.violations),
        violations: last.violations,
        runs: search.runs,
        is_least,
    })
}

impl Search {
    /// Leaves out parts until no other can be left out, or the time is over. Returns whether it
    /// completed.
    fn run(&mut self) -> bool {
        loop {
            let before = self.best.clone();
            self.workers();
            self.features();
            self.faults();
            self.nodes();
            self.steps();
            if self.is_over() {
                return false;
            }
            let is_same = |a: &Kept, b: &Kept| {
                Kept { world: 0, ..a.clone() } == Kept { world: 0, ..b.clone() }
            };
            if is_same(&before, &self.best) {
                return true;
            }
        }
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    fn workers(&mut self) {
        let steps = self.best.steps.clone().unwrap_or_default();
        let workers: BTreeSet<(usize, usize)> = steps.iter().map(|step| (step.0, step.1)).collect();
        for (node, worker) in workers {
            let mut kept = self.best.clone();
            kept.steps
                .iter_mut()
                .for_each(|it| it.retain(|step| (step.0, step.1) != (node, worker)));
            self.try_keep(&kept);
        }
    }

    fn features(&mut self) {
        for (feature, _) in Feature::ALL {
            let mut kept = self.best.clone();
            if kept.off.insert(feature) {
                self.try_keep(&kept);
            }
        }
    }

    fn faults(&mut self) {
        if self.best.faults.is_none() {
            let all = if self.plan.has_faults() { 0..self.plan.fault_count } else { 0..0 };
            let before = self.best.clone();
            self.try_keep(&Kept { faults: Some(all.collect()), ..before });
        }
        let faults = self.best.faults.clone().unwrap_or_default();
        self.shrink(faults, |kept, faults| kept.faults = Some(faults));
    }

    fn nodes(&mut self) {
        let all = (0..self.plan.nodes_of_seed()).collect();
        for node in self.best.nodes.clone().unwrap_or(all) {
            let mut nodes =
                self.best.nodes.clone().unwrap_or((0..self.plan.nodes_of_seed()).collect());
            nodes.remove(&node);
            if nodes.len() >= NODES_MIN {
                let mut kept = self.best.clone();
                kept.steps.iter_mut().for_each(|steps| steps.retain(|step| step.0 != node));
                self.try_keep(&Kept { nodes: Some(nodes), ..kept });
            }
        }
    }

    fn steps(&mut self) {
        let steps = self.best.steps.clone().unwrap_or_default();
        self.shrink(steps, |kept, steps| kept.steps = Some(steps));
    }

    /// Leaves out ever smaller groups of a list.
    fn shrink<T: Ord + Clone>(
        &mut self,
        mut all: BTreeSet<T>,
        set: impl Fn(&mut Kept, BTreeSet<T>),
    ) {
        let mut size = all.len().div_ceil(2);
        while size > 0 && !all.is_empty() {
            let list: Vec<T> = all.iter().cloned().collect();
            for group in list.chunks(size) {
                let mut left = all.clone();
                left.retain(|item| !group.contains(item));
                let mut kept = self.best.clone();
                set(&mut kept, left.clone());
                if self.try_keep(&kept) {
                    all = left;
                }
                if self.is_over() {
                    return;
                }
            }
            size = if size == 1 { 0 } else { size.div_ceil(2) };
        }
    }

    /// Keeps only these parts if the plan still fails in the same way in one of the worlds.
    fn try_keep(&mut self, kept: &Kept) -> bool {
        let worlds: Vec<u64> = (0..WORLDS).map(|more| kept.world + more).collect();
        for worlds in worlds.chunks(self.jobs as usize) {
            if self.is_over() {
                return false;
            }
            let tried: Vec<Kept> =
                worlds.iter().map(|world| Kept { world: *world, ..kept.clone() }).collect();
            let failures = self.fail(tried.clone());
            let is_same = |failure: &Option<Failure>| {
                failure.as_ref().is_some_and(|failure| failure.checkers.contains(&self.checker))
            };
            if let Some(at) = failures.iter().position(is_same) {
                self.best = tried[at].clone();
                return true;
            }
        }
        false
    }

    /// Runs plans concurrently. A run that does not end in time counts as not failed.
    fn fail(&mut self, kept: Vec<Kept>) -> Vec<Option<Failure>> {
        let started: Vec<_> = kept
            .into_iter()
            .map(|kept| {
                let (sender, receiver) = channel();
                let plan = self.plan.clone().keep(kept);
                thread::spawn(move || sender.send(failure_of(&plan, false)));
                receiver
            })
            .collect();
        self.runs += started.len() as u64;
        let left = || self.until.saturating_duration_since(Instant::now());
        started.into_iter().map(|receiver| receiver.recv_timeout(left()).ok().flatten()).collect()
    }

    /// Repeats the best plan and records its story.
    fn best_failure(&self) -> Option<Failure> {
        failure_of(&self.plan.clone().keep(self.best.clone()), true)
    }
}

fn failure_of(plan: &Plan, keeps_lines: bool) -> Option<Failure> {
    let story = Arc::new(Story::new(keeps_lines));
    let ended = catch_unwind(AssertUnwindSafe(|| run_recorded(plan, &story)));
    let (checkers, violations) = match ended {
        Ok(Outcome { violations, .. }) => {
            (violations.iter().map(|text| checker(text).to_owned()).collect(), violations)
        }
        Err(payload) => {
            let text = panic_text(&*payload);
            // Two panics are the same if their texts are equal except for numbers.
            let words =
                text.lines().next().unwrap_or_default().replace(|c: char| c.is_ascii_digit(), "");
            (vec![format!("panic: {words}")], vec![text])
        }
    };
    (!violations.is_empty()).then_some(Failure { checkers, violations, story })
}
