//! Places of many instances: the same condition, a directory and container for each.

use super::Place;
use crate::crowd::{Base, PlainShares, Shares};
use crate::engine::Stop;
use crate::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Places of a run's instances, whose directories are taken away when this is dropped.
#[derive(Debug)]
pub struct Instances {
    places: Vec<Place>,
    shares: Arc<dyn Shares>,
    /// As the shares gave them; empty once they were taken back.
    directories: Vec<PathBuf>,
}

impl Place {
    /// So many places of the same condition for one run: each has a directory of its own (by the storage's
    /// [`Shares`]; plain ones below this place's else) and, where the condition is a container, a container
    /// of its own for each of its [commands](Place::command). The directory, not a file in it, is what an
    /// instance works on: [`Place::directory`] outside, [`Place::inside_directory`] inside. Fails if a
    /// directory cannot be made; nothing is left then.
    pub fn instances(&self, count: u32, base: &Base<'_>, stop: &Stop) -> Result<Instances, Error> {
        let shares = self.shares.clone().unwrap_or_else(|| {
            let parent = self.directory().to_path_buf();
            Arc::new(PlainShares { parent })
        });
        let directories = shares.make(count, base, stop)?;
        let at = |directory: &PathBuf| self.within(directory);
        let places = directories.iter().map(at).collect();
        Ok(Instances { places, shares, directories })
    }

    /// The same condition on another directory.
    fn within(&self, directory: &Path) -> Self {
        Self { file: directory.join("file"), mounts: Vec::new(), shares: None, ..self.clone() }
    }
}

impl Instances {
    /// One place for each instance, in their order.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// Takes the directories away; what cannot be undone is an error.
    pub fn take_back(mut self) -> Result<(), Error> {
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
