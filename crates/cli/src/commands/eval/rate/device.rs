//! What the load works on: files and block devices, memory, and nothing.

use anyhow::{Context, bail};
use block::{
    Backing, Device, DiscardEffect, Elevator, ElevatorOptions, FileBacking, FileOptions, Geometry,
    Incarnation, IoFuture, MemoryBacking,
};
use clap::ValueEnum;
use eval::units::parse_bytes;
use ring::{Buffer, Chunk, Segments, Shared};
use std::fmt;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::str::FromStr;
use std::sync::Arc;

const BLOCK_BYTES: u32 = 512;
/// Size of the device that does nothing.
const NULL_BYTES: u64 = 1 << 40;
/// Requests that were merged are no longer than this.
const MERGED_BYTES_MAX: u64 = 1 << 20;

/// How requests of several jobs come to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Queue {
    /// Each job has a queue of its own
    Direct,
    /// One queue for all jobs: sorted, merged, behind a lock
    Elevator,
}

/// A device as it is named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DeviceSpec {
    /// Does nothing.
    Null,
    /// Bytes of memory.
    Memory(u64),
    /// A file or block device.
    Path(PathBuf),
}

impl FromStr for DeviceSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("memory:") {
            Some(bytes) => parse_bytes(bytes).map(Self::Memory),
            None if text == "null" => Ok(Self::Null),
            None => Ok(Self::Path(text.into())),
        }
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Memory(bytes) => write!(f, "memory:{bytes}"),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

/// Refuses to write where nobody has consented.
pub(super) fn check_writable(
    specs: &[DeviceSpec],
    overwrite: bool,
    destroy: Option<&str>,
) -> anyhow::Result<()> {
    for spec in specs {
        let DeviceSpec::Path(path) = spec else { continue };
        let kind = std::fs::metadata(path).with_context(|| path.display().to_string())?;
        if kind.file_type().is_block_device() {
            eval::safety::check_device_for_writing(path, destroy)?;
        } else if !overwrite {
            bail!("{}: say --overwrite to lose its contents", path.display());
        }
    }
    Ok(())
}

/// Opens a device behind its queue.
pub(super) fn open(
    spec: &DeviceSpec,
    queue: Queue,
    is_buffered: bool,
    request_bytes: u64,
) -> anyhow::Result<Arc<dyn Backing>> {
    let device: Arc<dyn Backing> = match spec {
        DeviceSpec::Null => {
            Arc::new(Null { bytes_max: request_bytes.max(MERGED_BYTES_MAX) as usize })
        }
        DeviceSpec::Memory(bytes) => Arc::new(MemoryBacking::new(*bytes, BLOCK_BYTES)?),
        DeviceSpec::Path(path) => {
            let options = FileOptions {
                block_size: None,
                direct: !is_buffered,
                preallocated: true,
                incarnation: Incarnation::random(),
            };
            Arc::new(FileBacking::open(path, &options)?)
        }
    };
    Ok(match queue {
        Queue::Direct => device,
        Queue::Elevator => Arc::new(Elevator::new(device, ElevatorOptions::default())),
    })
}

/// A device that does nothing, at once: what remains is the generator itself. It gives the same zeros
/// for every read, and each thread its own, so that threads share nothing.
#[derive(Clone, Debug)]
struct Null {
    /// Longest read.
    bytes_max: usize,
}

/// What a thread has of it.
struct NullDevice {
    zeros: Shared,
}

impl Null {
    fn geometry() -> Geometry {
        Geometry {
            block_size: BLOCK_BYTES,
            blocks: NULL_BYTES / u64::from(BLOCK_BYTES),
            discard: DiscardEffect::Ignored,
            has_volatile_cache: false,
        }
    }
}

impl Backing for Null {
    fn geometry(&self) -> Geometry {
        Self::geometry()
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation::random()
    }

    fn attach(&self) -> Rc<dyn Device> {
        Rc::new(NullDevice { zeros: Buffer::zeroed(self.bytes_max).freeze() })
    }
}

impl Device for NullDevice {
    fn geometry(&self) -> Geometry {
        Null::geometry()
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation::random()
    }

    fn read(&self, _offset: u64, len: usize) -> IoFuture<Chunk> {
        IoFuture::ready(Ok(Chunk::Shared(self.zeros.slice(..len))))
    }

    fn read_into(&self, _offset: u64, segments: Segments) -> IoFuture<Segments> {
        IoFuture::ready(Ok(segments))
    }

    fn write(&self, _offset: u64, _chunk: Chunk) -> IoFuture<()> {
        IoFuture::ready(Ok(()))
    }

    fn write_chunks(&self, _offset: u64, _chunks: Vec<Chunk>) -> IoFuture<()> {
        IoFuture::ready(Ok(()))
    }

    fn flush(&self) -> IoFuture<()> {
        IoFuture::ready(Ok(()))
    }

    fn discard(&self, _offset: u64, _len: u64) -> IoFuture<()> {
        IoFuture::ready(Ok(()))
    }

    fn write_zeroes(&self, _offset: u64, _len: u64) -> IoFuture<()> {
        IoFuture::ready(Ok(()))
    }
}
