//! Runs a plan: round by round, kept as it goes, ended by verdict, limit or user.
//!
//! Every run is in the database before the next begins, so the end of the process loses one run
//! at most. What has been decided is always computed from the database, never remembered: so an
//! experiment that was interrupted and resumed takes the same decisions at the same looks as one
//! that was not.

mod program;

use crate::analysis::{Analysis, Further, Intervals};
use crate::condition::{Place, Stage};
use crate::cpu::{Meter, Spent};
use crate::ending::{Ending, Limit, Progress};
use crate::error::Error;
use crate::guard::{Claim, Look, Numbers, Source, marks};
use crate::plan::{Plan, Planned, RUN_OVERHEAD, Step};
use crate::settle::settle;
use crate::store::{RunFacts, Store};
use base::Stop;
use base::statistics::{Steadiness, steadiness};
use loads::engine::{Engine, Work};
use loads::metric::Metric;
use loads::outcome::{Mark, Outcome};
use loads::place::Place as _;
use program::SameProgram;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often a run is tried until it has settled.
const ATTEMPTS_MAX: u32 = 3;
/// Failed runs of one condition in a row after which nothing more is tried.
const FAILURES_MAX: u32 = 3;
/// Relative difference between jobs and rate × latency that is worth a mark (Little's law).
const LITTLE_MAX: f64 = 0.05;
/// How long the machine is watched before each round, to know what it does without a load.
const IDLE_LOOK_MAX: Duration = Duration::from_secs(1);

/// Events, for the caller that shows them.
#[derive(Clone, Debug)]
pub enum Event {
    /// A run begins.
    Begin {
        /// Round, from 1; 0 is warming up.
        round: u32,
        /// What is run.
        what: String,
        /// Runs that are done.
        done: u64,
        /// Runs up to the next look.
        total: u64,
        /// About how long until the next look.
        seconds_left: f64,
    },
    /// Something worth a line.
    Note(String),
}

/// Runs a plan.
pub struct Runner<'a> {
    plan: &'a Plan,
    store: &'a mut Store,
    engine: &'a mut dyn Engine,
    /// Verdicts that share the report's error beside those of comparisons.
    further: Further,
    places: Vec<Result<Place, String>>,
    stop: Stop,
    /// Where loads are run by this program.
    program: Option<SameProgram>,
    begun: Instant,
    /// Time of earlier, interrupted parts.
    earlier: Duration,
    done: BTreeSet<(u32, String, String)>,
    runs_here: u32,
    /// When it ends at the latest, also where its own limits are later.
    deadline: Option<Instant>,
    failures: BTreeMap<usize, u32>,
    /// `None` without storage, which costs no CPU time.
    meter: Option<Meter>,
    /// What the machine and others used before a round, by no run.
    idle: Option<Spent>,
    /// A directory on the file system below which files are made.
    data: Option<PathBuf>,
    /// Whether something may have been written since all was last settled.
    is_unsettled: Cell<bool>,
}

impl std::fmt::Debug for Runner<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Runner").field("plan", &self.plan.hash).finish_non_exhaustive()
    }
}

impl<'a> Runner<'a> {
    /// Prepares to run on conditions that stand.
    pub fn new(
        plan: &'a Plan,
        store: &'a mut Store,
        engine: &'a mut dyn Engine,
        stage: &Stage,
        further: Further,
        stop: Stop,
    ) -> Result<Self, Error> {
        let engine_kind = plan.experiment.engine;
        let is_synthetic = engine_kind.is_synthetic();
        let is_ours = engine_kind.runs_this_program;
        let program = is_ours.then(|| SameProgram::at(stage.program())).transpose()?;
        let mut places = Vec::new();
        for condition in &plan.conditions {
            let place = stage.place(condition);
            let reason = if is_synthetic { None } else { place.as_ref().err() };
            store.set_condition(&condition.id, &condition.label, reason.map(String::as_str))?;
            places.push(place);
        }
        store.set("engine", &engine.version())?;
        let done = store.done()?;
        let earlier = store.get("run_seconds")?.and_then(|text| text.parse::<f64>().ok());
        let earlier = Duration::try_from_secs_f64(earlier.unwrap_or(0.0)).unwrap_or_default();
        Ok(Self {
            plan,
            store,
            engine,
            further,
            places,
            stop,
            program,
            begun: Instant::now(),
            earlier,
            done,
            runs_here: 0,
            deadline: None,
            failures: BTreeMap::new(),
            meter: (!is_synthetic)
                .then(|| Meter::new(stage.services().to_vec(), plan.experiment.cpu_hosts.clone())),
            idle: None,
            data: stage.scratch(),
            is_unsettled: Cell::new(true),
        })
    }

