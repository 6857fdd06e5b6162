//! The INIT handshake: versions, capabilities, sizes, and the choice of the transport.

use std::io;

use reactor::{Buffer, Chunk, Handle, Segment, Segments};
use zerocopy::{FromBytes, IntoBytes};

use super::{Negotiated, SessionOptions, Transport, TransportChoice};
use crate::abi::{self, InHeader, InitIn, InitInCompat, InitOut, OutHeader, opcode};
use crate::error::{DecodeError, FuseError};
use crate::request::Decoder;
use crate::transport::{availability, fetch_error_is_transient, uring};
use crate::types::Capabilities;

/// Buffer size for INIT, and the least that the kernel accepts for a read.
const READ_BYTES: usize = 8192;
/// The kernel's limit of pages per request where the sysctl does not exist (before Linux 6.13).
const MAX_PAGES_LIMIT_DEFAULT: u32 = 256;
const PAGE_BYTES: u32 = 4096;

/// Reads INIT, answers it, and returns what was agreed.
pub(super) async fn handshake(
    device: &Handle,
    options: &SessionOptions,
) -> Result<(Decoder, Negotiated), FuseError> {
    let choice = choose_transport(device, options).await?;
    loop {
        let (header, init) = read_init(device).await?;
        if init.major > abi::KERNEL_VERSION {
            // The kernel supports this major version too, and sends INIT again.
            let out = InitOut {
                major: abi::KERNEL_VERSION,
                minor: abi::KERNEL_MINOR_VERSION,
                ..InitOut::default()
            };
            answer(device, &header, 0, out.as_bytes()).await?;
            continue;
        }
        if init.major < abi::KERNEL_VERSION || init.minor < abi::KERNEL_MINOR_VERSION_MIN {
            answer(device, &header, -libc::EPROTO, &[]).await?;
            return Err(FuseError::Version { major: init.major, minor: init.minor });
        }
        let (out, negotiated) = negotiate(&init, options, choice, max_pages_limit());
        let is_unmet = options.transport == TransportChoice::IoUring
            && negotiated.transport != Transport::IoUring;
        if is_unmet {
            answer(device, &header, -libc::EPROTO, &[]).await?;
            return Err(unavailable(&negotiated.transport_reason));
        }
        answer(device, &header, 0, out.as_bytes()).await?;
        return Ok((decoder(&negotiated), negotiated));
    }
}

/// Returns the decoder for what was agreed.
pub(super) fn decoder(negotiated: &Negotiated) -> Decoder {
    let has_setxattr_ext = negotiated.capabilities.contains(Capabilities::SETXATTR_EXT);
    Decoder { has_setxattr_ext }
}

fn unavailable(reason: &str) -> FuseError {
    FuseError::Transport {
        action: "use FUSE over io_uring",
        source: io::Error::new(io::ErrorKind::Unsupported, reason),
    }
}

/// Returns whether to request `io_uring`, and the reason.
async fn choose_transport(
    device: &Handle,
    options: &SessionOptions,
) -> Result<(bool, String), FuseError> {
    if options.transport == TransportChoice::Device {
        return Ok((false, "/dev/fuse was asked for".into()));
    }
    let mut usable = availability();
    if usable.is_ok() {
        usable = uring::probe(device).await;
    }
    match (usable, options.transport) {
        (Ok(()), TransportChoice::IoUring) => Ok((true, "io_uring was asked for".into())),
        (Ok(()), _) => Ok((true, "the kernel has FUSE over io_uring enabled".into())),
        (Err(reason), TransportChoice::IoUring) => Err(unavailable(&reason)),
        (Err(reason), _) => Ok((false, reason)),
    }
}

async fn read_init(device: &Handle) -> Result<(InHeader, InitIn), FuseError> {
    let buffer = loop {
        let buffer = Buffer::with_capacity(READ_BYTES);
        let segments = Segments::from_iter([Segment::Buffer(buffer, 0..READ_BYTES)]);
        let (result, mut segments) = device.readv(segments).await;
        match result {
            Ok(_) => {}
            Err(error) if fetch_error_is_transient(&error) => continue,
            Err(error) => return Err(FuseError::NotConnected(error)),
        }
        if let Some(buffer) = segments.pop().and_then(Segment::into_buffer) {
            break buffer;
        }
    };
    parse_init(&buffer).map_err(FuseError::Init)
}

fn parse_init(bytes: &[u8]) -> Result<(InHeader, InitIn), DecodeError> {
    let truncated = |argument, needed_bytes| DecodeError::Truncated {
        opcode: opcode::INIT,
        argument,
        needed_bytes,
        available_bytes: bytes.len(),
    };
    let (header, body) = InHeader::read_from_prefix(bytes)
        .map_err(|_| truncated("header", size_of::<InHeader>()))?;
    if header.opcode != opcode::INIT {
        return Err(DecodeError::Unknown { opcode: header.opcode });
    }
    if let Ok((init, _)) = InitIn::read_from_prefix(body) {
        return Ok((header, init));
    }
    let (init, _) = InitInCompat::read_from_prefix(body)
        .map_err(|_| truncated("init", size_of::<InHeader>() + size_of::<InitInCompat>()))?;
    let InitInCompat { major, minor, max_readahead, flags } = init;
    Ok((header, InitIn { major, minor, max_readahead, flags, ..InitIn::default() }))
}

