//! What the keys of a profile mean.

use super::keys::{Signs, check_keys, weighted};
use super::lines::{Clause, Kind, Pair, clauses};
use super::{
    Access, Aging, Compat, FileSystem, Profile, ProfileError, SizeWeight, Statistics, ThreadGroup,
};
use crate::ffsb::operation::{Call, Direction, Operation};

const FILES_MAX: u32 = 100_000_000;
const THREADS_MAX: u32 = 4096;
const BLOCK_BYTES_MAX: u64 = 1 << 30;
const FILE_BYTES_MAX: u64 = 1 << 50;
/// A day.
const DELAY_MS_MAX: u32 = 86_400_000;
/// As FFSB has it.
const BLOCK_BYTES_DEFAULT: u32 = 4096;

/// Reads a profile.
pub(super) fn profile(text: &str, compat: Option<Compat>) -> Result<Profile, ProfileError> {
    let global = clauses(text)?;
    check_keys(&global)?;
    let mut signs = Signs::default();
    signs.look(&global);
    let compat = compat.unwrap_or(if signs.new.is_empty() && !signs.old.is_empty() {
        Compat::V5
    } else {
        Compat::V6
    });
    let mut reader = Reader { compat, notes: signs.notes(compat) };
    reader.profile(&global)
}

struct Reader {
    compat: Compat,
    notes: Vec<String>,
}

impl Reader {
    fn profile(&mut self, global: &Clause) -> Result<Profile, ProfileError> {
        let of = |kind| global.clauses.iter().filter(move |clause| clause.kind == kind);
        for (key, kind) in
            [("num_filesystems", Kind::FileSystem), ("num_threadgroups", Kind::ThreadGroup)]
        {
            let Some(pair) = global.get(key) else { continue };
            let (said, found) = (number(pair, FILES_MAX)? as usize, of(kind).count());
            if said != found {
                return Err(pair.error(format!("says {said}, but there are {found}")));
            }
        }
        let time_s = global.get("time").map_or(Ok(0), |pair| number(pair, u32::MAX))?;
        let is_direct = self.flag(global, "directio")?.unwrap_or(false);
        let is_aligned = self.flag(global, "alignio")?.unwrap_or(false) || is_direct;
        for key in ["bufferio", "bufferedio", "verbose"] {
            if self.flag(global, key)? == Some(true) {
                self.notes.push(format!("{key} does nothing, as in FFSB"));
            }
        }
        let file_systems = self.file_systems(&of(Kind::FileSystem).collect::<Vec<_>>())?;
        let mut groups: Vec<ThreadGroup> = Vec::new();
        for clause in of(Kind::ThreadGroup) {
            let group = self.group(clause, groups.last(), &file_systems)?;
            groups.push(group);
        }
        if file_systems.is_empty() {
            return Err(global.error("needs a [filesystem]"));
        }
        if groups.is_empty() && time_s > 0 {
            return Err(global.error("needs a [threadgroup], or time=0 to make files only"));
        }
        let callout = global.get("callout").map(|pair| self.callout(pair));
        let (compat, notes) = (self.compat, std::mem::take(&mut self.notes));
        Ok(Profile { compat, time_s, is_direct, is_aligned, callout, file_systems, groups, notes })
    }

    fn callout(&mut self, pair: &Pair) -> String {
        if self.compat == Compat::V5 {
            return pair.whole.clone();
        }
        if pair.value.contains(char::is_whitespace) {
            self.notes.push("FFSB 6.0-RC2 takes the blanks out of callout; here they stay".into());
        }
        pair.value.clone()
    }

    fn flag(&self, clause: &Clause, key: &str) -> Result<Option<bool>, ProfileError> {
        let Some(pair) = clause.get(key) else { return Ok(None) };
        match number(pair, u32::MAX)? {
            0 => Ok(Some(false)),
            1 => Ok(Some(true)),
            _ if self.compat == Compat::V5 => Ok(Some(true)),
            _ => Err(pair.error("is 0 or 1")),
        }
    }

    fn size(&self, clause: &Clause, key: &str, max: u64) -> Result<Option<u64>, ProfileError> {
        let Some(pair) = clause.get(key) else { return Ok(None) };
        let bytes = self.bytes(&pair.value).map_err(|why| pair.error(why))?;
        if bytes > max { Err(pair.error(format!("is at most {max}"))) } else { Ok(Some(bytes)) }
    }

