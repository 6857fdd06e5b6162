//! The metadata service: inodes, directories, extents, segments, leases and sessions over a
//! transactional ordered key-value store.

mod admission;
pub mod check;
pub mod leases;
pub mod service;
mod sessions;

mod records;
pub mod space;
pub mod store;
pub mod tree;

pub use records::SessionRecord;
