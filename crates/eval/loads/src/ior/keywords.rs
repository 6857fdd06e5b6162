//! The keywords of IOR scripts, of version 2.10.3 and of version 4, in one table.
//!
//! A script may use any of them. Which version knew which keyword decides, unless the user says so,
//! which version's meaning a script gets where the two disagree.

/// What a keyword's value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// 0 or 1.
    Flag,
    /// A whole number, perhaps negative.
    Number,
    /// A size: digits and one letter.
    Size,
    /// Any text.
    Text,
}

/// Which version knows a keyword.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// Both.
    Both,
    /// 2.10.3 only; version 4 aborts.
    Old,
    /// Version 4 only; 2.10.3 aborts.
    New,
}

use Kind::{Flag, Number, Size, Text};
use Known::{Both, New, Old};

/// All keywords but those of modules, as the documentation spells them; scripts may use any case.
pub(super) const KEYWORDS: [(&str, Kind, Known); 76] = [
    ("api", Text, Both),
    ("testFile", Text, Both),
    ("testNum", Number, Old),
    ("debug", Text, Both),
    ("platform", Text, Both),
    ("hintsFileName", Text, Old),
    ("deadlineForStonewalling", Number, Both),
    ("maxTimeDuration", Number, Both),
    ("outlierThreshold", Number, Both),
    ("nodes", Number, Old),
    ("repetitions", Number, Both),
    ("interTestDelay", Number, Both),
    ("readFile", Flag, Both),
    ("writeFile", Flag, Both),
    ("filePerProc", Flag, Both),
    ("reorderTasksConstant", Flag, Both),
    ("taskPerNodeOffset", Number, Both),
    ("reorderTasksRandom", Number, Both),
    ("reorderTasksRandomSeed", Number, Both),
    ("checkWrite", Flag, Both),
    ("checkRead", Flag, Both),
    ("keepFile", Flag, Both),
    ("keepFileWithError", Flag, Both),
    ("multiFile", Flag, Both),
    ("quitOnError", Flag, Old),
    ("segmentCount", Number, Both),
    ("blockSize", Size, Both),
    ("transferSize", Size, Both),
    ("setAlignment", Size, Old),
    ("singleXferAttempt", Flag, Both),
    ("individualDataSets", Flag, Old),
    ("intraTestBarriers", Flag, Both),
    ("noFill", Flag, Old),
    ("verbose", Number, Both),
    ("setTimeStampSignature", Number, Both),
    ("collective", Flag, Both),
    ("preallocate", Flag, Old),
    ("storeFileOffset", Flag, Old),
    ("useFileView", Flag, Old),
    ("useSharedFilePointer", Flag, Old),
    ("useO_DIRECT", Flag, Both),
    ("useStridedDatatype", Flag, Old),
    ("showHints", Flag, Old),
    ("showHelp", Flag, Old),
    ("uniqueDir", Flag, Both),
    ("useExistingTestFile", Flag, Both),
    ("fsyncPerWrite", Flag, Both),
    ("fsync", Flag, Both),
    ("randomOffset", Number, Both),
    ("lustreStripeCount", Number, Old),
    ("lustreStripeSize", Size, Old),
    ("lustreStartOST", Number, Old),
    ("lustreIgnoreLocks", Flag, Old),
    ("numTasks", Number, Both),
    ("refNum", Number, New),
    ("summaryFile", Text, New),
    ("summaryFormat", Text, New),
    ("saveRankPerformanceDetailsCSV", Text, New),
    ("savePerOpDataCSV", Text, New),
    ("dualMount", Flag, New),
    ("stoneWallingWearOut", Flag, New),
    ("stoneWallingWearOutIterations", Number, New),
    ("stoneWallingStatusFile", Text, New),
    ("minTimeDuration", Number, New),
    ("interIODelay", Number, New),
    ("numNodes", Number, New),
    ("numTasksOnNode0", Number, New),
    ("reorderTasks", Flag, New),
    ("warningAsErrors", Flag, New),
    ("dataPacketType", Text, New),
    ("memoryPerTask", Size, New),
    ("memoryPerNode", Text, New),
    ("summaryAlways", Flag, New),
    ("allocateBufferOnGPU", Number, New),
    ("GPUid", Number, New),
    ("GPUDirect", Flag, New),
];

/// Modules whose options (`--module.name=value`) version 4 takes; their spelling is exact.
pub(super) const MODULES: [&str; 4] = ["mpiio", "posix", "hdf5", "ncmpi"];

/// Version 4's other options of this form.
pub(super) const OPTIONS: [&str; 3] = ["collective", "random-offset-seed", "randomPrefill"];

/// Finds a keyword in any case.
pub(super) fn find(word: &str) -> Option<(&'static str, Kind, Known)> {
    KEYWORDS.iter().copied().find(|(name, _, _)| name.eq_ignore_ascii_case(word))
}
