//! Copying a file's bytes.
//!
//! A clone of the whole file first: it takes no space and no time. Else in steps of 1 MiB through
//! the reactor, skipping holes, with the next step read while the last one is written.

use std::os::fd::BorrowedFd;

use ring::{Buffer, File};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::commit::errno_of;

/// Bytes of a step.
const STEP_BYTES: u64 = 1 << 20;

/// Copies the first `length` of `size` bytes into an empty file, and gives it that length. Answers
/// whether it is a clone.
pub(super) async fn copy(from: &File, to: &File, length: u64, size: u64) -> Result<bool, Errno> {
    if length == 0 {
        return Ok(false);
    }
    let source = from.handle().as_fd().map_err(errno_of)?;
    let target = to.handle().as_fd().map_err(errno_of)?;
    if rustix::fs::ioctl_ficlone(target, source).is_ok() {
        if length < size {
            rustix::fs::ftruncate(target, length)?;
        }
        return Ok(true);
    }
    let mut at = 0;
    while at < length {
        let Some(run) = next_data(source, at, length)? else { break };
        at = run.end;
        copy_run(from, to, run).await?;
    }
    if at < length {
        // A hole at the end.
        rustix::fs::ftruncate(target, length)?;
    }
    Ok(false)
}

/// The next run of data from `at` on.
fn next_data(
    file: BorrowedFd<'_>,
    at: u64,
    end: u64,
) -> Result<Option<std::ops::Range<u64>>, Errno> {
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        // A file system that knows of no holes.
        Err(Errno::INVAL) => return Ok(Some(at..end)),
        Err(errno) => return Err(errno),
    };
    if start >= end {
        return Ok(None);
    }
    let stop = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(end);
    Ok(Some(start..stop.min(end)))
}

async fn copy_run(from: &File, to: &File, run: std::ops::Range<u64>) -> Result<(), Errno> {
    let mut at = run.start;
    let mut write = None;
    while at < run.end {
        let step = (run.end - at).min(STEP_BYTES) as usize;
        let buffer = Buffer::with_capacity(step);
        let (result, buffer) = from.read_at(buffer, 0..step, at).await;
        let count = result.map_err(errno_of)?;
        if count == 0 {
            // The lower file has become shorter: it must not change below a union.
            return Err(Errno::IO);
        }
        if let Some(write) = write.take() {
            finish(write).await?;
        }
        write = Some(to.write_at(buffer, at));
        if at > run.start {
            // What was written before is on its way to the disk while this goes on.
            to.start_write_back(run.start, at - run.start);
        }
        at += count as u64;
        // A copy must not keep others from their turn, even if all of it is in memory.
        ring::yield_now().await;
    }
    match write {
        Some(write) => finish(write).await?,
        None => return Ok(()),
    }
    to.start_write_back(run.start, run.end - run.start);
    Ok(())
}

async fn finish(write: ring::Op<(std::io::Result<()>, ring::Chunk)>) -> Result<(), Errno> {
    let (result, _) = write.await;
    result.map_err(errno_of)
}
