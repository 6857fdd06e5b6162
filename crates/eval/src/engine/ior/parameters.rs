//! What a test does, checked as IOR checks it.

use super::script::{Compat, Phases, Settings};
use std::path::PathBuf;
use std::time::Duration;

const BLOCK_BYTES_DEFAULT: i64 = 1 << 20;
const TRANSFER_BYTES_DEFAULT: i64 = 256 << 10;
const FILE_DEFAULT: &str = "testFile";
/// Most bytes of one transfer: each rank holds two buffers of it.
const TRANSFER_BYTES_MAX: i64 = 1 << 30;

/// Most transfers per rank in random order, which is kept in memory.
const RANDOM_TRANSFERS_MAX: u64 = 1 << 24;

/// A test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Names of the file; several are given to ranks in turn (file per process only).
    pub files: Vec<PathBuf>,
    /// Number of ranks.
    pub ranks: usize,
    /// Bytes that a rank owns per segment.
    pub block_bytes: u64,
    /// Bytes per call.
    pub transfer_bytes: u64,
    /// Segments.
    pub segments: u64,
    /// How often it is done.
    pub repetitions: u32,
    /// A file per rank instead of one for all.
    pub is_file_per_process: bool,
    /// Each repetition has files of its own.
    pub is_multi_file: bool,
    /// A directory per rank.
    pub is_unique_directory: bool,
    /// Bypass the page cache.
    pub is_direct: bool,
    /// Flush before closing what was written.
    pub has_fsync: bool,
    /// Flush after each write.
    pub has_fsync_per_write: bool,
    /// Barriers between opening, transferring and closing.
    pub has_barriers: bool,
    /// Leave the files.
    pub is_kept: bool,
    /// Work on what is there.
    pub uses_existing: bool,
    /// Transfers in random order within each rank's part.
    pub is_random: bool,
    /// Ranks by which readers are shifted against writers.
    pub read_shift: usize,
    /// Pause before each phase, outside of the clock.
    pub delay: Duration,
    /// What is done.
    pub phases: Phases,
    /// How much is printed.
    pub verbose: i64,
}

impl Parameters {
    /// The parameters of a test on `ranks` ranks of this node, with what a reader has to know.
    pub fn new(
        settings: &Settings,
        ranks: usize,
        compat: Compat,
    ) -> Result<(Self, Vec<String>), String> {
        let mut notes = Vec::new();
        let api = settings.text("api").unwrap_or("POSIX");
        if !api.eq_ignore_ascii_case("POSIX") {
            return Err(format!("api {api} is not built in yet: POSIX is"));
        }
        let positive = |keyword: &str, default: i64| match settings.number(keyword) {
            None => Ok(default as u64),
            Some(value) if value > 0 => Ok(value as u64),
            Some(value) => Err(format!("{keyword} has to be positive, not {value}")),
        };
        let block_bytes = positive("blockSize", BLOCK_BYTES_DEFAULT)?;
        let transfer_bytes = positive("transferSize", TRANSFER_BYTES_DEFAULT)?;
        if !block_bytes.is_multiple_of(transfer_bytes) {
            return Err(format!(
                "blockSize {block_bytes} is no multiple of transferSize {transfer_bytes}"
            ));
        }
        if transfer_bytes > TRANSFER_BYTES_MAX as u64 || !transfer_bytes.is_multiple_of(8) {
            return Err("transferSize has to be a multiple of 8, and at most 1g".into());
        }
        let ranks = tasks(settings, ranks, compat, &mut notes)?;
        let is_direct =
            settings.is_set("useO_DIRECT") || settings.text("--posix.odirect").is_some();
        let parameters = Self {
            files: files(settings)?,
            ranks,
            block_bytes,
            transfer_bytes,
            segments: positive("segmentCount", 1)?,
            repetitions: u32::try_from(positive("repetitions", 1)?).map_err(|e| e.to_string())?,
            is_file_per_process: settings.is_set("filePerProc"),
            is_multi_file: settings.is_set("multiFile"),
            is_unique_directory: settings.is_set("uniqueDir"),
            is_direct,
            has_fsync: settings.is_set("fsync"),
            has_fsync_per_write: settings.is_set("fsyncPerWrite"),
            has_barriers: settings.is_set("intraTestBarriers"),
            is_kept: settings.is_set("keepFile"),
            uses_existing: settings.is_set("useExistingTestFile"),
            is_random: settings.is_set("randomOffset"),
            read_shift: shift(settings, ranks, &mut notes)?,
            delay: Duration::from_secs(settings.number("interTestDelay").unwrap_or(0).max(0) as u64),
            phases: settings.phases(),
            verbose: settings.number("verbose").unwrap_or(0),
        };
        parameters.check()?;
        Ok((parameters, notes))
    }

