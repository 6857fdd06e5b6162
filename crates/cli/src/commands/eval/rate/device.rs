//! Devices that the load works on, as the command line names them: files and block devices, memory, nothing, and
//! devices behind a network. They are opened here, and refused for writing without consent.

use super::RateArgs;
use crate::commands::nvme::args::{NamespaceArgs, check_destroy};
use crate::commands::nvme::block_on;
use anyhow::{Context, bail, ensure};
use block::{FileBacking, FileOptions, Geometry, Incarnation, MemoryBacking};
use clap::ValueEnum;
use eval::rate::QueuePolicy;
use eval::rate::generator::{Attached, Cause, LocalFuture, Null, Remote, Source, Storage};
use eval::units::parse_bytes;
use host::{ConnectOptions, Controller, Namespace};
use nvme::{Nqn, Nsid};
use std::fmt;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::str::FromStr;
use std::sync::Arc;

const BLOCK_BYTES: u32 = 512;
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

impl Queue {
    fn policy(self) -> QueuePolicy {
        match self {
            Self::Direct => QueuePolicy::Direct,
            Self::Elevator => QueuePolicy::Elevator,
        }
    }
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

/// A namespace of an NVMe-oF target: each job has a controller of its own.
struct NvmeDevice {
    options: ConnectOptions,
    nsid: Nsid,
    geometry: Geometry,
}

impl Remote for NvmeDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn attach(&self) -> LocalFuture<'_, Attached> {
        Box::pin(async {
            let controller = Controller::connect(self.options.clone()).await?;
            let device = Rc::new(Namespace::open(&controller, self.nsid).await?);
            let disconnect = async move { controller.disconnect().await.map_err(Cause::from) };
            Ok(Attached { device, disconnect: Some(Box::pin(disconnect)) })
        })
    }
}

/// A logical unit of an iSCSI target: each job has a session of its own.
struct IscsiDevice {
    library: Arc<iscsi::Library>,
    address: iscsi::Address,
    geometry: Geometry,
}

impl Remote for IscsiDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn attach(&self) -> LocalFuture<'_, Attached> {
        Box::pin(async {
            let session = iscsi::Session::connect(&self.library, &self.address)?;
            Ok(Attached { device: Rc::new(session), disconnect: None })
        })
    }
}

/// Opens what is named, behind its queue, and refuses to write without consent.
pub(super) fn open(spec: &DeviceSpec, args: &RateArgs) -> anyhow::Result<Storage> {
    Ok(Storage { name: spec.to_string(), source: source(spec, args)? })
}

fn source(spec: &DeviceSpec, args: &RateArgs) -> anyhow::Result<Source> {
    let remote: Box<dyn Remote> = match spec {
        DeviceSpec::Nvme(address, nqn) => Box::new(nvme_device(*address, nqn, args)?),
        DeviceSpec::Iscsi(address) => Box::new(iscsi_device(address, args)?),
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
    Ok(Source::Remote(remote))
}

/// Connects once, to see what is there.
fn nvme_device(address: SocketAddr, nqn: &Nqn, args: &RateArgs) -> anyhow::Result<NvmeDevice> {
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
        Ok(NvmeDevice { options, nsid, geometry })
    })
}

/// The same of an iSCSI target.
fn iscsi_device(address: &iscsi::Address, args: &RateArgs) -> anyhow::Result<IscsiDevice> {
    let library = iscsi::Library::load()?;
    if args.rw.writes() && args.destroy.as_deref() != Some(address.target.as_str()) {
        bail!(
            "writing destroys the content of the logical unit: confirm with --destroy {}",
            address.target
        );
    }
    block_on(async {
        let geometry = iscsi::Session::connect(&library, address)?.geometry();
        Ok(IscsiDevice { library: Arc::clone(&library), address: address.clone(), geometry })
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
        _ => Source::Null(Null::new(args.bs)),
    };
    Ok(match args.queue {
        Some(queue) => source.behind(queue.policy()),
        None => source,
    })
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
