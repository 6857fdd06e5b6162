//! Requests that go straight to the kernel, or nowhere: a loop of one system call for each batch and
//! each wake-up.
//!
//! The thread sleeps in the call that submits, until something completes or the next batch is due. It
//! looks at the clock once after each: whatever has come by then is seen at that moment, and whatever is due
//! by then is sent.

use super::LoadError;
use super::job::{CATCH_UP_MAX, DRAIN_TIME_MAX, Ended, Job, STOP_PERIOD};
use super::load::Load;
use super::schedule::Schedule;
use super::source::Target;
use super::times::{Begun, Times};
use reactor::time::{Instant, now};
use reactor::{Buffer, Direction, FileQueue, FileQueueConfig};
use std::io;

/// Most requests of several batches that go with one system call.
const TOGETHER_MAX: u32 = 64;

/// A request under way.
#[derive(Clone, Copy, Debug)]
struct Request {
    begun: Begun,
    offset: u64,
    direction: Direction,
}

/// What the requests of one job need, made before the first is due.
pub(super) struct Way {
    queue: FileQueue,
    /// By device: its index in the queue; none does nothing.
    files: Vec<Option<usize>>,
}

struct Straight {
    job: Job,
    queue: FileQueue,
    files: Vec<Option<usize>>,
    /// Batches that can go with one system call.
    together: u32,
    /// By slot.
    requests: Vec<Request>,
    schedule: Schedule,
    times: Times,
    ios: u64,
    failure: Option<LoadError>,
}

/// Batches of so many requests that can go with one system call.
fn together(batch: u32) -> u32 {
    (TOGETHER_MAX / batch).max(1)
}

impl Way {
    pub(super) fn new(load: &Load, targets: &[Target], payload: Buffer) -> io::Result<Self> {
        let (mut files, mut opened) = (Vec::new(), Vec::new());
        for target in targets {
            files.push(match target {
                Target::File(file) => {
                    opened.push(file.clone());
                    Some(opened.len() - 1)
                }
                Target::Nothing => None,
            });
        }
        // A batch is never split, so that there is room for one at least.
        let (batch, depth) =
            (load.parameters.batch, load.parameters.depth_max.max(load.parameters.batch));
        let batch = batch * together(batch);
        let queue =
            FileQueue::new(opened, FileQueueConfig { depth, batch, payload, engine: None })?;
        Ok(Self { queue, files })
    }

    /// Loads until the end, and waits for what is under way then.
    pub(super) fn run(
        self,
        job: Job,
        schedule: Schedule,
        times: Times,
    ) -> Result<Ended, LoadError> {
        let Self { queue, files } = self;
        let nothing = Begun { due: times.end(), sent: times.end() };
        let request = Request { begun: nothing, offset: 0, direction: Direction::Read };
        let together = together(job.load.parameters.batch);
        let requests = vec![request; queue.depth() as usize];
        let mut straight = Straight {
            job,
            queue,
            files,
            together,
            requests,
            schedule,
            times,
            ios: 0,
            failure: None,
        };
        straight.generate()?;
        straight.drain()?;
        let Straight { queue, times, ios, failure, .. } = straight;
        if let Some(error) = failure {
            return Err(error);
        }
        Ok(Ended {
            submissions: queue.submissions(),
            has_registered_memory: queue.has_registered_memory(),
            unfinished: queue.in_flight(),
            times,
            ios,
        })
    }
}

impl Straight {
    fn generate(&mut self) -> io::Result<()> {
        let end = self.times.end();
        let room = self.job.load.room();
        let slack = self.job.load.parameters.slack();
        let mut time = now();
        loop {
            let due = self.schedule.due(time);
            if self.job.control.is_stopping() || due >= end || time >= end + CATCH_UP_MAX {
                return Ok(());
            }
            let has_room = self.queue.in_flight() < room;
            if has_room && due <= time {
                time = self.send(due, time);
                let mut next = self.schedule.due(time);
                // What a wake-up that may be late has to serve goes with one system call.
                let most = if slack.is_zero() { 1 } else { self.together };
                let mut batches = 1;
                while batches < most && next <= time && next < end && self.queue.in_flight() < room
                {
                    time = self.send(next, time);
                    next = self.schedule.due(time);
                    batches += 1;
                }
                if self.queue.in_flight() < room && next <= time {
                    // The next batch is a system call of its own.
                    self.queue.submit()?;
                    time = self.reap();
                    continue;
                }
            }
            let next = self.schedule.due(time);
            let has_room = self.queue.in_flight() < room;
            let stop = time + STOP_PERIOD;
            self.queue.wait(if has_room { (next + slack).min(stop) } else { stop })?;
            time = self.reap();
        }
    }

    /// Queues the batch that was due; returns the time.
    fn send(&mut self, due: Instant, time: Instant) -> Instant {
        let begun = Begun { due, sent: time };
        let batch = self.job.load.parameters.batch;
        let mut nowhere = 0;
        for _ in 0..batch {
            let (unit, offset, direction) = self.schedule.request();
            let Some(file) = self.files[unit.device] else {
                nowhere += 1;
                continue;
            };
            let slot = self.queue.push(direction, file, offset);
            self.requests[slot as usize] = Request { begun, offset, direction };
        }
        self.schedule.batch_is_made();
        self.times.sent(begun, batch);
        if nowhere == 0 {
            return time;
        }
        let done = now();
        (0..nowhere).for_each(|_| self.times.done(begun, done));
        self.ios += nowhere;
        self.job.control.set_done(self.job.index, self.ios);
        done
    }

    /// Counts what has completed; returns when that was seen.
    fn reap(&mut self) -> Instant {
        let time = now();
        let before = self.ios;
        let bytes = self.job.load.parameters.request_bytes as i32;
        let Self { queue, requests, times, ios, failure, .. } = self;
        queue.reap(|slot, result| {
            let request = requests[slot as usize];
            *ios += 1;
            if result == bytes {
                times.done(request.begun, time);
            } else {
                failure.get_or_insert_with(|| request.failure(result, bytes));
            }
        });
        if self.ios > before {
            self.job.control.set_done(self.job.index, self.ios);
        }
        if self.failure.is_some() {
            self.job.control.stop();
        }
        time
    }

    fn drain(&mut self) -> io::Result<()> {
        let mut time = now();
        let deadline = time + DRAIN_TIME_MAX;
        while self.queue.in_flight() > 0 && self.failure.is_none() && time < deadline {
            self.queue.wait(deadline)?;
            time = self.reap();
        }
        Ok(())
    }
}

impl Request {
    /// Returns the error of one that was not done whole.
    fn failure(&self, result: i32, bytes: i32) -> LoadError {
        let what = match self.direction {
            Direction::Read => "read",
            Direction::Write => "write",
        };
        let offset = self.offset;
        if result < 0 {
            let cause = io::Error::from_raw_os_error(-result);
            return LoadError::Request { what, bytes, offset, cause };
        }
        LoadError::Short { what, done: result, bytes, offset }
    }
}
