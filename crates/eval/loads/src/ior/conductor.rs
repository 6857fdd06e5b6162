//! Conducts the ranks through a test: repetitions and phases in IOR's order, files made and removed.
//!
//! One repetition is: pause, write, check what was written, pause, read, remove. Bandwidth is what
//! was moved by the time from the first open to the last close: opening, fsync and closing count,
//! pauses, removal and checks of 2.10.3 do not; version 4 checks while it reads, inside the clock.
//!
//! IOR removes what is in its way. Here a file that is there already and that no test of this run
//! made ends the test, unless `useExistingTestFile` is set, and only what was made is removed.

mod files;

use super::crew::{Crew, IorError, Reply};
use super::hints::Effective;
use super::parameters::{Api, Parameters};
use super::phase::{Access, Answer, Order, Phase};
use super::script::Compat;
use base::Stop;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use files::Files;

const PAUSE_STEP: Duration = Duration::from_millis(20);

/// One phase of one repetition.
#[derive(Clone, Debug)]
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
    /// Least of the ranks' mean times of a transfer.
    pub latency_s: f64,
    /// Words of eight bytes that were not what had been written.
    pub errors: u64,
    /// The hints that the open file reports (MPI-IO).
    pub effective: Effective,
    /// What each rank did.
    pub answers: Vec<Answer>,
}

impl Measured {
    /// From the answers of a phase.
    pub fn of(access: Access, repetition: u32, reply: Reply) -> Self {
        let span = |from: usize, to: usize| {
            let first = reply.answers.iter().map(|it| it.t[from]).fold(f64::INFINITY, f64::min);
            let last = reply.answers.iter().map(|it| it.t[to]).fold(f64::NEG_INFINITY, f64::max);
            last - first
        };
        let latency = |it: &Answer| (it.t[3] - it.t[2]) / it.calls as f64;
        Self {
            access: if access == Access::Check { Access::Read } else { access },
            repetition,
            bytes: reply.answers.iter().map(|it| it.bytes).sum(),
            open_s: span(0, 1),
            transfer_s: span(2, 3),
            close_s: span(4, 5),
            total_s: span(0, 5),
            latency_s: reply.answers.iter().map(latency).fold(f64::INFINITY, f64::min),
            errors: reply.answers.iter().map(|it| it.errors).sum(),
            effective: reply.effective,
            answers: reply.answers,
        }
    }

    /// Bytes per second.
    pub fn bandwidth(&self) -> f64 {
        self.bytes as f64 / self.total_s
    }
}

/// What happens in a test.
#[derive(Debug)]
pub enum Event<'a> {
    /// A phase was measured.
    Measured(&'a Measured),
    /// Data was checked outside of the clock: words that are wrong.
    Checked {
        /// Which data.
        access: Access,
        /// Wrong words.
        errors: u64,
    },
    /// Files were removed, in seconds.
    Removed {
        /// Repetition, from 0.
        repetition: u32,
        /// Time that it took.
        seconds: f64,
    },
    /// Something to know.
    Note(String),
}

/// What became of a test.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Its measured phases.
    pub measured: Vec<Measured>,
    /// Wrong words, also those found outside of the clock.
    pub errors: u64,
}

/// Conducts tests, and knows which files they made.
#[derive(Debug, Default)]
pub struct Conductor {
    /// What tests made and did not remove yet.
    pub files: Files,
    /// Ends everything between two phases.
    pub stop: Stop,
    /// Mounts of one file system, which ranks use in turn; files are named in the first. Empty: all
    /// ranks use the names as they are.
    pub mounts: Vec<PathBuf>,
}

/// What goes from phase to phase.
struct Run<'a> {
    parameters: &'a Parameters,
    crew: &'a mut dyn Crew,
    files: &'a mut Files,
    stop: &'a Stop,
    mounts: &'a [PathBuf],
    tell: &'a mut dyn FnMut(Event<'_>),
    begun: Instant,
    /// Transfers of each part, if writing was cut short.
    caps: Vec<u64>,
    outcome: Outcome,
}

impl Conductor {
    /// Runs a test. On an error, what it made is removed, unless it is to be kept.
    pub fn run(
        &mut self,
        parameters: &Parameters,
        crew: &mut dyn Crew,
        tell: &mut dyn FnMut(Event<'_>),
    ) -> Result<Outcome, IorError> {
        let mut run = Run {
            caps: vec![parameters.stonewall.iterations; parameters.ranks],
            parameters,
            crew,
            files: &mut self.files,
            stop: &self.stop,
            mounts: &self.mounts,
            tell,
            begun: Instant::now(),
            outcome: Outcome::default(),
        };
        let done = run.repetitions();
        let outcome = run.outcome;
        if let Err(error) = done {
            if !parameters.is_kept && !parameters.is_kept_with_error {
                // The first error says more than that of tidying up.
                let _ = self.files.remove_all();
            }
            return Err(error);
        }
        Ok(outcome)
    }
}

impl Run<'_> {
    fn repetitions(&mut self) -> Result<(), IorError> {
        for repetition in 0..self.parameters.repetitions {
            self.repetition(repetition)?;
        }
        Ok(())
    }

