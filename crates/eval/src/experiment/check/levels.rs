//! Levels: which keys each kind takes, and which kinds go with which engine.

use super::{Source, find};
use crate::error::Error;
use crate::experiment::raw::{Placed, RawLevel};
use crate::experiment::{
    Backing, ContainerKind, EngineKind, FileSystem, HostSettings, Level, LevelKind, Network, Paced,
    Pool, QueuePolicy, Runtime, Scheme, Storage, Subsystem, Synthetic,
};

/// The port of NVMe over TCP.
const PORT_DEFAULT: u16 = 4420;
const IO_QUEUES_MAX: u16 = 64;
const POOL_NODES_MAX: u16 = 16;
const POOL_NODES_DEFAULT: u16 = 2;
const KINDS: &str = "directory, block-device, target, nqn, pool, command, paced (storages), native, \
                     container (runtimes), host (settings of engine nvme), null, memory, iscsi (storages \
                     of engine rate), queue (policies of engine rate), ior (ways of engine ior), \
                     layers (storages of engines copyup and ffsb), imported and synthetic";

/// A level, with where its keys are.
#[derive(Clone, Copy)]
struct At<'a> {
    source: Source<'a>,
    key: &'a str,
    placed: &'a Placed<RawLevel>,
}

impl At<'_> {
    fn key(self, what: &str) -> String {
        format!("{}.{what}", self.key)
    }

    fn missing(self, what: &str) -> Error {
        let message = format!("kind {:?} needs it", self.placed.get_ref().kind.get_ref());
        self.source.error(self.placed, &self.key(what), message)
    }

    fn number(
        self,
        given: Option<&Placed<f64>>,
        default: f64,
        what: &str,
        min: f64,
    ) -> Result<f64, Error> {
        match given {
            Some(value) if !(value.get_ref().is_finite() && *value.get_ref() >= min) => {
                let message = format!("has to be at least {min}");
                Err(self.source.error(value, &self.key(what), message))
            }
            given => Ok(given.map_or(default, |value| *value.get_ref())),
        }
    }

    /// A number from 0 to below 1; 0 if it is not given.
    fn share(self, given: Option<&Placed<f64>>, what: &str) -> Result<f64, Error> {
        match given {
            Some(value) if !(0.0..1.0).contains(value.get_ref()) => {
                Err(self.source.error(value, &self.key(what), "has to be from 0 to below 1"))
            }
            given => Ok(given.map_or(0.0, |value| *value.get_ref())),
        }
    }
}

/// Checks a level.
pub(super) fn level(
    source: Source<'_>,
    key: &str,
    name: &str,
    placed: &Placed<RawLevel>,
) -> Result<Level, Error> {
    let at = At { source, key, placed };
    let raw = placed.get_ref();
    let kind = match raw.kind.get_ref().as_str() {
        "native" => LevelKind::Runtime(Runtime::Native),
        "container" => LevelKind::Runtime(container(at)?),
        "host" => LevelKind::Host(host(at)?),
        "queue" => {
            let given = raw.policy.as_ref().ok_or_else(|| at.missing("policy"))?;
            LevelKind::Queue(source.choose(given, &at.key("policy"), &QueuePolicy::ALL)?)
        }
        "imported" => LevelKind::Imported,
        "ior" => {
            LevelKind::Ior(super::ior::level(raw).map_err(|why| at.source.error(placed, key, why))?)
        }
        "synthetic" => LevelKind::Synthetic(Synthetic {
            ratio: at.number(raw.ratio.as_ref(), 1.0, "ratio", 1e-6)?,
            noise: at.number(raw.noise.as_ref(), 0.0, "noise", 0.0)?,
            common: at.number(raw.common.as_ref(), 0.0, "common", 0.0)?,
            drift: at.number(raw.drift.as_ref(), 0.0, "drift", 0.0)?,
            trend: at.number(raw.trend.as_ref(), 0.0, "trend", 0.0)?,
            wander: at.number(raw.wander.as_ref(), 0.0, "wander", 0.0)?,
            correlation: at.share(raw.correlation.as_ref(), "correlation")?,
            leaves: at.share(raw.leaves.as_ref(), "leaves")?,
            cliff: at.number(raw.cliff.as_ref(), 1.0, "cliff", 1e-6)?,
            stalls: at.share(raw.stalls.as_ref(), "stalls")?,
        }),
        _ => LevelKind::Storage(storage(at)?),
    };
    let file_system = file_system(at, &kind)?;
    let scheduler = scheduler(at, &kind, file_system)?;
    let label = raw.label.clone().unwrap_or_else(|| name.into());
    Ok(Level { label, kind, file_system, scheduler })
}

