//! The bench's directories and the lower files.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use eval::clearing;
use indicatif::{ProgressBar, ProgressStyle};

use super::file_system::FileSystem;
use super::{Set, check_stopped};
use eval::Stop;

/// Smallest and largest file of the study, in bytes.
const STUDY_BYTES: (f64, f64) = (1e3, 4e6);
/// Size of a large file.
const LARGE_BYTES: u64 = 256 << 20;
/// Bytes of one write.
const STEP_BYTES: usize = 1 << 20;

/// A directory of the bench's own, which is removed with its content at the end.
#[derive(Debug)]
pub(super) struct BenchDirectory {
    root: PathBuf,
}

impl BenchDirectory {
    pub(super) fn new(directory: &Path) -> anyhow::Result<Self> {
        let root = directory.join(format!("tsumugi-union-bench.{}", std::process::id()));
        std::fs::create_dir(&root).with_context(|| format!("cannot make {}", root.display()))?;
        Ok(Self { root })
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the lower directory.
    pub(super) fn lower(&self) -> PathBuf {
        self.root.join("lower")
    }

    /// Returns the directory of a run's containers.
    pub(super) fn containers(&self) -> PathBuf {
        self.root.join("containers")
    }

    /// Creates the directories of a run. Returns one for each container.
    pub(super) fn make_containers(&self, count: usize) -> anyhow::Result<Vec<PathBuf>> {
        let all = self.containers();
        let mut made = Vec::with_capacity(count);
        for number in 0..count {
            let at = all.join(number.to_string());
            for name in ["upper", "work", "mount"] {
                let path = at.join(name);
                std::fs::create_dir_all(&path)
                    .with_context(|| format!("cannot make {}", path.display()))?;
            }
            made.push(at);
        }
        Ok(made)
    }

    /// Removes what a run has left, and waits until the disk has finished.
    pub(super) fn clear_containers(&self) -> anyhow::Result<()> {
        let all = self.containers();
        if all.exists() {
            clearing::clear(&all, &self.root.join("cleared"))
                .with_context(|| format!("cannot clear {}", all.display()))?;
        }
        self.sync()
    }

    /// Makes the whole file system durable.
    pub(super) fn sync(&self) -> anyhow::Result<()> {
        let root = OwnedFd::from(File::open(&self.root).context("cannot open the directory")?);
        rustix::fs::syncfs(root).context("cannot sync the file system")
    }
}

impl Drop for BenchDirectory {
    fn drop(&mut self) {
        if let Err(error) = clearing::remove(&self.root) {
            tracing::warn!(%error, path = %self.root.display(), "cannot remove what the bench made");
        }
    }
}

/// The files that every container sees.
#[derive(Debug)]
pub(super) struct Lower {
    pub(super) path: PathBuf,
    pub(super) files: usize,
    pub(super) bytes: u64,
}

impl Lower {
    /// Creates the files, with random bytes.
    pub(super) fn make(
        directory: &BenchDirectory,
        system: FileSystem,
        (set, count, seed): (Set, usize, u64),
        stopped: &Stop,
    ) -> anyhow::Result<Self> {
        let path = directory.lower();
        system.make_lower(&path)?;
        let mut random = Random::new(seed);
        let mut step = vec![0; STEP_BYTES];
        for part in step.chunks_exact_mut(8) {
            part.copy_from_slice(&random.next().to_le_bytes());
        }
        let progress = progress(count as u64, "files");
        let mut bytes = 0;
        for number in 0..count {
            check_stopped(stopped)?;
            let size = match set {
                Set::Study => {
                    let (least, most) = STUDY_BYTES;
                    (least * (most / least).powf(random.fraction())) as u64
                }
                Set::Large => LARGE_BYTES,
            };
            let name = path.join(format!("{number:05}"));
            let failed = || format!("cannot write {}", name.display());
            let mut file = File::create(&name).with_context(failed)?;
            let mut left = size as usize;
            while left > 0 {
                let part = left.min(STEP_BYTES);
                file.write_all(&step[..part]).with_context(failed)?;
                left -= part;
            }
            bytes += size;
            progress.inc(1);
        }
        directory.sync()?;
        progress.finish_and_clear();
        Ok(Self { path, files: count, bytes })
    }

    /// Reads all files, so that every run finds them in memory (as far as they fit).
    pub(super) fn warm(&self) -> anyhow::Result<()> {
        for (name, _) in names(&self.path)? {
            let mut file = File::open(self.path.join(&name))?;
            std::io::copy(&mut file, &mut std::io::sink())?;
        }
        Ok(())
    }
}

/// Returns the files of a directory with their sizes, sorted.
pub(super) fn names(directory: &Path) -> anyhow::Result<Vec<(String, u64)>> {
    let mut names = Vec::new();
    let entries = std::fs::read_dir(directory);
    for entry in entries.with_context(|| format!("cannot list {}", directory.display()))? {
        let entry = entry?;
        names.push((entry.file_name().to_string_lossy().into_owned(), entry.metadata()?.len()));
    }
    names.sort();
    Ok(names)
}

/// Returns a progress bar on the terminal, hidden if there is no terminal.
pub(super) fn progress(count: u64, what: &str) -> ProgressBar {
    let bar = ProgressBar::new(count);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} {elapsed}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(what.to_owned());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Pseudorandom numbers from a seed (`splitmix64`).
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `limit`, which is not 0.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }

    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Puts things in a random order.
    pub(super) fn shuffle(&mut self, things: &mut [usize]) {
        for at in (1..things.len()).rev() {
            things.swap(at, self.below(at as u64 + 1) as usize);
        }
    }
}
