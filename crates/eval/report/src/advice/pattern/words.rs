//! The words of a pattern.

use base::units;
use lab::shape::Shape;
use loads::engines::EngineKind;
use loads::workload::Pattern;
use std::fmt;

const HELP: &str = "read, write, mixed (each with random or sequential before it), fio's names, shared or \
                    own files, a size such as 1MiB, x N or N ranks (jobs, processes, threads), depth N, \
                    container or native, remote or local, collective or independent";
/// Words without a meaning of their own.
const FILLERS: [&str; 9] = ["file", "files", "of", "with", "by", "and", "in", "io", "mpi-io"];
/// Units that may stand apart from their number.
const SIZES: [&str; 4] = ["kib", "mib", "gib", "tib"];
/// Nouns for jobs.
const WORKERS: [&str; 8] =
    ["rank", "ranks", "job", "jobs", "process", "processes", "thread", "threads"];

/// A pattern. A property that it omits may have any value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Reads or writes, in order or at random.
    pub pattern: Option<Pattern>,
    /// Whether each job has files of its own.
    pub has_own_files: Option<bool>,
    /// Bytes per operation.
    pub block_bytes: Option<u64>,
    /// Jobs, ranks or processes.
    pub jobs: Option<u32>,
    /// Operations in flight per job.
    pub depth: Option<u32>,
    /// Whether it runs in a container.
    pub is_container: Option<bool>,
    /// Whether it runs over a fabric.
    pub is_remote: Option<bool>,
    /// Whether MPI-IO is collective.
    pub is_collective: Option<bool>,
    /// Whether the pattern says ranks, which only IOR has.
    has_ranks: bool,
}

/// Reads or writes, before the order is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Read,
    Write,
    Mixed,
}

impl Asked {
    /// Parses a pattern, e.g. `random read 4KiB x 16 depth 4 remote container`. The error names the word.
    pub fn parse(text: &str) -> Result<Self, String> {
        let words = split(text);
        let mut asked = Self::default();
        let (mut way, mut is_random) = (None, None);
        let mut at = 0;
        while let Some(word) = words.get(at).map(String::as_str) {
            let next = words.get(at + 1).map(String::as_str);
            at += 1;
            let place = at;
            let wrong = |what: &str| format!("word {place}: {word:?} {what}");
            match word {
                "read" => once(&mut way, Way::Read),
                "write" => once(&mut way, Way::Write),
                "mixed" => once(&mut way, Way::Mixed),
                "random" => once(&mut is_random, true),
                "sequential" => once(&mut is_random, false),
                "shared" => once(&mut asked.has_own_files, false),
                "own" => once(&mut asked.has_own_files, true),
                "container" => once(&mut asked.is_container, true),
                "native" => once(&mut asked.is_container, false),
                "remote" => once(&mut asked.is_remote, true),
                "local" => once(&mut asked.is_remote, false),
                "collective" => once(&mut asked.is_collective, true),
                "independent" => once(&mut asked.is_collective, false),
                "x" | "depth" => {
                    let number = next.and_then(positive);
                    let number = number.ok_or_else(|| wrong("needs a number above 0 after it"))?;
                    at += 1;
                    if word == "x" {
                        once(&mut asked.jobs, number)
                    } else {
                        once(&mut asked.depth, number)
                    }
                }
                word if FILLERS.contains(&word) => Ok(()),
                word if WORKERS.contains(&word) && asked.jobs.is_some() => {
                    asked.has_ranks |= word.starts_with("rank");
                    Ok(())
                }
                word => match (fio_name(word), positive(word), units::parse_bytes(word)) {
                    (Some((known, random)), _, _) => {
                        once(&mut is_random, random).and_then(|()| once(&mut way, known))
                    }
                    (None, Some(number), _) if next.is_some_and(|it| WORKERS.contains(&it)) => {
                        once(&mut asked.jobs, number)
                    }
                    (None, Some(_), _) => return Err(wrong("is a number of what?")),
                    (None, None, Ok(bytes)) if bytes > 0 => once(&mut asked.block_bytes, bytes),
                    _ => return Err(wrong(&format!("is not known: there are {HELP}"))),
                },
            }
            .map_err(|()| wrong("says the same twice, or the contrary"))?;
        }
        asked.pattern = pattern(way, is_random.unwrap_or(false))?;
        if asked == Self::default() {
            return Err(format!("the pattern is empty: there are {HELP}"));
        }
        Ok(asked)
    }

    /// Returns whether reads or writes and the files match, whatever the place.
    pub(super) fn is_pattern_of(&self, shape: &Shape) -> bool {
        self.pattern.is_none_or(|pattern| shape.pattern == Some(pattern))
            && (self.has_own_files.is_none() || self.has_own_files == shape.has_own_files)
            && (self.is_collective.is_none() || self.is_collective == shape.is_collective)
    }

