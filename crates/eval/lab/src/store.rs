//! Results in one `SQLite` file: every run with its samples, output and settings, so that any report can be
//! made again from the file alone, and SQL can answer other questions.
//!
//! | table | rows |
//! | --- | --- |
//! | `meta` | plan hash, experiment text, mode, versions, environment |
//! | `condition` | each condition, whether it was available, and why not |
//! | `run` | each run: place in the plan, seed, marks, command, job file, what the engine said |
//! | `sample` | each measured value of each run |

use crate::ending::Progress;
use crate::error::Error;
use crate::experiment::{Experiment, Mode};
use crate::guard::Environment;
use crate::plan::{Plan, Step};
use loads::metric::Metric;
use loads::outcome::Mark;
use loads::outcome::Outcome;
use rusqlite::{Connection, OpenFlags, OptionalExtension, params};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;
use std::time::Duration;

/// Version of the tables.
const FORMAT: &str = "1";

/// How long a run waits for a reader before it fails.
const BUSY_PATIENCE: Duration = Duration::from_mins(1);

const TABLES: &str = "
    CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
    CREATE TABLE condition (
        id TEXT PRIMARY KEY, label TEXT NOT NULL, is_available INTEGER NOT NULL,
        reason TEXT NOT NULL
    ) STRICT;
    CREATE TABLE run (
        id INTEGER PRIMARY KEY, round INTEGER NOT NULL, position INTEGER NOT NULL,
        is_warm_up INTEGER NOT NULL, cell TEXT NOT NULL, condition TEXT NOT NULL,
        seed INTEGER NOT NULL, started_unix_ms INTEGER NOT NULL, attempts INTEGER NOT NULL,
        error TEXT, marks TEXT NOT NULL, command TEXT NOT NULL, job TEXT NOT NULL,
        raw TEXT NOT NULL, series TEXT NOT NULL,
        UNIQUE (round, cell, condition)
    ) STRICT;
    CREATE TABLE sample (
        run INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE, name TEXT NOT NULL,
        value REAL NOT NULL, PRIMARY KEY (run, name)
    ) STRICT;
";

/// The database.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
}

/// A run as it was stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Round, from 0.
    pub round: u32,
    /// Place in the round.
    pub position: u32,
    /// Whether it is from a round for warming up.
    pub is_warm_up: bool,
    /// Cell by name.
    pub cell: String,
    /// Condition by name.
    pub condition: String,
    /// Seed of its offsets.
    pub seed: u64,
    /// Why it failed, if it did.
    pub error: Option<String>,
    /// What its reader has to know.
    pub marks: Vec<Mark>,
    /// What was executed.
    pub command: String,
    /// The job file.
    pub job: String,
    /// Measured values by name.
    pub samples: BTreeMap<String, f64>,
}

impl Run {
    /// Whether it may count in verdicts.
    pub fn is_usable(&self) -> bool {
        !self.is_warm_up && self.error.is_none() && !self.marks.iter().any(Mark::excludes)
    }

    /// A measured value.
    pub fn value(&self, metric: Metric) -> Option<f64> {
        self.samples.get(metric.name()).copied().filter(|value| value.is_finite() && *value > 0.0)
    }
}

/// What a run kept beside its values.
#[derive(Clone, Debug)]
pub struct Kept {
    /// Round, from 0.
    pub round: u32,
    /// Cell by name.
    pub cell: String,
    /// Condition by name.
    pub condition: String,
    /// Bytes per second, second by second.
    pub series: Vec<f64>,
    /// What the engine printed.
    pub raw: String,
}

/// What is stored about a run beside its outcome.
#[derive(Clone, Debug)]
pub struct RunFacts<'a> {
    /// Which run.
    pub step: &'a Step,
    /// When it began.
    pub started_unix_ms: i64,
    /// How often it was tried until it had settled.
    pub attempts: u32,
    /// What its reader has to know.
    pub marks: &'a [Mark],
}

