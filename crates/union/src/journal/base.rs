//! Everything of a copy-up but its data: the body of the records that create it or repeat it.

use super::codec::{Reader, Writer};
use super::error::JournalError;
use super::record::{decode_attributes, decode_name, encode_attributes, encode_name};
use super::types::{
    Attributes, Creation, FILE_BYTES_MAX, KEY_BYTES_MAX, Kind, LowerIdentity, NAME_BYTES_MAX,
    NAMES_MAX, Name, PATH_BYTES_MAX, Stage, XATTR_BYTES_MAX, XATTRS_BYTES_MAX, Xattr, within,
};

/// The state of a copy-up without its map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Base {
    pub(super) lower: Option<LowerIdentity>,
    /// Bytes from here on are never the lower's.
    pub(super) lower_limit: u64,
    pub(super) kind: Kind,
    pub(super) stage: Stage,
    pub(super) is_data_durable: bool,
    pub(super) is_suspect: bool,
    pub(super) size_bytes: u64,
    pub(super) attributes: Attributes,
    pub(super) xattrs: Vec<Xattr>,
    pub(super) names: Vec<Name>,
}

impl Base {
    /// Returns the initial state of a copy-up.
    pub(super) fn new(creation: Creation) -> Result<Self, JournalError> {
        let Creation { lower, kind, size_bytes, attributes, xattrs, names } = creation;
        check_size(size_bytes)?;
        if names.len() > NAMES_MAX {
            return Err(too_large("number of names", names.len(), NAMES_MAX));
        }
        for name in &names {
            check_name(name)?;
        }
        let mut xattr_bytes = 0;
        for xattr in &xattrs {
            check_xattr(xattr)?;
            xattr_bytes += xattr.name.len() + xattr.value.len();
        }
        check_xattrs_bytes(xattr_bytes)?;
        if let Some(lower) = &lower {
            check_at_most("lower path", lower.path.len(), PATH_BYTES_MAX)?;
            check_at_most("lower handle", lower.handle.len(), KEY_BYTES_MAX)?;
            check_at_most("lower digest", lower.digest.len(), KEY_BYTES_MAX)?;
        }
        if let Kind::Pending(work) = &kind {
            within("work name", work.len(), NAME_BYTES_MAX)?;
        }
        let lower_limit = lower.as_ref().map_or(0, |lower| lower.size_bytes.min(size_bytes));
        Ok(Self {
            lower,
            lower_limit,
            kind,
            stage: Stage::Open,
            is_data_durable: false,
            is_suspect: false,
            size_bytes,
            attributes,
            xattrs,
            names,
        })
    }

