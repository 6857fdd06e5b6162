//! Arguments that the kernel gets by address: kept in the operation's slot.

use crate::chunk::{Chunk, Segment};
use std::mem::{size_of, zeroed};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Most pieces of memory in one system call (`UIO_MAXIOV`).
const VECTORS_MAX: usize = 1024;

/// Memory that an entry points to, beside the operation's own buffers.
pub(crate) struct Arguments {
    pub(crate) vectors: Vec<libc::iovec>,
    pub(crate) message: libc::msghdr,
    pub(crate) address: libc::sockaddr_storage,
    pub(crate) address_len: libc::socklen_t,
}

impl Default for Arguments {
    fn default() -> Self {
        // SAFETY: both structs are plain C data for which zeros are valid.
        let (message, address) = unsafe { (zeroed(), zeroed()) };
        Self { vectors: Vec::new(), message, address, address_len: 0 }
    }
}

impl Arguments {
    /// Sets the vectors to the memory of segments.
    pub(crate) fn set_segments(&mut self, segments: &[Segment]) {
        self.vectors.clear();
        self.vectors.extend(segments.iter().take(VECTORS_MAX).map(Segment::as_iovec));
    }

    /// Sets the vectors to the memory of chunks without their first `skip` bytes.
    pub(crate) fn set_chunks(&mut self, chunks: &[Chunk], mut skip: usize) {
        self.vectors.clear();
        for chunk in chunks {
            let here = skip.min(chunk.len());
            skip -= here;
            if here == chunk.len() {
                continue;
            }
            if self.vectors.len() == VECTORS_MAX {
                return;
            }
            let iov_base = chunk.as_ptr().wrapping_add(here).cast_mut().cast();
            self.vectors.push(libc::iovec { iov_base, iov_len: chunk.len() - here });
        }
    }

    /// Points the message header at the vectors.
    pub(crate) fn set_message(&mut self) {
        self.message.msg_iov = self.vectors.as_mut_ptr();
        self.message.msg_iovlen = self.vectors.len() as _;
    }

    /// Encodes an address.
    pub(crate) fn set_address(&mut self, address: SocketAddr) {
        let storage = &raw mut self.address;
        match address {
            SocketAddr::V4(v4) => {
                let raw = libc::sockaddr_in {
                    sin_family: libc::AF_INET as u16,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                    sin_zero: [0; 8],
                };
                self.address_len = size_of::<libc::sockaddr_in>() as u32;
                // SAFETY: a `sockaddr_storage` has room and alignment for every address.
                unsafe { storage.cast::<libc::sockaddr_in>().write(raw) };
            }
            SocketAddr::V6(v6) => {
                let raw = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as u16,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo().to_be(),
                    sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    sin6_scope_id: v6.scope_id(),
                };
                self.address_len = size_of::<libc::sockaddr_in6>() as u32;
                // SAFETY: as above.
                unsafe { storage.cast::<libc::sockaddr_in6>().write(raw) };
            }
        }
    }

    /// Decodes the address that the kernel has written; the unspecified one for unknown families.
    pub(crate) fn decoded_address(&self) -> SocketAddr {
        let storage = &raw const self.address;
        if i32::from(self.address.ss_family) == libc::AF_INET6 {
            // SAFETY: the family says what the kernel wrote.
            let raw = unsafe { storage.cast::<libc::sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
            let port = u16::from_be(raw.sin6_port);
            let flow = u32::from_be(raw.sin6_flowinfo);
            return SocketAddrV6::new(ip, port, flow, raw.sin6_scope_id).into();
        }
        if i32::from(self.address.ss_family) == libc::AF_INET {
            // SAFETY: as above.
            let raw = unsafe { storage.cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(u32::from_be(raw.sin_addr.s_addr));
            return SocketAddrV4::new(ip, u16::from_be(raw.sin_port)).into();
        }
        SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0).into()
    }
}
