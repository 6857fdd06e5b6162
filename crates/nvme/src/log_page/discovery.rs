//! The discovery log page (base 5.1.12.3.1): subsystems and their addresses.

use crate::{ControllerId, Error, NQN_FIELD_BYTES, Nqn, U16, U64};

/// Size of the header, which the entries follow.
pub const DISCOVERY_HEADER_BYTES: usize = 1024;

/// TRTYPE values (base figure 295).
pub mod transport_type {
    /// RDMA.
    pub const RDMA: u8 = 1;
    /// Fibre Channel.
    pub const FC: u8 = 2;
    /// TCP.
    pub const TCP: u8 = 3;
    /// Loop inside one host.
    pub const LOOP: u8 = 254;
}

/// ADRFAM values (base figure 295).
pub mod address_family {
    /// IPv4.
    pub const IPV4: u8 = 1;
    /// IPv6.
    pub const IPV6: u8 = 2;
    /// InfiniBand.
    pub const IB: u8 = 3;
    /// Fibre Channel.
    pub const FC: u8 = 4;
}

/// SUBTYPE values (base figure 295).
pub mod subsystem_type {
    /// A referral to another discovery subsystem.
    pub const REFERRAL: u8 = 1;
    /// A subsystem with namespaces.
    pub const NVM: u8 = 2;
    /// The discovery subsystem that returned the page.
    pub const CURRENT_DISCOVERY: u8 = 3;
}

/// SECTYPE values, the first byte of TSAS for TCP (TCP figure 5).
pub mod security_type {
    /// No security.
    pub const NONE: u8 = 0;
    /// TLS 1.2 and older, obsolete.
    pub const TLS: u8 = 1;
    /// TLS 1.3.
    pub const TLS13: u8 = 2;
}

/// TREQ bits (base figure 295).
pub mod transport_requirements {
    /// TSC 00b: no statement about secure channels.
    pub const SECURE_CHANNEL_NOT_SPECIFIED: u8 = 0;
    /// TSC 01b: a secure channel is required.
    pub const SECURE_CHANNEL_REQUIRED: u8 = 1;
    /// TSC 10b: a secure channel is not required.
    pub const SECURE_CHANNEL_NOT_REQUIRED: u8 = 2;
    /// The controller can disable SQ flow control.
    pub const SQ_FLOW_CONTROL_DISABLE: u8 = 1 << 2;
    /// The bits of TSC.
    pub const SECURE_CHANNEL_MASK: u8 = 0b11;
}

wire_struct! {
    /// Header of the discovery log page (base figure 294).
    pub struct DiscoveryHeader[DISCOVERY_HEADER_BYTES] {
        /// Generation counter: changes with the page; read it before and after the entries.
        pub genctr: U64,
        /// Number of entries.
        pub numrec: U64,
        /// Record format, 0.
        pub recfmt: U16,
        /// Reserved.
        pub rsvd18: [u8; 1006],
    }
}

wire_struct! {
    /// Entry of the discovery log page (base figure 295).
    pub struct DiscoveryEntry[1024] {
        /// Transport type, see [`transport_type`].
        pub trtype: u8,
        /// Address family, see [`address_family`].
        pub adrfam: u8,
        /// Subsystem type, see [`subsystem_type`].
        pub subtype: u8,
        /// Transport requirements, see [`transport_requirements`].
        pub treq: u8,
        /// Port identifier: unique among the subsystem's ports.
        pub portid: U16,
        /// Controller to request in Connect; 0xffff: dynamic model.
        pub cntlid: U16,
        /// Admin max SQ size in entries, at least 32.
        pub asqsz: U16,
        /// Entry flags: bit 0 duplicate information, 1 persistent connections are supported.
        pub eflags: U16,
        /// Reserved.
        pub rsvd12: [u8; 20],
        /// Transport service identifier: the TCP port, ASCII, padded with spaces.
        pub trsvcid: [u8; 32],
        /// Reserved.
        pub rsvd64: [u8; 192],
        /// NQN of the subsystem, NUL-padded.
        pub subnqn: [u8; NQN_FIELD_BYTES],
        /// Transport address, ASCII, padded with spaces.
        pub traddr: [u8; 256],
        /// Transport specific address subtype; for TCP byte 0 is SECTYPE, see [`security_type`].
        pub tsas: [u8; 256],
    }
}