    pub(super) fn encode(&self, writer: &mut Writer) {
        writer.u64(self.size_bytes);
        writer.u64(self.lower_limit);
        let flags = u8::from(self.is_data_durable)
            | u8::from(self.is_suspect) << 1
            | u8::from(self.lower.is_some()) << 2
            | u8::from(matches!(self.kind, Kind::Pending(_))) << 3
            | u8::from(matches!(self.stage, Stage::Publishing(_))) << 4
            | u8::from(self.lower.as_ref().is_some_and(|lower| !lower.digest.is_empty())) << 5;
        writer.u8(flags);
        encode_attributes(writer, &self.attributes);
        if let Kind::Pending(work) = &self.kind {
            writer.blob(work);
        }
        if let Stage::Publishing(work) = &self.stage {
            writer.blob(work);
        }
        if let Some(lower) = &self.lower {
            encode_lower(writer, lower);
        }
        writer.u32(self.names.len() as u32);
        for name in &self.names {
            encode_name(writer, name);
        }
        writer.u32(self.xattrs.len() as u32);
        for xattr in &self.xattrs {
            writer.blob(&xattr.name);
            writer.blob(&xattr.value);
        }
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        let size_bytes = reader.u64().filter(|&size| size <= FILE_BYTES_MAX)?;
        let lower_limit = reader.u64().filter(|&limit| limit <= size_bytes)?;
        let flags = reader.u8()?;
        let attributes = decode_attributes(reader)?;
        let kind = match flags & 8 {
            0 => Kind::Partial,
            _ => Kind::Pending(reader.blob(NAME_BYTES_MAX)?.into()),
        };
        let stage = match flags & 16 {
            0 => Stage::Open,
            _ => Stage::Publishing(reader.blob(NAME_BYTES_MAX)?.into()),
        };
        let mut lower = None;
        if flags & 4 != 0 {
            let mut known = decode_lower(reader)?;
            // Older versions have none.
            if flags & 32 != 0 {
                known.digest = reader.blob(KEY_BYTES_MAX)?.into();
            }
            lower = Some(known);
        }
        let count = reader.u32()? as usize;
        if count > NAMES_MAX {
            return None;
        }
        let names = (0..count).map(|_| decode_name(reader)).collect::<Option<_>>()?;
        let count = reader.u32()? as usize;
        if count > XATTRS_BYTES_MAX {
            return None;
        }
        let xattr = |reader: &mut Reader<'_>| {
            let name = reader.blob(NAME_BYTES_MAX)?.into();
            Some(Xattr { name, value: reader.blob(XATTR_BYTES_MAX)?.into() })
        };
        let xattrs = (0..count).map(|_| xattr(reader)).collect::<Option<_>>()?;
        let (is_data_durable, is_suspect) = (flags & 1 != 0, flags & 2 != 0);
        Some(Self {
            lower,
            lower_limit,
            kind,
            stage,
            is_data_durable,
            is_suspect,
            size_bytes,
            attributes,
            xattrs,
            names,
        })
    }
}

fn encode_lower(writer: &mut Writer, lower: &LowerIdentity) {
    writer.u32(lower.layer);
    writer.blob(&lower.path);
    writer.blob(&lower.handle);
    writer.u64(lower.inode);
    writer.u64(lower.size_bytes);
    writer.time(lower.mtime);
    writer.time(lower.ctime);
    if !lower.digest.is_empty() {
        writer.blob(&lower.digest);
    }
}

fn decode_lower(reader: &mut Reader<'_>) -> Option<LowerIdentity> {
    Some(LowerIdentity {
        layer: reader.u32()?,
        path: reader.blob(PATH_BYTES_MAX)?.into(),
        handle: reader.blob(KEY_BYTES_MAX)?.into(),
        inode: reader.u64()?,
        size_bytes: reader.u64()?,
        mtime: reader.time()?,
        ctime: reader.time()?,
        digest: Box::default(),
    })
}

/// Refuses what could not be read back.
pub(super) fn check_name(name: &Name) -> Result<(), JournalError> {
    within("name", name.name.len(), NAME_BYTES_MAX)?;
    check_at_most("covered handle", name.covers.len(), KEY_BYTES_MAX)
}

/// Refuses what could not be read back.
pub(super) fn check_xattr(xattr: &Xattr) -> Result<(), JournalError> {
    within("xattr name", xattr.name.len(), NAME_BYTES_MAX)?;
    check_at_most("xattr value", xattr.value.len(), XATTR_BYTES_MAX)
}

/// Bounds the xattrs of a file.
pub(super) fn check_xattrs_bytes(bytes: usize) -> Result<(), JournalError> {
    check_at_most("xattrs", bytes, XATTRS_BYTES_MAX)
}

/// Bounds sizes and offsets.
pub(super) fn check_size(bytes: u64) -> Result<(), JournalError> {
    if bytes > FILE_BYTES_MAX {
        return Err(JournalError::TooLarge { what: "size", found: bytes, limit: FILE_BYTES_MAX });
    }
    Ok(())
}

fn check_at_most(what: &'static str, found: usize, limit: usize) -> Result<(), JournalError> {
    if found > limit { Err(too_large(what, found, limit)) } else { Ok(()) }
}

pub(super) fn too_large(what: &'static str, found: usize, limit: usize) -> JournalError {
    JournalError::TooLarge { what, found: found as u64, limit: limit as u64 }
}
