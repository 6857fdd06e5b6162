//! The discovery log page: the subsystems that a host may use, and their addresses.
//!
//! The page contains only addresses at which the asking host can reach the target. For a listener
//! at a wildcard address (`0.0.0.0`, `[::]`), it contains the local address of the host's own
//! connection, as with the Linux kernel's target. A listener at a loopback address is listed only
//! for hosts of this machine, because any other host would connect to itself.

use super::{Target, Transport};
use crate::controller::Association;
use nvme::log_page::{DiscoveryEntry, DiscoveryHeader, subsystem_type, transport_requirements};
use nvme::{U16, U64};
use std::net::SocketAddr;

impl Target {
    /// Returns the discovery log page for the host of a discovery controller, and its generation.
    pub(crate) fn discovery_page(&self, asking: &Association) -> (Vec<u8>, u64) {
        let generation = self.discovery_generation();
        let registry = self.registry();
        let is_admitted = self.admissions.check(asking.host()).is_ok();
        let visible = registry
            .subsystems
            .values()
            .filter(|subsystem| is_admitted && subsystem.allows(asking.host_name()));
        let ports = ports(&registry.listeners, asking.local_address());
        let discovery = std::iter::once((&self.discovery, subsystem_type::CURRENT_DISCOVERY));
        let mut entries = Vec::new();
        for (subsystem, kind) in visible.map(|it| (it, subsystem_type::NVM)).chain(discovery) {
            for &(port, address, transport) in &ports {
                let mut entry = match transport {
                    Transport::Tcp => DiscoveryEntry::tcp(subsystem.nqn(), kind, address, port),
                    Transport::Rdma => DiscoveryEntry::rdma(subsystem.nqn(), kind, address, port),
                };
                entry.treq |= transport_requirements::SQ_FLOW_CONTROL_DISABLE;
                if self.requires_tls() && transport == Transport::Tcp {
                    entry.require_tls();
                }
                entry.asqsz = U16::new(self.limits.admin_queue_entries_max);
                if kind == subsystem_type::CURRENT_DISCOVERY {
                    entry.eflags = U16::new(
                        DiscoveryEntry::EFLAGS_DUPLICATE | DiscoveryEntry::EFLAGS_PERSISTENT,
                    );
                }
                entries.push(entry);
            }
        }
        let header = DiscoveryHeader {
            genctr: U64::new(generation),
            numrec: U64::new(entries.len() as u64),
            ..DiscoveryHeader::default()
        };
        let mut page = header.bytes().to_vec();
        page.extend(entries.iter().flat_map(DiscoveryEntry::bytes));
        (page, generation)
    }
}

/// Returns the port identifiers and addresses for a host that reached the target at `local`, each
/// address once.
fn ports(
    listeners: &[(SocketAddr, Transport)],
    local: SocketAddr,
) -> Vec<(u16, SocketAddr, Transport)> {
    let mut ports: Vec<(u16, SocketAddr, Transport)> = Vec::new();
    for (index, &(listener, transport)) in listeners.iter().enumerate() {
        if let Some(address) = address_for(listener, local)
            && ports.iter().all(|&(_, known, by)| (known, by) != (address, transport))
        {
            ports.push((index as u16 + 1, address, transport));
        }
    }
    ports
}

/// Returns the address of this listener for a host that reached the target at `local`, or `None` if
/// the host cannot reach it.
fn address_for(listener: SocketAddr, local: SocketAddr) -> Option<SocketAddr> {
    let own = local.ip().to_canonical();
    let ip = listener.ip().to_canonical();
    if !ip.is_unspecified() {
        let is_reachable = !ip.is_loopback() || own.is_loopback();
        return is_reachable.then(|| SocketAddr::new(ip, listener.port()));
    }
    // A listener at [::] accepts IPv4 connections too, one at 0.0.0.0 accepts only those.
    let is_reachable = listener.is_ipv6() || own.is_ipv4();
    is_reachable.then(|| SocketAddr::new(own, listener.port()))
}

#[cfg(test)]
mod tests {
    use super::{Transport, ports};
    use std::net::SocketAddr;

    /// Goal: each host gets the addresses at which it reaches the target, and no others.
    #[test]
    fn hosts_get_addresses_that_they_reach() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let named = |listeners: &[&str], local: &str| -> Vec<String> {
            let listeners: Vec<_> =
                listeners.iter().map(|it| (address(it), Transport::Tcp)).collect();
            let ports = ports(&listeners, address(local));
            ports.iter().map(|(port, address, _)| format!("{port} {address}")).collect()
        };
        assert_eq!(named(&["0.0.0.0:4420"], "10.0.0.7:4420"), ["1 10.0.0.7:4420"]);
        assert_eq!(named(&["[::]:4420"], "[fd00::7]:4420"), ["1 [fd00::7]:4420"]);
        assert_eq!(named(&["[::]:4420"], "[::ffff:10.0.0.7]:4420"), ["1 10.0.0.7:4420"]);
        let both = ["0.0.0.0:4420", "[::]:4421"];
        assert_eq!(named(&both, "[fd00::7]:4421"), ["2 [fd00::7]:4421"]);
        assert_eq!(named(&both, "10.0.0.7:4420"), ["1 10.0.0.7:4420", "2 10.0.0.7:4421"]);
        let mixed = ["127.0.0.1:4420", "10.0.0.7:4420", "0.0.0.0:4420"];
        assert_eq!(named(&mixed, "10.0.0.7:4420"), ["2 10.0.0.7:4420"]);
        assert_eq!(
            named(&mixed, "127.0.0.1:4420"),
            ["1 127.0.0.1:4420", "2 10.0.0.7:4420"],
            "an address is named once"
        );
    }
}
