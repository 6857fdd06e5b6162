//! The union mount: an overlay of directories in user space, in overlayfs's own format.
//!
//! Copied-up files are used at once, but take their name in the upper directory only after their
//! data is durable; one committer makes all waiting copies of a file system durable together.

pub mod journal;
