//! Levels and workloads for tests, from the text of a file.

use crate::engine::{Turn, Work};
use crate::engines::EngineKind;
use crate::keys::{Placed, Source};
use crate::level::Level;
use crate::levels::{self, RawLevel};
use crate::workload::{Cell, DataSet, Workload};
use crate::workloads::{RawWorkload, workloads};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Text {
    engine: String,
    file_size: Placed<String>,
    #[serde(default)]
    level: BTreeMap<String, Placed<RawLevel>>,
    workload: Vec<Placed<RawWorkload>>,
}

/// What a file says.
pub(crate) struct Read {
    pub(crate) levels: BTreeMap<String, Level>,
    pub(crate) workload: Workload,
    pub(crate) data: DataSet,
}

/// Reads the levels and the first workload of a text.
pub(crate) fn read(text: &str) -> Read {
    let file: Text = toml::from_str(text).unwrap();
    let source = Source(text);
    let bytes = source.bytes(&file.file_size, "file-size").unwrap();
    let engine = EngineKind::all().into_iter().find(|(name, _)| *name == file.engine).unwrap().1;
    let workload = workloads(source, &file.workload, engine, (&file.file_size, bytes)).unwrap();
    let level = |(name, raw): (&String, _)| {
        let level = levels::level(source, &format!("level.{name}"), name, raw).unwrap();
        assert_eq!(engine.mismatch(&level), None);
        (name.clone(), level)
    };
    Read {
        levels: file.level.iter().map(level).collect(),
        workload: workload.into_iter().next().unwrap(),
        data: DataSet { bytes, seed: 1 },
    }
}

impl Read {
    /// The cell with this size, jobs and depth.
    pub(crate) fn cell(&self, block_size: u64, jobs: u32, depth: u32) -> Cell {
        let worker = base::messages::Message::Job;
        let id = format!("{}/bs={block_size}", self.workload.name);
        Cell { id, workload: 0, block_size, jobs, worker, depth, rate: 0, batch: 1 }
    }

    /// A run of a cell under these levels.
    pub(crate) fn work<'a>(&'a self, cell: &'a Cell, levels: &[&str], time: Duration) -> Work<'a> {
        Work {
            workload: &self.workload,
            cell,
            condition: "condition",
            levels: levels.iter().map(|name| &self.levels[*name]).collect(),
            place: None,
            time,
            ramp: Duration::from_millis(500),
            seed: 7,
            data: self.data,
            turn: Turn::default(),
        }
    }
}
