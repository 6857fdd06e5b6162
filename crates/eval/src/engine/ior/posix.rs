//! The POSIX backend: ranks are threads of this process, each with files and buffers of its own.
//!
//! The order of one phase is that of IOR: pause, removal of old files, barrier, **t0** open, **t1**
//! \[barrier\] **t2** transfers and fsync, **t3** \[barrier\] **t4** close, **t5** barrier. Bandwidth
//! is what was moved, divided by the time from the first t0 to the last t5: opening, fsync and
//! closing count, pauses, removal and checks do not.

use super::parameters::Parameters;
use crate::random::Random;
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Barrier, Mutex};
use std::time::Instant;

/// Buffers begin at multiples of this, for direct I/O.
const ALIGNMENT: usize = 4096;

/// What a phase did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Wrote.
    Write,
    /// Read.
    Read,
}

/// One phase of one repetition.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// What was done.
    pub access: Access,
    /// Repetition, from 0.
    pub repetition: u32,
    /// Bytes that were moved.
    pub bytes: u64,
    /// Last t1 less first t0.
    pub open_s: f64,
    /// Last t3 less first t2.
    pub transfer_s: f64,
    /// Last t5 less first t4.
    pub close_s: f64,
    /// Last t5 less first t0.
    pub total_s: f64,
    /// Words of eight bytes that were not what had been written.
    pub errors: u64,
}

impl Measured {
    /// Bytes per second.
    pub fn bandwidth(&self) -> f64 {
        self.bytes as f64 / self.total_s
    }
}

/// Why a test ended.
#[derive(Debug, thiserror::Error)]
#[error("{what} {}: {source}", path.display())]
pub struct PosixError {
    what: &'static str,
    path: PathBuf,
    source: std::io::Error,
}

fn failed<'a>(
    what: &'static str,
    path: &'a Path,
) -> impl FnOnce(std::io::Error) -> PosixError + use<'a> {
    move |source| PosixError { what, path: path.into(), source }
}

/// Runs all repetitions of a test. Refuses to touch files that it did not make, unless the test is
/// to use existing ones.
pub fn run(parameters: &Parameters) -> Result<Vec<Measured>, PosixError> {
    let mut all = Vec::new();
    for repetition in 0..parameters.repetitions {
        let phases = parameters.phases;
        if phases.write {
            std::thread::sleep(parameters.delay);
            all.push(phase(parameters, repetition, Access::Write, false)?);
        }
        if phases.check_write {
            let checked = phase(parameters, repetition, Access::Read, true)?;
            if let Some(written) = all.last_mut().filter(|it| it.access == Access::Write) {
                written.errors = checked.errors;
            } else {
                all.push(checked);
            }
        }
        if phases.read || phases.check_read {
            std::thread::sleep(parameters.delay);
            all.push(phase(parameters, repetition, Access::Read, phases.check_read)?);
        }
        if phases.write && !parameters.is_kept && !parameters.uses_existing {
            remove(parameters, repetition)?;
        }
    }
    Ok(all)
}

/// Removes what the repetition made.
fn remove(parameters: &Parameters, repetition: u32) -> Result<(), PosixError> {
    let ranks = if parameters.is_file_per_process { parameters.ranks } else { 1 };
    for rank in 0..ranks {
        let path = parameters.file(rank, repetition);
        std::fs::remove_file(&path).map_err(failed("cannot remove", &path))?;
        if let (true, Some(directory)) = (parameters.is_unique_directory, path.parent()) {
            // Others may have put something there: then it stays.
            let _ = std::fs::remove_dir(directory);
        }
    }
    Ok(())
}

/// Times of one rank, in seconds since the phase began, and errors that it found.
#[derive(Clone, Copy, Debug, Default)]
struct Stamps {
    t: [f64; 6],
    errors: u64,
}

fn phase(
    parameters: &Parameters,
    repetition: u32,
    access: Access,
    is_checked: bool,
) -> Result<Measured, PosixError> {
    if access == Access::Write {
        make(parameters, repetition)?;
    }
    let barrier = Barrier::new(parameters.ranks);
    let failure: Mutex<Option<PosixError>> = Mutex::new(None);
    let begun = Instant::now();
    let stamps: Vec<Stamps> = std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..parameters.ranks)
            .map(|number| {
                let (barrier, failure) = (&barrier, &failure);
                scope.spawn(move || {
                    let rank = Rank { parameters, repetition, number, access, is_checked, begun };
                    let (stamps, result) = rank.run(barrier);
                    if let (Err(error), Ok(mut failure)) = (result, failure.lock()) {
                        failure.get_or_insert(error);
                    }
                    stamps
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap_or_default()).collect()
    });
    if let Ok(Some(error)) = failure.into_inner() {
        return Err(error);
    }
    let span = |from: usize, to: usize| {
        let first = stamps.iter().map(|it| it.t[from]).fold(f64::INFINITY, f64::min);
        let last = stamps.iter().map(|it| it.t[to]).fold(0.0, f64::max);
        last - first
    };
    Ok(Measured {
        access,
        repetition,
        bytes: parameters.aggregate_bytes(),
        open_s: span(0, 1),
        transfer_s: span(2, 3),
        close_s: span(4, 5),
        total_s: span(0, 5),
        errors: stamps.iter().map(|it| it.errors).sum(),
    })
}

