//! A FUSE file system of one file with a fixed name, size and owner; the caller serves its data.

use anyhow::Context;
use fuse::{
    Attributes, DirectoryBuffer, DirectoryEntry, Entry, Errno, FileSystemStatistics, FileType,
    NodeId, OpenFlags, Opened, Operation, Response, Unmounter,
};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::time::Duration;

const FILE: NodeId = NodeId(2);
/// How long the kernel may cache attributes: size and owner never change.
const VALID: Duration = Duration::from_hours(1);

/// The attributes of the file.
#[derive(Clone, Debug)]
pub(crate) struct OneFile {
    pub(crate) name: &'static str,
    pub(crate) size_bytes: u64,
    pub(crate) block_size: u32,
    /// Permissions.
    pub(crate) access: u32,
}

impl OneFile {
    fn attributes(&self, node: NodeId) -> Attributes {
        let is_file = node == FILE;
        let size = if is_file { self.size_bytes } else { 0 };
        Attributes {
            inode: node.0,
            size,
            blocks: size / 512,
            mode: if is_file { libc::S_IFREG | self.access } else { libc::S_IFDIR | 0o700 },
            nlink: 1,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            block_size: self.block_size,
            ..Attributes::default()
        }
    }

    /// Answers an operation that neither reads, writes nor syncs. Opened files bypass the kernel's
    /// cache.
    pub(crate) fn answer(&self, node: NodeId, operation: &Operation) -> Response {
        match operation {
            Operation::Lookup { name } if name.as_bytes() == self.name.as_bytes() => {
                Response::Entry(Entry {
                    node: FILE,
                    generation: 0,
                    entry_valid: VALID,
                    attributes_valid: VALID,
                    attributes: self.attributes(FILE),
                })
            }
            Operation::Lookup { .. } => Errno::NOENT.into(),
            // The storage behind the file has a fixed size.
            Operation::SetAttributes(set) if set.size.is_some() => Errno::PERM.into(),
            Operation::GetAttributes { .. } | Operation::SetAttributes(_) => {
                Response::Attributes { attributes: self.attributes(node), valid: VALID }
            }
            Operation::Open { .. } => Response::Opened(Opened {
                flags: OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES,
                ..Opened::default()
            }),
            Operation::OpenDirectory { .. } => Response::Opened(Opened::default()),
            Operation::ReadDirectory(list) => self.list(list.offset, list.size),
            Operation::StatFs => Response::Statistics(FileSystemStatistics {
                blocks: self.size_bytes / u64::from(self.block_size),
                block_size: self.block_size,
                fragment_size: self.block_size,
                name_length_max: 255,
                ..FileSystemStatistics::default()
            }),
            Operation::Flush { .. } | Operation::Release(_) | Operation::ReleaseDirectory(_) => {
                Response::Done
            }
            _ => Errno::NOSYS.into(),
        }
    }

    fn list(&self, offset: u64, size: u32) -> Response {
        let mut directory = DirectoryBuffer::new(size);
        let entry = DirectoryEntry {
            inode: FILE.0,
            offset: 1,
            kind: FileType::Regular,
            name: self.name.as_bytes(),
        };
        if offset == 0 && !directory.push(&entry) {
            return Errno::INVAL.into();
        }
        Response::Directory(directory)
    }
}

/// Unmounts at SIGINT and SIGTERM, on another thread than the serving one, because the unmount may
/// wait for that.
pub(crate) fn unmount_on_signals(unmounter: Unmounter) -> anyhow::Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])
        .context("cannot watch for signals")?;
    let wait = move || {
        for _signal in signals.forever() {
            if let Err(error) = unmounter.unmount() {
                eprintln!("tsumugi: {error}");
            }
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(wait)
        .context("cannot start a thread for signals")?;
    Ok(())
}
