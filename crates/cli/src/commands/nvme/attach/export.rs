//! A file system of one file over a namespace.
//!
//! Offsets and lengths have to be whole blocks, as with direct I/O on a device; anything else is
//! `EINVAL`, as there is no cache in which a part of a block could be changed. Requests run in any
//! order and at the same time: overlapping ones leave a mix, as on a device.

use block::{Device, Error};
use fuse::{
    Attributes, DirectoryBuffer, DirectoryEntry, Entry, Errno, FileSystem, FileSystemStatistics,
    FileType, Negotiated, NodeId, OpenFlags, Opened, Operation, Request, Response, Transport,
};
use host::Namespace;
use ring::Chunk;
use std::io::Write as _;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

/// Name of the file.
pub(super) const FILE_NAME: &str = "namespace";
const FILE: NodeId = NodeId(2);
/// Size and owner never change.
const VALID: Duration = Duration::from_hours(1);

/// The file system.
#[derive(Debug)]
pub(super) struct Export {
    namespace: Namespace,
    path: PathBuf,
    is_writable: bool,
    is_json: bool,
}

impl Export {
    /// Exports a namespace; `path` is where the file is seen.
    pub(super) fn new(
        namespace: Namespace,
        path: PathBuf,
        is_writable: bool,
        is_json: bool,
    ) -> Self {
        Self { namespace, path, is_writable, is_json }
    }

    fn attributes(&self, node: NodeId) -> Attributes {
        let geometry = Device::geometry(&self.namespace);
        let is_file = node == FILE;
        let size = if is_file { geometry.size() } else { 0 };
        let access = if self.is_writable { 0o600 } else { 0o400 };
        Attributes {
            inode: node.0,
            size,
            blocks: size / 512,
            mode: if is_file { libc::S_IFREG | access } else { libc::S_IFDIR | 0o700 },
            nlink: 1,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            block_size: geometry.block_size,
            ..Attributes::default()
        }
    }

    async fn read(&self, offset: u64, size: u32) -> Response {
        let left = Device::geometry(&self.namespace).size().saturating_sub(offset);
        let len = left.min(size.into()) as usize;
        match Device::read(&self.namespace, offset, len).await {
            Ok(chunk) => Response::chunk(chunk),
            Err(error) => errno(&error),
        }
    }

    async fn write(&self, offset: u64, data: Chunk) -> Response {
        let len = data.len() as u32;
        match Device::write(&self.namespace, offset, data).await {
            Ok(()) => Response::Written(len),
            Err(error) => errno(&error),
        }
    }

    async fn flush(&self) -> Response {
        match Device::flush(&self.namespace).await {
            Ok(()) => Response::Done,
            Err(error) => errno(&error),
        }
    }

    fn at_once(&self, node: NodeId, operation: &Operation) -> Response {
        match operation {
            Operation::Lookup { name } if name.as_bytes() == FILE_NAME.as_bytes() => {
                Response::Entry(Entry {
                    node: FILE,
                    generation: 0,
                    entry_valid: VALID,
                    attributes_valid: VALID,
                    attributes: self.attributes(FILE),
                })
            }
            Operation::Lookup { .. } => Errno::NOENT.into(),
            // A namespace has a size of its own.
            Operation::SetAttributes(set) if set.size.is_some() => Errno::PERM.into(),
            Operation::GetAttributes { .. } | Operation::SetAttributes(_) => {
                Response::Attributes { attributes: self.attributes(node), valid: VALID }
            }
            Operation::Open { .. } => Response::Opened(Opened {
                flags: OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES,
                ..Opened::default()
            }),
            Operation::OpenDirectory { .. } => Response::Opened(Opened::default()),
            Operation::ReadDirectory(list) => {
                let mut directory = DirectoryBuffer::new(list.size);
                let entry = DirectoryEntry {
                    inode: FILE.0,
                    offset: 1,
                    kind: FileType::Regular,
                    name: FILE_NAME.as_bytes(),
                };
                if list.offset == 0 && !directory.push(&entry) {
                    return Errno::INVAL.into();
                }
                Response::Directory(directory)
            }
            Operation::StatFs => {
                let geometry = Device::geometry(&self.namespace);
                Response::Statistics(FileSystemStatistics {
                    blocks: geometry.blocks,
                    block_size: geometry.block_size,
                    fragment_size: geometry.block_size,
                    name_length_max: 255,
                    ..FileSystemStatistics::default()
                })
            }
            Operation::Flush { .. } | Operation::Release(_) | Operation::ReleaseDirectory(_) => {
                Response::Done
            }
            _ => Errno::NOSYS.into(),
        }
    }
}

impl FileSystem for Export {
    /// Now the file can be used: says so.
    fn init(&self, negotiated: &Negotiated) {
        let transport = match negotiated.transport {
            Transport::Device => "/dev/fuse",
            Transport::IoUring => "io_uring",
        };
        let how = format!("file through FUSE ({transport}) on our own NVMe/TCP host");
        let mut out = std::io::stdout().lock();
        let said = if self.is_json {
            let line = serde_json::json!({ "file": self.path, "how": how });
            writeln!(out, "{line}")
        } else {
            writeln!(out, "{}: {how}", self.path.display())
        };
        // Nobody listens any more: then nobody needs to know.
        let _ = said.and_then(|()| out.flush());
    }

    async fn handle(self: Rc<Self>, request: Request) -> Response {
        match request.operation {
            Operation::Read(read) => self.read(read.offset, read.size).await,
            Operation::Write(write) if self.is_writable => {
                self.write(write.offset, write.data).await
            }
            Operation::Write(_) => Errno::ROFS.into(),
            Operation::Fsync { .. } => self.flush().await,
            operation => self.at_once(request.node, &operation),
        }
    }
}

fn errno(error: &Error) -> Response {
    Errno::from_raw_os_error(error.to_errno()).into()
}
