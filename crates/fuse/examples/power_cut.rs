//! A disk for simulated power cuts. It serves an image as a file and logs every write and flush.
//! From the log it builds an image that a disk could show after losing power at any point.
//!
//! ```text
//! power_cut serve MOUNTPOINT BASE LOG      serve a copy of BASE as MOUNTPOINT/disk; MOUNTPOINT/mark
//!                                          takes a line of text into the log
//! power_cut show LOG                       number of entries, and the flushes and marks by number
//! power_cut replay BASE LOG IMAGE AT SEED  BASE plus the log's first AT entries, into IMAGE
//! ```
//!
//! Put a loop device on MOUNTPOINT/disk and a file system on that. A replay contains all data that
//! was written before the last flush. For each later sector it contains any of its versions, or
//! none: seed 0 keeps everything, seed 1 nothing, others mix. It prints the marks that it covers: a
//! mark is made after a flush was acknowledged, so the data that it stands for must be there. No
//! kernel module is needed.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use fuse::{
    Attributes, DirectoryBuffer, Entry, Errno, FileSystem, FileSystemStatistics, MountOptions,
    NodeId, OpenFlags, Opened, Operation, Request, Response, Session, SessionOptions,
    TransportChoice,
};

type Failure = Box<dyn std::error::Error>;

const DISK: NodeId = NodeId(2);
const MARK: NodeId = NodeId(3);
/// The unit that a disk writes atomically: ext4 and btrfs rely on it for their superblocks.
const SECTOR_BYTES: u64 = 4096;
const VALID: Duration = Duration::from_hours(1);
/// Longest write or mark in a log.
const ENTRY_BYTES_MAX: u32 = 64 << 20;

const WRITE: u8 = b'W';
const FLUSH: u8 = b'F';
const NOTE: u8 = b'M';

/// A log entry: kind, offset, length, bytes.
struct LogEntry {
    kind: u8,
    offset: u64,
    bytes: Vec<u8>,
}

fn append(log: &mut impl Write, kind: u8, offset: u64, bytes: &[u8]) -> io::Result<()> {
    log.write_all(&[kind])?;
    log.write_all(&offset.to_le_bytes())?;
    log.write_all(&(bytes.len() as u32).to_le_bytes())?;
    log.write_all(bytes)?;
    log.flush()
}

/// Returns the next entry, or `None` at the end; a truncated entry ends the log.
fn next(log: &mut impl Read) -> io::Result<Option<LogEntry>> {
    let mut head = [0; 13];
    let mut read = |buffer: &mut [u8]| match log.read_exact(buffer) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        other => other.map(|()| true),
    };
    if !read(&mut head)? {
        return Ok(None);
    }
    let (kind, offset, len) = (head[0], &head[1..9], &head[9..13]);
    let offset = offset.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte));
    let len = len.iter().rev().fold(0, |number, &byte| number << 8 | u32::from(byte));
    if len > ENTRY_BYTES_MAX || ![WRITE, FLUSH, NOTE].contains(&kind) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "this is not a log of power_cut"));
    }
    let mut bytes = vec![0; len as usize];
    Ok(read(&mut bytes)?.then_some(LogEntry { kind, offset, bytes }))
}

struct Disk {
    image: File,
    size: u64,
    log: RefCell<BufWriter<File>>,
}

impl Disk {
    fn attributes(&self, node: NodeId) -> Attributes {
        let is_file = node == DISK || node == MARK;
        Attributes {
            inode: node.0,
            size: if node == DISK { self.size } else { 0 },
            mode: if is_file { libc::S_IFREG | 0o600 } else { libc::S_IFDIR | 0o700 },
            nlink: 1,
            block_size: 4096,
            ..Attributes::default()
        }
    }

    fn read(&self, offset: u64, size: u32) -> io::Result<Response> {
        let left = self.size.saturating_sub(offset).min(u64::from(size));
        let mut bytes = vec![0; left as usize];
        self.image.read_exact_at(&mut bytes, offset)?;
        Ok(Response::bytes(&bytes))
    }

    fn write(&self, node: NodeId, offset: u64, bytes: &[u8]) -> io::Result<Response> {
        let mut log = self.log.borrow_mut();
        if node == MARK {
            append(&mut *log, NOTE, 0, bytes)?;
        } else {
            if offset + bytes.len() as u64 > self.size {
                return Ok(Errno::NOSPC.into());
            }
            append(&mut *log, WRITE, offset, bytes)?;
            self.image.write_all_at(bytes, offset)?;
        }
        Ok(Response::Written(bytes.len() as u32))
    }

