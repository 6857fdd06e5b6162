//! The metadata service: inodes, directories, extents, segments, leases and sessions over a transactional ordered key-value store.

pub mod leases;

mod records;
pub mod space;
pub mod store;
pub mod tree;

pub use records::SessionRecord;
