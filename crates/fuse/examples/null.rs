//! A file system with one virtual file of 16 GiB that reads as zeros and drops writes. It measures
//! the cost of the protocol itself.
//!
//! ```text
//! cargo run --release -p tsumugi-fuse --example null -- MOUNTPOINT [auto|device|uring] [POLL_US]
//! fio --name=r --filename=MOUNTPOINT/null --rw=randread --bs=4k --size=16g --runtime=2 --time_based
//! umount MOUNTPOINT
//! ```
//!
//! Every call reaches the file system (`FOPEN_DIRECT_IO`), and writes run in parallel. As root,
//! `uring` switches FUSE over `io_uring` on first.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use fuse::{
    Attributes, DirectoryBuffer, DirectoryEntry, Entry, Errno, FileSystem, FileSystemStatistics,
    FileType, MountOptions, Negotiated, NodeId, OpenFlags, Opened, Operation, Request, Response,
    Session, SessionOptions, TransportChoice,
};
use reactor::Region;

const FILE: NodeId = NodeId(2);
const FILE_NAME: &[u8] = b"null";
const FILE_BYTES: u64 = 16 << 30;
const ZEROS_BYTES: usize = 1 << 20;
const VALID: Duration = Duration::from_hours(1);

struct Null {
    zeros: Region,
}

fn attributes(node: NodeId) -> Attributes {
    let is_file = node == FILE;
    Attributes {
        inode: node.0,
        size: if is_file { FILE_BYTES } else { 0 },
        mode: if is_file { libc::S_IFREG | 0o666 } else { libc::S_IFDIR | 0o755 },
        nlink: 1,
        block_size: 4096,
        ..Attributes::default()
    }
}

impl Null {
    fn respond(&self, request: &Request) -> Response {
        match &request.operation {
            Operation::Lookup { name } if name.as_bytes() == FILE_NAME => Response::Entry(Entry {
                node: FILE,
                generation: 0,
                entry_valid: VALID,
                attributes_valid: VALID,
                attributes: attributes(FILE),
            }),
            Operation::Lookup { .. } => Errno::NOENT.into(),
            Operation::GetAttributes { .. } | Operation::SetAttributes(_) => {
                Response::Attributes { attributes: attributes(request.node), valid: VALID }
            }
            Operation::Open { .. } => Response::Opened(Opened {
                flags: OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES,
                ..Opened::default()
            }),
            Operation::OpenDirectory { .. } => Response::Opened(Opened::default()),
            Operation::Read(read) => {
                let left = FILE_BYTES.saturating_sub(read.offset);
                let size = left.min(read.size.into()) as usize;
                // Memory of the ring entry needs no copy; it may contain data of an earlier write.
                match &read.destination {
                    Some(destination) => Response::chunk(destination.range(0, size)),
                    None => Response::chunk(self.zeros.slice(0, size.min(ZEROS_BYTES))),
                }
            }
            Operation::Write(write) => Response::Written(write.data.len() as u32),
            Operation::ReadDirectory(list) => {
                let mut directory = DirectoryBuffer::new(list.size);
                let entry = DirectoryEntry {
                    inode: FILE.0,
                    offset: 1,
                    kind: FileType::Regular,
                    name: FILE_NAME,
                };
                if list.offset == 0 && !directory.push(&entry) {
                    return Errno::INVAL.into();
                }
                Response::Directory(directory)
            }
            Operation::StatFs => Response::Statistics(FileSystemStatistics {
                block_size: 4096,
                fragment_size: 4096,
                name_length_max: 255,
                ..FileSystemStatistics::default()
            }),
            Operation::Flush { .. }
            | Operation::Fsync { .. }
            | Operation::Release(_)
            | Operation::ReleaseDirectory(_) => Response::Done,
            _ => Errno::NOSYS.into(),
        }
    }
}

impl FileSystem for Null {
    fn init(&self, negotiated: &Negotiated) {
        println!(
            "{:?} ({}), minor {}, max write {} bytes",
            negotiated.transport,
            negotiated.transport_reason,
            negotiated.minor,
            negotiated.max_write_bytes
        );
    }

    async fn handle(self: Rc<Self>, request: Request) -> Response {
        self.respond(&request)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let usage = "usage: null MOUNTPOINT [auto|device|uring] [POLL_US]";
    let mountpoint = PathBuf::from(arguments.next().ok_or(usage)?);
    let transport = match arguments.next().as_deref().and_then(std::ffi::OsStr::to_str) {
        None | Some("auto") => TransportChoice::Auto,
        Some("device") => TransportChoice::Device,
        Some("uring") => {
            fuse::enable_uring()?;
            TransportChoice::IoUring
        }
        Some(_) => return Err(usage.into()),
    };
    let poll_us = match arguments.next() {
        Some(text) => text.to_str().ok_or(usage)?.parse()?,
        None => reactor::Spin::default(),
    };
    let config = reactor::Config { sqe128: true, spin: poll_us, ..Default::default() };
    let mut runtime = reactor::Runtime::new(&config)?;
    let mount_options =
        MountOptions { fs_name: "null".into(), subtype: "null".into(), ..Default::default() };
    let options = SessionOptions { transport, ..SessionOptions::default() };
    let session = Session::mount(&mountpoint, &mount_options, options)?;
    let null = Rc::new(Null { zeros: Region::new(ZEROS_BYTES)? });
    runtime.block_on(session.run(null))?;
    Ok(())
}
