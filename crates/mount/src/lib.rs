//! The file system's FUSE front end.
