//! A directory for each container, with its layers mounted.
//!
//! `N/mount` is what container N sees, `N/upper` and `N/work` are where its changes go. All mounts of a run
//! are made by one process of ours (`tsumugi union bench-mount`), in the mount namespace of the experiment, so
//! that a container binds `N` as any directory, with what is mounted in it. Who serves them is marked as
//! a service: when loads have to be killed, containers end first. If the experiment is killed, the reaper
//! unmounts all below its directory.

use super::{Layers, MOUNT, NAMES};
use crate::clearing::{self, insist};
use crate::condition::mounts_below;
use base::{Error, Stop};
use loads::crowd::{Base, Shares};
use loads::place::{Layers as _, Place};
use loads::scheme::Scheme;
use loads::{file_set, process};
use rustix::mount::{UnmountFlags, unmount};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Name of the file beside the containers with what mounting said.
const SAID: &str = "mount.err";
/// Name of the directory beside the containers with what is left of earlier runs.
const CLEARED: &str = "cleared";
/// How long mounting for all containers of a run may take.
const MOUNT_PATIENCE: Duration = Duration::from_mins(10);

impl Shares for Layers {
    fn make(&self, count: u32, base: &Base<'_>, stop: &Stop) -> Result<Vec<PathBuf>, Error> {
        // Each run finds the files in memory.
        file_set::warm(&self.lower.join(base.key))?;
        let made = self.directories(count, stop).and_then(|made| {
            self.mount(&made, stop)?;
            self.sync()?;
            Ok(made)
        });
        if made.is_err() {
            self.remove()?;
        }
        made
    }

    fn take_back(&self, _directories: &[PathBuf]) -> Result<(), Error> {
        self.remove()
    }
}

impl Layers {
    /// Makes directories for so many containers; nothing of an earlier run is in them.
    fn directories(&self, count: u32, stop: &Stop) -> Result<Vec<PathBuf>, Error> {
        let mut made = Vec::new();
        for number in 0..count {
            if stop.is_requested() {
                return Err(Error::Interrupted);
            }
            let at = self.containers.join(number.to_string());
            let wrong = || Error::io("cannot make", &at);
            fs::create_dir(&at).map_err(wrong())?;
            for name in [MOUNT, "work"] {
                fs::create_dir(at.join(name)).map_err(wrong())?;
            }
            let upper = at.join("upper");
            if self.scheme == Scheme::BtrfsSnapshot {
                let (lower, upper) =
                    (self.lower.display().to_string(), upper.display().to_string());
                process::output("btrfs", &["subvolume", "snapshot", &lower, &upper])?;
            } else {
                fs::create_dir(&upper).map_err(wrong())?;
            }
            if let Some(pool) = &self.thin {
                pool.mount(number, &upper)?;
            }
            made.push(at);
        }
        Ok(made)
    }

    /// Mounts what the containers see.
    fn mount(&self, made: &[PathBuf], stop: &Stop) -> Result<(), Error> {
        let said = self.containers.with_file_name(SAID);
        let file = fs::File::create(&said).map_err(Error::io("cannot write", &said))?;
        let mut command = Command::new(&self.program);
        command.args(["union", "bench-mount", "--condition", self.condition(), "--lower"]);
        command.arg(&self.lower).args(made).env("XDG_RUNTIME_DIR", &self.runtime);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::from(file));
        if let Some(owner) = &self.owner {
            owner.mark_service(&mut command);
        }
        let status = process::follow(&mut command, stop, MOUNT_PATIENCE)?;
        if status.success() {
            return Ok(());
        }
        let why = fs::read_to_string(&said).unwrap_or_default();
        Err(Error::program("mounting", format!("{status}: {}", why.trim())))
    }

    /// Unmounts and removes what a run has left, and waits until the disk has done with it.
    fn remove(&self) -> Result<(), Error> {
        for mount in mounts_below(&self.containers)? {
            insist(|| unmount(&mount, UnmountFlags::empty()).map_err(Into::into))
                .map_err(Error::io("cannot unmount", &mount))?;
        }
        let wrong = || Error::io("cannot remove", &self.containers);
        for entry in fs::read_dir(&self.containers).map_err(wrong())? {
            let at = entry.map_err(wrong())?.path();
            let number = at.file_name().and_then(|name| name.to_str()?.parse().ok());
            if let (Some(pool), Some(number)) = (&self.thin, number) {
                pool.unmount(number, &at.join("upper"))?;
            }
            if self.scheme == Scheme::BtrfsSnapshot && at.join("upper").exists() {
                let upper = at.join("upper").display().to_string();
                process::output("btrfs", &["subvolume", "delete", &upper])?;
            }
            clearing::clear(&at, &self.containers.with_file_name(CLEARED))
                .map_err(Error::io("cannot remove", &at))?;
        }
        file_set::sync(&self.containers)
    }

    /// Where a container with this directory sees the files of a base.
    pub fn seen(directory: &Path, key: &str) -> PathBuf {
        directory.join(MOUNT).join(key)
    }
}

impl loads::place::Layers for Layers {
    fn scheme(&self) -> Scheme {
        self.scheme
    }

    fn condition(&self) -> &'static str {
        match self.scheme {
            Scheme::Overlay | Scheme::OverlayReflink => "kernel",
            Scheme::OverlayVolatile => "kernel-volatile",
            Scheme::FuseOverlayfs => "fuse-overlayfs",
            Scheme::UnionKeep => "keep",
            Scheme::UnionBackground => "background",
            Scheme::UnionWhole => "whole",
            Scheme::BtrfsSnapshot | Scheme::ThinSnapshot => "bind",
        }
    }

    fn sync(&self) -> Result<(), Error> {
        if self.thin.is_some() {
            let wrong = || Error::io("cannot list", &self.containers);
            for entry in fs::read_dir(&self.containers).map_err(wrong())? {
                file_set::sync(&entry.map_err(wrong())?.path().join("upper"))?;
            }
        }
        file_set::sync(&self.containers)
    }

    fn container(&self, place: &dyn Place, scratch: &Path, files: u32, seed: u64) -> Command {
        let names = place.inside_scratch(scratch).join(NAMES).display().to_string();
        let at = place.inside_directory().display().to_string();
        let (files, seed) = (files.to_string(), seed.to_string());
        let words = [
            ["union", "bench-container"],
            ["--condition", self.condition()],
            ["--names", &names],
            ["--at", &at],
            ["--operations", &files],
            ["--seed", &seed],
        ];
        let words: Vec<String> = words.concat().into_iter().map(Into::into).collect();
        place.command(&self.program.display().to_string(), &words, scratch)
    }
}
