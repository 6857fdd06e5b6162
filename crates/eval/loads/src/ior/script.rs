//! IOR scripts: `IOR START … RUN … IOR STOP`, as they are, from 2008 or from today.
//!
//! ```text
//! anything                          ignored until a line that says only "IOR START"
//!     api = POSIX, blockSize = 4m   settings, in any case; they stay for all later tests
//!     RUN                           a test with all settings so far
//! IOR STOP
//! ```
//!
//! Version 4 refuses eighteen keywords of 2.10.3, and 2.10.3 those that came later. Here all are
//! taken. Where the versions differ in meaning, [`Compat`] decides: 2.10 if the script uses a keyword
//! that only 2.10.3 knew. Every difference that touches the script is noted, once.

use super::keywords::{self, Kind, Known, MODULES, OPTIONS};
use std::collections::BTreeMap;

/// Whose meaning a script gets where the versions differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compat {
    /// 2.10.3.
    V2,
    /// 4.
    V4,
}

/// A script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// Its tests, in order.
    pub tests: Vec<Settings>,
    /// Whose meaning it got.
    pub compat: Compat,
    /// Where the versions would have done something else.
    pub notes: Vec<String>,
}

impl Script {
    /// One test without a script, from a command line.
    pub fn of(settings: Settings, compat: Option<Compat>) -> Self {
        let used = settings.0.keys().filter_map(|keyword| keywords::find(keyword));
        let used = used.map(|(name, _, known)| (name, (known, 0))).collect();
        let mut reader = Reader::new(settings);
        reader.used = used;
        reader.finish(compat)
    }
}

/// All settings of a test, by keyword as documented; options of modules as `--module.name`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings(BTreeMap<String, Value>);

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Number(i64),
    Text(String),
}

/// A script that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct ScriptError {
    /// Line, from 1.
    pub line: usize,
    /// What is wrong.
    pub message: String,
}

impl Settings {
    /// A number, a flag or a size.
    pub fn number(&self, keyword: &str) -> Option<i64> {
        match self.0.get(keyword) {
            Some(Value::Number(number)) => Some(*number),
            _ => None,
        }
    }

    /// Whether a flag is set.
    pub fn is_set(&self, keyword: &str) -> bool {
        self.number(keyword).is_some_and(|number| number != 0)
    }

    /// Whether an option of a module is on: there, and not 0.
    pub fn is_option_set(&self, option: &str) -> bool {
        self.text(option).is_some_and(|value| value != "0")
    }

    /// A text.
    pub fn text(&self, keyword: &str) -> Option<&str> {
        match self.0.get(keyword) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// Changes a setting, as a directive does.
    pub fn set(&mut self, keyword: &str, value: &str) -> Result<(), String> {
        if let Some(option) = keyword.strip_prefix("--") {
            let module = option.split_once('.').map(|(module, _)| module);
            let is_known = match module {
                Some(module) => MODULES.contains(&module),
                None => OPTIONS.contains(&option),
            };
            if !is_known {
                return Err(format!("{keyword} is no option: modules are {}", MODULES.join(", ")));
            }
            self.0.insert(keyword.into(), Value::Text(value.into()));
            return Ok(());
        }
        let (name, kind, _) =
            keywords::find(keyword).ok_or_else(|| format!("unknown keyword {keyword:?}"))?;
        let value = match kind {
            Kind::Text => Value::Text(value.into()),
            Kind::Size => Value::Number(size(value)?),
            Kind::Number => Value::Number(number(name, value)?),
            Kind::Flag => Value::Number(match number(name, value)? {
                flag @ (0 | 1) => flag,
                other => return Err(format!("{name} is 0 or 1, not {other}")),
            }),
        };
        self.0.insert(name.into(), value);
        Ok(())
    }

    /// What has to be done: written, read, checked after writing, checked when reading. If nothing
    /// was asked for, files are written and read.
    pub fn phases(&self) -> Phases {
        let mut phases = Phases {
            write: self.is_set("writeFile"),
            read: self.is_set("readFile"),
            check_write: self.is_set("checkWrite"),
            check_read: self.is_set("checkRead"),
        };
        if phases == Phases::default() {
            phases.write = true;
            phases.read = true;
        }
        phases
    }
}

/// The phases of a test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Phases {
    /// Write the file.
    pub write: bool,
    /// Read it.
    pub read: bool,
    /// Read after writing and compare, untimed.
    pub check_write: bool,
    /// Compare what is read.
    pub check_read: bool,
}

