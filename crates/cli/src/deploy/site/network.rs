//! A subnet, and this machine's address in it.

use serde::Deserialize;
use std::net::{IpAddr, UdpSocket};
use std::str::FromStr;

/// A subnet: an address and the number of bits that its members share, `10.1.0.0/16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Subnet {
    address: IpAddr,
    bits: u32,
}

/// Returns an address as a number of 128 bits; the bits of IPv4 come first.
fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    }
}

impl Subnet {
    /// Returns whether the address is in the subnet.
    pub(crate) fn contains(self, address: IpAddr) -> bool {
        let differing = number(self.address) ^ number(address);
        self.address.is_ipv4() == address.is_ipv4() && differing.leading_zeros() >= self.bits
    }

    /// Returns this machine's address in the subnet: the source address of packets to its members.
    /// Sends nothing.
    pub(crate) fn own_address(self) -> Option<IpAddr> {
        let any: IpAddr = match self.address {
            IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect((self.address, 9)).ok()?;
        Some(socket.local_addr().ok()?.ip()).filter(|own| self.contains(*own))
    }
}

impl FromStr for Subnet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a subnet, such as 10.1.0.0/16");
        let (address, bits) = text.split_once('/').ok_or_else(wrong)?;
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let bits = bits.parse().map_err(|_| wrong())?;
        if bits > if address.is_ipv4() { 32 } else { 128 } {
            return Err(wrong());
        }
        Ok(Self { address, bits })
    }
}

impl TryFrom<String> for Subnet {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl std::fmt::Display for Subnet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_share_the_first_bits() {
        let subnet: Subnet = "10.1.0.0/16".parse().unwrap();
        assert!(subnet.contains("10.1.255.3".parse().unwrap()));
        assert!(!subnet.contains("10.2.0.1".parse().unwrap()));
        assert!(!subnet.contains("::a01:1".parse().unwrap()));
        let wide: Subnet = "fd00::/8".parse().unwrap();
        assert!(
            wide.contains("fd12::1".parse().unwrap()) && !wide.contains("fe80::1".parse().unwrap())
        );
        assert_eq!(
            "127.0.0.0/8".parse::<Subnet>().unwrap().own_address(),
            "127.0.0.1".parse().ok()
        );
        for bad in ["10.0.0.0", "10.0.0.0/33", "x/8", "10.0.0.0/-1"] {
            assert!(bad.parse::<Subnet>().is_err(), "{bad}");
        }
    }
}
