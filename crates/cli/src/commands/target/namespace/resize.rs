//! Changing the size of a namespace in use: first its store, then the size that hosts see.

use super::{BLOCK_SIZE_DEFAULT, NamespaceSettings, take_memory};
use crate::commands::target::size;
use anyhow::{Context, bail};
use block::{Backing, Joined, MemoryBacking};
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::ops::ControlFlow;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use target::RateLimits;

/// A store with its new size.
pub(in crate::commands::target) struct Resized {
    pub(in crate::commands::target) backing: Arc<dyn Backing>,
    /// The file that was extended, and its former size.
    grown: Option<(PathBuf, u64)>,
}

impl Resized {
    /// Reverts the change; the new size is not in use yet.
    pub(in crate::commands::target) async fn undo(self) {
        if let Some((path, bytes)) = self.grown
            && let Err(error) = block::cut(&path, bytes).await
        {
            tracing::warn!(path = %path.display(), %error, "a file stays longer than its namespace");
        }
    }
}

impl NamespaceSettings {
    /// Returns the namespace's store in words.
    pub(in crate::commands::target) fn store(&self) -> String {
        match (&self.path, &self.volume) {
            (Some(path), _) => path.display().to_string(),
            (None, Some(volume)) => format!("volume {volume}"),
            (None, None) => "memory".to_owned(),
        }
    }

    /// Makes the file's path absolute, for a process with another working directory.
    pub(in crate::commands::target) fn make_absolute(&mut self) -> anyhow::Result<()> {
        if let Some(path) = &mut self.path {
            *path = std::path::absolute(&*path)
                .with_context(|| format!("cannot find {}", path.display()))?;
        }
        for file in [&mut self.reservations, &mut self.uncorrectable].into_iter().flatten() {
            *file = std::path::absolute(&*file)
                .with_context(|| format!("cannot find {}", file.display()))?;
        }
        if let Some(volume) = &mut self.volume {
            let path =
                std::path::absolute(&*volume).with_context(|| format!("cannot find {volume}"))?;
            let path = path.into_os_string().into_string();
            *volume = path.ok().context("a pool's path must be UTF-8")?;
        }
        Ok(())
    }

    /// Returns the configured size in bytes.
    pub(in crate::commands::target) fn size_bytes(&self) -> Option<u64> {
        self.memory.or(self.size)
    }

    /// Returns the same settings with another size, if a size was set.
    pub(in crate::commands::target) fn with_size(&self, bytes: u64) -> Self {
        let (memory, size) = (self.memory.map(|_| bytes), self.size.map(|_| bytes));
        Self { memory, size, ..self.clone() }
    }

    /// From now on the size is that of the file or device.
    pub(in crate::commands::target) fn forget_size(&mut self) {
        self.size = None;
    }

    /// Returns whether the other is the same namespace, even with another size, other limits and
    /// other hosts.
    pub(in crate::commands::target) fn is_same_but_size(&self, other: &Self) -> bool {
        let bare = |it: &Self| {
            let mut bare = Self { memory: it.memory.map(|_| 0), size: None, ..it.clone() };
            bare.set_rate_limits(RateLimits::default());
            bare.set_hosts(None);
            bare
        };
        bare(self) == bare(other)
    }

    /// Gives the store `bytes`, or the present size of the file or device. `present` is in use and
    /// stays so until the caller replaces it. A shrunk store keeps its bytes until
    /// [`Self::give_back`]. The future of a file's extension must not be dropped, because the file
    /// would stay longer; it ends early when `is_stopped` returns true.
    ///
    /// # Errors
    /// If the size is not possible.
    pub(in crate::commands::target) async fn resize(
        &self,
        present: &Arc<dyn Backing>,
        bytes: Option<u64>,
        is_stopped: impl Fn() -> bool,
    ) -> anyhow::Result<Resized> {
        match (&self.path, self.memory) {
            (Some(path), None) => self.resize_path(path, present, bytes, is_stopped).await,
            (None, Some(_)) => {
                let bytes = bytes.context("give the new size of memory, as in --size 1G")?;
                self.resize_memory(present, bytes).await
            }
            (None, None) if self.volume.is_some() => {
                let volume = self.volume.as_deref().unwrap_or_default();
                let backing = present.over(super::volume::reopen(volume, bytes)?);
                Ok(Resized { backing, grown: None })
            }
            _ => bail!("a namespace of this kind keeps its size"),
        }
    }

