//! Results that other programs measured: no engine runs them again.

use crate::engine::{Declaration, Operations, Origin, SettingKind, Workers};
use crate::keys::{Form, Key, Table};
use crate::level::Setting;
use crate::metric::Metric;
use crate::workload::{Access, Load, Pattern};
use base::Error;
use base::messages::{Language, Text};
use std::sync::Arc;

const NAME: &str = "imported";

// What a load says of itself, in English and in Japanese.
const IMPORTED: Text =
    Text(["another program, pattern {pattern}", "他のプログラム、パターン {pattern}"]);
const IMPORTED_OWN: Text = Text([
    "another program, pattern {pattern}, own files",
    "他のプログラム、パターン {pattern}、個別ファイル",
]);
const IMPORTED_SHARED: Text = Text([
    "another program, pattern {pattern}, shared files",
    "他のプログラム、パターン {pattern}、共有ファイル",
]);

/// Results of other programs.
pub const ENGINE: Declaration = Declaration {
    name: NAME,
    keys: &[Key::new("own-files", Form::Truth)],
    setting: Some(SettingKind {
        kind: "imported",
        noun: "ways",
        keys: &[],
        is_all: true,
        read: |_| Ok(Arc::new(ImportedWay)),
    }),
    operations: Operations::Foreign,
    // Whatever was measured elsewhere.
    workers: Workers::Jobs(u32::MAX),
    is_direct: |given| given.unwrap_or(false),
    runs_this_program: false,
    origin: Origin::Elsewhere,
    load,
    ..Declaration::DEFAULT
};

/// A load of another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Imported {
    /// What it does, if that has a name here.
    pub pattern: Option<Pattern>,
    /// Whether each job had files of its own, if that is known.
    pub has_own_files: Option<bool>,
}

/// A way that another program did it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImportedWay;

impl Setting for ImportedWay {
    fn engine(&self) -> &'static str {
        NAME
    }

    fn refine(&self, label: &str, access: &mut Access) {
        access.is_collective = Some(label.ends_with(" collective"));
    }
}

impl Load for Imported {
    fn pattern(&self) -> Option<Pattern> {
        self.pattern
    }

    fn writes(&self) -> bool {
        self.pattern.is_some_and(Pattern::writes)
    }

    fn describe(&self, language: Language, _is_direct: bool) -> String {
        let message = match self.has_own_files {
            Some(true) => IMPORTED_OWN,
            Some(false) => IMPORTED_SHARED,
            None => IMPORTED,
        };
        language.fill(&message, &[("pattern", &self.pattern.map_or("–", Pattern::name))])
    }

    fn access(&self) -> Access {
        Access { pattern: self.pattern, has_own_files: self.has_own_files, is_collective: None }
    }
}

fn load(table: &Table<'_>, _metrics: &[Metric]) -> Result<Arc<dyn Load>, Error> {
    let has_own_files = table.truth("own-files").map(|given| *given.value);
    Ok(Arc::new(Imported { pattern: table.choose("rw", &Pattern::ALL)?, has_own_files }))
}
