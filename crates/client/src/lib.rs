//! The file system as a library: paths, handles, extents, leases, caching.