impl Store {
    /// Makes a new database for a plan; refuses to touch an existing file.
    pub fn create(path: &Path, plan: &Plan) -> Result<Self, Error> {
        std::fs::File::create_new(path).map_err(Error::io("cannot make", path))?;
        let store = Self { connection: Connection::open(path)? };
        store.connection.busy_timeout(BUSY_PATIENCE)?;
        store.begin(plan)?;
        Ok(store)
    }

    /// A database in memory, for tests and dry runs.
    pub fn in_memory(plan: &Plan) -> Result<Self, Error> {
        let store = Self { connection: Connection::open_in_memory()? };
        store.begin(plan)?;
        Ok(store)
    }

    fn begin(&self, plan: &Plan) -> Result<(), Error> {
        self.connection.execute_batch(TABLES)?;
        let mode = if plan.experiment.mode == Mode::Quick { "quick" } else { "full" };
        for (key, value) in [
            ("format", FORMAT),
            ("plan", &plan.hash),
            ("mode", mode),
            ("experiment", &plan.experiment.text),
            ("tsumugi", env!("CARGO_PKG_VERSION")),
        ] {
            self.set(key, value)?;
        }
        Ok(())
    }

    /// Opens a database.
    pub fn open(path: &Path) -> Result<Self, Error> {
        std::fs::metadata(path).map_err(Error::io("cannot open", path))?;
        let connection = Connection::open(path)?;
        connection.execute_batch("PRAGMA foreign_keys = ON")?;
        connection.busy_timeout(BUSY_PATIENCE)?;
        Self::known(Self { connection }, path)
    }

    /// Opens a database for reading that another process may be writing.
    pub fn open_to_read(path: &Path) -> Result<Self, Error> {
        std::fs::metadata(path).map_err(Error::io("cannot open", path))?;
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        Self::known(Self { connection }, path)
    }

    /// A whole copy in a file without a name, whatever is written meanwhile.
    pub fn copy(&self) -> Result<File, Error> {
        let wrong = |cause| Error::io("cannot copy to", &std::env::temp_dir())(cause);
        let copy = tempfile::NamedTempFile::new().map_err(wrong)?;
        let path = copy.path().to_string_lossy();
        self.connection.execute("VACUUM INTO ?1", [path.as_ref()])?;
        copy.reopen().map_err(wrong)
    }

    /// The database, if this program knows its format.
    fn known(store: Self, path: &Path) -> Result<Self, Error> {
        match store.get("format")?.as_deref() {
            Some(FORMAT) => Ok(store),
            found => Err(Error::Results(format!(
                "{} has format {}, this program knows {FORMAT}",
                path.display(),
                found.unwrap_or("none")
            ))),
        }
    }

    /// The plan that the results are of.
    pub fn plan(&self) -> Result<Plan, Error> {
        let missing = || Error::Results("the results name no experiment".into());
        let text = self.get("experiment")?.ok_or_else(missing)?;
        let mode = self.get("mode")?.ok_or_else(missing)?;
        let mode = if mode == "quick" { Mode::Quick } else { Mode::Full };
        Ok(Plan::new(Experiment::parse(&text, mode)?))
    }

    /// Refuses unless the results are of this plan.
    pub fn check_plan(&self, plan: &Plan) -> Result<(), Error> {
        if self.get("plan")?.as_deref() == Some(&plan.hash) {
            return Ok(());
        }
        Err(Error::Results(
            "the results there are of another plan (the experiment file or --quick differs): \
             choose another directory"
                .into(),
        ))
    }

    /// Keeps a fact.
    pub fn set(&self, key: &str, value: &str) -> Result<(), Error> {
        self.connection
            .execute("INSERT OR REPLACE INTO meta VALUES (?1, ?2)", params![key, value])?;
        Ok(())
    }

    /// A fact.
    pub fn get(&self, key: &str) -> Result<Option<String>, Error> {
        let query = "SELECT value FROM meta WHERE key = ?1";
        Ok(self.connection.query_row(query, [key], |row| row.get(0)).optional()?)
    }

