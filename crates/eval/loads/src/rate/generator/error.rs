//! Errors of loads that run in this process.

use crate::threads::ThreadError;
use rustix::io::Errno;
use std::io;

/// A reason of the code that opened a device; the generator only reports it.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// An error of a load that runs in this process.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// Requests are not of whole blocks, or too long.
    #[error("--bs has to be a multiple of the block size, {0}, and at most 1GiB")]
    RequestSize(u64),
    /// Some devices would have no unit.
    #[error("--units {units} is less than one for each of {devices} devices")]
    FewUnits {
        /// Units that were asked for.
        units: u32,
        /// Devices.
        devices: u32,
    },
    /// No request fits into a unit.
    #[error("{name} is too small for {units} units of {bytes} bytes")]
    SmallDevice {
        /// The device.
        name: String,
        /// Units of the device.
        units: u32,
        /// Bytes of a request.
        bytes: u64,
    },
    /// The load ended before its first request was due.
    #[error("interrupted before it began")]
    NotBegun,
    /// There was no job.
    #[error("no job has a result")]
    NoResult,
    /// The kernel refused a request.
    #[error("cannot {what} {bytes} bytes at {offset}: {cause}")]
    Request {
        /// `read` or `write`.
        what: &'static str,
        /// Bytes of the request.
        bytes: i32,
        /// Offset in the device.
        offset: u64,
        /// The cause.
        cause: io::Error,
    },
    /// The kernel did a part of a request.
    #[error("{what} only {done} of {bytes} bytes at {offset}: the device ends there")]
    Short {
        /// `read` or `write`.
        what: &'static str,
        /// Bytes that were done.
        done: i32,
        /// Bytes of the request.
        bytes: i32,
        /// Offset in the device.
        offset: u64,
    },
    /// A job cannot connect or disconnect its device.
    #[error(transparent)]
    Remote(Cause),
    /// The block layer refused a request.
    #[error(transparent)]
    Block(#[from] block::Error),
    /// The system refused threads, rings or timers.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A thread of the load failed.
    #[error(transparent)]
    Thread(#[from] ThreadError),
}

impl From<Errno> for LoadError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}
