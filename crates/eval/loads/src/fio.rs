//! fio: the real program, on jobs that any stock fio accepts.
//!
//! One fio per run, asked for JSON. Each job works on a part of the file of its own
//! (`offset_increment`), offsets come from the plan's seed, and what is not measured (the ramp) is
//! left out by fio itself.

mod job;
mod output;

use crate::blocks;
use crate::engine::{Declaration, Engine, Operations, Work};
use crate::outcome::{Outcome, SERIES_INTERVAL};
use crate::process::{self, Finished};
use base::{Error, Stop};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use job::{JobFile, job_file, log_interval_ms};
pub use output::{parse, parse_bandwidth_log};

/// How long an ending fio may take.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// How much longer than its load a run may take before it counts as hanging.
const RUN_PATIENCE: Duration = Duration::from_mins(1);

/// fio.
pub const ENGINE: Declaration = Declaration {
    name: "fio",
    metrics: Some(blocks::METRICS),
    operations: Operations::Blocks,
    is_direct: |given| given.unwrap_or(true),
    runs_this_program: false,
    programs: |_, _| vec!["fio".into()],
    load: blocks::load,
    preview: |work| Some(job_file(work, Path::new("FILE"), Path::new(".")).text),
    start: Some(|setup| Ok(Box::new(FioEngine::new(setup.scratch)?))),
    ..Declaration::DEFAULT
};

/// The engine.
#[derive(Clone, Debug)]
pub struct FioEngine {
    version: String,
    /// Where job files and logs go, on the host.
    scratch: PathBuf,
}

impl FioEngine {
    /// Finds fio. `scratch` is a directory of ours.
    pub fn new(scratch: PathBuf) -> Result<Self, Error> {
        let said = process::output("fio", &["--version"])?;
        Ok(Self { version: said.trim().into(), scratch })
    }
}

impl Engine for FioEngine {
    fn version(&self) -> String {
        self.version.clone()
    }

    fn run(&mut self, work: &Work<'_>, stop: &Stop) -> Result<Outcome, Error> {
        let place = work.place.ok_or_else(|| Error::program("fio", "needs a storage"))?;
        let job = job_file(work, &place.inside_file(), &place.inside_scratch(&self.scratch));
        let job_path = self.scratch.join("job.fio");
        std::fs::write(&job_path, &job.text).map_err(Error::io("cannot write", &job_path))?;
        let inside_job = place.inside_scratch(&self.scratch).join("job.fio");
        let arguments = ["--output-format=json".to_string(), inside_job.display().to_string()];
        let mut command = place.command("fio", &arguments, &self.scratch);
        let shown = process::shown(&command);
        let patience = work.time + work.ramp + RUN_PATIENCE;
        let finished = process::run(&mut command, stop, patience, END_PATIENCE)?;
        let Finished { status, stdout, stderr } = finished;
        if !status.success() {
            let said = if stderr.trim().is_empty() { stdout } else { stderr };
            let tail: String = said.trim().chars().take(2000).collect();
            return Err(Error::program("fio", format!("{status}: {tail}")));
        }
        let pattern = work.workload.pattern();
        let pattern = pattern.ok_or_else(|| Error::program("fio", "the load has no pattern"))?;
        let mut outcome = parse(&stdout, pattern)?;
        outcome.load_seconds += work.ramp.as_secs_f64();
        let path = self.scratch.join(&job.log);
        let text = std::fs::read_to_string(&path).map_err(Error::io("cannot read", &path))?;
        let interval_ms = log_interval_ms(work.time);
        outcome.series = parse_bandwidth_log(&text, interval_ms);
        outcome.further.insert(SERIES_INTERVAL.into(), interval_ms as f64 / 1000.0);
        std::fs::remove_file(&path).map_err(Error::io("cannot remove", &path))?;
        outcome.command = shown;
        outcome.job = job.text;
        Ok(outcome)
    }
}
