//! Threads with a reactor of their own.
//!
//! In a simulation there is only one thread: there, a "thread" is a task of the same executor.

mod compute;
mod idle;

pub use compute::compute;
pub use idle::yield_to_all;

use crate::context::try_with_context;
use crate::executor::Aborted;
use crate::runtime::{Config, Runtime};
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::task::{Context, Poll, Waker};

struct JoinState<T> {
    output: Option<Result<T, Aborted>>,
    waker: Option<Waker>,
}

struct Shared<T> {
    state: Mutex<JoinState<T>>,
    ended: Condvar,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, JoinState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(&self, output: Result<T, Aborted>) {
        let mut state = self.lock();
        if state.output.is_none() {
            state.output = Some(output);
        }
        let waker = state.waker.take();
        drop(state);
        self.ended.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Records an early end (a panic).
struct Guard<T>(Arc<Shared<T>>);

impl<T> Drop for Guard<T> {
    fn drop(&mut self) {
        self.0.finish(Err(Aborted));
    }
}

/// Awaits the output of a thread's future. Dropping it lets the thread continue.
pub struct JoinHandle<T> {
    shared: Arc<Shared<T>>,
}

impl<T> JoinHandle<T> {
    /// Waits for the thread, blocking this one: for threads that run no reactor.
    ///
    /// # Errors
    /// [`Aborted`] if the thread panicked; also in a simulation, where blocking would last forever,
    /// if the thread has not ended.
    pub fn join(self) -> Result<T, Aborted> {
        let mut state = self.shared.lock();
        loop {
            if let Some(output) = state.output.take() {
                return output;
            }
            if with_sim() {
                return Err(Aborted);
            }
            state = self.shared.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, Aborted>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.shared.lock();
        if let Some(output) = state.output.take() {
            return Poll::Ready(output);
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").finish_non_exhaustive()
    }
}

/// Returns whether this is a simulation.
fn with_sim() -> bool {
    try_with_context(|context| context.sim().is_some()) == Some(true)
}

/// Starts a thread called `name` (the kernel shows at most 15 bytes) that runs the future made by
/// `make` on a runtime of its own.
///
/// # Errors
/// Errors of making the thread or its reactor.
pub fn spawn<M, F>(name: &str, config: &Config, make: M) -> io::Result<JoinHandle<F::Output>>
where
    M: FnOnce() -> F + Send + 'static,
    F: Future + 'static,
    F::Output: Send + 'static,
{
    let state = Mutex::new(JoinState { output: None, waker: None });
    let shared = Arc::new(Shared { state, ended: Condvar::new() });
    let guard = Guard(Arc::clone(&shared));
    if with_sim() {
        drop(crate::executor::spawn(async move { guard.0.finish(Ok(make().await)) }));
        return Ok(JoinHandle { shared });
    }
    let config = config.clone();
    let home = crate::affinity::home();
    let (started, start) = mpsc::sync_channel(1);
    std::thread::Builder::new().name(name.into()).spawn(move || {
        crate::affinity::adopt(home);
        let mut runtime = match Runtime::new(&config) {
            Ok(runtime) => runtime,
            Err(error) => return drop(started.send(Err(error))),
        };
        let _ = started.send(Ok(()));
        let output = runtime.block_on(async move { make().await });
        // The thread's tasks end before its join does.
        drop(runtime);
        guard.0.finish(Ok(output));
    })?;
    start.recv().unwrap_or_else(|_| Err(io::Error::other("the thread died at its start")))?;
    Ok(JoinHandle { shared })
}
