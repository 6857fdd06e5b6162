//! Flushes that all waiting callers share.
//!
//! A flush covers every write that was acknowledged before it began. So one `fdatasync` serves all
//! flushes that are requested in one loop turn, or while another runs. No flush joins one that has
//! begun, because that one may miss its writes.
//!
//! A failed flush fails all requests that it served and every later one, on all threads. The system
//! reports a lost write only once, so a flush that succeeds after a failed one proves nothing. The
//! device's mark, if it has one, is written before a caller learns of the failure. A flush that the
//! system does not even begin, for want of a thread, is tried again.

use crate::error::{Access, Error};
use crate::future::IoFuture;
use crate::mark::FailureMark;
use reactor::File;
use reactor::local::{OneshotSender, oneshot};
use reactor::time::sleep;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Tries of a flush that does not begin, and the pause between them.
const TRIES_MAX: u32 = 500;
const TRY_PAUSE: Duration = Duration::from_millis(10);

/// The flushes of one thread's device.
#[derive(Debug)]
pub(crate) struct FlushGroup {
    file: File,
    is_running: Cell<bool>,
    waiting: RefCell<Vec<OneshotSender<Result<(), Error>>>>,
    state: Arc<FlushState>,
}

/// The state that the groups of all threads share.
#[derive(Debug, Default)]
pub(crate) struct FlushState {
    /// `fdatasync` calls so far.
    pub(crate) syncs: AtomicU64,
    /// The first failure, which is permanent.
    failure: OnceLock<Error>,
    /// Reports the failure to the next process.
    mark: Option<FailureMark>,
}

impl FlushState {
    pub(crate) fn with_mark(mark: FailureMark) -> Self {
        Self { mark: Some(mark), ..Self::default() }
    }
}

impl FlushGroup {
    pub(crate) fn new(file: File, state: Arc<FlushState>) -> Self {
        Self { file, is_running: Cell::new(false), waiting: RefCell::default(), state }
    }

    /// Flushes, together with others.
    pub(crate) fn flush(self: &Rc<Self>) -> IoFuture<()> {
        let (sender, receiver) = oneshot();
        self.waiting.borrow_mut().push(sender);
        if !self.is_running.replace(true) {
            // A separate task, which continues if the first caller is dropped.
            drop(reactor::spawn(Rc::clone(self).run()));
        }
        IoFuture::boxed(async move {
            receiver.await.unwrap_or_else(|_| Err(failed(io::ErrorKind::Interrupted.into())))
        })
    }

    async fn sync(&self) -> Result<(), Error> {
        let mut result = self.file.sync_data().await;
        for _ in 0..TRIES_MAX {
            if !result.as_ref().is_err_and(has_not_begun) {
                break;
            }
            sleep(TRY_PAUSE).await;
            result = self.file.sync_data().await;
        }
        if let Err(source) = result {
            self.state.failure.get_or_init(|| failed(source));
        }
        let Some(failure) = self.state.failure.get() else { return Ok(()) };
        if let Some(mark) = &self.state.mark
            && let Err(error) = mark.set().await
        {
            return Err(failed(io::Error::other(format!(
                "{failure}; do not open the device again before a reboot, because the mark of the \
                 failure cannot be written: {error}"
            ))));
        }
        Err(failure.clone())
    }

    async fn run(self: Rc<Self>) {
        loop {
            let served = std::mem::take(&mut *self.waiting.borrow_mut());
            if served.is_empty() {
                self.is_running.set(false);
                return;
            }
            self.state.syncs.fetch_add(1, Ordering::Relaxed);
            let result = self.sync().await;
            for sender in served {
                // The caller may have been dropped.
                let _ = sender.send(result.clone());
            }
        }
    }
}

/// Returns whether the call was not carried out, for want of a thread or by a signal. Nothing is lost
/// then.
fn has_not_begun(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn failed(source: io::Error) -> Error {
    Error::io(Access::Flush, 0, 0, source)
}

#[cfg(test)]
mod tests {
    use super::{FlushGroup, FlushState};
    use crate::mark::FailureMark;
    use reactor::{Config, File, Handle, OpenOptions, Runtime};
    use std::rc::Rc;
    use std::sync::Arc;

    /// Goal: after a failed flush no later one succeeds, for any caller, even if the system would
    /// report success. The mark for the next process is written before a caller learns of it.
    #[test]
    fn failures_last() {
        let (pipe, _) = std::io::pipe().unwrap();
        let bad = File::from_handle(Handle::from_fd(pipe.into()));
        let good = File::from_handle(Handle::from_fd(tempfile::tempfile().unwrap().into()));
        Runtime::new(&Config::default()).unwrap().block_on(async {
            let marks = tempfile::NamedTempFile::new().unwrap();
            let options = OpenOptions::READ_WRITE;
            let mark = FailureMark::new(File::open(marks.path(), options).unwrap(), 8);
            let state = Arc::new(FlushState::with_mark(mark));
            let bad = Rc::new(FlushGroup::new(bad, Arc::clone(&state)));
            let good = Rc::new(FlushGroup::new(good, state));
            good.flush().await.unwrap();
            assert_eq!(marks.as_file().metadata().unwrap().len(), 0, "marked without a failure");
            let (one, two) = (bad.flush(), bad.flush());
            assert_eq!(one.await.unwrap_err().to_errno(), libc::EINVAL);
            let marked = std::fs::read(marks.path()).unwrap();
            assert!(marked.len() == 24 && marked[8..] != [0; 16], "not marked: {marked:?}");
            assert_eq!(two.await.unwrap_err().to_errno(), libc::EINVAL);
            assert_eq!(good.flush().await.unwrap_err().to_errno(), libc::EINVAL);
        });
    }
}