    /// Digits with k, kb, m, mb, g or gb: powers of 1024.
    fn bytes(&self, text: &str) -> Result<u64, String> {
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (digits, unit) = text.split_at(end);
        let shift = match unit.to_ascii_lowercase().as_str() {
            "" => 0,
            _ if self.compat == Compat::V5 => {
                let what = format!("FFSB 5 has no units and reads {digits:?} here: ");
                return Err(what + "write bytes, or choose version 6");
            }
            "k" | "kb" => 10,
            "m" | "mb" => 20,
            "g" | "gb" => 30,
            _ => return Err(format!("{text:?} is no size, e.g. 4096, 4k, 1mb or 2g")),
        };
        let number: u64 = digits.parse().map_err(|_| format!("{text:?} is no size, e.g. 4096"))?;
        let bytes = number.checked_shl(shift).filter(|bytes| bytes >> shift == number);
        bytes.ok_or_else(|| format!("{text} is too large"))
    }

    fn file_systems(&mut self, all: &[&Clause]) -> Result<Vec<FileSystem>, ProfileError> {
        let mut read: Vec<FileSystem> = Vec::new();
        for clause in all {
            let location = clause.get("location").ok_or_else(|| clause.error("needs location="))?;
            let own_location = location.value.trim_end_matches('/');
            let location_text = if own_location.is_empty() { "/" } else { own_location };
            if location_text.contains(char::is_whitespace) {
                return Err(location.error("FFSB takes no blanks in it"));
            }
            if read.iter().any(|other| other.location == location_text) {
                return Err(location.error("another file system has the same location"));
            }
            let previous = read.last().filter(|_| self.compat == Compat::V5).cloned();
            let body = self.cloned(clause, all)?;
            let mut file_system = self.file_system(body, previous)?;
            file_system.location = location_text.into();
            read.push(file_system);
        }
        Ok(read)
    }

