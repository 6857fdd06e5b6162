//! A profile as a load of experiments.

use super::NAME;
use super::fileset::make_file_sets;
use super::operation::{Direction, Operation};
use super::profile::{self, Compat, Profile, ProfileError, ThreadGroup};
use crate::keys::Table;
use crate::metric::Metric;
use crate::workload::{Copies, DataSet, Load};
use base::Error;
use base::messages::{Language, Text};
use std::path::Path;
use std::sync::Arc;

// What a load says of itself, in English and in Japanese.
const FFSB: Text = Text([
    "FFSB profile, threads × operations with their weights: {groups}",
    "FFSB プロファイル、スレッド数 × 操作と重み: {groups}",
]);

/// A profile as a load of experiments.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileLoad {
    /// It as it was written.
    pub text: String,
    /// What it says.
    pub profile: Profile,
}

impl ProfileLoad {
    /// Reads one; without a version, as the one whose keys it has.
    pub fn new(text: &str, compat: Option<Compat>) -> Result<Self, ProfileError> {
        Ok(Self { text: text.into(), profile: Profile::parse(text, compat)? })
    }

    /// Returns what the files are called that all instances begin with: a name of a directory.
    pub fn base_key(&self, seed: u64) -> String {
        format!("{NAME}-{seed}-{}", blake3::hash(self.text.as_bytes()).to_hex())
    }

    /// Its groups of threads with their operations.
    pub fn describe(&self) -> String {
        let group = |group: &profile::ThreadGroup| {
            let mix: Vec<String> =
                group.mix().map(|(it, weight)| format!("{} {weight}", it.name())).collect();
            format!("{} × ({})", group.threads, mix.join(", "))
        };
        let groups: Vec<String> = self.profile.groups.iter().map(group).collect();
        groups.join("; ")
    }
}

impl Load for ProfileLoad {
    fn writes(&self) -> bool {
        // Profiles make their files in any case.
        true
    }

    fn describe(&self, language: Language, _is_direct: bool) -> String {
        language.fill(&FFSB, &[("groups", &ProfileLoad::describe(self))])
    }

    fn copies(&self) -> Option<&dyn Copies> {
        Some(self)
    }
}

impl Copies for ProfileLoad {
    fn make(&self, below: &Path, data: DataSet) -> Result<(), Error> {
        let at = below.join(self.base_key(data.seed));
        // Two loads may have the same profile.
        if at.exists() {
            return Ok(());
        }
        std::fs::create_dir(&at).map_err(Error::io("cannot make", &at))?;
        make_file_sets(&self.profile, &at, data.seed)
    }

    fn bytes(&self) -> Option<u64> {
        Some(profile_bytes(&self.profile))
    }

    fn changed_bytes(&self, around: u64) -> u64 {
        changed_bytes(&self.profile, around)
    }

    fn files_written(&self) -> Option<u32> {
        None
    }

    fn describe(&self, _data: DataSet) -> String {
        "the profile's files, made once as the lower directory of all".into()
    }
}

/// Bytes of a profile's files, at most.
fn profile_bytes(profile: &Profile) -> u64 {
    let sets = profile.file_systems.iter().map(|it| match it.files {
        0 => it.init_bytes + it.largest_bytes(),
        files => u64::from(files) * it.largest_bytes(),
    });
    sets.sum()
}

/// Bytes that an instance of a profile may change: all of its files where whole ones are written, otherwise a
/// part of each. The number of new files is unknown; a full device is an error of the run.
fn changed_bytes(profile: &Profile, around: u64) -> u64 {
    let part = profile.groups.iter().map(|group| group.write.size_bytes).max().unwrap_or(0);
    let mut operations = profile.groups.iter().flat_map(ThreadGroup::mix);
    let writes_whole = operations.any(|(operation, _)| {
        operation.direction() == Direction::Write
            && !matches!(operation, Operation::Write | Operation::WriteFsync)
    });
    let files: u64 = profile.file_systems.iter().map(|it| u64::from(it.files.max(1))).sum();
    let whole = profile_bytes(profile) + files * around;
    if writes_whole { whole } else { whole.min(files * (part + around)) }
}

/// Reads a profile from the keys of a workload.
pub(super) fn read(table: &Table<'_>, _metrics: &[Metric]) -> Result<Arc<dyn Load>, Error> {
    let given = table.need_text("profile")?;
    let compat = match table.count("compat").map(|compat| *compat.value) {
        None => None,
        Some(5) => Some(Compat::V5),
        Some(6) => Some(Compat::V6),
        Some(_) => return Err(table.error(&given, "compat", "is 5 or 6")),
    };
    let load = ProfileLoad::new(given.value, compat);
    let load = load.map_err(|why| table.error(&given, "profile", why.to_string()))?;
    if load.profile.callout.is_some() {
        let message = "callout is not run in experiments: take it out";
        return Err(table.error(&given, "profile", message));
    }
    if load.profile.groups.is_empty() {
        return Err(table.error(&given, "profile", "needs a [threadgroup]"));
    }
    Ok(Arc::new(load))
}
