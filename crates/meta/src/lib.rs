//! The metadata service: inodes, directories, extents, segments, leases and sessions over a transactional ordered key-value store.

pub mod leases;
