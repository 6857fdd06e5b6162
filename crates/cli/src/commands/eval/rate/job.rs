//! One thread of load.

use super::RateArgs;
use super::device::{Attached, Source};
use crate::load::{self, Done, Mode, Spread};
use block::Device;
use hdrhistogram::Histogram;
use ring::local::Notify;
use ring::time::{Instant, now, sleep, sleep_until, timeout_at};
use ring::{Buffer, Shared};
use std::cell::{Cell, RefCell};
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Longest time that is told apart, in ns.
const TIME_NS_MAX: u64 = 600_000_000_000;
/// How long requests may still run when the load ends.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(5);
/// How often a job looks whether it may begin, and whether it has to end while it waits.
const LOOK_PERIOD: Duration = Duration::from_millis(1);
const STOP_PERIOD: Duration = Duration::from_millis(100);
/// How much later than it should a timer may fire, in ns: as little as the kernel allows (its default
/// is 50 µs).
const TIMER_SLACK_NS: NonZeroU64 = NonZeroU64::MIN;

/// What the jobs do together.
pub(super) struct Load {
    pub(super) args: RateArgs,
    pub(super) sources: Vec<Source>,
    pub(super) units: Vec<Unit>,
}

/// A part of a device that requests go to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unit {
    pub(super) device: usize,
    /// Byte at which it begins.
    pub(super) start: u64,
    /// Requests that fit.
    pub(super) requests: u64,
}

/// What the jobs and the main thread tell each other.
#[derive(Debug, Default)]
pub(super) struct Control {
    ready: AtomicU32,
    /// In ns: first request, first measured one, end; 0 until they are known.
    times: [AtomicU64; 3],
    /// Completed requests of each job.
    done: Done,
    is_stopping: AtomicBool,
}

impl Control {
    /// For so many jobs.
    pub(super) fn new(jobs: u32) -> Self {
        Self { done: Done::new(jobs as usize), ..Self::default() }
    }

    pub(super) fn ready(&self) -> u32 {
        self.ready.load(Ordering::Acquire)
    }

    pub(super) fn begin(&self, begin: Instant, start: Instant, end: Instant) {
        for (time, instant) in self.times.iter().zip([begin, start, end]).rev() {
            time.store(instant.as_ns(), Ordering::Release);
        }
    }

    fn times(&self) -> Option<[Instant; 3]> {
        let [begin, start, end] = &self.times;
        let begin = begin.load(Ordering::Acquire);
        let read = |time: &AtomicU64| Instant::from_ns(time.load(Ordering::Acquire));
        (begin > 0).then(|| [Instant::from_ns(begin), read(start), read(end)])
    }

    /// Requests of all jobs that completed.
    pub(super) fn done(&self) -> u64 {
        self.done.sum()
    }

    pub(super) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }
}

/// A thread's task.
pub(super) struct Job {
    pub(super) index: u32,
    pub(super) load: Arc<Load>,
    pub(super) control: Arc<Control>,
}

/// What one job saw of requests that were due while measuring.
pub(super) struct JobResult {
    /// From when they were due.
    pub(super) latency_ns: Histogram<u64>,
    /// From when they were submitted.
    pub(super) service_ns: Histogram<u64>,
    /// From when they were due until they were submitted.
    pub(super) lateness_ns: Histogram<u64>,
    /// System calls that submitted something: requests, and how often it were so many.
    pub(super) submissions: Vec<(usize, u64)>,
    /// All requests, those before measuring too.
    pub(super) ios_all: u64,
    /// Requests that were not answered in time at the end.
    pub(super) unfinished: u32,
    /// As the kernel has it.
    pub(super) timer_slack_ns: u64,
}

struct State {
    job: Job,
    devices: Vec<Rc<dyn Device>>,
    /// First measured moment, and the first that is not any more.
    window: Cell<[Instant; 2]>,
    in_flight: Cell<u32>,
    ios: Cell<u64>,
    failure: RefCell<Option<block::Error>>,
    latency_ns: RefCell<Histogram<u64>>,
    service_ns: RefCell<Histogram<u64>>,
    /// Something has completed.
    completed: Notify,
    random: Spread,
    payload: Shared,
}