    /// Forgets a fact.
    pub fn unset(&self, key: &str) -> Result<(), Error> {
        self.connection.execute("DELETE FROM meta WHERE key = ?1", [key])?;
        Ok(())
    }

    /// Whether nothing was begun since it was made, ended, failed or was interrupted: of one that has a
    /// process, that it waits for its turn.
    pub fn is_waiting(&self) -> Result<bool, Error> {
        let is_over = self.get("ending")?.is_some() || self.get("failure")?.is_some();
        Ok(is_over || self.get("started")?.is_none())
    }

    /// Keeps how far the experiment is.
    pub fn set_progress(&self, progress: &Progress) -> Result<(), Error> {
        self.set("progress", &serde_json::to_string(progress).unwrap_or_default())
    }

    /// How far the experiment is, or was.
    pub fn progress(&self) -> Result<Option<Progress>, Error> {
        Ok(self.get("progress")?.and_then(|text| serde_json::from_str(&text).ok()))
    }

    /// The machine that was measured.
    pub fn environment(&self) -> Result<Environment, Error> {
        let text = self.get("environment")?.unwrap_or_default();
        Ok(serde_json::from_str(&text).unwrap_or_default())
    }

    /// Keeps whether a condition is available. What was so at the start has to stay so, else rounds
    /// would not be comparable.
    pub fn set_condition(&self, id: &str, label: &str, reason: Option<&str>) -> Result<(), Error> {
        let query = "SELECT is_available FROM condition WHERE id = ?1";
        let known: Option<bool> =
            self.connection.query_row(query, [id], |row| row.get(0)).optional()?;
        if known.is_some_and(|known| known != reason.is_none()) {
            let now = reason.unwrap_or("available");
            return Err(Error::Results(format!("condition {id} changed since the start: {now}")));
        }
        let insert = "INSERT OR REPLACE INTO condition VALUES (?1, ?2, ?3, ?4)";
        let reason_text = reason.unwrap_or_default();
        self.connection.execute(insert, params![id, label, reason.is_none(), reason_text])?;
        Ok(())
    }

    /// Conditions that are not available: id, label and reason.
    pub fn missing_conditions(&self) -> Result<Vec<(String, String, String)>, Error> {
        let query = "SELECT id, label, reason FROM condition WHERE NOT is_available ORDER BY id";
        let mut statement = self.connection.prepare(query)?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Keeps a run, with its error if it failed.
    pub fn add(
        &mut self,
        plan: &Plan,
        facts: &RunFacts<'_>,
        outcome: Result<&Outcome, &base::Error>,
    ) -> Result<(), Error> {
        let nothing = Outcome::default();
        let (outcome, error) = match outcome {
            Ok(outcome) => (outcome, None),
            Err(error) => (&nothing, Some(error.to_string())),
        };
        let step = facts.step;
        let transaction = self.connection.transaction()?;
        transaction.execute(
            "INSERT INTO run (round, position, is_warm_up, cell, condition, seed, started_unix_ms,
                attempts, error, marks, command, job, raw, series)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
            params![
                step.round,
                step.position,
                step.round < plan.warm_up_rounds(),
                plan.cells[step.cell].id,
                plan.conditions[step.condition].id,
                step.seed as i64,
                facts.started_unix_ms,
                facts.attempts,
                error,
                json(facts.marks),
                outcome.command,
                outcome.job,
                outcome.raw,
                json(&outcome.series),
            ],
        )?;
        let run = transaction.last_insert_rowid();
        let named = outcome.metrics.iter().map(|(metric, value)| (metric.name(), *value));
        let further = outcome.further.iter().map(|(name, value)| (name.as_str(), *value));
        let bytes = outcome.written_bytes_per_s * outcome.load_seconds;
        for (name, value) in named.chain(further).chain([("written_bytes", bytes)]) {
            if value.is_finite() {
                let insert = "INSERT OR REPLACE INTO sample VALUES (?1, ?2, ?3)";
                transaction.execute(insert, params![run, name, value])?;
            }
        }
        transaction.commit()?;
        Ok(())
    }

