//! Places of many instances: the same condition, a directory and container for each.

use super::Place;
use base::{Error, Stop};
use loads::crowd::{Base, PlainShares, Shares};
use loads::place::Place as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Places of a run's instances, whose directories are taken away when this is dropped.
#[derive(Debug)]
pub(super) struct Instances {
    places: Vec<Place>,
    shares: Arc<dyn Shares>,
    /// As the shares gave them; empty once they were taken back.
    directories: Vec<PathBuf>,
}

impl Instances {
    /// Makes `count` places of the same condition, with directories from the storage's [`Shares`], or plain ones
    /// below the place's.
    pub(super) fn make(
        place: &Place,
        count: u32,
        base: &Base<'_>,
        stop: &Stop,
    ) -> Result<Self, Error> {
        let shares = place.shares.clone().unwrap_or_else(|| {
            let parent = place.directory().to_path_buf();
            Arc::new(PlainShares { parent })
        });
        let directories = shares.make(count, base, stop)?;
        let at = |directory: &PathBuf| place.within(directory);
        let places = directories.iter().map(at).collect();
        Ok(Self { places, shares, directories })
    }
}

impl Place {
    /// The same condition on another directory.
    fn within(&self, directory: &Path) -> Self {
        Self { file: directory.join("file"), mounts: Vec::new(), shares: None, ..self.clone() }
    }
}

impl loads::place::Instances for Instances {
    fn places(&self) -> Vec<&dyn loads::place::Place> {
        self.places.iter().map(|place| place as &dyn loads::place::Place).collect()
    }

    fn take_back(mut self: Box<Self>) -> Result<(), Error> {
        let directories = std::mem::take(&mut self.directories);
        self.shares.take_back(&directories)
    }
}

impl Drop for Instances {
    fn drop(&mut self) {
        if self.directories.is_empty() {
            return;
        }
        if let Err(error) = self.shares.take_back(&self.directories) {
            eprintln!("taking instances' directories away: {error}");
        }
    }
}
