//! Any command: what it says is parsed, its exit code is checked, it ends in time.
//!
//! A command is a list, run without a shell. Placeholders in it: `{file}` (written beforehand, of
//! the experiment's size) and `{directory}` around it, `{scratch}` for what need not be measured, `{cwd}` where
//! the experiment was started, `{value}` of the condition's level of kind `value`, `{block-size}`, `{jobs}`, `{depth}`, `{seconds}` and `{seed}` of the cell and run. A value that is
//! not found, or is no number above 0, makes the run a failed one: never 0, never left out.

mod load;

use crate::engine::{Declaration, Engine, SettingKind, Work};
use crate::keys::{Form, Key};
use crate::level::Setting;
use crate::metric::Metric;
use crate::outcome::Outcome;
use crate::process::{self, Finished};
use base::{Error, Stop};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use load::{Extract, Program, Source};

/// Any command.
pub const ENGINE: Declaration = Declaration {
    name: "program",
    keys: &[
        Key::new("command", Form::Texts),
        Key::new("parse", Form::Table),
        Key::new("timeout", Form::Text),
        Key::new("exit-code", Form::Integer),
        Key::new("writes", Form::Truth),
    ],
    setting: Some(SettingKind {
        kind: "value",
        noun: "values",
        keys: &[Key::new("value", Form::Text)],
        is_all: false,
        read: |table| Ok(Arc::new(Value(table.need_text("value")?.value.into()))),
    }),
    runs_this_program: false,
    programs: |workload, _| {
        let command = workload.task::<Program>().and_then(|program| program.command.first());
        command.map(PathBuf::from).into_iter().collect()
    },
    load: load::read,
    start: Some(|setup| Ok(Box::new(ProgramEngine::new(setup.scratch)))),
    ..Declaration::DEFAULT
};

/// A level that gives commands the text that replaces `{value}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value(pub String);

impl Setting for Value {
    fn engine(&self) -> &'static str {
        ENGINE.name
    }
}

/// How long an ending command may take.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// Most of a failed command's words that are kept.
const COMPLAINT_LETTERS_MAX: usize = 2000;

/// The engine.
#[derive(Clone, Debug)]
pub struct ProgramEngine {
    scratch: PathBuf,
    /// Where this program was started.
    start: PathBuf,
}

impl ProgramEngine {
    /// An engine with a directory of ours for scratch.
    pub fn new(scratch: PathBuf) -> Self {
        // Without one a command that asks for it is not found, and says so.
        Self { scratch, start: std::env::current_dir().unwrap_or_default() }
    }
}

impl Engine for ProgramEngine {
    fn version(&self) -> String {
        "the commands of the experiment".into()
    }

    fn run(&mut self, work: &Work<'_>, stop: &Stop) -> Result<Outcome, Error> {
        let load = work.workload;
        let Some(program) = load.task::<Program>() else {
            return Err(Error::program(&load.name, "the load is no command"));
        };
        let place = work.place.ok_or_else(|| Error::program(&load.name, "needs a storage"))?;
        let words = fill(program, |name| {
            Some(match name {
                "file" => place.inside_file().display().to_string(),
                "directory" => place.inside_directory().display().to_string(),
                "cwd" => self.start.display().to_string(),
                "scratch" => place.inside_scratch(&self.scratch).display().to_string(),
                "block-size" => work.cell.block_size.to_string(),
                "jobs" => work.cell.jobs.to_string(),
                "depth" => work.cell.depth.to_string(),
                "seconds" => work.time.as_secs_f64().to_string(),
                "seed" => work.seed.to_string(),
                "value" => value(work)?.into(),
                _ => return None,
            })
        });
        let name = &words[0];
        let mut command = place.command(name, &words[1..], &self.scratch);
        let shown = process::shown(&command);
        let begun = Instant::now();
        let finished = process::run(&mut command, stop, program.timeout, END_PATIENCE)?;
        let seconds = begun.elapsed().as_secs_f64();
        let mut outcome = judge(name, program, &finished, &load.metrics)?;
        // A command may say how long its load took without what came before and after it.
        outcome.metrics.entry(Metric::Time).or_insert(seconds);
        outcome.load_seconds = seconds;
        outcome.command = shown;
        Ok(outcome)
    }
}