    /// Ends at this moment at the latest, also where the experiment's own limit is later.
    pub fn end_by(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
    }

    /// Runs until it ends. `show` receives the events.
    pub fn run(&mut self, show: &mut dyn FnMut(Event)) -> Result<Ending, Error> {
        let result = self.rounds(show);
        let seconds = (self.earlier + self.begun.elapsed()).as_secs_f64();
        self.store.set("run_seconds", &seconds.to_string())?;
        let ending = match result {
            Err(error) if error.is_interruption() => Ending::Interrupted,
            other => other?,
        };
        self.store.set("ending", ending.label())?;
        Ok(ending)
    }

    fn rounds(&mut self, show: &mut dyn FnMut(Event)) -> Result<Ending, Error> {
        let warm_up = self.plan.warm_up_rounds();
        let rule = self.plan.experiment.timing.looks.clone();
        let conditions = self.plan.conditions.len();
        let mut open: BTreeSet<(usize, usize)> = (0..self.plan.experiment.workloads.len())
            .flat_map(|workload| (0..conditions).map(move |condition| (workload, condition)))
            .collect();
        for round in 0..warm_up + rule.rounds_max() {
            if let Some(limit) = self.round(round, &open, show)? {
                return Ok(Ending::Limit(limit));
            }
            let counted = (round + 1).saturating_sub(warm_up);
            if !rule.is_look(counted) {
                continue;
            }
            let analysis = Analysis::of_rounds(self.plan, self.store, Some(round), self.further)?;
            open = analysis.open(self.plan);
            if open.is_empty() {
                return Ok(Ending::Decided);
            }
            let left = rule.rounds_max() - counted;
            show(Event::Note(format!(
                "after {counted} rounds {} of {} comparisons are decided{}",
                analysis.decided_count(),
                analysis.rows_count(),
                if left > 0 { "; going on" } else { "" }
            )));
        }
        Ok(Ending::AllRounds)
    }

    /// Runs what is missing of a round. Gives the limit that was reached, if one was.
    fn round(
        &mut self,
        round: u32,
        open: &BTreeSet<(usize, usize)>,
        show: &mut dyn FnMut(Event),
    ) -> Result<Option<Limit>, Error> {
        let steps: Vec<Step> = self
            .plan
            .round(round)
            .into_iter()
            .filter(|step| open.contains(&(self.plan.cells[step.cell].workload, step.condition)))
            .filter(|step| self.is_available(step.condition))
            .collect();
        self.idle = None;
        let pairs = steps.chunk_by(|a, b| a.cell == b.cell);
        for pair in pairs {
            let cell = &self.plan.cells[pair[0].cell].id;
            let missing = pair.iter().filter(|step| !self.done.contains(&self.key(step))).count();
            if missing == 0 {
                continue;
            }
            if missing < pair.len() {
                // The interruption lies between its conditions: they are no neighbours any more.
                self.store.forget(round, cell)?;
            }
            for step in pair {
                if self.stop.is_requested() {
                    return Err(base::Error::Interrupted.into());
                }
                if let Some(limit) = self.limit()? {
                    return Ok(Some(limit));
                }
                self.program.as_ref().map_or(Ok(()), SameProgram::check)?;
                show(self.announce(&self.progress(step, open), step)?);
                self.step(step, show)?;
            }
        }
        Ok(None)
    }

    fn is_available(&self, condition: usize) -> bool {
        self.plan.experiment.engine.is_synthetic() || self.places[condition].is_ok()
    }

    fn key(&self, step: &Step) -> (u32, String, String) {
        let condition = self.plan.conditions[step.condition].id.clone();
        (step.round, self.plan.cells[step.cell].id.clone(), condition)
    }

    fn limit(&self) -> Result<Option<Limit>, Error> {
        let limits = &self.plan.experiment.limits;
        let elapsed = self.earlier + self.begun.elapsed();
        let is_late = self.deadline.is_some_and(|deadline| Instant::now() > deadline);
        if is_late || limits.time.is_some_and(|limit| elapsed > limit) {
            return Ok(Some(Limit::Time));
        }
        let Some(limit) = limits.written_bytes else { return Ok(None) };
        Ok((self.store.written_bytes()? >= limit).then_some(Limit::Written))
    }

