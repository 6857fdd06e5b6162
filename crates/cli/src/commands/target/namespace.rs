//! The settings of a namespace: their form on the command line, and how its store is opened.

mod resize;
mod volume;

pub(super) use resize::Resized;
pub(super) use volume::{OpenPool, open_pool, open_pools};

use super::{identity, size};
use ::volume::Pool;
use anyhow::{Context, bail};
use block::{Backing, FileBacking, FileOptions, Fill, Incarnation, MemoryBacking, Uncorrectable};
use indicatif::{ProgressBar, ProgressStyle};
use nvme::Nqn;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU64;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use target::{AnaGroupId, HostAccess, RateLimits, Reservations};
use uuid::Uuid;

const BLOCK_SIZE_DEFAULT: u32 = 4096;

/// The settings of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct NamespaceSettings {
    /// Bytes of memory.
    #[serde(deserialize_with = "size::deserialize", serialize_with = "size::serialize")]
    memory: Option<u64>,
    /// A file or block device.
    path: Option<PathBuf>,
    /// A volume of a pool: the pool's path, a slash and the volume's name.
    volume: Option<String>,
    /// Size of the file if it must be created.
    #[serde(deserialize_with = "size::deserialize", serialize_with = "size::serialize")]
    size: Option<u64>,
    pub(super) nsid: Option<u32>,
    uuid: Option<Uuid>,
    block_size: Option<u32>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) read_only: bool,
    /// Use the page cache, for file systems without direct I/O.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    buffered: bool,
    /// Share the file or block device with other targets that share it, too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    shared: bool,
    /// The ANA group of the namespace.
    pub(super) ana_group: Option<u32>,
    /// Take memory when it is written, not at the start.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    lazy: bool,
    /// The file of reservations that survive a restart.
    reservations: Option<PathBuf>,
    /// The file of the marks of uncorrectable blocks; without one, blocks cannot be marked.
    uncorrectable: Option<PathBuf>,
    /// The hosts that see it, of those that may connect; `None` for all.
    hosts: Option<Vec<String>>,
    /// Commands per second, of all hosts together.
    iops: Option<NonZeroU64>,
    /// Bytes of data per second, of all hosts together.
    #[serde(deserialize_with = "size::deserialize", serialize_with = "size::serialize")]
    bytes_per_s: Option<u64>,
}

impl FromStr for NamespaceSettings {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let what = parts.next().unwrap_or_default();
        let mut settings = Self::default();
        if let Some(bytes) = what.strip_prefix("memory:") {
            settings.memory = Some(size::parse(bytes)?);
        } else if let Some(volume) = what.strip_prefix("volume:") {
            volume::split(volume)?;
            settings.volume = Some(volume.into());
        } else {
            let path = what.strip_prefix("file:").unwrap_or(what);
            if path.is_empty() || (path == what && !path.starts_with('/')) {
                return Err(format!(
                    "{what:?} is not a namespace: write file:PATH, memory:SIZE, \
                     volume:POOL/NAME or /dev/NAME"
                ));
            }
            settings.path = Some(path.into());
        }
        for option in parts {
            settings.set(option)?;
        }
        Ok(settings)
    }
}

impl NamespaceSettings {
    fn set(&mut self, option: &str) -> Result<(), String> {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        let wrong = |error: &dyn std::fmt::Display| format!("{option:?}: {error}");
        match key {
            "size" => self.size = Some(size::parse(value)?),
            "nsid" => self.nsid = Some(value.parse().map_err(|error| wrong(&error))?),
            "uuid" => self.uuid = Some(value.parse().map_err(|error| wrong(&error))?),
            "block-size" => {
                let bytes = size::parse(value)?;
                self.block_size = Some(bytes.try_into().map_err(|error| wrong(&error))?);
            }
            "host" => {
                Nqn::new(value).map_err(|error| wrong(&error))?;
                self.hosts.get_or_insert_default().push(value.into());
            }
            "iops" => self.iops = Some(value.parse().map_err(|error| wrong(&error))?),
            "bytes-per-s" => self.bytes_per_s = Some(size::parse(value)?),
            "reservations" if !value.is_empty() => self.reservations = Some(value.into()),
            "uncorrectable" if !value.is_empty() => self.uncorrectable = Some(value.into()),
            "read-only" if value.is_empty() => self.read_only = true,
            "buffered" if value.is_empty() => self.buffered = true,
            "shared" if value.is_empty() => self.shared = true,
            "ana-group" => {
                let group: AnaGroupId = value.parse()?;
                self.ana_group = Some(group.get());
            }
            "lazy" if value.is_empty() => self.lazy = true,
            _ => {
                return Err(format!(
                    "{option:?} is not an option: there are size=, nsid=, uuid=, block-size=, \
                     ana-group=, reservations=, uncorrectable=, host=, iops=, bytes-per-s=, \
                     read-only, buffered, shared and lazy"
                ));
            }
        }
        Ok(())
    }

