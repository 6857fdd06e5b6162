//! Walking the sources: directories are created at once, everything else becomes tasks.

use super::task::Task;
use super::together::Group;
use super::{Options, Pair, Tally};
use crate::deploy::mounts;
use crate::deploy::stop::Stop;
use anyhow::{Context, anyhow};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::fs::{DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;

/// Work to do after all tasks.
#[derive(Debug, Default)]
pub(crate) struct Scanned {
    /// Directories with their final attributes, outer before inner.
    pub(crate) directories: Vec<(Pair, Metadata)>,
    /// Hard links: (copy of the first name, further name).
    pub(crate) links: Vec<(PathBuf, PathBuf)>,
}

struct Scan<'a> {
    options: &'a Options,
    tally: &'a Tally,
    stop: &'a Stop,
    sender: SyncSender<Group>,
    /// Small files of one directory that go to a worker together.
    group: Group,
    /// Device numbers of this machine's Tsumugi mounts.
    mounts: BTreeSet<u64>,
    /// The directory of the last copy, and its mount.
    last: Option<(PathBuf, Option<u64>)>,
    /// Copies of files that have several names.
    firsts: HashMap<(u64, u64), PathBuf>,
    /// The copies so far, with their sources, if two sources may give one name.
    names: Option<HashMap<PathBuf, PathBuf>>,
    found: Scanned,
}

/// Walks all pairs and sends tasks.
pub(crate) fn scan(
    pairs: &[Pair],
    options: &Options,
    tally: &Tally,
    stop: &Stop,
    sender: SyncSender<Group>,
) -> Scanned {
    let (group, firsts, found) = (Group::default(), HashMap::new(), Scanned::default());
    let mounts = mounts::devices("fuse.tsumugi");
    let names = may_collide(pairs).then(HashMap::new);
    let mut scan =
        Scan { options, tally, stop, sender, group, mounts, last: None, firsts, names, found };
    for pair in pairs {
        scan.walk(pair);
    }
    if !scan.group.tasks.is_empty() {
        let _ = scan.sender.send(scan.group);
    }
    scan.found
}

/// Returns whether copies of two sources may get one name, because one of the two is, or lies in,
/// the copy of the other.
fn may_collide(pairs: &[Pair]) -> bool {
    let mut targets: Vec<&Path> = pairs.iter().map(|pair| &*pair.target).collect();
    // Paths are ordered by their components, so those below a path follow it.
    targets.sort_unstable();
    targets.windows(2).any(|pair| pair[1].starts_with(pair[0]))
}

impl Scan<'_> {
    /// Walks with an explicit stack, because trees may be deeper than the thread's stack.
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

    /// Returns the entries of a directory, the last first.
    fn visit(&mut self, pair: &Pair) -> anyhow::Result<Vec<Pair>> {
        let data = pair.source.symlink_metadata().context("cannot read its attributes")?;
        if !data.is_dir() {
            self.note_name(pair)?;
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
            let entry = entry.context("cannot list it")?;
            let name = entry.file_name();
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let (source, target) = (pair.source.join(&name), pair.target.join(&name));
            children.push((is_directory, Pair { source, target }));
        }
        // Files before directories, so that files can form a group.
        children.sort_by(|a, b| (b.0, &b.1.source).cmp(&(a.0, &a.1.source)));
        Ok(children.into_iter().map(|(_, child)| child).collect())
    }

    /// Notes the name of a copy. Returns an error if another source has given it already: one of
    /// the two would be lost. (Directories of one name are merged.)
    fn note_name(&mut self, pair: &Pair) -> anyhow::Result<()> {
        let Some(names) = &mut self.names else { return Ok(()) };
        match names.entry(pair.target.clone()) {
            Entry::Vacant(free) => {
                free.insert(pair.source.clone());
                Ok(())
            }
            Entry::Occupied(taken) => Err(anyhow!(
                "is not copied, because {} has become {}: copy it to another name",
                taken.get().display(),
                pair.target.display()
            )),
        }
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
        let mount = self.mount_of(&target);
        if let Some(group) = self.group.add(Task { source, target, data }, mount) {
            // Without a worker, all were stopped.
            let _ = self.sender.send(group);
        }
    }

    /// Returns the Tsumugi mount in which a copy gets its name, if it is in one.
    fn mount_of(&mut self, target: &Path) -> Option<u64> {
        let directory = target.parent().filter(|_| !self.mounts.is_empty())?;
        if let Some((last, mount)) = &self.last
            && last == directory
        {
            return *mount;
        }
        let device = directory.metadata().ok().map(|data| data.dev());
        let mount = device.filter(|device| self.mounts.contains(device));
        self.last = Some((directory.to_path_buf(), mount));
        mount
    }
}

/// Creates a directory that its owner can write until the end, when it gets its final mode.
fn make_directory(path: &Path) -> anyhow::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        result => result.with_context(|| format!("cannot make {}", path.display())),
    }
}
