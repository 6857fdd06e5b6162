//! The block device trait and its layers: file, memory, fault injection.