    async fn resize_memory(
        &self,
        present: &Arc<dyn Backing>,
        bytes: u64,
    ) -> anyhow::Result<Resized> {
        let have = present.geometry().size();
        let backing = match present.resized(bytes) {
            Err(_) if bytes > have => {
                let block_size = self.block_size.unwrap_or(BLOCK_SIZE_DEFAULT);
                let more = if self.lazy {
                    MemoryBacking::new(bytes - have, block_size)?
                } else {
                    take_memory(bytes - have, block_size).await?
                };
                Arc::new(Joined::new(Arc::clone(present), Arc::new(more))?) as Arc<dyn Backing>
            }
            resized => resized?,
        };
        Ok(Resized { backing, grown: None })
    }

    async fn resize_path(
        &self,
        path: &Path,
        present: &Arc<dyn Backing>,
        bytes: Option<u64>,
        is_stopped: impl Fn() -> bool,
    ) -> anyhow::Result<Resized> {
        let (have, is_device) = examine(path)?;
        let block = u64::from(present.geometry().block_size);
        let bytes = bytes.unwrap_or(have / block * block);
        let mut grown = None;
        if bytes > have {
            if is_device {
                bail!(
                    "{} has {}: make the device larger first",
                    path.display(),
                    size::format(have)
                );
            }
            if !bytes.is_multiple_of(block) {
                bail!("{bytes} bytes are not a multiple of the block size, {block}");
            }
            let progress =
                |_| if is_stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
            block::grow(path, (have, bytes), !self.buffered, progress).await?;
            grown = Some((path.to_owned(), have));
        }
        match present.resized(bytes) {
            Ok(backing) => Ok(Resized { backing, grown }),
            Err(error) => {
                Resized { backing: Arc::clone(present), grown }.undo().await;
                Err(error.into())
            }
        }
    }

    /// Gives back the bytes of a shrunk store beyond `bytes`. `former` must not be in use any more.
    ///
    /// # Errors
    /// If the system refuses it.
    pub(in crate::commands::target) async fn give_back(
        &self,
        former: &Arc<dyn Backing>,
        bytes: u64,
    ) -> anyhow::Result<()> {
        let Some(path) = &self.path else {
            let rest = former.geometry().size().saturating_sub(bytes);
            return Ok(former.attach().discard(bytes, rest).await?);
        };
        let (have, is_device) = examine(path)?;
        if !is_device && have > bytes {
            block::cut(path, bytes).await?;
        }
        Ok(())
    }
}

/// Returns the size of a file or device, and whether it is a device.
fn examine(path: &Path) -> anyhow::Result<(u64, bool)> {
    let examined = || format!("cannot examine {}", path.display());
    let mut file = File::open(path).with_context(examined)?;
    let is_device = file.metadata().with_context(examined)?.file_type().is_block_device();
    Ok((file.seek(SeekFrom::End(0)).with_context(examined)?, is_device))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a file has its former size after its extension was stopped halfway.
    #[test]
    fn a_stopped_extension_leaves_no_trace() {
        reactor::Runtime::new(&reactor::Config::default()).unwrap().block_on(async {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("disk");
            let text = format!("file:{},size=1M,buffered", path.display());
            let settings: NamespaceSettings = text.parse().unwrap();
            settings.prepare().await.unwrap();
            let backing = settings.open(settings.uuid().await.unwrap()).await.unwrap();
            let asked = std::cell::Cell::new(0);
            let is_stopped = || asked.replace(asked.get() + 1) == 1;
            assert!(settings.resize(&backing, Some(64 << 20), is_stopped).await.is_err());
            assert_eq!(asked.get(), 2, "no piece is written after the stop");
            assert_eq!(examine(&path).unwrap().0, 1 << 20);
            settings.resize(&backing, Some(2 << 20), || false).await.unwrap().undo().await;
            assert_eq!(examine(&path).unwrap().0, 1 << 20);
        });
    }
}