    /// Returns the pool's path and the name of its volume, if it is one.
    pub(super) fn volume(&self) -> Option<(&Path, &str)> {
        self.volume.as_deref().and_then(|text| volume::split(text).ok())
    }

    /// Returns whether it is this volume of the pool at a canonical path.
    pub(super) fn is_the_volume(&self, pool: &Path, name: &str) -> bool {
        self.volume()
            .is_some_and(|own| own.1 == name && own.0.canonicalize().is_ok_and(|it| it == pool))
    }

    /// Returns the hosts that see it.
    ///
    /// # Errors
    /// If a host has no valid name.
    pub(super) fn hosts(&self) -> anyhow::Result<HostAccess> {
        let Some(hosts) = &self.hosts else { return Ok(HostAccess::Any) };
        let nqn = |host: &String| Nqn::new(host).with_context(|| format!("{host:?} is not an NQN"));
        Ok(HostAccess::List(hosts.iter().map(nqn).collect::<anyhow::Result<_>>()?))
    }

    /// Sets the hosts that see it; all of them without a list.
    pub(super) fn set_hosts(&mut self, hosts: Option<Vec<String>>) {
        self.hosts = hosts;
    }

    /// Returns its rate limits.
    ///
    /// # Errors
    /// If a limit is 0.
    pub(super) fn rate_limits(&self) -> anyhow::Result<RateLimits> {
        if self.bytes_per_s == Some(0) {
            bail!("bytes-per-s must be at least 1; omit it for no limit");
        }
        Ok(RateLimits { commands: self.iops.map(NonZeroU64::get), bytes: self.bytes_per_s })
    }

    /// Sets its rate limits.
    pub(super) fn set_rate_limits(&mut self, limits: RateLimits) {
        (self.iops, self.bytes_per_s) = (limits.commands.and_then(NonZeroU64::new), limits.bytes);
    }

    /// Returns whether its blocks outlive the target.
    pub(super) fn is_persistent(&self) -> bool {
        self.path.is_some() || self.volume.is_some()
    }

    /// Returns its file or block device, if it has one.
    pub(super) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Returns whether it is a volume of a pool.
    pub(super) fn is_volume(&self) -> bool {
        self.volume.is_some()
    }

    /// Returns whether other targets may use its file or block device too.
    pub(super) fn is_shared(&self) -> bool {
        self.shared
    }

    /// Returns whether its file is used through the page cache.
    pub(super) fn is_buffered(&self) -> bool {
        self.buffered
    }

    /// Returns whether reservations must survive a restart.
    pub(super) fn has_reservations_file(&self) -> bool {
        self.reservations.is_some()
    }

    /// Returns whether hosts can mark blocks as uncorrectable.
    pub(super) fn has_uncorrectable_file(&self) -> bool {
        self.uncorrectable.is_some()
    }

    /// Puts the marks of uncorrectable blocks over the namespace's store, if there is a file for
    /// them.
    ///
    /// # Errors
    /// If the file cannot be used, or the blocks do not survive a restart, or others write to them.
    pub(super) async fn with_marks(
        &self,
        uuid: Uuid,
        backing: Arc<dyn Backing>,
    ) -> anyhow::Result<Arc<dyn Backing>> {
        let Some(path) = &self.uncorrectable else { return Ok(backing) };
        if !self.is_persistent() {
            bail!(
                "uncorrectable= is only for files, devices and volumes: blocks in memory do not \
                 survive a restart"
            );
        }
        if self.shared {
            bail!(
                "uncorrectable= is not for shared namespaces: other targets would not know which \
                 blocks are marked"
            );
        }
        Ok(Arc::new(Uncorrectable::open(backing, path, uuid.into_bytes()).await?))
    }

    /// Opens the reservations of the namespace: from their file, else in memory.
    ///
    /// # Errors
    /// If the file cannot be used, or the blocks of the namespace do not survive a restart.
    pub(super) async fn reservations(&self, uuid: Uuid) -> anyhow::Result<Reservations> {
        match &self.reservations {
            None => Ok(Reservations::new()),
            Some(_) if !self.is_persistent() => bail!(
                "reservations= is only for files and devices: blocks in memory do not survive a \
                restart"
            ),
            Some(path) => Ok(Reservations::open(path, uuid.into_bytes()).await?),
        }
    }