    fn is_time_over(&self) -> bool {
        self.parameters.time_max.is_some_and(|max| self.begun.elapsed() >= max)
    }

    fn repetition(&mut self, repetition: u32) -> Result<(), IorError> {
        let (parameters, phases) = (self.parameters, self.parameters.phases);
        let before = self.outcome.errors;
        let is_old = parameters.compat == Compat::V2;
        if phases.write && !self.is_time_over() {
            self.write(repetition)?;
        }
        if phases.check_write && !self.is_time_over() {
            self.check(repetition, 1, Access::Write)?;
        }
        let checks_while_reading = phases.check_read && !is_old;
        if (phases.read || checks_while_reading) && !self.is_time_over() {
            self.read(repetition, checks_while_reading)?;
        }
        if phases.check_read && is_old && !self.is_time_over() {
            self.check(repetition, 2, Access::Read)?;
        }
        let is_wrong = self.outcome.errors > before;
        if parameters.is_kept || (parameters.is_kept_with_error && is_wrong) {
            return Ok(());
        }
        let begun = Instant::now();
        let removed = self.files.remove(&parameters.all_files(repetition))?;
        if removed > 0 {
            let seconds = begun.elapsed().as_secs_f64();
            (self.tell)(Event::Removed { repetition, seconds });
        } else if !phases.write {
            (self.tell)(Event::Note(
                "the files stay, which these tests did not make; IOR would remove them without \
                 keepFile"
                    .into(),
            ));
        }
        Ok(())
    }

    fn pause(&self) -> Result<(), IorError> {
        let until = Instant::now() + self.parameters.delay;
        loop {
            if self.stop.is_requested() {
                return Err(IorError::Interrupted);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(PAUSE_STEP));
        }
    }

    fn write(&mut self, repetition: u32) -> Result<(), IorError> {
        let parameters = self.parameters;
        self.pause()?;
        let files = parameters.all_files(repetition);
        if !parameters.uses_existing {
            self.files.expect(&files, parameters.is_unique_directory)?;
            super::stripe::apply(parameters.striping, &files)?;
        }
        let mut phase = self.phase(Access::Write, repetition, (0..parameters.ranks).collect());
        phase.is_new = !parameters.uses_existing;
        if parameters.preallocates {
            let bytes = parameters.aggregate_bytes();
            let ranks = parameters.ranks as u64;
            phase.preallocate_bytes = if phase.has_own_files { bytes / ranks } else { bytes };
        }
        let reply = self.done(&phase)?;
        if parameters.stonewall.deadline_s > 0 || parameters.stonewall.iterations > 0 {
            self.caps = reply.answers.iter().map(|answer| answer.calls).collect();
            self.save_iterations()?;
        }
        self.measured(Measured::of(Access::Write, repetition, reply));
        Ok(())
    }

    fn read(&mut self, repetition: u32, is_checked: bool) -> Result<(), IorError> {
        let parameters = self.parameters;
        if parameters.stonewall.status_file.is_some() && !parameters.phases.write {
            self.load_iterations()?;
        }
        self.pause()?;
        let access = if is_checked { Access::Check } else { Access::Read };
        let parts = parameters.reorder.parts(parameters.ranks, 0, repetition);
        let phase = self.phase(access, repetition, parts);
        let reply = self.done(&phase)?;
        let measured = Measured::of(access, repetition, reply);
        let errors = measured.errors;
        self.measured(measured);
        if is_checked {
            self.wrong(Access::Read, errors)?;
        }
        Ok(())
    }

    /// Compares outside of the clock.
    fn check(&mut self, repetition: u32, which: usize, access: Access) -> Result<(), IorError> {
        let parameters = self.parameters;
        if self.stop.is_requested() {
            return Err(IorError::Interrupted);
        }
        let parts = parameters.reorder.parts(parameters.ranks, which, repetition);
        let mut phase = self.phase(Access::Check, repetition, parts);
        phase.deadline_s = 0.0;
        phase.duration_min_s = 0.0;
        phase.wears_out = false;
        if access == Access::Write {
            phase.seed = self.seed(Access::Write, repetition);
        }
        let reply = self.done(&phase)?;
        self.wrong(access, reply.answers.iter().map(|answer| answer.errors).sum())
    }