/// A scheduler goes with a block device: one that is named, or the loop device of a file system.
fn scheduler(
    at: At<'_>,
    kind: &LevelKind,
    file_system: Option<FileSystem>,
) -> Result<Option<String>, Error> {
    let Some(given) = &at.placed.get_ref().scheduler else { return Ok(None) };
    let is_device = matches!(kind, LevelKind::Storage(Storage::BlockDevice { .. }));
    let name = given.get_ref();
    let is_name =
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    let wrong = |message| Err(at.source.error(given, &at.key("scheduler"), message));
    if !is_device && file_system.is_none() {
        return wrong("goes with kind block-device, or with a file-system");
    }
    if !is_name {
        return wrong("is a name that the kernel has, like \"none\" or \"mq-deadline\"");
    }
    Ok(Some(name.clone()))
}

fn storage(at: At<'_>) -> Result<Storage, Error> {
    let raw = at.placed.get_ref();
    Ok(match raw.kind.get_ref().as_str() {
        "directory" => Storage::Directory(raw.path.clone()),
        "block-device" => Storage::BlockDevice {
            path: raw.path.clone().ok_or_else(|| at.missing("path"))?,
            destroy: raw.destroy.clone(),
        },
        "target" => {
            let networks = [("loopback", Network::Loopback), ("namespace", Network::Namespace)];
            let backings = [("file", Backing::File), ("memory", Backing::Memory)];
            let network = match &raw.network {
                Some(given) => at.source.choose(given, &at.key("network"), &networks)?,
                None => Network::Loopback,
            };
            let backing = match &raw.backing {
                Some(given) => at.source.choose(given, &at.key("backing"), &backings)?,
                None => Backing::File,
            };
            Storage::Target { directory: raw.path.clone(), network, backing }
        }
        "iscsi" => Storage::Iscsi { directory: raw.path.clone() },
        "nqn" => Storage::Subsystem(subsystem(at)?),
        "paced" => {
            let rate = raw.rate.as_ref().ok_or_else(|| at.missing("rate"))?;
            let bytes_per_s = at.source.bytes(rate, &at.key("rate"))?;
            let spread = at.number(raw.spread.as_ref(), 0.0, "spread", 0.0)?;
            if bytes_per_s == 0 || spread >= 1.0 {
                let message = "the rate is more than 0, and spread less than 1";
                return Err(at.source.error(rate, &at.key("rate"), message));
            }
            Storage::Paced(Paced { bytes_per_s, spread })
        }
        "pool" => Storage::Pool(pool(at)?),
        "layers" => {
            let given = raw.scheme.as_ref().ok_or_else(|| at.missing("scheme"))?;
            Storage::Layers(at.source.choose(given, &at.key("scheme"), &Scheme::ALL)?)
        }
        "null" => Storage::Null,
        "memory" => Storage::Memory,
        "command" => Storage::Command {
            enter: raw.enter.clone().ok_or_else(|| at.missing("enter"))?,
            leave: raw.leave.clone().ok_or_else(|| at.missing("leave"))?,
        },
        other => {
            let message = format!("{other:?} is not known: there are {KINDS}");
            return Err(at.source.error(&raw.kind, &at.key("kind"), message));
        }
    })
}

fn pool(at: At<'_>) -> Result<Pool, Error> {
    let raw = at.placed.get_ref();
    let nodes = match &raw.nodes {
        Some(given) if !(1..=POOL_NODES_MAX).contains(given.get_ref()) => {
            let message = format!("lies between 1 and {POOL_NODES_MAX}");
            return Err(at.source.error(given, &at.key("nodes"), message));
        }
        given => given.as_ref().map_or(POOL_NODES_DEFAULT, |nodes| *nodes.get_ref()),
    };
    let size = raw.device_size.as_ref().ok_or_else(|| at.missing("device-size"))?;
    let device_bytes = at.source.bytes(size, &at.key("device-size"))?;
    let has_checksums = match &raw.checksum {
        None => true,
        Some(given) => {
            let states = [("on", true), ("off", false)];
            find(given.get_ref(), &states)
                .map_err(|why| at.source.error(given, &at.key("checksum"), why))?
        }
    };
    Ok(Pool { nodes, device_bytes, has_checksums })
}

/// `address` is ADDRESS or ADDRESS:PORT, with brackets around an IPv6 address that has a port.
fn subsystem(at: At<'_>) -> Result<Subsystem, Error> {
    let raw = at.placed.get_ref();
    let given = raw.address.as_ref().ok_or_else(|| at.missing("address"))?;
    let text = given.get_ref().as_str();
    let is_plain_v6 = text.parse::<std::net::Ipv6Addr>().is_ok();
    let (address, port) = match text.rsplit_once(':').filter(|_| !is_plain_v6) {
        Some((address, port)) => {
            let port = port.parse().map_err(|_| {
                at.source.error(given, &at.key("address"), format!("{port:?} is no port"))
            })?;
            (address.trim_matches(['[', ']']), port)
        }
        None => (text, PORT_DEFAULT),
    };
    Ok(Subsystem {
        address: address.into(),
        port,
        nqn: raw.nqn.clone().ok_or_else(|| at.missing("nqn"))?,
        namespace: raw.namespace,
        destroy: raw.destroy.clone(),
    })
}

