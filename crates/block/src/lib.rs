//! The block device trait and its layers: file, memory, one queue for all threads, fault injection,
//! a log for power-cut tests, blocks whose reads fail. A [`Device`] belongs to one thread, with its I/O on that thread's
//! ring. Several threads share a [`Backing`], from which each attaches a device of its own. I/O
//! futures are an enum, so that memory and file devices allocate nothing per operation. The trait
//! is dyn-compatible, so layers stack without generics.

mod device;
mod elevator;
mod error;
mod fault;
mod file;
mod flush;
mod future;
mod incarnation;
mod joined;
mod log;
mod mark;
mod memory;
mod uncorrectable;
mod zeroes;

pub use device::{Backing, Device, DiscardEffect, Geometry};
pub use elevator::{Elevator, ElevatorOptions};
pub use error::{Access, Error};
pub use fault::{Fault, FaultCounts, FaultPlan};
pub use file::{FileBacking, FileOptions, Fill, create, cut, grow};
pub use future::{IoFuture, Watch};
pub use incarnation::Incarnation;
pub use joined::Joined;
pub use log::{Event, Log, Survival};
pub use mark::FailureMark;
pub use memory::MemoryBacking;
pub use uncorrectable::Uncorrectable;
