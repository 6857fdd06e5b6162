//! Numbers of `ioctl(2)` commands.

/// The number of a command as the C library takes it: 32 bits (asm-generic/ioctl.h) in a type that glibc and
/// musl do not agree on.
#[allow(
    clippy::allow_attributes,
    clippy::cast_lossless,
    clippy::cast_possible_wrap,
    reason = "one of them holds for each of the two libraries"
)]
pub const fn command(number: u32) -> libc::Ioctl {
    number as libc::Ioctl
}
