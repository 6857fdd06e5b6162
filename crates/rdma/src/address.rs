//! Socket addresses in C's form.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Returns an address in the form for `bind`.
pub(crate) fn to_storage(address: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: it consists of integers.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let place = &raw mut storage;
    match address {
        SocketAddr::V4(v4) => {
            let inner = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage has space and alignment for every kind of address.
            unsafe { place.cast::<libc::sockaddr_in>().write(inner) };
        }
        SocketAddr::V6(v6) => {
            let inner = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { place.cast::<libc::sockaddr_in6>().write(inner) };
        }
    }
    storage
}

/// Converts an IP address from C; [`None`] for another family.
///
/// # Safety
/// The address must be readable with the size of its family.
pub(crate) unsafe fn from_pointer(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: guaranteed by the caller; the family says which structure it is.
    unsafe {
        match libc::c_int::from((*address).sa_family) {
            libc::AF_INET => {
                let inner = address.cast::<libc::sockaddr_in>().read_unaligned();
                Some(Ipv4Addr::from(u32::from_be(inner.sin_addr.s_addr)).into())
            }
            libc::AF_INET6 => {
                let inner = address.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(Ipv6Addr::from(inner.sin6_addr.s6_addr).into())
            }
            _ => None,
        }
    }
}

/// Converts an address from C; an unknown family gives the unspecified address.
pub(crate) fn from_storage(storage: &libc::sockaddr_storage) -> SocketAddr {
    let place = std::ptr::from_ref(storage);
    match libc::c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family identifies the structure.
            let inner = unsafe { place.cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(u32::from_be(inner.sin_addr.s_addr));
            SocketAddr::from((ip, u16::from_be(inner.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let inner = unsafe { place.cast::<libc::sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(inner.sin6_addr.s6_addr);
            let port = u16::from_be(inner.sin6_port);
            SocketAddr::V6(SocketAddrV6::new(ip, port, inner.sin6_flowinfo, inner.sin6_scope_id))
        }
        _ => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: converted addresses convert back to the same values.
    #[test]
    fn addresses_come_back() {
        for text in ["10.1.2.3:4420", "[fd00::7]:4420", "0.0.0.0:0", "[fe80::1%3]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            let storage = to_storage(address);
            assert_eq!(from_storage(&storage), address);
            // SAFETY: the storage is as large as any address.
            let ip = unsafe { from_pointer((&raw const storage).cast()) };
            assert_eq!(ip, Some(address.ip()));
        }
    }
}