    /// The clause that has a file system's keys: its own, or the one that it is a clone of.
    fn cloned<'a>(
        &mut self,
        clause: &'a Clause,
        all: &[&'a Clause],
    ) -> Result<&'a Clause, ProfileError> {
        let Some(pair) = clause.get("clone") else { return Ok(clause) };
        let same = |path: &str| path.trim_end_matches('/') == pair.value.trim_end_matches('/');
        let found = all.iter().find(|it| it.get("location").is_some_and(|at| same(&at.value)));
        let found = *found.ok_or_else(|| pair.error("no file system has this location"))?;
        if found.get("clone").is_some() {
            return Err(pair.error("is a clone itself"));
        }
        if clause.pairs.iter().any(|it| !matches!(it.key.as_str(), "location" | "clone")) {
            let what = format!("line {}: of a clone only the location counts", clause.line);
            self.notes.push(what);
        }
        Ok(found)
    }

    fn file_system(
        &mut self,
        clause: &Clause,
        previous: Option<FileSystem>,
    ) -> Result<FileSystem, ProfileError> {
        let base = previous.unwrap_or_else(|| FileSystem {
            location: String::new(),
            files: 0,
            directories: 0,
            min_bytes: 0,
            max_bytes: 0,
            weights: Vec::new(),
            create_block_bytes: BLOCK_BYTES_DEFAULT,
            age_block_bytes: BLOCK_BYTES_DEFAULT,
            init_bytes: 0,
            init_share: 0.0,
            reuses: false,
            aging: None,
        });
        let count = |key, default| count(clause, key, FILES_MAX, default);
        let size = |key, default| Ok(self.size(clause, key, FILE_BYTES_MAX)?.unwrap_or(default));
        let block = |key, default| -> Result<u32, ProfileError> {
            let bytes = self.size(clause, key, BLOCK_BYTES_MAX)?.filter(|bytes| *bytes > 0);
            Ok(bytes.map_or(default, |bytes| bytes as u32))
        };
        let weights = self.weights(clause)?;
        let file_system = FileSystem {
            files: count("num_files", base.files)?,
            directories: count("num_dirs", base.directories)?,
            min_bytes: size("min_filesize", base.min_bytes)?,
            max_bytes: size("max_filesize", base.max_bytes)?,
            weights: if weights.is_empty() { base.weights } else { weights },
            create_block_bytes: block("create_blocksize", base.create_block_bytes)?,
            age_block_bytes: block("age_blocksize", base.age_block_bytes)?,
            init_bytes: size("init_size", base.init_bytes)?,
            init_share: share(clause, "init_util")?.unwrap_or(base.init_share),
            reuses: self.flag(clause, "reuse")?.unwrap_or(base.reuses),
            aging: self.aging(clause, base.aging)?,
            location: base.location,
        };
        if file_system.max_bytes < file_system.min_bytes {
            let at = clause.get("max_filesize").or(clause.get("min_filesize"));
            let what = "max_filesize is below min_filesize";
            return Err(at.map_or_else(|| clause.error(what), |pair| pair.error(what)));
        }
        if file_system.reuses && file_system.aging.is_some() {
            return Err(clause.error("agefs and reuse exclude each other"));
        }
        Ok(file_system)
    }

    fn weights(&self, clause: &Clause) -> Result<Vec<SizeWeight>, ProfileError> {
        let read = |pair: &Pair| {
            let words: Vec<&str> = pair.value.split_whitespace().collect();
            let [size, weight] = words.as_slice() else {
                return Err(pair.error("is written size_weight SIZE WEIGHT"));
            };
            let bytes = self.bytes(size).map_err(|why| pair.error(why))?;
            let weight = weight.parse().map_err(|_| pair.error("the weight is no whole number"))?;
            Ok(SizeWeight { bytes, weight })
        };
        let weights = clause.all("size_weight").map(read).collect::<Result<Vec<_>, _>>()?;
        if !weights.is_empty() && weights.iter().all(|it| it.weight == 0) {
            return Err(clause.error("each size_weight is 0"));
        }
        Ok(weights)
    }

    fn aging(
        &mut self,
        clause: &Clause,
        base: Option<Aging>,
    ) -> Result<Option<Aging>, ProfileError> {
        match self.flag(clause, "agefs")? {
            None => return Ok(base),
            Some(false) => return Ok(None),
            Some(true) => {}
        }
        let needs = "agefs=1 needs a [threadgroup] in the file system";
        let inner = clause.clauses.first().ok_or_else(|| clause.error(needs))?;
        let group = self.group(inner, None, &[])?;
        if let Some((operation, _)) = group.mix().find(|(operation, _)| !operation.ages()) {
            let what = format!("file systems are not aged with {}: there are ", operation.name());
            return Err(inner.error(what + "create, append, delete and those with _fsync"));
        }
        let share = share(clause, "desired_util")?.filter(|share| *share > 0.0);
        let share = share.ok_or_else(|| clause.error("agefs=1 needs desired_util above 0"))?;
        Ok(Some(Aging { group, share }))
    }

    fn group(
        &mut self,
        clause: &Clause,
        previous: Option<&ThreadGroup>,
        file_systems: &[FileSystem],
    ) -> Result<ThreadGroup, ProfileError> {
        // Weights, the bound file system and statistics are each group's own in version 5 too.
        let inherited = previous.filter(|_| self.compat == Compat::V5);
        let base = inherited.cloned().unwrap_or_default();
        let skips = self.flag(clause, "read_skip")?.unwrap_or(base.read_skip_bytes > 0);
        let skip = self.size(clause, "read_skipsize", BLOCK_BYTES_MAX)?;
        let skip = skip.map_or(base.read_skip_bytes, |bytes| bytes as u32);
        let mut group = ThreadGroup {
            threads: count(clause, "num_threads", THREADS_MAX, base.threads)?,
            weights: [0; Operation::COUNT],
            read: self.access(clause, "read", base.read)?,
            read_skip_bytes: if skips { skip } else { 0 },
            write: self.access(clause, "write", base.write)?,
            delay_ms: count(clause, "op_delay", DELAY_MS_MAX, base.delay_ms)?,
            bound: clause.get("bindfs").map(|pair| bound(pair, file_systems)).transpose()?,
            statistics: self.statistics(clause)?,
        };
        for pair in &clause.pairs {
            if let Some(operation) = weighted(&pair.key) {
                group.weights[operation.index()] = number(pair, FILES_MAX)?;
            }
        }
        if self.flag(clause, "fsync_file")? == Some(true) {
            self.fsync(&mut group);
        }
        verify(clause, &group, skips)?;
        if group.read.is_random || group.write.is_random {
            self.note_remainders(&group);
        }
        Ok(group)
    }

    /// What version 5 says with a key of its own is an operation in version 6.
    fn fsync(&mut self, group: &mut ThreadGroup) {
        let weight = std::mem::take(&mut group.weights[Operation::Write.index()]);
        group.weights[Operation::WriteFsync.index()] += weight;
        if weight > 0 {
            let what =
                "fsync_file=1: writes are counted as write_fsync; FFSB 5 counts them as write";
            self.notes.push(what.into());
        }
    }

    fn note_remainders(&mut self, group: &ThreadGroup) {
        for (name, it) in [("read", group.read), ("write", group.write)] {
            if it.is_random && it.block_bytes > 0 && it.size_bytes % u64::from(it.block_bytes) > 0 {
                let what =
                    format!("{name}_size is no multiple of {name}_blocksize: random accesses ");
                let rest = "are of whole blocks, and only they count (FFSB counts all of the size)";
                self.notes.push(what + rest);
            }
        }
    }

    fn access(&self, clause: &Clause, way: &str, base: Access) -> Result<Access, ProfileError> {
        let key = |what: &str| format!("{way}_{what}");
        let size = self.size(clause, &key("size"), FILE_BYTES_MAX)?;
        let block = self.size(clause, &key("blocksize"), BLOCK_BYTES_MAX)?;
        Ok(Access {
            is_random: self.flag(clause, &key("random"))?.unwrap_or(base.is_random),
            size_bytes: size.unwrap_or(base.size_bytes),
            block_bytes: block.map_or(base.block_bytes, |bytes| bytes as u32),
        })
    }

    fn statistics(&self, clause: &Clause) -> Result<Option<Statistics>, ProfileError> {
        let Some(clause) = clause.clauses.first() else { return Ok(None) };
        let mut statistics = Statistics::default();
        for pair in clause.all("ignore") {
            let name = pair.value.to_ascii_lowercase();
            let call = Call::ALL.iter().find(|(known, _)| *known == name);
            let (_, call) = call.ok_or_else(|| {
                let names: Vec<_> = Call::ALL.iter().map(|(name, _)| *name).collect();
                pair.error(format!("is one of {}", names.join(", ")))
            })?;
            statistics.ignored.insert(*call);
        }
        for pair in clause.all("msec_range") {
            let words: Vec<f64> =
                pair.value.split_whitespace().map_while(|it| it.parse().ok()).collect();
            let [from, until] = words.as_slice() else {
                return Err(pair.error("is written msec_range FROM UNTIL, in ms"));
            };
            if !(0.0..=4e6).contains(from) || !(*from..=4e6).contains(until) {
                return Err(pair.error("goes from 0 or more up to at most 4000000"));
            }
            let us = |ms: f64| (ms * 1000.0).round() as u32;
            statistics.ranges_us.push((us(*from), us(*until)));
        }
        if self.flag(clause, "enable_range")? != Some(true) {
            statistics.ranges_us.clear();
        }
        Ok((self.flag(clause, "enable_stats")? == Some(true)).then_some(statistics))
    }
}

