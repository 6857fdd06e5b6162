//! The messages between caller, server and keeper: packets with open descriptors, over a Unix
//! socket of type `SOCK_SEQPACKET`, and the few kinds of values in them.
//!
//! Both ends are the same program of the same user on the same machine; numbers are little-endian.
//! A packet that does not parse is refused, because an upgraded program may talk to an older one. A
//! packet carries 250 descriptors at most (the kernel's limit is 253), so more of them go in
//! several.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

/// Most descriptors of a packet.
pub(super) const DESCRIPTORS_MAX: usize = 250;
/// Most bytes of a packet: 500 layers with paths of 200 bytes.
pub(super) const PACKET_BYTES_MAX: usize = 128 << 10;

/// One end of a socket.
#[derive(Debug)]
pub(super) struct Channel(OwnedFd);

/// The content of one packet.
#[derive(Debug)]
pub(super) struct Packet {
    pub(super) bytes: Vec<u8>,
    pub(super) descriptors: Vec<OwnedFd>,
}

impl Channel {
    /// Takes a connected socket.
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// Two ends.
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC;
        let pair =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self(pair.0), pair.1))
    }

    /// Sends one packet, waiting for room.
    pub(super) fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        if bytes.len() > PACKET_BYTES_MAX || descriptors.len() > DESCRIPTORS_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let slices = [IoSlice::new(bytes)];
        loop {
            match rustix::net::sendmsg(&self.0, &slices, &mut control, SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                result => return Ok(result.map(drop)?),
            }
        }
    }

    /// Returns the next packet, waiting for it; `None` at the end.
    pub(super) fn receive(&self) -> io::Result<Option<Packet>> {
        self.receive_by(RecvFlags::empty())
    }

    /// Returns the next packet; `WouldBlock` if there is none yet.
    pub(super) fn try_receive(&self) -> io::Result<Option<Packet>> {
        self.receive_by(RecvFlags::DONTWAIT)
    }

    fn receive_by(&self, flags: RecvFlags) -> io::Result<Option<Packet>> {
        let mut bytes = vec![0; PACKET_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        let len = loop {
            let mut slices = [IoSliceMut::new(&mut bytes)];
            match rustix::net::recvmsg(&self.0, &mut slices, &mut control, flags) {
                Err(Errno::INTR) => {}
                result => break result?.bytes,
            }
        };
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        if len == 0 {
            return Ok(None);
        }
        bytes.truncate(len);
        bytes.shrink_to_fit();
        Ok(Some(Packet { bytes, descriptors }))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Puts values one behind the other.
#[derive(Debug)]
pub(super) struct Writer(Vec<u8>);

impl Writer {
    /// Begins with the kind of packet or record.
    pub(super) fn new(kind: u8) -> Self {
        Self(vec![kind])
    }

    pub(super) fn number(mut self, number: u64) -> Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    /// Bytes with their length.
    pub(super) fn bytes(self, bytes: &[u8]) -> Self {
        let mut out = self.number(bytes.len() as u64);
        out.0.extend_from_slice(bytes);
        out
    }

    pub(super) fn done(self) -> Vec<u8> {
        self.0
    }
}

/// Takes values in the same order.
#[derive(Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Returns the kind, and what follows.
    pub(super) fn new(bytes: &'a [u8]) -> Option<(u8, Self)> {
        let (&kind, rest) = bytes.split_first()?;
        Some((kind, Self(rest)))
    }

    pub(super) fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*number))
    }

    pub(super) fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    /// Returns whether everything was taken.
    pub(super) fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Goal: what is written is read back, and no cut or garbage panics.
        #[test]
        fn values_come_back(kind: u8, number: u64, bytes: Vec<u8>, cut in 0_usize..200) {
            let packet = Writer::new(kind).number(number).bytes(&bytes).done();
            let (read, mut reader) = Reader::new(&packet).expect("a kind");
            prop_assert_eq!(read, kind);
            prop_assert_eq!(reader.number(), Some(number));
            prop_assert_eq!(reader.bytes(), Some(&bytes[..]));
            prop_assert!(reader.is_at_end());
            let cut = cut.min(packet.len() - 1);
            if let Some((_, mut reader)) = Reader::new(&packet[..cut]) {
                let whole = reader.number().and_then(|_| reader.bytes());
                prop_assert_eq!(whole, None);
            }
        }
    }

    /// Goal: descriptors arrive with their packet, usable, and the end is distinguished from a
    /// packet.
    #[test]
    fn descriptors_are_passed() {
        let (one, other) = Channel::pair().expect("a pair");
        let other = Channel::new(other);
        let file = tempfile::tempfile().expect("a file");
        one.send(b"x", &[file.as_fd(); 2]).expect("to send");
        drop(one);
        let packet = other.receive().expect("to receive").expect("a packet");
        assert_eq!(packet.bytes, b"x");
        let stat = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).expect("fstat").st_ino;
        assert_eq!(packet.descriptors.len(), 2);
        assert_eq!(stat(packet.descriptors[1].as_fd()), stat(file.as_fd()));
        assert!(other.receive().expect("the end").is_none());
    }
}