/// Loads until the end.
pub(super) async fn run(job: Job) -> anyhow::Result<JobResult> {
    let control = Arc::clone(&job.control);
    let result = load(job).await;
    if result.is_err() {
        // One job's failure ends the others' too.
        control.stop();
    }
    result
}

async fn load(job: Job) -> anyhow::Result<JobResult> {
    load::pin(&job.load.args.cpus, job.index as usize)?;
    rustix::thread::set_current_timer_slack(Some(TIMER_SLACK_NS))?;
    let timer_slack_ns = rustix::thread::current_timer_slack()?;
    let mut attached = Vec::new();
    for source in &job.load.sources {
        attached.push(source.attach().await?);
    }
    let state = Rc::new(State::new(job, &attached)?);
    let control = &state.job.control;
    control.ready.fetch_add(1, Ordering::Release);
    let times = loop {
        if control.is_stopping() {
            anyhow::bail!("interrupted before it began");
        }
        if let Some(times) = control.times() {
            break times;
        }
        sleep(LOOK_PERIOD).await;
    };
    state.window.set([times[1], times[2]]);
    let mut generator = Generator::new(Rc::clone(&state), times[0])?;
    generator.run().await;
    let deadline = now() + DRAIN_TIME_MAX;
    while state.in_flight.get() > 0 && state.failure.borrow().is_none() {
        if timeout_at(deadline, Box::pin(state.completed.notified())).await.is_err() {
            break;
        }
    }
    if let Some(error) = state.failure.take() {
        return Err(error.into());
    }
    for controller in attached.into_iter().filter_map(|it| it.controller) {
        controller.disconnect().await?;
    }
    Ok(JobResult {
        latency_ns: state.latency_ns.borrow().clone(),
        service_ns: state.service_ns.borrow().clone(),
        lateness_ns: generator.lateness_ns,
        submissions: ring::submissions(),
        ios_all: state.ios.get(),
        unfinished: state.in_flight.get(),
        timer_slack_ns,
    })
}

fn histogram() -> anyhow::Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, TIME_NS_MAX, 3)?)
}

impl State {
    fn new(job: Job, attached: &[Attached]) -> anyhow::Result<Self> {
        let args = &job.load.args;
        let seed = load::seed_of_job(args.seed, job.index.into());
        let mut random = eval::random::Random::new(seed);
        let mut payload = Buffer::zeroed(args.bs as usize);
        for chunk in payload.chunks_exact_mut(8) {
            chunk.copy_from_slice(&random.next_u64().to_le_bytes());
        }
        Ok(Self {
            devices: attached.iter().map(|it| Rc::clone(&it.device)).collect(),
            window: Cell::new([Instant::from_ns(0); 2]),
            in_flight: Cell::new(0),
            ios: Cell::new(0),
            failure: RefCell::new(None),
            latency_ns: RefCell::new(histogram()?),
            service_ns: RefCell::new(histogram()?),
            completed: Notify::new(),
            random: Spread::new(random.next_u64()),
            payload: payload.freeze(),
            job,
        })
    }

    fn is_measured(&self, due: Instant) -> bool {
        let [start, end] = self.window.get();
        (start..end).contains(&due)
    }

    /// Starts a request; its task counts it when it is done.
    fn start(self: &Rc<Self>, unit: Unit, offset: u64, due: Instant, sent: Instant) {
        let args = &self.job.load.args;
        let device = &self.devices[unit.device];
        let is_write = match args.rw {
            Mode::Randrw => self.random.next() >> 63 == 1,
            mode => mode.writes(),
        };
        self.in_flight.set(self.in_flight.get() + 1);
        let state = Rc::clone(self);
        if is_write {
            let io = device.write(offset, self.payload.clone().into());
            drop(ring::spawn(async move { state.complete(io.await.err(), due, sent) }));
        } else {
            let io = device.read(offset, args.bs as usize);
            drop(ring::spawn(async move { state.complete(io.await.err(), due, sent) }));
        }
    }