    /// All runs, in the order they were made.
    pub fn runs(&self) -> Result<Vec<Run>, Error> {
        let mut samples: BTreeMap<i64, BTreeMap<String, f64>> = BTreeMap::new();
        let mut statement = self.connection.prepare("SELECT run, name, value FROM sample")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            samples.entry(row.get(0)?).or_default().insert(row.get(1)?, row.get(2)?);
        }
        let mut statement = self.connection.prepare(
            "SELECT id, round, position, is_warm_up, cell, condition, seed, error, marks, command,
                job FROM run ORDER BY round, position",
        )?;
        let runs = statement.query_map([], |row| {
            let marks: String = row.get(8)?;
            Ok(Run {
                round: row.get(1)?,
                position: row.get(2)?,
                is_warm_up: row.get(3)?,
                cell: row.get(4)?,
                condition: row.get(5)?,
                seed: row.get::<_, i64>(6)? as u64,
                error: row.get(7)?,
                marks: serde_json::from_str(&marks).unwrap_or_default(),
                command: row.get(9)?,
                job: row.get(10)?,
                samples: samples.remove(&row.get(0)?).unwrap_or_default(),
            })
        })?;
        Ok(runs.collect::<Result<_, _>>()?)
    }

    /// What the runs that count kept beside their values, in the order they were made.
    pub fn each_kept(&self, each: impl FnMut(Kept)) -> Result<(), Error> {
        self.each_row(
            "SELECT round, cell, condition, series, raw FROM run
                WHERE NOT is_warm_up AND error IS NULL ORDER BY round, position",
            each,
        )
    }

    /// The intervals of the runs that count, in the order they were made; output of engines is left out.
    pub fn each_series(&self, each: impl FnMut(Kept)) -> Result<(), Error> {
        self.each_row(
            "SELECT round, cell, condition, series, '' FROM run
                WHERE NOT is_warm_up AND error IS NULL AND series <> '[]' ORDER BY round, position",
            each,
        )
    }

    /// Calls `each` for the rows of a query with round, cell, condition, series and raw output.
    fn each_row(&self, query: &str, mut each: impl FnMut(Kept)) -> Result<(), Error> {
        let mut statement = self.connection.prepare(query)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let series: String = row.get(3)?;
            each(Kept {
                round: row.get(0)?,
                cell: row.get(1)?,
                condition: row.get(2)?,
                series: serde_json::from_str(&series).unwrap_or_default(),
                raw: row.get(4)?,
            });
        }
        Ok(())
    }

    /// Runs that were made, as (round, cell, condition).
    pub fn done(&self) -> Result<BTreeSet<(u32, String, String)>, Error> {
        let mut statement = self.connection.prepare("SELECT round, cell, condition FROM run")?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Forgets the runs of a cell in a round: its conditions have to be measured one right after the
    /// other, so what an interruption cut in two is measured again.
    pub fn forget(&self, round: u32, cell: &str) -> Result<usize, Error> {
        self.connection.execute_batch("PRAGMA foreign_keys = ON")?;
        let delete = "DELETE FROM run WHERE round = ?1 AND cell = ?2";
        Ok(self.connection.execute(delete, params![round, cell])?)
    }

    /// Bytes that runs have written so far.
    pub fn written_bytes(&self) -> Result<u64, Error> {
        let query = "SELECT total(value) FROM sample WHERE name = 'written_bytes'";
        let total: f64 = self.connection.query_row(query, [], |row| row.get(0))?;
        Ok(total as u64)
    }
}

/// JSON of a list, which always has one.
fn json<T: serde::Serialize>(list: &[T]) -> String {
    serde_json::to_string(list).unwrap_or_default()
}