    fn progress(&self, step: &Step, open: &BTreeSet<(usize, usize)>) -> Progress {
        let timing = &self.plan.experiment.timing;
        let warm_up = self.plan.warm_up_rounds();
        let counted = (step.round + 1).saturating_sub(warm_up);
        let looks = timing.looks.rounds();
        let look = looks.iter().copied().find(|look| *look >= counted).unwrap_or(counted);
        let needed = |cell: &loads::workload::Cell| {
            let of_cell = open.range((cell.workload, 0)..=(cell.workload, usize::MAX));
            of_cell.filter(|(_, condition)| self.is_available(*condition)).count()
        };
        let per_round: usize = self.plan.cells.iter().map(needed).sum();
        // Rounds before this one may have had more.
        let before = self.done.iter().filter(|(round, _, _)| *round < step.round).count() as u64;
        let rounds_left = u64::from((warm_up + look).saturating_sub(step.round));
        let total = before + rounds_left * per_round as u64;
        let done = (self.done.len() as u64).min(total);
        let per_run = if self.runs_here >= 3 {
            self.begun.elapsed().as_secs_f64() / f64::from(self.runs_here)
        } else {
            (timing.run + timing.ramp + RUN_OVERHEAD).as_secs_f64()
        };
        let begun = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Progress {
            round: counted,
            cell: self.plan.cells[step.cell].id.clone(),
            condition: self.plan.conditions[step.condition].id.clone(),
            done,
            total,
            seconds_left: (total - done) as f64 * per_run,
            begun_unix_ms: begun.as_millis() as i64,
        }
    }

    /// Reports that a run begins, and records it for readers of the database.
    fn announce(&self, progress: &Progress, step: &Step) -> Result<Event, Error> {
        self.store.set_progress(progress)?;
        let cell = &self.plan.cells[step.cell];
        let workload = &self.plan.experiment.workloads[cell.workload].name;
        let condition = &self.plan.conditions[step.condition].label;
        Ok(Event::Begin {
            round: progress.round,
            what: format!("{workload} {}: {condition}", cell.label()),
            done: progress.done,
            total: progress.total,
            seconds_left: progress.seconds_left,
        })
    }

    /// Makes one run and keeps it.
    fn step(&mut self, step: &Step, show: &mut dyn FnMut(Event)) -> Result<(), Error> {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut attempts = 0;
        let mut ramp = self.plan.experiment.timing.ramp;
        let mut discarded = Intervals::default();
        let (mut result, marks) = loop {
            attempts += 1;
            let (result, marks) = self.attempt(step, ramp);
            let is_transient = marks.contains(&Mark::Transient);
            if matches!(result, Err(base::Error::Interrupted)) {
                return Err(base::Error::Interrupted.into());
            }
            if !is_transient || attempts == ATTEMPTS_MAX {
                break (result, marks);
            }
            // An attempt that stalled is repeated: what it was must not vanish with it.
            if let Ok(outcome) = &result {
                discarded = discarded.and(Intervals::of(&outcome.series, outcome.interval_s()));
            }
            ramp += self.plan.experiment.timing.run;
        };
        if let (Ok(outcome), true) = (&mut result, discarded.all > 0) {
            let (all, stalled) = (discarded.all as f64, discarded.stalled as f64);
            outcome.further.insert("discarded_intervals".into(), all);
            outcome.further.insert("discarded_intervals_stalled".into(), stalled);
            let longest = discarded.longest_seconds;
            outcome.further.insert("discarded_stall_longest_s".into(), longest);
        }
        let facts =
            RunFacts { step, started_unix_ms: started.as_millis() as i64, attempts, marks: &marks };
        self.store.add(self.plan, &facts, result.as_ref())?;
        self.done.insert(self.key(step));
        self.runs_here += 1;
        let Err(error) = result else {
            self.failures.remove(&step.condition);
            return Ok(());
        };
        let failures = self.failures.entry(step.condition).or_default();
        *failures += 1;
        let condition = &self.plan.conditions[step.condition].label;
        show(Event::Note(format!("{condition}: {error}")));
        if *failures >= FAILURES_MAX {
            let what = format!("{condition} failed {FAILURES_MAX} times in a row: {error}");
            return Err(Error::Results(what));
        }
        Ok(())
    }

