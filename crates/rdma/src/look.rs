//! Whether this process can use RDMA at an address of its machine, tried by what connections need.

use crate::Error;
use crate::abi::{ACCESS_LOCAL_WRITE, PS_TCP, RdmaCmId, RdmaEventChannel};
use crate::address::{from_pointer, to_storage};
use crate::device::{Device, Use};
use crate::library::Library;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ptr;
use std::sync::Arc;

/// Memory that a connection to a node needs at least, in bytes.
const MEMORY_BYTES: usize = 2 << 20;

/// An identifier with a channel of its own.
struct Trial<'a> {
    library: &'a Library,
    channel: *mut RdmaEventChannel,
    id: *mut RdmaCmId,
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        // SAFETY: both are this trial's own, and have no event left.
        unsafe {
            if !self.id.is_null() {
                (self.library.destroy_id)(self.id);
            }
            (self.library.destroy_event_channel)(self.channel);
        }
    }
}

/// Returns the name of the device that serves an address of this machine, if connections from and to
/// the address can use it: it opens, has memory windows, and may lock memory. Sends nothing.
///
/// # Errors
/// [`Error::ConnectionManager`], [`Error::Listen`], [`Error::NoWindows`], [`Error::Resource`],
/// [`Error::Memory`].
pub fn device_at(library: &Arc<Library>, address: IpAddr) -> Result<String, Error> {
    let last = || io::Error::last_os_error();
    // SAFETY: the function has no preconditions.
    let channel = unsafe { (library.create_event_channel)() };
    if channel.is_null() {
        return Err(Error::ConnectionManager(last()));
    }
    let mut trial = Trial { library, channel, id: ptr::null_mut() };
    // SAFETY: the channel is open.
    let made = unsafe { (library.create_id)(channel, &raw mut trial.id, ptr::null_mut(), PS_TCP) };
    if made != 0 {
        trial.id = ptr::null_mut();
        return Err(Error::ConnectionManager(last()));
    }
    let address = SocketAddr::new(address, 0);
    let mut storage = to_storage(address);
    let place = (&raw mut storage).cast::<libc::sockaddr>();
    // SAFETY: the identifier is alive, and the address has its family's size.
    if unsafe { (library.bind_addr)(trial.id, place) } != 0 {
        return Err(Error::Listen { address, source: last() });
    }
    // SAFETY: the identifier is alive.
    let context = unsafe { (*trial.id).verbs };
    if context.is_null() {
        let source = io::Error::from_raw_os_error(libc::ENODEV);
        return Err(Error::Listen { address, source });
    }
    // SAFETY: librdmacm has opened it for the identifier, which lives.
    let device = unsafe { Device::open(library, context, Use::Lent) }?;
    lock_memory(library, &device)?;
    Ok(device.name().to_owned())
}

/// Returns the first address of this machine at which [`device_at`] finds a device, and the device's
/// name; loopback and link-local addresses are not tried.
///
/// # Errors
/// [`Error::NoDevice`] if no address belongs to a device, else what the device lacks.
pub fn device_here(library: &Arc<Library>) -> Result<(IpAddr, String), Error> {
    let mut lack = Error::NoDevice;
    for address in own_addresses().map_err(Error::ConnectionManager)? {
        match device_at(library, address) {
            Ok(device) => return Ok((address, device)),
            // Of no device.
            Err(Error::Listen { .. }) => {}
            Err(error) => lack = error,
        }
    }
    Err(lack)
}

/// Returns the addresses of this machine at which others could reach it.
fn own_addresses() -> io::Result<Vec<IpAddr>> {
    let mut list: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: the place for the list is ours.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut addresses = Vec::new();
    let mut next = list;
    // SAFETY: the list ends with null, and lives until it is freed.
    while let Some(one) = unsafe { next.as_ref() } {
        next = one.ifa_next;
        if one.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: an address of these families has its family's size.
        let address = unsafe { from_pointer(one.ifa_addr) };
        addresses.extend(address.filter(|address| is_reachable(*address)));
    }
    // SAFETY: the list is not used afterwards.
    unsafe { libc::freeifaddrs(list) };
    Ok(addresses)
}

fn is_reachable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_loopback() && !address.is_link_local(),
        IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
    }
}

/// Registers as much memory as a connection needs, and gives it back.
fn lock_memory(library: &Library, device: &Device) -> Result<(), Error> {
    let mut memory = vec![0_u8; MEMORY_BYTES];
    let place = memory.as_mut_ptr().cast();
    // SAFETY: the memory outlives its registration, and nothing accesses it.
    let region =
        unsafe { (library.reg_mr)(device.domain, place, MEMORY_BYTES, ACCESS_LOCAL_WRITE) };
    if region.is_null() {
        let source = io::Error::last_os_error();
        return Err(Error::Memory { device: device.name().to_owned(), source });
    }
    // SAFETY: the region was just made.
    unsafe { (library.dereg_mr)(region) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Fake, lists_held, regions, regions_max, serves, windows};
    use std::net::Ipv4Addr;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 7));

    /// Goal: an address of a device gives its name, and nothing of the trial is left. Each thing that
    /// a connection would lack is a reason of its own, with a fix.
    #[test]
    fn what_is_missing_is_named() {
        let fake = Fake::new();
        let at = || device_at(&fake.library, HERE);
        serves(true);
        assert_eq!(at().unwrap(), "fake");
        assert_eq!((lists_held(), regions()), (0, 0), "something of the trial is left");
        let said = |result: Result<String, Error>| result.unwrap_err().to_string();
        windows(false);
        assert!(said(at()).contains("no memory windows"));
        windows(true);
        regions_max(0);
        let locked = said(at());
        assert!(locked.contains("ulimit -l") && locked.contains("fake"), "{locked}");
        regions_max(usize::MAX);
        serves(false);
        let elsewhere = said(at());
        assert!(
            elsewhere.contains("10.0.0.7") && elsewhere.contains("rdma link add"),
            "{elsewhere}"
        );
        assert_eq!(lists_held(), 0);
    }

    /// Goal: of the machine's addresses, one with a device is found; one without is no error, but what
    /// a device lacks is. Loopback is not tried.
    #[test]
    fn an_address_with_a_device_is_found() {
        let fake = Fake::new();
        let addresses = own_addresses().unwrap();
        assert!(addresses.iter().all(|address| !address.is_loopback()), "{addresses:?}");
        serves(false);
        let none = device_here(&fake.library).unwrap_err();
        assert!(matches!(none, Error::NoDevice), "{none}");
        serves(true);
        let Some(first) = addresses.first() else { return };
        assert_eq!(device_here(&fake.library).unwrap(), (*first, "fake".to_owned()));
        windows(false);
        let lack = device_here(&fake.library).unwrap_err();
        assert!(matches!(lack, Error::NoWindows { .. }), "{lack}");
    }
}