    /// Returns whether a run is the requested work, of any size. A requested property that is unknown of a
    /// run does not match.
    pub(super) fn is_work_of(&self, shape: &Shape) -> bool {
        self.is_pattern_of(shape)
            && (self.is_container.is_none() || self.is_container == shape.is_container)
            && (self.is_remote.is_none() || self.is_remote == shape.is_remote)
    }

    /// Returns the sum of the distances of size, jobs and depth; `None` if one exceeds `most`.
    pub(super) fn octaves(&self, shape: &Shape, most: f64) -> Option<f64> {
        let away = |asked: Option<f64>, found: f64| {
            asked.map_or(0.0, |asked| (found / asked).log2().abs())
        };
        let parts = [
            away(self.block_bytes.map(|it| it as f64), shape.block_bytes as f64),
            away(self.jobs.map(f64::from), f64::from(shape.jobs)),
            away(self.depth.map(f64::from), f64::from(shape.depth)),
        ];
        parts.iter().all(|part| *part <= most).then(|| parts.iter().sum())
    }

    /// Returns the rules that answer the question by name; missing measurements are reported for them.
    pub(super) fn rules(&self) -> Vec<&'static str> {
        [
            (self.is_remote.is_some(), "A1"),
            (self.is_container.is_some(), "A2"),
            (self.block_bytes.is_some(), "A3"),
            (self.jobs.is_some() || self.depth.is_some(), "A4"),
            (self.has_own_files.is_some(), "A10"),
            (self.is_collective.is_some(), "A11"),
        ]
        .into_iter()
        .filter_map(|(is_asked, id)| is_asked.then_some(id))
        .collect()
    }

    /// Returns one of our experiments that measures similar work, and its engine.
    pub(super) fn experiment(&self) -> (&'static str, EngineKind) {
        let is_ior = self.has_ranks || self.has_own_files.is_some() || self.is_collective.is_some();
        if is_ior && self.pattern != Some(Pattern::RandomMixed) {
            ("experiments/parallel-io.toml", EngineKind::of(&loads::ior::ENGINE))
        } else {
            ("experiments/nvmeof-container.toml", EngineKind::of(&loads::fio::ENGINE))
        }
    }
}

/// Splits a text into lower-case words: `x64` gives two, `1 MiB` one.
fn split(text: &str) -> Vec<String> {
    let lower = text.to_ascii_lowercase().replace(',', " ").replace('×', " x ");
    let mut words: Vec<String> = Vec::new();
    for word in lower.split_whitespace() {
        let is_number = words.last().is_some_and(|last| positive(last).is_some());
        match word.strip_prefix('x') {
            Some(number) if positive(number).is_some() => {
                words.extend(["x".to_string(), number.to_string()]);
            }
            _ if is_number && SIZES.contains(&word) => {
                if let Some(last) = words.last_mut() {
                    last.push_str(word);
                }
            }
            _ => words.push(word.to_string()),
        }
    }
    words
}

/// Sets a property that was not set.
fn once<T>(value: &mut Option<T>, to: T) -> Result<(), ()> {
    if value.is_some() {
        return Err(());
    }
    *value = Some(to);
    Ok(())
}

/// Parses a whole number above 0.
fn positive(word: &str) -> Option<u32> {
    word.parse().ok().filter(|number| *number > 0)
}

fn fio_name(word: &str) -> Option<(Way, bool)> {
    match word {
        "randread" => Some((Way::Read, true)),
        "randwrite" => Some((Way::Write, true)),
        "randrw" => Some((Way::Mixed, true)),
        _ => None,
    }
}

fn pattern(way: Option<Way>, is_random: bool) -> Result<Option<Pattern>, String> {
    Ok(match (way, is_random) {
        (None, false) => None,
        (None, true) => return Err("random needs read, write or mixed with it".into()),
        (Some(Way::Read), false) => Some(Pattern::Read),
        (Some(Way::Read), true) => Some(Pattern::RandomRead),
        (Some(Way::Write), false) => Some(Pattern::Write),
        (Some(Way::Write), true) => Some(Pattern::RandomWrite),
        (Some(Way::Mixed), true) => Some(Pattern::RandomMixed),
        (Some(Way::Mixed), false) => return Err("mixed is measured at random only".into()),
    })
}

impl fmt::Display for Asked {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let either = |value: Option<bool>, yes: &str, no: &str| {
            value.map(|value| if value { yes.to_string() } else { no.to_string() })
        };
        let words = [
            self.pattern.map(|pattern| pattern.name().to_string()),
            either(self.has_own_files, "own files", "shared files"),
            self.block_bytes.map(units::bytes),
            self.jobs.map(|jobs| format!("x {jobs}")),
            self.depth.map(|depth| format!("depth {depth}")),
            either(self.is_container, "container", "native"),
            either(self.is_remote, "remote", "local"),
            either(self.is_collective, "collective", "independent"),
        ];
        let words: Vec<String> = words.into_iter().flatten().collect();
        formatter.write_str(&words.join(", "))
    }
}