    fn check(&self) -> Result<(), String> {
        if self.is_random && self.phases.check_read {
            return Err("randomOffset cannot be used with checkRead".into());
        }
        if self.is_random && self.transfers() > RANDOM_TRANSFERS_MAX {
            return Err(format!(
                "{} transfers per rank in random order are too many: at most {RANDOM_TRANSFERS_MAX}",
                self.transfers()
            ));
        }
        if self.files.len() > 1 && !self.is_file_per_process {
            return Err("several files in testFile need filePerProc".into());
        }
        if self.is_unique_directory && !self.is_file_per_process {
            return Err("uniqueDir needs filePerProc".into());
        }
        let total = self.segments.checked_mul(self.block_bytes);
        let total = total.and_then(|bytes| bytes.checked_mul(self.ranks as u64));
        match total {
            Some(bytes) if bytes < 1 << 62 => Ok(()),
            _ => Err("blockSize × segmentCount × tasks is too large".into()),
        }
    }

    /// Bytes that all ranks move in a phase.
    pub fn aggregate_bytes(&self) -> u64 {
        self.block_bytes * self.segments * self.ranks as u64
    }

    /// Calls that a rank makes in a phase.
    pub fn transfers(&self) -> u64 {
        self.segments * (self.block_bytes / self.transfer_bytes)
    }

    /// Where call number `index` of a rank's part begins.
    pub fn offset(&self, rank: usize, index: u64) -> u64 {
        let per_block = self.block_bytes / self.transfer_bytes;
        let (segment, transfer) = (index / per_block, index % per_block);
        let within = transfer * self.transfer_bytes;
        if self.is_file_per_process {
            return segment * self.block_bytes + within;
        }
        (segment * self.ranks as u64 + rank as u64) * self.block_bytes + within
    }

    /// The file of a rank's part in a repetition.
    pub fn file(&self, rank: usize, repetition: u32) -> PathBuf {
        // There is at least one; `files` refuses an empty list.
        let mut path = self.files[rank % self.files.len()].clone();
        if self.is_unique_directory {
            let name = path.file_name().map(PathBuf::from).unwrap_or_default();
            path.pop();
            path.push(rank.to_string());
            path.push(name);
        }
        let mut name = path.into_os_string();
        if self.is_file_per_process {
            name.push(format!(".{rank:08}"));
        }
        if self.is_multi_file {
            name.push(format!(".{repetition}"));
        }
        name.into()
    }
}

fn files(settings: &Settings) -> Result<Vec<PathBuf>, String> {
    let text = settings.text("testFile").unwrap_or(FILE_DEFAULT);
    let files: Vec<PathBuf> =
        text.split('@').filter(|name| !name.is_empty()).map(PathBuf::from).collect();
    if files.is_empty() { Err("testFile names no file".into()) } else { Ok(files) }
}

fn tasks(
    settings: &Settings,
    ranks: usize,
    compat: Compat,
    notes: &mut Vec<String>,
) -> Result<usize, String> {
    match settings.number("numTasks") {
        None | Some(-1) => Ok(ranks),
        Some(0) if compat == Compat::V2 => Ok(ranks),
        Some(asked) if asked > 0 && asked as u64 <= ranks as u64 => Ok(asked as usize),
        Some(asked) if asked > 0 => {
            notes.push(format!("numTasks={asked} is more than there are: {ranks} are used"));
            Ok(ranks)
        }
        Some(asked) => Err(format!("numTasks={asked} is too few")),
    }
}

/// By how many ranks readers are shifted: a whole node, which is nothing on one node.
fn shift(settings: &Settings, ranks: usize, notes: &mut Vec<String>) -> Result<usize, String> {
    if settings.is_set("reorderTasksRandom") {
        return Err("reorderTasksRandom is not built in yet".into());
    }
    if !settings.is_set("reorderTasksConstant") && !settings.is_set("reorderTasks") {
        return Ok(0);
    }
    let offset = settings.number("taskPerNodeOffset").unwrap_or(1).max(0) as usize;
    notes.push(
        "reorderTasksConstant does nothing on one node: each rank reads what it wrote itself, \
         perhaps from memory"
            .into(),
    );
    Ok(offset * ranks % ranks.max(1))
}