    fn complete(&self, error: Option<block::Error>, due: Instant, sent: Instant) {
        let done = now();
        self.in_flight.set(self.in_flight.get() - 1);
        self.ios.set(self.ios.get() + 1);
        self.job.control.done.set(self.job.index as usize, self.ios.get());
        if let Some(error) = error {
            self.failure.borrow_mut().get_or_insert(error);
            self.job.control.stop();
        } else if self.is_measured(due) {
            self.latency_ns.borrow_mut().saturating_record(done.since(due).as_nanos() as u64);
            self.service_ns.borrow_mut().saturating_record(done.since(sent).as_nanos() as u64);
        }
        if self.in_flight.get() == 0 || self.in_flight.get() + 1 == self.room() {
            self.completed.notify();
        }
    }

    /// Requests under way from which on there is no room for another batch.
    fn room(&self) -> u32 {
        let args = &self.job.load.args;
        args.iodepth_max.saturating_sub(args.batch - 1).max(1)
    }
}

/// Makes requests when they are due.
struct Generator {
    state: Rc<State>,
    begin: Instant,
    /// Batches of this job so far.
    sent: u64,
    /// Requests of this job so far, for their units.
    turn: u64,
    /// By unit, for sequential loads.
    next: Vec<u64>,
    lateness_ns: Histogram<u64>,
}

impl Generator {
    fn new(state: Rc<State>, begin: Instant) -> anyhow::Result<Self> {
        let load = &state.job.load;
        let units = load.units.len() as u64;
        let jobs = u64::from(load.args.numjobs);
        // Jobs go through all units, each from another place.
        let first = u64::from(state.job.index) * units / jobs;
        let next = load.units.iter().map(|unit| unit.requests / jobs * u64::from(state.job.index));
        Ok(Self {
            begin,
            sent: 0,
            turn: first,
            next: next.collect(),
            lateness_ns: histogram()?,
            state,
        })
    }

    /// When the next batch is due: batches of all jobs are evenly spaced; without a rate, at once.
    fn due(&self) -> Instant {
        let args = &self.state.job.load.args;
        let Some(rate) = args.rate else { return now() };
        let index =
            u128::from(self.sent) * u128::from(args.numjobs) + u128::from(self.state.job.index);
        let ns = index * u128::from(args.batch) * 1_000_000_000 / u128::from(rate);
        self.begin + Duration::from_nanos(ns as u64)
    }

    async fn run(&mut self) {
        let state = Rc::clone(&self.state);
        let control = &state.job.control;
        let end = state.window.get()[1];
        loop {
            let due = self.due();
            if control.is_stopping() || due >= end {
                return;
            }
            if state.in_flight.get() >= state.room() {
                // Nothing is made for long if the device hangs: an end has to be seen all the same.
                let waited = Box::pin(state.completed.notified());
                let _ = timeout_at(now() + STOP_PERIOD, waited).await;
            } else if now() < due {
                sleep_until(due.min(now() + STOP_PERIOD)).await;
            } else {
                self.send(due);
                if state.in_flight.get() < state.room() && now() >= self.due() {
                    // One turn of the loop, so that the next batch is a system call of its own. Without
                    // one the call that waits submits this batch, too.
                    ring::yield_now().await;
                }
            }
        }
    }

    fn send(&mut self, due: Instant) {
        let state = Rc::clone(&self.state);
        let args = &state.job.load.args;
        let sent = now();
        for _ in 0..args.batch {
            let index = (self.turn % state.job.load.units.len() as u64) as usize;
            self.turn += 1;
            let unit = state.job.load.units[index];
            let request = if args.rw.is_random() {
                state.random.below(unit.requests)
            } else {
                let request = self.next[index];
                self.next[index] = if request + 1 >= unit.requests { 0 } else { request + 1 };
                request
            };
            state.start(unit, unit.start + request * args.bs, due, sent);
        }
        self.sent += 1;
        if state.is_measured(due) {
            let late = sent.since(due).as_nanos() as u64;
            let _ = self.lateness_ns.record_n(late.clamp(1, TIME_NS_MAX), u64::from(args.batch));
        }
    }
}
