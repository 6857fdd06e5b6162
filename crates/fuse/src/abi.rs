//! The wire structures of the FUSE kernel interface, version 7.45.
//!
//! Names and layouts are those of the kernel's `include/uapi/linux/fuse.h`, without the `fuse_`
//! prefix. All fields have the host's byte order, because both ends are the same machine. The
//! module is private to the crate. Users see the types of `request` and `reply` instead, so a later
//! minor version can extend a structure without changing them.
//!
//! Each structure's size is asserted at compile time against the C header.

mod header;
mod requests;
mod results;

pub(crate) use header::*;
pub(crate) use requests::*;
pub(crate) use results::*;

/// Defines one wire structure with its size in bytes, which is checked at compile time.
macro_rules! wire {
    ($(#[$doc:meta])* $name:ident[$size:literal] { $($field:ident: $ty:ty),* $(,)? }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, Default,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout, zerocopy::Immutable,
        )]
        pub(crate) struct $name { $(pub(crate) $field: $ty),* }
        const _: () = assert!(size_of::<$name>() == $size);
    };
}
use wire;
