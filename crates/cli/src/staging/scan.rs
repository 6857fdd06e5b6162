//! Walking the sources: directories are made at once, all else becomes tasks.

use super::{Options, Pair, Tally};
use crate::deploy::stop::Stop;
use anyhow::{Context, anyhow};
use std::collections::HashMap;
use std::fs::{DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;

/// Something to copy that is no directory.
#[derive(Debug)]
pub(crate) struct Task {
    /// What.
    pub(crate) source: PathBuf,
    /// The copy's name.
    pub(crate) target: PathBuf,
    /// The source's attributes.
    pub(crate) data: Metadata,
}

/// What is to be done after all tasks.
#[derive(Debug, Default)]
pub(crate) struct Scanned {
    /// Directories with the attributes they get, outer before inner.
    pub(crate) directories: Vec<(Pair, Metadata)>,
    /// Hard links: (copy of the first name, further name).
    pub(crate) links: Vec<(PathBuf, PathBuf)>,
}

struct Scan<'a> {
    options: &'a Options,
    tally: &'a Tally,
    stop: &'a Stop,
    sender: SyncSender<Task>,
    /// Copies of files that have several names.
    firsts: HashMap<(u64, u64), PathBuf>,
    found: Scanned,
}

/// Walks all pairs and hands out tasks.
pub(crate) fn scan(
    pairs: &[Pair],
    options: &Options,
    tally: &Tally,
    stop: &Stop,
    sender: SyncSender<Task>,
) -> Scanned {
    let firsts = HashMap::new();
    let mut scan = Scan { options, tally, stop, sender, firsts, found: Scanned::default() };
    for pair in pairs {
        scan.walk(pair);
    }
    scan.found
}

impl Scan<'_> {
    /// With a stack of its own: trees may be deeper than ours.
    fn walk(&mut self, top: &Pair) {
        let mut waiting = vec![top.clone()];
        while let Some(pair) = waiting.pop() {
            if self.stop.check().is_err() {
                return;
            }
            match self.visit(&pair) {
                Ok(children) => waiting.extend(children),
                Err(error) => self.tally.failed(&pair.source, &error),
            }
        }
    }

    /// Gives what is in a directory, last first.
    fn visit(&mut self, pair: &Pair) -> anyhow::Result<Vec<Pair>> {
        let data = pair.source.symlink_metadata().context("cannot look at it")?;
        if !data.is_dir() {
            self.hand_out(pair, data);
            return Ok(Vec::new());
        }
        if !self.options.recursive {
            return Err(anyhow!("is a directory: add -r"));
        }
        make_directory(&pair.target)?;
        self.found.directories.push((pair.clone(), data));
        let mut children = Vec::new();
        for entry in std::fs::read_dir(&pair.source).context("cannot list it")? {
            let name = entry.context("cannot list it")?.file_name();
            children
                .push(Pair { source: pair.source.join(&name), target: pair.target.join(&name) });
        }
        children.sort_by(|a, b| b.source.cmp(&a.source));
        Ok(children)
    }

    fn hand_out(&mut self, pair: &Pair, data: Metadata) {
        if data.nlink() > 1 {
            let key = (data.dev(), data.ino());
            if let Some(first) = self.firsts.get(&key) {
                self.found.links.push((first.clone(), pair.target.clone()));
                return;
            }
            self.firsts.insert(key, pair.target.clone());
        }
        if data.is_file() {
            self.tally.bytes_found.fetch_add(data.len(), Ordering::Relaxed);
        }
        let (source, target) = (pair.source.clone(), pair.target.clone());
        // No worker left means that all were stopped.
        let _ = self.sender.send(Task { source, target, data });
    }
}

/// Open to its owner until the end, whatever mode it gets then.
fn make_directory(path: &Path) -> anyhow::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        result => result.with_context(|| format!("cannot make {}", path.display())),
    }
}
