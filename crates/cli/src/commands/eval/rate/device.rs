//! What the load works on: files and block devices, memory, nothing, and what is behind a network.

use super::RateArgs;
use crate::commands::nvme::args::{NamespaceArgs, check_destroy};
use crate::commands::nvme::block_on;
use anyhow::{Context, bail, ensure};
use block::{
    Backing, Device, DiscardEffect, Elevator, ElevatorOptions, FileBacking, FileOptions, Geometry,
    Incarnation, IoFuture, MemoryBacking,
};
use clap::ValueEnum;
use eval::units::parse_bytes;
use host::{ConnectOptions, Controller, Namespace};
use nvme::{Nqn, Nsid};
use reactor::{Buffer, Chunk, File, Segments, Shared};
use std::fmt;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::str::FromStr;
use std::sync::Arc;

const BLOCK_BYTES: u32 = 512;
/// Size of the device that does nothing.
const NULL_BYTES: u64 = 1 << 40;
/// Requests that were merged are no longer than this.
const MERGED_BYTES_MAX: u64 = 1 << 20;
/// Commands that may be outstanding on a queue pair at least, and are asked for at most.
const QUEUE_SIZE: std::ops::RangeInclusive<u32> = 128..=1024;
/// Schemes of devices behind a network.
const NVME: &str = "nvme://";
const ISCSI: &str = "iscsi://";

/// How requests of several jobs come to a device through our block layer.
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
    /// A namespace of an NVMe-oF target.
    Nvme(SocketAddr, Nqn),
    /// A logical unit of an iSCSI target.
    Iscsi(iscsi::Address),
    /// A file or block device.
    Path(PathBuf),
}

impl FromStr for DeviceSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(bytes) = text.strip_prefix("memory:") {
            return parse_bytes(bytes).map(Self::Memory).map_err(|error| error.to_string());
        }
        if let Some(rest) = text.strip_prefix(NVME) {
            let wrong = |why: String| format!("{text:?}: {why}: {NVME}ADDRESS:PORT/NQN");
            let (address, nqn) = rest.split_once('/').ok_or_else(|| wrong("no NQN".into()))?;
            let address = address.parse().map_err(|_| wrong("no address with a port".into()))?;
            let nqn = Nqn::new(nqn).map_err(|error| wrong(error.to_string()))?;
            return Ok(Self::Nvme(address, nqn));
        }
        if text.starts_with(ISCSI) {
            return text.parse().map(Self::Iscsi).map_err(|error: iscsi::Error| error.to_string());
        }
        Ok(if text == "null" { Self::Null } else { Self::Path(text.into()) })
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Memory(bytes) => write!(f, "memory:{bytes}"),
            Self::Nvme(address, nqn) => write!(f, "{NVME}{address}/{nqn}"),
            Self::Iscsi(address) => address.fmt(f),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

/// A device that jobs can attach.
pub(super) enum Source {
    /// A file or block device, without a queue of ours.
    File(FileBacking),
    /// The device that does nothing, likewise.
    Null(Null),
    /// Of this machine, behind a queue or in memory.
    Backing(Arc<dyn Backing>),
    /// Each job has a controller of its own.
    Nvme(Box<ConnectOptions>, Nsid, Geometry),
    /// Each job has a session of its own.
    Iscsi(Arc<iscsi::Library>, iscsi::Address, Geometry),
}

/// Where a request goes that no layer of ours is between.
pub(super) enum Target {
    File(File),
    /// It is done at once.
    Nothing,
}

/// A device of one job.
pub(super) struct Attached {
    pub(super) device: Rc<dyn Device>,
    /// To be disconnected at the end.
    pub(super) controller: Option<Controller>,
}

impl Source {
    /// Opens what is named, behind its queue, and refuses to write where nobody has consented.
    pub(super) fn open(spec: &DeviceSpec, args: &RateArgs) -> anyhow::Result<Self> {
        let source = match spec {
            DeviceSpec::Nvme(address, nqn) => nvme_source(*address, nqn, args)?,
            DeviceSpec::Iscsi(address) => iscsi_source(address, args)?,
            spec => {
                if let (DeviceSpec::Path(path), true) = (spec, args.rw.writes()) {
                    check_writable(path, args.overwrite, args.destroy.as_deref())?;
                }
                return of_this_machine(spec, args);
            }
        };
        ensure!(
            args.queue != Some(Queue::Elevator),
            "--queue elevator goes with devices of this machine, not with {spec}"
        );
        Ok(source)
    }

    pub(super) fn geometry(&self) -> Geometry {
        match self {
            Self::File(file) => file.geometry(),
            Self::Null(_) => Null::geometry(),
            Self::Backing(backing) => backing.geometry(),
            Self::Nvme(_, _, geometry) | Self::Iscsi(_, _, geometry) => *geometry,
        }
    }

    /// For the calling thread.
    pub(super) async fn attach(&self) -> anyhow::Result<Attached> {
        let plain = |device| Attached { device, controller: None };
        Ok(match self {
            Self::File(file) => plain(file.attach()),
            Self::Null(null) => plain(null.attach()),
            Self::Backing(backing) => plain(backing.attach()),
            Self::Nvme(options, nsid, _) => {
                let controller = Controller::connect(options.as_ref().clone()).await?;
                let device = Rc::new(Namespace::open(&controller, *nsid).await?);
                Attached { device, controller: Some(controller) }
            }
            Self::Iscsi(library, address, _) => {
                plain(Rc::new(iscsi::Session::connect(library, address)?))
            }
        })
    }