    fn wrong(&mut self, access: Access, errors: u64) -> Result<(), IorError> {
        self.outcome.errors += errors;
        (self.tell)(Event::Checked { access, errors });
        if errors > 0 && self.parameters.quits_on_error {
            return Err(IorError::Data(errors));
        }
        Ok(())
    }

    fn measured(&mut self, measured: Measured) {
        (self.tell)(Event::Measured(&measured));
        self.outcome.measured.push(measured);
    }

    fn done(&mut self, phase: &Phase) -> Result<Reply, IorError> {
        let done = self.crew.phase(phase);
        if self.stop.is_requested() {
            return Err(IorError::Interrupted);
        }
        let reply = done?;
        for (rank, answer) in reply.answers.iter().enumerate() {
            if answer.errors > 0 {
                (self.tell)(Event::Note(format!(
                    "rank {rank} found {} wrong words in the part of rank {}, the first at {}",
                    answer.errors, phase.parts[rank], answer.wrong_at
                )));
            }
        }
        Ok(reply)
    }

    /// A random order differs from repetition to repetition; 2.10.3 reads in another than it writes.
    fn seed(&self, access: Access, repetition: u32) -> u32 {
        let is_other = self.parameters.order == Order::RandomInFile && access != Access::Write;
        let step = self.parameters.seed.wrapping_add(2 * repetition);
        if is_other { step.wrapping_add(1) } else { step }
    }

    fn phase(&self, access: Access, repetition: u32, parts: Vec<usize>) -> Phase {
        let it = self.parameters;
        let is_mpiio = it.api == Api::Mpiio;
        Phase {
            access,
            ranks: it.ranks,
            is_mpiio,
            files: self.files(&parts, repetition),
            has_own_files: it.is_file_per_process,
            is_new: false,
            block_bytes: it.block_bytes,
            transfer_bytes: it.transfer_bytes,
            segments: it.segments,
            order: it.order,
            seed: self.seed(access, repetition),
            pattern: it.pattern,
            is_direct: it.is_direct,
            has_fsync: it.has_fsync,
            has_fsync_per_write: it.has_fsync_per_write,
            has_barriers: it.has_barriers,
            is_single_attempt: it.is_single_attempt,
            is_collective: it.is_collective,
            has_view: it.has_view,
            opens_read_write: it.compat == Compat::V2,
            preallocate_bytes: 0,
            hints: it.hints.clone(),
            wants_info: is_mpiio,
            deadline_s: it.stonewall.deadline_s as f64,
            wears_out: it.stonewall.wears_out,
            duration_min_s: it.stonewall.duration_min_s as f64,
            // A reader goes as far as the writer of its part did.
            caps: parts.iter().map(|part| self.caps[*part]).collect(),
            parts,
            delay_us: it.io_delay_us,
            memory_bytes: it.memory_bytes,
        }
    }

    /// The file that all ranks share, or that of each, through its mount.
    fn files(&self, parts: &[usize], repetition: u32) -> Vec<PathBuf> {
        let is_one = !self.parameters.is_file_per_process && self.mounts.len() < 2;
        let file = |(rank, part): (usize, &usize)| {
            // Open MPI's OMPIO refuses names without a directory.
            let path = absolute(self.parameters.file(*part, repetition));
            let mut names = names(self.mounts, &path);
            names.swap_remove(rank % names.len())
        };
        parts.iter().enumerate().take(if is_one { 1 } else { parts.len() }).map(file).collect()
    }

    fn save_iterations(&self) -> Result<(), IorError> {
        let Some(path) = &self.parameters.stonewall.status_file else {
            return Ok(());
        };
        let most = self.caps.iter().copied().max().unwrap_or(0);
        std::fs::write(path, format!("{most}")).map_err(|cause| IorError::File {
            what: "cannot write",
            path: path.clone(),
            cause,
        })
    }

    fn load_iterations(&mut self) -> Result<(), IorError> {
        let Some(path) = &self.parameters.stonewall.status_file else {
            return Ok(());
        };
        let wrong =
            |cause| IorError::File { what: "cannot read", path: PathBuf::from(path), cause };
        let text = std::fs::read_to_string(path).map_err(wrong)?;
        let most: u64 = text.trim().parse().map_err(std::io::Error::other).map_err(wrong)?;
        self.caps.fill(most);
        Ok(())
    }
}

/// What a file in the first mount is called in each.
pub(super) fn names(mounts: &[PathBuf], path: &Path) -> Vec<PathBuf> {
    match mounts.first().and_then(|first| path.strip_prefix(first).ok()) {
        Some(within) => mounts.iter().map(|mount| mount.join(within)).collect(),
        None => vec![path.into()],
    }
}

fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

#[cfg(test)]
mod tests;