fn container(at: At<'_>) -> Result<Runtime, Error> {
    Ok(Runtime::Container(match &at.placed.get_ref().runtimes {
        Some(given) => {
            let choose = |name: &String| find(name, &ContainerKind::ALL);
            let chosen: Result<Vec<_>, _> = given.get_ref().iter().map(choose).collect();
            chosen.map_err(|why| at.source.error(given, &at.key("runtimes"), why))?
        }
        None => ContainerKind::ALL.iter().map(|(_, kind)| *kind).collect(),
    }))
}

fn host(at: At<'_>) -> Result<HostSettings, Error> {
    let raw = at.placed.get_ref();
    if let Some(queues) =
        raw.io_queues.as_ref().filter(|it| !(1..=IO_QUEUES_MAX).contains(it.get_ref()))
    {
        let message = format!("lies between 1 and {IO_QUEUES_MAX}");
        return Err(at.source.error(queues, &at.key("io-queues"), message));
    }
    Ok(HostSettings {
        io_queues: raw.io_queues.as_ref().map(|it| *it.get_ref()),
        poll_us: raw.poll_us,
        cpus: raw.cpus.clone(),
        has_header_digest: raw.header_digest,
        has_data_digest: raw.data_digest,
    })
}

fn file_system(at: At<'_>, kind: &LevelKind) -> Result<Option<FileSystem>, Error> {
    let Some(given) = &at.placed.get_ref().file_system else { return Ok(None) };
    let key = at.key("file-system");
    let is_file =
        matches!(kind, LevelKind::Storage(Storage::Directory(_) | Storage::Target { .. }));
    if !is_file {
        let message = "goes with kinds directory and target only";
        return Err(at.source.error(given, &key, message));
    }
    at.source.choose(given, &key, &FileSystem::ALL).map(Some)
}

/// Why a level does not go with an engine.
pub(super) fn mismatch(level: &Level, engine: EngineKind) -> Option<String> {
    let is_synthetic = matches!(level.kind, LevelKind::Synthetic(_));
    if is_synthetic != (engine == EngineKind::Synthetic) {
        let message = "levels of kind \"synthetic\" go with engine \"synthetic\", and only they";
        return Some(message.into());
    }
    if matches!(level.kind, LevelKind::Imported) != (engine == EngineKind::Imported) {
        let message = "levels of kind \"imported\" go with engine \"imported\", and only they";
        return Some(message.into());
    }
    let is_nvme = engine == EngineKind::Nvme;
    let is_rate = engine == EngineKind::Rate;
    let is_files = matches!(engine, EngineKind::Metadata | EngineKind::Ior | EngineKind::Ffsb);
    let is_ior = engine == EngineKind::Ior;
    let is_copyup = engine == EngineKind::CopyUp;
    match &level.kind {
        LevelKind::Storage(Storage::Layers(_)) => {
            (!is_copyup && engine != EngineKind::Ffsb).then(|| {
                format!("goes with engines \"copyup\" and \"ffsb\", not with {:?}", engine.name())
            })
        }
        LevelKind::Storage(_) if is_copyup => {
            Some("engine \"copyup\" needs storages of kind \"layers\"".into())
        }
        LevelKind::Storage(Storage::Subsystem(_)) | LevelKind::Host(_) if !is_nvme => {
            Some(format!("goes with engine \"nvme\", not with {:?}", engine.name()))
        }
        LevelKind::Ior(_) if !is_ior => {
            Some(format!("goes with engine \"ior\", not with {:?}", engine.name()))
        }
        LevelKind::Runtime(Runtime::Container(_)) if is_ior || is_rate => {
            Some(format!("engine {:?} runs natively", engine.name()))
        }
        LevelKind::Storage(Storage::Null | Storage::Memory | Storage::Iscsi { .. })
        | LevelKind::Queue(_)
            if !is_rate =>
        {
            Some(format!("goes with engine \"rate\", not with {:?}", engine.name()))
        }
        LevelKind::Storage(Storage::Target { .. }) if is_rate && level.file_system.is_some() => {
            Some("engine \"rate\" works on the namespace itself, without a file-system".into())
        }
        LevelKind::Storage(Storage::Subsystem(_) | Storage::Target { .. })
        | LevelKind::Host(_)
        | LevelKind::Runtime(Runtime::Native)
            if is_nvme && level.file_system.is_none() =>
        {
            None
        }
        LevelKind::Storage(_) | LevelKind::Runtime(_) if is_nvme => Some(
            "engine \"nvme\" works on namespaces, natively: kinds are target (without \
             file-system), nqn, host and native"
                .into(),
        ),
        LevelKind::Storage(Storage::BlockDevice { .. } | Storage::Paced(_)) if is_files => {
            Some(format!(
                "engine {:?} works on files: kinds are directory, pool and command, and target \
                 with a file-system",
                engine.name()
            ))
        }
        LevelKind::Storage(Storage::Target { .. }) if is_files && level.file_system.is_none() => {
            Some(format!("engine {:?} needs a file-system on a target", engine.name()))
        }
        _ => None,
    }
}