    /// Where requests go without a layer of ours, if they can.
    pub(super) fn straight(&self) -> Option<Target> {
        match self {
            Self::File(file) => Some(Target::File(file.file().clone())),
            Self::Null(_) => Some(Target::Nothing),
            Self::Backing(_) | Self::Nvme(..) | Self::Iscsi(..) => None,
        }
    }
}

/// Connects once, to see what is there.
fn nvme_source(address: SocketAddr, nqn: &Nqn, args: &RateArgs) -> anyhow::Result<Source> {
    let mut options = ConnectOptions::new(address, nqn.clone());
    let under_way = args.iodepth_max.clamp(*QUEUE_SIZE.start(), *QUEUE_SIZE.end());
    options.queue_size = under_way as u16;
    options.network_namespace.clone_from(&args.network_namespace);
    block_on(async {
        let controller = Controller::connect(options.clone()).await?;
        let nsid = NamespaceArgs::default().choose(&controller).await?;
        let namespace = Namespace::open(&controller, nsid).await?;
        if args.rw.writes() {
            check_destroy(args.destroy.as_deref(), &namespace)?;
        }
        let geometry = namespace.geometry();
        drop(namespace);
        controller.disconnect().await?;
        Ok(Source::Nvme(Box::new(options), nsid, geometry))
    })
}

/// The same of an iSCSI target.
fn iscsi_source(address: &iscsi::Address, args: &RateArgs) -> anyhow::Result<Source> {
    let library = iscsi::Library::load()?;
    if args.rw.writes() && args.destroy.as_deref() != Some(address.target.as_str()) {
        bail!(
            "writing destroys the content of the logical unit: confirm with --destroy {}",
            address.target
        );
    }
    block_on(async {
        let geometry = iscsi::Session::connect(&library, address)?.geometry();
        Ok(Source::Iscsi(Arc::clone(&library), address.clone(), geometry))
    })
}

fn check_writable(path: &Path, overwrite: bool, destroy: Option<&str>) -> anyhow::Result<()> {
    let kind = std::fs::metadata(path).with_context(|| path.display().to_string())?;
    if kind.file_type().is_block_device() {
        eval::safety::check_device_for_writing(path, destroy)?;
    } else if !overwrite {
        bail!("{}: writing destroys its content: confirm with --overwrite", path.display());
    }
    Ok(())
}

/// A device of this machine, behind its queue if one was asked for.
fn of_this_machine(spec: &DeviceSpec, args: &RateArgs) -> anyhow::Result<Source> {
    let source = match spec {
        DeviceSpec::Memory(bytes) => {
            Source::Backing(Arc::new(MemoryBacking::new(*bytes, BLOCK_BYTES)?))
        }
        DeviceSpec::Path(path) => {
            let options = FileOptions {
                block_size: None,
                direct: !args.buffered,
                preallocated: true,
                incarnation: Incarnation::random(),
            };
            // The ring of a load that has just ended may have the file for some ms yet.
            Source::File(block_on(async {
                Ok(FileBacking::open_patiently(path, &options).await?)
            })?)
        }
        _ => Source::Null(Null { bytes_max: args.bs.max(MERGED_BYTES_MAX) as usize }),
    };
    let Some(queue) = args.queue else { return Ok(source) };
    let device: Arc<dyn Backing> = match source {
        Source::File(file) => Arc::new(file),
        Source::Null(null) => Arc::new(null),
        Source::Backing(backing) => backing,
        other @ (Source::Nvme(..) | Source::Iscsi(..)) => return Ok(other),
    };
    Ok(Source::Backing(match queue {
        Queue::Direct => device,
        Queue::Elevator => Arc::new(Elevator::new(device, ElevatorOptions::default())),
    }))
}

/// A device that does nothing, at once: what remains is the generator itself. It gives the same zeros
/// for every read, and each thread its own, so that threads share nothing.
#[derive(Clone, Debug)]
pub(super) struct Null {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: devices are read as they are written, and half an address is refused.
    #[test]
    fn devices_are_read() {
        for text in [
            "null",
            "memory:65536",
            "nvme://127.0.0.1:4420/nqn.2026-01.io.example:disk",
            "nvme://[::1]:4420/nqn.2026-01.io.example:disk",
            "iscsi://127.0.0.1:3260/iqn.2026-01.io.example:disk/1",
            "/dev/disk",
        ] {
            let spec: DeviceSpec = text.parse().unwrap();
            assert_eq!(spec.to_string(), text);
        }
        assert!(matches!("null".parse(), Ok(DeviceSpec::Null)));
        assert!(matches!("a:b".parse(), Ok(DeviceSpec::Path(_))));
        for wrong in ["memory:x", "nvme://127.0.0.1:4420", "nvme://host/nqn.x:y", "iscsi://a/b"] {
            assert!(wrong.parse::<DeviceSpec>().is_err(), "{wrong}");
        }
    }
}
