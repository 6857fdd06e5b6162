//! The extensions behind the arguments of a creation: security contexts and supplementary groups.
//!
//! They are the last `total_extlen` × 8 bytes of the message. Each has a header with its size and
//! kind and is padded to eight bytes.

use zerocopy::FromBytes;

use super::{Extensions, SecurityContext};
use crate::abi::{EXT_GROUPS, ExtHeader, MAX_NR_SECCTX, Secctx};
use crate::error::DecodeError;

/// Decodes the extensions; unknown kinds are skipped.
pub(super) fn decode(opcode: u32, mut bytes: &[u8]) -> Result<Extensions, DecodeError> {
    let mut extensions = Extensions::default();
    while !bytes.is_empty() {
        let truncated = |needed_bytes, available_bytes| DecodeError::Truncated {
            opcode,
            argument: "extension",
            needed_bytes,
            available_bytes,
        };
        let (header, _) = ExtHeader::read_from_prefix(bytes)
            .map_err(|_| truncated(size_of::<ExtHeader>(), bytes.len()))?;
        let size = header.size as usize;
        if size < size_of::<ExtHeader>() || size > bytes.len() {
            return Err(truncated(size.max(size_of::<ExtHeader>()), bytes.len()));
        }
        let body = &bytes[size_of::<ExtHeader>()..size];
        match header.kind {
            0..=MAX_NR_SECCTX => {
                security_contexts(opcode, header.kind, body, &mut extensions.security_contexts)?;
            }
            EXT_GROUPS => groups(opcode, body, &mut extensions.groups)?,
            _ => {}
        }
        bytes = bytes.get(size.next_multiple_of(8)..).unwrap_or_default();
    }
    Ok(extensions)
}

/// Decodes `count` contexts: a size, a NUL-terminated attribute name, the value, padding.
fn security_contexts(
    opcode: u32,
    count: u32,
    mut bytes: &[u8],
    contexts: &mut Vec<SecurityContext>,
) -> Result<(), DecodeError> {
    for _ in 0..count {
        let truncated = |needed_bytes| DecodeError::Truncated {
            opcode,
            argument: "security context",
            needed_bytes,
            available_bytes: bytes.len(),
        };
        let (context, rest) =
            Secctx::read_from_prefix(bytes).map_err(|_| truncated(size_of::<Secctx>()))?;
        let name_len = rest
            .iter()
            .position(|&byte| byte == 0)
            .ok_or(DecodeError::Name { opcode, argument: "security context" })?;
        let value_start = name_len + 1;
        let value_end = value_start + context.size as usize;
        let value = rest.get(value_start..value_end).ok_or(truncated(value_end))?;
        contexts.push(SecurityContext { name: rest[..name_len].into(), value: value.into() });
        let taken = (size_of::<Secctx>() + value_end).next_multiple_of(8);
        bytes = bytes.get(taken..).unwrap_or_default();
    }
    Ok(())
}

/// Decodes a count and that number of group ids (`fuse_supp_groups`).
fn groups(opcode: u32, bytes: &[u8], groups: &mut Vec<u32>) -> Result<(), DecodeError> {
    let truncated = |needed_bytes| DecodeError::Truncated {
        opcode,
        argument: "groups",
        needed_bytes,
        available_bytes: bytes.len(),
    };
    let (count, rest) = u32::read_from_prefix(bytes).map_err(|_| truncated(size_of::<u32>()))?;
    let needed_bytes = (count as usize).saturating_mul(size_of::<u32>());
    let list = rest.get(..needed_bytes).ok_or(truncated(needed_bytes))?;
    let (words, _) = list.as_chunks::<4>();
    groups.extend(words.iter().map(|word| zerocopy::transmute!(*word)).map(|group: u32| group));
    Ok(())
}
