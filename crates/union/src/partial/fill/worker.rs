//! The thread that fills: it comes after everybody else, and does nothing by itself.
//!
//! Each step is one call that the union's own thread sends, so that who decides (what is filled, how
//! fast, when to pause) and who may wait for a disk are two: a step never holds anything that a
//! request could want.

use std::cell::{Cell, RefCell};

use ring::File;
use ring::mailbox::{self, Receiver, Sender};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::commit::errno_of;

/// Calls that may wait: each union that fills has one under way at a time.
const CALLS_MAX: usize = 64;
/// Bytes that are copied through memory at a time, where the kernel does not copy.
const BUFFER_BYTES: usize = 256 << 10;

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
            // Nobody waits for the answer any more: then it is not needed.
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
        let config = ring::Config { entries: 8, ..ring::Config::default() };
        ring::thread::spawn("fill", &config, move || serve(receiver)).map_err(errno_of)?;
        Ok(calls.insert(sender).clone())
    }
}

async fn serve(mut calls: Receiver<Call>) {
    if let Err(error) = ring::thread::yield_to_all() {
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
    /// Whether holes of the source are left out.
    pub(super) keeps_holes: bool,
}

impl Step {
    /// Copies it. Answers how many bytes it stands for, which are fewer than asked for where the
    /// data ends.
    pub(super) fn run(self) -> Result<u64, Errno> {
        let from = self.from.handle().as_fd().map_err(errno_of)?;
        let to = self.to.handle().as_fd().map_err(errno_of)?;
        let mut end = self.position + self.length;
        let mut at = self.position;
        if self.keeps_holes {
            match rustix::fs::seek(from, SeekFrom::Data(at)) {
                Ok(data) if data >= end => return Ok(self.length),
                Ok(data) => {
                    at = at.max(data);
                    let hole = rustix::fs::seek(from, SeekFrom::Hole(at)).unwrap_or(end);
                    end = end.min(hole);
                }
                Err(Errno::NXIO) => return Ok(self.length),
                // A file system that knows of no holes.
                Err(_) => {}
            }
        }
        while at < end {
            let to_offset = self.offset + (at - self.position);
            let left = (end - at) as usize;
            let (mut source, mut target) = (at, to_offset);
            let copied =
                rustix::fs::copy_file_range(from, Some(&mut source), to, Some(&mut target), left);
            let count = match copied {
                Ok(0) => return Err(Errno::IO),
                Ok(count) => count as u64,
                Err(Errno::INTR) => 0,
                Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM) => {
                    through_memory(from, at, to, to_offset, left)?
                }
                Err(errno) => return Err(errno),
            };
            at += count;
        }
        self.to.start_write_back(self.offset, end - self.position);
        Ok(end - self.position)
    }
}

/// Copies at most a buffer's bytes.
fn through_memory(
    from: std::os::fd::BorrowedFd<'_>,
    at: u64,
    to: std::os::fd::BorrowedFd<'_>,
    to_offset: u64,
    left: usize,
) -> Result<u64, Errno> {
    let mut buffer = vec![0; left.min(BUFFER_BYTES)];
    let count = rustix::io::pread(from, &mut buffer[..], at)?;
    if count == 0 {
        // It has become shorter.
        return Err(Errno::IO);
    }
    let mut written = 0;
    while written < count {
        match rustix::io::pwrite(to, &buffer[written..count], to_offset + written as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(more) => written += more,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(count as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::FileExt;

    fn ring_file(file: &std::fs::File) -> File {
        File::from_handle(ring::Handle::from_fd(OwnedFd::from(file.try_clone().unwrap())))
    }

    // Goal: steps of any size over a file with holes make a copy with the same bytes, each step
    // standing for at least one byte.
    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn steps_copy_everything(
            extents in prop::collection::vec((0u64..40, 1u64..9, 1u8..255), 0..8),
            step in 1u64..50_000,
            keeps_holes: bool,
        ) {
            let (from, to) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
            let size = 50 * 4096;
            from.set_len(size).unwrap();
            to.set_len(size).unwrap();
            for (start, blocks, byte) in extents {
                from.write_all_at(&vec![byte; (blocks * 4096) as usize], start * 4096).unwrap();
            }
            let mut at = 0;
            while at < size {
                let length = step.min(size - at);
                let (from, to) = (ring_file(&from), ring_file(&to));
                let step = Step { from, position: at, to, offset: at, length, keeps_holes };
                let done = step.run().unwrap();
                prop_assert!(done > 0 && done <= length);
                at += done;
            }
            let (mut one, mut two) = (vec![0; size as usize], vec![1; size as usize]);
            from.read_exact_at(&mut one, 0).unwrap();
            to.read_exact_at(&mut two, 0).unwrap();
            prop_assert_eq!(one, two);
        }
    }
}
