//! The JSON of version 4: its keys in its order, always valid, and numbers with all their digits.

use super::text;
use super::{KIB, MB, MIB, Row, names, v4};
use crate::ior::conductor::Event;
use crate::ior::order::Reorder;
use crate::ior::parameters::Parameters;
use crate::ior::phase::{Access, Order};
use crate::ior::script::Compat;
use serde::{Serialize, Serializer};

/// Keys and values in their order.
#[derive(Clone, Debug)]
pub(super) struct Object(Vec<(&'static str, Item)>);

/// A value.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Item {
    Text(String),
    Whole(i64),
    Number(f64),
    Object(Object),
    List(Vec<Object>),
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

impl From<&str> for Item {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Item {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<f64> for Item {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<i64> for Item {
    fn from(number: i64) -> Self {
        Self::Whole(number)
    }
}

impl From<u64> for Item {
    fn from(number: u64) -> Self {
        Self::Whole(number as i64)
    }
}

impl From<bool> for Item {
    fn from(flag: bool) -> Self {
        Self::Whole(flag.into())
    }
}

fn object<const N: usize>(items: [(&'static str, Item); N]) -> Object {
    Object(items.into())
}

/// A result of a repetition.
pub(super) fn result(parameters: &Parameters, event: &Event<'_>) -> Option<Object> {
    match event {
        Event::Measured(it) => Some(object([
            ("access", it.access.name().into()),
            ("bwMiB", (it.bandwidth() / MIB).into()),
            ("blockKiB", (parameters.block_bytes as f64 / KIB).into()),
            ("xferKiB", (parameters.transfer_bytes as f64 / KIB).into()),
            ("iops", v4::operations(parameters, it).into()),
            ("latency", it.latency_s.into()),
            ("openTime", it.open_s.into()),
            ("wrRdTime", it.transfer_s.into()),
            ("closeTime", it.close_s.into()),
            ("totalTime", it.total_s.into()),
        ])),
        Event::Removed { seconds, .. } if parameters.verbose >= 1 => {
            Some(object([("access", "remove".into()), ("totalTime", (*seconds).into())]))
        }
        _ => None,
    }
}

/// A test.
pub(super) fn test(
    index: usize,
    started: &str,
    it: &Parameters,
    about: &str,
    results: Vec<Object>,
    rows: &[Row<'_>],
) -> Object {
    let mut test = vec![("TestID", Item::Whole(index as i64)), ("StartTime", started.into())];
    let path = it.file(0, 0);
    test.push(("Path", path.display().to_string().into()));
    if let Some(words) = text::file_system(&path) {
        let names = ["Capacity", "Used Capacity", "Inodes", "Used Inodes"];
        test.extend(names.into_iter().zip(words.map(Item::Text)));
    }
    test.push(("Parameters", Item::Object(parameters(index, it))));
    let options = v4::options(it, about).into_iter().map(|(key, value)| {
        let is_number = !matches!(key, "GPUDirect" | "apiVersion");
        let whole = value.parse().ok().filter(|_| is_number).map(Item::Whole);
        (key, whole.unwrap_or(Item::Text(value)))
    });
    test.push(("Options", Item::Object(Object(options.collect()))));
    test.push(("Results", Item::List(results)));
    if it.verbose >= 1 {
        let mut max = Vec::new();
        for row in rows {
            let names = match row.access {
                Access::Write => ["writeMiB", "writeMB"],
                _ => ["readMiB", "readMB"],
            };
            max.push((names[0], row.bandwidth.max.into()));
            max.push((names[1], (row.bandwidth.max * MIB / MB).into()));
        }
        test.push(("max", Item::Object(Object(max))));
    }
    Object(test)
}

fn parameters(index: usize, it: &Parameters) -> Object {
    Object(vec![
        ("testID", (index as u64).into()),
        ("refnum", it.number.into()),
        ("api", it.api.name().into()),
        ("platform", text::machine().into()),
        ("testFileName", names(it).into()),
        ("deadlineForStonewall", it.stonewall.deadline_s.into()),
        ("stoneWallingWearOut", it.stonewall.wears_out.into()),
        ("maxTimeDuration", it.time_max.map_or(0, |max| max.as_secs() / 60).into()),
        ("outlierThreshold", it.outlier_s.into()),
        ("nodes", (it.nodes as u64).into()),
        ("memoryPerTask", it.memory_bytes.into()),
        ("tasksPerNode", (it.per_node as u64).into()),
        ("repetitions", u64::from(it.repetitions).into()),
        ("multiFile", it.is_multi_file.into()),
        ("interTestDelay", it.delay.as_secs().into()),
        ("fsync", it.has_fsync.into()),
        ("fsyncperwrite", it.has_fsync_per_write.into()),
        ("useExistingTestFile", it.uses_existing.into()),
        ("uniqueDir", it.is_unique_directory.into()),
        ("singleXferAttempt", it.is_single_attempt.into()),
        ("readFile", it.phases.read.into()),
        ("writeFile", it.phases.write.into()),
        ("filePerProc", it.is_file_per_process.into()),
        ("reorderTasks", matches!(it.reorder, Reorder::Constant(_)).into()),
        ("reorderTasksRandom", it.reorders_random.into()),
        ("reorderTasksRandomSeed", it.reorder_seed.into()),
        ("randomOffset", (it.order != Order::Sequential).into()),
        ("checkWrite", it.phases.check_write.into()),
        ("checkRead", it.phases.check_read.into()),
        ("keepFile", it.is_kept.into()),
        ("keepFileWithError", it.is_kept_with_error.into()),
        ("verbose", it.verbose.into()),
        ("setTimeStampSignature/incompressibleSeed", u64::from(it.pattern.stamp).into()),
        ("collective", it.is_collective.into()),
        ("segmentCount", it.segments.into()),
        ("transferSize", it.transfer_bytes.into()),
        ("blockSize", it.block_bytes.into()),
    ])
}

/// A line of the summary.
fn summary(index: usize, row: &Row<'_>) -> Object {
    let (it, bandwidth, calls) = (row.parameters, &row.bandwidth, &row.operations);
    let mut all = vec![
        ("operation", row.access.name().into()),
        ("API", it.api.name().into()),
        ("TestID", (index as u64).into()),
        ("ReferenceNumber", if it.compat == Compat::V4 { it.number } else { 0 }.into()),
        ("segmentCount", it.segments.into()),
        ("blockSize", it.block_bytes.into()),
        ("transferSize", it.transfer_bytes.into()),
        ("numTasks", (it.ranks as u64).into()),
        ("tasksPerNode", (it.per_node as u64).into()),
        ("repetitions", u64::from(it.repetitions).into()),
        ("filePerProc", it.is_file_per_process.into()),
        ("reorderTasks", it.reorders_constant.into()),
        ("taskPerNodeOffset", it.task_offset.into()),
        ("reorderTasksRandom", it.reorders_random.into()),
        ("reorderTasksRandomSeed", it.reorder_seed.into()),
        ("bwMaxMIB", bandwidth.max.into()),
        ("bwMinMIB", bandwidth.min.into()),
        ("bwMeanMIB", bandwidth.mean.into()),
        ("bwStdMIB", bandwidth.deviation.into()),
        ("OPsMax", calls.max.into()),
        ("OPsMin", calls.min.into()),
        ("OPsMean", calls.mean.into()),
        ("OPsSD", calls.deviation.into()),
        ("MeanTime", row.seconds_mean.into()),
    ];
    if let Some((seconds, rate)) = row.stonewall {
        all.push(("StoneWallTime", seconds.into()));
        all.push(("StoneWallbwMeanMIB", rate.into()));
    }
    all.push(("xsizeMiB", (row.bytes as f64 / MIB).into()));
    Object(all)
}

/// Everything.
pub(super) fn all(
    began: &str,
    command: &str,
    tests: Vec<Object>,
    rows: &[(usize, Row<'_>)],
) -> String {
    let version = concat!("tsumugi-", env!("CARGO_PKG_VERSION"), " as IOR-4");
    let summary = rows.iter().map(|(index, row)| self::summary(*index, row)).collect();
    let all = object([
        ("Version", version.into()),
        ("Began", began.into()),
        ("Command line", command.into()),
        ("Machine", text::machine().into()),
        ("tests", Item::List(tests)),
        ("summary", Item::List(summary)),
        ("Finished", text::now().into()),
    ]);
    // Keys are texts and all numbers can be shown: this cannot fail.
    serde_json::to_string_pretty(&all).unwrap_or_default() + "\n"
}
