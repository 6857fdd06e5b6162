//! Storage that jobs put load on, and what one job has of it.

use super::error::{Cause, LoadError};
use super::null::Null;
use crate::rate::QueuePolicy;
use block::{Backing, Device, Elevator, ElevatorOptions, FileBacking, Geometry};
use reactor::File;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

/// A future that stays on the thread that made it.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, Cause>> + 'a>>;

/// A device behind a network, to which each job connects by itself.
pub trait Remote: Send + Sync {
    /// Returns the geometry.
    fn geometry(&self) -> Geometry;

    /// Connects the calling thread.
    fn attach(&self) -> LocalFuture<'_, Attached>;
}

/// A device that jobs can attach.
pub enum Source {
    /// A file or block device, without a queue of ours.
    File(FileBacking),
    /// The device that does nothing, likewise.
    Null(Null),
    /// Of this machine, behind a queue or in memory.
    Backing(Arc<dyn Backing>),
    /// Each job has a connection of its own.
    Remote(Box<dyn Remote>),
}

/// A device with the name that messages use.
#[derive(Debug)]
pub struct Storage {
    /// Its name.
    pub name: String,
    /// The device.
    pub source: Source,
}

/// The place of a request that no layer of ours is between.
pub(super) enum Target {
    File(File),
    /// It is done at once.
    Nothing,
}

/// A device of one job.
pub struct Attached {
    /// The device.
    pub device: Rc<dyn Device>,
    /// Disconnects it at the end.
    pub disconnect: Option<LocalFuture<'static, ()>>,
}

impl Source {
    /// Returns the same device, reached through a queue of our block layer. Remote devices have their own.
    pub fn behind(self, queue: QueuePolicy) -> Self {
        let device: Arc<dyn Backing> = match self {
            Self::File(file) => Arc::new(file),
            Self::Null(null) => Arc::new(null),
            Self::Backing(backing) => backing,
            Self::Remote(remote) => return Self::Remote(remote),
        };
        Self::Backing(match queue {
            QueuePolicy::Direct => device,
            QueuePolicy::Elevator => Arc::new(Elevator::new(device, ElevatorOptions::default())),
        })
    }

    /// Returns the geometry.
    pub fn geometry(&self) -> Geometry {
        match self {
            Self::File(file) => file.geometry(),
            Self::Null(null) => Backing::geometry(null),
            Self::Backing(backing) => backing.geometry(),
            Self::Remote(remote) => remote.geometry(),
        }
    }

    /// Attaches it for the calling thread.
    pub(super) async fn attach(&self) -> Result<Attached, LoadError> {
        let plain = |device| Attached { device, disconnect: None };
        Ok(match self {
            Self::File(file) => plain(file.attach()),
            Self::Null(null) => plain(null.attach()),
            Self::Backing(backing) => plain(backing.attach()),
            Self::Remote(remote) => remote.attach().await.map_err(LoadError::Remote)?,
        })
    }

    /// Returns where requests go without a layer of ours, if they can.
    pub(super) fn straight(&self) -> Option<Target> {
        match self {
            Self::File(file) => Some(Target::File(file.file().clone())),
            Self::Null(_) => Some(Target::Nothing),
            Self::Backing(_) | Self::Remote(_) => None,
        }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::File(_) => "File",
            Self::Null(_) => "Null",
            Self::Backing(_) => "Backing",
            Self::Remote(_) => "Remote",
        };
        f.debug_struct(kind).field("geometry", &self.geometry()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attached")
            .field("geometry", &self.device.geometry())
            .finish_non_exhaustive()
    }
}
