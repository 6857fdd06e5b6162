//! One thread of load.

use super::super::{Mismatch, paths, pattern};
use super::PerfArgs;
use crate::load::Mode;
use eval::threads::{self, Done, Spread};
use hdrhistogram::Histogram;
use host::{Namespace, PathStatus};
use nvme::Nsid;
use reactor::{Buffer, Shared, time};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Longest latency that the histogram distinguishes, in ns.
const LATENCY_NS_MAX: u64 = 600_000_000_000;
/// How long requests may still run after the load has ended.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(5);

/// The region of the namespace, and its requests.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) nsid: Nsid,
    /// Number of requests that fit into the region.
    pub(crate) requests: u64,
}

/// State that the jobs and the main thread share.
#[derive(Debug)]
pub(crate) struct Control {
    connected: AtomicU64,
    /// Number of measured requests of each job so far.
    done: Done,
    is_measuring: AtomicBool,
    is_stopping: AtomicBool,
}

impl Control {
    /// Returns the control of this number of jobs.
    pub(crate) fn new(jobs: u16) -> Self {
        Self {
            connected: AtomicU64::new(0),
            done: Done::new(jobs.into()),
            is_measuring: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
        }
    }

    /// Returns the measured requests of all jobs so far.
    pub(crate) fn done(&self) -> u64 {
        self.done.sum()
    }

    pub(crate) fn connected(&self) -> u64 {
        self.connected.load(Ordering::Acquire)
    }

    pub(crate) fn measure(&self) {
        self.is_measuring.store(true, Ordering::Relaxed);
    }

    pub(crate) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }
}

/// The task of a thread.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) index: u64,
    pub(crate) args: PerfArgs,
    pub(crate) region: Region,
    pub(crate) control: Arc<Control>,
}

/// The measurements of one job.
pub(crate) struct JobResult {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) latency_ns: Histogram<u64>,
    /// With several paths, the state of each at the end.
    pub(crate) paths: Vec<PathStatus>,
    pub(crate) reconnects: u64,
    pub(crate) verified: u64,
}

struct State {
    job: Job,
    namespace: Namespace,
    reads: Cell<u64>,
    writes: Cell<u64>,
    latency_ns: RefCell<Histogram<u64>>,
    /// The next sequential request of this job.
    next: Cell<u64>,
    random: Spread,
    /// The written requests, if they are read back later.
    written: RefCell<Vec<bool>>,
    /// The content of writes without --verify.
    payload: Shared,
}

/// Connects, runs the load, and verifies.
pub(crate) async fn run(job: Job) -> anyhow::Result<JobResult> {
    let control = Arc::clone(&job.control);
    let result = load(job).await;
    if result.is_err() {
        // A failure of one job also ends the others.
        control.stop();
    }
    result
}

async fn load(job: Job) -> anyhow::Result<JobResult> {
    threads::pin(&job.args.cpus, job.index as usize)?;
    let (controllers, namespace) =
        paths::open_namespace(&job.args.connect, &job.args.paths, job.region.nsid).await?;
    let state = Rc::new(State::new(job, namespace)?);
    state.job.control.connected.fetch_add(1, Ordering::Release);
    let tasks: Vec<_> = (0..state.job.args.iodepth)
        .map(|_| {
            let state = Rc::clone(&state);
            reactor::spawn(async move {
                let result = state.work().await;
                if result.is_err() {
                    state.job.control.stop();
                }
                result
            })
        })
        .collect();
    while !state.job.control.is_stopping() {
        time::sleep(super::WATCH_PERIOD).await;
    }
    let deadline = time::now() + DRAIN_TIME_MAX;
    let mut failure = None;
    for task in tasks {
        match time::timeout_at(deadline, task).await {
            Ok(Ok(Err(error))) => failure = failure.or(Some(error)),
            Ok(_) => {}
            Err(_) => {
                anyhow::bail!("requests were still unanswered {DRAIN_TIME_MAX:?} after the end")
            }
        }
    }
    if let Some(error) = failure {
        return Err(error);
    }
    let verified = state.read_back().await?;
    let result = JobResult {
        reads: state.reads.get(),
        writes: state.writes.get(),
        latency_ns: state.latency_ns.borrow().clone(),
        paths: state.namespace.paths(),
        reconnects: controllers.reconnects(),
        verified,
    };
    drop(state);
    controllers.disconnect().await?;
    Ok(result)
}

