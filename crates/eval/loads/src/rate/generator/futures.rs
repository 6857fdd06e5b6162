//! Requests as tasks on devices of the block layer: of a network, of memory, behind a queue.

use super::LoadError;
use super::job::{CATCH_UP_MAX, DRAIN_TIME_MAX, Ended, Job, STOP_PERIOD};
use super::schedule::Schedule;
use super::times::{Begun, Times};
use block::Device;
use reactor::local::Notify;
use reactor::time::{Instant, now, sleep_until, timeout_at};
use reactor::{Buffer, Direction, Shared};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

struct State {
    job: Job,
    devices: Vec<Rc<dyn Device>>,
    in_flight: Cell<u32>,
    ios: Cell<u64>,
    failure: RefCell<Option<block::Error>>,
    times: RefCell<Times>,
    /// Something has completed.
    completed: Notify,
    payload: Shared,
}

/// Loads until the end, and waits for what is under way then.
pub(super) async fn run(
    job: Job,
    devices: Vec<Rc<dyn Device>>,
    schedule: Schedule,
    times: Times,
    payload: Buffer,
) -> Result<Ended, LoadError> {
    let state = Rc::new(State {
        job,
        devices,
        in_flight: Cell::new(0),
        ios: Cell::new(0),
        failure: RefCell::new(None),
        times: RefCell::new(times),
        completed: Notify::new(),
        payload: payload.freeze(),
    });
    state.generate(schedule).await;
    let deadline = now() + DRAIN_TIME_MAX;
    while state.in_flight.get() > 0 && state.failure.borrow().is_none() {
        if timeout_at(deadline, Box::pin(state.completed.notified())).await.is_err() {
            break;
        }
    }
    if let Some(error) = state.failure.take() {
        return Err(error.into());
    }
    let none = Times::new(deadline, deadline)?;
    Ok(Ended {
        times: state.times.replace(none),
        submissions: reactor::submissions(),
        ios: state.ios.get(),
        unfinished: state.in_flight.get(),
        has_registered_memory: false,
    })
}

impl State {
    async fn generate(self: &Rc<Self>, mut schedule: Schedule) {
        let control = &self.job.control;
        let end = self.times.borrow().end();
        let slack = self.job.load.parameters.slack();
        loop {
            let due = schedule.due(now());
            if control.is_stopping() || due >= end || now() >= end + CATCH_UP_MAX {
                return;
            }
            if self.in_flight.get() >= self.job.load.room() {
                // Nothing is made for long if the device hangs: an end has to be seen all the same.
                let waited = Box::pin(self.completed.notified());
                let _ = timeout_at(now() + STOP_PERIOD, waited).await;
            } else if now() < due {
                sleep_until((due + slack).min(now() + STOP_PERIOD)).await;
            } else {
                self.send(&mut schedule, due);
                let is_due = || now() >= schedule.due(now());
                if self.in_flight.get() < self.job.load.room() && is_due() {
                    // One turn of the loop, so that the next batch is a system call of its own. Without
                    // one the call that waits submits this batch, too.
                    reactor::yield_now().await;
                }
            }
        }
    }

    fn send(self: &Rc<Self>, schedule: &mut Schedule, due: Instant) {
        let begun = Begun { due, sent: now() };
        let batch = self.job.load.parameters.batch;
        for _ in 0..batch {
            let (unit, offset, direction) = schedule.request();
            self.start(&self.devices[unit.device], offset, direction, begun);
        }
        schedule.batch_is_made();
        self.times.borrow_mut().sent(begun, batch);
    }

    /// Starts a request; its task counts it when it is done.
    fn start(
        self: &Rc<Self>,
        device: &Rc<dyn Device>,
        offset: u64,
        direction: Direction,
        begun: Begun,
    ) {
        self.in_flight.set(self.in_flight.get() + 1);
        let state = Rc::clone(self);
        match direction {
            Direction::Write => {
                let io = device.write(offset, self.payload.clone().into());
                drop(reactor::spawn(async move { state.complete(io.await.err(), begun) }));
            }
            Direction::Read => {
                let io = device.read(offset, self.job.load.parameters.request_bytes as usize);
                drop(reactor::spawn(async move { state.complete(io.await.err(), begun) }));
            }
        }
    }

    fn complete(&self, error: Option<block::Error>, begun: Begun) {
        let done = now();
        self.in_flight.set(self.in_flight.get() - 1);
        self.ios.set(self.ios.get() + 1);
        self.job.control.set_done(self.job.index, self.ios.get());
        if let Some(error) = error {
            self.failure.borrow_mut().get_or_insert(error);
            self.job.control.stop();
        } else {
            self.times.borrow_mut().done(begun, done);
        }
        let in_flight = self.in_flight.get();
        if in_flight == 0 || in_flight + 1 == self.job.load.room() {
            self.completed.notify();
        }
    }
}