/// Returns the text that the condition's levels give for `{value}`.
fn value<'a>(work: &Work<'a>) -> Option<&'a str> {
    work.levels.iter().find_map(|level| Some(level.setting::<Value>()?.0.as_str()))
}

/// The command with its placeholders filled in; what is none stays as it is.
fn fill(program: &Program, value: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let one = |word: &String| {
        let mut filled = String::new();
        let mut rest = word.as_str();
        while let Some(open) = rest.find('{') {
            let found = rest[open..]
                .find('}')
                .and_then(|close| Some((value(&rest[open + 1..open + close])?, open + close + 1)));
            let (text, next) = match found {
                Some((text, next)) => (text, next),
                None => ("{".to_string(), open + 1),
            };
            filled.push_str(&rest[..open]);
            filled.push_str(&text);
            rest = &rest[next..];
        }
        filled + rest
    };
    program.command.iter().map(one).collect()
}

/// The values of a command that has ended.
fn judge(
    name: &str,
    program: &Program,
    finished: &Finished,
    wanted: &[Metric],
) -> Result<Outcome, Error> {
    let Finished { status, stdout, stderr } = finished;
    if status.code() != Some(program.exit_code) {
        let said = if stderr.trim().is_empty() { stdout } else { stderr };
        let tail: String = said.trim().chars().take(COMPLAINT_LETTERS_MAX).collect();
        return Err(Error::program(name, format!("{status}: {tail}")));
    }
    let mut outcome = Outcome::default();
    for (metric, extract) in &program.extracts {
        match find(extract, stdout, stderr) {
            Ok(value) => {
                outcome.metrics.insert(*metric, value * extract.scale);
            }
            Err(why) if wanted.contains(metric) => {
                return Err(Error::program(name, format!("{}: {why}", metric.name())));
            }
            Err(_) => {}
        }
    }
    outcome.raw = if stderr.is_empty() {
        stdout.clone()
    } else {
        format!("{stdout}\n--- standard error:\n{stderr}")
    };
    Ok(outcome)
}

/// Why a value is not found in what a command said.
#[derive(Debug, thiserror::Error)]
enum ValueError {
    #[error("nothing in the output matches {0}")]
    NoMatch(String),
    #[error("there is no JSON in the output")]
    NoJson,
    #[error("its JSON cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    #[error("{0} is no number")]
    PointsElsewhere(String),
    #[error("{0} is not in the JSON")]
    PointsNowhere(String),
    #[error("{0:?} is no number")]
    NoNumber(String),
    #[error("{0} is not above 0, so it has no ratio")]
    NotPositive(String),
}

