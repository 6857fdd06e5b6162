//! Numbers of `ioctl(2)` commands.

/// Returns the number of a command in the type of the C library: 32 bits (asm-generic/ioctl.h) in a
/// type on which glibc and musl differ.
#[allow(
    clippy::allow_attributes,
    clippy::cast_lossless,
    clippy::cast_possible_wrap,
    reason = "one of them holds for each of the two libraries"
)]
pub const fn command(number: u32) -> libc::Ioctl {
    number as libc::Ioctl
}