    fn attempt(
        &mut self,
        step: &Step,
        ramp: Duration,
    ) -> (Result<Outcome, base::Error>, Vec<Mark>) {
        let place = self.places[step.condition].as_ref().ok();
        let at = place.map(|place| place as &dyn loads::place::Place);
        let work = Planned::new(self.plan, step).work_after(ramp, at);
        let source = place.map_or(Source::Uncached, |place| place.source().clone());
        let directory = place.map(|place| place.directory().to_path_buf());
        if let (None, Some(meter)) = (&self.idle, &self.meter) {
            self.idle = Some(idle(meter, self.plan.experiment.timing.run));
        }
        if let Err(error) = place.map_or(Ok(()), Place::prepare) {
            return (Err(error), Vec::new());
        }
        let is_quiet = self.settle(step, directory, &source);
        let before = Look::now(&source);
        let cpu_before = self.meter.as_ref().map(Meter::before);
        let group = || Some(place?.group()?.cgroup().used()?.as_secs_f64());
        let group_before = group();
        let mut result = self.engine.run(&work, &self.stop);
        if let (Some(meter), Some(before), Ok(outcome)) = (&self.meter, &cpu_before, &mut result) {
            let spent = meter.spent(before, &meter.after());
            outcome.further.extend(spent.samples());
            let of_container = group().zip(group_before).map(|(after, before)| after - before);
            outcome.further.extend(of_container.map(|s| ("cpu_container_s".to_string(), s)));
            outcome.further.insert("cpu_operations".into(), outcome.operations());
            let idle = self.idle.as_ref();
            let busy = idle.and_then(|idle| Some(idle.busy?.seconds / idle.seconds));
            outcome.metrics.extend(spent.metrics(busy, outcome));
            outcome.further.extend(busy.map(|busy| ("cpu_idle_busy".to_string(), busy)));
            let hosts = idle.into_iter().flat_map(|idle| &idle.hosts);
            let by_second = hosts.map(|(name, it)| {
                (format!("cpu_host_{name}_idle_busy"), it.busy.seconds / it.seconds)
            });
            outcome.further.extend(by_second);
        }
        let after = Look::now(&source);
        let mut marks = match &result {
            Ok(_) if self.plan.experiment.engine.is_synthetic() => Vec::new(),
            Ok(outcome) => self.judge(step, &work, (outcome, &before, &after)),
            Err(_) => Vec::new(),
        };
        if !is_quiet {
            marks.push(Mark::Unsettled);
        }
        (result, marks)
    }

    /// Lets what runs before this one wrote reach storage; gives whether all is quiet.
    fn settle(&self, step: &Step, place: Option<PathBuf>, source: &Source) -> bool {
        let (Some(place), Some(data)) = (place, &self.data) else { return true };
        let writes = self.plan.workload(step.cell).writes();
        if !self.is_unsettled.replace(writes) {
            return true;
        }
        let exists = |path: &&Path| path.is_dir();
        let directories: Vec<&Path> =
            [place.as_path(), data.as_path()].into_iter().filter(exists).collect();
        let devices: &[Numbers] = if let Source::Devices(devices) = source { devices } else { &[] };
        settle(&directories, devices)
    }

    fn judge(
        &self,
        step: &Step,
        work: &Work<'_>,
        (outcome, before, after): (&Outcome, &Look, &Look),
    ) -> Vec<Mark> {
        let claim = Claim {
            read_bytes_per_s: outcome.read_bytes_per_s,
            written_bytes_per_s: outcome.written_bytes_per_s,
            load_seconds: outcome.load_seconds,
        };
        let mut marks = marks(before, after, &claim);
        if !work.workload.is_direct {
            // Through the page cache it may well come from there: that is what was asked for.
            marks.retain(|mark| !matches!(mark, Mark::Cached | Mark::ReadsUnknown));
        }
        if self.plan.scheme(step.condition).is_some() {
            // Copies and journals are the load's too, and how many there are is what is asked.
            marks.retain(|mark| *mark != Mark::OtherTraffic);
        }
        marks.extend(outcome.marks.iter().cloned());
        // What is shorter than a second swings by itself.
        let has_seconds = outcome.interval_s() >= 1.0;
        let settled = if has_seconds { steadiness(&outcome.series) } else { Steadiness::Unknown };
        match settled {
            Steadiness::Steady => {}
            Steadiness::Transient { .. } => marks.push(Mark::Transient),
            Steadiness::Unknown => marks.push(Mark::SteadinessUnknown),
        }
        let value = |metric| outcome.metrics.get(&metric).copied();
        let is_closed = work.cell.rate == 0;
        let pair = value(Metric::Iops).zip(value(Metric::Latency)).filter(|_| is_closed);
        if let Some((rate, latency)) = pair {
            let asked = f64::from(work.cell.jobs * work.cell.depth);
            if (rate * latency / 1e6 / asked - 1.0).abs() > LITTLE_MAX {
                marks.push(Mark::Little);
            }
        }
        marks
    }
}

/// What is used while no run is made.
fn idle(meter: &Meter, run: Duration) -> Spent {
    let before = meter.before();
    std::thread::sleep(run.min(IDLE_LOOK_MAX));
    meter.spent(&before, &meter.after())
}

#[cfg(test)]
mod tests;
