//! The file of marks: which devices have failed a flush in an earlier life of their node.
//!
//! It has one entry for each device on a disk: the device's name and its [`FailureMark`]. Entries
//! stay in the file, so that a mark is found again when the list of devices has changed.

use crate::config::NodeConfig;
use crate::error::NodeError;
use block::FailureMark;
use reactor::{Buffer, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// Length of an entry in bytes: name and mark.
const ENTRY_BYTES: usize = 16 + FailureMark::BYTES as usize;

/// Most entries.
const ENTRIES_MAX: usize = 4096;

/// The marks of a node's devices.
pub(crate) struct Marks {
    path: PathBuf,
    file: File,
    entries: Vec<(Uuid, u128)>,
}

/// Returns the file of marks, if the node has devices that need it.
fn path_of(config: &NodeConfig) -> Option<&Path> {
    let needs_it = config.devices.iter().any(|device| device.path.is_some());
    config.marks.as_deref().filter(|_| needs_it)
}

fn failed(path: &Path) -> impl Fn(io::Error) -> NodeError {
    move |source| NodeError::Marks { path: path.into(), source }
}

/// Creates the file of marks, if it is missing and needed. [`crate::run`] does so, too; a process
/// that confines itself calls this before, while it can write in the directory.
///
/// # Errors
/// [`NodeError::Marks`].
pub fn create_marks(config: &NodeConfig) -> Result<(), NodeError> {
    let Some(path) = path_of(config) else { return Ok(()) };
    let options = OpenOptions { create: true, ..OpenOptions::READ_WRITE };
    File::open(path, options).map(drop).map_err(failed(path))
}

impl Marks {
    /// Reads the marks; `None` if there is no file of marks.
    ///
    /// # Errors
    /// [`NodeError::Marks`].
    pub(crate) async fn read(config: &NodeConfig) -> Result<Option<Marks>, NodeError> {
        let Some(path) = path_of(config) else { return Ok(None) };
        let file = match File::open(path, OpenOptions::READ_WRITE) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(failed(path))?,
        };
        let most = ENTRIES_MAX * ENTRY_BYTES;
        let (read, buffer) = file.read_at(Buffer::with_capacity(most), 0..most, 0).await;
        let read = read.map_err(failed(path))?;
        let (entries, _) = buffer[..read].as_chunks::<ENTRY_BYTES>();
        let half = |entry: &[u8; ENTRY_BYTES], at: usize| {
            let mut half = [0; 16];
            half.copy_from_slice(&entry[at..at + 16]);
            half
        };
        let entry =
            |entry| (Uuid::from_bytes(half(entry, 0)), u128::from_le_bytes(half(entry, 16)));
        Ok(Some(Marks { path: path.into(), file, entries: entries.iter().map(entry).collect() }))
    }

    /// Returns the mark of a device: 0 if it has never failed a flush.
    pub(crate) fn found(&self, device: Uuid) -> u128 {
        let entry = self.entries.iter().find(|(name, _)| *name == device);
        entry.map_or(0, |(_, mark)| *mark)
    }

    /// Returns the place in which a device marks that it has failed a flush.
    ///
    /// # Errors
    /// [`NodeError::Marks`].
    pub(crate) async fn place(&mut self, device: Uuid) -> Result<FailureMark, NodeError> {
        let known = self.entries.iter().position(|(name, _)| *name == device);
        let index = match known {
            Some(index) => index,
            None => self.add(device).await.map_err(failed(&self.path))?,
        };
        let offset = (index * ENTRY_BYTES) as u64 + ENTRY_BYTES as u64 - FailureMark::BYTES;
        Ok(FailureMark::new(self.file.clone(), offset))
    }

    async fn add(&mut self, device: Uuid) -> io::Result<usize> {
        let index = self.entries.len();
        if index == ENTRIES_MAX {
            return Err(io::Error::other("it has too many entries; remove it after a reboot"));
        }
        let mut entry = [0; ENTRY_BYTES];
        entry[..16].copy_from_slice(device.as_bytes());
        // The whole entry now: a full disk must not keep the mark from being written later.
        let written = self.file.write_at(Buffer::copy_from(&entry), (index * ENTRY_BYTES) as u64);
        written.await.0?;
        self.entries.push((device, 0));
        Ok(index)
    }
}
