//! The engines that there are.

use crate::engine::{Declaration, Engine, Origin, Setup};
use crate::level::{Level, LevelKind};
use crate::{copyup, ffsb, fio, imported, ior, metadata, nvme, program, rate, synthetic};
use base::Error;
use std::fmt;
use std::ops::Deref;

/// All engines: a new one has a line here, and a folder.
pub const ENGINES: &[Declaration] = &[
    fio::ENGINE,
    nvme::ENGINE,
    rate::ENGINE,
    program::ENGINE,
    metadata::ENGINE,
    ior::ENGINE,
    ffsb::ENGINE,
    copyup::ENGINE,
    imported::ENGINE,
    synthetic::ENGINE,
];

/// One of the engines.
#[derive(Clone, Copy)]
pub struct EngineKind(&'static Declaration);

impl EngineKind {
    /// Returns all of them by their names.
    pub fn all() -> Vec<(&'static str, Self)> {
        ENGINES.iter().map(|declaration| (declaration.name, Self(declaration))).collect()
    }

    /// Returns the one that a declaration is of.
    ///
    /// # Panics
    ///
    /// If it is not registered.
    pub fn of(declaration: &Declaration) -> Self {
        let found = ENGINES.iter().find(|it| it.name == declaration.name);
        Self(found.expect("a declaration is in the table"))
    }

    /// Returns whether it is the engine of a declaration.
    pub fn is(self, declaration: &Declaration) -> bool {
        self.name == declaration.name
    }

    /// Starts it. `setup` is `None` where there is no directory to work in.
    pub fn start(self, setup: Option<Setup>) -> Result<Box<dyn Engine>, StartError> {
        let start = self.start.ok_or(StartError::Imported)?;
        let nothing = || Setup { program: "".into(), scratch: "".into() };
        let setup = setup.or_else(|| (self.origin == Origin::Drawn).then(nothing));
        Ok(start(setup.ok_or(StartError::NoDirectory)?)?)
    }

    /// Returns why a level does not go with it.
    pub fn mismatch(self, level: &Level) -> Option<String> {
        let owner = match &level.kind {
            LevelKind::Setting(setting) => Some(setting.engine()),
            _ => None,
        };
        // Of engines that take nothing else.
        for engine in ENGINES {
            let Some(setting) = engine.setting.filter(|setting| setting.is_all) else { continue };
            if (owner == Some(engine.name)) != self.is(engine) {
                return Some(format!(
                    "levels of kind {:?} go with engine {:?}, and only they",
                    setting.kind, engine.name
                ));
            }
        }
        let takers: Vec<&str> = match (owner, level.storage()) {
            (Some(owner), _) => vec![owner],
            (None, Some(storage)) => {
                let takes = |it: &&Declaration| it.storages.contains(&storage.kind());
                ENGINES.iter().filter(takes).map(|it| it.name).collect()
            }
            (None, None) => Vec::new(),
        };
        if takers.is_empty() || takers.contains(&self.name) {
            return (self.mismatch)(level);
        }
        let plural = if takers.len() > 1 { "s" } else { "" };
        let takers: Vec<String> = takers.iter().map(|name| format!("{name:?}")).collect();
        let takers = takers.join(" and ");
        Some(format!("goes with engine{plural} {takers}, not with {:?}", self.name))
    }
}

impl Deref for EngineKind {
    type Target = Declaration;

    fn deref(&self) -> &Declaration {
        self.0
    }
}

impl PartialEq for EngineKind {
    fn eq(&self, other: &Self) -> bool {
        self.is(other)
    }
}

impl Eq for EngineKind {}

impl fmt::Debug for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EngineKind").field(&self.name).finish()
    }
}

/// Why an engine does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Its results are not made here.
    #[error("imported results are not run again")]
    Imported,
    /// There is no directory to work in.
    #[error("the load needs a directory to work in")]
    NoDirectory,
    /// It cannot be had on this machine.
    #[error(transparent)]
    Engine(#[from] Error),
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Goal: names, kinds of level and samples are clear: none stands for two engines, and a key has one form.
    #[test]
    fn declarations_do_not_clash() {
        let names: BTreeSet<&str> = ENGINES.iter().map(|engine| engine.name).collect();
        assert_eq!(names.len(), ENGINES.len());
        let settings = || ENGINES.iter().filter_map(|engine| engine.setting);
        let kinds: BTreeSet<&str> = settings().map(|setting| setting.kind).collect();
        assert_eq!(kinds.len(), settings().count());
        let of_loads = ENGINES.iter().map(|engine| engine.keys).collect::<Vec<_>>();
        let of_levels = settings().map(|setting| setting.keys).collect::<Vec<_>>();
        for tables in [of_loads, of_levels] {
            let keys: Vec<_> = tables.into_iter().flatten().collect();
            for key in &keys {
                assert!(keys.iter().all(|it| it.name != key.name || it == key), "{key:?}");
            }
        }
        for engine in ENGINES {
            assert!(engine.start.is_some() || engine.is_imported(), "{engine:?}");
            assert!(EngineKind::of(engine).is(engine));
        }
    }
}
