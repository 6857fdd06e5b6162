//! Keys of profiles: which there are, and which only one of the versions takes.

use super::lines::{Clause, Kind};
use super::{Compat, ProfileError};
use crate::ffsb::operation::Operation;
use std::collections::BTreeSet;

const GLOBAL_KEYS: &[&str] = &[
    "num_filesystems",
    "num_threadgroups",
    "time",
    "directio",
    "alignio",
    "bufferio",
    "bufferedio",
    "verbose",
    "callout",
];
const FILE_SYSTEM_KEYS: &[&str] = &[
    "location",
    "num_files",
    "num_dirs",
    "min_filesize",
    "max_filesize",
    "size_weight",
    "create_blocksize",
    "age_blocksize",
    "init_size",
    "init_util",
    "reuse",
    "agefs",
    "desired_util",
    "clone",
];
const GROUP_KEYS: &[&str] = &[
    "num_threads",
    "read_random",
    "read_size",
    "read_blocksize",
    "read_skip",
    "read_skipsize",
    "write_random",
    "write_size",
    "write_blocksize",
    "fsync_file",
    "op_delay",
    "bindfs",
];
const STATS_KEYS: &[&str] = &["enable_stats", "enable_range", "ignore", "msec_range"];
/// Keys with words instead of `=`.
const WORD_KEYS: &[&str] = &["size_weight", "msec_range"];
/// Keys whose values may have a unit, in version 6.
const SIZE_KEYS: &[&str] = &[
    "min_filesize",
    "max_filesize",
    "create_blocksize",
    "age_blocksize",
    "init_size",
    "read_size",
    "read_blocksize",
    "read_skipsize",
    "write_size",
    "write_blocksize",
];
/// Keys at which 6.0-RC2 ends with an error, though its README has them.
const OLD_KEYS: &[&str] = &[
    "num_filesystems",
    "num_threadgroups",
    "bufferedio",
    "fsync_file",
    "meta_weight",
    "rewritefsync_weight",
];
/// Keys that 5.2.1 does not know and passes over.
const NEW_KEYS: &[&str] = &["size_weight", "init_size", "init_util", "clone", "bufferio"];

/// The operation of a weight's key.
pub(super) fn weighted(key: &str) -> Option<Operation> {
    let name = key.strip_suffix("_weight")?;
    match name {
        "meta" => Some(Operation::Metaop),
        "rewritefsync" => Some(Operation::WriteallFsync),
        name => Operation::ALL.iter().find(|(known, _)| *known == name).map(|(_, it)| *it),
    }
}

/// Refuses what no version knows.
pub(super) fn check_keys(clause: &Clause) -> Result<(), ProfileError> {
    let known = match clause.kind {
        Kind::Global => GLOBAL_KEYS,
        Kind::FileSystem => FILE_SYSTEM_KEYS,
        Kind::ThreadGroup => GROUP_KEYS,
        Kind::Stats => STATS_KEYS,
    };
    for pair in &clause.pairs {
        if clause.kind == Kind::Global && pair.key == "numconfigs" {
            return Err(pair.error("this is a profile of FFSB 4, which is not supported"));
        }
        let key = pair.key.as_str();
        let is_weight = clause.kind == Kind::ThreadGroup && weighted(key).is_some();
        if !known.contains(&key) && !is_weight {
            let weights = if clause.kind == Kind::ThreadGroup { ", OPERATION_weight" } else { "" };
            let what = format!("unknown in {}: there are {}", clause.kind.name(), known.join(", "));
            return Err(pair.error(what + weights));
        }
        if pair.is_words != WORD_KEYS.contains(&key) {
            let form = if pair.is_words { "KEY=VALUE" } else { "KEY VALUE VALUE, without =" };
            return Err(pair.error(format!("is written {form}")));
        }
    }
    for inner in &clause.clauses {
        let fits = matches!(
            (clause.kind, inner.kind),
            (Kind::Global, Kind::FileSystem | Kind::ThreadGroup)
                | (Kind::FileSystem, Kind::ThreadGroup)
                | (Kind::ThreadGroup, Kind::Stats)
        );
        if !fits {
            return Err(inner.error(format!("has no place in {}", clause.kind.name())));
        }
        check_keys(inner)?;
    }
    Ok(())
}

/// What only one of the versions takes.
#[derive(Default)]
pub(super) struct Signs {
    pub(super) old: BTreeSet<String>,
    pub(super) new: BTreeSet<String>,
}

impl Signs {
    pub(super) fn look(&mut self, clause: &Clause) {
        if clause.kind == Kind::Stats {
            self.new.insert("[stats]".into());
        }
        for pair in &clause.pairs {
            let key = pair.key.as_str();
            if OLD_KEYS.contains(&key) {
                self.old.insert(key.into());
            }
            if key == "bindfs" && pair.value.parse::<u32>().is_ok() {
                self.old.insert("bindfs=NUMBER".into());
            }
            let is_new_weight = weighted(key).is_some_and(|operation| !operation.is_old());
            if NEW_KEYS.contains(&key) || is_new_weight && !OLD_KEYS.contains(&key) {
                self.new.insert(key.into());
            }
            if SIZE_KEYS.contains(&key) && pair.value.ends_with(|c: char| c.is_ascii_alphabetic()) {
                self.new.insert("sizes with units".into());
            }
        }
        clause.clauses.iter().for_each(|clause| self.look(clause));
    }

    pub(super) fn notes(&self, compat: Compat) -> Vec<String> {
        let list = |names: &BTreeSet<String>| names.iter().cloned().collect::<Vec<_>>().join(", ");
        let (old, new) = (list(&self.old), list(&self.new));
        match compat {
            Compat::V5 if !new.is_empty() => {
                vec![format!("FFSB 5.2.1 does not know and passes over: {new}; here they count")]
            }
            Compat::V6 if !old.is_empty() => {
                vec![format!("FFSB 6.0-RC2 ends with an error at: {old}; here they count")]
            }
            _ => Vec::new(),
        }
    }
}
