//! IOR in experiments: what a load and a level of it say.
//!
//! A load has IOR's options and reads or writes; a level adds options, hints, striping, and says which
//! MPI carries it out. What the plan decides (transfer size, ranks, files) cannot be an option.

use super::mpi::MpiKind;
use super::script::Settings;
use super::stripe::{self, Stripe};
use crate::level::{Missing, Setting};
use crate::workload::{Access, Load, Pattern};
use base::messages::{Language, Text};
use std::collections::BTreeMap;
use std::path::Path;

// What a load says of itself, in English and in Japanese.
const IOR_WRITE: Text = Text(["IOR write{options}", "IOR 書き込み{options}"]);
const IOR_READ: Text = Text(["IOR read{options}", "IOR 読み出し{options}"]);

/// Options that follow from the plan.
pub const RESERVED: [&str; 21] = [
    "transferSize",
    "numTasks",
    "testFile",
    "repetitions",
    "multiFile",
    "writeFile",
    "readFile",
    "checkWrite",
    "keepFile",
    "keepFileWithError",
    "useExistingTestFile",
    "hintsFileName",
    "useO_DIRECT",
    "summaryFile",
    "summaryFormat",
    "saveRankPerformanceDetailsCSV",
    "lustreStripeCount",
    "lustreStripeSize",
    "lustreStartOST",
    "stoneWallingStatusFile",
    "deadlineForStonewalling",
];

/// Options by IOR's keywords.
pub type IorOptions = BTreeMap<String, String>;

/// A load that IOR makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IorLoad {
    /// It writes, or reads what was written before.
    pub writes: bool,
    /// Its options.
    pub options: IorOptions,
}

/// A way to do it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IorLevel {
    /// Under this MPI; `None` leaves it to other levels, or is processes without MPI.
    pub mpi: Option<MpiKind>,
    /// Options, which win over those of the load.
    pub options: IorOptions,
    /// Hints for MPI-IO.
    pub hints: BTreeMap<String, String>,
    /// Striping of new files.
    pub stripe: Option<Stripe>,
}

/// Checks options: known to IOR, and not decided by the plan.
pub fn check_options(options: &IorOptions) -> Result<(), String> {
    let mut settings = Settings::default();
    for (keyword, value) in options {
        if RESERVED.iter().any(|name| name.eq_ignore_ascii_case(keyword)) {
            return Err(format!("{keyword} follows from the plan, and cannot be set"));
        }
        settings.set(keyword, value)?;
    }
    Ok(())
}

/// Returns whether an option of IOR is set; `None` if it is not given.
fn is_set(options: &IorOptions, keyword: &str) -> Option<bool> {
    let found = options.iter().find(|(key, _)| key.eq_ignore_ascii_case(keyword));
    found.map(|(_, value)| value != "0")
}

impl Load for IorLoad {
    fn writes(&self) -> bool {
        self.writes
    }

    fn describe(&self, language: Language, _is_direct: bool) -> String {
        let options = self.options.iter().map(|(key, value)| format!(", {key}={value}"));
        let message = if self.writes { IOR_WRITE } else { IOR_READ };
        language.fill(&message, &[("options", &options.collect::<String>())])
    }

    fn access(&self) -> Access {
        let is_set = |keyword| is_set(&self.options, keyword).unwrap_or(false);
        Access {
            pattern: Some(match (self.writes, is_set("randomOffset")) {
                (false, false) => Pattern::Read,
                (false, true) => Pattern::RandomRead,
                (true, false) => Pattern::Write,
                (true, true) => Pattern::RandomWrite,
            }),
            has_own_files: Some(is_set("filePerProc")),
            is_collective: Some(is_set("collective")),
        }
    }
}

impl Setting for IorLevel {
    fn engine(&self) -> &'static str {
        "ior"
    }

    fn refine(&self, _label: &str, access: &mut Access) {
        let of = |keyword| is_set(&self.options, keyword);
        access.has_own_files = of("filePerProc").or(access.has_own_files);
        access.is_collective = of("collective").or(access.is_collective);
    }

    fn check(&self) -> Result<(), Missing> {
        let found = self.mpi.map_or(Ok(()), MpiKind::check);
        found.map_err(|why| Missing(why.to_string()))
    }

    fn check_directory(&self, directory: &Path, program: &Path) -> Result<(), Missing> {
        self.stripe.map_or(Ok(()), |_| stripe::check(directory, program))
    }
}
