//! The FUSE protocol and its transports; no policy.
