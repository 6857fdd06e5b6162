//! The status of a mounted union.
//!
//! The answer goes through an ioctl on the root. This works for every serving process, and shows
//! nothing to users that cannot open the root. It is JSON, which the command prints unchanged.

use std::fmt::Write as _;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::Union;
use crate::copier::SyncMethod;
use crate::options::SyncMode;

/// On the root: answers what [`mount_status`] gives. `_IOR('u', 0x52, char[2048])`
pub const IOCTL_STATUS: u32 = 2 << 30 | (STATUS_BYTES as u32) << 16 | 0x7552;
/// Room for the answer.
const STATUS_BYTES: usize = 2048;
/// Longest reported error, in bytes.
const ERROR_BYTES_MAX: usize = 500;

impl Union {
    /// Returns the state of the union as JSON.
    pub(crate) fn status_text(&self) -> String {
        let (mut partial, mut unfilled, mut stored, mut damaged) = (0_u64, 0, 0, 0);
        for file in self.tree.store().iter().flat_map(|store| store.status()) {
            partial += 1;
            unfilled += file.unfilled_bytes;
            stored += file.stored_bytes;
            damaged += u64::from(file.is_damaged);
        }
        let history = self.durability.history();
        let error = match self.tree.last_error() {
            Some(text) => quoted(&text),
            None => "null".into(),
        };
        format!(
            "{{\"pending\":{},\"partial\":{partial},\"unfilled_bytes\":{unfilled},\
             \"stored_bytes\":{stored},\"damaged\":{damaged},\"unsynced\":{},\"durable_by\":\"{}\",\"batches\":{},\
             \"batch_copies\":{},\"batch_last_ms\":{:.3},\"batch_longest_ms\":{:.3},\
             \"open_files\":{},\"nodes\":{},\"is_kept\":{},\"server\":{},\"last_error\":{error}}}",
            self.durability.waiting_count(),
            self.durability.dirty_count(),
            self.durable_by(),
            history.batches(),
            history.files(),
            history.last().as_secs_f64() * 1e3,
            history.longest().as_secs_f64() * 1e3,
            self.handles.file_count(),
            self.tree.node_count(),
            self.tree.is_observed(),
            std::process::id(),
        )
    }
}

impl Union {
    /// Returns what makes a batch durable: one commit of the upper file system's journal for all,
    /// one syncfs(2), or a sync of each file.
    fn durable_by(&self) -> &'static str {
        match &self.tree.layers().upper {
            _ if self.tree.options().sync == SyncMode::Volatile => "nothing",
            None => "nothing",
            Some(_) if self.tree.options().sync_whole_file_system => "syncfs",
            Some(upper) if matches!(upper.sync_method, SyncMethod::Commit { .. }) => "commit",
            Some(_) => "files",
        }
    }
}

/// Returns a JSON string.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for character in text.chars() {
        if out.len() >= ERROR_BYTES_MAX {
            break;
        }
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            character if character.is_control() => {
                // Writing to a string does not fail.
                let _ = write!(out, "\\u{:04x}", u32::from(character));
            }
            character => out.push(character),
        }
    }
    out.push('"');
    out
}

/// Returns the state of a mounted union: a JSON object with the copies that wait for their names
/// (`pending`), partial files and the bytes that only the lower layers have of them, the batches of
/// the thread that serves it, its last error and the serving process.
///
/// # Errors
/// Errors of opening the mount point and of the ioctl; `ENOTTY` if it is not a union of this
/// program.
pub fn mount_status(mountpoint: &Path) -> std::io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(mountpoint, flags, Mode::empty())?;
    let mut bytes = fuse::read_ioctl(root.as_fd(), IOCTL_STATUS)?;
    let length = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    bytes.truncate(length);
    String::from_utf8(bytes).map_err(|_| std::io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: any error text becomes one JSON string of bounded length.
    #[test]
    fn errors_are_quoted() {
        assert_eq!(quoted("a\"b\\c\nd"), "\"a\\\"b\\\\c\\u000ad\"");
        assert!(quoted(&"x".repeat(9000)).len() < STATUS_BYTES / 2);
    }
}