fn number(name: &str, value: &str) -> Result<i64, String> {
    value.parse().map_err(|_| format!("{name} is a whole number, not {value:?}"))
}

/// Digits, then at most one letter that counts: `4m`, `1MiB`. Fractions are refused, which IOR reads
/// as something else (`1.5m` is one byte there).
pub(super) fn size(value: &str) -> Result<i64, String> {
    let digits = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
    let (number, unit) = value.split_at(digits);
    let number: i64 = number.parse().map_err(|_| format!("{value:?} is no size, e.g. 4m"))?;
    let shift = match unit.chars().next().map(|letter| letter.to_ascii_lowercase()) {
        None => 0,
        Some('k') => 10,
        Some('m') => 20,
        Some('g') => 30,
        Some('t') => 40,
        Some('p') => 50,
        Some('.') => return Err(format!("{value:?}: IOR knows no fractions")),
        Some(other) => return Err(format!("{value:?}: {other:?} is no unit: k, m, g, t, p")),
    };
    number.checked_mul(1 << shift).ok_or_else(|| format!("{value:?} is too large"))
}

/// What a line of a script says.
enum Line<'a> {
    Nothing,
    Run,
    Stop,
    Directives(Vec<(&'a str, &'a str)>),
}

fn is_words(line: &str, words: [&str; 2]) -> bool {
    let mut found = line.split_whitespace();
    let matches = |found: Option<&str>, word| found.is_some_and(|it| it.eq_ignore_ascii_case(word));
    matches(found.next(), words[0]) && matches(found.next(), words[1]) && found.next().is_none()
}

fn line(text: &str) -> Result<Line<'_>, String> {
    let text = text.split('#').next().unwrap_or_default().trim();
    if text.is_empty() {
        return Ok(Line::Nothing);
    }
    if is_words(text, ["IOR", "STOP"]) {
        return Ok(Line::Stop);
    }
    if text.eq_ignore_ascii_case("RUN") {
        return Ok(Line::Run);
    }
    let mut directives = Vec::new();
    for directive in text.split(',') {
        let (keyword, value) =
            directive.split_once('=').ok_or_else(|| format!("{directive:?} is no KEY = VALUE"))?;
        let value = value.split_whitespace().next().unwrap_or_default();
        if keyword.trim().is_empty() || value.is_empty() {
            return Err(format!("{directive:?} is no KEY = VALUE"));
        }
        directives.push((keyword.trim(), value));
    }
    Ok(Line::Directives(directives))
}

/// Reads a script. `defaults` are what the command line said before it; `compat` is what the user
/// wants, if he does.
pub fn parse(
    text: &str,
    defaults: &Settings,
    compat: Option<Compat>,
) -> Result<Script, ScriptError> {
    let start = text.lines().position(|line| is_words(line, ["IOR", "START"]));
    let Some(start) = start else {
        let message =
            "there is no line IOR START; IOR would run one default test in this case".into();
        return Err(ScriptError { line: 1, message });
    };
    let mut reader = Reader::new(defaults.clone());
    let mut is_stopped = false;
    for (index, text) in text.lines().enumerate().skip(start + 1) {
        let wrong = |message| ScriptError { line: index + 1, message };
        match line(text).map_err(wrong)? {
            Line::Nothing => {}
            Line::Stop => {
                is_stopped = true;
                break;
            }
            Line::Run => reader.run(),
            Line::Directives(directives) => {
                reader.directives(&directives, index + 1).map_err(wrong)?;
            }
        }
    }
    if !is_stopped {
        let message = "there is no line IOR STOP".into();
        return Err(ScriptError { line: text.lines().count(), message });
    }
    Ok(reader.finish(compat))
}