    /// Returns whether the settings ask for a block size.
    pub(super) fn has_block_size(&self) -> bool {
        self.block_size.is_some()
    }

    /// Returns the size and the block size, in bytes, of a namespace in memory.
    ///
    /// # Errors
    /// If the settings have another store or unsuitable options.
    pub(super) fn memory(&self) -> anyhow::Result<(u64, u32)> {
        let (Some(bytes), None, None, false) = (self.memory, &self.path, self.size, self.buffered)
        else {
            bail!("a namespace is made of memory or of a path, of exactly one of them");
        };
        Ok((bytes, self.block_size.unwrap_or(BLOCK_SIZE_DEFAULT)))
    }

    /// Returns the namespace's UUID, by which hosts recognise it: the given one, else one of the
    /// store's own, which is the same at each start, or for memory a new one. The file or volume
    /// must exist.
    ///
    /// # Errors
    /// If the file, device or pool cannot be examined.
    pub(super) async fn uuid(&self) -> anyhow::Result<Uuid> {
        if let (None, Some(volume)) = (self.uuid, &self.volume) {
            return volume::uuid(volume, self.buffered).await;
        }
        match (self.uuid, &self.path) {
            (Some(uuid), _) => Ok(uuid),
            (None, Some(path)) => identity::of_path(path),
            (None, None) => Ok(identity::random()),
        }
    }

    /// Opens the pool of a volume, and keeps it open as long as the result exists, so that
    /// [`Self::uuid`] and [`Self::open`] find the same pool.
    ///
    /// # Errors
    /// If the pool cannot be opened.
    pub(super) async fn hold_pool(&self) -> anyhow::Result<Option<Pool>> {
        let Some(volume) = &self.volume else { return Ok(None) };
        Ok(Some(volume::hold(volume, self.buffered).await?))
    }

    /// Creates and writes a missing file.
    ///
    /// # Errors
    /// If it cannot be examined or created, or has no given size.
    pub(super) async fn prepare(&self) -> anyhow::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        match (std::fs::metadata(path), self.size) {
            (Ok(_), _) => Ok(()),
            (Err(error), Some(bytes)) if error.kind() == std::io::ErrorKind::NotFound => {
                create(path, bytes, !self.buffered).await
            }
            (Err(error), None) if error.kind() == std::io::ErrorKind::NotFound => {
                bail!("{} does not exist: give size= to create it", path.display());
            }
            (Err(error), _) => {
                Err(error).with_context(|| format!("cannot examine {}", path.display()))
            }
        }
    }

    /// Opens the namespace's store, after [`Self::prepare`].
    pub(super) async fn open(&self, uuid: Uuid) -> anyhow::Result<Arc<dyn Backing>> {
        if let (None, None, Some(volume)) = (&self.path, self.memory, &self.volume) {
            if self.size.is_some() || self.block_size.is_some() || self.lazy {
                bail!("size, block-size and lazy are not for volumes");
            }
            return volume::open(volume, self.buffered).await;
        }
        match (&self.path, self.memory) {
            _ if self.volume.is_some() => {
                bail!("a namespace of a volume has neither memory nor path")
            }
            (None, Some(bytes)) => {
                if self.size.is_some() || self.buffered || self.shared {
                    bail!("size, buffered and shared are for files, not for memory");
                }
                let block_size = self.block_size.unwrap_or(BLOCK_SIZE_DEFAULT);
                if self.lazy {
                    return Ok(Arc::new(MemoryBacking::new(bytes, block_size)?));
                }
                Ok(Arc::new(take_memory(bytes, block_size).await?))
            }
            (Some(path), None) => self.open_path(path, uuid).await,
            _ => bail!("a namespace is made of memory or of a path, of exactly one of them"),
        }
    }

    async fn open_path(&self, path: &Path, uuid: Uuid) -> anyhow::Result<Arc<dyn Backing>> {
        if self.lazy {
            bail!("lazy is for memory, not for files");
        }
        if self.shared && self.buffered {
            bail!(
                "shared needs direct I/O, because each machine would have a page cache of its own: \
                omit buffered"
            );
        }
        let metadata = std::fs::metadata(path)
            .with_context(|| format!("cannot examine {}", path.display()))?;
        let is_device = metadata.file_type().is_block_device();
        let incarnation = Incarnation::of_boot(uuid).context("cannot identify this boot")?;
        let options = FileOptions {
            block_size: self.block_size,
            direct: !self.buffered,
            preallocated: !is_device,
            incarnation,
        };
        let backing = if self.shared {
            FileBacking::open_shared(path, &options).await?
        } else {
            FileBacking::open_patiently(path, &options).await?
        };
        let have = backing.geometry().size();
        if let Some(want) = self.size
            && want != have
        {
            bail!(
                "{} has {}, not {}: give the right size, or remove the file to create a new one",
                path.display(),
                size::format(have),
                size::format(want)
            );
        }
        Ok(Arc::new(backing))
    }
}