/// A whole number up to a limit.
fn number(pair: &Pair, max: u32) -> Result<u32, ProfileError> {
    let number = pair.value.parse::<u32>();
    let number = number.map_err(|_| pair.error(format!("{:?} is no whole number", pair.value)))?;
    if number > max { Err(pair.error(format!("is at most {max}"))) } else { Ok(number) }
}

fn count(clause: &Clause, key: &str, max: u32, default: u32) -> Result<u32, ProfileError> {
    clause.get(key).map_or(Ok(default), |pair| number(pair, max))
}

/// A number from 0 to 1.
fn share(clause: &Clause, key: &str) -> Result<Option<f64>, ProfileError> {
    let Some(pair) = clause.get(key) else { return Ok(None) };
    let share = pair.value.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
    share.map(Some).ok_or_else(|| pair.error("lies between 0 and 1, e.g. 0.2 for 20 %"))
}

/// The index of the file system that a group is bound to: version 5 has numbers, version 6 locations.
fn bound(pair: &Pair, file_systems: &[FileSystem]) -> Result<usize, ProfileError> {
    let same = |it: &FileSystem| it.location == pair.value.trim_end_matches('/');
    let found = match pair.value.parse::<usize>() {
        Ok(number) => Some(number).filter(|number| *number < file_systems.len()),
        Err(_) => file_systems.iter().position(same),
    };
    found.ok_or_else(|| pair.error("is no file system's location or number"))
}

/// What a group needs for its operations, as FFSB asks for it.
fn verify(clause: &Clause, group: &ThreadGroup, skips: bool) -> Result<(), ProfileError> {
    use Operation::{Read, Readall};
    let has = |operation: Operation| group.weights[operation.index()] > 0;
    if group.threads == 0 {
        return Err(clause.error("needs num_threads of 1 or more"));
    }
    if group.mix().next().is_none() {
        return Err(clause.error("needs an operation with a weight"));
    }
    if (has(Read) || has(Readall)) && group.read.block_bytes == 0 {
        return Err(clause.error("reads need read_blocksize"));
    }
    let writes = |(operation, _): (Operation, u32)| operation.direction() == Direction::Write;
    if group.mix().any(writes) && group.write.block_bytes == 0 {
        return Err(clause.error("operations that write need write_blocksize"));
    }
    if skips && group.read.is_random {
        return Err(clause.error("read_random and read_skip exclude each other"));
    }
    if skips && group.read_skip_bytes == 0 {
        return Err(clause.error("read_skip needs read_skipsize"));
    }
    Ok(())
}