struct Reader {
    settings: Settings,
    tests: Vec<Settings>,
    /// Directives came since the last RUN.
    has_new_settings: bool,
    /// The last thing was RUN.
    follows_run: bool,
    /// Tests that are there only because RUN was said twice.
    repeated_runs: Vec<usize>,
    /// Keywords that only one version knows, with their first line.
    used: BTreeMap<&'static str, (Known, usize)>,
}

impl Reader {
    fn new(settings: Settings) -> Self {
        Self {
            settings,
            tests: Vec::new(),
            has_new_settings: false,
            follows_run: false,
            repeated_runs: Vec::new(),
            used: BTreeMap::new(),
        }
    }

    fn run(&mut self) {
        if self.follows_run {
            self.repeated_runs.push(self.tests.len());
        }
        self.tests.push(self.settings.clone());
        self.has_new_settings = false;
        self.follows_run = true;
    }

    fn directives(&mut self, directives: &[(&str, &str)], line: usize) -> Result<(), String> {
        for (keyword, value) in directives {
            self.settings.set(keyword, value)?;
            if let Some((name, _, known)) = keywords::find(keyword)
                && known != Known::Both
            {
                self.used.entry(name).or_insert((known, line));
            }
        }
        self.has_new_settings = true;
        self.follows_run = false;
        Ok(())
    }

    fn finish(mut self, wanted: Option<Compat>) -> Script {
        // What stands behind the last RUN is one more test, and a script without RUN is one.
        // (Line 0 is the command line.)
        if self.has_new_settings || self.tests.is_empty() {
            self.tests.push(self.settings.clone());
        }
        let only = |known: Known| {
            let names = self.used.iter().filter(move |(_, (it, _))| *it == known);
            let shown = |(name, (_, line)): (&&str, &(Known, usize))| match line {
                0 => (*name).to_string(),
                line => format!("{name} (line {line})"),
            };
            names.map(shown).collect::<Vec<_>>()
        };
        let (old, new) = (only(Known::Old), only(Known::New));
        let compat = wanted.unwrap_or(if old.is_empty() { Compat::V4 } else { Compat::V2 });
        let mut notes = Vec::new();
        if !old.is_empty() {
            notes.push(format!("version 4 would refuse: {}", old.join(", ")));
        }
        if !new.is_empty() {
            notes.push(format!("2.10.3 would refuse: {}", new.join(", ")));
        }
        if !self.repeated_runs.is_empty() {
            notes.push("RUN twice in a row is one test to 2.10.3 and two to version 4".into());
            if compat == Compat::V2 {
                for index in self.repeated_runs.iter().rev() {
                    self.tests.remove(*index);
                }
            }
        }
        note_meanings(&self.tests, compat, &mut notes);
        Script { tests: self.tests, compat, notes }
    }
}

/// Settings that mean different things.
fn note_meanings(tests: &[Settings], compat: Compat, notes: &mut Vec<String>) {
    let is_mpiio =
        |test: &Settings| test.text("api").is_some_and(|api| api.eq_ignore_ascii_case("MPIIO"));
    if tests.iter().any(|test| test.is_set("fsync") && is_mpiio(test)) {
        notes.push("fsync with MPIIO is ignored by 2.10.3 and done by version 4".into());
    }
    if tests.iter().any(|test| test.number("numTasks") == Some(0)) {
        notes.push("numTasks=0 is all tasks to 2.10.3 and an error to version 4".into());
    }
    if tests.iter().any(|test| test.number("segmentCount").is_some_and(|count| count > 1)) {
        notes.push(format!(
            "2.10.3 forgets segmentCount in operations per second, version 4 does not: shown as {}",
            if compat == Compat::V2 { "2.10.3 does" } else { "version 4 does" }
        ));
    }
}

#[cfg(test)]
mod tests;
