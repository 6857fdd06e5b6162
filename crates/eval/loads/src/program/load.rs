//! A command as a load: what it executes, and where its values are.

use crate::keys::{Given, Table, find};
use crate::metric::Metric;
use crate::workload::Load;
use base::Error;
use base::messages::{Language, Text};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

// What a load says of itself, in English and in Japanese.
const PROGRAM: Text = Text(["command: {command}", "コマンド: {command}"]);

const TIMEOUT_DEFAULT: Duration = Duration::from_mins(10);

/// A command with what is read from its output.
#[derive(Clone, Debug)]
pub struct Program {
    /// Program and arguments, with placeholders like `{directory}`.
    pub command: Vec<String>,
    /// Where its values are.
    pub extracts: BTreeMap<Metric, Extract>,
    /// How long it may take.
    pub timeout: Duration,
    /// The exit code of a good run.
    pub exit_code: i32,
    /// Whether it writes, for the checks of devices.
    pub writes: bool,
}

/// How a value is found in a program's output.
#[derive(Clone, Debug)]
pub struct Extract {
    /// Where.
    pub source: Source,
    /// What the found number is multiplied by, to give the metric's unit.
    pub scale: f64,
}

/// Where a value is.
#[derive(Clone, Debug)]
pub enum Source {
    /// The first group of this expression's last match in standard output, else in standard error.
    Expression(regex::Regex),
    /// What a JSON pointer (RFC 6901) names in standard output.
    Pointer(String),
}

impl Load for Program {
    fn writes(&self) -> bool {
        self.writes
    }

    fn describe(&self, language: Language, _is_direct: bool) -> String {
        language.fill(&PROGRAM, &[("command", &self.command.join(" "))])
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawExtract {
    regex: Option<String>,
    json: Option<String>,
    scale: Option<f64>,
}

/// Reads a command from the keys of a workload.
pub(super) fn read(table: &Table<'_>, metrics: &[Metric]) -> Result<Arc<dyn Load>, Error> {
    let command = table.texts("command").ok_or_else(|| table.missing("command"))?;
    if command.value.first().is_none_or(String::is_empty) {
        let message = "is a list: the program and its arguments";
        return Err(table.error(&command, "command", message));
    }
    let mut extracts = BTreeMap::new();
    let parse: Option<BTreeMap<String, toml::Value>> = table.parsed("parse")?;
    if let (Some(given), Some(parse)) = (table.any("parse"), parse) {
        for (name, extract) in parse {
            let key = format!("parse.{name}");
            let metric = find(&name, Metric::ALL)
                .map_err(|why| table.error(&given, &key, why.to_string()))?;
            extracts.insert(metric, read_extract(table, (&given, &key), extract)?);
        }
    }
    let has = |metric: &Metric| *metric == Metric::Time || extracts.contains_key(metric);
    if let (Some(metric), Some(given)) =
        (metrics.iter().find(|metric| !has(metric)), table.texts("metrics"))
    {
        let message = format!("there is no parse.{} for it", metric.name());
        return Err(table.error(&given, "metrics", message));
    }
    Ok(Arc::new(Program {
        command: command.value.to_vec(),
        extracts,
        timeout: table.time("timeout")?.unwrap_or(TIMEOUT_DEFAULT),
        exit_code: table.int32("exit-code")?.unwrap_or(0),
        writes: table.truth("writes").is_none_or(|given| *given.value),
    }))
}

fn read_extract(
    table: &Table<'_>,
    (given, key): (&Given<'_, toml::Value>, &str),
    extract: toml::Value,
) -> Result<Extract, Error> {
    let wrong = |message: String| table.error(given, key, message);
    let raw: RawExtract = extract.try_into().map_err(|why| wrong(why.message().to_string()))?;
    let source = match (raw.regex, raw.json) {
        (Some(expression), None) => {
            let expression =
                regex::Regex::new(&expression).map_err(|why| wrong(why.to_string()))?;
            if expression.captures_len() < 2 {
                return Err(wrong("needs a group, (…), around the number".into()));
            }
            Source::Expression(expression)
        }
        (None, Some(pointer)) => {
            if !pointer.is_empty() && !pointer.starts_with('/') {
                let message = "is a JSON pointer (RFC 6901), like \"/jobs/0/read/bw\"";
                return Err(wrong(message.into()));
            }
            Source::Pointer(pointer)
        }
        _ => return Err(wrong("needs either regex or json".into())),
    };
    let scale = raw.scale.unwrap_or(1.0);
    if !scale.is_finite() || scale <= 0.0 {
        return Err(wrong("scale is a number above 0".into()));
    }
    Ok(Extract { source, scale })
}
