//! From settings to parameters: the defaults, the checks, and what the versions do differently.

use super::{Api, Format, Parameters, Stonewall, Striping};
use crate::ior::crew::Layout;
use crate::ior::hints;
use crate::ior::order::Reorder;
use crate::ior::pattern::{Pattern, PatternKind};
use crate::ior::phase::Order;
use crate::ior::script::{Compat, Settings};
use std::path::{Path, PathBuf};
use std::time::Duration;

const BLOCK_BYTES_DEFAULT: i64 = 1 << 20;
const TRANSFER_BYTES_DEFAULT: i64 = 256 << 10;
const FILE_DEFAULT: &str = "testFile";
/// Seed of incompressible data, as version 4 has it.
const SEED_DEFAULT: u32 = 573;
/// Most bytes of one transfer: each rank holds a buffer of it, and MPI counts in 32 bits.
const TRANSFER_BYTES_MAX: u64 = 1 << 30;
/// Most transfers per rank in random order, which is kept in memory.
const RANDOM_TRANSFERS_MAX: u64 = 1 << 24;
/// Most bytes that all ranks move.
const AGGREGATE_BYTES_MAX: u64 = 1 << 62;

/// Settings on their way.
struct Reader<'a> {
    settings: &'a Settings,
    compat: Compat,
    api: Api,
    notes: Vec<String>,
}

impl Parameters {
    /// The parameters of a test on the ranks that there are, with what a reader has to know.
    pub fn new(
        settings: &Settings,
        layout: Layout,
        compat: Compat,
    ) -> Result<(Self, Vec<String>), String> {
        let api = Self::api(settings)?;
        let mut reader = Reader { settings, compat, api, notes: Vec::new() };
        let parameters = reader.parameters(layout)?;
        reader.check(&parameters)?;
        if settings.is_set("warningAsErrors") && !reader.notes.is_empty() {
            return Err(format!("{} (warningAsErrors)", reader.notes.join("; ")));
        }
        Ok((parameters, reader.notes))
    }

    /// What is called.
    pub fn api(settings: &Settings) -> Result<Api, String> {
        match settings.text("api").unwrap_or("POSIX") {
            name if name.eq_ignore_ascii_case("POSIX") => Ok(Api::Posix),
            name if name.eq_ignore_ascii_case("MPIIO") => Ok(Api::Mpiio),
            name => Err(format!("api {name} is not available: POSIX and MPIIO are")),
        }
    }

    /// How results are shown.
    pub fn format(settings: &Settings) -> Result<Format, String> {
        match settings.text("summaryFormat").map(str::to_ascii_lowercase).as_deref() {
            None | Some("default") => Ok(Format::Default),
            Some("json") => Ok(Format::Json),
            Some("csv") => Ok(Format::Csv),
            Some(name) => Err(format!("summaryFormat {name}: there are default, JSON and CSV")),
        }
    }
}