/// Takes memory from the system before hosts use it, and shows the progress.
async fn take_memory(bytes: u64, block_size: u32) -> anyhow::Result<MemoryBacking> {
    let template = "taking memory: {bytes} of {total_bytes} ({bytes_per_sec}, {eta} left)";
    let bar = ProgressBar::new(bytes).with_style(ProgressStyle::with_template(template)?);
    let backing = MemoryBacking::populated(bytes, block_size, |done| bar.set_position(done)).await;
    bar.finish_and_clear();
    Ok(backing?)
}

/// Creates a file and shows the progress. Removes an unfinished file.
async fn create(path: &Path, bytes: u64, is_direct: bool) -> anyhow::Result<()> {
    let template = "writing {msg} once: {bytes} of {total_bytes} ({bytes_per_sec}, {eta} left)";
    let bar = ProgressBar::new(bytes)
        .with_style(ProgressStyle::with_template(template)?)
        .with_message(path.display().to_string());
    let unfinished = Unfinished(Some(path));
    block::create(path, bytes, is_direct, Fill::Written, |done| bar.set_position(done)).await?;
    unfinished.finish();
    bar.finish_and_clear();
    Ok(())
}

/// Removes the file when dropped, unless it was finished.
struct Unfinished<'a>(Option<&'a Path>);

impl Unfinished<'_> {
    fn finish(mut self) {
        self.0 = None;
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the forms of the command line are understood.
    #[test]
    fn namespaces_are_read() {
        let memory: NamespaceSettings = "memory:512M,nsid=3".parse().unwrap();
        assert_eq!((memory.memory, memory.nsid), (Some(512 << 20), Some(3)));
        let file: NamespaceSettings = "file:disk,size=4G,read-only".parse().unwrap();
        assert_eq!((file.path, file.size), (Some("disk".into()), Some(4 << 30)));
        assert!(file.read_only && file.reservations.is_none());
        let reserved: NamespaceSettings = "file:disk,reservations=/var/r".parse().unwrap();
        assert_eq!(reserved.reservations, Some("/var/r".into()));
        let marked: NamespaceSettings = "file:disk,uncorrectable=/var/u".parse().unwrap();
        assert_eq!(marked.uncorrectable, Some("/var/u".into()));
        let device: NamespaceSettings = "/dev/x".parse().unwrap();
        assert_eq!(device.path, Some("/dev/x".into()));
        let limited: NamespaceSettings = "memory:1G,iops=500,bytes-per-s=10M".parse().unwrap();
        let masked: NamespaceSettings =
            "memory:1G,host=nqn.2026-01.org:a,host=nqn.2026-01.org:b".parse().unwrap();
        let names = ["a", "b"].map(|it| Nqn::new(&format!("nqn.2026-01.org:{it}")).unwrap());
        assert_eq!(masked.hosts().unwrap(), HostAccess::List(names.into()));
        assert_eq!(limited.hosts().unwrap(), HostAccess::Any);
        let limits = RateLimits { commands: Some(500), bytes: Some(10 << 20) };
        assert_eq!(limited.rate_limits().unwrap(), limits);
        let volume: NamespaceSettings = "volume:/a/pool/one,nsid=2,buffered".parse().unwrap();
        assert_eq!(volume.volume.as_deref(), Some("/a/pool/one"));
        assert!(volume.is_persistent() && volume.buffered);
        for wrong in [
            "",
            "disk",
            "volume:",
            "volume:pool",
            "volume:pool/",
            "volume:/one",
            "file:",
            "memory:",
            "file:a,colour=red",
            "memory:1G,nsid=x",
            "file:a,reservations=",
            "file:a,uncorrectable=",
            "file:a,iops=0",
            "file:a,host=somebody",
            "file:a,bytes-per-s=fast",
        ] {
            assert!(wrong.parse::<NamespaceSettings>().is_err(), "{wrong}");
        }
    }
}