    fn respond(&self, request: &Request) -> io::Result<Response> {
        let node = request.node;
        Ok(match &request.operation {
            Operation::Lookup { name } => {
                let node = match name.as_bytes() {
                    b"disk" => DISK,
                    b"mark" => MARK,
                    _ => return Ok(Errno::NOENT.into()),
                };
                Response::Entry(Entry {
                    node,
                    generation: 0,
                    entry_valid: VALID,
                    attributes_valid: VALID,
                    attributes: self.attributes(node),
                })
            }
            Operation::GetAttributes { .. } | Operation::SetAttributes(_) => {
                Response::Attributes { attributes: self.attributes(node), valid: VALID }
            }
            Operation::Open { .. } => {
                Response::Opened(Opened { flags: OpenFlags::DIRECT_IO, ..Opened::default() })
            }
            Operation::OpenDirectory { .. } => Response::Opened(Opened::default()),
            Operation::Read(read) => self.read(read.offset, read.size)?,
            Operation::Write(write) => self.write(node, write.offset, &write.data.to_bytes())?,
            Operation::Fsync { .. } => {
                append(&mut *self.log.borrow_mut(), FLUSH, 0, &[])?;
                Response::Done
            }
            Operation::ReadDirectory(list) => Response::Directory(DirectoryBuffer::new(list.size)),
            Operation::StatFs => Response::Statistics(FileSystemStatistics {
                block_size: 4096,
                fragment_size: 4096,
                name_length_max: 255,
                ..FileSystemStatistics::default()
            }),
            Operation::Flush { .. } | Operation::Release(_) | Operation::ReleaseDirectory(_) => {
                Response::Done
            }
            _ => Errno::NOSYS.into(),
        })
    }
}

impl FileSystem for Disk {
    async fn handle(self: Rc<Self>, request: Request) -> Response {
        self.respond(&request).unwrap_or_else(|error| {
            eprintln!("power_cut: {error}");
            Errno::IO.into()
        })
    }
}

fn serve(mountpoint: &Path, base: &Path, log: &Path) -> Result<(), Failure> {
    let image = log.with_extension("image");
    std::fs::copy(base, &image)?;
    let image = OpenOptions::new().read(true).write(true).open(image)?;
    let size = image.metadata()?.len();
    let log = RefCell::new(BufWriter::new(File::create(log)?));
    let config = reactor::Config { sqe128: true, ..reactor::Config::default() };
    let mut runtime = reactor::Runtime::new(&config)?;
    let (fs_name, subtype) = ("power_cut".into(), "power_cut".into());
    let mount = MountOptions { fs_name, subtype, ..MountOptions::default() };
    let transport = TransportChoice::Device;
    let options = SessionOptions { transport, ..SessionOptions::default() };
    let session = Session::mount(mountpoint, &mount, options)?;
    runtime.block_on(session.run(Rc::new(Disk { image, size, log })))?;
    Ok(())
}

fn show(log: &Path) -> Result<(), Failure> {
    let mut log = BufReader::new(File::open(log)?);
    let (mut count, mut written) = (0u64, 0);
    while let Some(entry) = next(&mut log)? {
        match entry.kind {
            WRITE => written += entry.bytes.len(),
            FLUSH => println!("{count} flush"),
            _ => println!("{count} mark {}", String::from_utf8_lossy(&entry.bytes).trim_end()),
        }
        count += 1;
    }
    println!("{count} entries, {written} bytes written");
    Ok(())
}

/// Returns the next number of xorshift64*: the same seed gives the same image.
fn random(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11
}

fn replay(base: &Path, log: &Path, image: &Path, at: u64, seed: u64) -> Result<(), Failure> {
    std::fs::copy(base, image)?;
    let image = OpenOptions::new().write(true).open(image)?;
    let mut log = BufReader::new(File::open(log)?);
    let mut unsynced: Vec<LogEntry> = Vec::new();
    for _ in 0..at {
        let Some(entry) = next(&mut log)? else { break };
        match entry.kind {
            WRITE => unsynced.push(entry),
            FLUSH => {
                for entry in unsynced.drain(..) {
                    image.write_all_at(&entry.bytes, entry.offset)?;
                }
            }
            _ => println!("{}", String::from_utf8_lossy(&entry.bytes).trim_end()),
        }
    }
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    // Some cuts lose most, some little.
    let keep_percent = match seed {
        0 => 100,
        1 => 0,
        _ => 10 + random(&mut state) % 90,
    };
    for entry in unsynced {
        let (mut at, mut rest) = (entry.offset, &entry.bytes[..]);
        while !rest.is_empty() {
            let len = rest.len().min((SECTOR_BYTES - at % SECTOR_BYTES) as usize);
            if random(&mut state) % 100 < keep_percent {
                image.write_all_at(&rest[..len], at)?;
            }
            (at, rest) = (at + len as u64, &rest[len..]);
        }
    }
    image.sync_all()?;
    Ok(())
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["serve", mountpoint, base, log] => {
            serve(Path::new(mountpoint), Path::new(base), Path::new(log))
        }
        ["show", log] => show(Path::new(log)),
        ["replay", base, log, image, at, seed] => {
            replay(Path::new(base), Path::new(log), Path::new(image), at.parse()?, seed.parse()?)
        }
        _ => Err("usage: power_cut serve MOUNTPOINT BASE LOG | show LOG | \
                  replay BASE LOG IMAGE AT SEED"
            .into()),
    }
}
