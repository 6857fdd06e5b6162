//! The file systems on which runs take place: the measured one, and others on loop devices with
//! images on it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use super::Set;
use super::condition::Condition;
use super::file_system::{FileSystem, run};
use super::files::{BenchDirectory, Lower};
use eval::Stop;

/// Size of an image, which is sparse.
const IMAGE_BYTES: u64 = 48 << 30;

/// A file system on a loop device. Dropping it unmounts it and frees the device.
#[derive(Debug)]
struct LoopDevice {
    at: PathBuf,
}

impl LoopDevice {
    fn make(system: FileSystem, directory: &Path) -> anyhow::Result<Self> {
        let image = directory.join(format!("{}.image", system.name()));
        let at = directory.join(system.name());
        std::fs::create_dir(&at).with_context(|| format!("cannot make {}", at.display()))?;
        let file = File::create(&image).and_then(|file| file.set_len(IMAGE_BYTES));
        file.with_context(|| format!("cannot make {}", image.display()))?;
        let [program, options @ ..] = system.mkfs() else { bail!("there is nothing to make") };
        run(Command::new(program).args(options).arg(&image))?;
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at))?;
        Ok(Self { at })
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Err(error) = run(Command::new("umount").arg(&self.at)) {
            tracing::warn!(%error, path = %self.at.display(), "what the bench mounted stays mounted");
        }
    }
}

/// Where a condition's runs take place. Fields drop in their order.
#[derive(Debug)]
pub(super) struct Ground {
    system: FileSystem,
    pub(super) lower: Lower,
    /// `None` on the file system of the bench's directory.
    directory: Option<BenchDirectory>,
    _device: Option<LoopDevice>,
}

/// All file systems that the conditions need, each with the same lower files.
#[derive(Debug)]
pub(super) struct Grounds<'a> {
    here: &'a BenchDirectory,
    all: Vec<Ground>,
}

impl<'a> Grounds<'a> {
    /// Creates the file systems.
    ///
    /// # Errors
    /// If a program is missing, or there is not enough space.
    pub(super) fn make(
        here: &'a BenchDirectory,
        conditions: &[Condition],
        (set, count, seed): (Set, usize, u64),
        stopped: &Stop,
    ) -> anyhow::Result<Self> {
        let mut all: Vec<Ground> = Vec::new();
        for system in conditions.iter().map(|condition| condition.file_system()) {
            if all.iter().any(|known| known.system == system) {
                continue;
            }
            let (mut directory, mut device) = (None, None);
            if system != FileSystem::Here {
                let made = LoopDevice::make(system, here.root())?;
                directory = Some(BenchDirectory::new(&made.at)?);
                device = Some(made);
            }
            let on = directory.as_ref().unwrap_or(here);
            let lower = Lower::make(on, system, (set, count, seed), stopped)?;
            all.push(Ground { system, lower, directory, _device: device });
        }
        Ok(Self { here, all })
    }

    /// Returns where a condition's runs take place.
    pub(super) fn of(&self, condition: Condition) -> anyhow::Result<(&BenchDirectory, &Lower)> {
        let system = condition.file_system();
        let ground = self.all.iter().find(|ground| ground.system == system);
        let ground = ground.context("a condition without a file system")?;
        Ok((ground.directory.as_ref().unwrap_or(self.here), &ground.lower))
    }

    /// Returns the lower files, which are the same everywhere.
    pub(super) fn lower(&self) -> Option<&Lower> {
        self.all.first().map(|ground| &ground.lower)
    }

    /// Returns a directory on the measured disk.
    pub(super) fn disk(&self) -> &Path {
        self.here.root()
    }
}
