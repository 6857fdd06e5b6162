//! The thread that fills: it has the lowest priority, and does nothing by itself.
//!
//! Each step is one call that the serving thread of the union sends. The serving thread decides
//! which files are filled, how fast, and when to pause; this thread may wait for a disk. A step
//! never holds anything that a request could need.

use std::cell::{Cell, RefCell};
use std::os::fd::BorrowedFd;

use reactor::File;
use reactor::mailbox::{self, Receiver, Sender};
use rustix::io::Errno;

use crate::copier::copy_range;
use crate::journal::Verifier;
use crate::sys;
use crate::sys::errno_of;

/// Calls that may wait: each union that fills has at most one in progress.
const CALLS_MAX: usize = 64;

type Call = Box<dyn FnOnce() + Send>;

/// The thread that all unions of a serving thread share; there while one of them fills.
#[derive(Debug, Default)]
pub(crate) struct Worker {
    calls: RefCell<Option<Sender<Call>>>,
    users: Cell<usize>,
}

/// Keeps the thread, which ends with the last of these.
#[derive(Debug)]
pub(super) struct InUse<'a>(&'a Worker);

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.0.users.set(self.0.users.get() - 1);
        if self.0.users.get() == 0 {
            *self.0.calls.borrow_mut() = None;
        }
    }
}

impl Worker {
    /// Keeps the thread from ending, once it has started.
    pub(super) fn keep(&self) -> InUse<'_> {
        self.users.set(self.users.get() + 1);
        InUse(self)
    }

    /// Runs a call on the thread and waits for what it answers.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> Result<T, Errno> + Send + 'static,
    ) -> Result<T, Errno> {
        let calls = self.sender()?;
        let (answer, mut wait) = mailbox::channel(1);
        let call: Call = Box::new(move || {
            // If no task waits for the answer any more, it is not needed.
            let _ = answer.try_send(call());
        });
        calls.send(call).await.map_err(|_| Errno::IO)?;
        wait.recv().await.unwrap_or(Err(Errno::IO))
    }

    fn sender(&self) -> Result<Sender<Call>, Errno> {
        let mut calls = self.calls.borrow_mut();
        if let Some(sender) = &*calls {
            return Ok(sender.clone());
        }
        let (sender, receiver) = mailbox::channel(CALLS_MAX);
        let config = reactor::Config { entries: 8, ..reactor::Config::default() };
        reactor::thread::spawn("fill", &config, move || serve(receiver)).map_err(errno_of)?;
        Ok(calls.insert(sender).clone())
    }
}

async fn serve(mut calls: Receiver<Call>) {
    if let Err(error) = reactor::thread::yield_to_all() {
        tracing::warn!(%error, "partial copies are filled at the priority of everything else");
    }
    while let Some(call) = calls.recv().await {
        call();
    }
}

/// A part of a file to be copied.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) from: File,
    pub(super) position: u64,
    pub(super) to: File,
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) method: CopyMethod,
}

/// How a part is copied.
#[derive(Debug)]
pub(super) enum CopyMethod {
    /// By the kernel; holes of the source are left out.
    WithHoles,
    /// Through memory: the source is a segment of the journal, and verified.
    Verified(Verifier),
    /// Only if the other file does not have the same bytes already.
    Compared,
}

impl Step {
    /// Copies it. Returns the number of bytes that are done, which is smaller than requested where
    /// the data ends.
    pub(super) fn run(self) -> Result<u64, Errno> {
        let from = self.from.handle().as_fd().map_err(errno_of)?;
        let to = self.to.handle().as_fd().map_err(errno_of)?;
        let done = match &self.method {
            CopyMethod::WithHoles => {
                copy_range(from, self.position, to, self.offset, self.length, true)?
            }
            CopyMethod::Verified(verifier) => {
                let wanted = self.position..self.position + self.length;
                let covered = verifier.cover(&wanted);
                let bytes = read(from, covered.start, covered.end - covered.start)?;
                if !verifier.is_intact(&covered, &bytes) {
                    let segment_position = self.position;
                    tracing::error!(
                        segment_position,
                        "stored bytes of a partial copy are not what was \
                        written: `tsumugi union check` says which files are concerned"
                    );
                    return Err(Errno::IO);
                }
                let skip = (wanted.start - covered.start) as usize;
                let part = &bytes[skip..skip + self.length as usize];
                sys::write_all_at(to, part, self.offset)?;
                self.length
            }
            CopyMethod::Compared => {
                let wanted = read(from, self.position, self.length)?;
                // A lower file must not change below a union.
                if wanted.len() as u64 != self.length {
                    return Err(Errno::IO);
                }
                if read(to, self.offset, self.length)? != wanted {
                    sys::write_all_at(to, &wanted, self.offset)?;
                }
                self.length
            }
        };
        self.to.start_write_back(self.offset, done);
        Ok(done)
    }
}

/// Reads `length` bytes, or fewer at the end of the file.
fn read(file: BorrowedFd<'_>, at: u64, length: u64) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; length as usize];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::io::pread(file, &mut bytes[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}