impl State {
    fn new(job: Job, namespace: Namespace) -> anyhow::Result<Self> {
        let seed = threads::seed_of_job(job.args.seed, job.index);
        let verifies_writes = job.args.verify && job.args.rw.writes();
        let written = vec![false; if verifies_writes { job.region.requests as usize } else { 0 }];
        let mut payload = Buffer::zeroed(job.args.bs as usize);
        pattern::fill(&mut payload, 0, job.args.seed);
        let next = job.region.requests / u64::from(job.args.numjobs) * job.index;
        Ok(Self {
            namespace,
            reads: Cell::new(0),
            writes: Cell::new(0),
            latency_ns: RefCell::new(Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3)?),
            next: Cell::new(next),
            random: Spread::new(seed),
            written: RefCell::new(written),
            payload: payload.freeze(),
            job,
        })
    }

    fn next_request(&self) -> u64 {
        let requests = self.job.region.requests;
        if self.job.args.rw.is_random() {
            return self.random.below(requests);
        }
        let request = self.next.get();
        self.next.set(if request + 1 >= requests { 0 } else { request + 1 });
        request
    }

    fn next_is_write(&self) -> bool {
        match self.job.args.rw {
            Mode::Read | Mode::Randread => false,
            Mode::Write | Mode::Randwrite => true,
            Mode::Randrw => self.random.next() % 100 >= u64::from(self.job.args.rwmixread),
        }
    }

    /// Keeps one request in flight until the end.
    async fn work(&self) -> anyhow::Result<()> {
        let args = &self.job.args;
        let control = &self.job.control;
        let mut buffer = Buffer::with_capacity(args.bs as usize);
        buffer.set_len(args.bs as usize);
        let mut before = time::now();
        while !control.is_stopping() {
            let request = self.next_request();
            let offset_bytes = request * args.bs;
            let is_write = self.next_is_write();
            if is_write {
                self.namespace.write(offset_bytes, self.payload_for(request)).await?;
            } else {
                buffer = self.namespace.read(offset_bytes, buffer).await?;
            }
            let now = time::now();
            let latency_ns = now.since(before).as_nanos() as u64;
            before = now;
            if control.is_measuring.load(Ordering::Relaxed) {
                let count = if is_write { &self.writes } else { &self.reads };
                count.set(count.get() + 1);
                control.done.set(self.job.index as usize, self.reads.get() + self.writes.get());
                self.latency_ns.borrow_mut().saturating_record(latency_ns);
            }
            // While writes are in flight, the expected content of a read is unknown.
            if args.verify && !args.rw.writes() {
                pattern::check(&buffer, offset_bytes, args.seed)?;
                before = time::now();
            }
        }
        Ok(())
    }

    fn payload_for(&self, request: u64) -> Shared {
        let args = &self.job.args;
        if !args.verify {
            return self.payload.clone();
        }
        self.written.borrow_mut()[request as usize] = true;
        let mut bytes = Buffer::with_capacity(args.bs as usize);
        bytes.set_len(args.bs as usize);
        pattern::fill(&mut bytes, request * args.bs, args.seed);
        bytes.freeze()
    }

    /// Reads the written requests back and compares them. Returns their number.
    async fn read_back(&self) -> Result<u64, anyhow::Error> {
        let args = &self.job.args;
        let written = self.written.take();
        if written.is_empty() {
            return Ok(0);
        }
        self.namespace.flush().await?;
        let mut verified = 0;
        for (request, _) in written.iter().enumerate().filter(|(_, is_written)| **is_written) {
            let offset_bytes = request as u64 * args.bs;
            let read = self.namespace.read(offset_bytes, Buffer::zeroed(args.bs as usize)).await?;
            let verdict: Result<(), Mismatch> = pattern::check(&read, offset_bytes, args.seed);
            verdict?;
            verified += 1;
        }
        Ok(verified)
    }
}
