//! What one rank does in a phase by POSIX calls.
//!
//! The order is IOR's: barrier, **t0** open, **t1** \[barrier\] **t2** transfers and fsync, **t3**
//! \[barrier\] **t4** close, **t5** barrier.

use super::order::Offsets;
use super::phase::{Access, Answer, Phase};
use rustix::fs::OFlags;
use rustix::time::{ClockId, clock_gettime};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// Buffers begin at multiples of this, for direct I/O.
const ALIGNMENT: usize = 4096;
const FILE_MODE: u32 = 0o664;

/// What a rank and the others have to agree on.
pub(super) trait Team {
    /// Waits for all.
    fn barrier(&mut self) -> io::Result<()>;

    /// The largest of the ranks' values.
    fn largest(&mut self, value: u64) -> io::Result<u64>;
}

/// Seconds of the clock that all processes of this machine share.
fn now() -> f64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Does the part of rank `number`. The outer error says that the team is lost; the inner one is this
/// rank's own, and the rank has passed every barrier nevertheless, so that none waits for ever.
pub(super) fn run(
    phase: &Phase,
    number: usize,
    team: &mut impl Team,
) -> io::Result<Result<Answer, String>> {
    let part = phase.parts[number];
    let path = &phase.files[number % phase.files.len()];
    let offsets = Offsets::of(phase, part);
    let len = phase.transfer_bytes as usize;
    let mut memory = vec![0; len + ALIGNMENT];
    let start = memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
    let buffer = &mut memory[start..start + len];
    // What is read goes to pages that are there: getting them is not the storage's time.
    match phase.access {
        Access::Write => phase.pattern.fill(buffer, part),
        Access::Read | Access::Check => buffer.fill(0xff),
    }
    let mut answer = Answer::default();
    team.barrier()?;
    answer.t[0] = now();
    let file = open(phase, path);
    answer.t[1] = now();
    if phase.has_barriers {
        team.barrier()?;
    }
    answer.t[2] = now();
    let mut work = Transfers { phase, path, part, cap: phase.caps[number], offsets, answer };
    let mut result = match &file {
        Ok(file) => work.run(file, buffer),
        Err(_) => Ok(()),
    };
    if phase.wears_out {
        let most = team.largest(work.answer.calls)?;
        if let (Ok(file), Ok(())) = (&file, &result) {
            result = work.wear_out(file, buffer, most);
        }
    }
    if let (Ok(file), Ok(()), Access::Write, true) = (&file, &result, phase.access, phase.has_fsync)
    {
        result = file.sync_all().map_err(|error| failed("flush", path, 0, &error));
    }
    let mut answer = work.answer;
    answer.t[3] = now();
    if phase.has_barriers {
        team.barrier()?;
    }
    answer.t[4] = now();
    let opened = file.map(drop);
    answer.t[5] = now();
    team.barrier()?;
    Ok(opened.and(result).map(|()| answer))
}

fn failed(what: &str, path: &Path, offset: u64, error: &io::Error) -> String {
    format!("cannot {what} {} at {offset}: {error}", path.display())
}

fn open(phase: &Phase, path: &Path) -> Result<File, String> {
    let is_write = phase.access == Access::Write;
    let mut options = OpenOptions::new();
    options.read(true).write(is_write).create(is_write).mode(FILE_MODE);
    if phase.is_direct {
        options.custom_flags(OFlags::DIRECT.bits() as i32);
    }
    options.open(path).map_err(|error| format!("cannot open {}: {error}", path.display()))
}

struct Transfers<'a> {
    phase: &'a Phase,
    path: &'a Path,
    part: usize,
    cap: u64,
    offsets: Offsets,
    answer: Answer,
}

impl Transfers<'_> {
    fn run(&mut self, file: &File, buffer: &mut [u8]) -> Result<(), String> {
        let phase = self.phase;
        let begun = Instant::now();
        loop {
            for index in 0..self.offsets.len() {
                self.one(file, buffer, self.offsets.get(index))?;
                let is_late =
                    phase.deadline_s > 0.0 && begun.elapsed().as_secs_f64() > phase.deadline_s;
                if is_late || (self.cap > 0 && self.answer.calls == self.cap) {
                    return Ok(());
                }
            }
            if self.offsets.len() == 0 || begun.elapsed().as_secs_f64() >= phase.duration_min_s {
                return Ok(());
            }
        }
    }

    /// Goes on until as much is done as the quickest rank had done at its deadline.
    fn wear_out(&mut self, file: &File, buffer: &mut [u8], most: u64) -> Result<(), String> {
        while self.offsets.len() > 0 && self.answer.calls < most {
            let index = self.answer.calls % self.offsets.len();
            self.one(file, buffer, self.offsets.get(index))?;
        }
        Ok(())
    }

    fn one(&mut self, file: &File, buffer: &mut [u8], offset: u64) -> Result<(), String> {
        let phase = self.phase;
        match phase.access {
            Access::Write => {
                phase.pattern.mark(buffer, self.part, offset);
                self.write(file, buffer, offset)
                    .map_err(|error| failed("write", self.path, offset, &error))?;
                if phase.has_fsync_per_write {
                    file.sync_all().map_err(|error| failed("flush", self.path, offset, &error))?;
                }
            }
            Access::Read | Access::Check => {
                if phase.access == Access::Check {
                    // What is left from the transfer before must not look like what was read.
                    buffer[0] = !buffer[0];
                }
                self.read(file, buffer, offset)
                    .map_err(|error| failed("read", self.path, offset, &error))?;
            }
        }
        if phase.access == Access::Check {
            let (errors, at) = phase.pattern.wrong(buffer, self.part, offset);
            if let (0, Some(at)) = (self.answer.errors, at) {
                self.answer.wrong_at = at;
            }
            self.answer.errors += errors;
        }
        if phase.delay_us > 0 {
            std::thread::sleep(Duration::from_micros(phase.delay_us));
        }
        self.answer.bytes += buffer.len() as u64;
        self.answer.calls += 1;
        Ok(())
    }

    fn write(&self, file: &File, buffer: &[u8], offset: u64) -> io::Result<()> {
        if self.phase.is_single_attempt {
            return whole(file.write_at(buffer, offset)?, buffer.len());
        }
        file.write_all_at(buffer, offset)
    }

    fn read(&self, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        if self.phase.is_single_attempt {
            return whole(file.read_at(buffer, offset)?, buffer.len());
        }
        file.read_exact_at(buffer, offset)
    }
}

fn whole(moved: usize, asked: usize) -> io::Result<()> {
    if moved == asked {
        return Ok(());
    }
    Err(io::Error::other(format!("{moved} of {asked} bytes at once (singleXferAttempt)")))
}
