//! A cursor over the arguments of one message. Each step checks the bytes that it takes.

use zerocopy::FromBytes;

use crate::error::DecodeError;
use crate::request::{Creation, Extensions, extensions};
use crate::types::Name;

/// The arguments that are not taken yet.
pub(super) struct Arguments<'a> {
    pub(super) opcode: u32,
    pub(super) rest: &'a [u8],
    pub(super) extensions: &'a [u8],
}

impl<'a> Arguments<'a> {
    pub(super) fn truncated(&self, argument: &'static str, needed_bytes: usize) -> DecodeError {
        let available_bytes = self.rest.len();
        DecodeError::Truncated { opcode: self.opcode, argument, needed_bytes, available_bytes }
    }

    pub(super) fn take<T: FromBytes>(&mut self) -> Result<T, DecodeError> {
        let (value, rest) = T::read_from_prefix(self.rest)
            .map_err(|_| self.truncated("fixed argument", size_of::<T>()))?;
        self.rest = rest;
        Ok(value)
    }

    pub(super) fn bytes(
        &mut self,
        argument: &'static str,
        len: usize,
    ) -> Result<&'a [u8], DecodeError> {
        let (bytes, rest) =
            self.rest.split_at_checked(len).ok_or_else(|| self.truncated(argument, len))?;
        self.rest = rest;
        Ok(bytes)
    }

    pub(super) fn string(&mut self, argument: &'static str) -> Result<&'a [u8], DecodeError> {
        let error = DecodeError::Name { opcode: self.opcode, argument };
        let end = self.rest.iter().position(|&byte| byte == 0).ok_or(error)?;
        let string = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Ok(string)
    }

    pub(super) fn name(&mut self, argument: &'static str) -> Result<Name, DecodeError> {
        let opcode = self.opcode;
        let string = self.string(argument)?;
        Name::new(string).ok_or(DecodeError::Name { opcode, argument })
    }

    pub(super) fn extensions(&mut self) -> Result<Extensions, DecodeError> {
        if self.extensions.is_empty() {
            return Ok(Extensions::default());
        }
        extensions::decode(self.opcode, self.extensions)
    }

    pub(super) fn creation(&mut self, mode: u32, umask: u32) -> Result<Creation, DecodeError> {
        Ok(Creation { mode, umask, extensions: self.extensions()? })
    }
}