async fn answer(
    device: &Handle,
    request: &InHeader,
    error: i32,
    body: &[u8],
) -> Result<(), FuseError> {
    let len = (size_of::<OutHeader>() + body.len()) as u32;
    let header = OutHeader { len, error, unique: request.unique };
    let message = [header.as_bytes(), body].concat();
    let (result, _) = device.writev(vec![Chunk::copy_from(&message)]).await;
    result.map(drop).map_err(FuseError::NotConnected)
}

/// `fs.fuse.max_pages_limit`
fn max_pages_limit() -> u32 {
    std::fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(MAX_PAGES_LIMIT_DEFAULT)
}

/// Returns what both sides support.
fn negotiate(
    init: &InitIn,
    options: &SessionOptions,
    (wants_ring, reason): (bool, String),
    max_pages_limit: u32,
) -> (InitOut, Negotiated) {
    let low = u64::from(init.flags);
    let has_ext = Capabilities::from_bits(low).contains(Capabilities::INIT_EXT);
    let high = if has_ext { u64::from(init.flags2) << 32 } else { 0 };
    let offered = Capabilities::from_bits(low | high);

    let mut wanted = options.capabilities | Capabilities::INIT_EXT | Capabilities::MAX_PAGES;
    wanted = wanted.difference(Capabilities::OVER_IO_URING);
    if wants_ring {
        wanted |= Capabilities::OVER_IO_URING;
    }
    let agreed = offered.intersection(wanted);
    let uses_ring = agreed.contains(Capabilities::OVER_IO_URING);
    let transport_reason = if wants_ring && !uses_ring {
        "the kernel did not offer FUSE over io_uring".into()
    } else {
        reason
    };

    let has_max_pages = agreed.contains(Capabilities::MAX_PAGES);
    let pages_max = if has_max_pages { max_pages_limit.min(u32::from(u16::MAX)) } else { 32 };
    let max_write = options.max_write_bytes.min(pages_max.saturating_mul(PAGE_BYTES));
    let minor = init.minor.min(abi::KERNEL_MINOR_VERSION);
    let max_readahead = options.max_readahead_bytes.min(init.max_readahead);
    let out = InitOut {
        major: abi::KERNEL_VERSION,
        minor,
        max_readahead,
        flags: agreed.bits() as u32,
        max_background: options.max_background,
        congestion_threshold: options.congestion_threshold,
        max_write,
        time_gran: 1,
        max_pages: if has_max_pages { (max_write / PAGE_BYTES) as u16 } else { 0 },
        flags2: (agreed.bits() >> 32) as u32,
        max_stack_depth: options.max_stack_depth,
        ..InitOut::default()
    };
    let negotiated = Negotiated {
        minor,
        capabilities: agreed,
        max_write_bytes: max_write,
        max_readahead_bytes: max_readahead,
        transport: if uses_ring { Transport::IoUring } else { Transport::Device },
        transport_reason,
    };
    (out, negotiated)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(minor: u32, offered: Capabilities) -> InitIn {
        InitIn {
            major: 7,
            minor,
            max_readahead: 131_072,
            flags: offered.bits() as u32,
            flags2: (offered.bits() >> 32) as u32,
            ..InitIn::default()
        }
    }

    /// Goal: an old kernel's flags decide, its upper word is ignored without `INIT_EXT`, and the
    /// answer never claims a capability that was not offered.
    #[test]
    fn old_kernels_get_what_they_know() {
        let offered = Capabilities::ASYNC_READ | Capabilities::OVER_IO_URING;
        let options = SessionOptions::default();
        let (out, negotiated) =
            negotiate(&kernel(31, offered), &options, (true, String::new()), 256);
        assert_eq!(out.minor, 31);
        assert_eq!(negotiated.capabilities, Capabilities::ASYNC_READ);
        assert_eq!(negotiated.transport, Transport::Device);
        assert_eq!((out.max_pages, out.max_write), (0, 131_072));
        assert_eq!(out.flags2, 0);
        assert!(negotiated.transport_reason.contains("did not offer"));
    }

    /// Goal: sizes are cut to the sysctl, minors to ours, and the ring is used where both sides
    /// have it.
    #[test]
    fn new_kernels_are_cut_to_our_limits() {
        let offered = Capabilities::from_bits(u64::MAX);
        let options = SessionOptions { max_write_bytes: 4 << 20, ..SessionOptions::default() };
        let (out, negotiated) =
            negotiate(&kernel(99, offered), &options, (true, String::new()), 256);
        assert_eq!(out.minor, abi::KERNEL_MINOR_VERSION);
        assert_eq!((out.max_pages, out.max_write), (256, 1 << 20));
        assert_eq!(negotiated.transport, Transport::IoUring);
        assert!(!negotiated.capabilities.contains(Capabilities::WRITEBACK_CACHE));
        let (_, without) = negotiate(&kernel(99, offered), &options, (false, String::new()), 256);
        assert!(!without.capabilities.contains(Capabilities::OVER_IO_URING));
    }

    /// Goal: any first message but a whole INIT is refused with an error, not a panic.
    #[test]
    fn only_init_is_accepted_first() {
        let header = InHeader { opcode: opcode::LOOKUP, ..InHeader::default() };
        assert_eq!(
            parse_init(header.as_bytes()),
            Err(DecodeError::Unknown { opcode: opcode::LOOKUP })
        );
        let header = InHeader { opcode: opcode::INIT, ..InHeader::default() };
        assert!(matches!(parse_init(header.as_bytes()), Err(DecodeError::Truncated { .. })));
        assert!(matches!(parse_init(&[0; 7]), Err(DecodeError::Truncated { .. })));
    }
}
