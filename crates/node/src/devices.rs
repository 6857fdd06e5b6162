//! A node's devices: files and memory, opened once and exported as namespaces.

use crate::config::NodeConfig;
use crate::error::NodeError;
use crate::marks::{Marks, create_marks};
use block::{Backing, FileBacking, FileOptions, Fill, Incarnation, MemoryBacking};
use nvme::Nsid;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use target::Namespace;
use uuid::Uuid;

/// A device of this node.
#[derive(Clone)]
pub struct NodeDevice {
    /// Its permanent name.
    pub uuid: Uuid,
    /// Identifies the time since unflushed writes may last have been lost.
    pub incarnation: Incarnation,
    /// Whether its data ends with its incarnation, because it is memory.
    pub is_volatile: bool,
    /// Its blocks.
    pub backing: Arc<dyn Backing>,
}

impl std::fmt::Debug for NodeDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeDevice").field("uuid", &self.uuid).finish_non_exhaustive()
    }
}

/// Creates and writes once each missing file of a configuration. `progress` gets the path, the
/// bytes done and all bytes. This is separate from opening because only this needs a writable
/// directory.
///
/// # Errors
/// [`NodeError::Device`].
pub async fn create_devices(
    config: &NodeConfig,
    mut progress: impl FnMut(&Path, u64, u64),
) -> Result<(), NodeError> {
    for device in &config.devices {
        if let (Some(path), Some(size)) = (&device.path, device.size)
            && !path.exists()
        {
            let failed = |source| NodeError::Device { path: path.clone(), source };
            block::create(path, size, true, Fill::Written, |done| progress(path, done, size))
                .await
                .map_err(failed)?;
        }
    }
    Ok(())
}

/// Opens the devices of a configuration, in order, to serve them.
///
/// # Errors
/// [`NodeError::Device`], [`NodeError::Marks`].
pub async fn open_devices(config: &NodeConfig) -> Result<Vec<NodeDevice>, NodeError> {
    create_marks(config)?;
    let mut devices = Vec::new();
    for index in 0..config.devices.len() {
        devices.push(open(config, index, true).await?);
    }
    Ok(devices)
}

/// Opens the device at `index` of a configuration, to read it: its name depends on that index.
///
/// # Errors
/// [`NodeError::Device`], [`NodeError::Marks`].
pub async fn open_device(config: &NodeConfig, index: usize) -> Result<NodeDevice, NodeError> {
    open(config, index, false).await
}

/// Opens a device. If the node serves it, it marks failed flushes.
async fn open(config: &NodeConfig, index: usize, is_served: bool) -> Result<NodeDevice, NodeError> {
    let device = &config.devices[index];
    let path = device.path.clone().unwrap_or_else(|| PathBuf::from(format!("memory:{index}")));
    let failed = |source| NodeError::Device { path: path.clone(), source };
    let uuid = device.uuid.unwrap_or_else(|| name_of(&config.name, index, &path));
    let (backing, incarnation): (Arc<dyn Backing>, Incarnation) = match (&device.path, device.size)
    {
        (None, size) => {
            let size = size.unwrap_or_default();
            let backing = MemoryBacking::new(size, device.block_size).map_err(failed)?;
            let incarnation = backing.incarnation();
            (Arc::new(backing), incarnation)
        }
        (Some(file), _) => {
            let incarnation = Incarnation::of_boot(uuid).map_err(NodeError::Thread)?;
            let options = FileOptions {
                block_size: Some(device.block_size),
                direct: true,
                preallocated: true,
                incarnation,
            };
            let mut backing = FileBacking::open_patiently(file, &options).await.map_err(failed)?;
            // By now an earlier process has written its mark: it had the lock.
            if let Some(mut marks) = Marks::read(config).await? {
                backing = backing.after(marks.found(uuid));
                if is_served {
                    backing = backing.with_mark(marks.place(uuid).await?);
                }
            }
            let incarnation = backing.incarnation();
            (Arc::new(backing), incarnation)
        }
    };
    Ok(NodeDevice { uuid, incarnation, is_volatile: device.path.is_none(), backing })
}

/// Returns a device's name, made from properties that stay the same: node, position in the list,
/// path.
fn name_of(node: &str, index: usize, path: &Path) -> Uuid {
    let mut hasher = blake3::Hasher::new();
    for part in [node.as_bytes(), &index.to_le_bytes(), path.as_os_str().as_encoded_bytes()] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

/// Returns the namespace of a device: identifiers count from 1 in the order of the configuration.
pub(crate) fn namespace(index: usize, device: &NodeDevice) -> Namespace {
    let nsid = Nsid(index as u32 + 1);
    Namespace::new(nsid, *device.uuid.as_bytes(), Arc::clone(&device.backing), false)
}