/// Returns a number in what a command said.
fn find(extract: &Extract, stdout: &str, stderr: &str) -> Result<f64, ValueError> {
    let text = match &extract.source {
        Source::Expression(expression) => {
            let last = |text| expression.captures_iter(text).last();
            let found = last(stdout).or_else(|| last(stderr));
            let group = found.and_then(|groups| Some(groups.get(1)?.as_str().to_string()));
            group.ok_or_else(|| ValueError::NoMatch(expression.to_string()))?
        }
        Source::Pointer(pointer) => {
            // Some programs talk before their JSON.
            let start = stdout.find(['{', '[']).unwrap_or(stdout.len());
            let mut values = serde_json::Deserializer::from_str(&stdout[start..])
                .into_iter::<serde_json::Value>();
            let value = values.next().ok_or(ValueError::NoJson)??;
            match value.pointer(pointer) {
                Some(serde_json::Value::Number(number)) => number.to_string(),
                Some(serde_json::Value::String(text)) => text.clone(),
                Some(_) => return Err(ValueError::PointsElsewhere(pointer.clone())),
                None => return Err(ValueError::PointsNowhere(pointer.clone())),
            }
        }
    };
    let parsed = text.trim().replace(',', "").parse();
    let value: f64 = parsed.map_err(|_| ValueError::NoNumber(text.clone()))?;
    if value.is_finite() && value > 0.0 { Ok(value) } else { Err(ValueError::NotPositive(text)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::process::Command;

    fn expression(text: &str) -> Extract {
        Extract { source: Source::Expression(regex::Regex::new(text).unwrap()), scale: 1.0 }
    }

    fn program(words: &[&str], extracts: &[(Metric, Extract)]) -> Program {
        Program {
            command: words.iter().map(ToString::to_string).collect(),
            extracts: extracts.iter().cloned().collect::<BTreeMap<_, _>>(),
            timeout: Duration::from_secs(10),
            exit_code: 0,
            writes: false,
        }
    }

    /// Goal: values are found by expression (the last match; standard error too) and by pointer.
    #[test]
    fn values_are_found() {
        let rate = expression(r"rate: ([\d.,]+)");
        assert!((find(&rate, "rate: 1\nrate: 2,500.5\n", "").unwrap() - 2500.5).abs() < 1e-9);
        assert!((find(&rate, "", "rate: 7").unwrap() - 7.0).abs() < 1e-9);
        let pointer = |text: &str| Extract { source: Source::Pointer(text.into()), scale: 1.0 };
        let json = "starting\n{\"a\": [{\"b\": 12}, {\"b\": \"3.5\"}], \"c\": true}\nbye\n";
        assert!((find(&pointer("/a/0/b"), json, "").unwrap() - 12.0).abs() < 1e-9);
        assert!((find(&pointer("/a/1/b"), json, "").unwrap() - 3.5).abs() < 1e-9);
        for (extract, text) in [
            (&rate, "nothing"),
            (&rate, "rate: 0"),
            (&rate, "rate: 1.2.3"),
            (&pointer("/c"), json),
            (&pointer("/d"), json),
            (&pointer("/a"), "{\"a\": "),
            (&pointer("/a"), "no json"),
        ] {
            assert!(find(extract, text, "").is_err(), "{text}");
        }
    }

    /// Goal: known placeholders are filled in, other braces stay.
    #[test]
    fn placeholders_are_filled() {
        let program =
            program(&["awk", "{print $1}", "{file}.{jobs}{", "{unknown}", "é{file}é"], &[]);
        let filled = fill(&program, |name| match name {
            "file" => Some("/data/file".into()),
            "jobs" => Some("4".into()),
            _ => None,
        });
        assert_eq!(filled, ["awk", "{print $1}", "/data/file.4{", "{unknown}", "é/data/fileé"]);
    }

    /// Goal: a level of kind `value` reaches the command of its condition, and only that.
    #[test]
    fn levels_give_values() {
        let read = crate::test_support::read(
            r#"
engine = "program"
file-size = "4KiB"
[level.here]
kind = "directory"
[level.off]
kind = "value"
value = "off"
[[workload]]
name = "load"
command = ["load", "--tls", "{value}"]
metrics = ["time"]
"#,
        );
        let cell = read.cell(0, 1, 1);
        let words = |levels: &[&str]| {
            let work = read.work(&cell, levels, Duration::from_secs(1));
            let given = value(&work);
            let fill_in = |name: &str| (name == "value").then_some(given).flatten();
            fill(work.workload.task().unwrap(), |name| fill_in(name).map(Into::into))
        };
        assert_eq!(words(&["here", "off"]), ["load", "--tls", "off"]);
        assert_eq!(words(&["here"]), ["load", "--tls", "{value}"]);
    }

    /// Goal: a wrong exit code and a missing value are failures; another exit code can be right.
    #[test]
    fn exit_codes_and_missing_values_count() {
        let run = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            let patience = Duration::from_secs(10);
            process::run(&mut command, &Stop::default(), patience, patience).unwrap()
        };
        let mut program = program(&["x"], &[(Metric::Score, expression(r"score (\d+)"))]);
        let wanted = [Metric::Score];
        let good = judge("x", &program, &run("echo score 5"), &wanted).unwrap();
        assert!((good.metrics[&Metric::Score] - 5.0).abs() < 1e-9);
        let failed = judge("x", &program, &run("echo score 5; echo broken >&2; exit 3"), &wanted);
        assert!(failed.unwrap_err().to_string().contains("broken"));
        assert!(judge("x", &program, &run("echo nothing"), &wanted).is_err());
        assert!(judge("x", &program, &run("echo nothing"), &[Metric::Time]).is_ok());
        program.exit_code = 3;
        assert!(judge("x", &program, &run("echo score 5; exit 3"), &wanted).is_ok());
        program
            .extracts
            .insert(Metric::Bandwidth, Extract { scale: 1024.0, ..expression(r"score (\d+)") });
        let scaled = judge("x", &program, &run("echo score 5; exit 3"), &wanted).unwrap();
        assert!((scaled.metrics[&Metric::Bandwidth] - 5120.0).abs() < 1e-9);
    }
}