/// Makes the files of a repetition, which must not exist, outside of the clock. IOR removes what is
/// in the way; we do not remove what we did not make.
fn make(parameters: &Parameters, repetition: u32) -> Result<(), PosixError> {
    if parameters.uses_existing {
        return Ok(());
    }
    let ranks = if parameters.is_file_per_process { parameters.ranks } else { 1 };
    for rank in 0..ranks {
        let path = parameters.file(rank, repetition);
        if let (true, Some(directory)) = (parameters.is_unique_directory, path.parent()) {
            std::fs::create_dir_all(directory).map_err(failed("cannot make", directory))?;
        }
        File::create_new(&path).map_err(failed("cannot make (it must not exist)", &path))?;
    }
    Ok(())
}

struct Rank<'a> {
    parameters: &'a Parameters,
    repetition: u32,
    number: usize,
    access: Access,
    is_checked: bool,
    begun: Instant,
}

impl Rank<'_> {
    /// Every rank passes every barrier, whatever fails on the way, so that none waits for ever.
    fn run(&self, barrier: &Barrier) -> (Stamps, Result<(), PosixError>) {
        let parameters = self.parameters;
        let mut stamps = Stamps::default();
        let now = || self.begun.elapsed().as_secs_f64();
        let part = match self.access {
            Access::Write => self.number,
            Access::Read => (self.number + parameters.read_shift) % parameters.ranks,
        };
        let path = parameters.file(part, self.repetition);
        let between = || {
            if parameters.has_barriers {
                barrier.wait();
            }
        };
        barrier.wait();
        stamps.t[0] = now();
        let file = self.open(&path);
        stamps.t[1] = now();
        between();
        stamps.t[2] = now();
        let moved = match &file {
            Ok(file) => self.transfers(file, &path, part),
            Err(_) => Ok(0),
        };
        stamps.t[3] = now();
        between();
        stamps.t[4] = now();
        let opened = file.map(drop);
        stamps.t[5] = now();
        barrier.wait();
        let result = opened.and_then(|()| {
            stamps.errors = moved?;
            Ok(())
        });
        (stamps, result)
    }

    fn open(&self, path: &Path) -> Result<File, PosixError> {
        let mut options = OpenOptions::new();
        options.read(true).write(self.access == Access::Write);
        if self.parameters.is_direct {
            options.custom_flags(OFlags::DIRECT.bits() as i32);
        }
        options.open(path).map_err(failed("cannot open", path))
    }

    /// All calls of the rank; gives the number of wrong words.
    fn transfers(&self, file: &File, path: &Path, part: usize) -> Result<u64, PosixError> {
        let parameters = self.parameters;
        let len = parameters.transfer_bytes as usize;
        let mut memory = vec![0; len + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        let buffer = &mut memory[start..start + len];
        let mut errors = 0;
        let mut order = Vec::new();
        if parameters.is_random {
            order.extend(0..parameters.transfers());
            Random::of(u64::from(self.repetition), part as u64).shuffle(&mut order);
        }
        for position in 0..parameters.transfers() {
            let index = order.get(position as usize).copied().unwrap_or(position);
            let offset = parameters.offset(part, index);
            match self.access {
                Access::Write => {
                    fill(buffer, offset, part);
                    file.write_all_at(buffer, offset).map_err(failed("cannot write", path))?;
                    if parameters.has_fsync_per_write {
                        file.sync_all().map_err(failed("cannot flush", path))?;
                    }
                }
                Access::Read => {
                    file.read_exact_at(buffer, offset).map_err(failed("cannot read", path))?;
                    if self.is_checked {
                        errors += wrong_words(buffer, offset, part);
                    }
                }
            }
        }
        if self.access == Access::Write && parameters.has_fsync {
            file.sync_all().map_err(failed("cannot flush", path))?;
        }
        Ok(errors)
    }
}

/// The word at an offset of a rank's part.
fn word(offset: u64, part: usize) -> [u8; 8] {
    (offset ^ (part as u64).rotate_right(16) ^ 0x7473_756d_7567_6921).to_le_bytes()
}

fn fill(buffer: &mut [u8], offset: u64, part: usize) {
    for (index, chunk) in buffer.chunks_exact_mut(8).enumerate() {
        chunk.copy_from_slice(&word(offset + 8 * index as u64, part));
    }
}

fn wrong_words(buffer: &[u8], offset: u64, part: usize) -> u64 {
    let words = buffer.chunks_exact(8).enumerate();
    words.filter(|(index, chunk)| **chunk != word(offset + 8 * *index as u64, part)).count() as u64
}

#[cfg(test)]
mod tests;
