//! IOR in experiments: what a load and a level of it say.
//!
//! A load has IOR's options and reads or writes; a level adds options, hints, striping, and says which
//! MPI carries it out. What the plan decides (transfer size, ranks, files) cannot be an option.

use crate::engine::ior::{MpiKind, Settings};
use std::collections::BTreeMap;

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

/// Striping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stripe {
    /// Devices per file; -1 for all.
    pub count: Option<i32>,
    /// Bytes per stripe.
    pub bytes: Option<u64>,
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
