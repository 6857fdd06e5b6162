//! A keeper's record of its work, for `tsumugi status`.

use super::super::job::JobDir;
use super::super::place;
use anyhow::Context;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Write};

const FILE: &str = "keeper.json";
/// Longest file.
const BYTES_MAX: u64 = 1 << 20;
/// Number of restarts to remember, the latest ones.
const RESTARTS_MAX: usize = 64;

/// The record of a keeper.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeeperRecord {
    /// Restarted parts, the oldest first.
    pub(crate) restarts: Vec<Restart>,
    /// Parts that died too often and stay dead.
    pub(crate) given_up: Vec<Restart>,
}

/// A death of a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Restart {
    /// The node's name, or `meta`.
    pub(crate) part: String,
    /// Time of the discovery, in seconds since 1970.
    pub(crate) unix_seconds: u64,
    /// How it ended, as far as it is known.
    pub(crate) cause: String,
}

impl KeeperRecord {
    /// Reads the record; an empty one if there is no file.
    ///
    /// # Errors
    /// If the file cannot be read, or is not a record.
    pub(crate) fn read(dir: &JobDir) -> anyhow::Result<KeeperRecord> {
        let path = dir.join(FILE);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let mut text = Vec::new();
        let opened = rustix::fs::open(&path, flags, Mode::empty()).map_err(io::Error::from);
        match opened.and_then(|file| File::from(file).take(BYTES_MAX).read_to_end(&mut text)) {
            Ok(_) => serde_json::from_slice(&text)
                .with_context(|| format!("{} is not a keeper's record", path.display())),
            Err(error) if place::is_absent(&error) => Ok(KeeperRecord::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Replaces the file.
    pub(crate) fn write(&mut self, dir: &JobDir) -> anyhow::Result<()> {
        let surplus = self.restarts.len().saturating_sub(RESTARTS_MAX);
        self.restarts.drain(..surplus);
        let (path, beside) = (dir.join(FILE), dir.join("keeper.json.new"));
        let text = serde_json::to_vec_pretty(self)?;
        let result = (|| {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
            let opened =
                rustix::fs::open(&beside, flags | OFlags::NOFOLLOW, Mode::from_raw_mode(0o600))?;
            File::from(opened).write_all(&text)?;
            std::fs::rename(&beside, &path)
        })();
        result.with_context(|| format!("cannot write {}", path.display()))
    }
}
