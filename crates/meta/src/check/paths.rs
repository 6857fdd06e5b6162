//! Paths of the inodes that findings concern.

use super::Finding;
use crate::records::{Dentry, Inode, Key, decode, key_number, key_tail};
use crate::store::Error;
use crate::tree::Core;
use protocol::InodeId;
use std::collections::{BTreeMap, BTreeSet};

/// Most directories that are followed upwards from a file; more are a loop.
const DEPTH_MAX: usize = 4096;

/// Findings that get a path: the rest of a long list adds nothing.
const PATHS_MAX: usize = 100;

/// A directory, and a name in it.
type EntryKey = (InodeId, Vec<u8>);

/// Fills in the paths of findings, as far as names lead to the root.
pub(super) fn fill(core: &Core, findings: &mut [Finding]) -> Result<(), Error> {
    let wanted: BTreeSet<_> =
        findings.iter().take(PATHS_MAX).filter_map(|finding| finding.inode).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let mut places: BTreeMap<InodeId, EntryKey> = BTreeMap::new();
    core.base.layers.each(&Key::Dentry(InodeId(0), b"").prefix(0), |key, value| {
        let Ok(dentry) = decode::<Dentry>(key, value) else { return Ok(()) };
        if wanted.contains(&dentry.inode) {
            let place = (InodeId(key_number(key, 0)?), key_tail(key, 1).to_vec());
            places.entry(dentry.inode).or_insert(place);
        }
        Ok(())
    })?;
    for finding in findings.iter_mut().take(PATHS_MAX) {
        let Some(inode) = finding.inode else { continue };
        finding.path = path_of(core, inode, &places)?;
    }
    Ok(())
}

fn path_of(
    core: &Core,
    inode: InodeId,
    places: &BTreeMap<InodeId, EntryKey>,
) -> Result<Option<String>, Error> {
    if inode == InodeId::ROOT {
        return Ok(Some("/".to_owned()));
    }
    let Some((mut parent, name)) = places.get(&inode).cloned() else { return Ok(None) };
    let mut names = vec![name];
    while parent != InodeId::ROOT {
        let Some((above, name)) = key_of_directory(core, parent)? else { return Ok(None) };
        if names.len() > DEPTH_MAX {
            return Ok(None);
        }
        names.push(name);
        parent = above;
    }
    let mut path = String::new();
    for name in names.iter().rev() {
        path.push('/');
        path.push_str(&String::from_utf8_lossy(name));
    }
    Ok(Some(path))
}

/// Returns the name of a directory, through its record of its parent.
fn key_of_directory(core: &Core, directory: InodeId) -> Result<Option<EntryKey>, Error> {
    let key = Key::Inode(directory).encode();
    let Some(value) = core.base.layers.get(&key)? else { return Ok(None) };
    let Ok(inode) = decode::<Inode>(&key, &value) else { return Ok(None) };
    let mut found = None;
    core.base.layers.each(&Key::Dentry(inode.parent, b"").prefix(1), |key, value| {
        let dentry = decode::<Dentry>(key, value).ok();
        if dentry.is_some_and(|dentry| dentry.inode == directory) {
            found = Some((inode.parent, key_tail(key, 1).to_vec()));
        }
        Ok(())
    })?;
    Ok(found)
}