impl DiscoveryEntry {
    /// EFLAGS: other entries contain the same information.
    pub const EFLAGS_DUPLICATE: u16 = 1;
    /// EFLAGS: explicit persistent connections are supported.
    pub const EFLAGS_PERSISTENT: u16 = 1 << 1;

    /// Returns a TCP entry for the dynamic controller model without security; the caller sets other
    /// fields if needed.
    pub fn tcp(subsystem: &Nqn, subtype: u8, address: core::net::SocketAddr, port_id: u16) -> Self {
        let mut this = Self {
            trtype: transport_type::TCP,
            adrfam: if address.is_ipv4() { address_family::IPV4 } else { address_family::IPV6 },
            subtype,
            treq: transport_requirements::SECURE_CHANNEL_NOT_REQUIRED,
            portid: U16::new(port_id),
            cntlid: U16::new(ControllerId::DYNAMIC.get()),
            asqsz: U16::new(32),
            subnqn: subsystem.to_field(),
            ..Self::default()
        };
        put_padded(&mut this.trsvcid, &address.port().to_string());
        put_padded(&mut this.traddr, &address.ip().to_string());
        this
    }

    /// Returns an entry like [`Self::tcp`] for RDMA with reliable connections made by the RDMA
    /// connection manager (RDMA figure 9).
    pub fn rdma(
        subsystem: &Nqn,
        subtype: u8,
        address: core::net::SocketAddr,
        port_id: u16,
    ) -> Self {
        let mut this = Self::tcp(subsystem, subtype, address, port_id);
        this.trtype = transport_type::RDMA;
        // RDMA_QPTYPE: reliable connected; RDMA_PRTYPE: no provider named; RDMA_CMS: RDMA_CM.
        (this.tsas[0], this.tsas[1], this.tsas[2]) = (1, 1, 1);
        this
    }

    /// Sets the entry's security to TLS 1.3, required.
    pub fn require_tls(&mut self) {
        self.treq &= !transport_requirements::SECURE_CHANNEL_MASK;
        self.treq |= transport_requirements::SECURE_CHANNEL_REQUIRED;
        self.tsas[0] = security_type::TLS13;
    }

    /// Returns SECTYPE of a TCP entry.
    pub fn security_type(&self) -> u8 {
        self.tsas[0]
    }

    /// Returns TSC, the statement about secure channels.
    pub fn secure_channel(&self) -> u8 {
        self.treq & transport_requirements::SECURE_CHANNEL_MASK
    }

    /// Returns the name of the subsystem; fails if the field is not a valid name.
    pub fn subsystem_nqn(&self) -> Result<Nqn, Error> {
        Nqn::from_field(&self.subnqn)
    }

    /// Returns the transport address without padding; invalid UTF-8 is replaced.
    pub fn address(&self) -> String {
        unpadded(&self.traddr)
    }

    /// Returns the transport service identifier without padding; invalid UTF-8 is replaced.
    pub fn service(&self) -> String {
        unpadded(&self.trsvcid)
    }

    /// Returns the controller to request in Connect.
    pub fn controller_id(&self) -> ControllerId {
        ControllerId(self.cntlid.get())
    }
}

/// Hosts compare and print these fields as C strings with trailing spaces cut, so the function
/// accepts either padding. The specification requires spaces.
fn unpadded(field: &[u8]) -> String {
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).trim_end_matches(' ').to_owned()
}

fn put_padded(field: &mut [u8], text: &str) {
    for (slot, byte) in field.iter_mut().zip(text.bytes().chain(core::iter::repeat(b' '))) {
        *slot = byte;
    }
}
