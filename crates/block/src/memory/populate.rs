//! Allocates all of a memory device's memory before it is used.
//!
//! The system allocates and clears memory when it is first touched. A huge page takes milliseconds
//! if the host of a virtual machine has to find it. On a reactor that would stall every connection.
//! So separate threads touch the memory beforehand.

use super::MemoryBacking;
use super::room::Room;
use crate::error::Error;
use reactor::time::sleep;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Number of bytes that one thread touches at a time. After each piece it checks the remaining
/// memory.
const PIECE_BYTES: u64 = 64 << 20;
/// Largest number of threads that touch memory.
const THREADS_MAX: u64 = 8;
/// Largest amount of memory that is left for others.
const RESERVE_MAX: u64 = 256 << 20;
/// Interval of progress reports.
const REPORT_PERIOD: Duration = Duration::from_millis(50);

/// State that the threads share.
#[derive(Debug, Default)]
struct Progress {
    next: AtomicU64,
    done: AtomicU64,
    is_over: AtomicBool,
}

impl MemoryBacking {
    /// Like [`Self::new`], with all its memory allocated. From time to time calls `progress` with
    /// the number of bytes allocated so far.
    ///
    /// # Errors
    /// As [`Self::new`]; [`Error::MemoryLimit`] if the machine or a control group has too little.
    pub async fn populated(
        size: u64,
        block_size: u32,
        mut progress: impl FnMut(u64),
    ) -> Result<Self, Error> {
        check_room(size, size)?;
        let backing = Self::new(size, block_size)?;
        let shared = Arc::new(Progress::default());
        // Ends the threads when this future is dropped.
        let _over = Over(Arc::clone(&shared));
        let threads = std::thread::available_parallelism().map_or(1, |it| it.get() as u64);
        let threads = threads.min(THREADS_MAX).min(size.div_ceil(PIECE_BYTES));
        let mut handles = Vec::new();
        for index in 0..threads {
            let (backing, shared) = (backing.clone(), Arc::clone(&shared));
            let name = format!("populate-{index}");
            let work = move || async move { touch(&backing, &shared) };
            let handle = reactor::thread::spawn(&name, &reactor::Config::default(), work);
            handles.push(handle.map_err(failed)?);
        }
        for mut handle in handles {
            let result = loop {
                match reactor::race(&mut handle, std::pin::pin!(sleep(REPORT_PERIOD))).await {
                    reactor::Either::First(result) => break result,
                    reactor::Either::Second(()) => progress(shared.done.load(Ordering::Relaxed)),
                }
            };
            result.map_err(|aborted| failed(std::io::Error::other(aborted)))??;
        }
        Ok(backing)
    }
}

/// When dropped, ends the threads.
struct Over(Arc<Progress>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

fn touch(backing: &MemoryBacking, progress: &Progress) -> Result<(), Error> {
    let size = backing.region.len() as u64;
    while !progress.is_over.load(Ordering::Relaxed) {
        let start = progress.next.fetch_add(PIECE_BYTES, Ordering::Relaxed);
        if start >= size {
            break;
        }
        let len = PIECE_BYTES.min(size - start);
        check_room(len, size)?;
        let (offset, bytes) = (start as usize, len as usize);
        match backing.region.populate(offset, bytes) {
            Ok(()) => {}
            // Linux before 5.14 cannot populate. No other thread uses the memory yet.
            Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
                backing.region.zero(offset, bytes);
            }
            Err(error) => return Err(failed(error)),
        }
        progress.done.fetch_add(len, Ordering::Relaxed);
    }
    Ok(())
}

/// Fails if `bytes` cannot be allocated with some memory left for others.
fn check_room(bytes: u64, size: u64) -> Result<(), Error> {
    let Some(Room { bytes: room, limit }) = Room::now() else { return Ok(()) };
    let reserve = (size / 16).min(RESERVE_MAX);
    if bytes.saturating_add(reserve) <= room {
        return Ok(());
    }
    Err(Error::MemoryLimit { size, room, limit })
}

fn failed(source: std::io::Error) -> Error {
    Error::Open { action: "take memory for", path: "memory".into(), source: Arc::new(source) }
}