impl Reader<'_> {
    fn is_set(&self, keyword: &str) -> bool {
        self.settings.is_set(keyword)
    }

    fn number(&self, keyword: &str) -> i64 {
        self.settings.number(keyword).unwrap_or(0)
    }

    fn count(&self, keyword: &str) -> Result<u64, String> {
        let number = self.number(keyword);
        u64::try_from(number).map_err(|_| format!("{keyword} cannot be negative: {number}"))
    }

    fn positive(&self, keyword: &str, default: i64) -> Result<u64, String> {
        match self.settings.number(keyword).unwrap_or(default) {
            value if value > 0 => Ok(value as u64),
            value => Err(format!("{keyword} has to be positive, not {value}")),
        }
    }

    fn path(&self, keyword: &str) -> Option<PathBuf> {
        self.settings.text(keyword).map(PathBuf::from)
    }

    /// A setting that one API knows and the other does not, by keyword or by module option.
    fn only(&mut self, api: Api, keyword: &str, option: &str) -> bool {
        let wanted = self.is_set(keyword) || self.settings.is_option_set(option);
        if wanted && api != self.api {
            self.notes.push(format!("{keyword} is for {} only, and left out", api.name()));
        }
        wanted && api == self.api
    }

    fn parameters(&mut self, layout: Layout) -> Result<Parameters, String> {
        self.refuse_what_is_missing()?;
        let layout = self.layout(layout)?;
        let block_bytes = self.positive("blockSize", BLOCK_BYTES_DEFAULT)?;
        let transfer_bytes = self.positive("transferSize", TRANSFER_BYTES_DEFAULT)?;
        let repetitions = self.positive("repetitions", 1)?;
        Ok(Parameters {
            compat: self.compat,
            api: self.api,
            files: self.files()?,
            ranks: layout.ranks,
            nodes: layout.nodes,
            per_node: layout.per_node,
            block_bytes,
            transfer_bytes,
            segments: self.positive("segmentCount", 1)?,
            repetitions: u32::try_from(repetitions).map_err(|error| error.to_string())?,
            is_file_per_process: self.is_set("filePerProc"),
            is_multi_file: self.is_set("multiFile"),
            is_unique_directory: self.is_set("uniqueDir"),
            is_direct: self.only(Api::Posix, "useO_DIRECT", "--posix.odirect"),
            has_fsync: self.fsync(),
            has_fsync_per_write: self.is_set("fsyncPerWrite"),
            has_barriers: self.is_set("intraTestBarriers"),
            is_single_attempt: self.is_set("singleXferAttempt"),
            is_kept: self.is_set("keepFile"),
            is_kept_with_error: self.is_set("keepFileWithError"),
            uses_existing: self.is_set("useExistingTestFile"),
            quits_on_error: self.is_set("quitOnError"),
            order: self.order()?,
            seed: self.seed()?,
            pattern: self.pattern()?,
            is_collective: self.only(Api::Mpiio, "collective", "--collective"),
            has_view: self.only(Api::Mpiio, "useFileView", "--mpiio.useFileView"),
            preallocates: self.only(Api::Mpiio, "preallocate", "--mpiio.preallocate"),
            shows_hints: self.only(Api::Mpiio, "showHints", "--mpiio.showHints"),
            hints: self.hints()?,
            striping: self.striping()?,
            stonewall: self.stonewall()?,
            io_delay_us: self.count("interIODelay")?,
            memory_bytes: self.memory(layout.per_node)?,
            delay: Duration::from_secs(self.count("interTestDelay")?),
            time_max: match self.count("maxTimeDuration")? {
                0 => None,
                minutes => Some(Duration::from_secs(60 * minutes)),
            },
            outlier_s: self.count("outlierThreshold")?,
            phases: self.settings.phases(),
            verbose: self.number("verbose"),
            number: match self.compat {
                Compat::V2 => self.settings.number("testNum").unwrap_or(-1),
                Compat::V4 => self.number("refNum"),
            },
            reorders_constant: self.reorders_constant(),
            reorders_random: self.number("reorderTasksRandom"),
            reorder_seed: self.number("reorderTasksRandomSeed"),
            task_offset: self.settings.number("taskPerNodeOffset").unwrap_or(1),
            has_summary_always: self.is_set("summaryAlways"),
            format: Parameters::format(self.settings)?,
            summary_file: self.path("summaryFile"),
            rank_file: self.path("saveRankPerformanceDetailsCSV"),
            reorder: self.reorder(layout)?,
        })
    }

    /// Settings that ask for what is not here.
    fn refuse_what_is_missing(&mut self) -> Result<(), String> {
        for keyword in ["allocateBufferOnGPU", "GPUDirect"] {
            if self.number(keyword) != 0 {
                return Err(format!("{keyword}: not available, buffers are in memory"));
            }
        }
        for keyword in ["dualMount", "individualDataSets"] {
            if self.is_set(keyword) {
                return Err(format!("{keyword} is not available"));
            }
        }
        if self.settings.text("savePerOpDataCSV").is_some() {
            return Err(
                "savePerOpDataCSV is not available: saveRankPerformanceDetailsCSV is".into()
            );
        }
        if self.settings.text("--randomPrefill").is_some() {
            return Err("--randomPrefill is not available".into());
        }
        let is_strided = self.is_set("useStridedDatatype");
        if self.settings.is_option_set("--mpiio.useStridedDatatype")
            || (is_strided && self.compat == Compat::V4)
        {
            return Err("useStridedDatatype is not available".into());
        }
        if is_strided || self.is_set("useSharedFilePointer") {
            self.notes.push(
                "useStridedDatatype and useSharedFilePointer are left out: 2.10.3 says that it has \
                 not implemented them"
                    .into(),
            );
        }
        for keyword in ["setAlignment", "noFill"] {
            if self.number(keyword) > 1 || (keyword == "noFill" && self.is_set(keyword)) {
                self.notes.push(format!("{keyword} is for HDF5 only, and left out"));
            }
        }
        Ok(())
    }

    fn layout(&mut self, layout: Layout) -> Result<Layout, String> {
        let ranks = self.tasks(layout.ranks)?;
        let given = |keyword: &str, there: usize| match self.settings.number(keyword) {
            Some(number) if number > 0 => number as usize,
            _ => there,
        };
        Ok(Layout {
            ranks,
            nodes: given("numNodes", given("nodes", layout.nodes)),
            per_node: given("numTasksOnNode0", layout.per_node.min(ranks)),
            is_block: layout.is_block,
        })
    }

    fn tasks(&mut self, ranks: usize) -> Result<usize, String> {
        match self.settings.number("numTasks") {
            None | Some(-1) => Ok(ranks),
            Some(0) if self.compat == Compat::V2 => Ok(ranks),
            Some(asked) if asked > 0 && asked as u64 <= ranks as u64 => Ok(asked as usize),
            Some(asked) if asked > 0 => {
                let note = format!("numTasks={asked} is more than there are: {ranks} are used");
                self.notes.push(note);
                Ok(ranks)
            }
            Some(asked) => Err(format!("numTasks={asked} is too few")),
        }
    }

    fn files(&self) -> Result<Vec<PathBuf>, String> {
        let text = self.settings.text("testFile").unwrap_or(FILE_DEFAULT);
        let files: Vec<PathBuf> =
            text.split('@').filter(|name| !name.is_empty()).map(PathBuf::from).collect();
        if files.is_empty() { Err("testFile names no file".into()) } else { Ok(files) }
    }

    fn fsync(&mut self) -> bool {
        let is_ignored = self.compat == Compat::V2 && self.api == Api::Mpiio;
        if self.is_set("fsync") && is_ignored {
            self.notes.push(
                "fsync is left out, as 2.10.3 does for MPIIO: do not compare with POSIX with fsync"
                    .into(),
            );
        }
        self.is_set("fsync") && !is_ignored
    }

    fn order(&self) -> Result<Order, String> {
        match (self.number("randomOffset"), self.compat) {
            (0, _) => Ok(Order::Sequential),
            (1, Compat::V2) => Ok(Order::RandomInFile),
            (1, Compat::V4) => Ok(Order::RandomInBlock),
            (other, _) => Err(format!("randomOffset={other} is not available: 0 and 1 are")),
        }
    }

    fn seed(&self) -> Result<u32, String> {
        match self.settings.text("--random-offset-seed") {
            Some(text) => text
                .parse()
                .map_err(|_| format!("--random-offset-seed: {text:?} is no number from 0 on")),
            None => Ok(1),
        }
    }

    fn pattern(&mut self) -> Result<Pattern, String> {
        let stamp = self.number("setTimeStampSignature") as u32;
        let kind = self.settings.text("dataPacketType").unwrap_or("t");
        let kind = match (kind.chars().next().map(|c| c.to_ascii_lowercase()), self.compat) {
            (Some('i'), _) => PatternKind::Incompressible,
            (Some('r'), _) => PatternKind::Random,
            (Some('o' | 't'), _) if stamp == 0 => PatternKind::Own,
            (Some('o'), _) => PatternKind::NewOffset,
            (Some('t'), Compat::V4) => PatternKind::New,
            (Some('t'), Compat::V2) if self.is_set("storeFileOffset") => PatternKind::OldOffset,
            (Some('t'), Compat::V2) => PatternKind::Old,
            _ => {
                return Err(format!(
                    "dataPacketType {kind:?}: offset, incompressible, timestamp or random"
                ));
            }
        };
        if matches!(kind, PatternKind::Incompressible | PatternKind::Random) {
            self.notes.push("incompressible data is not, byte by byte, that of IOR".into());
            return Ok(Pattern { kind, stamp: if stamp == 0 { SEED_DEFAULT } else { stamp } });
        }
        Ok(Pattern { kind, stamp })
    }

    fn hints(&mut self) -> Result<Vec<hints::Hint>, String> {
        let mut all = hints::of_environment(std::env::vars());
        let file = self.path("hintsFileName").or_else(|| self.path("--mpiio.hintsFileName"));
        if self.api == Api::Posix {
            return Ok(Vec::new());
        }
        if let Some(path) = file {
            let text = std::fs::read_to_string(&path)
                .map_err(|error| format!("cannot read hints from {}: {error}", path.display()))?;
            hints::add_file(&mut all, &text, &mut self.notes)?;
        }
        Ok(all)
    }

    fn striping(&self) -> Result<Striping, String> {
        let option = |name: &str| match self.settings.text(&format!("--posix.lustre.{name}")) {
            None => Ok(None),
            Some(text) => crate::ior::script::size(text).map(Some),
        };
        let number = |keyword: &str| self.settings.number(keyword);
        let bytes = number("lustreStripeSize").filter(|size| *size > 0).or(option("stripesize")?);
        Ok(Striping {
            count: number("lustreStripeCount")
                .filter(|count| *count != 0)
                .or(option("stripecount")?),
            bytes: bytes.and_then(|bytes| u64::try_from(bytes).ok()),
            start: number("lustreStartOST").filter(|start| *start >= 0).or(option("startost")?),
        })
    }

    fn stonewall(&self) -> Result<Stonewall, String> {
        Ok(Stonewall {
            deadline_s: self.count("deadlineForStonewalling")?,
            wears_out: self.is_set("stoneWallingWearOut"),
            iterations: self.count("stoneWallingWearOutIterations")?,
            status_file: self.path("stoneWallingStatusFile"),
            duration_min_s: self.count("minTimeDuration")?,
        })
    }

    /// Bytes that each rank keeps in use, so that less is left for the page cache.
    fn memory(&self, per_node: usize) -> Result<u64, String> {
        let Some(text) = self.settings.text("memoryPerNode") else {
            return self.count("memoryPerTask");
        };
        let bytes = match text.strip_suffix('%') {
            None => crate::ior::script::size(text)? as u64,
            Some(percent) => {
                let percent: u64 = percent.parse().map_err(|_| format!("{text:?} is no share"))?;
                if percent > 100 {
                    return Err(format!("memoryPerNode={text} is more than there is"));
                }
                memory_of_machine().ok_or("/proc/meminfo does not tell")? / 100 * percent
            }
        };
        Ok(bytes / per_node.max(1) as u64)
    }

    fn reorders_constant(&self) -> bool {
        self.is_set("reorderTasksConstant") || self.is_set("reorderTasks")
    }

    fn reorder(&mut self, layout: Layout) -> Result<Reorder, String> {
        let offset = self.settings.number("taskPerNodeOffset").unwrap_or(1).max(0) as usize;
        let random = self.number("reorderTasksRandom");
        let seed = self.number("reorderTasksRandomSeed");
        let (ranks, node) = (layout.ranks, layout.per_node);
        if random != 0 && self.reorders_constant() {
            return Err("constant and random reordering of tasks exclude each other".into());
        }
        if random != 0 {
            if layout.nodes == 1 {
                self.notes
                    .push("random readers on one node: what they read may come from memory".into());
            }
            let min = offset.min(layout.nodes - 1) * node;
            return match random {
                1 if min < ranks => Ok(Reorder::Random { seed, min }),
                1 => Err(format!("a shift of at least {min} of {ranks} ranks is not possible")),
                2 if self.compat == Compat::V4 => Ok(Reorder::Shuffled { seed }),
                other => Err(format!("reorderTasksRandom={other} is not available")),
            };
        }
        if !self.reorders_constant() {
            return Ok(Reorder::None);
        }
        let shifts = match self.compat {
            Compat::V2 => [offset * node, 2 * node, 3 * node],
            Compat::V4 => {
                let shift = if layout.is_block { node } else { 1 };
                [offset * shift, (offset + 1) * shift, offset * shift]
            }
        };
        if shifts[0] % ranks == 0 {
            self.notes.push(format!(
                "reorderTasksConstant does nothing on {}: each rank reads what it wrote itself, \
                 perhaps from memory",
                if layout.nodes == 1 { "one node" } else { "these nodes" }
            ));
        }
        Ok(Reorder::Constant(shifts.map(|shift| shift % ranks)))
    }

    fn check(&self, it: &Parameters) -> Result<(), String> {
        let (is_random, is_shared) = (it.order != Order::Sequential, !it.is_file_per_process);
        let is_mpiio = it.api == Api::Mpiio;
        let has_deadline = it.stonewall.deadline_s > 0;
        let (block, transfer) = (it.block_bytes, it.transfer_bytes);
        let has_checks = it.phases.check_read || it.phases.check_write;
        let is_old = self.compat == Compat::V2;
        for (is_wrong, message) in [
            (!block.is_multiple_of(transfer), format!("blockSize {block} is no multiple of transferSize {transfer}")),
            (!transfer.is_multiple_of(8) || transfer > TRANSFER_BYTES_MAX, "transferSize has to be a multiple of 8, and at most 1g".into()),
            (is_random && is_old && it.phases.check_read, "randomOffset cannot be used with checkRead".into()),
            (is_random && is_mpiio && it.is_collective, "randomOffset cannot be used with collective MPIIO".into()),
            (is_random && it.has_view, "randomOffset cannot be used with useFileView".into()),
            (is_random && is_shared && it.reorder != Reorder::None, "randomOffset on a shared file cannot be used with reordering of tasks".into()),
            (is_random && !is_old && block == transfer, "randomOffset is within a block: blockSize has to be larger than transferSize".into()),
            (is_random && it.transfers().saturating_mul(if is_shared { it.ranks as u64 } else { 1 }) > RANDOM_TRANSFERS_MAX, format!("random order is kept in memory: at most {RANDOM_TRANSFERS_MAX} transfers")),
            (it.files.len() > 1 && is_shared, "several files in testFile need filePerProc".into()),
            (it.files.len() > 1 && it.is_unique_directory, "several files in testFile cannot have directories of their own (uniqueDir)".into()),
            (it.is_unique_directory && is_shared, "uniqueDir needs filePerProc".into()),
            (is_old && has_deadline && has_checks, "2.10.3 cannot check data with a deadline".into()),
            (it.stonewall.wears_out && !has_deadline, "stoneWallingWearOut needs deadlineForStonewalling".into()),
            (it.stonewall.status_file.is_some() && !it.is_kept, "stoneWallingStatusFile needs keepFile".into()),
            (is_mpiio && it.has_fsync_per_write && is_shared && (is_random || has_deadline), "fsyncPerWrite is collective in MPIIO: not with random offsets or a deadline on a shared file".into()),
            (is_mpiio && it.is_collective && is_shared && it.stonewall.duration_min_s > 0, "minTimeDuration cannot be used with collective MPIIO: ranks would disagree on the end".into()),
            (it.uses_existing && it.striping != Striping::default(), "striping cannot be changed with useExistingTestFile".into()),
        ] {
            if is_wrong {
                return Err(message);
            }
        }
        let total = it.segments.checked_mul(block).and_then(|it_| it_.checked_mul(it.ranks as u64));
        if total.is_none_or(|bytes| bytes >= AGGREGATE_BYTES_MAX) {
            return Err("blockSize × segmentCount × tasks is too large".into());
        }
        check_names(&it.files)
    }
}

/// The shim reads names line by line.
fn check_names(files: &[PathBuf]) -> Result<(), String> {
    let is_plain = |path: &Path| path.to_str().is_some_and(|name| !name.contains('\n'));
    match files.iter().find(|path| !is_plain(path)) {
        Some(path) => Err(format!("testFile {} has a line break, or is not UTF-8", path.display())),
        None => Ok(()),
    }
}

fn memory_of_machine() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib << 10)
}
