//! Commands without a mount: listing the partial files of an upper directory, and completing them.
//!
//! Both need the options of the mount, since a partial file needs its lower file: as they are
//! given, or as the mount has recorded them ([`options_of_upper`]). They lock the directories as a
//! mount does.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::error::UnionError;
use crate::ops::Union;
use crate::options::{OptionError, Options, SyncMode};
use crate::sys::join;

/// A partial file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartialFile {
    /// From the union's root; `None` if its directory is gone.
    pub path: Option<PathBuf>,
    /// Its size.
    pub size_bytes: u64,
    /// Bytes that are stored.
    pub stored_bytes: u64,
    /// Bytes that only the lower file has.
    pub unfilled_bytes: u64,
    /// Whether some of it was lost.
    pub is_damaged: bool,
    /// Why the bytes of the lower file cannot be read; `None` if they can.
    pub trouble: Option<String>,
}

/// Returns the options of an upper directory's union, as its last mount has recorded them, with
/// those of an option string over them. With lower layers and work directory in that no record is
/// needed.
///
/// # Errors
/// If a part of the union cannot be found, or is another one.
pub fn options_of_upper(upper: &Path, given: &[u8]) -> Result<Options, UnionError> {
    crate::record::find(upper, given)
}

/// Returns the partial files of a union that is not mounted.
///
/// # Errors
/// If the layers cannot be opened, or a union has them.
pub fn partial_files(options: Options) -> Result<Vec<PartialFile>, UnionError> {
    let union = open(options)?;
    let store = union.tree().store().filter(|store| !store.is_empty());
    let Some(store) = store else { return Ok(Vec::new()) };
    let directories =
        union.tree().directories_by_key().map_err(|errno| upper_error(&union, errno))?;
    let files = store.status().into_iter().map(|file| {
        let path = file.names.first().and_then(|name| {
            let path = join(directories.get(&name.parent)?, &name.name);
            Some(path.to_vec())
        });
        let is_needed = file.unfilled_bytes > 0;
        let trouble = path
            .as_deref()
            .filter(|_| is_needed)
            .and_then(|path| union.partials().trouble_at(path));
        PartialFile {
            path: path.map(|path| std::ffi::OsString::from_vec(path).into()),
            size_bytes: file.size_bytes,
            stored_bytes: file.stored_bytes,
            unfilled_bytes: file.unfilled_bytes,
            is_damaged: file.is_damaged,
            trouble,
        }
    });
    Ok(files.collect())
}

/// Completes every partial file of a union that is not mounted. Returns how many there were. For
/// the files in `accepted` (paths from the union's root) a changed lower file is accepted.
///
/// # Errors
/// As [`partial_files`]; and if one of them could not be made whole: then the others are.
pub async fn complete_partial_files(
    options: Options,
    accepted: &[PathBuf],
) -> Result<usize, UnionError> {
    let union = open(options)?;
    for path in accepted {
        let path = path.strip_prefix("/").unwrap_or(path).as_os_str().as_bytes();
        let is_partial = union.tree().node_at(path).is_ok_and(|node| node.partial().is_some());
        if !is_partial {
            let upper = union.tree().options().upper.clone().unwrap_or_default();
            let files = format!("{} (no such partial file)", String::from_utf8_lossy(path));
            return Err(UnionError::Unfinished { upper, files });
        }
        union.tree().accept(path.to_vec());
    }
    union.durability().set_clean(false);
    let completed = union.partials().complete_all().await;
    let synced = union.durability().sync_at_end().await;
    union
        .durability()
        .set_clean(synced.is_ok() && union.tree().options().sync != SyncMode::Volatile);
    let completed = completed.and_then(|done| synced.map(|()| done));
    let (count, unfinished) = completed.map_err(|errno| upper_error(&union, errno))?;
    let upper = union.tree().options().upper.clone().unwrap_or_default();
    UnionError::unfinished(&upper, &unfinished).map_or(Ok(count), Err)
}

fn open(options: Options) -> Result<Rc<Union>, UnionError> {
    if options.upper.is_none() {
        let text = "without upperdir and workdir nothing can be partial";
        return Err(OptionError::Combination(text).into());
    }
    crate::mount::open(options)
}

fn upper_error(union: &Union, errno: rustix::io::Errno) -> UnionError {
    let upper = union.tree().options().upper.clone().unwrap_or_default();
    UnionError::layer("upperdir", &upper, errno)
}
