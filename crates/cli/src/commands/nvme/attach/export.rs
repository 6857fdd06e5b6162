//! A file system with one file, which is a namespace.
//!
//! Offsets and lengths must be whole blocks, as with direct I/O on a device. Other requests get
//! `EINVAL`, because there is no cache in which to change a part of a block. Requests run in any
//! order and at the same time: overlapping writes leave a mix, as on a device.

use crate::one_file::OneFile;
use block::{Device, Error};
use fuse::{Errno, FileSystem, Negotiated, Operation, Request, Response, Transport};
use host::Namespace;
use reactor::Chunk;
use std::rc::Rc;

/// Name of the file.
pub(super) const FILE_NAME: &str = "namespace";

/// The file system.
pub(super) struct Export {
    namespace: Namespace,
    file: OneFile,
    is_writable: bool,
    /// Receives the transport when the file can be used.
    ready: Ready,
}

/// A callback for when the file can be used; its argument is the transport.
pub(super) type Ready = Box<dyn Fn(&str)>;

impl Export {
    /// Exports a namespace.
    pub(super) fn new(namespace: Namespace, is_writable: bool, ready: Ready) -> Self {
        let geometry = Device::geometry(&namespace);
        let file = OneFile {
            name: FILE_NAME,
            size_bytes: geometry.size(),
            block_size: geometry.block_size,
            access: if is_writable { 0o600 } else { 0o400 },
        };
        Self { namespace, file, is_writable, ready }
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
}

impl FileSystem for Export {
    /// Reports that the file can be used now.
    fn init(&self, negotiated: &Negotiated) {
        (self.ready)(match negotiated.transport {
            Transport::Device => "/dev/fuse",
            Transport::IoUring => "io_uring",
        });
    }

    async fn handle(self: Rc<Self>, request: Request) -> Response {
        match request.operation {
            Operation::Read(read) => self.read(read.offset, read.size).await,
            Operation::Write(write) if self.is_writable => {
                self.write(write.offset, write.data).await
            }
            Operation::Write(_) => Errno::ROFS.into(),
            Operation::Fsync { .. } => self.flush().await,
            operation => self.file.answer(request.node, &operation),
        }
    }
}

fn errno(error: &Error) -> Response {
    Errno::from_raw_os_error(error.to_errno()).into()
}
