//! The macro that declares a wire structure.
//!
//! All structures have the same needs: exact size, no padding, decoding by reference, an all-zero
//! default (reserved fields must be cleared). One macro keeps them consistent, and users of this
//! crate need no dependency on `zerocopy`.

/// Declares a `repr(C)` little-endian structure of exactly the given number of bytes.
macro_rules! wire_struct {
    ($(#[$meta:meta])* pub struct $name:ident[$bytes:expr] {
        $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)*
    }) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, zerocopy::FromBytes, zerocopy::IntoBytes,
            zerocopy::KnownLayout, zerocopy::Immutable, zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        const _: () = assert!(core::mem::size_of::<$name>() == $bytes);

        impl $name {
            /// Size on the wire in bytes.
            pub const BYTES: usize = $bytes;

            /// Returns the structure at the start of `bytes`, borrowed; the following bytes are
            /// ignored.
            ///
            /// Fails with [`Error::Truncated`](crate::Error::Truncated) if `bytes` is shorter than
            /// [`Self::BYTES`].
            pub fn from_prefix(bytes: &[u8]) -> Result<&Self, crate::Error> {
                match <Self as zerocopy::FromBytes>::ref_from_prefix(bytes) {
                    Ok((this, _)) => Ok(this),
                    Err(_) => Err(crate::Error::Truncated {
                        structure: stringify!($name),
                        need_bytes: Self::BYTES,
                        have_bytes: bytes.len(),
                    }),
                }
            }

            /// Returns the bytes to send.
            pub fn bytes(&self) -> &[u8] {
                zerocopy::IntoBytes::as_bytes(self)
            }
        }

        impl Default for $name {
            /// Returns the structure with all fields zero.
            fn default() -> Self {
                zerocopy::FromZeros::new_zeroed()
            }
        }
    };
}
